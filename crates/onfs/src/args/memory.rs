//! Words about the tiers themselves: the memory tier's limit, the checksums of all that is in them.

use std::path::PathBuf;

use clap::Subcommand;
use types::{ByteSize, Span};

use super::output::Output;

#[derive(Subcommand, Debug)]
pub enum MemoryCommand {
    /// Show the limit and the use of the memory tier, and the daemon's own memory
    Show {
        /// Any path on the mount [default: the only mount]
        mountpoint: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Change the limit; shrinking moves data out first, with progress
    Set {
        /// The new limit, such as 2GiB
        size: ByteSize,
        /// Any path on the mount [default: the only mount]
        mountpoint: Option<PathBuf>,
        /// Stop waiting after this time, such as 10min; the new limit holds for new data all the same
        #[arg(long, value_name = "TIME")]
        deadline: Option<Span>,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Subcommand, Debug)]
pub enum ScrubCommand {
    /// Begin now, if none is under way
    Start {
        /// Any path on the mount, or the state directory of a data server [default: the only mount]
        place: Option<PathBuf>,
        /// Come back when it has ended; exit code 6 if something is damaged and has no good copy
        #[arg(long)]
        wait: bool,
        /// Stop waiting after this time, such as 2h; it goes on all the same
        #[arg(long, value_name = "TIME", requires = "wait")]
        deadline: Option<Span>,
        #[command(flatten)]
        output: Output,
    },
    /// End the one that is under way
    Stop {
        /// Any path on the mount, or the state directory of a data server [default: the only mount]
        place: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Show how far it is, or what the last one found
    Show {
        /// Any path on the mount, or the state directory of a data server [default: the only mount]
        place: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
}
