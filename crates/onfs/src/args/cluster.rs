//! Arguments of the commands about clusters: cluster, server, node.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{ConfigArgs, Output};

#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// Make a cluster key and a first configuration file, and say what to do with them
    Init {
        /// A directory for both; nothing in it is overwritten
        dir: PathBuf,
    },
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
}
