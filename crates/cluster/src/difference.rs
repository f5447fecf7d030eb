//! What is not the same in two maps of a cluster: what clients are sent when the map changes.
//!
//! - I-MAP-4: a difference is applied to the map that it was made from and to no other; the result is the map that it was made
//!   to, or an error and the map as it was.

use std::collections::BTreeMap;

use thiserror::Error;
use types::Slot;

use crate::{
    change::Refused,
    map::{ClusterMap, Epoch, SlotEntry},
    node::{Node, NodeId},
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    pub(crate) cluster: [u8; 16],
    pub(crate) from: Epoch,
    pub(crate) to: Epoch,
    pub(crate) nodes: Vec<Node>,
    pub(crate) removed: Vec<NodeId>,
    pub(crate) slots: BTreeMap<Slot, SlotEntry>,
    /// `None`: none any more.
    pub(crate) standbys: BTreeMap<NodeId, Option<NodeId>>,
}

/// What became of a difference that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    Done,
    /// The map is as new, or newer.
    Known,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NotApplied {
    #[error("it is of another cluster")]
    Cluster,
    /// The whole map is wanted.
    #[error("it begins at {from:?}, and the map is of {have:?}")]
    Gap { have: Epoch, from: Epoch },
    #[error("it goes from {from:?} to {to:?}")]
    Backwards { from: Epoch, to: Epoch },
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl Difference {
    /// From `old` to `new`, a later map of the same cluster.
    pub fn between(old: &ClusterMap, new: &ClusterMap) -> Result<Difference, NotApplied> {
        if old.cluster != new.cluster {
            return Err(NotApplied::Cluster);
        }
        if old.epoch >= new.epoch {
            return Err(NotApplied::Backwards { from: old.epoch, to: new.epoch });
        }
        let removed = old.nodes.keys().filter(|id| !new.nodes.contains_key(id));
        let ended = old.standbys.keys().filter(|of| !new.standbys.contains_key(of));
        let begun = new.standbys.iter().filter(|(of, by)| old.standbys.get(of) != Some(by));
        Ok(Difference {
            cluster: new.cluster,
            from: old.epoch,
            to: new.epoch,
            nodes: new.nodes().filter(|node| old.node(node.id) != Some(node)).cloned().collect(),
            removed: removed.copied().collect(),
            slots: new.slots().filter(|(slot, entry)| old.slot(*slot) != *entry).collect(),
            standbys: ended.map(|of| (*of, None)).chain(begun.map(|(of, by)| (*of, Some(*by)))).collect(),
        })
    }

    pub fn from(&self) -> Epoch {
        self.from
    }

    pub fn to(&self) -> Epoch {
        self.to
    }
}

impl ClusterMap {
    /// With an error the map is as it was.
    pub fn apply(&mut self, difference: &Difference) -> Result<Applied, NotApplied> {
        let Difference { cluster, from, to, nodes, removed, slots, standbys } = difference;
        if *cluster != self.cluster {
            return Err(NotApplied::Cluster);
        }
        if from >= to {
            return Err(NotApplied::Backwards { from: *from, to: *to });
        }
        if *to <= self.epoch {
            return Ok(Applied::Known);
        }
        if *from != self.epoch {
            return Err(NotApplied::Gap { have: self.epoch, from: *from });
        }
        let mut next = self.clone();
        next.epoch = *to;
        for id in removed {
            next.nodes.remove(id).ok_or(Refused::Unknown(*id))?;
        }
        next.nodes.extend(nodes.iter().map(|node| (node.id, node.clone())));
        for (slot, entry) in slots {
            next.slots[usize::from(slot.get())] = *entry;
        }
        for (of, by) in standbys {
            match by {
                Some(by) => drop(next.standbys.insert(*of, *by)),
                None => drop(next.standbys.remove(of)),
            }
        }
        next.check().map_err(Refused::from)?;
        next.check_follows(self)?;
        *self = next;
        Ok(Applied::Done)
    }
}
