//! Goal: locks of all sessions go together, who waits is told in his turn, and neither a lost answer, a killed server nor a silent
//! session lets two have one lock. Method: a metadata server of this process, sessions over sockets, kills.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod site;

use std::time::{Duration, Instant};

use prost::Message;
use proto::{
    Head, Reason, SessionId,
    control::{Hello, Mount, Mounted, Renew, Unmount},
    locks::*,
};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    ask,
    cluster::{Session, Site, options},
    until,
};
use types::Errno;
use wire::schema::Fault;

const ALL: (u64, u64) = (0, i64::MAX as u64);

fn lock(owner: u64, class: LockClass, (start, end): (u64, u64), kind: LockKind) -> HeldLock {
    HeldLock { ino: 2, class: class.into(), owner, start, end, kind: kind.into(), pid: 7 }
}

fn write(owner: u64) -> HeldLock {
    lock(owner, LockClass::Process, ALL, LockKind::Write)
}

fn take(session: &Session, lock: HeldLock, wait: bool) -> (u64, LockOutcome) {
    let head = session.op();
    let locked = session.try_ask(&Lock { head, lock: Some(lock), wait }).unwrap();
    (head.unwrap().number, locked.outcome())
}

fn give(session: &Session, lock: HeldLock) {
    let unlock = Unlock { head: session.op(), lock: Some(lock) };
    assert_eq!(session.try_ask(&unlock).unwrap().outcome(), LockOutcome::Granted);
}

/// What is told next, and its number.
fn hear(session: &Session, heard: u64) -> Vec<Telling> {
    loop {
        let listen = Listen { head: session.head(), heard };
        let told = ask(&session.control, &listen, &[], 0).unwrap().0.tellings;
        if !told.is_empty() {
            return told;
        }
    }
}

fn outcomes(told: &[Telling]) -> Vec<(u64, LockOutcome)> {
    told.iter().map(|telling| (telling.operation, telling.locked.unwrap().outcome())).collect()
}

fn with_silence(silence: Duration) -> Site {
    let sessions = SessionLimits { silence, ..SessionLimits::default() };
    Site::with(1, MetadataOptions { sessions, ..options() })
}

/// Comes back to a server that was started again, or says that it does.
fn come_back(session: &Session, before: u64, had: Vec<HeldLock>) -> Result<Mounted, Fault> {
    let life = ask(&session.control, &Hello {}, &[], 1 << 20).unwrap().0.life;
    let mount = Mount {
        head: Some(Head::of(session.id)),
        host: "test".into(),
        node: 0,
        before,
        life,
        ..Mount::default()
    };
    ask(&session.control, &mount, &HadLocks { locks: had }.encode_to_vec(), 0).map(|(mounted, _)| mounted)
}

/// Another process goes on with the session.
fn resume(session: &Session) -> (Mounted, Vec<HeldLock>) {
    let (head, host) = (Some(Head::of(session.id)), "test".into());
    let mount = Mount { head, host, resumes: true, ..Mount::default() };
    let (mounted, body) = ask(&session.control, &mount, &[], 1 << 20).unwrap();
    (mounted, HadLocks::read(&body).unwrap().locks)
}

#[test]
fn who_goes_on_with_a_session_is_told_its_locks_and_nothing_waits_for_him() {
    let mut site = Site::new(1);
    let (one, two) = (site.session(), site.session());
    assert_eq!(take(&one, write(1), false).1, LockOutcome::Granted);
    assert_eq!(take(&two, write(3), true).1, LockOutcome::Waits);
    let (mounted, locks) = resume(&one);
    assert_eq!((mounted.was_here, locks), (true, vec![write(1)]));
    let (mounted, locks) = resume(&two);
    assert_eq!((mounted.was_here, locks), (true, vec![]));
    give(&one, write(1));
    assert_eq!(take(&one, write(5), false).1, LockOutcome::Granted, "nobody waits any more");
    // One that came back is gone on with as well.
    let before = one.mount().joined;
    site.kill();
    site.start();
    let again = Session::over(&site, one.id);
    assert_ne!(come_back(&again, before, vec![write(5)]).unwrap().joined, 0);
    let (mounted, locks) = resume(&again);
    assert_eq!((mounted.was_here, locks), (true, vec![write(5)]));
    // And one that is not known has nothing.
    let stranger = Session::over(&site, SessionId(two.id.0 + 5000));
    let (mounted, locks) = resume(&stranger);
    assert_eq!((mounted.was_here, locks), (false, vec![]));
    until("nobody is waited for", || take(&stranger, write(1), false).1 == LockOutcome::Conflict);
}

#[test]
fn locks_of_two_sessions_go_together() {
    let site = Site::new(1);
    let (one, two) = (site.session(), site.session());
    for class in [LockClass::Process, LockClass::Description, LockClass::Flock] {
        let read = |owner| lock(owner, class, ALL, LockKind::Read);
        let write = |owner| lock(owner, class, ALL, LockKind::Write);
        assert_eq!(take(&one, read(1), false).1, LockOutcome::Granted);
        assert_eq!(take(&two, read(1), false).1, LockOutcome::Granted, "the same number, another session");
        assert_eq!(take(&two, write(1), false).1, LockOutcome::Conflict);
        give(&one, read(1));
        assert_eq!(take(&two, write(1), false).1, LockOutcome::Granted);
        assert_eq!(take(&one, read(1), false).1, LockOutcome::Conflict);
        // Who looks is told who it is, and whose.
        let find = FindLock { head: one.head(), lock: Some(read(1)) };
        let found = one.try_ask(&find).unwrap();
        assert_eq!((found.own, found.lock), (false, Some(write(1))));
        let find = FindLock { head: two.head(), lock: Some(read(9)) };
        assert!(two.try_ask(&find).unwrap().own);
        give(&two, write(1));
        assert_eq!(one.try_ask(&FindLock { head: one.head(), lock: Some(read(1)) }).unwrap().lock, None);
    }
    let first = lock(1, LockClass::Process, (0, 9), LockKind::Write);
    let then = lock(1, LockClass::Process, (10, 19), LockKind::Write);
    assert_eq!(take(&one, first, false).1, LockOutcome::Granted);
    assert_eq!(take(&two, then, false).1, LockOutcome::Granted);
    // The one waits for the other, who may not wait for him.
    assert_eq!(take(&one, then, true).1, LockOutcome::Waits);
    assert_eq!(take(&two, first, true).1, LockOutcome::Deadlock);
}

#[test]
fn who_waits_is_told_in_his_turn_and_once() {
    let site = Site::new(1);
    let (one, two, three) = (site.session(), site.session(), site.session());
    assert_eq!(take(&one, write(1), true).1, LockOutcome::Granted);
    let head = two.op();
    let waits = Lock { head, lock: Some(write(1)), wait: true };
    // A lost answer: it comes again, and is the same request.
    let stamps: Vec<u64> = (0..3).map(|_| two.try_ask(&waits).unwrap().stamp).collect();
    assert!(stamps.iter().all(|stamp| *stamp == stamps[0]));
    let (third, outcome) = take(&three, write(1), true);
    assert_eq!(outcome, LockOutcome::Waits);
    let listening = std::thread::scope(|scope| {
        let listening = scope.spawn(|| hear(&two, 0));
        give(&one, write(1));
        listening.join().unwrap()
    });
    assert_eq!(outcomes(&listening), [(head.unwrap().number, LockOutcome::Granted)]);
    assert!(listening[0].locked.unwrap().stamp > stamps[0]);
    // Not heard yet: it is told again. The third one's turn has not come.
    assert_eq!(hear(&two, 0), listening);
    assert_eq!(take(&one, write(1), false).1, LockOutcome::Conflict);
    three.try_ask(&CancelLock { head: three.head(), number: third }).unwrap();
    assert_eq!(outcomes(&hear(&three, 0)), [(third, LockOutcome::Interrupted)]);
    give(&two, write(1));
    assert_eq!(take(&one, write(1), false).1, LockOutcome::Granted);
    // Of what has its answer already a cancelling says nothing.
    two.try_ask(&CancelLock { head: two.head(), number: head.unwrap().number }).unwrap();
    let last = take(&two, write(1), true).0;
    ask(&one.control, &Unmount { head: one.head() }, &[], 0).unwrap();
    let heard = listening[0].number;
    assert_eq!(
        outcomes(&hear(&two, heard)),
        [(last, LockOutcome::Granted)],
        "the end of a session frees its locks"
    );
    let gone = ask(&one.control, &Listen { head: one.head(), heard: 0 }, &[], 0).unwrap_err();
    assert_eq!(Reason::of(&gone), Reason::SessionGone);
}

#[test]
fn locks_of_a_silent_session_are_free_when_it_is_given_up() {
    let mut site = with_silence(Duration::from_millis(1500));
    let (silent, other) = (site.session(), site.session());
    let before = silent.mount().joined;
    assert_eq!(take(&silent, write(1), false).1, LockOutcome::Granted);
    assert_eq!(take(&other, write(1), true).1, LockOutcome::Waits);
    let begun = Instant::now();
    // Listening keeps nobody alive; what it asks does.
    let told = std::thread::scope(|scope| {
        let listening = scope.spawn(|| hear(&other, 0));
        while !listening.is_finished() {
            ask(&other.control, &Renew { head: other.head(), node: None, writes: false }, &[], 0).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        listening.join().unwrap()
    });
    assert_eq!(told[0].locked.unwrap().outcome(), LockOutcome::Granted);
    assert!(begun.elapsed() >= Duration::from_secs(1), "not before its time");
    let fault = silent.fault(&Unlock { head: silent.op(), lock: Some(write(1)) });
    assert_eq!(Reason::of(&fault), Reason::SessionGone);
    // The verdict outlives the server: it does not come back with what is another's now.
    site.kill();
    site.start();
    let fault = come_back(&silent, before, vec![write(1)]).unwrap_err();
    assert_eq!((fault.errno, Reason::of(&fault)), (Errno::ESTALE.raw(), Reason::SessionGone));
}

#[test]
fn locks_outlive_a_restart_of_the_server() {
    let mut site = with_silence(Duration::from_secs(3));
    let (one, late) = (site.session(), site.session());
    let (before, late_before) = (one.mount().joined, late.mount().joined);
    assert_eq!(take(&one, write(1), false).1, LockOutcome::Granted);
    site.kill();
    site.start();
    let other = site.session();
    // Nobody knows yet who has it.
    let (number, outcome) = take(&other, write(1), true);
    assert_eq!(outcome, LockOutcome::Waits);
    assert_eq!(take(&other, write(2), false).1, LockOutcome::Waits);
    let mounted = come_back(&one, before, vec![write(1)]).unwrap();
    assert_eq!(come_back(&one, before, vec![write(1)]).unwrap(), mounted, "its answer was lost");
    let (old, new) =
        (Head { joined: before, ..Head::of(one.id) }, Head { joined: mounted.joined, ..Head::of(one.id) });
    assert_eq!(
        Reason::of(&one.fault(&FindLock { head: Some(old), lock: Some(write(9)) })),
        Reason::SessionGone
    );
    // Those that are known are kept through the time of coming back, and free when they are given up.
    let renewing = |sessions: &[&Session]| {
        for session in sessions {
            ask(&session.control, &Renew { head: session.head(), node: None, writes: false }, &[], 0)
                .unwrap();
        }
    };
    let mut told = Vec::new();
    std::thread::scope(|scope| {
        let listening = scope.spawn(|| hear(&other, 0));
        while !listening.is_finished() {
            renewing(&[&one, &other]);
            std::thread::sleep(Duration::from_millis(20));
        }
        told = listening.join().unwrap();
    });
    assert_eq!(told[0].locked.unwrap().outcome(), LockOutcome::Conflict, "{told:?}");
    let found = one.try_ask(&FindLock { head: Some(new), lock: Some(write(9)) }).unwrap();
    assert_eq!((found.own, found.lock), (true, Some(write(1))));
    let heard = told.last().unwrap().number;
    let unlock = Unlock { head: Some(Head { number: 1, ..new }), lock: Some(write(1)) };
    assert_eq!(one.try_ask(&unlock).unwrap().outcome(), LockOutcome::Granted);
    assert_eq!(outcomes(&hear(&other, heard)), [(number, LockOutcome::Granted)]);
    // Who comes after that time has nothing any more.
    let fault =
        come_back(&late, late_before, vec![lock(3, LockClass::Flock, ALL, LockKind::Read)]).unwrap_err();
    assert_eq!(Reason::of(&fault), Reason::SessionGone);
    // And a third life knows who was there in the second.
    site.kill();
    site.start();
    assert!(come_back(&late, late_before, vec![]).is_err());
    come_back(&one, mounted.joined, vec![write(1)]).unwrap();
    // It did not hear that it was in the third and the second.
    site.kill();
    site.start();
    assert!(come_back(&late, late_before, vec![]).is_err());
    come_back(&one, before, vec![write(1)]).unwrap();
    until("all have ended", || {
        ask(&one.control, &Unmount { head: Some(Head::of(one.id)) }, &[], 0).unwrap();
        site.service().in_use().0 == 0
    });
}

#[test]
fn what_waits_for_the_end_of_coming_back_can_be_cancelled() {
    let mut site = Site::new(1);
    // Somebody who does not come back.
    assert_eq!(take(&site.session(), write(1), false).1, LockOutcome::Granted);
    site.kill();
    site.start();
    let session = Session::over(&site, SessionId(77));
    session.mount();
    let (number, outcome) = take(&session, write(1), true);
    assert_eq!(outcome, LockOutcome::Waits);
    session.try_ask(&CancelLock { head: session.head(), number }).unwrap();
    assert_eq!(outcomes(&hear(&session, 0)), [(number, LockOutcome::Interrupted)]);
}

#[test]
fn the_time_of_coming_back_ends_when_all_are_back() {
    // Far longer than anybody waits here.
    let mut site = with_silence(Duration::from_secs(600));
    let (one, two, none) = (site.session(), site.session(), site.session());
    let (before, two_before) = (one.mount().joined, two.mount().joined);
    assert_eq!(take(&one, write(1), false).1, LockOutcome::Granted);
    assert_eq!(take(&two, lock(2, LockClass::Flock, ALL, LockKind::Read), false).1, LockOutcome::Granted);
    site.kill();
    site.start();
    none.mount();
    let (number, outcome) = take(&none, write(1), false);
    assert_eq!(outcome, LockOutcome::Waits, "two may come back");
    let mounted = come_back(&one, before, vec![write(1)]).unwrap();
    assert_eq!(take(&none, write(2), false).1, LockOutcome::Waits, "one may");
    come_back(&two, two_before, vec![]).unwrap();
    assert_eq!(outcomes(&hear(&none, 0))[0], (number, LockOutcome::Conflict));
    // Who has ended is not waited for, nor who has nothing.
    for session in [&two, &none] {
        ask(&session.control, &Unmount { head: session.head() }, &[], 0).unwrap();
    }
    site.kill();
    site.start();
    let new = site.session();
    come_back(&one, mounted.joined, vec![write(1)]).unwrap();
    until("nobody is waited for", || take(&new, write(3), false).1 == LockOutcome::Conflict);
}
