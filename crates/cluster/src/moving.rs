//! Moving a stripe from one data server to another while it is in use: who decides what, and when.
//!
//! The destination copies, while the source notes what is changed ([`Outgoing`]). Then the source is frozen for a while, the rest is copied and made
//! durable, and the metadata server records that the stripe is about to be handed over. Whether it is, the *source* decides, once and durably:
//! only while it is still frozen. After that the metadata server's record says the new place ([`Move`]).
//!
//! - I-MOVE-1: whatever dies at whatever moment, the stripe ends up either at the old place or at the new one, with all that was acknowledged
//!   there. The source answers "yes" to a hand-over only in the freeze in which the copy was completed, and never writes again after it.
//! - I-MOVE-2: a freeze ends by itself, and a copy that was completed in it is not used then.
//! - I-MOVE-3: what was noted covers what was changed; with too many pieces it covers more.
//! - I-MOVE-4: what was asked for of the source is done at the copy before it is asked again ([`Round`]): also a cut, behind which the source may
//!   have grown by then without anything being noted there.
//!
//! Times are counted from any moment of the source's own.

use std::{collections::BTreeMap, time::Duration};

use types::SAU_BYTES;

use crate::{
    map::{ClusterMap, NodeId},
    placement::{Measures, best_of},
};

/// Pieces that are noted one by one; as many fit into a message.
pub const PIECES_MAX: usize = 512;

/// What was changed at the source since it was asked last: ranges that do not touch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Noted {
    /// Begin and end of each.
    ranges: BTreeMap<u64, u64>,
    /// They begin and end at multiples of it. 0: anywhere.
    grain: u64,
}

impl Noted {
    /// From `from` up to `to`.
    pub fn add(&mut self, from: u64, to: u64) {
        if from < to {
            self.put(from, to);
        }
        while self.ranges.len() > PIECES_MAX {
            self.grain = if self.grain == 0 { SAU_BYTES / 64 } else { self.grain.saturating_mul(8) };
            for (from, to) in std::mem::take(&mut self.ranges) {
                self.put(from, to);
            }
        }
    }

    fn put(&mut self, from: u64, to: u64) {
        let (mut from, mut to) = match self.grain {
            0 => (from, to),
            grain => (from / grain * grain, to.checked_next_multiple_of(grain).unwrap_or(u64::MAX)),
        };
        // Those that it meets; none of them touches another.
        while let Some((&before, &end)) = self.ranges.range(..=to).next_back()
            && end >= from
        {
            self.ranges.remove(&before);
            (from, to) = (from.min(before), to.max(end));
        }
        self.ranges.insert(from, to);
    }

    /// All of it, in order; nothing is noted then.
    pub fn take(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(self).ranges.into_iter().collect()
    }
}

/// What a copy has to do for what the source noted, which is of `size` then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Round {
    /// First: behind this nothing of the copy counts.
    pub cut: Option<u64>,
    /// Then these are copied: from where up to where.
    pub ranges: Vec<(u64, u64)>,
}

impl Round {
    pub fn of(noted: impl IntoIterator<Item = (u64, u64)>, size: u64) -> Round {
        let mut round = Round { cut: None, ranges: Vec::new() };
        for (from, to) in noted {
            if to > size {
                round.cut = Some(size);
            }
            if from < to.min(size) {
                round.ranges.push((from, to.min(size)));
            }
        }
        round
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Freeze {
    NotYet,
    Until(Duration),
    /// It ended by itself: this attempt is over.
    Over,
}

/// An object that is being copied to another server, at the source. In memory: after a restart there is no such attempt any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    attempt: u64,
    noted: Noted,
    freeze: Freeze,
}

impl Outgoing {
    pub fn begin(attempt: u64) -> Outgoing {
        Outgoing { attempt, noted: Noted::default(), freeze: Freeze::NotYet }
    }

    pub fn attempt(&self) -> u64 {
        self.attempt
    }

    /// To be asked before anything of the object changes, and with nobody freezing it meanwhile.
    pub fn may_change(&mut self, now: Duration) -> bool {
        self.tick(now);
        !matches!(self.freeze, Freeze::Until(_))
    }

    /// To be told when it has changed, before anybody is answered.
    pub fn note(&mut self, from: u64, to: u64) {
        self.noted.add(from, to);
    }

    /// What was changed since this was asked last. `freeze`: for so long nothing changes from now on; an attempt has one freeze.
    pub fn take(&mut self, now: Duration, freeze: Option<Duration>) -> Option<Vec<(u64, u64)>> {
        self.tick(now);
        match (self.freeze, freeze) {
            (Freeze::NotYet, None) => (),
            (Freeze::NotYet, Some(freeze)) => self.freeze = Freeze::Until(now.saturating_add(freeze)),
            (Freeze::Until(_) | Freeze::Over, _) => return None,
        }
        Some(self.noted.take())
    }

    /// May it be handed over now? Only in the freeze of this attempt.
    pub fn may_hand_over(&mut self, now: Duration, attempt: u64) -> bool {
        self.tick(now);
        self.attempt == attempt && matches!(self.freeze, Freeze::Until(_))
    }

    fn tick(&mut self, now: Duration) {
        if matches!(self.freeze, Freeze::Until(until) if now >= until) {
            self.freeze = Freeze::Over;
        }
    }
}

/// What the metadata server does next for a stripe that moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Have the destination copy, while the source is in use.
    Copy,
    /// Have the source frozen and the rest copied, durably. From here on nobody else is at the file.
    Finish,
    /// Record durably which hand-over is about to be asked for.
    Record,
    /// Ask the source, which decides.
    HandOver,
    /// Record the new place.
    Install,
    /// Record that it is not handed over.
    Cancel,
    /// Tell the destination that its copy counts.
    Confirm,
    /// Tell the destination that it does not.
    Drop,
    End(Ended),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    Moved,
    Stayed,
    /// The record says that a hand-over was asked for: whoever is next at the file asks again, before anything else.
    Open,
}

/// What a step came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    Yes,
    No,
    /// It may have been done.
    Unknown,
}

/// The metadata server's part of one attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move(Step);

impl Move {
    pub fn begin() -> Move {
        Move(Step::Copy)
    }

    /// Of whoever finds a hand-over in the record.
    pub fn resume() -> Move {
        Move(Step::HandOver)
    }

    pub fn step(&self) -> Step {
        self.0
    }

    pub fn came(&mut self, came: Came) {
        self.0 = match (self.0, came) {
            (Step::Copy, Came::Yes) => Step::Finish,
            (Step::Finish, Came::Yes) => Step::Record,
            (Step::Copy | Step::Finish, Came::No | Came::Unknown) => Step::Drop,
            (Step::Record, Came::Yes) => Step::HandOver,
            // Nothing was asked of the source, so nothing is decided.
            (Step::Record, Came::No) => Step::Drop,
            (Step::HandOver, Came::Yes) => Step::Install,
            (Step::HandOver, Came::No) => Step::Cancel,
            (Step::Install, Came::Yes) => Step::Confirm,
            (Step::Cancel, Came::Yes) => Step::Drop,
            (Step::Record | Step::HandOver, Came::Unknown)
            | (Step::Install | Step::Cancel, Came::No | Came::Unknown) => Step::End(Ended::Open),
            // A destination that was not told asks, sooner or later.
            (Step::Confirm, _) => Step::End(Ended::Moved),
            (Step::Drop, _) => Step::End(Ended::Stayed),
            (Step::End(ended), _) => Step::End(ended),
        };
    }
}

/// Where a stripe goes that leaves `from`: to a server that has nothing of the file, if there is one with room.
pub fn refuge(
    map: &ClusterMap,
    measures: &Measures,
    file: (&[u64], u64),
    from: NodeId,
    room: u64,
) -> Option<NodeId> {
    let (stripes, seed) = file;
    let apart = |node: NodeId| !stripes.contains(&node.0);
    best_of(map, measures, room, seed, &apart)
        .or_else(|| best_of(map, measures, room, seed, &|node| node != from))
}
