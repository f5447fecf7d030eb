//! The records inside the envelopes. A field has its tag here and nowhere else; golden bytes in the tests say that it stays.
//!
//! A tag is never used again for something else; a reader passes over fields that it does not know. Slots are runs of
//! neighbours with the same owner and epoch; owner 0 is nobody.

use std::collections::BTreeMap;

use prost::{Enumeration, Message};
use types::{SLOTS, Slot};
use wire::handshake::Roles;

use crate::{
    difference::Difference,
    map::{ClusterMap, Epoch, MapError, SlotEntry, SlotEpoch},
    node::{Node, NodeId, NodeState},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum StateRecord {
    Joining = 1,
    Up = 2,
    Draining = 3,
    Down = 4,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct LabelRecord {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeRecord {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, repeated, tag = "3")]
    pub addresses: Vec<String>,
    /// Bits, see [`Roles`].
    #[prost(uint32, tag = "4")]
    pub roles: u32,
    #[prost(message, repeated, tag = "5")]
    pub labels: Vec<LabelRecord>,
    #[prost(enumeration = "StateRecord", tag = "6")]
    pub state: i32,
    #[prost(uint64, tag = "7")]
    pub joined: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SlotRun {
    #[prost(uint32, tag = "1")]
    pub first: u32,
    #[prost(uint32, tag = "2")]
    pub count: u32,
    #[prost(uint64, tag = "3")]
    pub owner: u64,
    #[prost(uint64, tag = "4")]
    pub epoch: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct StandbyRecord {
    #[prost(uint64, tag = "1")]
    pub of: u64,
    /// 0 in a difference: none any more.
    #[prost(uint64, tag = "2")]
    pub by: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct MapRecord {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub cluster: Vec<u8>,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    #[prost(message, repeated, tag = "3")]
    pub nodes: Vec<NodeRecord>,
    /// All slots, in order.
    #[prost(message, repeated, tag = "4")]
    pub slots: Vec<SlotRun>,
    #[prost(message, repeated, tag = "5")]
    pub standbys: Vec<StandbyRecord>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct DifferenceRecord {
    #[prost(bytes = "vec", tag = "1")]
    pub cluster: Vec<u8>,
    #[prost(uint64, tag = "2")]
    pub from: u64,
    #[prost(uint64, tag = "3")]
    pub to: u64,
    /// Those that are not as they were, whole.
    #[prost(message, repeated, tag = "4")]
    pub nodes: Vec<NodeRecord>,
    #[prost(uint64, repeated, tag = "5")]
    pub removed: Vec<u64>,
    #[prost(message, repeated, tag = "6")]
    pub slots: Vec<SlotRun>,
    #[prost(message, repeated, tag = "7")]
    pub standbys: Vec<StandbyRecord>,
}

impl MapRecord {
    pub(crate) fn of(map: &ClusterMap) -> MapRecord {
        MapRecord {
            cluster: map.cluster.to_vec(),
            epoch: map.epoch.0,
            nodes: map.nodes.values().map(node_record).collect(),
            slots: runs(map.slots()),
            standbys: map.standbys.iter().map(|(of, by)| StandbyRecord { of: of.0, by: by.0 }).collect(),
        }
    }

    pub(crate) fn into_map(self) -> Result<ClusterMap, MapError> {
        let entries = entries(&self.slots)?;
        if entries.len() != SLOTS as usize {
            return Err(MapError::Slots);
        }
        let mut standbys = BTreeMap::new();
        for record in &self.standbys {
            let (of, by) = (NodeId(record.of), NodeId(record.by));
            if standbys.insert(of, by).is_some() {
                return Err(MapError::Twice { node: of });
            }
        }
        let mut nodes = BTreeMap::new();
        for node in self.nodes.into_iter().map(node) {
            let node = node?;
            let id = node.id;
            if nodes.insert(id, node).is_some() {
                return Err(MapError::Twice { node: id });
            }
        }
        let map = ClusterMap {
            cluster: cluster(&self.cluster)?,
            epoch: Epoch(self.epoch),
            nodes,
            slots: entries.into_values().collect(),
            standbys,
        };
        map.check()?;
        Ok(map)
    }
}

impl DifferenceRecord {
    pub(crate) fn of(difference: &Difference) -> DifferenceRecord {
        let standbys = difference.standbys.iter();
        DifferenceRecord {
            cluster: difference.cluster.to_vec(),
            from: difference.from.0,
            to: difference.to.0,
            nodes: difference.nodes.iter().map(node_record).collect(),
            removed: difference.removed.iter().map(|id| id.0).collect(),
            slots: runs(difference.slots.iter().map(|(slot, entry)| (*slot, *entry))),
            standbys: standbys
                .map(|(of, by)| StandbyRecord { of: of.0, by: by.map_or(0, |by| by.0) })
                .collect(),
        }
    }

    pub(crate) fn into_difference(self) -> Result<Difference, MapError> {
        let standbys = self.standbys.iter();
        Ok(Difference {
            cluster: cluster(&self.cluster)?,
            from: Epoch(self.from),
            to: Epoch(self.to),
            nodes: self.nodes.into_iter().map(node).collect::<Result<_, _>>()?,
            removed: self.removed.into_iter().map(NodeId).collect(),
            slots: entries(&self.slots)?,
            standbys: standbys.map(|record| (NodeId(record.of), some_node(record.by))).collect(),
        })
    }
}

fn cluster(bytes: &[u8]) -> Result<[u8; 16], MapError> {
    bytes.try_into().map_err(|_| MapError::Field { value: bytes.len() as i64 })
}

fn some_node(id: u64) -> Option<NodeId> {
    (id != 0).then_some(NodeId(id))
}

fn node_record(node: &Node) -> NodeRecord {
    let state = match node.state {
        NodeState::Joining => StateRecord::Joining,
        NodeState::Up => StateRecord::Up,
        NodeState::Draining => StateRecord::Draining,
        NodeState::Down => StateRecord::Down,
    };
    let labels = node.labels.iter();
    NodeRecord {
        id: node.id.0,
        name: node.name.clone(),
        addresses: node.addresses.clone(),
        roles: node.roles.0,
        labels: labels.map(|(key, value)| LabelRecord { key: key.clone(), value: value.clone() }).collect(),
        state: state.into(),
        joined: node.joined.0,
    }
}

fn node(record: NodeRecord) -> Result<Node, MapError> {
    let value = i64::from(record.state);
    let state = match StateRecord::try_from(record.state).map_err(|_| MapError::Field { value })? {
        StateRecord::Joining => NodeState::Joining,
        StateRecord::Up => NodeState::Up,
        StateRecord::Draining => NodeState::Draining,
        StateRecord::Down => NodeState::Down,
    };
    Ok(Node {
        id: NodeId(record.id),
        name: record.name,
        addresses: record.addresses,
        roles: Roles(record.roles),
        labels: record.labels.into_iter().map(|label| (label.key, label.value)).collect(),
        state,
        joined: Epoch(record.joined),
    })
}

fn runs(entries: impl Iterator<Item = (Slot, SlotEntry)>) -> Vec<SlotRun> {
    let mut runs: Vec<SlotRun> = Vec::new();
    for (slot, entry) in entries {
        let (slot, owner) = (u32::from(slot.get()), entry.owner.map_or(0, |owner| owner.0));
        match runs.last_mut() {
            Some(run)
                if run.first + run.count == slot && run.owner == owner && run.epoch == entry.epoch.0 =>
            {
                run.count += 1;
            }
            Some(_) | None => runs.push(SlotRun { first: slot, count: 1, owner, epoch: entry.epoch.0 }),
        }
    }
    runs
}

/// The runs must be in order and not touch each other's slots, so there are never more than [`SLOTS`].
fn entries(runs: &[SlotRun]) -> Result<BTreeMap<Slot, SlotEntry>, MapError> {
    let mut entries = BTreeMap::new();
    let mut free = 0;
    for run in runs {
        let end = run.first.checked_add(run.count).filter(|end| *end <= SLOTS && run.first >= free);
        free = end.ok_or(MapError::Slots)?;
        let entry = SlotEntry { owner: some_node(run.owner), epoch: SlotEpoch(run.epoch) };
        let slots = (run.first..free).filter_map(|n| Slot::new(n as u16));
        entries.extend(slots.map(|slot| (slot, entry)));
    }
    Ok(entries)
}
