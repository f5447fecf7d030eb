//! What a mount of a cluster says of itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use cluster::node::NodeState;
use prost::Message;
use proto::{
    metadata,
    meter::Meter,
    watch::{ClusterNow, ClusterStatus},
};
use types::{Errno, Ino};
use wire::handshake::Roles;

use crate::{
    Remote,
    ahead::AheadCounts,
    back::BackCounts,
    homes::Home,
    kept::KeptCounts,
    line::{Line, Stop},
    pages::PageCounts,
};

/// For what people wait for.
const LOOK: Duration = Duration::from_secs(5);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteStatus {
    pub session: String,
    /// Sessions that were lost.
    pub sessions_lost: u64,
    pub map_epoch: u64,
    pub open_files: usize,
    pub references: usize,
    /// Of programs, that the server has and cannot grant yet.
    pub waiting_locks: usize,
    pub kept: KeptCounts,
    /// The data server of this machine, if there is one.
    pub own: Option<OwnStatus>,
    pub cache: PageCounts,
    pub ahead: AheadCounts,
    pub back: BackCounts,
    /// Files of which the kernel has pages, and how often some were dropped.
    pub mapped: (u64, u64),
    /// Several, or the only one.
    pub metadata: Vec<ServerStatus>,
    pub data: Vec<ServerStatus>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerStatus {
    /// 0: not known.
    pub node: u64,
    pub name: String,
    pub addresses: Vec<String>,
    /// As the cluster map has it.
    pub up: bool,
    /// Of several metadata servers the one that makes the map.
    pub on_duty: bool,
    /// Somebody may need it: of several metadata servers those that have slots.
    pub serves: bool,
    pub in_flight: u64,
    /// It did not answer this mount for so long, and why.
    pub away: Option<(Duration, String)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnStatus {
    pub node: u64,
    /// It gets what only this mount writes: it is not drained.
    pub takes: bool,
    /// It is asked over its Unix socket; else over the network.
    pub near: bool,
    /// Files that the kernel reads by itself now, and that it did so far.
    pub files: usize,
    pub files_ever: u64,
}

impl Remote {
    fn own_status(&self) -> Option<OwnStatus> {
        let own = self.own();
        let line = self.nodes.line_there(own.near)?;
        let (files, files_ever) = self.through.files();
        let near = line.near_way().is_some();
        Some(OwnStatus { node: own.near, takes: own.takes != 0, near, files, files_ever })
    }

    pub fn status(&self) -> RemoteStatus {
        let all = self.nodes.all();
        let of_line = |line: &Line| (line.in_flight(), line.away());
        let data = all.into_iter().filter(|(node, _)| node.roles.has(Roles::DS)).map(|(node, line)| {
            let (in_flight, away) = line.as_deref().map_or((0, None), of_line);
            ServerStatus {
                node: node.id.0,
                name: node.name.clone(),
                addresses: node.addresses.clone(),
                up: matches!(node.state, NodeState::Up | NodeState::Draining),
                on_duty: false,
                serves: true,
                in_flight,
                away,
            }
        });
        RemoteStatus {
            session: self.session().id.to_string(),
            sessions_lost: self.recoveries.load(Ordering::Relaxed),
            map_epoch: self.nodes.epoch(),
            open_files: self.openings.len(),
            references: self.references.len(),
            waiting_locks: self.locks.lock().parked_len(),
            kept: self.kept(),
            own: self.own_status(),
            cache: self.caching.counts(),
            ahead: self.caching.counts_ahead(),
            back: self.backlog.counts(),
            mapped: self.dropping.counts(),
            metadata: self.metadata_servers(),
            data: data.collect(),
        }
    }

    /// All that the map knows, or the only one.
    fn metadata_servers(&self) -> Vec<ServerStatus> {
        if !self.has_homes() {
            let home = self.duty();
            let (addresses, away) = (home.addresses().to_vec(), home.away());
            let (up, in_flight) = (away.is_none(), home.metadata.in_flight());
            let name = "metadata".to_owned();
            let (on_duty, serves) = (false, true);
            return vec![ServerStatus { node: 0, name, addresses, up, on_duty, serves, in_flight, away }];
        }
        let on_duty = self.nodes.owner_of(Ino::ROOT.get()).map_or(0, |owner| owner.node);
        let known: BTreeMap<u64, Arc<Home>> =
            self.homes.all().into_iter().map(|home| (home.node, home)).collect();
        let with_slots: BTreeSet<u64> = self.nodes.owners().into_iter().map(|owner| owner.node).collect();
        let all = self.nodes.all().into_iter().map(|(node, _)| node);
        let servers = all.filter(|node| node.roles.has(Roles::MDS)).map(|node| {
            let home = known.get(&node.id.0);
            ServerStatus {
                node: node.id.0,
                up: node.state == NodeState::Up,
                on_duty: node.id.0 == on_duty,
                serves: with_slots.contains(&node.id.0),
                in_flight: home.map_or(0, |home| home.metadata.in_flight()),
                away: home.and_then(|home| home.away()),
                name: node.name,
                addresses: node.addresses,
            }
        });
        servers.collect()
    }

    /// What this mount asked of servers.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// What the metadata server knows of the cluster, or why it does not say.
    pub fn cluster_now(&self) -> Result<ClusterNow, String> {
        let (_, body) = self.ask_control(&ClusterStatus {}, LOOK).map_err(|stop| match stop {
            Stop::Fault { fault, .. } => fault.detail,
            Stop::Silent { why, .. } => why,
        })?;
        ClusterNow::decode(&body[..]).map_err(|error| error.to_string())
    }

    /// (Total, free) bytes and inodes.
    pub fn space(&self) -> Result<(u64, u64, u64), Errno> {
        let space = self.look(|head| metadata::StatFs { head: Some(head) })?;
        Ok((space.total, space.free, space.inodes))
    }
}
