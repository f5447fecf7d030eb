//! The rules that a map can break.

use thiserror::Error;

use crate::id::NodeId;

/// Nodes of a map: with all names, addresses and labels as long as they may be, one still fits in a frame's body (4 MiB).
pub const NODES_MAX: usize = 4096;

/// Why this is no map.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MapError {
    #[error("a node has the number 0")]
    NodeZero,
    #[error("{node} is there twice")]
    Twice { node: NodeId },
    #[error("two nodes are called {name:?}")]
    Name { name: String },
    #[error("{node}: {text:?} is empty, too long or has control characters")]
    Text { node: NodeId, text: String },
    #[error("{node} has too many addresses or labels")]
    TooMany { node: NodeId },
    #[error("more than {NODES_MAX} nodes")]
    TooManyNodes,
    #[error("{node} has joined in a later epoch")]
    JoinedLater { node: NodeId },
    #[error("slot {slot} belongs to {owner}, which cannot own it")]
    Owner { slot: u16, owner: NodeId },
    #[error("slot {slot} has an owner and no epoch")]
    OwnedWithoutEpoch { slot: u16 },
    #[error("the slots are not 0 to 4095, each once")]
    Slots,
    #[error("{by} cannot be the standby of {of}")]
    Standby { of: NodeId, by: NodeId },
    #[error("a field has the value {value}, which means nothing here")]
    Field { value: i64 },
}
