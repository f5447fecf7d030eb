//! One function per command: arguments in, requests out, reports printed.

mod ask;
mod bench;
mod cluster;
mod cluster_call;
mod config;
mod conflicts;
mod demo;
mod directories;
mod files;
mod fsck;
mod gate;
mod generate;
mod inspect;
mod layout;
mod link;
mod ls;
mod mds;
mod mount;
mod node;
mod plan;
mod scrub;
mod server;
mod settings;
mod spread;
mod stage;
mod top;
mod tree;
mod umount;
mod upgrade;

use crate::{
    args::{Cli, Command},
    exit::Outcome,
};

pub use mount::mount_helper;

/// Carries out a command line.
pub fn run(cli: Cli) -> Outcome {
    match cli.command {
        Command::Mount(args) => mount::mount(&args),
        Command::Umount(args) => umount::umount(&args),
        Command::Upgrade(args) => upgrade::upgrade(&args),
        Command::Status(args) => inspect::status(&args),
        Command::Top(args) => top::top(&args),
        Command::File(args) => inspect::file(&args),
        Command::Ls(args) => ls::ls(&args),
        Command::Gate(args) => gate::gate(&args),
        Command::Conflicts(args) => conflicts::conflicts(&args),
        Command::Link(command) => link::link(&command),
        Command::Migrate(args) => files::migrate(&args),
        Command::Flush(args) => files::flush(&args),
        Command::Prefetch(args) => files::prefetch(&args),
        Command::StageIn(args) => stage::stage_in(&args),
        Command::StageOut(args) => stage::stage_out(&args),
        Command::Plan(command) => plan::plan(command),
        Command::Pin(args) => files::pin(&args),
        Command::Unpin(args) => files::unpin(&args),
        Command::Policy(command) => directories::policy(command),
        Command::Quota(command) => directories::quota(command),
        Command::Memory(command) => directories::memory(command),
        Command::Scrub(command) => scrub::scrub(command),
        Command::Cluster(command) => cluster::cluster(&command),
        Command::Server(args) => server::server(&args),
        Command::Node(command) => node::node(&command),
        Command::Layout(args) => layout::layout(&args),
        Command::Mds(command) => mds::mds(&command),
        Command::Demo(args) => demo::demo(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Fsck(args) => fsck::fsck(&args),
        Command::Config(command) => config::config(&command),
        Command::Version(output) => inspect::version(output),
        Command::Completions { shell } => generate::completions(shell),
        Command::Man { dir } => generate::man(dir.as_deref()),
        Command::Docs { dir } => generate::docs(&dir),
    }
}
