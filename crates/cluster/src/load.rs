//! Measured load per slot, and what a slot weighs when slots are divided.

use std::collections::BTreeMap;

use types::{SLOTS, Slot};

use crate::{
    map::ClusterMap,
    node::{Node, NodeId},
};

/// Of each slot, what its owner spent on it in one period: microseconds of processor time, or operations. The unit does not matter as
/// long as it is one. A slot that nobody measured has 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loads(Vec<u32>);

impl Loads {
    pub fn of(measured: impl IntoIterator<Item = (Slot, u32)>) -> Loads {
        let mut loads = vec![0; SLOTS as usize];
        for (slot, load) in measured {
            loads[usize::from(slot.get())] = load;
        }
        Loads(loads)
    }

    pub fn none() -> Loads {
        Loads::of([])
    }

    pub fn slot(&self, slot: Slot) -> u64 {
        u64::from(self.0[usize::from(slot.get())])
    }

    pub fn total(&self) -> u64 {
        self.0.iter().map(|load| u64::from(*load)).sum()
    }

    /// Of each server that may have slots or has some: the load of its slots.
    pub fn by_server(&self, map: &ClusterMap) -> BTreeMap<NodeId, u64> {
        let mut servers: BTreeMap<NodeId, u64> = takers(map).map(|node| (node, 0)).collect();
        for (slot, entry) in map.slots() {
            if let Some(owner) = entry.owner {
                *servers.entry(owner).or_default() += self.slot(slot);
            }
        }
        servers
    }

    /// The mean of several periods.
    pub fn mean<'a>(periods: impl ExactSizeIterator<Item = &'a Loads> + Clone) -> Loads {
        let count = periods.len().max(1) as u64;
        let mean = |slot| periods.clone().map(|loads| loads.slot(slot)).sum::<u64>() / count;
        Loads::of(Slot::all().map(|slot| (slot, mean(slot) as u32)))
    }

    /// A slot weighs four times its load and once the mean slot's: one that is idle may wake up, so idle slots are spread too.
    pub(crate) fn weights(&self) -> Vec<u64> {
        let idle = (self.total() / u64::from(SLOTS)).max(1);
        self.0.iter().map(|load| 4 * u64::from(*load) + idle).collect()
    }
}

/// The servers that may be given slots: those that only keep copies if there is no other.
pub(crate) fn takers(map: &ClusterMap) -> impl Iterator<Item = NodeId> {
    let none_else = !map.nodes().any(Node::takes_slots);
    let may = move |node: &&Node| if none_else { node.may_serve() } else { node.takes_slots() };
    map.nodes().filter(may).map(|node| node.id)
}
