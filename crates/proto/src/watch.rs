//! Messages for those who watch a cluster: what a server has counted, and what the metadata server knows.
//!
//! Both need no session. The answers are in the bodies, since a list of all clients is too long for a meta.

use prost::Message;

use crate::{Nothing, control::NodeReport};

/// How long such a body may be: some hundred bytes for each of the sessions and nodes that a server takes.
pub const WATCH_BYTES_MAX: u32 = 4 << 20;

/// What has this process counted since it was started? The body is a [`Counted`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Counters {}

/// Requests that have ended, added up.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Load {
    #[prost(uint64, tag = "1")]
    pub requests: u64,
    /// That a name is not there is none.
    #[prost(uint64, tag = "2")]
    pub errors: u64,
    /// Bytes.
    #[prost(uint64, tag = "3")]
    pub received: u64,
    #[prost(uint64, tag = "4")]
    pub sent: u64,
    /// Of all requests together, from when each came to its answer.
    #[prost(uint64, tag = "5")]
    pub micros: u64,
}

impl Load {
    pub fn and(&self, other: &Load) -> Load {
        Load {
            requests: self.requests.saturating_add(other.requests),
            errors: self.errors.saturating_add(other.errors),
            received: self.received.saturating_add(other.received),
            sent: self.sent.saturating_add(other.sent),
            micros: self.micros.saturating_add(other.micros),
        }
    }

    /// What came since `earlier`; nothing of counters that were begun anew meanwhile.
    pub fn since(&self, earlier: &Load) -> Load {
        Load {
            requests: self.requests.saturating_sub(earlier.requests),
            errors: self.errors.saturating_sub(earlier.errors),
            received: self.received.saturating_sub(earlier.received),
            sent: self.sent.saturating_sub(earlier.sent),
            micros: self.micros.saturating_sub(earlier.micros),
        }
    }
}

/// The load of one client, as one server counts it.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ClientLoad {
    /// What the client calls itself on its connections; of a server its node. 0: clients that are not told apart.
    #[prost(fixed64, tag = "1")]
    pub client: u64,
    #[prost(message, required, tag = "2")]
    pub load: Load,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Counted {
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// A random number of each start: counts of different ones cannot be compared.
    #[prost(fixed64, tag = "2")]
    pub incarnation: u64,
    /// When it was counted, on a clock of the process's own.
    #[prost(uint64, tag = "3")]
    pub at_us: u64,
    /// Requests for metadata, with those of the control lane.
    #[prost(message, optional, tag = "4")]
    pub metadata: Option<Load>,
    /// Requests for data.
    #[prost(message, optional, tag = "5")]
    pub data: Option<Load>,
    /// Requests that wait or are carried out.
    #[prost(uint64, tag = "6")]
    pub waiting: u64,
    #[prost(message, repeated, tag = "7")]
    pub clients: Vec<ClientLoad>,
}

/// What does the metadata server know of the cluster? The body is a [`ClusterNow`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ClusterStatus {}

/// A client's session.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClientNow {
    /// As in [`ClientLoad`].
    #[prost(fixed64, tag = "1")]
    pub client: u64,
    #[prost(string, tag = "2")]
    pub host: String,
    #[prost(uint64, tag = "3")]
    pub since_ms: u64,
    /// It asked nothing for so long.
    #[prost(uint64, tag = "4")]
    pub silent_ms: u64,
    #[prost(uint64, tag = "5")]
    pub openings: u64,
    /// Of the openings.
    #[prost(uint64, tag = "6")]
    pub writing: u64,
    /// Inodes that it refers to.
    #[prost(uint64, tag = "7")]
    pub references: u64,
}

/// A data server, as it reported.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeNow {
    #[prost(message, required, tag = "1")]
    pub report: NodeReport,
    #[prost(uint64, tag = "2")]
    pub heard_ms: u64,
    /// It gets no new files.
    #[prost(bool, tag = "3")]
    pub away: bool,
    /// Nor any by this: what it has goes elsewhere.
    #[prost(bool, tag = "4")]
    pub draining: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClusterNow {
    /// Of the map.
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    /// The metadata server's own node and name.
    #[prost(uint64, tag = "2")]
    pub node: u64,
    #[prost(string, tag = "3")]
    pub name: String,
    /// Since it was started.
    #[prost(uint64, tag = "4")]
    pub up_ms: u64,
    /// For so long sessions of an earlier life may still come back.
    #[prost(uint64, tag = "5")]
    pub grace_ms: u64,
    /// Files that are open or not settled.
    #[prost(uint64, tag = "6")]
    pub files: u64,
    #[prost(uint64, tag = "7")]
    pub inodes: u64,
    /// How often data servers are to report.
    #[prost(uint64, tag = "8")]
    pub report_ms: u64,
    #[prost(message, repeated, tag = "9")]
    pub clients: Vec<ClientNow>,
    #[prost(message, repeated, tag = "10")]
    pub nodes: Vec<NodeNow>,
    /// Empty, or why the metadata take no changes.
    #[prost(string, tag = "11")]
    pub trouble: String,
    /// Files that are to have two copies of all, and lack one, or have one where it is not to stay.
    #[prost(uint64, tag = "70")]
    pub copies_lacking: u64,
    /// Views of objects that were made since it was started,
    #[prost(uint64, tag = "71")]
    pub views_changed: u64,
    /// and of them those after both copies were lost.
    #[prost(uint64, tag = "72")]
    pub copies_lost: u64,
    /// Files of which both copies of some part were lost, at whatever time: at most [`LOST_MAX`] of them.
    #[prost(message, repeated, tag = "73")]
    pub lost: Vec<LostFile>,
    /// And how many there are.
    #[prost(uint64, tag = "74")]
    pub lost_files: u64,
}

/// Files that are listed.
pub const LOST_MAX: usize = 100;

/// What a tier had that outlived the data servers is there; the rest reads as an error until it is written over.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LostFile {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// From the root; empty: not known.
    #[prost(string, tag = "2")]
    pub path: String,
    /// Bytes that read as an error, as far as their data servers have said so. A part whose end was lost, too, counts as 4 MiB.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
    /// Parts of it, each on two data servers, of which both copies were lost.
    #[prost(uint64, tag = "4")]
    pub parts: u64,
}

requests_of_anybody! {
    Counters -> Nothing, |_it| Ok(());
    ClusterStatus -> Nothing, |_it| Ok(());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_since_another_is_what_came_between() {
        let early = Load { requests: 1, errors: 0, received: 10, sent: 5, micros: 7 };
        let more = Load { requests: 2, errors: 1, received: 1, sent: 1, micros: 3 };
        assert_eq!(early.and(&more).since(&early), more);
        assert_eq!(early.since(&early.and(&more)), Load::default());
    }
}
