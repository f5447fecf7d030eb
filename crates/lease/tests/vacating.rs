//! Goal: slots that go are vacant when all was given back that was asked for, and only then; what is given back late takes nothing away that was granted
//! afterwards; who keeps it for ever is given up. Method: random grants, and askings and returns in any order, beside a plain look at all leases.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, time::Duration};

use cluster::tenure::Terms;
use lease::coherence::{
    locks::LockLimits,
    message::{Had, Joined, Life, Party, Saying, Telling},
    rights::{Claim, Key, Rights},
    server::{Effect, Input, Limits, Server},
    vacating::KeptThere,
};
use proptest::prelude::*;
use proto::SessionId;
use types::{Ino, LocalId, Slot, UgsdId};

const SECOND: Duration = Duration::from_secs(1);

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
        leases: 1024,
        operations: 8,
        claims: 4,
        locks: LockLimits { locks: 8, session_locks: 8, waiters: 8 },
    }
}

fn ino(ugsd: u32, local: u64) -> Ino {
    Ino::new(UgsdId::new(ugsd).unwrap(), LocalId::new(local).unwrap())
}

fn slots(of: &[u16]) -> BTreeSet<Slot> {
    of.iter().map(|n| Slot::new(*n).unwrap()).collect()
}

struct World {
    server: Server,
    parties: Vec<Party>,
    /// What was told to each and not answered.
    recalls: Vec<(usize, Key, Rights, u64)>,
    by_slots: Vec<KeptThere>,
    fenced: usize,
}

impl World {
    fn new() -> World {
        let mut server = Server::first(limits(), Duration::ZERO);
        let parties = (1..=3).map(|n| {
            let session = SessionId(n);
            let saying = Saying::Join { number: 0, life: Life(1), had: Had::default() };
            server.handle(Duration::ZERO, Input::Said { by: Party { session, joined: Joined(0) }, saying });
            let joined = std::iter::from_fn(|| server.poll_effect()).find_map(|effect| match effect {
                Effect::Tell { telling: Telling::Joined { joined, .. }, .. } => Some(joined),
                Effect::Tell { .. }
                | Effect::Begun { .. }
                | Effect::NotBegun { .. }
                | Effect::Lock { .. }
                | Effect::Fence(_)
                | Effect::Over(_)
                | Effect::EndGrace => None,
            });
            Party { session, joined: joined.unwrap() }
        });
        let parties = parties.collect();
        World { server, parties, recalls: Vec::new(), by_slots: Vec::new(), fenced: 0 }
    }

    fn drain(&mut self) -> Option<u64> {
        let mut granted = None;
        while let Some(effect) = self.server.poll_effect() {
            match effect {
                Effect::Tell { to, telling: Telling::Recall { key, keeps, number, .. } } => {
                    let who = self.parties.iter().position(|party| party.session == to).unwrap();
                    self.recalls.push((who, key, keeps, number));
                }
                Effect::Tell { telling: Telling::Granted { rights, number, .. }, .. } => {
                    granted = (!rights.is_empty()).then_some(number);
                }
                Effect::Fence(_) => self.fenced += 1,
                Effect::Tell { .. }
                | Effect::Begun { .. }
                | Effect::NotBegun { .. }
                | Effect::Lock { .. }
                | Effect::Over(_)
                | Effect::EndGrace => {}
            }
        }
        granted
    }

    fn grant(&mut self, now: Duration, who: usize, key: &Key, rights: Rights) -> Option<u64> {
        let by = self.parties[who];
        self.server.handle(now, Input::Begin { by, operation: 99, claims: vec![(key.clone(), Claim::Look)] });
        self.drain();
        let saying = Saying::Want { request: 0, key: key.clone(), rights };
        self.server.handle(now, Input::Said { by, saying });
        let granted = self.drain();
        self.server.handle(now, Input::End { by, operation: 99 });
        granted
    }

    fn answer(&mut self, now: Duration) {
        for (who, key, keeps, number) in std::mem::take(&mut self.recalls) {
            let saying = Saying::Returned { key, number, keeps };
            self.server.handle(now, Input::Said { by: self.parties[who], saying });
        }
        for KeptThere { session, slots, number } in std::mem::take(&mut self.by_slots) {
            let by = *self.parties.iter().find(|party| party.session == session).unwrap();
            self.server.returned_slots(by, &slots, number);
        }
        self.drain();
    }

    fn holders(&self, slots: &BTreeSet<Slot>) -> BTreeSet<SessionId> {
        let there = self.server.table().all().filter(|(key, ..)| slots.contains(&key.slot()));
        there.map(|(_, session, _)| session).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Grant { who: usize, ugsd: u32, local: u64, entry: bool, bytes: bool },
    AskBack(Vec<u16>),
    Answer,
}

fn step() -> impl Strategy<Value = Step> {
    let ugsd = prop_oneof![0..6u32, 4096..4100u32, Just(8193), Just(UgsdId::MAX)];
    prop_oneof![
        6 => (0..3usize, ugsd, 1..4u64, any::<bool>(), any::<bool>())
            .prop_map(|(who, ugsd, local, entry, bytes)| Step::Grant { who, ugsd, local, entry, bytes }),
        2 => prop::collection::vec(prop_oneof![0..6u16, Just(4095)], 1..4).prop_map(Step::AskBack),
        1 => Just(Step::Answer),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_are_vacant_when_all_came_back(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        let all = slots(&[0, 1, 2, 3, 4, 5, 4095]);
        for step in steps {
            match step {
                Step::Grant { who, ugsd, local, entry, bytes } => {
                    let ino = ino(ugsd, local);
                    let key = if entry { Key::Entry { dir: ino, name: (*b"n").into() } } else { Key::Inode(ino) };
                    let rights = if bytes { Rights::ATTRIBUTES.with(Rights::PAGES) } else { Rights::ATTRIBUTES };
                    world.grant(SECOND, who, &key, rights);
                }
                Step::AskBack(of) => {
                    let of = slots(&of);
                    let there = world.server.ask_back(SECOND, &of);
                    let asked: BTreeSet<SessionId> = there.iter().map(|one| one.session).collect();
                    prop_assert_eq!(asked, world.holders(&of));
                    world.drain();
                    world.by_slots.extend(there);
                }
                Step::Answer => world.answer(SECOND),
            }
            prop_assert_eq!(world.server.holders_in(&all), world.holders(&all));
        }
        let before = world.server.table().leases();
        let elsewhere = world.server.table().all().filter(|(key, ..)| !all.contains(&key.slot())).count();
        let there = world.server.ask_back(SECOND, &all);
        world.drain();
        world.by_slots.extend(there);
        prop_assert_eq!(world.server.table().leases(), before, "nothing is free before it comes back");
        world.answer(SECOND);
        prop_assert!(world.server.holders_in(&all).is_empty());
        prop_assert_eq!(world.server.table().leases(), elsewhere);
    }
}

#[test]
fn what_comes_back_late_takes_no_later_grant() {
    let (mut world, key) = (World::new(), Key::Inode(ino(7, 1)));
    world.grant(SECOND, 0, &key, Rights::ATTRIBUTES).unwrap();
    let of = slots(&[7]);
    let late = world.server.ask_back(SECOND, &of).remove(0);
    world.by_slots = vec![late.clone()];
    world.answer(SECOND);
    world.grant(SECOND, 0, &key, Rights::ATTRIBUTES).unwrap();
    world.by_slots = vec![late];
    world.answer(SECOND);
    assert_eq!(world.server.holders_in(&of).len(), 1);
}

#[test]
fn who_never_gives_back_is_given_up() {
    let (mut world, key) = (World::new(), Key::Inode(ino(7, 1)));
    world.grant(SECOND, 0, &key, Rights::ATTRIBUTES).unwrap();
    let of = slots(&[7]);
    world.server.ask_back(SECOND, &of);
    world.server.insist(SECOND, &of);
    let mut now = SECOND;
    while world.fenced == 0 && now < 20 * SECOND {
        now += SECOND / 2;
        let by = world.parties[0];
        world.server.handle(now, Input::Said { by, saying: Saying::Renew { number: 0 } });
        world.server.handle_deadline(now);
        world.drain();
    }
    assert!(world.fenced == 1 && now >= 15 * SECOND, "after {now:?}");
}

/// Goal: openings that come with a slot keep others from being granted bytes, and end as any. Method: one that comes, one that asks.
#[test]
fn openings_that_come_exclude_bytes() {
    let (mut world, file) = (World::new(), ino(7, 2));
    let (writer, key) = (world.parties[0], Key::Inode(file));
    world.server.put_openings(&[(writer.session, 5, file)]);
    assert_eq!(world.grant(SECOND, 1, &key, Rights::PAGES), None);
    assert!(world.grant(SECOND, 0, &key, Rights::PAGES).is_some(), "who writes alone may");
    world.server.handle(SECOND, Input::End { by: writer, operation: 5 });
    assert!(world.grant(SECOND, 1, &key, Rights::PAGES).is_some());
}

/// Goal: writes that are kept back are not taken for given back because names and attributes of the slot are (I-VACATE-3). Method: a holder that gives
/// slots back at once, and the file later.
#[test]
fn regression_slots_that_are_given_back_leave_what_is_kept_back() {
    let (mut world, file) = (World::new(), ino(7, 2));
    let key = Key::Inode(file);
    world.server.put_openings(&[(world.parties[0].session, 5, file)]);
    world.grant(SECOND, 0, &key, Rights::WRITE_BACK).unwrap();
    let of = slots(&[7]);
    let by_slots = world.server.ask_back(SECOND, &of);
    world.drain();
    for one in by_slots {
        world.server.returned_slots(world.parties[0], &one.slots, one.number);
    }
    let other = world.parties[1].session;
    assert!(world.server.may_be_kept_back(other, &key), "it has not written yet, and who looks has to wait");
    let (who, key, keeps, number) = world.recalls.remove(0);
    let saying = Saying::Returned { key, number, keeps };
    world.server.handle(SECOND, Input::Said { by: world.parties[who], saying });
    assert!(world.server.holders_in(&of).is_empty());
}
