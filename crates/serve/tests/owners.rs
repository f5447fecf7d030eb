//! Several metadata servers of one file system: each answers for its slots, and slots go from one to another with all that sessions have
//! in them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod site;

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use cluster::NodeId;
use proto::{
    Head, Reason,
    locks::{HeldLock, Lock, LockKind, LockOutcome},
    metadata::*,
    owners::JoinMetadata,
};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    cluster::options,
    several::{Routed, Several, slot_of},
    until,
};
use types::Errno;

/// Directories below the root with slots of different servers.
fn dirs(session: &Routed<'_>, n: usize) -> Vec<u64> {
    let dirs: Vec<u64> = (0..n).map(|n| session.mkdir(1, &format!("d{n}")).unwrap()).collect();
    // What the root's server borrowed for their making goes back.
    until("directories are where their slots belong", || {
        dirs.iter().map(|dir| session.site.owner(*dir)).collect::<BTreeSet<_>>().len() > 1
    });
    dirs
}

/// Goal: servers that come get slots, the map says whose they are, and a request at the wrong one is told so. Method: three servers.
#[test]
fn slots_are_shared_and_each_is_served_by_one() {
    let site = Several::new(3, 0);
    let session = site.session();
    let map = session.map(0);
    let shares: Vec<usize> = (0..3).map(|n| map.slots_of(NodeId(Several::node(n))).count()).collect();
    assert!(shares.iter().all(|share| (1300..1430).contains(share)), "{shares:?}");
    assert_eq!(shares.iter().sum::<usize>(), 4096);
    assert_eq!(map.slot(slot_of(1)).owner, Some(NodeId(Several::node(0))));
    let dirs = dirs(&session, 6);
    for (n, dir) in dirs.iter().enumerate() {
        let file = session.create(*dir, "file", n as u64 + 1).unwrap();
        assert_eq!(slot_of(file), slot_of(*dir));
        let owner = site.owner(*dir);
        let wrong = session.at((owner + 1) % 3, &GetAttr { head: session.head(), ino: file }).unwrap_err();
        assert_eq!((Reason::of(&wrong), wrong.errno), (Reason::WrongOwner, Errno::EREMOTE.raw()));
        // The name is the root's server's to know, the rest is not.
        assert_eq!(session.lookup(1, &format!("d{n}")).unwrap().ino, *dir);
        assert_eq!(session.mkdir(1, &format!("d{n}")), Err(Errno::EEXIST));
    }
    assert_eq!(session.lookup(1, "none"), Err(Errno::ENOENT));
}

/// Goal: slots that one has let go and nobody could take are somebody's again by themselves, with what sessions have in them. Method: a hand-over
/// while nobody gets a row; nothing is asked for there meanwhile.
#[test]
fn regression_slots_that_nobody_could_take_are_taken_later() {
    let site = Several::new(2, 0);
    let session = site.session();
    let dirs = dirs(&session, 4);
    let dir = *dirs.iter().find(|dir| site.owner(**dir) == 1).unwrap();
    let gone = session.create(dir, "gone", 1).unwrap();
    session.unlink(dir, "gone").unwrap();
    site.refuse.store(true, Ordering::SeqCst);
    site.try_bring(dir, 0).unwrap_err();
    assert_eq!(session.map(0).slot(slot_of(dir)).owner, None);
    site.refuse.store(false, Ordering::SeqCst);
    until("the slot is somebody's", || session.map(0).slot(slot_of(dir)).owner.is_some());
    assert_eq!(session.ask(&GetAttr { head: session.head(), ino: gone }).unwrap().attr.unwrap().nlink, 0);
}

/// Goal: that also holds if somebody who has something there was given up meanwhile: he has nothing there any more, and the others have what they
/// had. Method: as above, with a session that says nothing for long.
#[test]
fn regression_slots_adrift_come_without_who_was_given_up() {
    let sessions = SessionLimits { silence: Duration::from_secs(2), ..SessionLimits::default() };
    let site = Several::with(2, 0, MetadataOptions { sessions, ..options() });
    let (dir, gone) = {
        let session = site.session();
        let dirs = dirs(&session, 4);
        let dir = *dirs.iter().find(|dir| site.owner(**dir) == 1).unwrap();
        let gone = session.create(dir, "gone", 1).unwrap();
        session.unlink(dir, "gone").unwrap();
        site.refuse.store(true, Ordering::SeqCst);
        site.try_bring(dir, 0).unwrap_err();
        (dir, gone)
    };
    // Longer than it may be silent.
    std::thread::sleep(Duration::from_secs(4));
    site.refuse.store(false, Ordering::SeqCst);
    until("the slot is somebody's", || site.map(0).slot(slot_of(dir)).owner.is_some());
    let session = site.session();
    session.create(dir, "new", 2).unwrap();
    until("what it had is gone", || {
        session.ask(&GetAttr { head: session.head(), ino: gone }).map(drop) == Err(Errno::ESTALE)
    });
}

/// Goal: a file without a name that came with its slot is gone when nobody has it any more. Method: as above, and the slot goes as it should.
#[test]
fn regression_what_came_without_a_name_is_gone_with_who_had_it() {
    let sessions = SessionLimits { silence: Duration::from_secs(2), ..SessionLimits::default() };
    let site = Several::with(2, 0, MetadataOptions { sessions, ..options() });
    let gone = {
        let session = site.session();
        let dir = session.mkdir(1, "d").unwrap();
        let gone = session.create(dir, "gone", 1).unwrap();
        session.unlink(dir, "gone").unwrap();
        until("the slot goes", || site.try_bring(dir, 1).is_ok());
        assert_eq!(session.ask(&GetAttr { head: session.head(), ino: gone }).unwrap().attr.unwrap().nlink, 0);
        gone
    };
    let session = site.session();
    until("nobody has it", || {
        session.ask(&GetAttr { head: session.head(), ino: gone }).map(drop) == Err(Errno::ESTALE)
    });
}

/// Goal: slots that a server got just when it came anew, and said that it has none, are not nobody's for long, and who tries to take them can hand
/// over his own meanwhile. Method: a second server is said to have come again without any.
#[test]
fn regression_what_a_server_has_is_not_nobodys() {
    let site = Several::new(2, 0);
    let session = site.session();
    let dirs = dirs(&session, 4);
    let dir = *dirs.iter().find(|dir| site.owner(**dir) == 1).unwrap();
    let gone = session.create(dir, "gone", 1).unwrap();
    session.unlink(dir, "gone").unwrap();
    let control = site::client_to(&site.address(0), Several::node(0), wire::schema::Lane::Control);
    let come = JoinMetadata {
        node: Several::node(1),
        name: "again".to_owned(),
        addresses: vec![site.address(1).to_string()],
        incarnation: 77,
        ..JoinMetadata::default()
    };
    site::ask(&control, &come, &[], 4 << 20).unwrap();
    // Or it was found to be somebody's already.
    let _ = site.try_bring(dir, 0);
    assert!(
        site.service(0).grace_left().is_zero(),
        "nothing came of which it is not known what is open there"
    );
    until("the slot is somebody's", || session.map(0).slot(slot_of(dir)).owner.is_some());
    assert_eq!(session.ask(&GetAttr { head: session.head(), ino: gone }).unwrap().attr.unwrap().nlink, 0);
    session.mkdir(dir, "after").unwrap();
}

/// Goal: an operation over slots of two servers is one commit of one of them, whichever ways such operations cross. Method: renames between
/// two directories, both ways at once; then every file is in one of them.
#[test]
fn renames_across_servers_cross_each_other() {
    let site = Several::new(2, 0);
    let session = site.session();
    let dirs = dirs(&session, 4);
    let a = dirs[0];
    let b = *dirs.iter().find(|dir| site.owner(**dir) != site.owner(a)).unwrap();
    for n in 0..20 {
        session.create(a, &format!("a{n}"), 100 + n).unwrap();
        session.create(b, &format!("b{n}"), 200 + n).unwrap();
    }
    thread::scope(|scope| {
        for (from, to, letter) in [(a, b, "a"), (b, a, "b")] {
            let site = &site;
            scope.spawn(move || {
                let session = site.session();
                for n in 0..20 {
                    let name = format!("{letter}{n}");
                    session.rename((from, &name), (to, &name)).unwrap();
                }
            });
        }
    });
    for n in 0..20 {
        let (from_a, from_b) = (format!("a{n}"), format!("b{n}"));
        assert_eq!(
            (session.lookup(a, &from_a), session.lookup(b, &from_b)),
            (Err(Errno::ENOENT), Err(Errno::ENOENT))
        );
        session.lookup(b, &from_a).unwrap();
        session.lookup(a, &from_b).unwrap();
    }
}

/// Goal: a session goes on with what it has open when the slot goes: a file without a name stays, ranges of appends are given once, an
/// operation that is asked again is answered and not carried out. Method: a slot is brought to the other server in between.
#[test]
fn what_a_session_has_goes_with_the_slot() {
    let site = Several::new(2, 2);
    let session = site.session();
    let dir = dirs(&session, 4)[1];
    let other = |site: &Several| 1 - site.owner(dir);
    let file = session.create(dir, "file", 1).unwrap();
    let gone = session.create(dir, "gone", 2).unwrap();
    session.unlink(dir, "gone").unwrap();
    let append =
        |opening| session.ask(&Append { head: session.op(), ino: file, opening, length: 100 }).unwrap();
    assert_eq!(append(1).offset, 0);
    // Carried out here, asked again there.
    let head = session.op();
    let caller = Some(proto::attr::Caller { uid: 0, gid: 0, umask: 0 });
    let mkdir = Mkdir { head, caller, dir, name: b"once".to_vec(), mode: 0o700 };
    let made = session.ask(&mkdir).unwrap();
    for _ in 0..3 {
        site.bring(dir, other(&site));
        assert_eq!(session.ask(&mkdir), Ok(made));
        // Of the bytes nothing was written yet, so only the servers know what they gave.
        let offset = append(1).offset;
        assert!(offset >= 100 && offset.is_multiple_of(100), "{offset}");
        let attr = session.ask(&GetAttr { head: session.head(), ino: gone }).unwrap().attr.unwrap();
        assert_eq!(attr.nlink, 0);
    }
    assert_eq!(append(1).offset, 400);
    // Its last opening ends where it was not begun.
    session.ask(&Close { head: session.op(), opening: 2, atime: None, ino: gone }).unwrap();
    let references = vec![Reference { ino: gone, count: 1 }];
    session.ask(&Forget { head: session.op(), references }).unwrap();
    until("what nobody has is removed", || {
        session.ask(&GetAttr { head: session.head(), ino: gone }) == Err(Errno::ESTALE)
    });
    session.ask(&Close { head: session.op(), opening: 1, atime: None, ino: file }).unwrap();
    let stale = Head::operation(session.id, 1, 1);
    assert!(session.ask(&Close { head: Some(stale), opening: 9, atime: None, ino: file }).is_ok());
}

/// Goal: what an append was given is not given again by the server that the slot comes to, however early that is asked. Method: many files, whose next
/// server is asked about one of them again and again from before it has the slot; nothing is written, so only the servers know what they gave.
#[test]
fn regression_who_just_took_a_slot_gives_no_range_again() {
    const FILES: u64 = 200;
    let site = Several::new(2, 2);
    let session = site.session();
    let dir = dirs(&session, 4)[1];
    let files: Vec<u64> = (1..=FILES).map(|n| session.create(dir, &format!("f{n}"), n).unwrap()).collect();
    let append = |n: usize| Append { head: session.op(), ino: files[n], opening: n as u64 + 1, length: 10 };
    for n in 0..files.len() {
        assert_eq!(session.ask(&append(n)).unwrap().offset, 0);
    }
    for n in 0..20 {
        let to = 1 - site.owner(dir);
        let given = thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let mut given = None;
                until("the slot is there", || {
                    for _ in 0..100 {
                        given = given.or_else(|| Some(session.at(to, &append(n)).ok()?.offset));
                    }
                    given.is_some()
                });
                given
            });
            site.bring(dir, to);
            asking.join().unwrap()
        });
        assert_eq!(given, Some(10));
    }
}

/// Goal: nobody on duty is no end: slots are served on, and whoever comes back makes the map. Method: the first server is stopped and
/// started; meanwhile the second goes on with what it has.
#[test]
fn the_server_on_duty_is_started_again() {
    let mut site = Several::new(2, 0);
    let (dir, before) = {
        let session = site.session();
        let share = || session.map(0).slots_of(NodeId(Several::node(1))).count();
        let at_first = share();
        let dirs = dirs(&session, 4);
        until("what was lent has gone back", || share() == at_first);
        (*dirs.iter().find(|dir| site.owner(**dir) == 1).unwrap(), session.map(0))
    };
    site.stop(0);
    {
        let client = site::client_to(&site.address(1), Several::node(1), wire::schema::Lane::Metadata);
        let control = site::client_to(&site.address(1), Several::node(1), wire::schema::Lane::Control);
        let id = proto::SessionId(77);
        let mount = proto::control::Mount {
            head: Some(Head::of(id)),
            host: "test".into(),
            ..proto::control::Mount::default()
        };
        site::ask(&control, &mount, &[], 0).unwrap();
        let caller = Some(proto::attr::Caller { uid: 0, gid: 0, umask: 0 });
        let name = b"meanwhile".to_vec();
        let mkdir = Mkdir { head: Some(Head::operation(id, 1, 1)), caller, dir, name, mode: 0o700 };
        site::ask(&client, &mkdir, &[], 0).unwrap();
    }
    site.start(0);
    site.settled();
    let session = site.session();
    assert!(session.map(1).epoch() > before.epoch());
    assert_eq!(
        session.map(1).slots_of(NodeId(Several::node(1))).count(),
        before.slots_of(NodeId(Several::node(1))).count()
    );
    session.lookup(dir, "meanwhile").unwrap();
    session.mkdir(1, "after").unwrap();
    thread::sleep(Duration::from_millis(10));
}

/// A slot that went while clients could still come back to a server that was started again would be taken for closed by its next owner, and
/// what is open without a name would be removed there.
#[test]
fn regression_a_slot_does_not_go_before_its_clients_are_back() {
    let mut site = Several::new(2, 0);
    let dir = {
        let session = site.session();
        let dirs = dirs(&session, 4);
        *dirs.iter().find(|dir| site.owner(**dir) == 1).unwrap()
    };
    site.stop(1);
    site.start(1);
    site.settled();
    let refused = site.try_bring(dir, 0).unwrap_err();
    assert!(refused.detail.contains("come back"), "{refused:?}");
    assert_eq!(site.owner(dir), 1);
    // What nobody can have anything in goes.
    let unused = 4000_u64 << 40 | 1;
    let other = 1 - site.owner(unused);
    site.try_bring(unused, other).unwrap();
}

/// Goal: a server that ends in order leaves no gap: its slots are others' at once, with what sessions have in them, and the duty is. Method: each of
/// three servers in turn, and all come back; a file without a name, an operation that is asked again, the numbers of maps.
#[test]
fn a_server_that_ends_in_order_hands_over_what_it_has() {
    let mut site = Several::new(3, 1);
    let (dir, file, gone, once, made, id) = {
        let session = site.session();
        let dir = dirs(&session, 6)[0];
        let file = session.create(dir, "file", 1).unwrap();
        let gone = session.create(dir, "gone", 2).unwrap();
        session.unlink(dir, "gone").unwrap();
        let caller = Some(proto::attr::Caller { uid: 0, gid: 0, umask: 0 });
        let once = Mkdir { head: session.op(), caller, dir: 1, name: b"once".to_vec(), mode: 0o700 };
        let made = session.ask(&once).unwrap();
        let append = Append { head: session.op(), ino: file, opening: 1, length: 100 };
        assert_eq!(session.ask(&append).unwrap().offset, 0);
        (dir, file, gone, once, made, session.id)
    };
    let mut epoch = 0;
    let mut end = 100;
    for n in [0, 1, 2, 0] {
        let duty = site.owner(1) == n;
        site.leave(n);
        assert_ne!(site.owner(1), n);
        site.settled();
        let now = site.map(site.owner(1)).epoch().0;
        assert!(now > epoch && (!duty || now >> 32 > epoch >> 32), "{now:x} after {epoch:x}");
        epoch = now;
        {
            let session = site.session_as(id);
            // Carried out by the first, asked again of whoever has the root now.
            assert_eq!(session.ask(&once), Ok(made));
            let attr = session.ask(&GetAttr { head: session.head(), ino: gone }).unwrap().attr.unwrap();
            assert_eq!(attr.nlink, 0);
            let append = Append { head: session.op(), ino: file, opening: 1, length: 100 };
            assert_eq!(session.ask(&append).unwrap().offset, end);
            end += 100;
            session.mkdir(dir, &format!("without-{n}-{end}")).unwrap();
            session.mkdir(1, &format!("below-{n}-{end}")).unwrap();
        }
        site.start(n);
        site.settled();
    }
}

/// Goal: slots whose owner gave them up without a word of what sessions have in them are not served to a session before it says that, and nothing
/// is removed meanwhile; the root's slot brings the duty. Method: the server on duty ends and its rows are free; a session that asks at once.
#[test]
fn what_sessions_have_in_slots_that_were_given_up_they_say_first() {
    let mut site = Several::new(2, 1);
    let (gone, id) = {
        let session = site.session();
        let gone = session.create(1, "gone", 2).unwrap();
        session.unlink(1, "gone").unwrap();
        (gone, session.id)
    };
    let before = site.map(0).epoch().0;
    site.stop(0);
    site.give_up(0);
    until("the other server has all slots", || {
        site.map(1).slots().all(|(_, entry)| entry.owner == Some(NodeId(Several::node(1))))
    });
    assert!(site.map(1).epoch().0 >> 32 > before >> 32);
    let session = site.session_as(id);
    let look = GetAttr { head: session.head(), ino: gone };
    let fault = session.at(1, &look).unwrap_err();
    assert_eq!(Reason::of(&fault), Reason::Bare);
    assert_eq!(fault.retry, i32::from(wire::schema::Retry::Unknown), "it does not know what was answered");
    let control = site::client_to(&site.address(1), Several::node(1), wire::schema::Lane::Control);
    let (bare, _) =
        site::ask(&control, &proto::owners::Bare { head: session.head(), brought: 0, stamp: 0 }, &[], 0)
            .unwrap();
    assert!(proto::owners::slots(&bare.slots).contains(&slot_of(1).get()));
    let references = vec![Reference { ino: gone, count: 1 }];
    assert_eq!(session.at(1, &Hold { head: session.head(), references }).unwrap().gone, []);
    session
        .at(1, &Open { head: session.head(), ino: gone, opening: 2, write: true, keep: false, again: true })
        .unwrap();
    let (rest, _) = site::ask(
        &control,
        &proto::owners::Bare { head: session.head(), brought: bare.number, stamp: 0 },
        &[],
        0,
    )
    .unwrap();
    assert_eq!((rest.number, rest.slots), (bare.number, vec![]));
    assert_eq!(session.at(1, &look).unwrap().attr.unwrap().nlink, 0);
    session.mkdir(1, "after").unwrap();
    // Another session has to say what it has, too.
    let other = site.session();
    let look = GetAttr { head: other.head(), ino: 1 };
    assert_eq!(Reason::of(&other.at(1, &look).unwrap_err()), Reason::Bare);
}

fn lock_of(session: &Routed<'_>, ino: u64) -> LockOutcome {
    let write = LockKind::Write.into();
    let lock = HeldLock { ino, owner: 1, end: i64::MAX as u64, kind: write, pid: 1, ..HeldLock::default() };
    session.ask(&Lock { head: session.op(), lock: Some(lock), wait: false }).unwrap().outcome()
}

/// Goal: whom one server gave up is not whole at another, so that nobody believes in a lock there that somebody else has. Method: a session that asks
/// one of two servers alone; the other gives it up, and lets another have its lock; then the slot goes to where it is alive.
#[test]
fn who_was_given_up_by_one_server_has_no_locks_at_the_other() {
    let sessions = SessionLimits { silence: Duration::from_secs(2), ..SessionLimits::default() };
    let site = Several::with(2, 1, MetadataOptions { sessions, ..options() });
    let dirs = dirs(&site.session(), 4);
    let (one, two) = (site.session(), site.session());
    let of = |n| *dirs.iter().find(|dir| site.owner(**dir) == n).unwrap();
    let (here, there) = (of(0), of(1));
    let mine = one.create(here, "mine", 1).unwrap();
    let file = one.create(there, "file", 2).unwrap();
    assert_eq!((lock_of(&one, mine), lock_of(&one, file)), (LockOutcome::Granted, LockOutcome::Granted));
    assert_eq!(lock_of(&two, file), LockOutcome::Conflict);
    let look = |session: &Routed<'_>, n: usize| session.at(n, &StatFs { head: session.head() }).map(drop);
    until("it is given up there", || {
        look(&one, 0).unwrap();
        look(&two, 0).unwrap();
        lock_of(&two, file) == LockOutcome::Granted
    });
    assert_eq!(Reason::of(&look(&one, 1).unwrap_err()), Reason::SessionGone);
    // What it has here does not go there, where it cannot come any more.
    assert!(site.try_bring(here, 1).is_err());
    assert_eq!((site.owner(here), lock_of(&two, mine)), (0, LockOutcome::Conflict));
    look(&one, 0).unwrap();
    until("the slot has gone", || {
        look(&two, 1).unwrap();
        site.try_bring(there, 0).is_ok()
    });
    assert_eq!(Reason::of(&look(&one, 0).unwrap_err()), Reason::SessionGone);
    let three = site.session();
    assert_eq!(lock_of(&three, file), LockOutcome::Conflict, "it is the second one's");
    until("what it had at the other is free", || {
        look(&two, 0).unwrap();
        lock_of(&three, mine) == LockOutcome::Granted
    });
}

/// Goal: a slot that cannot go does not hold up others that were to go with it. Method: a server that hands all over to another, which gave a session up that has a
/// file open in one slot.
#[test]
fn regression_a_slot_that_cannot_go_holds_up_no_others() {
    let sessions = SessionLimits { silence: Duration::from_secs(2), ..SessionLimits::default() };
    let site = Several::with(2, 1, MetadataOptions { sessions, ..options() });
    let dirs = dirs(&site.session(), 8);
    let (one, two) = (site.session(), site.session());
    let mine = |n| dirs.iter().copied().filter(|dir| site.owner(*dir) == n).collect::<Vec<u64>>();
    let (all, stays) = (mine(0), mine(0)[0]);
    one.create(stays, "open", 1).unwrap();
    let file = one.create(mine(1)[0], "file", 2).unwrap();
    assert_eq!((lock_of(&one, file), lock_of(&two, file)), (LockOutcome::Granted, LockOutcome::Conflict));
    until("it is given up there", || {
        one.at(0, &StatFs { head: one.head() }).unwrap();
        two.at(0, &StatFs { head: two.head() }).unwrap();
        lock_of(&two, file) == LockOutcome::Granted
    });
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                let _ = one.once(0, &StatFs { head: one.head() });
                thread::sleep(Duration::from_millis(20));
            }
        });
        let _ = site.service(0).leave(Duration::from_secs(30));
        ended.store(true, Ordering::Release);
    });
    let left: Vec<u64> = all.into_iter().filter(|dir| site.owner(*dir) == 0).collect();
    assert_eq!(left, [stays]);
}

/// Goal: a slot that comes without what was in it, since who let it go died, had maybe locks: nobody gets one while somebody may believe that he has it.
/// Method: the row of a stopped server's slot is given up, and the server on duty takes it; one session says what it has, one says nothing, one is new.
#[test]
fn locks_in_slots_that_were_given_up_are_theirs_who_say_so() {
    let sessions = SessionLimits { silence: Duration::from_secs(4), ..SessionLimits::default() };
    let mut site = Several::with(2, 1, MetadataOptions { sessions, ..options() });
    let (one, mute, file, other) = {
        let (one, mute) = (site.session(), site.session());
        let dirs = dirs(&one, 4);
        let there = *dirs.iter().find(|dir| site.owner(**dir) == 1).unwrap();
        let file = one.create(there, "file", 1).unwrap();
        let other = mute.create(there, "other", 1).unwrap();
        assert_eq!(
            (lock_of(&one, file), lock_of(&mute, other)),
            (LockOutcome::Granted, LockOutcome::Granted)
        );
        (one.id, mute.id, file, other)
    };
    site.stop(1);
    site.adrift(file);
    site.start(1);
    until("it is served", || site.map(0).slot(slot_of(file)).owner == Some(NodeId(Several::node(0))));
    let (one, mute, new) = (site.session_as(one), site.session_as(mute), site.session());
    let write = LockKind::Write.into();
    let lock =
        HeldLock { ino: file, owner: 1, end: i64::MAX as u64, kind: write, pid: 1, ..HeldLock::default() };
    one.bring(0, &[lock]);
    assert_eq!((lock_of(&new, file), lock_of(&new, other)), (LockOutcome::Waits, LockOutcome::Waits));
    let look = |session: &Routed<'_>| session.at(0, &StatFs { head: session.head() }).map(drop);
    until("who says nothing is given up", || {
        look(&one).unwrap();
        look(&new).unwrap();
        look(&mute).is_err_and(|fault| Reason::of(&fault) == Reason::SessionGone)
    });
    until("who has what is known", || {
        look(&one).unwrap();
        lock_of(&new, file) == LockOutcome::Conflict
    });
    assert_eq!((lock_of(&one, file), lock_of(&new, other)), (LockOutcome::Granted, LockOutcome::Granted));
}
