//! What a mount of a cluster and a server of one report. Sizes are bytes, times are milliseconds.

use serde::{Deserialize, Serialize};

use super::report::TierReport;

/// `onfs status` of a mount of a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterMountReport {
    pub mountpoint: String,
    pub state_dir: String,
    /// As it was mounted.
    pub source: String,
    /// The cluster's identity.
    pub cluster: String,
    pub version: String,
    pub pid: u32,
    pub uptime_ms: u64,
    pub session: String,
    /// Sessions that were lost and made anew.
    pub sessions_lost: u64,
    pub map_epoch: u64,
    pub open_files: u64,
    /// Inodes that the kernel refers to.
    pub known_inodes: u64,
    /// The metadata server, then the data servers.
    pub servers: Vec<NodeReport>,
    pub warnings: Vec<String>,
}

/// A node, as who reports it knows it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeReport {
    /// 0: not known.
    pub node: u64,
    pub name: String,
    pub addresses: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rack: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// `up`, `down`, `joining`, `draining`; of a mount `away`: it does not answer.
    pub state: String,
    /// Requests of this mount that it has not answered.
    #[serde(default)]
    pub in_flight: u64,
}

/// `onfs status` of a server.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ServerReport {
    pub node: u64,
    pub name: String,
    pub roles: Vec<String>,
    pub listen: String,
    pub address: String,
    pub cluster: String,
    pub state_dir: String,
    pub version: String,
    pub pid: u32,
    pub uptime_ms: u64,
    /// Of clients and of other servers.
    pub connections: u64,
    pub tiers: Vec<TierReport>,
    /// Data that no persistent tier holds.
    pub dirty_bytes: u64,
    pub dirty_files: u64,
    pub inodes: u64,
    /// Clients of a metadata server.
    pub sessions: u64,
    /// Objects that are open at a data server.
    pub objects_in_use: u64,
    pub warnings: Vec<String>,
}
