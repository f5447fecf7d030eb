//! Which records may have been answered, and are in nobody's hands but the owner's and his standby's.

use std::collections::{BTreeMap, BTreeSet};

use cluster::NodeId;

#[derive(Default)]
pub struct TailTruth {
    counted: BTreeSet<u64>,
    written: BTreeSet<u64>,
    /// Answered, perhaps, and not in the database: whose journal has it.
    open: BTreeMap<u64, NodeId>,
    /// That a take-over brought.
    pub brought: u64,
    pub take_overs: u64,
    pub complete: u64,
    pub machines_lost: u64,
}

impl TailTruth {
    /// It may be answered. Whether it counts from now on.
    pub fn released(&mut self, id: u64, owner: NodeId) -> bool {
        if !self.written.contains(&id) {
            self.open.insert(id, owner);
        }
        self.counted.insert(id)
    }

    /// The database has it. Whether it counts from now on.
    pub fn written(&mut self, id: u64) -> bool {
        self.open.remove(&id);
        self.written.insert(id);
        self.counted.insert(id)
    }

    /// Another one has gone on: nothing that was answered may be missing.
    pub fn taken_over(&mut self, from: NodeId) -> Result<(), String> {
        self.take_overs += 1;
        match self.open.values().filter(|owner| **owner == from).count() {
            0 => Ok(()),
            lost => Err(format!("{lost} records of {from} were answered and are lost")),
        }
    }
}
