//! What the server on duty knows beside the map: who is heard, and what is under way.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use cluster::{
    Epoch, NodeId,
    relief::{Relief, Settings},
};
use lease::coherence::circles::Search;
use parking_lot::Mutex;
use types::Slot;

use super::rights::as_slots;

/// A server that was not heard of for so long is given nothing, and not waited for.
pub(super) const SILENCE: Duration = Duration::from_secs(3);

/// Whoever has this carries a hand-over out.
pub(crate) struct Turn {
    /// Brought for operations, and whose they were.
    pub lent: BTreeMap<Slot, (NodeId, Instant)>,
    /// Let go by one and taken by nobody yet, with what sessions have in them.
    pub adrift: Vec<(Vec<u16>, Vec<u8>)>,
    /// Who was to let them go did not answer.
    pub doubtful: Vec<(Vec<u16>, NodeId)>,
    pub relief: Relief,
    pub relieved: Instant,
    pub looked: Instant,
    /// Slots for servers that came, from whom and to whom: they could not go yet.
    pub owed: BTreeMap<Slot, (NodeId, NodeId)>,
    pub tried: Instant,
    pub came: Instant,
    /// Slots of a server that only keeps copies.
    pub handed_back: Option<Instant>,
    pub tickets: u64,
}

pub(crate) struct Duty {
    pub turn: Mutex<Turn>,
    pub heard: Mutex<BTreeMap<NodeId, Heard>>,
    pub looks: Mutex<Looks>,
    /// Servers that had left, perhaps not with all that they had, and came again.
    pub came_again: Mutex<BTreeSet<NodeId>>,
}

/// For circles of processes that wait for each other.
#[derive(Default)]
pub(crate) struct Looks {
    pub last: Option<Instant>,
    /// Servers by their lives.
    pub search: Search<(NodeId, u64)>,
}

pub(crate) struct Heard {
    pub at: Instant,
    pub incarnation: u64,
    /// Of the map that it has.
    pub epoch: Epoch,
}

impl Heard {
    pub(crate) fn is_lately(&self) -> bool {
        self.at.elapsed() < SILENCE
    }
}

impl Turn {
    /// Are some of these adrift, or in doubt?
    pub(crate) fn knows_any(&self, slots: &[u16]) -> bool {
        let of = |some: &[u16]| some.iter().any(|slot| slots.contains(slot));
        self.adrift.iter().any(|(some, _)| of(some)) || self.doubtful.iter().any(|(some, _)| of(some))
    }

    pub(crate) fn new(relief: Settings) -> Turn {
        let now = Instant::now();
        Turn {
            lent: BTreeMap::new(),
            adrift: Vec::new(),
            doubtful: Vec::new(),
            relief: Relief::new(relief),
            relieved: now,
            looked: now,
            owed: BTreeMap::new(),
            tried: now,
            came: now,
            handed_back: None,
            tickets: 0,
        }
    }

    /// They stay where they are from now on.
    pub(crate) fn keep(&mut self, slots: &[u16]) {
        as_slots(slots).iter().for_each(|slot| {
            self.lent.remove(slot);
            self.owed.remove(slot);
        });
    }
}

impl Duty {
    pub(crate) fn new(relief: Settings) -> Duty {
        Duty {
            turn: Mutex::new(Turn::new(relief)),
            heard: Mutex::default(),
            looks: Mutex::default(),
            came_again: Mutex::default(),
        }
    }
}
