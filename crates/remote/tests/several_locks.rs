//! Goal: locks of programs hold between clients of several metadata servers, while slots go from one server to another and servers are started again.
//! Method: the real services behind real sockets, and clients without a kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, TryRecvError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use lease::coherence::{
    locks::Class,
    ranges::{Kind, Range},
};
use proto::{
    Head,
    attr::Caller,
    control::{Mount, Unmount},
    locks::{HeldLock, Lock, LockKind, LockOutcome},
};
use remote::{Access, Holder, LockWish, OpenFile, Place, Remote, RemoteOptions};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{cluster::options, credentials, several::Several, until};
use types::{Errno, Ino};
use wire::schema::Lane;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };
const ONE: Holder = Holder { class: Class::Process, id: 1 };
const TWO: Holder = Holder { class: Class::Process, id: 2 };
const FLOCK: Holder = Holder { class: Class::Flock, id: 3 };

fn with_silence(silence: Duration) -> Several {
    of_servers(2, silence)
}

fn of_servers(servers: usize, silence: Duration) -> Several {
    let sessions = SessionLimits { silence, ..SessionLimits::default() };
    let renew = Duration::from_millis(100);
    Several::with(servers, 1, MetadataOptions { sessions, renew, ..options() })
}

fn client(site: &Several, node: u64) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address(0), site.address(1)], credentials(node));
    options.patience = Duration::from_secs(30);
    options.longest = Duration::from_secs(40);
    Remote::start(options).unwrap()
}

fn at(dir: Ino, name: &str) -> Place<'_> {
    Place { dir, name: name.as_bytes() }
}

/// A directory of each server.
fn dirs(site: &Several, client: &Remote) -> [Ino; 2] {
    let made = (0..4).map(|n| client.mkdir(CALLER, at(Ino::ROOT, &format!("d{n}")), 0o755).unwrap().ino);
    let dirs: Vec<Ino> = made.collect();
    until("directories are where their slots belong", || {
        dirs.iter().map(|dir| site.owner(dir.get())).collect::<BTreeSet<_>>().len() == 2
    });
    let of = |n| *dirs.iter().find(|dir| site.owner(dir.get()) == n).unwrap();
    [of(0), of(1)]
}

fn open(client: &Remote, dir: Ino) -> Arc<OpenFile> {
    client.create(CALLER, at(dir, "f"), 0o644, BOTH).unwrap().1
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

/// Waits until that server lets it go.
fn bring(site: &Several, ino: Ino, to: usize) {
    until("the slot has gone", || site.try_bring(ino.get(), to).is_ok() && site.owner(ino.get()) == to);
}

#[test]
fn locks_go_with_their_slots() {
    let site = Several::new(2, 1);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let [_, dir] = dirs(&site, &a);
    let (of_a, of_b) = (open(&a, dir), open(&b, dir));
    take(&a, &of_a, ONE, Kind::Write).unwrap();
    take(&a, &of_a, FLOCK, Kind::Read).unwrap();
    let (_, waits) = begin(&b, wish(&of_b, ONE, Kind::Write, true));
    let (interrupted, also) = begin(&b, wish(&of_b, TWO, Kind::Read, true));
    until("both wait", || b.status().waiting_locks == 2);
    for to in [0, 1, 0] {
        bring(&site, dir, to);
        // Nobody gets what somebody has, and who waits does so there.
        assert_eq!(take(&b, &of_b, FLOCK, Kind::Write), Err(Errno::EAGAIN));
        assert_eq!(take(&b, &of_b, Holder { id: 9, ..ONE }, Kind::Read), Err(Errno::EAGAIN));
        let found = b.find_lock(&wish(&of_b, TWO, Kind::Read, false)).unwrap();
        assert_eq!(found, Some((Range::ALL, Kind::Write, 0)));
        until("both wait again", || b.status().waiting_locks == 2);
        assert_eq!((waits.try_recv(), also.try_recv()), (Err(TryRecvError::Empty), Err(TryRecvError::Empty)));
    }
    b.interrupt(interrupted);
    assert_eq!(got(&also), Err(Errno::EINTR));
    a.unlock(of_a.ino, ONE, Range::ALL).unwrap();
    got(&waits).unwrap();
    bring(&site, dir, 1);
    assert_eq!(take(&a, &of_a, ONE, Kind::Read), Err(Errno::EAGAIN));
    // A close gives up what was taken at another server.
    a.close(of_a.number);
    until("the flock is gone", || take(&b, &of_b, FLOCK, Kind::Write).is_ok());
    b.flush_locks(of_b.ino, of_b.number, ONE);
    let again = a.open(of_a.ino, BOTH).unwrap();
    take(&a, &again, ONE, Kind::Write).unwrap();
    a.shutdown();
    b.shutdown();
}

/// Waits until one of two who wait for each other is told, and not the other, who goes on when the first one's lock is free.
fn one_is_told(
    clients: &[Arc<Remote>; 2],
    files: &[[Arc<OpenFile>; 2]; 2],
    waits: &[Receiver<Result<(), Errno>>; 2],
) {
    let mut told = None;
    until("one is told", || {
        told = waits.iter().position(|answer| answer.try_recv() == Ok(Err(Errno::EDEADLK)));
        told.is_some()
    });
    let told = told.unwrap();
    assert_eq!(waits[1 - told].try_recv(), Err(TryRecvError::Empty));
    clients[told].unlock(files[told][told].ino, ONE, Range::ALL).unwrap();
    got(&waits[1 - told]).unwrap();
    for ino in [0, 1].map(|n| files[1 - told][n].ino) {
        clients[1 - told].unlock(ino, ONE, Range::ALL).unwrap();
    }
}

/// Goal: a circle of processes over two servers is told to one of them, and the other goes on; of flock(2) nobody is told. Method: two clients that
/// wait for each other at two servers, with flock(2) and with fcntl(2).
#[test]
fn a_circle_over_two_servers_is_told_to_one() {
    let site = Several::new(2, 1);
    let clients = [client(&site, 900), client(&site, 901)];
    let dirs = dirs(&site, &clients[0]);
    let files = clients.each_ref().map(|client| dirs.map(|dir| open(client, dir)));
    let circle = |holder: Holder| {
        for n in 0..2 {
            take(&clients[n], &files[n][n], holder, Kind::Write).unwrap();
        }
        [0, 1].map(|n| begin(&clients[n], wish(&files[n][1 - n], holder, Kind::Write, true)))
    };
    let flocks = circle(FLOCK);
    one_is_told(&clients, &files, &circle(ONE).map(|(_, answer)| answer));
    for (client, (number, answer)) in clients.iter().zip(flocks) {
        assert_eq!(answer.try_recv(), Err(TryRecvError::Empty));
        client.interrupt(number);
        assert_eq!(got(&answer), Err(Errno::EINTR));
    }
    clients.iter().for_each(|client| client.shutdown());
}

/// Goal: a circle is found also if it was closed while one of its servers was away, be it the one that looks. Method: each in turn is stopped, the last
/// wait is begun, and it is started again.
#[test]
fn a_circle_that_is_closed_while_a_server_is_away_is_found() {
    let mut site = with_silence(Duration::from_secs(12));
    let clients = [client(&site, 900), client(&site, 901)];
    let dirs = dirs(&site, &clients[0]);
    let files = clients.each_ref().map(|client| dirs.map(|dir| open(client, dir)));
    for away in [1, 0] {
        for n in 0..2 {
            take(&clients[n], &files[n][n], ONE, Kind::Write).unwrap();
        }
        // It waits at the server that stays.
        let wait = |n: usize| begin(&clients[n], wish(&files[n][1 - n], ONE, Kind::Write, true)).1;
        let first = wait(away);
        until("it waits", || clients[away].status().waiting_locks == 1);
        site.stop(away);
        let last = wait(1 - away);
        site.start(away);
        site.settled();
        let waits = if away == 0 { [first, last] } else { [last, first] };
        one_is_told(&clients, &files, &waits);
    }
    clients.iter().for_each(|client| client.shutdown());
}

/// Goal: no two have the same lock at once, whatever goes on with the slots. Method: three threads on two clients count under a lock, and the slot goes
/// to and fro. Each count is there, and nobody was inside beside another.
#[test]
fn counting_under_a_lock_while_its_slot_moves() {
    let site = Several::new(2, 1);
    let clients = [client(&site, 900), client(&site, 901)];
    let [_, dir] = dirs(&site, &clients[0]);
    let first = open(&clients[0], dir);
    let (ended, inside, count) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let moves = AtomicU64::new(0);
    let turns: u64 = thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|n| {
                let client = &clients[n % 2];
                let (ended, inside, count, ino) = (&ended, &inside, &count, first.ino);
                let moves = &moves;
                scope.spawn(move || {
                    let file = client.open(ino, BOTH).unwrap();
                    let holder = Holder { class: [Class::Process, Class::Flock][n / 2], id: 20 + n as u64 };
                    let holder = Holder { class: Class::Process, ..holder };
                    let mut turns = 0;
                    while turns < 5 || !ended.load(Ordering::Acquire) {
                        got(&begin(client, wish(&file, holder, Kind::Write, true)).1).unwrap();
                        assert!(!inside.swap(true, Ordering::AcqRel), "two have it");
                        count.store(count.load(Ordering::Acquire) + 1, Ordering::Release);
                        // Until its slot has gone, and who waits has asked there.
                        let (before, end) =
                            (moves.load(Ordering::Acquire), Instant::now() + Duration::from_millis(100));
                        while moves.load(Ordering::Acquire) == before && Instant::now() < end {
                            thread::sleep(Duration::from_millis(1));
                        }
                        thread::sleep(Duration::from_millis(10));
                        inside.store(false, Ordering::Release);
                        client.unlock(ino, holder, Range::ALL).unwrap();
                        turns += 1;
                    }
                    turns
                })
            })
            .collect();
        for n in 0..20 {
            bring(&site, dir, n % 2);
            moves.fetch_add(1, Ordering::AcqRel);
        }
        ended.store(true, Ordering::Release);
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert_eq!(count.into_inner(), turns);
    clients.iter().for_each(|client| client.shutdown());
}

#[test]
fn locks_outlive_a_restart_of_either_server() {
    let mut site = with_silence(Duration::from_secs(12));
    let (a, b) = (client(&site, 900), client(&site, 901));
    let dirs = dirs(&site, &a);
    let files: Vec<_> = dirs.iter().map(|dir| (open(&a, *dir), open(&b, *dir))).collect();
    let session = a.status().session;
    for (of_a, _) in &files {
        take(&a, of_a, ONE, Kind::Write).unwrap();
        take(&a, of_a, FLOCK, Kind::Read).unwrap();
    }
    let waits: Vec<_> =
        files.iter().map(|(_, of_b)| begin(&b, wish(of_b, ONE, Kind::Write, true)).1).collect();
    until("both wait", || b.status().waiting_locks == 2);
    for n in [1, 0, 1] {
        site.stop(n);
        // The other's go on.
        if n == 1 {
            assert_eq!(take(&b, &files[0].1, TWO, Kind::Read), Err(Errno::EAGAIN));
        }
        site.start(n);
        site.settled();
        for (_, of_b) in &files {
            assert_eq!(take(&b, of_b, FLOCK, Kind::Write), Err(Errno::EAGAIN));
            assert_eq!(take(&b, of_b, TWO, Kind::Write), Err(Errno::EAGAIN));
        }
        assert!(waits.iter().all(|waits| waits.try_recv() == Err(TryRecvError::Empty)));
    }
    assert_eq!(a.status().session, session, "it came back");
    for ((of_a, of_b), waits) in files.iter().zip(&waits) {
        assert!(a.file(of_a.number).is_ok() && b.file(of_b.number).is_ok());
        a.flush_locks(of_a.ino, of_a.number, ONE);
        got(waits).unwrap();
        a.close(of_a.number);
        until("the flock is gone", || take(&b, of_b, FLOCK, Kind::Write).is_ok());
    }
    a.shutdown();
    b.shutdown();
}

/// Goal: who has a lock at a server that he never asked, since the slot brought it there, comes back with it, too. Method: the slot goes, and the
/// server that took it is started again before the client hears of anything.
#[test]
fn a_lock_that_came_with_its_slot_outlives_a_restart() {
    let mut site = with_silence(Duration::from_secs(12));
    let (a, b) = (client(&site, 900), client(&site, 901));
    let [dir, _] = dirs(&site, &a);
    let (of_a, of_b) = (open(&a, dir), open(&b, dir));
    take(&a, &of_a, ONE, Kind::Write).unwrap();
    for round in 0..2 {
        bring(&site, dir, 1);
        site.stop(1);
        site.start(1);
        site.settled();
        assert_eq!(take(&b, &of_b, ONE, Kind::Write), Err(Errno::EAGAIN), "{round}");
        bring(&site, dir, 0);
    }
    assert_eq!(take(&b, &of_b, ONE, Kind::Write), Err(Errno::EAGAIN));
    a.shutdown();
    take(&b, &of_b, ONE, Kind::Write).unwrap();
    b.shutdown();
}

/// Goal: a client that one server does not take back has lost its locks at all of them, its programs hear of it, and others get them. Method: a server
/// is started again where the client does not find it, until it waits for it no more.
#[test]
fn who_comes_too_late_to_one_server_loses_its_locks_at_all() {
    let mut site = with_silence(Duration::from_secs(2));
    let (a, b) = (client(&site, 900), client(&site, 901));
    let dirs = dirs(&site, &a);
    let files = dirs.map(|dir| (open(&a, dir), open(&b, dir)));
    let other = a.open(files[0].0.ino, BOTH).unwrap();
    files.iter().for_each(|(of_a, _)| take(&a, of_a, ONE, Kind::Write).unwrap());
    let before = a.status().session;
    site.stop(1);
    site.hide(1);
    site.start(1);
    let hidden = |lane| site::client_to(&site.bound(1), Several::node(1), lane);
    let (meta, control) = (hidden(Lane::Metadata), hidden(Lane::Control));
    let id = proto::SessionId(77);
    let mount = Mount { head: Some(Head::of(id)), host: "test".into(), ..Mount::default() };
    site::ask(&control, &mount, &[], 0).unwrap();
    let (ino, end) = (files[1].0.ino.get(), Range::END);
    let lock = Some(HeldLock { ino, owner: 1, end, kind: LockKind::Write.into(), ..HeldLock::default() });
    let mut number = 0;
    until("it waits for nobody", || {
        number += 1;
        let ask = Lock { head: Some(Head::operation(id, number, number)), lock, wait: false };
        site::ask(&meta, &ask, &[], 0).unwrap().0.outcome() == LockOutcome::Granted
    });
    site::ask(&control, &Unmount { head: Some(Head::of(id)) }, &[], 0).unwrap();
    site.reveal();
    until("it has another session", || a.status().session != before);
    for (of_a, of_b) in &files {
        assert_eq!(a.file(of_a.number).err(), Some(Errno::EIO), "its program believes in a lock");
        until("it is free", || take(&b, of_b, ONE, Kind::Write).is_ok());
    }
    until("what had no lock goes on", || a.file(other.number).is_ok());
    a.shutdown();
    b.shutdown();
}

/// Goal: while a session comes back to one server, which takes as long as another is away, the others hear of it. Method: the server on duty is started again
/// while one is away, so that what the client has there is nobody's for longer than a session may be silent; it has a lock at the third.
#[test]
fn regression_a_session_that_comes_back_is_not_silent_elsewhere() {
    let silence = Duration::from_secs(3);
    let mut site = of_servers(3, silence);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let of_a = [0, 1, 2].map(|n| {
        let dir = a.mkdir(CALLER, at(Ino::ROOT, &format!("d{n}")), 0o755).unwrap().ino;
        bring(&site, dir, n);
        open(&a, dir)
    });
    take(&a, &of_a[1], ONE, Kind::Write).unwrap();
    let of_b = b.open(of_a[1].ino, BOTH).unwrap();
    let before = a.status().session;
    site.stop(2);
    site.stop(0);
    site.start(0);
    let begun = Instant::now();
    while begun.elapsed() < silence * 3 {
        assert_eq!(take(&b, &of_b, ONE, Kind::Write), Err(Errno::EAGAIN), "its owner is there");
        thread::sleep(Duration::from_millis(50));
    }
    site.start(2);
    until("what it has is there", || of_a.iter().all(|file| a.getattr(file.ino).is_ok()));
    assert_eq!((a.status().session, take(&b, &of_b, ONE, Kind::Write)), (before, Err(Errno::EAGAIN)));
    a.unlock(of_a[1].ino, ONE, Range::ALL).unwrap();
    take(&b, &of_b, ONE, Kind::Write).unwrap();
    a.shutdown();
    b.shutdown();
}
