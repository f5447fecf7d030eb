//! Goal: a session that was given up stays so under its name, also if it never heard that it was in. Method: the server's machine alone, its
//! joining said again after the verdict: in the same life, and in the next one.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, time::Duration};

use cluster::tenure::Terms;
use lease::coherence::{
    locks::{Class, HadLock, LockLimits, LockRequest, Owner},
    message::{Had, Joined, Life, Party, Saying, Telling},
    ranges::{Kind, Range},
    server::{Effect, Expected, Input, Limits, Past, Server},
};
use proto::SessionId;
use types::Ino;

const LIMITS: Limits = Limits {
    terms: Terms {
        lease: Duration::from_millis(1000),
        beat_every: Duration::from_millis(200),
        suspect_after: Duration::from_millis(500),
        drift_one_in: 20,
    },
    silence: Duration::from_millis(2000),
    recall: Duration::from_millis(1000),
    rest: Duration::from_millis(300),
    sessions: 8,
    leases: 8,
    operations: 8,
    claims: 4,
    locks: LockLimits { locks: 8, session_locks: 8, waiters: 8 },
};
const NAME: SessionId = SessionId(7);

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn join(server: &mut Server, life: u32, ms: u64) -> Vec<Effect> {
    let by = Party { session: NAME, joined: Joined(0) };
    let saying = Saying::Join { number: 1, life: Life(life), had: Had::default() };
    server.handle(at(ms), Input::Said { by, saying });
    std::iter::from_fn(|| server.poll_effect()).collect()
}

fn gone() -> Vec<Effect> {
    vec![Effect::Tell { to: NAME, telling: Telling::Gone { joined: Joined(0) } }]
}

/// Found by the simulation of all cores: the answer to its joining was lost, it was silent and given up, and it joined again as if it was new;
/// but data servers refuse it by its name.
#[test]
fn regression_who_was_given_up_does_not_join_as_if_new() {
    let mut server = Server::first(LIMITS, at(0));
    let joined = join(&mut server, 1, 0);
    assert!(matches!(joined[..], [Effect::Tell { telling: Telling::Joined { .. }, .. }]), "{joined:?}");
    while let Some(next) = server.next_deadline() {
        server.handle_deadline(next);
        if std::iter::from_fn(|| server.poll_effect()).any(|effect| effect == Effect::Fence(NAME)) {
            server.handle(next, Input::Fenced(NAME));
        }
    }
    assert_eq!(std::iter::from_fn(|| server.poll_effect()).collect::<Vec<_>>(), [Effect::Over(NAME)]);
    assert_eq!(join(&mut server, 1, 60_000), gone());
    let past = Past { life: Life(2), from: Life(1), fenced: BTreeSet::from([NAME]) };
    assert_eq!(join(&mut Server::new(LIMITS, past, at(0)), 2, 10), gone());
    let past = Past { life: Life(2), from: Life(1), fenced: BTreeSet::new() };
    assert_ne!(join(&mut Server::new(LIMITS, past, at(0)), 2, 10), gone(), "others may");
}

/// Found by the model of slots that go about: a session that is waited for, and of which another server brought something meanwhile, does not come in
/// time. What it had here is free, so it is given up although it is there.
#[test]
fn regression_who_is_brought_and_does_not_come_in_time_is_given_up() {
    let past = Past { life: Life(2), from: Life(1), fenced: BTreeSet::new() };
    let mut server = Server::new(LIMITS, past, at(0));
    server.expect(Expected { sessions: BTreeSet::from([NAME]), ..Expected::default() });
    server.handle(at(10), Input::Place { session: NAME, silent: at(0) });
    let brought: Vec<Effect> = std::iter::from_fn(|| server.poll_effect()).collect();
    assert!(matches!(brought[..], [Effect::Tell { telling: Telling::Joined { .. }, .. }]), "{brought:?}");
    server.handle_deadline(at(1200));
    assert_eq!(std::iter::from_fn(|| server.poll_effect()).collect::<Vec<_>>(), [Effect::EndGrace]);
    server.handle(at(1200), Input::GraceEnded);
    assert_eq!(std::iter::from_fn(|| server.poll_effect()).collect::<Vec<_>>(), [Effect::Fence(NAME)]);
    assert_eq!(join(&mut server, 2, 1300), gone());
}

/// Found with clients of a server that died twice: it came back to the second life, did not hear so, and was refused by the third as one who had come too
/// late, although what it has was its own all the time.
#[test]
fn regression_who_came_back_without_hearing_so_comes_back_again() {
    let with = |known: &[SessionId]| {
        let past = Past { life: Life(3), from: Life(2), fenced: BTreeSet::new() };
        let mut server = Server::new(LIMITS, past, at(0));
        let sessions = known.iter().copied().collect();
        server.expect(Expected { sessions, ..Expected::default() });
        let by = Party { session: NAME, joined: Joined(Life(1).first_number() + 1) };
        let owner = Owner { session: NAME, class: Class::Process, id: 1 };
        let lock = HadLock { ino: Ino::ROOT, owner, range: Range::ALL, kind: Kind::Write, pid: 7 };
        let had = Had { locks: vec![lock], ..Had::default() };
        server.handle(at(10), Input::Said { by, saying: Saying::Join { number: 1, life: Life(3), had } });
        std::iter::from_fn(|| server.poll_effect()).next().unwrap()
    };
    let back = with(&[NAME, SessionId(8)]);
    assert!(matches!(back, Effect::Tell { to: NAME, telling: Telling::Joined { .. } }), "{back:?}");
    let late = with(&[SessionId(8)]);
    assert!(matches!(late, Effect::Tell { to: NAME, telling: Telling::Gone { .. } }), "{late:?}");
}

/// Goal: what comes of a session that was given up, and is over, is its own until it is fenced once more. Method: the same, with a lock that is put in.
#[test]
fn what_comes_of_who_was_given_up_is_free_when_it_is_fenced_again() {
    let mut server = Server::first(LIMITS, at(0));
    server.handle(at(0), Input::GivenUp(NAME));
    assert_eq!(join(&mut server, 1, 0), gone());
    server.handle(at(10), Input::PlaceGivenUp { session: NAME, silent: at(1500) });
    assert_eq!(std::iter::from_fn(|| server.poll_effect()).collect::<Vec<_>>(), [Effect::Fence(NAME)]);
    let (all, kind, pid) = (Range::ALL, Kind::Write, 7);
    let owner = |session| Owner { session, class: Class::Process, id: 1 };
    let ino = Ino::ROOT;
    server.put_locks(&[HadLock { ino, owner: owner(NAME), range: all, kind, pid }]);
    let other = LockRequest { ino, owner: owner(SessionId(8)), range: all, kind, pid, wait: false };
    server.handle_deadline(at(60_000));
    assert!(server.is_condemned(NAME) && server.locks().in_the_way(&other).is_some(), "not fenced yet");
    assert_eq!(join(&mut server, 1, 60_000), gone());
    // Before it was fenced more came of it.
    server.handle(at(60_000), Input::PlaceGivenUp { session: NAME, silent: at(0) });
    server.handle(at(60_000), Input::Fenced(NAME));
    let ended: Vec<Effect> = std::iter::from_fn(|| server.poll_effect()).collect();
    assert_eq!(ended, [Effect::Fence(NAME), Effect::Over(NAME)]);
    assert!(!server.is_condemned(NAME) && server.locks().in_the_way(&other).is_none());
    assert_eq!(join(&mut server, 1, 60_000), gone());
}
