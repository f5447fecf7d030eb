//! What commands print: aligned tables for people, JSON for programs, progress on standard error.
//!
//! Invariant: pure text in, text out; only [`out`] and [`progress`] write anywhere.

mod cluster;
mod demo;
mod file;
mod ledger;
mod mounts;
pub mod out;
mod plan;
pub mod progress;
mod reports;
mod stage;
mod status;
pub mod table;
mod top;
pub mod units;

pub use cluster::{cluster, cluster_mount, mds, nodes, server};
pub use demo::demo;
pub use file::file;
pub use ledger::{conflicts, entries, gate, roots};
pub use mounts::{AnyStatus, mount_list};
pub use out::{json, print};
pub use plan::{plan, plans, run, runs};
pub use progress::Meter;
pub use reports::{bench, fsck, memory, moved, policy, quotas, scrub};
pub use stage::stage;
pub use status::status;
pub use top::top;
