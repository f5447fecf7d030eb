//! Goal: leases of who is silent end without a word, and only they; a server that knows who may come back waits for those and no longer; it claims
//! for all. Method: histories of one machine, its effects looked at.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, time::Duration};

use cluster::tenure::Terms;
use lease::coherence::{
    locks::LockLimits,
    message::{Had, Joined, Life, Party, Saying, Telling},
    rights::{Claim, Key, Rights},
    server::{Effect, Expected, Input, Limits, Past, Refused, Server},
};
use proto::SessionId;
use types::Ino;

const SECOND: Duration = Duration::from_secs(1);
const KEY: Key = Key::Inode(Ino::ROOT);

fn limits() -> Limits {
    Limits {
        terms: Terms {
            lease: 27 * SECOND,
            beat_every: 5 * SECOND,
            suspect_after: 2 * SECOND,
            drift_one_in: 50,
        },
        silence: 30 * SECOND,
        recall: 15 * SECOND,
        rest: Duration::from_millis(300),
        sessions: 8,
        leases: 64,
        operations: 8,
        claims: 4,
        locks: LockLimits { locks: 8, session_locks: 8, waiters: 8 },
    }
}

fn effects(server: &mut Server) -> Vec<Effect> {
    std::iter::from_fn(|| server.poll_effect()).collect()
}

fn join(server: &mut Server, now: Duration, session: u128, before: u64, life: u32) -> Party {
    let session = SessionId(session);
    let saying = Saying::Join { number: 0, life: Life(life), had: Had::default() };
    server.handle(now, Input::Said { by: Party { session, joined: Joined(before) }, saying });
    let joined = effects(server).into_iter().find_map(|effect| {
        let Effect::Tell { telling: Telling::Joined { joined, .. }, .. } = effect else { return None };
        Some(joined)
    });
    Party { session, joined: joined.unwrap() }
}

fn grant(server: &mut Server, now: Duration, by: Party) -> Rights {
    server.handle(now, Input::Begin { by, operation: 99, claims: vec![(KEY, Claim::Look)] });
    server.handle(
        now,
        Input::Said { by, saying: Saying::Want { request: 0, key: KEY, rights: Rights::ATTRIBUTES } },
    );
    server.handle(now, Input::End { by, operation: 99 });
    let granted = effects(server).into_iter().find_map(|effect| {
        let Effect::Tell { telling: Telling::Granted { rights, .. }, .. } = effect else { return None };
        Some(rights)
    });
    granted.unwrap_or(Rights::NONE)
}

#[test]
fn leases_of_who_is_silent_lapse_and_his_openings_stay() {
    let mut server = Server::first(limits(), Duration::ZERO);
    let (one, two) = (join(&mut server, Duration::ZERO, 1, 0, 1), join(&mut server, Duration::ZERO, 2, 0, 1));
    let file = Key::Inode(Ino::from_raw(9).unwrap());
    server
        .handle(SECOND, Input::Begin { by: one, operation: 1, claims: vec![(file.clone(), Claim::Modify)] });
    assert_eq!(grant(&mut server, SECOND, one), Rights::ATTRIBUTES);
    for by in [two, Party::SERVER] {
        let claims = vec![(KEY, Claim::Change)];
        server.handle(2 * SECOND, Input::Begin { by, operation: 1, claims });
        assert!(!effects(&mut server).contains(&Effect::Begun { by, operation: 1 }), "it is kept");
    }
    server.handle(9 * SECOND, Input::Lapsed(one.session));
    let begun = effects(&mut server);
    for by in [two, Party::SERVER] {
        assert!(begun.contains(&Effect::Begun { by, operation: 1 }));
    }
    assert!(server.is_alive(one) && !server.table().has_leases(one.session));
    assert_eq!(server.table().has_begun(one.session, 1), Some(true), "an opening is no lease");
    // The server's own claim is in everybody's way.
    assert_eq!(grant(&mut server, 9 * SECOND, two), Rights::NONE);
    server.handle(9 * SECOND, Input::End { by: Party::SERVER, operation: 1 });
    server.handle(9 * SECOND, Input::End { by: two, operation: 1 });
    assert_eq!(grant(&mut server, 9 * SECOND, one), Rights::ATTRIBUTES);
}

fn second_life(sessions: &[u128], keeping: &[u128]) -> Server {
    let past = Past { life: Life(2), from: Life(1), fenced: BTreeSet::new() };
    let mut server = Server::new(limits(), past, Duration::ZERO);
    let ids = |of: &[u128]| of.iter().map(|id| SessionId(*id)).collect();
    server.expect(Expected {
        sessions: ids(sessions),
        keeping: ids(keeping),
        lapsed: 6 * SECOND,
        ..Expected::default()
    });
    server
}

fn begins(server: &mut Server, now: Duration, by: Party) -> bool {
    server.handle(now, Input::Begin { by, operation: 5, claims: vec![(KEY, Claim::Change)] });
    let effects = effects(server);
    server.handle(now, Input::End { by, operation: 5 });
    let later = Effect::NotBegun { by, operation: 5, why: Refused::Later };
    assert_ne!(effects.contains(&later), effects.contains(&Effect::Begun { by, operation: 5 }));
    !effects.contains(&later)
}

#[test]
fn a_server_waits_for_those_who_were_there() {
    let before = Life(1).first_number() + 1;
    let mut server = second_life(&[1, 2], &[2]);
    let new = join(&mut server, SECOND, 7, 0, 2);
    assert!(!begins(&mut server, SECOND, new), "somebody may keep something");
    join(&mut server, SECOND, 2, before, 2);
    assert!(begins(&mut server, SECOND, new), "he keeps nothing any more");
    assert!(server.in_grace(), "another may have locks");
    assert_eq!(server.missing().unwrap().iter().copied().collect::<Vec<_>>(), [SessionId(1)]);
    server.handle(
        SECOND,
        Input::Said {
            by: Party { session: SessionId(1), joined: Joined(before) },
            saying: Saying::Join { number: 0, life: Life(2), had: Had::default() },
        },
    );
    assert!(effects(&mut server).contains(&Effect::EndGrace), "all are back");
    server.handle(SECOND, Input::GraceEnded);
    assert!(!server.in_grace());
    server.handle_deadline(28 * SECOND);
    assert!(!effects(&mut server).contains(&Effect::EndGrace), "it has ended once");
}

#[test]
fn who_does_not_come_back_is_waited_for_as_long_as_what_he_may_have() {
    let mut server = second_life(&[1], &[1]);
    let new = join(&mut server, SECOND, 7, 0, 2);
    assert!(!begins(&mut server, 5 * SECOND, new));
    assert!(begins(&mut server, 6 * SECOND, new), "leases have lapsed");
    assert_eq!(grant(&mut server, 6 * SECOND, new), Rights::ATTRIBUTES);
    assert!(server.in_grace(), "locks last longer");
    let mut server = second_life(&[], &[]);
    assert!(effects(&mut server).contains(&Effect::EndGrace), "nobody was there");
}
