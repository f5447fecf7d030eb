//! Arguments of the commands about where data is safe: ls, gate, conflicts, link.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use types::Span;

use super::output::Output;
use crate::control::DataState;

#[derive(Args, Debug)]
pub struct LsArgs {
    /// Show only names in these states, such as --state=memory,unpublished; without a value, and without the flag, all
    #[arg(long, value_name = "STATE", num_args = 0..=1, require_equals = true, value_delimiter = ',')]
    pub state: Option<Vec<DataState>>,
    /// Directories with all that is below them
    #[arg(long, short = 'R')]
    pub recursive: bool,
    /// Files or directories
    #[arg(required = true)]
    pub path: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct GateArgs {
    /// Make it safe first, as `onfs flush --wait` does; without it nothing is moved
    #[arg(long)]
    pub flush: bool,
    /// Look again until all is safe, for this time at the most, such as 10min
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<Span>,
    /// Files, or directories with all that is below them
    #[arg(required = true)]
    pub path: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ConflictsArgs {
    #[command(subcommand)]
    pub command: Option<ConflictsCommand>,
    /// Only those at or below this path [default: the only mount]
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Subcommand, Debug)]
pub enum ConflictsCommand {
    /// Take conflicts off the list; the files stay as they are
    #[command(arg_required_else_help = true)]
    #[command(group = clap::ArgGroup::new("which").required(true).args(["number", "all"]))]
    Forget {
        /// Numbers, as they are listed
        number: Vec<u64>,
        /// All at and below the path
        #[arg(long)]
        all: bool,
        /// Any path on the mount [default: the only mount]
        #[arg(long, value_name = "PATH")]
        path: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Subcommand, Debug)]
pub enum LinkCommand {
    /// Show which directory was linked, and which one is there now
    Show {
        /// Any path on the mount [default: the only mount]
        mountpoint: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Say that the directory that is there now is the tree that was linked, moved, copied or restored
    Accept {
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Accept an empty directory: what is not changed here counts as deleted there
        #[arg(long)]
        empty_too: bool,
        /// Any path on the mount [default: the only mount]
        mountpoint: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
}
