//! What a mount of a cluster is made of.

use std::{path::PathBuf, sync::Arc, time::Duration};

use handover::Estate;
use net::{Address, Credentials, Tuning};

/// The node of this machine, whose data server gets what only this mount writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnNode {
    None,
    Is(u64),
    /// The one data server that is reached at an address of this machine; if there are several, none.
    Detect,
}

/// At which Unix socket a data server listens for clients on its machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sockets {
    /// It is asked over the network.
    Off,
    At(PathBuf),
    /// In this directory, by the cluster and its number.
    In(PathBuf),
}

impl Sockets {
    /// Clients and servers find each other by it.
    pub fn of(&self, cluster: [u8; 16], node: u64) -> Option<PathBuf> {
        match self {
            Sockets::Off => None,
            Sockets::At(path) => Some(path.clone()),
            Sockets::In(dir) => Some(dir.join(format!("{:032x}-{node}.sock", u128::from_be_bytes(cluster)))),
        }
    }
}

#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// The metadata server, where it may be reached.
    pub servers: Vec<Address>,
    pub credentials: Credentials,
    pub tuning: Tuning,
    /// Of this machine, for people.
    pub host: String,
    /// The scheduler's, of which this mount is; empty: none.
    pub job: String,
    /// Where the mount answers commands; the attribute `user.onfs.control` says so.
    pub control_socket: Option<PathBuf>,
    pub own_node: OwnNode,
    pub sockets: Sockets,
    /// The kernel may read files by itself that the data server of this machine lends.
    pub passthrough: bool,
    /// Names, attributes and bytes are kept as long as the server lets us.
    pub leases: bool,
    /// Bytes of files that are kept at the most; 0: none.
    pub cache: u64,
    /// Bytes that are asked for ahead of large reads at the most; 0: none.
    pub read_ahead: u64,
    /// Bytes of small writes that are kept back at the most; 0: none.
    pub write_back: u64,
    /// Reads leave no time behind.
    pub no_atime: bool,
    /// Inodes that the session refers to at the most, but for open ones: of more the kernel is asked to forget some.
    pub known: usize,
    /// A server that cannot be reached for so long: whoever waits for it gets an error.
    pub patience: Duration,
    /// The same of one of several metadata servers: so long another may take to go on in its place.
    pub succession: Duration,
    /// A request that a server has got, and does not answer.
    pub longest: Duration,
    /// The same of one that waits for devices.
    pub longest_sync: Duration,
    /// Of a guarded mount: what the process before left, and the next one gets. Without `passthrough` and `write_back`.
    pub estate: Option<Arc<Estate>>,
    /// It goes on with what another process served.
    pub resumes: bool,
    /// Threads for what waits for the metadata server, and for what waits for data servers: a data server that is away keeps the
    /// second ones busy at the most.
    pub workers: usize,
    pub data_workers: usize,
}

impl RemoteOptions {
    pub fn new(servers: Vec<Address>, credentials: Credentials) -> RemoteOptions {
        RemoteOptions {
            servers,
            credentials,
            tuning: Tuning::default(),
            host: String::new(),
            job: String::new(),
            control_socket: None,
            own_node: OwnNode::None,
            sockets: Sockets::Off,
            passthrough: true,
            leases: true,
            cache: 256 << 20,
            read_ahead: 64 << 20,
            write_back: 0,
            no_atime: false,
            known: 1 << 20,
            patience: Duration::from_secs(30),
            succession: Duration::from_secs(90),
            longest: Duration::from_secs(120),
            longest_sync: Duration::from_secs(600),
            estate: None,
            resumes: false,
            workers: 16,
            data_workers: 32,
        }
    }
}
