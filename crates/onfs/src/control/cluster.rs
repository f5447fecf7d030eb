//! What a mount of a cluster and a server of one report. Sizes are bytes, times are milliseconds.

use serde::{Deserialize, Serialize};

use types::TierId;

use super::report::{GuardReport, TierReport};

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
    /// The data server of this machine, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<OwnReport>,
    /// The metadata server, then the data servers.
    pub servers: Vec<NodeReport>,
    /// All of it, as the metadata server knows it; none while that does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<ClusterReport>,
    /// Of a guarded mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<GuardReport>,
    pub warnings: Vec<String>,
}

/// How a mount uses the data server of its machine.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OwnReport {
    pub node: u64,
    /// It gets what only this mount writes.
    pub takes: bool,
    /// `socket`, or `network`.
    pub way: String,
    /// That the kernel reads by itself now, and did so far.
    #[serde(default)]
    pub passthrough_files: u64,
    #[serde(default)]
    pub passthrough_files_ever: u64,
}

/// `onfs status --cluster`: what the metadata server knows of its cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterReport {
    pub metadata: MetadataServerReport,
    pub data: Vec<DataServerReport>,
    pub clients: Vec<ClientReport>,
    /// What the operator should look at.
    pub warnings: Vec<String>,
    /// Of which both copies of some part were lost: the first hundred.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_files: Vec<LostFileReport>,
}

/// A file of two copies, of which both of some part were lost.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LostFileReport {
    pub inode: u64,
    /// From the root of the file system; empty: not known.
    pub path: String,
    /// That read as an error until they are written over; the rest is there.
    pub lost_bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MetadataServerReport {
    pub node: u64,
    pub name: String,
    pub map_epoch: u64,
    pub uptime_ms: u64,
    /// For so long clients of an earlier life of the server may come back.
    pub grace_ms: u64,
    pub sessions: u64,
    /// Files that are open somewhere, or not settled yet.
    pub files_in_use: u64,
    pub inodes: u64,
}

/// A data server, as it reported.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DataServerReport {
    pub node: u64,
    pub name: String,
    pub addresses: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rack: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// `up`, `draining` or `away`.
    pub state: String,
    /// Since its last report.
    pub report_age_ms: u64,
    pub total_bytes: u64,
    /// Of them those that may be written to.
    pub available_bytes: u64,
    pub only_in_memory_bytes: u64,
    /// Thousandths of its tiers in which writers wait for room.
    pub busy_permille: u32,
    /// Are to leave it for others.
    #[serde(default)]
    pub lacking_bytes: u64,
    /// Requests that wait or are carried out.
    pub requests_waiting: u64,
    pub tiers: Vec<ServerTierReport>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServerTierReport {
    pub name: TierId,
    pub limit_bytes: u64,
    pub used_bytes: u64,
    pub available_bytes: u64,
    pub writers_wait: bool,
    /// Its device is slow or fails.
    #[serde(default)]
    pub slow: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClientReport {
    /// What it calls itself on its connections, in hexadecimal digits.
    pub client: String,
    pub host: String,
    pub since_ms: u64,
    /// It asked nothing for so long.
    pub silent_ms: u64,
    pub open_files: u64,
    /// Of them those that it may write.
    pub open_for_writing: u64,
    pub known_inodes: u64,
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
    /// `up`, `down`, `joining`, `draining`, `removed`; of a mount `away`: it does not answer.
    pub state: String,
    /// Requests of this mount that it has not answered.
    #[serde(default)]
    pub in_flight: u64,
    /// Of one that is being drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainReport>,
    /// Of one that is full, or that sent something to others since the metadata server was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure: Option<PressureReport>,
}

/// What a data server sends to others for want of room, or of a tier that outlives its machine.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PressureReport {
    /// Now.
    pub full: bool,
    pub files_sent: u64,
    pub bytes_sent: u64,
    /// Why the last one that was tried stays.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// How far a data server is taken out.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DrainReport {
    /// It was looked at: the numbers below are known.
    pub known: bool,
    /// Files with a stripe there.
    pub files_left: u64,
    /// Of them, about.
    pub bytes_left: u64,
    pub files_moved: u64,
    pub bytes_moved: u64,
    /// Of those left: they were tried, and could not be moved yet.
    pub files_failed: u64,
    /// Why the last of them could not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Nothing is left.
    pub drained: bool,
}

/// A metadata server, of one or several.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MdsReport {
    pub node: u64,
    pub name: String,
    pub addresses: Vec<String>,
    /// Of 4096; 0 where one server has all of them.
    pub slots: u64,
    /// It makes the cluster map, and has the root directory.
    pub on_duty: bool,
    /// As it says itself; `None`: it did not, or there is none where one server has all.
    #[serde(default)]
    pub standby: Option<StandbyReport>,
    /// It keeps copies for others, and is given no slots (`metadata.standby_only`).
    #[serde(default)]
    pub standby_only: bool,
    /// Of several, it did not answer when it was asked for its standby.
    #[serde(default)]
    pub silent: bool,
}

/// Of a metadata server, about who goes on in its place when it is dead.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StandbyReport {
    /// 0: nobody.
    pub node: u64,
    /// It has all that was answered: it may go on.
    pub complete: bool,
    /// Since that was last otherwise.
    pub since_ms: u64,
    /// Records that are answered when it has them.
    pub waiting: u64,
    /// By the server's settings.
    pub off: bool,
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
