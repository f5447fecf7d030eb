//! A network that can be cut between any two: what goes to a server goes through here, and who asks is known by what he says of himself.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use net::Address;
use parking_lot::Mutex;

/// Long enough for nobody to notice.
const LOOK: Duration = Duration::from_millis(2);

/// What a process of a test says that it is: who it is can be read in its first bytes.
pub fn build_of(node: u64) -> String {
    format!("[{node}]")
}

/// What comes before it is random in part, and may have a bracket.
pub fn node_in(hello: &[u8]) -> Option<u64> {
    hello.split(|byte| *byte == b'[').skip(1).find_map(|rest| {
        let end = rest.iter().position(|byte| *byte == b']')?;
        std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
    })
}

/// In front of one server.
pub struct Cuts {
    path: PathBuf,
    /// Nothing of theirs arrives, nor anything for them: it is not lost, but late, as on a network that sends again.
    cut: Arc<Mutex<BTreeSet<u64>>>,
    ended: Arc<AtomicBool>,
}

impl Cuts {
    /// `to`: a Unix socket, which need not be there yet.
    pub fn before(to: &Path, at: &Path) -> Cuts {
        let listener = UnixListener::bind(at).unwrap();
        listener.set_nonblocking(true).unwrap();
        let cuts = Cuts { path: at.to_owned(), cut: Arc::default(), ended: Arc::default() };
        let (cut, ended, to) = (cuts.cut.clone(), cuts.ended.clone(), to.to_owned());
        thread::spawn(move || {
            while !ended.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((asker, _)) => {
                        let (cut, ended, to) = (cut.clone(), ended.clone(), to.clone());
                        thread::spawn(move || carry(asker, &to, &cut, &ended));
                    }
                    Err(_) => thread::sleep(LOOK),
                }
            }
        });
        cuts
    }

    pub fn address(&self) -> Address {
        format!("unix:{}", self.path.display()).parse().unwrap()
    }

    pub fn cut(&self, node: u64) {
        self.cut.lock().insert(node);
    }

    pub fn heal(&self) {
        self.cut.lock().clear();
    }
}

impl Drop for Cuts {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        let _ = std::fs::remove_file(&self.path);
    }
}

fn carry(mut asker: UnixStream, to: &Path, cut: &Arc<Mutex<BTreeSet<u64>>>, ended: &Arc<AtomicBool>) {
    asker.set_nonblocking(false).unwrap();
    let (mut hello, mut piece) = (Vec::new(), [0; 4096]);
    let node = loop {
        let Ok(len @ 1..) = asker.read(&mut piece) else { return };
        hello.extend_from_slice(&piece[..len]);
        if let Some(node) = node_in(&hello) {
            break node;
        }
    };
    let may_pass = {
        let (cut, ended) = (cut.clone(), ended.clone());
        move || {
            while cut.lock().contains(&node) {
                if ended.load(Ordering::Acquire) {
                    return false;
                }
                thread::sleep(LOOK);
            }
            true
        }
    };
    if !may_pass() {
        return;
    }
    let Ok(mut server) = UnixStream::connect(to) else { return };
    if server.write_all(&hello).is_err() {
        return;
    }
    let back = (server.try_clone().unwrap(), asker.try_clone().unwrap(), may_pass.clone());
    let answers = thread::spawn(move || pass(back.0, back.1, &back.2));
    pass(asker, server, &may_pass);
    let _ = answers.join();
}

/// Until one of the two ends.
fn pass(mut from: UnixStream, mut to: UnixStream, may_pass: &dyn Fn() -> bool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if !may_pass() || to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}
