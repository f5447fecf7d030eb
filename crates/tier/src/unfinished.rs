//! What the machine keeps of each thing that was begun and has not ended: movements, rests, copies that are due, and
//! requests. Only what they are; what is done with them is in the files named after them.

use types::{Ino, TierId, TierSet};

use crate::api::{MoveId, MoveKind, RequestError, RequestId, RequestReport, Time};
use crate::table::Ob;

pub struct Move {
    /// `NIL` once the object is gone.
    pub ob: Ob,
    pub ino: Ino,
    pub from: TierId,
    /// Equal to `from` for a drop.
    pub to: TierId,
    /// `None` for a drop.
    pub kind: Option<MoveKind>,
    pub keep_source: bool,
    /// Estimate at the start.
    pub bytes: u64,
    /// What of it is still promised in `to`, and still to be freed in `from`.
    pub reserved: u64,
    pub draining: u64,
    pub started: Time,
    pub cancelled: bool,
    /// The request that it is part of.
    pub request: Option<u64>,
    /// A promotion goes on from these tiers.
    pub then: TierSet,
}

impl Move {
    /// Would it be pointless to go on once a closed file is opened?
    pub fn is_eviction(&self) -> bool {
        matches!(self.kind, Some(MoveKind::NormalOut | MoveKind::ForcedOut))
    }
    /// The object is read from where it was before.
    pub fn leaves_in_place(&self) -> bool {
        self.keep_source && self.to > self.from
    }
}

/// A movement to start.
pub struct Start {
    pub from: TierId,
    pub to: TierId,
    pub kind: MoveKind,
    pub keep_source: bool,
    pub request: Option<u64>,
    pub then: TierSet,
    /// Bytes that may leave `from`: what an eviction lacks, else all.
    pub most: u64,
}

/// An object whose last movement failed.
pub struct Rest {
    pub until: Time,
    pub failures: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    Migrate(TierId),
    Flush,
    Prefetch,
}

/// One request that has not ended.
pub struct Asked {
    pub id: RequestId,
    pub what: What,
    pub list: Vec<Ino>,
    pub next: usize,
    /// Objects being worked on: one, or for a prefetch as many as may move at once.
    pub items: Vec<Item>,
    pub report: RequestReport,
    pub error: Option<RequestError>,
    /// What it waits for, told when patience ends.
    pub blocked: RequestError,
    pub deadline: Time,
}

pub struct Item {
    pub ino: Ino,
    pub to: TierId,
    /// Tiers that it still has to be moved from.
    pub sources: TierSet,
    pub moving: Option<MoveId>,
    pub moved: bool,
}

impl Asked {
    pub fn concerns(&self, ino: Ino) -> bool {
        self.items.iter().any(|item| item.ino == ino)
    }
    pub fn is_over(&self) -> bool {
        self.items.is_empty() && (self.error.is_some() || self.next == self.list.len())
    }
}

/// An object with bytes in memory only.
pub struct Unsaved {
    /// Since when it has been so.
    pub first: Time,
    pub last_write: Time,
    /// Not again before this: a copy that left it dirty is not repeated at once.
    pub not_before: Time,
    pub armed: Armed,
    /// At the last close.
    pub bytes: u64,
}

#[derive(Clone, Copy)]
pub enum Armed {
    No,
    Timer(Time),
    Due(Time),
}
