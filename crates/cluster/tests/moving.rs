//! Goal: a stripe that moves is at its old place or at its new one, with all that was acknowledged, whatever dies when (I-MOVE-1 to 4).
//! Method: the two machines of `cluster::moving` over a source, a destination and a metadata server of this test, with a writer that goes where
//! the record says; each of the three killed before each step, with the clock standing or beyond the freeze; noted ranges against a set; rounds of a
//! copy beside writes and cuts.
#![allow(clippy::expect_used)]

use std::{collections::BTreeSet, time::Duration};

use cluster::{
    Change, ClusterMap, Epoch, Node, NodeId, NodeState,
    moving::{Came, Ended, Move, Noted, Outgoing, PIECES_MAX, Round, Step, refuge},
    placement::{Measure, Measures},
};
use proptest::prelude::*;
use types::SAU_BYTES;
use wire::handshake::Roles;

const ATTEMPT: u64 = 7;
const FREEZE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Source,
    Destination,
    Metadata,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Record {
    Old,
    HandingOver,
    New,
}

/// One byte for each place of the stripe; what is here is durable.
struct World {
    now: Duration,
    source: Vec<u8>,
    outgoing: Option<Outgoing>,
    handed_over: bool,
    copy: Option<Vec<u8>>,
    /// The copy was completed.
    ready: bool,
    record: Record,
    acknowledged: Vec<u8>,
    written: u8,
}

impl World {
    fn new() -> World {
        World {
            now: Duration::ZERO,
            source: vec![0; 8],
            outgoing: None,
            handed_over: false,
            copy: None,
            ready: false,
            record: Record::Old,
            acknowledged: vec![0; 8],
            written: 0,
        }
    }

    /// A client that knows the old place alone, and goes on to the new one when it is told.
    fn write(&mut self) {
        self.written += 1;
        let at = usize::from(self.written) % 8;
        if self.handed_over {
            // It asks where the stripe is; before that is recorded it waits.
            if self.record == Record::New {
                self.copy.as_mut().expect("a copy")[at] = self.written;
                self.acknowledged[at] = self.written;
            }
            return;
        }
        let now = self.now;
        if self.outgoing.as_mut().is_none_or(|outgoing| outgoing.may_change(now)) {
            self.source[at] = self.written;
            if let Some(outgoing) = &mut self.outgoing {
                outgoing.note(at as u64, at as u64 + 1);
            }
            self.acknowledged[at] = self.written;
        }
    }

    fn take(&mut self, freeze: Option<Duration>) -> Option<()> {
        for (from, to) in self.outgoing.as_mut()?.take(self.now, freeze)? {
            let range = from as usize..(to as usize).min(8);
            self.copy.as_mut()?[range.clone()].copy_from_slice(&self.source[range]);
        }
        Some(())
    }

    fn carry_out(&mut self, step: Step) -> Came {
        let yes = |there: Option<()>| there.map_or(Came::No, |()| Came::Yes);
        match step {
            Step::Copy => {
                self.outgoing = Some(Outgoing::begin(ATTEMPT));
                // A part of it, then somebody writes.
                self.copy = Some(self.source.clone());
                self.write();
                yes(self.take(None))
            }
            Step::Finish => {
                let taken = self.take(Some(FREEZE));
                self.ready = taken.is_some();
                yes(taken)
            }
            Step::Record => {
                self.record = Record::HandingOver;
                Came::Yes
            }
            Step::HandOver => {
                let now = self.now;
                let may = |outgoing: &mut Outgoing| outgoing.may_hand_over(now, ATTEMPT);
                self.handed_over |= self.outgoing.as_mut().is_some_and(may);
                if self.handed_over { Came::Yes } else { Came::No }
            }
            Step::Install => {
                self.record = Record::New;
                Came::Yes
            }
            Step::Cancel => {
                self.record = Record::Old;
                Came::Yes
            }
            Step::Confirm => Came::Yes,
            Step::Drop => {
                self.copy = None;
                Came::Yes
            }
            Step::End(_) => Came::Yes,
        }
    }

    fn kill(&mut self, who: Who) {
        match who {
            Who::Source => self.outgoing = None,
            // What was not completed is thrown away when it comes back.
            Who::Destination if !self.ready => self.copy = None,
            Who::Destination | Who::Metadata => (),
        }
    }

    fn run(&mut self, mut at: Move, mut before: impl FnMut(&mut World, Step) -> bool) -> Option<Ended> {
        loop {
            let step = at.step();
            if let Step::End(ended) = step {
                return Some(ended);
            }
            self.write();
            if before(self, step) {
                return None;
            }
            let lost = self.copy.is_none() && matches!(step, Step::Finish);
            at.came(if lost { Came::No } else { self.carry_out(step) });
        }
    }

    fn check(&mut self, how: &str) {
        // Whoever comes to the file next, after a restart of the metadata server.
        if self.record == Record::HandingOver {
            let ended = self.run(Move::resume(), |_, _| false);
            assert!(matches!(ended, Some(Ended::Moved | Ended::Stayed)), "{how}: {ended:?}");
        }
        self.now += 2 * FREEZE;
        self.write();
        let there = if self.record == Record::New { self.copy.as_ref() } else { Some(&self.source) };
        assert_eq!(there, Some(&self.acknowledged), "{how}: {:?}", self.record);
        assert_eq!(self.handed_over, self.record == Record::New, "{how}");
        let last = self.acknowledged[usize::from(self.written) % 8];
        assert_eq!(last, self.written, "{how}: writing goes on");
    }
}

#[test]
fn whatever_dies_when_nothing_acknowledged_is_lost() {
    let (mut moved, mut stayed) = (0, 0);
    for who in [Who::Source, Who::Destination, Who::Metadata] {
        for at in 0..7 {
            for late in [false, true] {
                let mut world = World::new();
                let mut n = 0;
                world.run(Move::begin(), |world, _| {
                    let now = n == at;
                    n += 1;
                    if now {
                        world.kill(who);
                    }
                    if now && late {
                        world.now += FREEZE;
                    }
                    now && who == Who::Metadata
                });
                world.check(&format!("{who:?} killed at step {at}, late: {late}"));
                if world.handed_over { moved += 1 } else { stayed += 1 }
            }
        }
    }
    assert!(moved > 5 && stayed > 5, "{moved} moved, {stayed} stayed");
}

/// The answer of a source that has decided does not come; it is asked again, twice.
#[test]
fn who_is_asked_again_says_the_same() {
    for late in [false, true] {
        let mut world = World::new();
        let mut at = Move::begin();
        for step in [Step::Copy, Step::Finish, Step::Record] {
            assert_eq!(at.step(), step);
            let came = world.carry_out(step);
            at.came(came);
        }
        if late {
            world.now += FREEZE;
        }
        world.carry_out(Step::HandOver);
        at.came(Came::Unknown);
        assert_eq!(at.step(), Step::End(Ended::Open));
        world.now += 2 * FREEZE;
        world.check(&format!("late: {late}"));
        assert_eq!(world.handed_over, !late);
    }
}

#[test]
fn a_freeze_ends_by_itself_and_comes_once() {
    let mut outgoing = Outgoing::begin(ATTEMPT);
    outgoing.note(3, 5);
    assert_eq!(outgoing.take(Duration::ZERO, None), Some(vec![(3, 5)]));
    assert!(!outgoing.may_hand_over(Duration::ZERO, ATTEMPT), "not before the freeze");
    outgoing.note(5, 6);
    assert_eq!(outgoing.take(Duration::ZERO, Some(FREEZE)), Some(vec![(5, 6)]));
    assert!(!outgoing.may_change(FREEZE / 2));
    assert!(outgoing.may_hand_over(FREEZE / 2, ATTEMPT));
    assert!(!outgoing.may_hand_over(FREEZE / 2, ATTEMPT + 1), "another attempt's copy is not this one");
    assert!(outgoing.may_change(FREEZE));
    assert!(!outgoing.may_hand_over(FREEZE, ATTEMPT));
    assert_eq!(outgoing.take(FREEZE, Some(FREEZE)), None);
    assert_eq!(outgoing.take(FREEZE, None), None);
}

fn map(states: &[(u64, NodeState)]) -> ClusterMap {
    let node = |(id, state): &(u64, NodeState)| Node {
        id: NodeId(*id),
        name: format!("n{id}"),
        addresses: Vec::new(),
        roles: Roles::DS,
        labels: Default::default(),
        state: *state,
        joined: Epoch(1),
    };
    let puts: Vec<Change> = states.iter().map(|one| Change::Put(node(one))).collect();
    ClusterMap::first([1; 16]).next(&puts).expect("a map")
}

#[test]
fn a_refuge_has_nothing_of_the_file_if_there_is_one() {
    let measure = Measure { free: 1 << 30, busy: 0, slow: false };
    let measures: Measures = (1..=4).map(|id| (NodeId(id), measure)).collect();
    let up = NodeState::Up;
    let all = map(&[(1, NodeState::Draining), (2, up), (3, up), (4, up)]);
    for seed in 0..50 {
        assert_eq!(refuge(&all, &measures, (&[1, 2, 3], seed), NodeId(1), 1), Some(NodeId(4)));
        let few = map(&[(1, NodeState::Draining), (2, up), (3, up)]);
        let there = refuge(&few, &measures, (&[1, 2, 3], seed), NodeId(1), 1);
        assert!(matches!(there, Some(NodeId(2 | 3))), "{there:?}");
        let none = map(&[(1, NodeState::Draining), (2, NodeState::Draining)]);
        assert_eq!(refuge(&none, &measures, (&[1], seed), NodeId(1), 1), None);
        assert_eq!(refuge(&all, &measures, (&[1], seed), NodeId(1), 1 << 40), None, "no room");
    }
}

/// What happens to an object while it is copied.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Write(usize, u8),
    Cut(usize),
    Round,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        3 => (0..30_usize, 1..=u8::MAX).prop_map(|(at, byte)| Happens::Write(at, byte)),
        1 => (0..30_usize).prop_map(Happens::Cut),
        1 => Just(Happens::Round),
    ]
}

/// Bytes that are copied into what is there.
fn copy_round(source: &[u8], outgoing: &mut Outgoing, freeze: Option<Duration>, copy: &mut Vec<u8>) {
    let noted = outgoing.take(Duration::ZERO, freeze).expect("an attempt that is not over");
    let round = Round::of(noted, source.len() as u64);
    if let Some(size) = round.cut {
        copy.resize(size as usize, 0);
    }
    for (from, to) in round.ranges {
        let (from, to) = (from as usize, to as usize);
        copy.resize(copy.len().max(to), 0);
        copy[from..to].copy_from_slice(&source[from..to]);
    }
}

proptest! {
    /// What was cut off does not come back, wherever the object grows again before or after a round.
    #[test]
    fn a_copy_ends_as_its_source(begun in 0..30_usize, all in prop::collection::vec(happens(), 0..40)) {
        let mut source = vec![255; begun];
        let mut outgoing = Outgoing::begin(ATTEMPT);
        let mut copy = source.clone();
        for one in all {
            match one {
                Happens::Write(at, byte) => {
                    // Also what lies between the end and there is none of the write's bytes.
                    source.resize(source.len().max(at + 1), 0);
                    source[at] = byte;
                    outgoing.note(at as u64, at as u64 + 1);
                }
                Happens::Cut(size) => {
                    let before = source.len();
                    source.resize(size, 0);
                    outgoing.note(size.min(before) as u64, u64::MAX);
                }
                Happens::Round => copy_round(&source, &mut outgoing, None, &mut copy),
            }
        }
        copy_round(&source, &mut outgoing, Some(FREEZE), &mut copy);
        copy.resize(source.len(), 0);
        prop_assert_eq!(copy, source);
    }

    #[test]
    fn what_is_noted_covers_what_changed(writes in prop::collection::vec((0..4000u64, 1..40u64), 0..300)) {
        let mut noted = Noted::default();
        let mut want = BTreeSet::new();
        for (from, len) in writes {
            noted.add(from, from + len);
            want.extend(from..from + len);
        }
        let ranges = noted.take();
        prop_assert!(ranges.windows(2).all(|two| two[0].1 < two[1].0));
        let got: BTreeSet<u64> = ranges.iter().flat_map(|(from, to)| *from..*to).collect();
        prop_assert_eq!(got, want);
        prop_assert!(noted.take().is_empty());
    }
}

#[test]
fn many_pieces_are_noted_more_coarsely() {
    let mut noted = Noted::default();
    let places: Vec<u64> = (0..20_000).map(|n| n * SAU_BYTES / 8 + n).chain([u64::MAX - 5]).collect();
    places.iter().for_each(|at| noted.add(*at, at + 1));
    noted.add(1 << 62, u64::MAX);
    let ranges = noted.take();
    assert!(ranges.len() <= PIECES_MAX);
    assert!(places.iter().all(|at| ranges.iter().any(|(from, to)| from <= at && at < to)));
}
