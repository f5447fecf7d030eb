//! How one map becomes the next: a list of changes under one epoch more, all of them or none.

use thiserror::Error;
use types::Slot;

use crate::{
    map::{ClusterMap, Epoch, MapError, SlotEntry, SlotEpoch},
    node::{Node, NodeId, NodeState},
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// One that is new, or not as it was.
    Put(Node),
    State {
        node: NodeId,
        state: NodeState,
    },
    Remove(NodeId),
    /// What the slot's row says.
    Own {
        slot: Slot,
        owner: NodeId,
        epoch: SlotEpoch,
    },
    /// The owner has given it back.
    Release(Slot),
    Standby {
        of: NodeId,
        by: Option<NodeId>,
    },
}

/// Why a map does not follow another.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Refused {
    #[error("{0} is not in the map")]
    Unknown(NodeId),
    #[error("slot {slot}: epoch {to:?} does not follow {from:?}")]
    SlotEpoch { slot: u16, from: SlotEpoch, to: SlotEpoch },
    #[error("{0} has joined later")]
    Joined(NodeId),
    #[error("there is no epoch after the last")]
    LastEpoch,
    #[error("too many changes are under way")]
    Busy,
    #[error(transparent)]
    Rule(#[from] MapError),
}

impl ClusterMap {
    /// The next map.
    pub fn next(&self, changes: &[Change]) -> Result<ClusterMap, Refused> {
        let mut next = self.clone();
        next.epoch = Epoch(self.epoch.0.checked_add(1).ok_or(Refused::LastEpoch)?);
        for change in changes {
            next.change(change)?;
        }
        next.check()?;
        next.check_follows(self)?;
        Ok(next)
    }

    fn change(&mut self, change: &Change) -> Result<(), Refused> {
        match change {
            Change::Put(node) => drop(self.nodes.insert(node.id, node.clone())),
            Change::State { node, state } => {
                self.nodes.get_mut(node).ok_or(Refused::Unknown(*node))?.state = *state;
            }
            Change::Remove(node) => {
                self.nodes.remove(node).ok_or(Refused::Unknown(*node))?;
                self.standbys.retain(|of, by| of != node && by != node);
            }
            Change::Own { slot, owner, epoch } => {
                let entry = SlotEntry { owner: Some(*owner), epoch: *epoch };
                self.slots[usize::from(slot.get())] = entry;
            }
            Change::Release(slot) => self.slots[usize::from(slot.get())].owner = None,
            Change::Standby { of, by: Some(by) } => drop(self.standbys.insert(*of, *by)),
            Change::Standby { of, by: None } => drop(self.standbys.remove(of)),
        }
        Ok(())
    }

    /// I-MAP-2: a slot's epoch never falls, and another owner has a higher one.
    pub(crate) fn check_follows(&self, old: &ClusterMap) -> Result<(), Refused> {
        for (slot, entry) in self.slots() {
            let was = old.slot(slot);
            let kept = entry.owner.is_none() || entry.owner == was.owner;
            if entry.epoch < was.epoch || (!kept && entry.epoch == was.epoch) {
                return Err(Refused::SlotEpoch { slot: slot.get(), from: was.epoch, to: entry.epoch });
            }
        }
        let older = |node: &&Node| old.node(node.id).is_some_and(|was| was.joined > node.joined);
        match self.nodes().find(older) {
            Some(node) => Err(Refused::Joined(node.id)),
            None => Ok(()),
        }
    }
}
