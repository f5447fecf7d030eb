//! Slots that should change hands. Nothing moves but the ownership: the metadata stay where they are.

use std::collections::BTreeMap;

use types::Slot;

use crate::{
    change::Change,
    map::{ClusterMap, SlotEpoch},
    node::NodeId,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Who has it when the plan is made.
    pub from: Option<NodeId>,
    pub to: NodeId,
}

/// Each slot is in it once, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    pub moves: BTreeMap<Slot, Move>,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    /// What the map says when the rows have changed as planned: each with the next epoch of its slot.
    pub fn changes(&self, map: &ClusterMap) -> Vec<Change> {
        let own = |(slot, one): (&Slot, &Move)| Change::Own {
            slot: *slot,
            owner: one.to,
            epoch: SlotEpoch(map.slot(*slot).epoch.0.saturating_add(1)),
        };
        self.moves.iter().map(own).collect()
    }
}
