//! Goal: large reads and writes through the kernel, which are sent and answered by whichever thread has them in hand, are right wherever buffers
//! begin and however many programs there are, kept back or not, and see at once what another client writes. Method: a real mount of one client at real services, and a second
//! client without a kernel. Needs root: else a line says that it is skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use fuse::{Capabilities, MountOptions, Session, TransportChoice};
use remote::{Access, Place, Remote, RemoteOptions, WriteHow};
use site::{cluster::Site, credentials, until};
use types::Ino;

const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };
const MIB: usize = 1 << 20;

fn client(site: &Site, node: u64) -> Arc<Remote> {
    client_with(site, node, 0)
}

fn client_with(site: &Site, node: u64, write_back: u64) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], credentials(node));
    options.patience = Duration::from_secs(30);
    options.longest = Duration::from_secs(60);
    options.write_back = write_back;
    Remote::start(options).unwrap()
}

struct Mounted {
    dir: tempfile::TempDir,
    session: Option<Session>,
    remote: Arc<Remote>,
}

/// `None`: this machine cannot.
fn mount(site: &Site) -> Option<Mounted> {
    mount_with(site, 0)
}

fn mount_with(site: &Site, write_back: u64) -> Option<Mounted> {
    mount_of(client_with(site, 900, write_back), Capabilities::empty())
}

fn mount_of(remote: Arc<Remote>, withhold: Capabilities) -> Option<Mounted> {
    let dir = tempfile::tempdir().unwrap();
    let options =
        MountOptions { transport: TransportChoice::Device, withhold, ..MountOptions::new(dir.path()) };
    match Session::mount(&options, remote.clone()) {
        Ok(session) => Some(Mounted { dir, session: Some(session), remote }),
        Err(error) => {
            eprintln!("skipped: no mount here: {error}");
            None
        }
    }
}

impl Mounted {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn open(&self, name: &str) -> File {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.path(name)).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.unmount(true);
            self.remote.shutdown();
        }
    }
}

/// All of them say which round and which block.
fn block(round: u64, n: u64) -> Vec<u8> {
    (round << 32 | n).to_le_bytes().repeat(MIB / 8)
}

/// What may be kept back: nothing; so much that room is waited for; what is enough.
const WRITE_BACK: [u64; 3] = [0, 8 << 20, 64 << 20];

#[test]
fn several_programs_read_the_blocks_that_they_wrote() {
    let site = Site::new(2);
    for write_back in WRITE_BACK {
        let Some(mounted) = mount_with(&site, write_back) else { return };
        std::thread::scope(|scope| {
            for program in 0..3u64 {
                let mounted = &mounted;
                scope.spawn(move || {
                    let file = mounted.open(&format!("f{program}"));
                    for round in 1..4 {
                        for n in 0..12 {
                            file.write_all_at(&block(round, n), n * MIB as u64).unwrap();
                        }
                        let mut got = vec![0; MIB];
                        for n in 0..12 {
                            file.read_exact_at(&mut got, n * MIB as u64).unwrap();
                            assert!(
                                got == block(round, n),
                                "{write_back}: program {program}, round {round}, block {n}"
                            );
                        }
                    }
                });
            }
        });
        assert_eq!(mounted.remote.status().back.writes > 0, write_back > 0);
    }
}

#[test]
fn buffers_that_begin_anywhere_are_read_and_written() {
    let site = Site::new(1);
    for write_back in WRITE_BACK {
        let Some(mounted) = mount_with(&site, write_back) else { return };
        let file = mounted.open("f");
        let want: Vec<u8> = (0..9 * MIB + 77).map(|n| (n / 5 + n % 249) as u8).collect();
        // The kernel makes a request of each 256 pages, wherever they begin.
        let mut memory = vec![0; want.len() + 64];
        for by in [0, 16, 33] {
            memory[by..by + want.len()].copy_from_slice(&want);
            file.write_all_at(&memory[by..by + want.len()], 0).unwrap();
            memory.fill(0);
            let mut at = 0;
            for len in [MIB, 2 * MIB + 13, 600_001].into_iter().cycle() {
                let end = want.len().min(at + len);
                file.read_exact_at(&mut memory[by..by + end - at], at as u64).unwrap();
                assert!(memory[by..by + end - at] == want[at..end], "{by}: {at} to {end}");
                at = end;
                if at == want.len() {
                    break;
                }
            }
        }
    }
}

/// Goal: what is kept back of a stream of large writes is seen by who looks, wherever in the stream he comes (S-402), and a program that waits for room is answered.
/// Method: another client reads what was answered so far.
#[test]
fn a_stream_that_is_kept_back_is_what_another_client_reads() {
    let site = Site::new(2);
    let Some(mounted) = mount_with(&site, 8 << 20) else { return };
    let other = client(&site, 901);
    for stop in [5, 17, 40] {
        let name = format!("f{stop}");
        let file = mounted.open(&name);
        for n in 0..stop {
            file.write_all_at(&block(stop, n), n * MIB as u64).unwrap();
        }
        let ino = other.lookup(Place { dir: Ino::ROOT, name: name.as_bytes() }).unwrap().ino;
        assert_eq!(other.getattr(ino).unwrap().size, stop * MIB as u64);
        let there = other.open(ino, BOTH).unwrap();
        let mut got = vec![0; MIB];
        for n in 0..stop {
            assert_eq!(other.read(&there, n * MIB as u64, &mut got), Ok(MIB));
            assert!(got == block(stop, n), "block {n} of {stop}");
        }
        other.close(there.number);
    }
    assert!(mounted.remote.status().back.writes > 0);
    other.shutdown();
}

#[test]
fn what_another_client_writes_is_read_at_once_through_the_kernel() {
    let site = Site::new(1);
    let Some(mounted) = mount(&site) else { return };
    let other = client(&site, 901);
    let file = mounted.open("f");
    for n in 0..10 {
        file.write_all_at(&block(0, n), n * MIB as u64).unwrap();
    }
    drop(file);
    let ino = other.lookup(Place { dir: Ino::ROOT, name: b"f" }).unwrap().ino;
    let mut got = vec![0; MIB];
    for round in 1..4 {
        let file = File::open(mounted.path("f")).unwrap();
        until("something is asked for ahead", || {
            let before = mounted.remote.status().ahead.found;
            for n in 0..6 {
                file.read_exact_at(&mut got, n * MIB as u64).unwrap();
                assert!(got == block(round - 1, n));
            }
            mounted.remote.status().ahead.found > before
        });
        let writer = other.open(ino, BOTH).unwrap();
        for n in 0..10 {
            let wrote = other.write(&writer, n * MIB as u64, &block(round, n), WriteHow::default()).unwrap();
            assert_eq!(wrote, MIB);
            file.read_exact_at(&mut got, n * MIB as u64).unwrap();
            assert!(got == block(round, n), "round {round}, block {n}");
        }
        other.close(writer.number);
    }
    other.shutdown();
}

/// Goal: the session refers to no more inodes than it may, and to nothing that another client removed, whatever the kernel remembers; what is known no more
/// is there all the same. Method: more files than that, of which some are removed elsewhere; a kernel that forgets when it is asked to, and one that does not.
#[test]
fn what_the_kernel_merely_remembers_is_not_referred_to() {
    const MANY: usize = 300;
    for withhold in [Capabilities::empty(), Capabilities::NEWER_THAN_LINUX_6_1] {
        let site = Site::new(1);
        let mut options = RemoteOptions::new(vec![site.address()], credentials(900));
        options.known = 40;
        let Some(mounted) = mount_of(Remote::start(options).unwrap(), withhold) else { return };
        let other = client(&site, 901);
        let name = |n: usize| format!("f{n}");
        (0..MANY).for_each(|n| std::fs::write(mounted.path(&name(n)), name(n)).unwrap());
        let open = mounted.open(&name(0));
        until("some are given back", || site.mds().known() < 60);
        for n in 0..MANY {
            assert_eq!(std::fs::read_to_string(mounted.path(&name(n))).unwrap(), name(n));
        }
        for n in 0..MANY {
            let name = name(n);
            other.unlink(Place { dir: Ino::ROOT, name: name.as_bytes() }).unwrap();
        }
        // The root, and the one that is open.
        until("what was removed is gone", || site.mds().statfs_usage().inodes == 2);
        let mut got = [0; 2];
        open.read_exact_at(&mut got, 0).unwrap();
        assert_eq!(&got, b"f0");
        drop(open);
        until("what was open is gone", || site.mds().statfs_usage().inodes == 1);
        other.shutdown();
    }
}
