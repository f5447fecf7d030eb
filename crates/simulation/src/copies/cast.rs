//! Who takes part where files have two copies, and what can be left out to see that it is missed.

use std::{ops::Range, time::Duration};

use cluster::{
    NodeId,
    replica::{
        Member, View,
        copy::{END, PIECE, Patience},
    },
    tenure::Terms,
};
use types::{Ino, SAU_BYTES};

use crate::{
    cast::{DATA_SERVERS, Place, inode},
    chance::Weather,
};

/// Stripes, each an object with a view.
pub const OBJECTS: u64 = 3;
/// Places in each that are looked at: a piece for who copies, a storage allocation unit for who stores.
pub const CELLS: u64 = 4;
/// Of metadata: both make views of all objects, and what the database takes counts.
pub const KEEPERS: usize = 2;

/// What one data server lets another one do.
pub const TERMS: Terms = Terms {
    lease: Duration::from_millis(600),
    beat_every: Duration::from_millis(120),
    suspect_after: Duration::from_millis(600),
    drift_one_in: 20,
};
pub const PATIENCE: Patience = Patience {
    again: Duration::from_millis(150),
    complain: Duration::from_millis(500),
    done: Duration::from_millis(30),
};
/// Without a word for so long a data server is believed to be gone.
pub const SILENCE: Duration = Duration::from_millis(800);
pub const REPORT_EVERY: Duration = Duration::from_millis(120);
/// A call between processes ends by then.
pub const CALL_WAIT: Duration = Duration::from_millis(1000);
/// The upper half of a view's number says how often both copies were lost.
pub const REVIVED: u32 = 32;

pub type Value = Option<u64>;

pub fn object(number: u64) -> Ino {
    inode(1, 10 + number)
}

pub fn node(at: usize) -> NodeId {
    NodeId(at as u64 + 1)
}

pub fn server_of(member: Member) -> usize {
    (member.node.0 as usize).saturating_sub(1)
}

pub fn place_of(member: Member) -> Place {
    Place::Data(server_of(member))
}

pub fn first_view(number: u64) -> View {
    let member = |at: u64| Member { node: node(at as usize % DATA_SERVERS), life: 1 };
    View::first(member(number), Some(member(number + 1)))
}

pub fn epoch(view: &View) -> u64 {
    view.number >> REVIVED
}

pub fn all_of(view: &View) -> Vec<Member> {
    [Some(view.primary), view.second.map(|second| second.member)].into_iter().flatten().collect()
}

/// For who copies.
pub fn range(cells: &Range<u64>) -> (u64, u64) {
    (cells.start * PIECE, cells.end * PIECE)
}

pub fn cells((from, to): (u64, u64)) -> Range<u64> {
    let end = if to == END { CELLS } else { to / PIECE };
    (from / PIECE).min(CELLS)..end.min(CELLS)
}

pub const LENGTH: u64 = CELLS * PIECE;

/// For who stores.
pub fn offset(cell: u64) -> u64 {
    cell * SAU_BYTES
}

/// Each of these is a thing that all hangs on, left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    Nothing,
    /// The primary does not wait for the second.
    NoSecond,
    /// Who has no leave answers.
    NoLeave,
    /// Who goes on alone does not wait for who was left out.
    Unsettled,
    /// A server that was started again is the same member.
    SameLife,
    /// Views are told before they are stored.
    EarlyView,
    /// Of a view everybody is told once.
    ToldOnce,
    /// The database stores a view that was not made from the one that is there.
    AnyView,
    /// That all who counted are gone is taken from what was heard of them at any time.
    OldLives,
    /// A server that has made room does not say so to its machine.
    SilentDrop,
    /// What a new second has from before is taken for the same without being compared.
    NotCompared,
    /// A sync is one of the primary alone.
    SyncOfOne,
    /// A second counts before what it has is durable.
    SecondUnsynced,
    /// A sync is answered before the bytes are durable.
    EarlySync,
    /// What memory had before the power cut is read as if it was there.
    ForgottenMemory,
    /// The journal is made durable before the bytes of which it speaks.
    EarlyCopy,
    /// Who asks by a view of before both copies were lost is answered.
    OldEpoch,
    /// A client's sync does not say that both copies were lost since its writes.
    UntoldLoss,
}

impl Left {
    pub const ALL: [Left; 17] = [
        Left::NoSecond,
        Left::NoLeave,
        Left::Unsettled,
        Left::SameLife,
        Left::EarlyView,
        Left::ToldOnce,
        Left::AnyView,
        Left::OldLives,
        Left::SilentDrop,
        Left::NotCompared,
        Left::SyncOfOne,
        Left::SecondUnsynced,
        Left::EarlySync,
        Left::ForgottenMemory,
        Left::EarlyCopy,
        Left::OldEpoch,
        Left::UntoldLoss,
    ];

    /// In which it is needed most.
    pub fn weather(self) -> Option<Weather> {
        match self {
            Left::SyncOfOne
            | Left::SecondUnsynced
            | Left::EarlySync
            | Left::ForgottenMemory
            | Left::EarlyCopy
            | Left::OldEpoch
            | Left::UntoldLoss => Some(POWER),
            Left::OldLives => Some(Weather { cut: 40, pause: 100, kill: 60, ..POWER }),
            _ => None,
        }
    }
}

pub const DATA: &[Place] = &[Place::Data(0), Place::Data(1), Place::Data(2)];
pub const MACHINES: &[Place] = &[Place::Data(0), Place::Data(1), Place::Data(2), Place::Database];

/// Machines of data servers lose power, often two at a time.
pub const POWER: Weather = Weather { power: 90, slow_disk: 15, machines: DATA, ..Weather::FAIR };
