//! The cluster map as this mount has it, and a line to each data server that it needed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cluster::{
    map::{ClusterMap, NodeId},
    node::{Node, NodeState},
};
use net::{Address, Instance};
use parking_lot::Mutex;
use types::{Errno, Ino};
use wire::{
    handshake::{Roles, Wish},
    schema::Lane,
};

use crate::{
    line::{Common, Line},
    options::{OwnNode, Sockets},
};

pub(crate) struct Nodes {
    common: Common,
    sockets: Sockets,
    /// At each of them: a line with new addresses takes the place of the last one.
    instance: Instance,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    map: Option<ClusterMap>,
    /// By the map of that cluster and epoch.
    own: Option<(([u8; 16], u64), Own)>,
    lines: BTreeMap<u64, (Vec<String>, Arc<Line>)>,
}

/// The data server of this machine; 0: none, or several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Own {
    /// It gets what only this mount writes.
    pub takes: u64,
    /// It is asked without the network; also while it is drained.
    pub near: u64,
}

/// A metadata server.
pub(crate) struct Owner {
    pub node: u64,
    pub addresses: Vec<String>,
}

fn as_owner(node: &Node) -> Owner {
    Owner { node: node.id.0, addresses: addresses(node) }
}

impl Nodes {
    pub(crate) fn new(common: Common, sockets: Sockets, instance: Instance) -> Nodes {
        Nodes { common, sockets, instance, known: Mutex::default() }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.known.lock().map.as_ref().map_or(0, |map| map.epoch().0)
    }

    /// Takes a map, if it is newer than the one that is there. `EPROTO` is not in the table of errors: `EIO`.
    pub(crate) fn take(&self, bytes: &[u8]) -> Result<(), Errno> {
        let map = ClusterMap::decode(bytes).map_err(|error| {
            tracing::error!(%error, "the cluster map cannot be read");
            Errno::EIO
        })?;
        let mut known = self.known.lock();
        if known.map.as_ref().is_none_or(|old| old.epoch() < map.epoch() || old.cluster() != map.cluster()) {
            known.map = Some(map);
        }
        Ok(())
    }

    /// Of an inode, where there are several metadata servers.
    pub(crate) fn owner_of(&self, ino: u64) -> Option<Owner> {
        let known = self.known.lock();
        let map = known.map.as_ref()?;
        let owner = map.owner_of(Ino::from_raw(ino)?)?;
        map.node(owner.node).map(as_owner)
    }

    /// All that have slots.
    pub(crate) fn owners(&self) -> Vec<Owner> {
        let known = self.known.lock();
        let Some(map) = known.map.as_ref() else { return Vec::new() };
        let with_slots: BTreeSet<NodeId> = map.slots().filter_map(|(_, entry)| entry.owner).collect();
        with_slots.into_iter().filter_map(|node| map.node(node).map(as_owner)).collect()
    }

    /// Also those that have none.
    pub(crate) fn metadata_servers(&self) -> Vec<Owner> {
        let known = self.known.lock();
        let nodes = known.map.iter().flat_map(ClusterMap::nodes);
        nodes.filter(|node| node.roles.has(Roles::MDS)).map(as_owner).collect()
    }

    /// The node of this machine, as the map has it now.
    pub(crate) fn own(&self, wanted: OwnNode, host: &str) -> Own {
        let mut known = self.known.lock();
        let Some(map) = known.map.as_ref() else { return Own::default() };
        // Binding addresses is not done for each look.
        let seen = (map.cluster(), map.epoch().0);
        if let Some((of, own)) = known.own
            && of == seen
        {
            return own;
        }
        let own = own_node(map, wanted, host);
        known.own = Some((seen, own));
        own
    }

    /// The map knows others, and not all of these: a data server that was taken out, or that a new map has not heard of yet.
    pub(crate) fn lacks_any(&self, nodes: &[u64]) -> bool {
        let known = self.known.lock();
        let Some(map) = known.map.as_ref() else { return false };
        nodes.iter().any(|node| map.node(NodeId(*node)).is_none())
    }

    /// After a restart of the metadata server maps are counted anew.
    pub(crate) fn forget_map(&self) {
        let mut known = self.known.lock();
        (known.map, known.own) = (None, None);
    }

    /// `None`: the map has no such node.
    pub(crate) fn line(&self, node: u64) -> Option<Arc<Line>> {
        let mut known = self.known.lock();
        let there = known.map.as_ref().and_then(|map| map.node(NodeId(node))).map(addresses);
        let Some(mut addresses) = there else {
            // One that was there is still where it was.
            return known.lines.get(&node).map(|(_, line)| line.clone());
        };
        // Which way it is reached is a part of where it is.
        let near = known
            .own
            .filter(|(_, own)| own.near == node)
            .and_then(|_| self.sockets.of(self.common.credentials.me.cluster, node));
        addresses.extend(near.iter().map(|path| format!("unix:{}", path.display())));
        if let Some((last, line)) = known.lines.get(&node)
            && *last == addresses
        {
            return Some(line.clone());
        }
        let far = addresses.len() - usize::from(near.is_some());
        let parsed: Vec<Address> = addresses[..far].iter().filter_map(|text| text.parse().ok()).collect();
        let wish = Wish { lane: Lane::Data, node: Some(node) };
        let line = Arc::new(Line::near(self.instance, near.as_deref(), &parsed, wish, &self.common));
        known.lines.insert(node, (addresses, line.clone()));
        Some(line)
    }

    /// As [`Nodes::line`], of a node that may be none.
    pub(crate) fn line_there(&self, node: u64) -> Option<Arc<Line>> {
        if node == 0 { None } else { self.line(node) }
    }

    /// All of the map, with the lines that there are.
    pub(crate) fn all(&self) -> Vec<(Node, Option<Arc<Line>>)> {
        let known = self.known.lock();
        let nodes = known.map.iter().flat_map(ClusterMap::nodes).cloned();
        nodes
            .map(|node| {
                let line = known.lines.get(&node.id.0).map(|(_, line)| line.clone());
                (node, line)
            })
            .collect()
    }
}

fn addresses(node: &Node) -> Vec<String> {
    node.addresses.clone()
}

fn own_node(map: &ClusterMap, wanted: OwnNode, host: &str) -> Own {
    let is_here = |text: &String| text.parse().is_ok_and(|address: Address| address.is_here(host));
    let servers = || map.nodes().filter(|node| node.roles.has(Roles::DS));
    let ours: Vec<&Node> = match wanted {
        OwnNode::None => Vec::new(),
        OwnNode::Is(number) => servers().filter(|node| node.id.0 == number).collect(),
        OwnNode::Detect => servers().filter(|node| node.addresses.iter().any(is_here)).collect(),
    };
    let only = |fits: fn(&Node) -> bool| {
        let mut fitting = ours.iter().filter(|node| fits(node));
        match (fitting.next(), fitting.next()) {
            (Some(one), None) => one.id.0,
            (Some(_) | None, _) => 0,
        }
    };
    let takes = only(Node::takes_data);
    let serves = |node: &Node| matches!(node.state, NodeState::Up | NodeState::Draining);
    Own { takes, near: if takes == 0 { only(serves) } else { takes } }
}
