//! Goal: writes that a mount keeps back where there are several metadata servers: what was answered is what others see, wherever slots go and whatever
//! server ends; nothing that was kept back lands late; a client that is dead holds a slot up until it is given up, and no longer. Method: the real services
//! behind real sockets, and clients without a kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fuse::SetattrArgs;
use proto::{
    Head, Reason, SessionId,
    attr::Caller,
    control::Renew,
    leases::Look,
    metadata::{BeginWrite, Find, Open},
    writes::KeepWrites,
};
use remote::{Access, OpenFile, Place, Remote, RemoteOptions, WriteHow};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    DataSite, ask, ask_once, client_to,
    cluster::options,
    credentials,
    several::{Begin, Routed, Several},
    until,
};
use types::{Errno, Ino};
use wire::schema::Lane;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const READ: Access = Access { read: true, write: false, exclusive: false, no_atime: true };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };

fn client(site: &Several, node: u64) -> Arc<Remote> {
    client_with(site, node, Duration::from_secs(20))
}

fn client_with(site: &Several, node: u64, patience: Duration) -> Arc<Remote> {
    let servers: Vec<_> = (0..site.servers()).map(|n| site.address(n)).collect();
    let mut options = RemoteOptions::new(servers, credentials(node));
    options.patience = patience;
    options.longest = Duration::from_secs(40);
    options.write_back = 64 << 20;
    Remote::start(options).unwrap()
}

fn with_silence(silence: Duration) -> MetadataOptions {
    let sessions = SessionLimits { silence, ..SessionLimits::default() };
    // As long as data servers need to find a server again that is back, also on a machine that is busy.
    // A session says what it has at the second or third renewal after its server died.
    let renew = Duration::from_millis(500);
    MetadataOptions { sessions, renew, node_silence: Duration::from_secs(15), ..options() }
}

fn at(dir: Ino, name: &str) -> Place<'_> {
    Place { dir, name: name.as_bytes() }
}

/// A directory of each server.
fn dirs(site: &Several, client: &Remote) -> Vec<Ino> {
    let made = (0..8).map(|n| client.mkdir(CALLER, at(Ino::ROOT, &format!("d{n}")), 0o755).unwrap().ino);
    let made: Vec<Ino> = made.collect();
    let owners = || made.iter().map(|dir| site.owner(dir.get())).collect::<BTreeSet<_>>();
    until("directories are where their slots belong", || owners().len() >= 2);
    let mut seen = BTreeSet::new();
    made.into_iter().filter(|dir| seen.insert(site.owner(dir.get()))).collect()
}

fn write(client: &Remote, file: &OpenFile, offset: u64, bytes: &[u8]) {
    assert_eq!(client.write(file, offset, bytes, WriteHow::default()), Ok(bytes.len()));
}

fn read(client: &Remote, ino: Ino) -> Vec<u8> {
    let file = client.open(ino, READ).unwrap();
    let mut buf = vec![0; 1 << 20];
    let n = client.read(&file, 0, &mut buf).unwrap();
    client.close(file.number);
    buf.truncate(n);
    buf
}

/// A new file whose next write is kept back.
fn keeping(client: &Remote, place: Place<'_>) -> Arc<OpenFile> {
    let (_, file) = client.create(CALLER, place, 0o644, BOTH).unwrap();
    keep(client, &file);
    file
}

fn keep(client: &Remote, file: &OpenFile) {
    until("its writes are kept back", || {
        let before = client.status().back.writes;
        write(client, file, 0, b"0");
        client.status().back.writes > before
    });
}

#[test]
fn what_was_answered_is_what_others_see_and_goes_before_the_slot_does() {
    let site = Several::new(2, 2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let dirs = dirs(&site, &a);
    for dir in &dirs {
        let file = keeping(&a, at(*dir, "f"));
        for round in 0..6usize {
            keep(&a, &file);
            let end = (round as u64 + 1) * 1000;
            write(&a, &file, end - 1, &[round as u8]);
            // Asked back by a look, by who takes the slot, or both.
            if round % 2 == 1 {
                site.bring(dir.get(), 1 - site.owner(dir.get()));
                assert_eq!(a.status().back.bytes, 0, "it was written before the slot went");
            }
            assert_eq!(b.getattr(file.ino).unwrap().size, end);
            assert_eq!(read(&b, file.ino)[end as usize - 1], round as u8);
        }
        a.close(file.number);
    }
    assert_eq!(a.status().back.lost, 0);
    a.shutdown();
    b.shutdown();
}

/// Method: one client writes a number that rises, another reads it, while the slot goes to and fro.
#[test]
fn a_reader_never_sees_less_than_was_answered_while_slots_move() {
    let site = Several::new(2, 2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let dir = dirs(&site, &a)[0];
    let file = keeping(&a, at(dir, "f"));
    write(&a, &file, 0, &0u64.to_le_bytes());
    let (answered, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=2000u64 {
                write(&a, &file, 0, &n.to_le_bytes());
                answered.store(n, Ordering::Release);
            }
            done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let mut n = 0;
            while !done.load(Ordering::Acquire) {
                n += 1;
                let _ = site.try_bring(dir.get(), n % 2);
                // Long enough for some to be kept back between.
                thread::sleep(Duration::from_millis(100));
            }
        });
        let mut last = 0;
        while !done.load(Ordering::Acquire) {
            let least = answered.load(Ordering::Acquire);
            let now = u64::from_le_bytes(read(&b, file.ino).try_into().unwrap());
            assert!(now >= least.max(last), "{now} after {least} and {last}");
            last = now;
            thread::sleep(Duration::from_millis(30));
        }
    });
    a.close(file.number);
    assert_eq!(a.status().back.lost, 0);
    a.shutdown();
    b.shutdown();
}

/// Method: a session that may keep writes back says nothing any more, and its slot is to go.
#[test]
fn a_dead_client_holds_its_slot_up_until_it_is_given_up() {
    let site = Several::with(2, 1, with_silence(Duration::from_secs(4)));
    let a = client(&site, 900);
    let dir = dirs(&site, &a)[0];
    let owner = site.owner(dir.get());
    let dead = site.session();
    let ino = dead.create(dir.get(), "f", 1).unwrap();
    dead.ask(&BeginWrite { head: dead.head(), ino, opening: 1 }).unwrap();
    let wish = KeepWrites { head: dead.head(), ino, opening: 1 };
    until("it may keep writes back", || dead.ask(&wish).unwrap().granted);
    assert!(site.try_bring(dir.get(), 1 - owner).is_err(), "the slot waits for what may be kept back");
    assert_eq!(site.owner(dir.get()), owner);
    until("the slot goes", || site.try_bring(dir.get(), 1 - owner).is_ok());
    assert!(dead.ask(&wish).is_err(), "it was given up");
    assert_eq!(a.getattr(Ino::from_raw(ino).unwrap()).unwrap().size, 0);
    a.shutdown();
}

/// Method: servers are started again, end in order, or are killed and gone on for; what one client wrote a moment before the other reads.
#[test]
fn after_a_server_ended_what_was_answered_is_seen() {
    let mut site = Several::with(3, 2, with_silence(Duration::from_secs(10)));
    let (a, b) = (client(&site, 900), client(&site, 901));
    let dirs = dirs(&site, &a);
    let files: Vec<Arc<OpenFile>> = dirs.iter().map(|dir| keeping(&a, at(*dir, "f"))).collect();
    let mut end = 1;
    let mut write_some = || {
        end += 100;
        for file in &files {
            keep(&a, file);
            write(&a, file, end - 1, &[end as u8]);
        }
        end
    };
    let look = |end: u64, why: &str| {
        for file in &files {
            let began = Instant::now();
            let lost = || (a.status().sessions_lost, b.status().sessions_lost);
            let attr = b.getattr(file.ino);
            let size = attr.map(|attr| attr.size);
            assert_eq!(size, Ok(end), "{why}; {:?}, sessions lost: {:?}", began.elapsed(), lost());
            assert_eq!(read(&b, file.ino)[end as usize - 1], end as u8, "{why}");
        }
    };
    for n in 0..2 {
        let end = write_some();
        site.stop(n);
        site.start(n);
        look(end, "started again");
    }
    let end = write_some();
    site.leave(1);
    look(end, "ended in order");
    site.start(1);
    site.shared();
    for n in [2, 0] {
        until("it has a standby", || site.is_copied(n));
        let end = write_some();
        site.kill_for_good(n);
        look(end, "killed");
        site.start(n);
        site.shared();
    }
    assert_eq!(a.status().back.lost, 0);
    files.iter().for_each(|file| a.close(file.number));
    a.shutdown();
    b.shutdown();
}

/// Goal: who goes on for a dead server has looks wait for what clients kept back, and these send it in his name. Method: what is kept back cannot be sent
/// until then, since its data server is away.
#[test]
fn who_goes_on_for_a_dead_server_waits_for_what_is_kept_back() {
    let mut site = Several::with(3, 1, with_silence(Duration::from_secs(20)));
    let (a, b) = (client(&site, 900), client(&site, 901));
    let dirs = dirs(&site, &a);
    let root = site.owner(Ino::ROOT.get());
    let dir = *dirs.iter().find(|dir| site.owner(dir.get()) != root).unwrap();
    let owner = site.owner(dir.get());
    until("it has a standby", || site.is_copied(owner));
    let file = keeping(&a, at(dir, "f"));
    write(&a, &file, 0, b"kept");
    site.kill_data(0);
    write(&a, &file, 4, b"back");
    assert!(a.status().back.bytes > 0);
    site.kill_for_good(owner);
    thread::scope(|scope| {
        let read = scope.spawn(|| read(&b, file.ino));
        site.data[0].start();
        site.report(0);
        assert_eq!(read.join().unwrap(), b"keptback");
    });
    assert_eq!((a.fsync(&file), a.status().back.lost), (Ok(()), 0));
    a.close(file.number);
    a.shutdown();
    b.shutdown();
}

/// Goal: a standby that has no slots knows who may keep writes back before he does. Method: one is told by a client alone; the server that it goes on for
/// dies with a client that keeps something back.
#[test]
fn a_standby_alone_knows_who_may_keep_writes_back() {
    let mut site = Several::begun(Begin {
        servers: 2,
        first: 2,
        standbys: BTreeSet::from([1]),
        data: vec![DataSite::started(1)],
        options: with_silence(Duration::from_secs(10)),
    });
    let (a, b) = (client(&site, 900), client(&site, 901));
    let file = keeping(&a, at(Ino::ROOT, "f"));
    until("it has a standby", || site.is_copied(0));
    keep(&a, &file);
    write(&a, &file, 0, b"here");
    site.kill_for_good(0);
    assert_eq!(read(&b, file.ino), b"here");
    // Its session stays there, with what it has, for longer than who is silent is waited for.
    let before = a.status().back.writes;
    until("writes are kept back again", || {
        write(&a, &file, 0, b"more");
        a.status().back.writes > before
    });
    assert_eq!((a.fsync(&file), a.status().back.lost), (Ok(()), 0));
    a.close(file.number);
    a.shutdown();
    b.shutdown();
}

/// Goal: who says what it has at a new owner does not wait for others that have to. Method: openings of two sessions, both of which may keep writes back.
#[test]
fn who_says_what_it_has_waits_for_nobody() {
    let mut site = Several::with(3, 1, with_silence(Duration::from_secs(10)));
    let a = client(&site, 900);
    let dirs = dirs(&site, &a);
    let root = site.owner(Ino::ROOT.get());
    let dir = *dirs.iter().find(|dir| site.owner(dir.get()) != root).unwrap();
    let owner = site.owner(dir.get());
    until("it has a standby", || site.is_copied(owner));
    let file = keeping(&a, at(dir, "f"));
    let shared = keeping(&a, at(dir, "g"));
    let b = client(&site, 901);
    let other = keeping(&b, at(dir, "h"));
    let beside = b.open(shared.ino, BOTH).unwrap();
    write(&b, &beside, 0, b"1");
    site.kill_for_good(owner);
    for (client, file) in [(&a, &file), (&b, &other), (&a, &shared), (&b, &beside)] {
        write(client, file, 1, b"2");
        assert_eq!(client.getattr(file.ino).unwrap().size, 2);
    }
    a.shutdown();
    b.shutdown();
}

/// Goal: what cannot be sent is lost, with an error, before its client is taken for one that says nothing. Method: a data server that is away for the whole
/// of a take-over.
#[test]
fn what_cannot_be_sent_is_lost_before_the_session_is() {
    let mut site = Several::with(3, 1, with_silence(Duration::from_secs(20)));
    let (a, b) = (client(&site, 900), client(&site, 901));
    let dirs = dirs(&site, &a);
    let root = site.owner(Ino::ROOT.get());
    let dir = *dirs.iter().find(|dir| site.owner(dir.get()) != root).unwrap();
    let owner = site.owner(dir.get());
    until("it has a standby", || site.is_copied(owner));
    let file = keeping(&a, at(dir, "f"));
    write(&a, &file, 0, b"kept");
    a.fsync(&file).unwrap();
    keep(&a, &file);
    site.kill_data(0);
    write(&a, &file, 4, b"back");
    assert!(a.status().back.bytes > 0);
    site.kill_for_good(owner);
    until("it is lost", || a.status().back.lost > 0);
    assert_eq!(a.status().sessions_lost, 0);
    site.data[0].start();
    site.report(0);
    assert!(read(&b, file.ino).len() >= 4);
    assert_eq!(a.fsync(&file), Err(Errno::EIO));
    write(&a, &file, 0, b"more");
    assert_eq!(a.fsync(&file), Ok(()));
    assert_eq!(&read(&b, file.ino)[..4], b"more");
    assert_eq!(a.status().sessions_lost, 0);
    a.close(file.number);
    a.shutdown();
    b.shutdown();
}

/// Goal: who looks at a file and is told to come later keeps nothing of it by that. It would be asked back, and as it knows nothing of it nobody answers.
/// Method: who may keep writes back says what he has late; meanwhile another looks for longer than what the dead server granted may last.
#[test]
fn regression_who_is_told_to_come_later_holds_nobody_up() {
    let mut site = Several::with(3, 1, with_silence(Duration::from_secs(15)));
    let writer = site.session();
    let root = site.owner(Ino::ROOT.get());
    let made: Vec<u64> = (0..8).map(|n| writer.mkdir(1, &format!("d{n}")).unwrap()).collect();
    until("directories are where their slots belong", || made.iter().any(|dir| site.owner(*dir) != root));
    let dir = *made.iter().find(|dir| site.owner(**dir) != root).unwrap();
    let owner = site.owner(dir);
    let ino = writer.create(dir, "f", 1).unwrap();
    writer.ask(&BeginWrite { head: writer.head(), ino, opening: 1 }).unwrap();
    for n in 0..site.servers() {
        says_that_it_writes(&site, n, &writer);
    }
    until("it has a standby", || site.is_copied(owner));
    let id = writer.id;
    site.kill_for_good(owner);
    let (writer, other, next) = (site.session_as(id), site.session(), site.owner(ino));
    other.bring(next, &[]);
    let look = Look { head: other.head(), ino, ..Look::default() };
    let end = Instant::now() + Duration::from_secs(15) / 5 + Duration::from_secs(1);
    while Instant::now() < end {
        assert!(other.once(next, &look).is_err_and(|fault| fault.errno == Errno::EAGAIN.raw()));
        thread::sleep(Duration::from_millis(20));
    }
    writer.bring(next, &[]);
    let open = Open { head: writer.head(), ino, opening: 1, write: true, keep: false, again: true };
    writer.once(next, &open).unwrap();
    assert!(other.ask(&look).is_ok());
}

/// Goal: what may be kept and was not told is asked back, too, and given back. Method: a look that fails after the grant, of a client that was told nothing
/// there before.
#[test]
fn regression_who_was_told_nothing_hears_what_is_asked_back() {
    let mut site = Several::with(2, 1, with_silence(Duration::from_secs(6)));
    let (a, b) = (client(&site, 900), client_with(&site, 901, Duration::from_secs(1)));
    let root = site.owner(Ino::ROOT.get());
    let dir = *dirs(&site, &a).iter().find(|dir| site.owner(dir.get()) != root).unwrap();
    let (_, file) = a.create(CALLER, at(dir, "f"), 0o644, BOTH).unwrap();
    write(&a, &file, 0, b"there");
    site.kill_data(0);
    a.close(file.number);
    assert_eq!(b.getattr(file.ino).map(drop), Err(Errno::EIO));
    let mode = SetattrArgs { mode: Some(0o600), ..SetattrArgs::default() };
    let _ = a.setattr(file.ino, &mode);
    // Longer than who does not give back is waited for.
    thread::sleep(Duration::from_secs(4));
    site.data[0].start();
    site.report(0);
    until("it is seen again", || b.getattr(file.ino).is_ok());
    assert_eq!((a.status().sessions_lost, b.status().sessions_lost), (0, 0));
    a.shutdown();
    b.shutdown();
}

/// Goal: who comes when the time to say what one has is over is not given up for that, though who was given up is not over yet. Method: a data server that
/// is not heard.
#[test]
fn regression_who_comes_after_others_were_given_up_stays() {
    let mut site = Several::with(3, 1, with_silence(Duration::from_secs(4)));
    let session = site.session();
    let root = site.owner(Ino::ROOT.get());
    let made: Vec<u64> = (0..8).map(|n| session.mkdir(1, &format!("d{n}")).unwrap()).collect();
    until("directories are where their slots belong", || made.iter().any(|dir| site.owner(*dir) != root));
    let dir = *made.iter().find(|dir| site.owner(**dir) != root).unwrap();
    let (owner, silent) = (site.owner(dir), session.id);
    until("it has a standby", || site.is_copied(owner));
    site.kill_for_good(owner);
    let next = site.owner(dir);
    let is_gone = |site: &Several, session: SessionId| {
        let find = Find { head: Some(Head::of(session)), ino: dir };
        let line = client_to(&site.address(next), Several::node(next), Lane::Metadata);
        ask_once(&line, &find, &[], 0).is_err_and(|fault| Reason::of(&fault) == Reason::SessionGone)
    };
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert!(!is_gone(&site, silent));
        thread::sleep(Duration::from_millis(20));
    }
    site.cut_off_data(0, next);
    until("who says nothing of what it has is given up", || is_gone(&site, silent));
    let late = site.session().id;
    for _ in 0..20 {
        assert!(!is_gone(&site, late), "it is given up, too");
        thread::sleep(Duration::from_millis(50));
    }
}

fn says_that_it_writes(site: &Several, n: usize, session: &Routed<'_>) {
    let control = client_to(&site.address(n), Several::node(n), Lane::Control);
    let renew = Renew { head: session.head(), node: Some(0), writes: true };
    assert!(ask(&control, &renew, &[], 0).unwrap().0.writes);
}
