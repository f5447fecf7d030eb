//! Goal: when locks of a session that was given up are somebody else's, no data server carries out anything of that session any more, also one
//! that the metadata server cannot reach, and one that was started again. Method: sessions over sockets with short silences; a
//! data server that hangs, that is cut off from the metadata server alone, that is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod site;

use std::time::{Duration, Instant};

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
    deadline, until,
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
    let object = Some(Object { ino: 1 << 20, generation: 1 });
    let write = Write { object, offset: 0, sync: false, joined };
    ask_once(&data.client(), &write, b"bytes", 0).map(drop).map_err(|fault| Reason::of(&fault))
}

#[test]
fn who_was_given_up_writes_nothing_when_his_locks_are_free() {
    let site = site(2);
    let (silent, other) = (site.session(), site.session());
    let (old, new) = (silent.mount().joined, other.mount().joined);
    for data in &site.data {
        until("it has heard who is there", || write(data, old).is_ok());
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
    until("it has heard who is there", || write(&site.data[1], old).is_ok());
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
    until("it has heard who is there", || write(&site.data[0], old).is_ok());
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
    until("it has heard who is there", || write(&site.data[0], old).is_ok());
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
