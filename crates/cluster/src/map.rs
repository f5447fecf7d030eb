//! The cluster map: what clients and servers must agree on, under one number.
//!
//! - I-MAP-1: each slot has one entry; its owner, if any, is a metadata server of the map that has joined.
//! - I-MAP-2: a later map has a higher epoch, no slot's epoch ever falls, and it rises when a slot gets an owner that it had not:
//!   (slot, epoch) names one owner for ever.
//! - I-MAP-3: damaged bytes, another version and a map that breaks a rule are errors, never a map.
//!
//! It does not know whether an owner is alive, nor whose lease runs: the rows of the database rule that.

use std::collections::{BTreeMap, BTreeSet};

use types::{SLOTS, Slot};
use wire::handshake::Roles;

use crate::node::{Node, NodeState};
pub use crate::{
    id::{Epoch, NodeId, SlotEntry, SlotEpoch},
    rule::{MapError, NODES_MAX},
};

/// A map that keeps the rules: there is no other way to have one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterMap {
    pub(crate) cluster: [u8; 16],
    pub(crate) epoch: Epoch,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    /// One for each slot.
    pub(crate) slots: Vec<SlotEntry>,
    /// Who keeps the end of a server's journal, and takes its slots first.
    pub(crate) standbys: BTreeMap<NodeId, NodeId>,
}

impl ClusterMap {
    /// The first map of a cluster: no nodes, and no owners.
    pub fn first(cluster: [u8; 16]) -> ClusterMap {
        ClusterMap::begin(cluster, Epoch(1))
    }

    /// The first map of who makes maps from now on: as [`ClusterMap::first`], with a higher epoch than all that others made.
    pub fn begin(cluster: [u8; 16], epoch: Epoch) -> ClusterMap {
        ClusterMap {
            cluster,
            epoch,
            nodes: BTreeMap::new(),
            slots: vec![SlotEntry::default(); SLOTS as usize],
            standbys: BTreeMap::new(),
        }
    }

    pub fn cluster(&self) -> [u8; 16] {
        self.cluster
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// In the order of their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    pub fn slot(&self, slot: Slot) -> SlotEntry {
        self.slots[usize::from(slot.get())]
    }

    pub fn slots(&self) -> impl Iterator<Item = (Slot, SlotEntry)> {
        Slot::all().map(|slot| (slot, self.slot(slot)))
    }

    /// Those of a node.
    pub fn slots_of(&self, node: NodeId) -> impl Iterator<Item = Slot> {
        self.slots().filter(move |(_, entry)| entry.owner == Some(node)).map(|(slot, _)| slot)
    }

    pub fn standby_of(&self, node: NodeId) -> Option<NodeId> {
        self.standbys.get(&node).copied()
    }

    /// I-MAP-1.
    pub(crate) fn check(&self) -> Result<(), MapError> {
        if self.nodes.len() > NODES_MAX {
            return Err(MapError::TooManyNodes);
        }
        let mut names = BTreeSet::new();
        for node in self.nodes.values() {
            node.check()?;
            if node.joined > self.epoch {
                return Err(MapError::JoinedLater { node: node.id });
            }
            if !names.insert(&node.name) {
                return Err(MapError::Name { name: node.name.clone() });
            }
        }
        for (slot, entry) in self.slots() {
            let Some(owner) = entry.owner else { continue };
            let slot = slot.get();
            // One that is down owns until another has taken the slot.
            let may = self.nodes.get(&owner).is_some_and(|n| is_mds(n) && n.state != NodeState::Joining);
            if !may {
                return Err(MapError::Owner { slot, owner });
            }
            if entry.epoch == SlotEpoch(0) {
                return Err(MapError::OwnedWithoutEpoch { slot });
            }
        }
        for (&of, &by) in &self.standbys {
            let known = |id| self.nodes.get(&id).is_some_and(is_mds);
            if of == by || !known(of) || !known(by) {
                return Err(MapError::Standby { of, by });
            }
        }
        Ok(())
    }
}

fn is_mds(node: &Node) -> bool {
    node.roles.has(Roles::MDS)
}
