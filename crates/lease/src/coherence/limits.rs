//! What a server is told at its start: its bounds, and what is known of its earlier lives.

use std::collections::BTreeSet;

use cluster::tenure::{Terms, Time};
use proto::SessionId;

use super::{locks::LockLimits, message::Life};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// A recall is said again after `beat_every`; when we ourselves were called late, verdicts wait for `suspect_after`.
    pub terms: Terms,
    /// A session that says nothing for so long is given up.
    pub silence: Time,
    /// A recall that is not answered for so long ends the session. Enough to write back what a client may keep.
    pub recall: Time,
    /// For so long nothing is written back after somebody looked: what is looked at often is not flushed each time.
    pub rest: Time,
    pub sessions: usize,
    /// All leases of all sessions: some 200 bytes each. The oldest are recalled when seven eighths are there.
    pub leases: usize,
    pub operations: usize,
    /// Keys of one operation: those of a rename, and some.
    pub claims: usize,
    pub locks: LockLimits,
}

/// What is known of earlier lives, from a durable place. A life begins when the one before can say nothing more: it has ended, or its
/// right to the slots has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Past {
    pub life: Life,
    /// The earliest life whose grants can still stand: the one before ours whose [`super::server::Effect::EndGrace`] was carried out last, or the
    /// first. Sessions of it and of later ones may come back.
    pub from: Life,
    /// Sessions that were fenced since then. They may not.
    pub fenced: BTreeSet<SessionId>,
}

/// Sessions of earlier lives that had something.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Expected {
    pub sessions: BTreeSet<SessionId>,
    /// Those of them that had leases. They do not bring them along.
    pub keeping: BTreeSet<SessionId>,
    /// By then the leases of earlier lives have lapsed, but for those of `writing`.
    pub lapsed: Time,
    /// Those of `keeping` that may have kept back what they wrote. They write it before they come back, or are given up.
    pub writing: BTreeSet<SessionId>,
}
