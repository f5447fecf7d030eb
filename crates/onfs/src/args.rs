//! The command line: every flag once. Help, completions, the man page and docs/cli.md come from here.

mod cluster;
mod ledger;
mod memory;
mod output;

use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use types::{ByteSize, Span, TierId};

use crate::{
    bench::BenchOptions,
    config::is_source,
    exit::{Failure, Outcome},
    policy::PolicyChange,
};

pub use cluster::{
    CertificateArgs, ClusterCommand, DemoArgs, LayoutArgs, MdsCommand, NodeCommand, ServerArgs, TlsArgs,
    TopArgs, WhichCluster, WhichNode,
};
pub use ledger::{ConflictsArgs, ConflictsCommand, GateArgs, LinkCommand, LsArgs};
pub use memory::{MemoryCommand, ScrubCommand};
pub use output::Output;

const ABOUT: &str = "A tiered file system over memory, SSD and a slow directory";
const LONG_ABOUT: &str = "ONFS is a POSIX file system whose files live in memory, flow to SSD and to a slow near-line \
    directory as they cool, and come back before they are needed. One process per mount, nothing else to install.";

#[derive(Parser, Debug)]
#[command(name = "onfs", version, about = ABOUT, long_about = LONG_ABOUT, max_term_width = 110)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Mount a file system
    #[command(override_usage = "onfs mount [OPTIONS] [HOST[:PORT]:/] MOUNTPOINT")]
    Mount(MountArgs),
    /// Make all data safe, then unmount
    Umount(UmountArgs),
    /// Have another program go on with a guarded mount, under the programs that use it
    Upgrade(UpgradeArgs),
    /// Show tiers, thresholds, rates, dirty bytes and movements of a mount, a whole cluster, or list the mounts
    Status(StatusArgs),
    /// Show what the servers of a cluster do now, and for which clients, the busiest first
    Top(TopArgs),
    /// Show where a file's data is, how cool it is, and what would be lost now
    File(FileArgs),
    /// List names with their size, where their data is, and whether it is safe there
    Ls(LsArgs),
    /// Move files to a tier
    Migrate(MigrateArgs),
    /// Make data safe: copy what is only in memory to a persistent tier, and what changed to a linked directory
    Flush(FlushArgs),
    /// Succeed only if everything below the paths is in its promised tier; list what is not, and why
    Gate(GateArgs),
    /// Bring files up to the fastest tier, in the order given
    Prefetch(PrefetchArgs),
    /// Copy files and directories onto a mount: in parallel, checked, and gone on with after an interruption
    #[command(
        override_usage = "onfs stage-in [OPTIONS] SRC... DST\n  onfs stage-in [OPTIONS] --manifest FILE"
    )]
    StageIn(StageInArgs),
    /// Copy files and directories off a mount; done when they are durable there and were read back
    #[command(
        override_usage = "onfs stage-out [OPTIONS] SRC... DST\n  onfs stage-out [OPTIONS] --manifest FILE"
    )]
    StageOut(StageOutArgs),
    /// Show what comes up before it is read: lists that are being read, and plans made from earlier runs
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Keep files in a tier until they are unpinned
    Pin(PinArgs),
    /// Let pinned files move again
    Unpin(UnpinArgs),
    /// Show or set the policy of a directory
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Limit what directories may hold
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Show or change the limit of the memory tier
    #[command(subcommand)]
    Memory(MemoryCommand),
    /// Compare all bytes with their checksums, and make damaged ones good from another tier
    #[command(subcommand)]
    Scrub(ScrubCommand),
    /// List what was changed here and in the linked directory, or take it off the list; exit code 6 if there is something
    Conflicts(ConflictsArgs),
    /// Show a linked directory, or accept one that was moved or replaced
    #[command(subcommand)]
    Link(LinkCommand),
    /// Begin a cluster
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Serve metadata, data or both for the clients of a cluster
    Server(ServerArgs),
    /// Show the nodes of a cluster
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show on which nodes of a cluster a file's data are, or show or set what holds for new files in a directory
    Layout(LayoutArgs),
    /// Show the metadata servers of a cluster, and move directories between them
    #[command(subcommand)]
    Mds(MdsCommand),
    /// Bring a whole cluster up on this machine, use it, show it, and take it down
    Demo(DemoArgs),
    /// Measure a directory, on ONFS or not
    Bench(BenchArgs),
    /// Check, and repair, the state of a file system that is not mounted
    Fsck(FsckArgs),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show the version
    Version(Output),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man {
        /// Write a page for each command into this directory instead
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Write the generated documents (cli.md, config.md, metrics.md) into a directory
    #[command(hide = true)]
    Docs { dir: PathBuf },
}

/// Which configuration: the same flags for every command that reads it.
#[derive(Args, Debug, Clone, Default)]
pub struct ConfigArgs {
    /// Configuration file, or "none" [default: $ONFS_CONFIG, else /etc/onfs/onfs.toml or ~/.config/onfs/onfs.toml if there]
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Limit of the memory tier, such as 2GiB
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Directory of the SSD tier, and the most that it may use
    #[arg(long, value_name = "DIR[:SIZE]")]
    pub ssd: Option<String>,
    /// Directory of the near-line tier, and the most that it may use; or an existing directory or bucket that is linked
    #[arg(long, value_name = "DIR[:SIZE]|link:DIR|link:s3://BUCKET/PREFIX")]
    pub nearline: Option<String>,
    /// State directory: metadata, journal, log, control socket
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The most memory that the daemon's caches and buffers may take
    #[arg(long, value_name = "SIZE")]
    pub memory_budget: Option<String>,
    /// Where metadata are beyond the journal: in the state directory, or in a database
    #[arg(long, value_name = "embedded|postgres")]
    pub metadata_engine: Option<String>,
    /// Address of the database, such as postgresql://onfs@db1,db2/meta; no password in it
    #[arg(long, value_name = "ADDRESS")]
    pub metadata_url: Option<String>,
    /// File with the database's password, in the form of ~/.pgpass
    #[arg(long, value_name = "FILE")]
    pub metadata_password_file: Option<PathBuf>,
    /// File with the key of the cluster
    #[arg(long, value_name = "FILE")]
    pub cluster_key: Option<PathBuf>,
    #[command(flatten)]
    pub tls: TlsArgs,
    /// How requests come from the kernel
    #[arg(long, value_name = "auto|io-uring|dev")]
    pub transport: Option<String>,
    /// Keep the mount, and what programs have open, when the daemon ends unexpectedly or is upgraded
    #[arg(long)]
    pub guard: bool,
    /// Mount options, as in fstab: kernel flags, or settings such as memory=2GiB and policy.write_behind=5s
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Any setting of the configuration file, such as --set policy.movers=4
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

#[derive(Args, Debug, Clone, Default)]
pub struct MountArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Stay in the foreground and log to standard error
    #[arg(long, short)]
    pub foreground: bool,
    /// This process is the daemon that `mount` started
    #[arg(long, hide = true)]
    pub daemon_child: bool,
    /// A guardian started it
    #[arg(long, hide = true, requires = "daemon_child")]
    pub guarded: bool,
    /// A cluster, by its metadata servers: HOST[:PORT][,HOST[:PORT]...]:/ [default: tiers of this machine]; then an existing directory
    #[arg(value_name = "CLUSTER:/] [MOUNTPOINT", num_args = 1..=2, required = true)]
    pub places: Vec<PathBuf>,
}

impl MountArgs {
    /// What is mounted, if it is a cluster, and where.
    pub fn source_and_place(&self) -> Outcome<(Option<&str>, &Path)> {
        match self.places.as_slice() {
            [place] => Ok((None, place)),
            [source, place] => {
                let text = source.to_str().filter(|text| is_source(text));
                let what = source.display();
                text.map(|text| (Some(text), place.as_path())).ok_or_else(|| {
                    Failure::usage(format!("{what}: not a cluster: write HOST[:PORT][,HOST[:PORT]...]:/"))
                })
            }
            [] | [_, _, ..] => Err(Failure::usage("give a mount point")),
        }
    }
}

#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Detach the mount also when it is in use; the daemon ends when its last user has gone
    #[arg(long, short)]
    pub lazy: bool,
    /// Give up after this time, such as 30s
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Span>,
    /// Where it is mounted
    pub mountpoint: PathBuf,
}

#[derive(Args, Debug)]
pub struct UpgradeArgs {
    /// The program that goes on [default: this one]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Give up waiting for it after this time; it goes on all the same
    #[arg(long, value_name = "TIME", default_value = "5min")]
    pub timeout: Span,
    /// Where it is mounted, or any path on it
    pub mountpoint: PathBuf,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Any path on the mount, or the state directory of a server; without it the only mount, or a list of the mounts. With
    /// --cluster a cluster, HOST[:PORT][,HOST[:PORT]...]:/ [default: that of the configuration]
    pub mountpoint: Option<PathBuf>,
    /// Show a whole cluster, as its metadata server knows it: servers, tiers, clients, and what somebody should look at
    #[arg(long)]
    pub cluster: bool,
    #[command(flatten)]
    pub which: WhichCluster,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct FileArgs {
    /// Files or directories
    #[arg(required = true)]
    pub path: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TierName {
    Memory,
    Ssd,
    Nearline,
}

impl TierName {
    pub const fn id(self) -> TierId {
        match self {
            TierName::Memory => TierId::Memory,
            TierName::Ssd => TierId::Ssd,
            TierName::Nearline => TierId::Nearline,
        }
    }
}

#[derive(Args, Debug)]
pub struct MigrateArgs {
    /// The tier to move to
    #[arg(long, value_name = "TIER")]
    pub to: TierName,
    #[command(flatten)]
    pub wait: Wait,
    /// Files, or directories with all that is below them
    #[arg(required = true)]
    pub path: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug, Clone, Copy)]
pub struct Wait {
    /// Wait until it is done, with progress; without it the daemon does it by itself, and what fails is in its log
    #[arg(long, short)]
    pub wait: bool,
    /// Give up after this time, such as 10min (implies --wait)
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<Span>,
}

#[derive(Args, Debug)]
pub struct FlushArgs {
    #[command(flatten)]
    pub wait: Wait,
    /// Files, or directories with all that is below them; the mount point means everything
    #[arg(required = true)]
    pub path: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct PrefetchArgs {
    #[command(flatten)]
    pub wait: Wait,
    /// Read the paths from a file, one per line, or from standard input with "-"; empty lines end groups: group k+1 comes
    /// up while group k is read
    #[arg(long, value_name = "FILE", conflicts_with = "path")]
    pub list: Option<PathBuf>,
    /// So many paths of the list make a group
    #[arg(long, value_name = "NUMBER", requires = "list", value_parser = clap::value_parser!(u32).range(1..))]
    pub group_size: Option<u32>,
    /// Files, or directories with all that is below them
    #[arg(required_unless_present = "list")]
    pub path: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct StageInArgs {
    #[command(flatten)]
    pub stage: StageArgs,
    /// Wait until all of it is safe: in a persistent tier, as by `onfs flush --wait`
    #[arg(long, short)]
    pub wait: bool,
    /// Read back what was written, and compare
    #[arg(long)]
    pub verify: bool,
}

#[derive(Args, Debug)]
pub struct StageOutArgs {
    #[command(flatten)]
    pub stage: StageArgs,
    /// Do not read back what was written
    #[arg(long)]
    pub no_verify: bool,
}

/// What is copied to where, and how: the same both ways.
#[derive(Args, Debug)]
pub struct StageArgs {
    /// What to copy, then where to: below DST if that is a directory, else DST is the copy; SRC/. means what is in it
    #[arg(value_name = "SRC... DST", required_unless_present = "manifest", conflicts_with = "manifest")]
    pub path: Vec<PathBuf>,
    /// Read lines "SOURCE DESTINATION" from a file, or from standard input with "-"; names with blanks are quoted as in a shell
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// DST is the copy itself, also when it is a directory that is there
    #[arg(long, short = 'T', conflicts_with = "manifest")]
    pub no_target_directory: bool,
    /// Threads that copy, up to 256 [default: the machine's processors, but 4 to 16]
    #[arg(long, short, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: Option<u16>,
    /// Compare the content of files whose size and time agree, instead of passing them by
    #[arg(long)]
    pub checksum: bool,
    /// Give up after this time, such as 10min; the same command goes on later
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<Span>,
    /// Only say how much would be copied
    #[arg(long, short = 'n')]
    pub dry_run: bool,
    /// Copy also when that side is not on ONFS
    #[arg(long)]
    pub any_fs: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct PinArgs {
    /// Move them to this tier first [default: where they are]
    #[arg(long, value_name = "TIER")]
    pub to: Option<TierName>,
    /// Files, or directories with all that is below them
    #[arg(required = true)]
    pub path: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct UnpinArgs {
    /// Files, or directories with all that is below them
    #[arg(required = true)]
    pub path: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Subcommand, Debug)]
pub enum PlanCommand {
    /// List the jobs whose runs are remembered, with their hit rates
    List {
        /// Any path on the mount [default: the only mount]
        mountpoint: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Show what the next run of a job is expected to read, how often that was right, and whether it acts
    Show {
        #[command(flatten)]
        job: JobArgs,
        #[command(flatten)]
        output: Output,
    },
    /// Forget what is remembered of a job
    Forget {
        #[command(flatten)]
        job: JobArgs,
    },
    /// List the runs over lists and plans: those that are being read, and the last ones that have ended
    Runs {
        /// Any path on the mount [default: the only mount]
        mountpoint: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Bring no more up of a run
    Cancel {
        /// Its number, as in onfs plan runs
        run: u64,
        /// Any path on the mount [default: the only mount]
        mountpoint: Option<PathBuf>,
    },
}

#[derive(Args, Debug)]
pub struct JobArgs {
    /// The job's name, as in onfs plan list
    pub name: String,
    /// Any path on the mount [default: the only mount]
    pub mountpoint: Option<PathBuf>,
    /// Whose job: a user's number; root alone sees those of others [default: your own]
    #[arg(long, value_name = "UID")]
    pub user: Option<u32>,
}

#[derive(Subcommand, Debug)]
pub enum PolicyCommand {
    /// Show what holds for a directory, and what it sets itself
    Show {
        /// A directory on the mount
        dir: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Set the policy of a directory and what is below it
    Set {
        /// A directory on the mount
        dir: PathBuf,
        /// mode=global|local|hybrid|transient, sync=forced|normal, promote=on-open|on-request, write-behind=TIME|never; each
        /// also =inherit
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = PolicyChange::from_str)]
        change: Vec<PolicyChange>,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Subcommand, Debug)]
pub enum QuotaCommand {
    /// Limit the bytes and inodes below a directory; 0 means no limit
    #[command(arg_required_else_help = true)]
    #[command(group = clap::ArgGroup::new("limit").required(true).multiple(true).args(["bytes", "inodes"]))]
    Set {
        /// A directory on the mount
        dir: PathBuf,
        /// The most that its files may hold, such as 10GiB
        #[arg(long, value_name = "SIZE")]
        bytes: Option<ByteSize>,
        /// The most files and directories below it
        #[arg(long, value_name = "NUMBER")]
        inodes: Option<u64>,
        #[command(flatten)]
        output: Output,
    },
    /// Show the limits and the use of a directory
    Show {
        /// A directory on the mount
        dir: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// List the directories that have limits
    List {
        /// Any path on the mount [default: the only mount]
        mountpoint: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Take the limits of a directory away
    Remove {
        /// A directory on the mount
        dir: PathBuf,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Directory to measure; a directory of its own is made there and removed again
    pub dir: PathBuf,
    /// Bytes of the file that is written and read, at least 1MiB
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = bench_size)]
    pub size: ByteSize,
    /// Files that are created, looked up and removed, at least one
    #[arg(long, value_name = "NUMBER", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    pub files: u32,
    #[command(flatten)]
    pub output: Output,
}

fn bench_size(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>() {
        Ok(size) if size.0 < BenchOptions::SIZE_MIN => {
            Err(format!("a measurement needs at least {}", ByteSize(BenchOptions::SIZE_MIN)))
        }
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

#[derive(Args, Debug)]
pub struct FsckArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Repair what can be repaired without losing data; without it nothing is changed
    #[arg(long)]
    pub repair: bool,
    /// Where it was mounted; gives the default of --state
    pub mountpoint: Option<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Check the configuration and say what is wrong with it
    Check {
        #[command(flatten)]
        config: ConfigArgs,
        /// Where it would be mounted
        #[arg(default_value = "/mnt/onfs")]
        mountpoint: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Show every setting and its value
    Show {
        #[command(flatten)]
        config: ConfigArgs,
        /// Say where each value comes from
        #[arg(long)]
        origin: bool,
        #[command(flatten)]
        output: Output,
    },
}

/// The command with its names, for completions and documents.
pub fn command() -> clap::Command {
    Cli::command()
}
