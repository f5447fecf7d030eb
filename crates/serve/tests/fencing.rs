//! Goal: when locks of a session that was given up are somebody else's, no data server carries out anything of that session any more, also one
//! that the metadata server cannot reach, and one that was started again. Method: sessions over sockets with short silences; a
//! data server that hangs, that is cut off from the metadata server alone, that is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod site;

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use proto::{
    Reason,
    data::{Object, Write},
    locks::*,
    metadata::GetAttr,
};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    DataSite, ask_once,
    cluster::{Session, Site, options},
    deadline,
    several::{Routed, Several},
    until,
};
use store::IoKind;

const SILENCE: Duration = Duration::from_millis(1500);

fn site(data: u64) -> Site {
    let sessions = SessionLimits { silence: SILENCE, ..SessionLimits::default() };
    Site::with(data, MetadataOptions { sessions, ..options() })
}

fn lock(session: &Session) -> LockOutcome {
    let (class, kind) = (LockClass::Process.into(), LockKind::Write.into());
    let lock = HeldLock { ino: 2, class, owner: 1, start: 0, end: i64::MAX as u64, kind, pid: 7 };
    session.try_ask(&Lock { head: session.op(), lock: Some(lock), wait: false }).unwrap().outcome()
}

/// Until the lock is its own; who asks is not silent.
fn gets_the_lock(session: &Session) {
    until("the lock is free", || lock(session) == LockOutcome::Granted);
}

/// As a session that came by this number; why not.
fn write(data: &DataSite, joined: u64) -> Result<(), Reason> {
    let object = Some(Object { ino: 1 << 20, generation: 1, view: None });
    let write = Write { object, offset: 0, sync: false, joined, server: 0 };
    ask_once(&data.client(), &write, b"bytes", 0).map(drop).map_err(|fault| Reason::of(&fault))
}

/// Until then it is not silent.
fn has_heard(data: &DataSite, session: &Session, joined: u64) {
    until("it has heard who is there", || {
        session.try_ask(&GetAttr { head: session.head(), ino: 1 }).unwrap();
        write(data, joined).is_ok()
    });
}

#[test]
fn who_was_given_up_writes_nothing_when_his_locks_are_free() {
    let site = site(2);
    let (silent, other) = (site.session(), site.session());
    let (old, new) = (silent.mount().joined, other.mount().joined);
    for data in &site.data {
        has_heard(data, &silent, old);
    }
    assert_eq!(lock(&silent), LockOutcome::Granted);
    gets_the_lock(&other);
    for data in &site.data {
        assert_eq!(write(data, old), Err(Reason::SessionGone));
        assert_eq!(write(data, new), Ok(()));
        assert_eq!(write(data, 0), Ok(()), "another server");
    }
    let late = site.session().mount().joined;
    assert_eq!(write(&site.data[0], late), Ok(()), "who came since");
}

#[test]
fn a_data_server_that_is_cut_off_carries_nothing_out_when_the_locks_are_free() {
    let mut site = site(2);
    let (silent, other) = (site.session(), site.session());
    let (old, new) = (silent.mount().joined, other.mount().joined);
    has_heard(&site.data[1], &silent, old);
    assert_eq!(lock(&silent), LockOutcome::Granted);
    // As late as may be: it may go on for longer than the silent session may.
    let begun = Instant::now();
    while begun.elapsed() < SILENCE * 3 / 4 {
        other.try_ask(&GetAttr { head: other.head(), ino: 1 }).unwrap();
        assert_eq!(write(&site.data[1], new), Ok(()));
        std::thread::sleep(Duration::from_millis(20));
    }
    site.cut_off_data(1);
    gets_the_lock(&other);
    assert_eq!(write(&site.data[0], old), Err(Reason::SessionGone));
    assert_eq!(write(&site.data[1], old), Err(Reason::None), "come later");
    assert_eq!(write(&site.data[1], new), Err(Reason::None), "come later");
    site.report(1);
    until("it has heard who is there", || write(&site.data[1], new).is_ok());
    assert_eq!(write(&site.data[1], old), Err(Reason::SessionGone));
}

#[test]
fn what_is_under_way_is_waited_for() {
    let site = site(1);
    let (silent, other) = (site.session(), site.session());
    let old = silent.mount().joined;
    has_heard(&site.data[0], &silent, old);
    assert_eq!(lock(&silent), LockOutcome::Granted);
    let hangs = site.data[0].faults.hold(IoKind::Write);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| write(&site.data[0], old));
        assert!(hangs.has_come(deadline()));
        until("it is refused", || {
            // Who looks is not silent.
            assert_eq!(lock(&other), LockOutcome::Conflict);
            write(&site.data[0], old) == Err(Reason::SessionGone)
        });
        for _ in 0..30 {
            assert_eq!(lock(&other), LockOutcome::Conflict, "a write of who had it is under way");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(hangs);
        writing.join().unwrap().unwrap();
        gets_the_lock(&other);
    });
}

#[test]
fn a_verdict_outlives_a_restart_of_both_servers() {
    let mut site = site(1);
    let (silent, other) = (site.session(), site.session());
    let (old, alive) = (silent.mount().joined, other.mount().joined);
    has_heard(&site.data[0], &silent, old);
    assert_eq!(lock(&silent), LockOutcome::Granted);
    gets_the_lock(&other);
    site.kill();
    site.kill_data(0);
    site.start();
    site.start_data(0);
    until("who may come back may write", || write(&site.data[0], alive).is_ok());
    assert_eq!(write(&site.data[0], old), Err(Reason::SessionGone));
    // At the end of that time who did not come back may not.
    let third = site.session();
    gets_the_lock(&third);
    assert_eq!(write(&site.data[0], alive), Err(Reason::SessionGone));
}

/// Several metadata servers, and a file of which a session has the lock; which one has its slot.
fn several(data: u64) -> Several {
    with_silence(data, SILENCE)
}

fn with_silence(data: u64, silence: Duration) -> Several {
    let sessions = SessionLimits { silence, ..SessionLimits::default() };
    Several::with(2, data, MetadataOptions { sessions, ..options() })
}

fn lock_of(session: &Routed<'_>, ino: u64) -> Result<LockOutcome, types::Errno> {
    let (class, kind) = (LockClass::Process.into(), LockKind::Write.into());
    let lock = HeldLock { ino, class, owner: 1, start: 0, end: i64::MAX as u64, kind, pid: 7 };
    session.ask(&Lock { head: session.op(), lock: Some(lock), wait: false }).map(|locked| locked.outcome())
}

/// It says that it is there, and is not there for others.
fn renew(session: &Routed<'_>, n: usize) {
    let _ = session.once(n, &GetAttr { head: session.head(), ino: 1 });
}

/// As the session came there, in the name of a metadata server.
fn write_in_name(data: &DataSite, (n, joined): (usize, u64), ino: u64) -> Result<(), Reason> {
    let object = Some(Object { ino, generation: 1, view: None });
    let write = Write { object, offset: 0, sync: false, joined, server: Several::node(n) };
    ask_once(&data.client(), &write, b"bytes", 0).map(drop).map_err(|fault| Reason::of(&fault))
}

/// Of the first one. Until then neither is silent.
fn has_heard_as(data: &DataSite, (one, other): (&Routed<'_>, &Routed<'_>), n: usize, ino: u64) {
    until("it has heard who is there", || {
        for server in 0..2 {
            renew(one, server);
            renew(other, server);
        }
        write_as(data, one, n, ino).is_ok()
    });
}

fn write_as(data: &DataSite, session: &Routed<'_>, n: usize, ino: u64) -> Result<(), Reason> {
    write_in_name(data, (n, session.joined[&n]), ino)
}

fn file(session: &Routed<'_>) -> u64 {
    let dir = session.mkdir(1, "d").unwrap();
    session.create(dir, "f", 1).unwrap()
}

#[test]
fn of_several_the_owner_of_the_slot_fences() {
    let site = several(2);
    let (silent, other) = (site.session(), site.session());
    let ino = file(&silent);
    let owner = site.owner(ino);
    for data in &site.data {
        has_heard_as(data, (&silent, &other), owner, ino);
        assert_eq!(write_as(data, &silent, 1 - owner, ino), Err(Reason::WrongOwner));
    }
    assert_eq!(lock_of(&silent, ino), Ok(LockOutcome::Granted));
    until("the lock is free", || {
        // The other server has no reason to give it up.
        renew(&silent, 1 - owner);
        renew(&other, 1 - owner);
        lock_of(&other, ino) == Ok(LockOutcome::Granted)
    });
    for data in &site.data {
        assert_eq!(write_as(data, &silent, owner, ino), Err(Reason::SessionGone));
        assert_eq!(write_as(data, &other, owner, ino), Ok(()));
    }
}

/// A slot goes with the lock of a client that is given up by who took it. One data server hears nothing of the taker.
#[test]
fn who_took_a_slot_fences_what_was_asked_in_the_givers_name() {
    let mut site = several(2);
    site.cut_off_data(1, 1);
    let (silent, other) = (site.session(), site.session());
    let ino = file(&silent);
    site.try_bring(ino, 0).unwrap();
    for data in &site.data {
        has_heard_as(data, (&silent, &other), 0, ino);
    }
    assert_eq!(lock_of(&silent, ino), Ok(LockOutcome::Granted));
    site.try_bring(ino, 1).unwrap();
    until("the lock is free", || {
        // Who gave the slot has no reason to give it up.
        renew(&silent, 0);
        renew(&other, 0);
        lock_of(&other, ino) == Ok(LockOutcome::Granted)
    });
    for data in &site.data {
        assert_eq!(write_as(data, &silent, 0, ino), Err(Reason::WrongOwner));
    }
    assert_eq!(write_as(&site.data[0], &silent, 1, ino), Err(Reason::SessionGone));
    until("the new owner is known", || write_as(&site.data[0], &other, 1, ino).is_ok());
    // It does not know that the taker has it: nobody can write there what is the taker's.
    assert_eq!(write_as(&site.data[1], &other, 1, ino), Err(Reason::WrongOwner));
}

#[test]
fn what_is_under_way_in_the_givers_name_is_waited_for_by_who_took_the_slot() {
    let site = several(1);
    let (silent, other) = (site.session(), site.session());
    let ino = file(&silent);
    site.try_bring(ino, 0).unwrap();
    has_heard_as(&site.data[0], (&silent, &other), 0, ino);
    assert_eq!(lock_of(&silent, ino), Ok(LockOutcome::Granted));
    let hangs = site.data[0].faults.hold(IoKind::Write);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| write_as(&site.data[0], &silent, 0, ino));
        assert!(hangs.has_come(deadline()));
        site.try_bring(ino, 1).unwrap();
        until("it is refused", || {
            renew(&silent, 0);
            assert_eq!(lock_of(&other, ino), Ok(LockOutcome::Conflict));
            write_as(&site.data[0], &silent, 1, ino) == Err(Reason::SessionGone)
        });
        for _ in 0..30 {
            assert_eq!(lock_of(&other, ino), Ok(LockOutcome::Conflict), "a write of who had it is under way");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(hangs);
        writing.join().unwrap().unwrap();
        until("the lock is free", || lock_of(&other, ino) == Ok(LockOutcome::Granted));
    });
}

/// Given up by one server, and the slot goes to the other, who heard the client all the time: it is given up there, too, before it can write again.
#[test]
fn a_verdict_goes_along_with_the_slot() {
    let site = several(1);
    let (silent, other) = (site.session(), site.session());
    let ino = file(&silent);
    site.try_bring(ino, 0).unwrap();
    has_heard_as(&site.data[0], (&silent, &other), 0, ino);
    assert_eq!(lock_of(&silent, ino), Ok(LockOutcome::Granted));
    until("the lock is free", || {
        renew(&silent, 1);
        renew(&other, 1);
        lock_of(&other, ino) == Ok(LockOutcome::Granted)
    });
    until("the slot goes", || site.try_bring(ino, 1).is_ok());
    until("the new owner is known", || write_as(&site.data[0], &other, 1, ino).is_ok());
    assert_eq!(write_as(&site.data[0], &silent, 1, ino), Err(Reason::SessionGone));
    assert_eq!(write_as(&site.data[0], &silent, 0, ino), Err(Reason::WrongOwner));
}

/// A session that has the lock of a file of the second server, and was given up by the one on duty, which it did not ask for long.
fn given_up_on_duty<'a>(site: &'a Several, other: &Routed<'_>) -> (Routed<'a>, u64) {
    let silent = site.session();
    let ino = file(&silent);
    site.try_bring(ino, 1).unwrap();
    for data in &site.data {
        until("it has heard who is there", || write_as(data, &silent, 1, ino).is_ok());
    }
    assert_eq!(lock_of(&silent, ino), Ok(LockOutcome::Granted));
    let begun = Instant::now();
    while begun.elapsed() < SILENCE * 2 {
        renew(&silent, 1);
        renew(other, 0);
        renew(other, 1);
        std::thread::sleep(Duration::from_millis(20));
    }
    let gone = silent.once(0, &GetAttr { head: silent.head(), ino: 1 }).unwrap_err();
    assert_eq!(Reason::of(&gone), Reason::SessionGone);
    renew(&silent, 1);
    (silent, ino)
}

/// Nobody gets the slot when it is let go; then the one on duty takes it at last.
fn goes_adrift(site: &Several, ino: u64) {
    site.refuse.store(true, Ordering::SeqCst);
    site.try_bring(ino, 0).unwrap_err();
    site.refuse.store(false, Ordering::SeqCst);
    until("it is taken", || site.try_bring(ino, 0).is_ok());
}

/// What a session had in slots adrift that was given up by who takes them at last is not free while a data server may carry out something of it in the
/// giver's name. One that hears nothing any more.
#[test]
fn regression_what_came_adrift_of_who_was_given_up_is_not_free_at_once() {
    let mut site = several(2);
    site.cut_off_data(1, 0);
    let (joined, ino) = {
        let other = site.session();
        let (silent, ino) = given_up_on_duty(&site, &other);
        (silent.joined[&1], ino)
    };
    site.cut_off_data(1, 1);
    let other = site.session();
    goes_adrift(&site, ino);
    until("the lock is free", || {
        renew(&other, 1);
        lock_of(&other, ino) == Ok(LockOutcome::Granted)
    });
    write_in_name(&site.data[1], (1, joined), ino).unwrap_err();
}

/// The same, of a data server with a write that hangs.
#[test]
fn regression_what_is_under_way_of_who_was_given_up_is_waited_for_in_slots_adrift() {
    let site = several(1);
    let other = site.session();
    let (silent, ino) = given_up_on_duty(&site, &other);
    let hangs = site.data[0].faults.hold(IoKind::Write);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| write_as(&site.data[0], &silent, 1, ino));
        assert!(hangs.has_come(deadline()));
        goes_adrift(&site, ino);
        let begun = Instant::now();
        while begun.elapsed() < SILENCE * 2 {
            renew(&other, 1);
            assert_eq!(lock_of(&other, ino), Ok(LockOutcome::Conflict), "a write of who had it is under way");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(hangs);
        writing.join().unwrap().unwrap();
        until("the lock is free", || lock_of(&other, ino) == Ok(LockOutcome::Granted));
    });
}

/// A slot goes with the lock of a session that its giver is just giving up: the taker waits for data servers that it does not hear, too. Method: the session
/// was heard by the taker long ago, and one data server hears nothing any more since before the verdict.
#[test]
fn regression_a_verdict_that_comes_with_a_slot_is_fenced_there_too() {
    let silence = SILENCE * 3;
    let mut site = with_silence(2, silence);
    site.cut_off_data(1, 1);
    let (joined, ino) = {
        let (silent, other) = (site.session(), site.session());
        let ino = file(&silent);
        site.try_bring(ino, 0).unwrap();
        for data in &site.data {
            until("it has heard who is there", || write_as(data, &silent, 0, ino).is_ok());
        }
        assert_eq!(lock_of(&silent, ino), Ok(LockOutcome::Granted));
        let begun = Instant::now();
        while begun.elapsed() < silence * 3 / 4 {
            if begun.elapsed() < silence / 4 {
                renew(&silent, 1);
            }
            renew(&other, 0);
            renew(&other, 1);
            std::thread::sleep(Duration::from_millis(20));
        }
        (silent.joined[&0], ino)
    };
    site.cut_off_data(1, 0);
    let other = site.session();
    until("it is given up", || {
        renew(&other, 1);
        renew(&other, 0);
        write_in_name(&site.data[0], (0, joined), ino) == Err(Reason::SessionGone)
    });
    until("the slot goes", || site.try_bring(ino, 1).is_ok());
    until("the lock is free", || {
        renew(&other, 0);
        lock_of(&other, ino) == Ok(LockOutcome::Granted)
    });
    write_in_name(&site.data[1], (0, joined), ino).unwrap_err();
}
