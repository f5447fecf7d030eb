//! What a mount of a cluster is made of.

use std::{path::PathBuf, time::Duration};

use net::{Address, Credentials, Tuning};

/// The node of this machine, whose data server gets what only this mount writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnNode {
    None,
    Is(u64),
    /// The one data server that is reached at an address of this machine; if there are several, none.
    Detect,
}

#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// The metadata server, where it may be reached.
    pub servers: Vec<Address>,
    pub credentials: Credentials,
    pub tuning: Tuning,
    /// Of this machine, for people.
    pub host: String,
    /// Where the mount answers commands; the attribute `user.onfs.control` says so.
    pub control_socket: Option<PathBuf>,
    pub own_node: OwnNode,
    /// Names, attributes and bytes are kept as long as the server lets us.
    pub leases: bool,
    /// Reads leave no time behind.
    pub no_atime: bool,
    /// A server that cannot be reached for so long: whoever waits for it gets an error.
    pub patience: Duration,
    /// The same of one of several metadata servers: so long another may take to go on in its place.
    pub succession: Duration,
    /// A request that a server has got, and does not answer.
    pub longest: Duration,
    /// The same of one that waits for devices.
    pub longest_sync: Duration,
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
            control_socket: None,
            own_node: OwnNode::None,
            leases: true,
            no_atime: false,
            patience: Duration::from_secs(30),
            succession: Duration::from_secs(90),
            longest: Duration::from_secs(120),
            longest_sync: Duration::from_secs(600),
            workers: 16,
            data_workers: 32,
        }
    }
}
