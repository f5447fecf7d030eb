//! Goal: a machine that stood still takes nobody for silent whom it could not hear meanwhile: neither sessions nor data servers. Method: the process of
//! this test, with servers and clients, is stopped for longer than any of them may be silent.
#![allow(clippy::unwrap_used, reason = "tests")]

mod site;

use std::{
    process::Command,
    time::{Duration, Instant},
};

use proto::{control::Renew, locks::*};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    ask,
    cluster::{Session, Site, options},
};

const SILENCE: Duration = Duration::from_secs(4);
/// Before who found his connection broken comes again: some looks of the clock, and the time in which one who is suspected may say so.
const PAUSE: Duration = Duration::from_secs(2);

fn stand_still(time: Duration) {
    let (begun, me) = (Instant::now(), std::process::id());
    let script = format!("kill -STOP {me}; sleep {}; kill -CONT {me}", time.as_secs());
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    assert!(begun.elapsed() >= time);
}

fn lock(session: &Session) -> LockOutcome {
    let (class, kind) = (LockClass::Process.into(), LockKind::Write.into());
    let lock = HeldLock { ino: 2, class, owner: 1, start: 0, end: i64::MAX as u64, kind, pid: 7 };
    session.try_ask(&Lock { head: session.op(), lock: Some(lock), wait: false }).unwrap().outcome()
}

/// It gave up all who did not say at once that they are there when it went on.
#[test]
fn regression_a_server_that_stood_still_gives_nobody_up() {
    let sessions = SessionLimits { silence: SILENCE, ..SessionLimits::default() };
    let site = Site::with(1, MetadataOptions { sessions, node_silence: SILENCE, ..options() });
    let (one, other) = (site.session(), site.session());
    assert_eq!(lock(&one), LockOutcome::Granted);
    stand_still(SILENCE * 3 / 2);
    let is_away = site.service().nodes().status()[0].away;
    std::thread::sleep(PAUSE);
    for session in [&one, &other] {
        ask(&session.control, &Renew { head: session.head(), node: None, writes: false }, &[], 0).unwrap();
    }
    assert_eq!((is_away, lock(&other)), (false, LockOutcome::Conflict));
}
