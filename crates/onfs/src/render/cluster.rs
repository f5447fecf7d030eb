//! Clusters, for people.

use super::{
    status::tiers,
    table::{Align, Table, pairs},
    units::{bytes, count, files, span},
};
use crate::control::{ClusterMountReport, NodeReport, ServerReport};

/// The status of a mount of a cluster.
pub fn cluster_mount(s: &ClusterMountReport) -> String {
    let rows = [
        ("mount point", s.mountpoint.clone()),
        ("cluster", format!("{} ({})", s.source, s.cluster)),
        ("state", s.state_dir.clone()),
        ("daemon", format!("pid {}, version {}, up {}", s.pid, s.version, span(s.uptime_ms))),
        ("session", format!("{}, {} lost before", s.session, count(s.sessions_lost))),
        ("cluster map", format!("epoch {}", s.map_epoch)),
        ("open files", count(s.open_files)),
        ("known inodes", count(s.known_inodes)),
    ];
    let mut out = pairs(&rows);
    out.push_str("\nservers\n");
    let mut table = Table::new(&[
        ("node", Align::Right),
        ("name", Align::Left),
        ("state", Align::Left),
        ("requests", Align::Right),
        ("address", Align::Left),
    ]);
    for node in &s.servers {
        table.row([
            number(node),
            node.name.clone(),
            node.state.clone(),
            count(node.in_flight),
            node.addresses.join(", "),
        ]);
    }
    out.push_str(&table.render(2));
    warnings(&s.warnings, &mut out);
    out
}

/// The status of a server.
pub fn server(s: &ServerReport) -> String {
    let mut rows = vec![
        ("node", format!("{} ({})", s.node, s.name)),
        ("roles", s.roles.join(", ")),
        ("cluster", s.cluster.clone()),
        ("address", format!("{}, listens at {}", s.address, s.listen)),
        ("state", s.state_dir.clone()),
        ("daemon", format!("pid {}, version {}, up {}", s.pid, s.version, span(s.uptime_ms))),
        ("connections", count(s.connections)),
    ];
    if s.roles.iter().any(|role| role == "metadata") {
        rows.push(("clients", count(s.sessions)));
        rows.push(("inodes", count(s.inodes)));
    }
    if s.roles.iter().any(|role| role == "data") {
        rows.push(("objects in use", count(s.objects_in_use)));
        rows.push(("only in memory", format!("{} in {}", bytes(s.dirty_bytes), files(s.dirty_files))));
    }
    let mut out = pairs(&rows);
    out.push_str("\ntiers\n");
    out.push_str(&tiers(&s.tiers));
    warnings(&s.warnings, &mut out);
    out
}

/// The nodes of a cluster.
pub fn nodes(nodes: &[NodeReport]) -> String {
    let mut table = Table::new(&[
        ("node", Align::Right),
        ("name", Align::Left),
        ("roles", Align::Left),
        ("state", Align::Left),
        ("rack", Align::Left),
        ("address", Align::Left),
    ]);
    for node in nodes {
        let rack = if node.rack.is_empty() { "-".to_owned() } else { node.rack.clone() };
        table.row([
            number(node),
            node.name.clone(),
            node.roles.join(", "),
            node.state.clone(),
            rack,
            node.addresses.join(", "),
        ]);
    }
    table.render(0)
}

fn number(node: &NodeReport) -> String {
    if node.node == 0 { "-".to_owned() } else { node.node.to_string() }
}

fn warnings(warnings: &[String], out: &mut String) {
    for warning in warnings {
        out.push_str(&format!("\nwarning: {warning}\n"));
    }
}
