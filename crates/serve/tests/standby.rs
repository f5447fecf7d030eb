//! Several metadata servers that copy to each other what they have answered: one dies for good, and its standby goes on.
#![allow(clippy::unwrap_used, reason = "tests")]

mod site;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cluster::NodeId;
use net::Call;
use prost::Message;
use proto::{
    Head, Reason, Request, SessionId,
    attr::Caller,
    control::Mount,
    locks::{HeldLock, Lock, LockKind, LockOutcome},
    metadata::*,
};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    ask_once, client_to,
    cluster::options,
    several::{Routed, Several, slot_of},
    until,
};
use types::Errno;
use wire::schema::{Fault, Lane};

const CALLER: Option<Caller> = Some(Caller { uid: 0, gid: 0, umask: 0 });

/// Directories below the root, not all of the server on duty.
fn dirs(session: &Routed<'_>, n: usize) -> Vec<u64> {
    let dirs: Vec<u64> = (0..n).map(|n| session.mkdir(1, &format!("d{n}")).unwrap()).collect();
    until("directories are where their slots belong", || {
        dirs.iter().map(|dir| session.site.owner(*dir)).collect::<BTreeSet<_>>().len() > 1
    });
    dirs
}

fn copied(site: &Several, servers: impl IntoIterator<Item = usize>) {
    for n in servers {
        until("the server has a standby", || site.is_copied(n));
    }
}

fn mkdir(dir: u64, name: &str, number: u64, id: proto::SessionId) -> Mkdir {
    let head = Some(Head::operation(id, number, 1));
    Mkdir { head, caller: CALLER, dir, name: name.as_bytes().to_vec(), mode: 0o755 }
}

/// Names, and whether they are there; and an operation that had no answer.
type Said = (BTreeMap<String, bool>, Mkdir);

/// What was answered of the names that a thread makes and moves below a directory, until there is no answer; and the operation that had none.
fn load(session: &Routed<'_>, dir: u64, (who, made): (usize, &AtomicUsize)) -> Said {
    let (mut there, mut n) = (BTreeMap::new(), 0);
    loop {
        let name = format!("w{who}-{n}");
        let asked = mkdir(dir, &name, 1 + 2 * n, session.id);
        if session.once(session.site.owner(dir), &asked).is_err() {
            return (there, asked);
        }
        there.insert(name.clone(), true);
        made.fetch_add(1, Ordering::Relaxed);
        if n % 3 == 1 {
            // Not known if it has no answer.
            there.remove(&name);
            if session.try_rename(dir, &name, &format!("{name}.moved")).is_none() {
                return (there, mkdir(dir, &format!("{name}.other"), 2 + 2 * n, session.id));
            }
            there.insert(name.clone(), false);
            there.insert(format!("{name}.moved"), true);
        }
        n += 1;
    }
}

/// Goal: what a server answered before it died for good is there at its standby, however much of it the engine had; so is what it was asked
/// last and did not answer, once, when it is asked again. Method: threads that make and move names while the server is killed, in rounds.
#[test]
fn a_standby_goes_on_in_a_dead_servers_place() {
    let mut site = Several::new(3, 0);
    let (all, dead) = {
        let session = site.session();
        let all = dirs(&session, 9);
        let dead = (1..3).find(|n| all.iter().any(|dir| site.owner(*dir) == *n)).unwrap();
        (all, dead)
    };
    copied(&site, 0..3);
    let mine: Vec<u64> = all.iter().copied().filter(|dir| site.owner(*dir) == dead).collect();
    let made = AtomicUsize::new(0);
    let said: Vec<(u64, proto::SessionId, Said)> = {
        let (sessions, site) = ((0..4).map(|_| site.session()).collect::<Vec<_>>(), &site);
        thread::scope(|scope| {
            let threads: Vec<_> = sessions
                .iter()
                .enumerate()
                .map(|(who, session)| {
                    let (dir, made) = (mine[who % mine.len()], &made);
                    scope.spawn(move || (dir, session.id, load(session, dir, (who, made))))
                })
                .collect();
            until("names are made", || made.load(Ordering::Relaxed) > 200);
            site.cut(dead);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    site.kill(dead);
    until("its slots are another's", || mine.iter().all(|dir| site.owner(*dir) != dead));
    let mut session = site.session();
    until("they are served, and the map says so", || {
        let map = session.map(0);
        mine.iter().all(|dir| {
            map.slot(slot_of(*dir)).owner == Some(NodeId(Several::node(site.owner(*dir))))
                && session.lookup(*dir, "none") == Err(Errno::ENOENT)
        })
    });
    let mut total = 0;
    for (dir, id, (there, asked)) in &said {
        // Asked again it is carried out, or was, but never said to be there.
        let again = site.session_as(*id).ask(asked);
        assert!(matches!(again, Ok(_) | Err(Errno::EIO)), "{again:?}");
        for (n, (name, is_there)) in there.iter().enumerate() {
            // A session acknowledges nothing here, and may have so many answers.
            if n % 500 == 0 {
                session = site.session();
            }
            let found = session.lookup(*dir, name);
            assert_eq!(found.map(drop), if *is_there { Ok(()) } else { Err(Errno::ENOENT) }, "{name}");
            total += 1;
        }
    }
    assert!(total > 40, "{total}");
    drop(session);
    let session = site.session();
    // The others are served on, and the new owner has a standby again.
    for dir in &all {
        session.mkdir(*dir, "after").unwrap();
    }
    copied(&site, (0..3).filter(|n| *n != dead));
}

/// Goal: an operation that was answered by a server that died is answered the same at its standby, and not carried out twice; also when the
/// standby dies, too. Method: the same request, at one after the other.
#[test]
fn an_operation_is_not_carried_out_twice() {
    let mut site = Several::new(3, 0);
    let (dir, id, made, renamed, first) = {
        let session = site.session();
        let all = dirs(&session, 9);
        let dir = *all.iter().find(|dir| site.owner(**dir) != 0).unwrap();
        copied(&site, 0..3);
        let made = session.ask(&mkdir(dir, "once", 1000, session.id)).unwrap();
        session.ask(&mkdir(dir, "from", 1001, session.id)).unwrap();
        let renamed = session.ask(&rename(dir, 1002, session.id)).unwrap();
        (dir, session.id, made, renamed, site.owner(dir))
    };
    site.kill_copied(first);
    let mut dead = first;
    for _ in 0..2 {
        until("its slots are another's", || site.owner(dir) != dead);
        {
            let session = site.session_as(id);
            assert_eq!(session.ask(&mkdir(dir, "once", 1000, id)), Ok(made));
            assert_eq!(session.ask(&rename(dir, 1002, id)), Ok(renamed));
            assert_eq!(session.lookup(dir, "from"), Err(Errno::ENOENT));
            // What has another number is another operation.
            assert_eq!(session.ask(&mkdir(dir, "once", 1003, id)), Err(Errno::EEXIST));
        }
        let owner = site.owner(dir);
        if dead != first || owner == 0 {
            break;
        }
        copied(&site, [owner]);
        site.kill_copied(owner);
        dead = owner;
    }
}

fn rename(dir: u64, number: u64, id: proto::SessionId) -> Rename {
    Rename {
        head: Some(Head::operation(id, number, 1)),
        from_dir: dir,
        from_name: b"from".to_vec(),
        to_dir: dir,
        to_name: b"to".to_vec(),
        mode: RenameMode::Replace.into(),
    }
}

/// Goal: a standby that dies holds its owner up for a moment only, and what was answered then is not lost with the owner. Method: the standby is
/// killed, names are made, the owner is killed and started again.
#[test]
fn a_dead_standby_is_gone_on_without() {
    let mut site = Several::new(2, 0);
    let dir = {
        let session = site.session();
        let dirs = dirs(&session, 6);
        *dirs.iter().find(|dir| site.owner(**dir) == 0).unwrap()
    };
    copied(&site, 0..2);
    site.kill(1);
    {
        let session = site.session();
        for n in 0..20 {
            session.mkdir(dir, &format!("n{n}")).unwrap();
        }
    }
    assert!(!site.is_copied(0));
    site.kill(0);
    site.start(0);
    let session = site.session();
    for n in 0..20 {
        session.lookup(dir, &format!("n{n}")).unwrap();
    }
}

/// Goal: the server on duty may die, too: its standby is on duty after a start that nobody orders, the others follow it, and maps go on
/// from where they were. Method: three servers, the first is killed.
#[test]
fn a_standby_goes_on_for_the_server_on_duty() {
    let mut site = Several::new(3, 0);
    let (all, before, id) = {
        let session = site.session();
        let all = dirs(&session, 9);
        copied(&site, 0..3);
        session.ask(&mkdir(1, "last", 1000, session.id)).unwrap();
        (all, session.map(1), session.id)
    };
    site.kill_copied(0);
    until("somebody has the root", || site.owner(1) != 0);
    let duty = site.owner(1);
    until("it begins anew", || site.service(duty).has_to_begin_anew());
    site.begin_anew();
    until("the other one follows", || {
        let map = site.map(3 - duty);
        map == site.map(duty) && map.slot(slot_of(1)).owner == Some(NodeId(Several::node(duty)))
    });
    assert!(site.map(duty).epoch() > before.epoch());
    let session = site.session_as(id);
    assert!(session.ask(&mkdir(1, "last", 1000, id)).is_ok(), "it is not carried out twice");
    for dir in &all {
        session.mkdir(*dir, "after").unwrap();
    }
    session.mkdir(1, "new").unwrap();
    drop(session);
    // The first one is one of the others when it comes back.
    site.start(0);
    until("it is given slots", || site.map(duty).slots_of(NodeId(Several::node(0))).next().is_some());
    assert_eq!(site.owner(1), duty);
}

fn lock(ino: u64) -> HeldLock {
    HeldLock {
        ino,
        owner: 1,
        end: i64::MAX as u64,
        kind: LockKind::Write.into(),
        pid: 1,
        ..HeldLock::default()
    }
}

fn lock_of(session: &Routed<'_>, ino: u64) -> LockOutcome {
    session.ask(&Lock { head: session.op(), lock: Some(lock(ino)), wait: false }).unwrap().outcome()
}

fn is_gone(fault: &Fault) -> bool {
    Reason::of(fault) == Reason::SessionGone
}

/// Sessions that say that they are there to some servers, whatever becomes of these.
struct Renewing {
    ended: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Renewing {
    fn of(site: &Several, all: &[(SessionId, Vec<usize>)]) -> Renewing {
        let client = |n: usize| client_to(&site.address(n), Several::node(n), Lane::Metadata);
        let of = |(id, servers): &(SessionId, Vec<usize>)| {
            let clients: Vec<_> = servers.iter().map(|n| client(*n)).collect();
            (*id, clients)
        };
        let all: Vec<_> = all.iter().map(of).collect();
        let ended = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let ended = ended.clone();
            move || {
                while !ended.load(Ordering::Acquire) {
                    for (id, clients) in &all {
                        let look = StatFs { head: Some(Head::of(*id)) };
                        // Who is dead is not waited for.
                        let end = || Instant::now() + Duration::from_millis(200);
                        let call = || Call::new(StatFs::METHOD.number(), look.encode_to_vec(), end());
                        clients.iter().for_each(|client| drop(client.call(call())));
                    }
                    thread::sleep(Duration::from_millis(50));
                }
            }
        });
        Renewing { ended, thread: Some(thread) }
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Goal: whom a server gave up is given up by whoever goes on in its place, so that he does not believe in what somebody else has. Method: a session that one of
/// three servers did not hear, and the others did; another has its lock; the server dies for good: first one that is not on duty, then the one that is, whose
/// standby begins anew.
#[test]
fn regression_a_verdict_outlives_the_server_that_gave_it() {
    // The last time the verdict is older than the copy.
    for (on_duty, anew) in [(false, false), (true, false), (false, true)] {
        let sessions = SessionLimits { silence: Duration::from_secs(4), ..SessionLimits::default() };
        let mut site = Several::with(3, 0, MetadataOptions { sessions, ..options() });
        let all = dirs(&site.session(), 9);
        let dir = *all.iter().find(|dir| (site.owner(**dir) == site.owner(1)) == on_duty).unwrap();
        let dead = site.owner(dir);
        copied(&site, 0..3);
        let (one, two) = (site.session(), site.session());
        let file = one.create(dir, "file", 1).unwrap();
        assert_eq!((lock_of(&one, file), lock_of(&two, file)), (LockOutcome::Granted, LockOutcome::Conflict));
        let others: Vec<usize> = (0..3).filter(|n| *n != dead).collect();
        let _renewing = Renewing::of(&site, &[(one.id, others.clone()), (two.id, (0..3).collect())]);
        until("its lock is another's", || lock_of(&two, file) == LockOutcome::Granted);
        let look = StatFs { head: one.head() };
        assert!(one.once(dead, &look).is_err_and(|fault| is_gone(&fault)));
        assert!(others.iter().all(|n| one.once(*n, &look).is_ok()), "the others know nothing of it");
        let (one, two) = (one.id, two.id);

        copied(&site, [dead]);
        if anew {
            let before = site.standby_of(dead).unwrap();
            site.kill_for_good(before);
            until("it has another standby", || {
                site.is_copied(dead) && site.standby_of(dead).is_some_and(|now| now != before)
            });
        }
        site.kill_for_good(dead);
        let taker = site.owner(file);
        until("it is served", || site.session().lookup(dir, "none") == Err(Errno::ENOENT));
        let control = client_to(&site.address(taker), Several::node(taker), Lane::Control);
        let comes = Mount { head: Some(Head::of(one)), host: "test".into(), ..Mount::default() };
        let told = ask_once(&control, &comes, &[], 0).map(drop);
        assert!(told.is_err_and(|fault| is_gone(&fault)), "on duty: {on_duty}, anew: {anew}");
        let two = site.session_as(two);
        two.bring(taker, &[lock(file)]);
        until("who has what is known", || lock_of(&two, file) == LockOutcome::Granted);
    }
}

/// Goal: a server that comes soon after it died gets its share of the slots that are used, too, though they cannot go at first. Method: those of directories.
#[test]
fn regression_slots_that_cannot_go_at_first_go_later() {
    let sessions = SessionLimits { silence: Duration::from_secs(4), ..SessionLimits::default() };
    let mut site = Several::with(2, 0, MetadataOptions { sessions, ..options() });
    let all = dirs(&site.session(), 40);
    copied(&site, 0..2);
    let duty = site.owner(1);
    site.kill_for_good(1 - duty);
    site.start(1 - duty);
    until("it has its share", || all.iter().filter(|dir| site.owner(**dir) != duty).count() > 10);
}
