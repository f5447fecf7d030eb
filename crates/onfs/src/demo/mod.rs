//! A whole cluster on one machine: each node is a real process in a network namespace of its own, behind one switch. Several metadata
//! servers share a PostgreSQL server of the demo's own.
//!
//! Invariant: what was made is taken down however it ends, but for a kill of this process; then `onfs demo --clean` does it.
//!
//! The namespaces are made with `ip` and entered with `nsenter`; a crate for netlink would need a runtime for eight commands.

mod clean;
mod cluster;
mod database;
mod network;
mod place;
mod plan;
mod programs;
mod report;
mod takeover;
mod workload;

pub use clean::clean;
pub use cluster::Cluster;
pub use database::Installed;
pub use network::Network;
pub use plan::{FEW_MAX, Host, NODES_MAX, Plan, Role, Sizes};
pub use report::{DemoReport, Stored};
pub use takeover::{TakeOver, take_over};
pub use workload::{Amount, Workload, WorkloadRow};
