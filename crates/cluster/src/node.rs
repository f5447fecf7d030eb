//! A node as the cluster map has it.

use std::collections::BTreeMap;

use wire::handshake::Roles;

use crate::{id::Epoch, rule::MapError};

pub use crate::id::NodeId;

/// Bytes of a name.
pub const NAME_MAX: usize = 64;
pub const ADDRESSES_MAX: usize = 4;
/// Bytes of an address.
pub const ADDRESS_MAX: usize = 64;
pub const LABELS_MAX: usize = 8;
/// Bytes of a label's key, and of its value.
pub const LABEL_MAX: usize = 24;
/// The label that says what fails together.
pub const RACK: &str = "rack";

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NodeState {
    /// Known, and gets nothing yet.
    Joining,
    Up,
    /// Serves what it has, and gets nothing more.
    Draining,
    /// Given up. It comes back only by joining anew.
    Down,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub id: NodeId,
    /// For people; two nodes never share one.
    pub name: String,
    /// `HOST:PORT`, in the order in which they are tried.
    pub addresses: Vec<String>,
    pub roles: Roles,
    /// Such as its rack.
    pub labels: BTreeMap<String, String>,
    pub state: NodeState,
    /// The epoch in which it joined: a node that comes back is another one.
    pub joined: Epoch,
}

impl Node {
    pub fn rack(&self) -> Option<&str> {
        self.labels.get(RACK).map(String::as_str)
    }

    /// May it be given a slot?
    pub fn takes_slots(&self) -> bool {
        self.may_serve() && !self.is_standby_only()
    }

    /// Is it a metadata server that is up? It may keep another's copy, go on for it, and carry out operations in what it took.
    pub fn may_serve(&self) -> bool {
        self.roles.has(Roles::MDS) && self.state == NodeState::Up
    }

    /// It keeps copies, and gets slots only when it goes on for a dead server, or no other one is up.
    pub fn is_standby_only(&self) -> bool {
        self.roles.has(Roles::STANDBY_ONLY)
    }

    /// May it be given data?
    pub fn takes_data(&self) -> bool {
        self.roles.has(Roles::DS) && self.state == NodeState::Up
    }

    pub(crate) fn check(&self) -> Result<(), MapError> {
        let texts = self
            .labels
            .iter()
            .flat_map(|(key, value)| [(key, LABEL_MAX), (value, LABEL_MAX)])
            .chain(self.addresses.iter().map(|address| (address, ADDRESS_MAX)))
            .chain([(&self.name, NAME_MAX)]);
        for (text, most) in texts {
            if text.is_empty() || text.len() > most || text.chars().any(char::is_control) {
                return Err(MapError::Text { node: self.id, text: text.chars().take(most).collect() });
            }
        }
        if self.id.0 == 0 {
            return Err(MapError::NodeZero);
        }
        if self.addresses.len() > ADDRESSES_MAX || self.labels.len() > LABELS_MAX {
            return Err(MapError::TooMany { node: self.id });
        }
        Ok(())
    }
}
