//! The status of whatever answers, and the list of a machine's mounts.

use serde::Serialize;

use super::{
    cluster,
    status::status,
    table::{Align, Table},
    units::{bytes, span},
};
use crate::control::{ClusterMountReport, ServerReport, StatusReport};

/// The status of whatever answers.
#[derive(Serialize)]
#[serde(untagged)]
pub enum AnyStatus {
    Own(Box<StatusReport>),
    Cluster(Box<ClusterMountReport>),
    Server(Box<ServerReport>),
}

impl AnyStatus {
    pub fn text(&self) -> String {
        match self {
            AnyStatus::Own(report) => status(report),
            AnyStatus::Cluster(report) => cluster::cluster_mount(report),
            AnyStatus::Server(report) => cluster::server(report),
        }
    }
}

/// One line per mount.
pub fn mount_list(mounts: &[(String, Result<AnyStatus, String>)]) -> String {
    let dash = || "-".to_owned();
    let state = |warnings: &[String]| if warnings.is_empty() { "ok" } else { "see warnings" }.to_owned();
    let mut table = Table::new(&[
        ("mount point", Align::Left),
        ("pid", Align::Right),
        ("up", Align::Left),
        ("used in memory / ssd / nearline", Align::Left),
        ("only in memory", Align::Right),
        ("state", Align::Left),
    ]);
    for (mountpoint, status) in mounts {
        match status {
            Ok(AnyStatus::Cluster(s)) => {
                let (pid, up) = (s.pid.to_string(), span(s.uptime_ms));
                table.row([mountpoint.clone(), pid, up, s.source.clone(), dash(), state(&s.warnings)]);
            }
            Ok(AnyStatus::Server(s)) => {
                let (pid, up) = (s.pid.to_string(), span(s.uptime_ms));
                table.row([mountpoint.clone(), pid, up, dash(), bytes(s.dirty_bytes), state(&s.warnings)]);
            }
            Ok(AnyStatus::Own(s)) => {
                let used: Vec<String> = s.tiers.iter().map(|t| bytes(t.used_bytes)).collect();
                table.row([
                    mountpoint.clone(),
                    s.pid.to_string(),
                    span(s.uptime_ms),
                    used.join(" / "),
                    bytes(s.dirty_bytes),
                    state(&s.warnings),
                ]);
            }
            Err(error) => {
                table.row([mountpoint.clone(), dash(), dash(), dash(), dash(), error.clone()]);
            }
        }
    }
    table.render(0)
}
