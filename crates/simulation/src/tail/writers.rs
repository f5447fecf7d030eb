//! The database's rows of those who write: processes and their sessions, leases, and what the rows say of copies.

use std::collections::BTreeMap;

use cluster::{NodeId, tail::row::Row, tenure::Time};

use crate::message::Taken;

#[derive(Default)]
pub struct Line {
    pub life: u64,
    pub(super) session: u64,
    pub(super) until: Time,
    pub tail: Row<NodeId>,
    pub(super) applied: u64,
    /// By whom, with which copy, and what it was.
    pub(super) taken: BTreeMap<(NodeId, u64), Vec<Taken>>,
    /// How often somebody went on in its place.
    pub(super) times: u64,
}

#[derive(Default)]
pub struct Writers(pub BTreeMap<NodeId, Line>);

impl Writers {
    /// The standby and the copy that counts.
    pub fn complete(&self, of: NodeId) -> Option<(NodeId, u64)> {
        let row = &self.0.get(&of)?.tail;
        row.standby.filter(|_| row.complete).map(|by| (by, row.copy))
    }

    /// How often somebody went on in its place.
    pub fn taken_over(&self, of: NodeId) -> u64 {
        self.0.get(&of).map_or(0, |line| line.times)
    }
}
