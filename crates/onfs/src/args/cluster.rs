//! Arguments of the commands about clusters: cluster, server, node, top, demo.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, value_parser};
use types::{ByteSize, Span};

use super::{ConfigArgs, Output};
use crate::demo::{FEW_MAX, NODES_MAX};

/// Between two looks: servers have other things to do.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// Make a cluster key and a first configuration file, and say what to do with them
    Init {
        /// A directory for both; nothing in it is overwritten
        dir: PathBuf,
        /// Make a CA, too, and a certificate for this host: connections of the cluster are TLS
        #[arg(long)]
        tls: bool,
    },
    /// Make a certificate and its key for a node or a client, signed by the cluster's CA
    Certificate(CertificateArgs),
}

#[derive(Args, Debug)]
pub struct CertificateArgs {
    /// Where ca.crt and ca.key are; the new files are put there
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// For a client: it can mount the cluster, and be no server
    #[arg(long)]
    pub client: bool,
    /// How long it holds
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = value_parser!(u32).range(1..=3650))]
    pub days: u32,
    /// In place of those that are there; a server takes new files without a restart
    #[arg(long)]
    pub renew: bool,
    /// Names and addresses by which others reach it; the files are named after the first
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// The files of a node or client of a cluster with TLS.
#[derive(Args, Debug, Clone, Default)]
pub struct TlsArgs {
    /// File with the certificates of the cluster's CA: its connections are TLS
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// File with the certificate of this node or client
    #[arg(long, value_name = "FILE")]
    pub tls_certificate: Option<PathBuf>,
    /// File with its key
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct ServerArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Stay in the foreground and log to standard error
    #[arg(long, short)]
    pub foreground: bool,
    /// This process is the daemon that `server` started
    #[arg(long, hide = true)]
    pub daemon_child: bool,
}

#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// List the nodes, their roles and their states, as the metadata server knows them
    List {
        #[command(flatten)]
        config: ConfigArgs,
        /// The cluster, HOST[:PORT][,HOST[:PORT]...]:/ [default: that of the configuration]
        cluster: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Move everything that a data server holds to the others, while files are in use; it gets nothing new
    Drain {
        #[command(flatten)]
        node: WhichNode,
        /// Return when it holds nothing any more
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Take a data server back that is being drained, or was removed
    Undrain {
        #[command(flatten)]
        node: WhichNode,
    },
    /// Take a data server out of the cluster that was drained and holds nothing, or a metadata server that is dead and has nothing
    Remove {
        #[command(flatten)]
        node: WhichNode,
    },
}

#[derive(Args, Debug)]
pub struct WhichNode {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Its number or its name
    pub node: String,
    /// The cluster, HOST[:PORT][,HOST[:PORT]...]:/ [default: that of the configuration]
    pub cluster: Option<String>,
}

/// Which cluster, for commands that look at it from outside.
#[derive(Args, Debug, Clone, Default)]
pub struct WhichCluster {
    /// Configuration file with the cluster, or "none" [default: $ONFS_CONFIG, else /etc/onfs/onfs.toml or ~/.config/onfs/onfs.toml if there]
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// File with the key of the cluster
    #[arg(long, value_name = "FILE")]
    pub cluster_key: Option<PathBuf>,
    #[command(flatten)]
    pub tls: TlsArgs,
}

impl WhichCluster {
    pub fn config(&self) -> ConfigArgs {
        let WhichCluster { config, cluster_key, tls } = self.clone();
        ConfigArgs { config, cluster_key, tls, ..ConfigArgs::default() }
    }

    /// Anything is said of it.
    pub fn is_given(&self) -> bool {
        let TlsArgs { tls_ca, tls_certificate, tls_key } = &self.tls;
        [&self.config, &self.cluster_key, tls_ca, tls_certificate, tls_key].iter().any(|one| one.is_some())
    }
}

#[derive(Args, Debug)]
pub struct TopArgs {
    #[command(flatten)]
    pub which: WhichCluster,
    /// Between two looks, at least 100ms
    #[arg(long, short = 'd', value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Span,
    /// Look so often, then end [default: until it is ended]
    #[arg(long, short = 'n', value_name = "NUMBER", value_parser = value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Look once, then end
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// Show so many clients [default: 20]
    #[arg(long, value_name = "NUMBER", default_value_t = 20, hide_default_value = true)]
    pub rows: usize,
    /// The cluster, HOST[:PORT][,HOST[:PORT]...]:/ [default: that of the configuration]
    pub cluster: Option<String>,
    /// Print a line of JSON for each look
    #[command(flatten)]
    pub output: Output,
}

fn interval(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error: types::ParseSpanError| error.to_string())?;
    if span.0 < INTERVAL_MIN { Err(format!("not less than {}", Span(INTERVAL_MIN))) } else { Ok(span) }
}

#[derive(Subcommand, Debug)]
pub enum MdsCommand {
    /// List the metadata servers and how many of the 4096 slots each has
    List {
        #[command(flatten)]
        config: ConfigArgs,
        /// Only the one that serves this directory, or what is below it
        dir: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Have a directory below the root of a mount served by another metadata server; no metadata is moved
    Move {
        #[command(flatten)]
        config: ConfigArgs,
        /// The directory. Others whose numbers have the same slot (modulo 4096) go with it
        dir: PathBuf,
        /// The node of the metadata server that is to serve it
        #[arg(long, value_name = "NODE")]
        to: u64,
        #[command(flatten)]
        output: Output,
    },
    /// Spread the entries of a busy directory over hidden parts, which several metadata servers have. As root, on a mount; programs see no difference
    Spread {
        /// The directory; with at most 65,536 entries
        dir: PathBuf,
        /// Parts, 2 to 64, rounded up to a power of two; by default as many as there are metadata servers
        #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(2..=64))]
        over: Option<u32>,
        #[command(flatten)]
        output: Output,
    },
    /// Undo the spreading of a directory: its entries are in one place again
    Gather {
        /// The directory; with at most 65,536 entries
        dir: PathBuf,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Args, Debug)]
pub struct LayoutArgs {
    /// A file or directory on a mount of a cluster
    pub path: PathBuf,
    /// Data servers of each new file, 1 to 64, or "auto": one if only a node with a data server writes it, else up to 4
    #[arg(long, value_name = "NUMBER")]
    pub stripes: Option<String>,
    /// Bytes on one data server before the next, whole 4MiB, or "auto"
    #[arg(long, value_name = "SIZE")]
    pub unit: Option<String>,
    /// Put data on the writer's own node if it has a data server: always, never, or if nobody else has the file open for writing
    #[arg(long, value_name = "WHEN", value_parser = ["yes", "no", "auto"])]
    pub local: Option<String>,
    /// Data servers that have each byte of new files, 1 or 2, or "auto": 1
    #[arg(long, value_name = "NUMBER", value_parser = ["1", "2", "auto"])]
    pub copies: Option<String>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Metadata servers. Several share a PostgreSQL server of the demo's own, from one that is installed. [default: 2, or 1 where none is]
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..=i64::from(FEW_MAX)))]
    pub metadata: Option<u32>,
    /// Metadata servers beside them that only keep copies, and go on for one that dies. [default: 1 beside several]
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(0..=i64::from(FEW_MAX)))]
    pub standby: Option<u32>,
    /// Data servers, each with memory and SSD
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = value_parser!(u32).range(1..=i64::from(NODES_MAX)))]
    pub data: u32,
    /// Data servers with memory and a near-line directory
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = value_parser!(u32).range(0..=i64::from(FEW_MAX)))]
    pub nearline: u32,
    /// Clients that mount the cluster
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = value_parser!(u32).range(1..=i64::from(NODES_MAX)))]
    pub clients: u32,
    /// Names in such a PostgreSQL server with one metadata server, too
    #[arg(long)]
    pub postgres: bool,
    /// Memory tier of each data server
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    pub memory: ByteSize,
    /// Bytes that each client writes at a time
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub size: ByteSize,
    /// Small files that each client makes
    #[arg(long, value_name = "NUMBER", default_value_t = 500)]
    pub files: u32,
    /// Kill a metadata server at the end, wait until another has gone on in its place, and start it again: two minutes more
    #[arg(long, conflicts_with = "hold")]
    pub kill: bool,
    /// Leave it up, without a workload, until this command is ended
    #[arg(long, visible_alias = "keep")]
    pub hold: bool,
    /// Only take down what demos that were killed have left
    #[arg(long, conflicts_with_all = ["hold", "kill"])]
    pub clean: bool,
    #[command(flatten)]
    pub output: Output,
}
