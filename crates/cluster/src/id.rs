//! Numbers: of nodes, of maps, of the owners of slots.

use std::fmt;

/// A node's number. It is given once, and 0 is nobody's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Of the map. One more with each change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u64);

/// Of a slot's owner, as in the database's row. 0: never owned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SlotEpoch(pub u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotEntry {
    pub owner: Option<NodeId>,
    pub epoch: SlotEpoch,
}
