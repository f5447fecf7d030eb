//! Goal: the locks of the programs of several mounts go together, whatever happens on the way: a server that is killed, a session that is
//! lost, a signal. Method: the real services behind real sockets, and clients without a kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, TryRecvError, channel},
    },
    time::Duration,
};

use lease::coherence::{
    locks::Class,
    ranges::{Kind, Range},
};
use proto::attr::Caller;
use remote::{Access, Holder, LockWish, OpenFile, Place, Remote, RemoteOptions, WriteHow};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    cluster::{Site, options},
    credentials, until,
};
use types::{Errno, Ino};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };
const ONE: Holder = Holder { class: Class::Process, id: 1 };
const TWO: Holder = Holder { class: Class::Process, id: 2 };
const FLOCK: Holder = Holder { class: Class::Flock, id: 3 };

fn with_silence(silence: Duration) -> Site {
    let sessions = SessionLimits { silence, ..SessionLimits::default() };
    let renew = Duration::from_millis(100);
    Site::with(1, MetadataOptions { sessions, renew, ..options() })
}

fn client(site: &Site, node: u64, patience: Duration) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], credentials(node));
    options.patience = patience;
    options.longest = Duration::from_secs(20);
    Remote::start(options).unwrap()
}

fn open(client: &Remote) -> Arc<OpenFile> {
    let place = Place { dir: Ino::ROOT, name: b"f" };
    client.create(CALLER, place, 0o644, BOTH).unwrap().1
}

fn wish(file: &OpenFile, holder: Holder, kind: Kind, wait: bool) -> LockWish {
    LockWish { ino: file.ino, handle: file.number, holder, range: Range::ALL, kind, pid: 7, wait }
}

fn begin(client: &Remote, wish: LockWish) -> (u64, Receiver<Result<(), Errno>>) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let id = LAST.fetch_add(2, Ordering::Relaxed);
    let (send, answer) = channel();
    client.lock(id, wish, move |result| send.send(result).unwrap());
    (id, answer)
}

fn got(answer: &Receiver<Result<(), Errno>>) -> Result<(), Errno> {
    answer.recv_timeout(Duration::from_secs(60)).unwrap()
}

fn take(client: &Remote, file: &OpenFile, holder: Holder, kind: Kind) -> Result<(), Errno> {
    got(&begin(client, wish(file, holder, kind, false)).1)
}

#[test]
fn locks_of_two_mounts_go_together() {
    let site = Site::new(1);
    let (a, b) = (client(&site, 900, Duration::from_secs(5)), client(&site, 901, Duration::from_secs(5)));
    let of_a = open(&a);
    for holder in [ONE, FLOCK] {
        let of_b = open(&b);
        take(&a, &of_a, holder, Kind::Read).unwrap();
        take(&b, &of_b, holder, Kind::Read).unwrap();
        assert_eq!(take(&b, &of_b, holder, Kind::Write), Err(Errno::EAGAIN));
        let found = a.find_lock(&wish(&of_a, TWO, Kind::Write, false)).unwrap();
        assert_eq!(found.is_some(), holder == ONE, "fcntl(2) does not see flock(2)");
        a.unlock(of_a.ino, holder, Range::ALL).unwrap();
        take(&b, &of_b, holder, Kind::Write).unwrap();
        let (_, waits) = begin(&a, wish(&of_a, holder, Kind::Write, true));
        // The close of an opening gives up what was taken with it.
        b.close(of_b.number);
        got(&waits).unwrap();
        a.unlock(of_a.ino, holder, Range::ALL).unwrap();
        // Its number is not known any more.
        assert_eq!(b.file(of_b.number).err(), Some(Errno::EBADF));
        assert_eq!(a.find_lock(&wish(&of_a, TWO, Kind::Write, false)).unwrap(), None);
    }
    let of_b = open(&b);
    // A process's locks go with any of its descriptors.
    let other = a.open(of_a.ino, BOTH).unwrap();
    take(&a, &of_a, ONE, Kind::Write).unwrap();
    a.flush_locks(of_a.ino, other.number, TWO);
    assert_eq!(
        take(&b, &of_b, ONE, Kind::Read),
        Err(Errno::EAGAIN),
        "another process's close is not its own"
    );
    a.flush_locks(of_a.ino, other.number, ONE);
    take(&b, &of_b, ONE, Kind::Read).unwrap();
    // And a mount's with the mount.
    let (_, waits) = begin(&a, wish(&of_a, ONE, Kind::Write, true));
    b.shutdown();
    got(&waits).unwrap();
    a.shutdown();
}

#[test]
fn who_waits_can_be_interrupted() {
    let site = Site::new(1);
    let (a, b) = (client(&site, 900, Duration::from_secs(5)), client(&site, 901, Duration::from_secs(5)));
    let (of_a, of_b) = (open(&a), open(&b));
    take(&a, &of_a, ONE, Kind::Write).unwrap();
    // At any moment: before it is asked, while it is, when it waits.
    for pause_ms in [0, 0, 1, 2, 5, 50] {
        let (id, waits) = begin(&b, wish(&of_b, ONE, Kind::Write, true));
        std::thread::sleep(Duration::from_millis(pause_ms));
        b.interrupt(id);
        assert_eq!(got(&waits), Err(Errno::EINTR));
    }
    // A signal that another thread brings before the request.
    b.interrupt(1);
    let (send, early) = channel();
    b.lock(1, wish(&of_b, ONE, Kind::Write, true), move |result| send.send(result).unwrap());
    assert_eq!(got(&early), Err(Errno::EINTR));
    a.unlock(of_a.ino, ONE, Range::ALL).unwrap();
    take(&a, &of_a, ONE, Kind::Write).unwrap();
    // Each closes a circle.
    take(&b, &of_b, Holder { class: Class::Flock, ..TWO }, Kind::Write).unwrap();
    let part = |file, holder, start, wait| {
        let range = Range::new(start, start).unwrap();
        LockWish { range, ..wish(file, holder, Kind::Write, wait) }
    };
    a.unlock(of_a.ino, ONE, Range::ALL).unwrap();
    got(&begin(&a, part(&of_a, ONE, 1, false)).1).unwrap();
    got(&begin(&b, part(&of_b, TWO, 2, false)).1).unwrap();
    let (id, waits) = begin(&a, part(&of_a, ONE, 2, true));
    // Or it would be the one that closes the circle.
    until("it waits", || a.status().waiting_locks == 1);
    // The one whose request came last: be it the first one's.
    let mut first_was_told = false;
    until("one of them is told", || {
        first_was_told = waits.try_recv() == Ok(Err(Errno::EDEADLK));
        if first_was_told {
            return true;
        }
        let (id, answer) = begin(&b, part(&of_b, TWO, 1, true));
        match answer.recv_timeout(Duration::from_millis(200)) {
            Ok(result) => result == Err(Errno::EDEADLK),
            Err(_) => {
                b.interrupt(id);
                got(&answer) == Err(Errno::EDEADLK)
            }
        }
    });
    if !first_was_told {
        a.interrupt(id);
        assert_eq!(got(&waits), Err(Errno::EINTR));
    }
    a.shutdown();
    b.shutdown();
}

#[test]
fn locks_outlive_a_restart_of_the_server() {
    let mut site = with_silence(Duration::from_secs(12));
    let (a, b) = (client(&site, 900, Duration::from_secs(40)), client(&site, 901, Duration::from_secs(40)));
    let (of_a, of_b) = (open(&a), open(&b));
    take(&a, &of_a, ONE, Kind::Write).unwrap();
    take(&a, &of_a, FLOCK, Kind::Read).unwrap();
    let (_, waits) = begin(&b, wish(&of_b, ONE, Kind::Write, true));
    let (interrupted, also) = begin(&b, wish(&of_b, TWO, Kind::Read, true));
    until("both wait", || b.status().waiting_locks == 2);
    for _ in 0..2 {
        // It may die again while they are coming back.
        site.vanish();
        site.start();
        site.wait_for(1);
        // Nobody gets it, before and after the time of coming back.
        assert_eq!(take(&b, &of_b, FLOCK, Kind::Write), Err(Errno::EAGAIN));
        assert_eq!(take(&b, &of_b, TWO, Kind::Write), Err(Errno::EAGAIN));
        assert_eq!((waits.try_recv(), also.try_recv()), (Err(TryRecvError::Empty), Err(TryRecvError::Empty)));
    }
    b.interrupt(interrupted);
    assert_eq!(got(&also), Err(Errno::EINTR));
    assert!(a.file(of_a.number).is_ok() && b.file(of_b.number).is_ok());
    a.flush_locks(of_a.ino, of_a.number, ONE);
    got(&waits).unwrap();
    a.close(of_a.number);
    until("the flock is gone", || take(&b, &of_b, FLOCK, Kind::Write).is_ok());
    a.shutdown();
    b.shutdown();
}

#[test]
fn a_session_that_comes_too_late_loses_its_locks_and_their_files() {
    let mut site = with_silence(Duration::from_secs(1));
    // This client's way to the server, which can be taken away.
    let socket = std::path::PathBuf::from(site.address().to_string().trim_start_matches("unix:"));
    let way = socket.with_extension("way");
    std::os::unix::fs::symlink(&socket, &way).unwrap();
    let address = format!("unix:{}", way.display()).parse().unwrap();
    let mut options = RemoteOptions::new(vec![address], credentials(900));
    options.patience = Duration::from_millis(500);
    let a = Remote::start(options).unwrap();
    let (of_a, other) = (open(&a), open(&a));
    take(&a, &of_a, ONE, Kind::Write).unwrap();
    assert_eq!(a.write(&of_a, 0, b"old", WriteHow::default()), Ok(3));
    let before = a.status().session;
    site.kill();
    std::fs::remove_file(&way).unwrap();
    site.start();
    site.wait_for(1);
    let b = client(&site, 901, Duration::from_secs(5));
    let of_b = open(&b);
    take(&b, &of_b, ONE, Kind::Write).unwrap();
    // It has not noticed, and it reaches the data server.
    assert_eq!(b.write(&of_b, 0, b"new", WriteHow::default()), Ok(3));
    assert_eq!(a.write(&of_a, 0, b"old", WriteHow::default()), Err(Errno::EIO));
    let mut bytes = [0; 3];
    assert_eq!((b.read(&of_b, 0, &mut bytes), &bytes), (Ok(3), b"new"));
    std::os::unix::fs::symlink(&socket, &way).unwrap();
    until("it has a session", || a.status().session != before);
    assert_eq!(a.file(of_a.number).err(), Some(Errno::EIO), "its program believes in a lock");
    until("what had no lock goes on", || a.file(other.number).is_ok() && a.getattr(of_a.ino).is_ok());
    assert_eq!(a.write(&other, 0, b"two", WriteHow::default()), Ok(3));
    assert_eq!(take(&a, &other, ONE, Kind::Write), Err(Errno::EAGAIN));
    b.shutdown();
    until("it is free", || take(&a, &other, ONE, Kind::Write).is_ok());
    a.shutdown();
}

#[test]
fn a_server_that_is_away_is_an_error_in_time() {
    let mut site = with_silence(Duration::from_secs(4));
    let a = client(&site, 900, Duration::from_millis(700));
    let file = open(&a);
    take(&a, &file, ONE, Kind::Write).unwrap();
    let (id, waits) = begin(&a, wish(&file, TWO, Kind::Write, true));
    until("it waits", || a.status().waiting_locks == 1);
    site.kill();
    assert_eq!(take(&a, &file, Holder { id: 5, ..ONE }, Kind::Read), Err(Errno::EIO));
    a.interrupt(id);
    assert_eq!(got(&waits), Err(Errno::EINTR), "a program that was interrupted goes on");
    // Closed while nobody hears it: the server is told later.
    a.flush_locks(file.ino, file.number, ONE);
    site.start();
    site.wait_for(1);
    until("it is free", || take(&a, &file, TWO, Kind::Write).is_ok());
    a.shutdown();
}
