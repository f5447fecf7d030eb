//! Clusters, for people.

use super::{
    status::{guarded, tiers},
    table::{Align, Table, pairs},
    units::{bar, bytes, count, files, span},
};
use crate::control::{
    ClientReport, ClusterMountReport, ClusterReport, DataServerReport, DrainReport, LostFileReport,
    MdsReport, NodeReport, OwnReport, PressureReport, ServerReport, ServerTierReport, StandbyReport,
};

/// The status of a mount of a cluster.
pub fn cluster_mount(s: &ClusterMountReport) -> String {
    let own = s.own.as_ref().map_or_else(|| "none".to_owned(), |own| own_server(s, own));
    let mut rows = vec![
        ("mount point", s.mountpoint.clone()),
        ("cluster", format!("{} ({})", s.source, s.cluster)),
        ("state", s.state_dir.clone()),
        ("daemon", format!("pid {}, version {}, up {}", s.pid, s.version, span(s.uptime_ms))),
        ("session", format!("{}, {} lost before", s.session, count(s.sessions_lost))),
        ("cluster map", format!("epoch {}", s.map_epoch)),
        ("open files", count(s.open_files)),
        ("known inodes", count(s.known_inodes)),
        ("own data server", own),
    ];
    rows.extend(s.guard.as_ref().map(|guard| ("guarded", guarded(guard))));
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
    if let Some(whole) = &s.whole {
        out.push_str("\nthe whole cluster\n\n");
        out.push_str(&of_cluster(whole));
    }
    warnings(&s.warnings, &mut out);
    out
}

/// The status of a whole cluster.
pub fn cluster(s: &ClusterReport) -> String {
    let mut out = of_cluster(s);
    warnings(&s.warnings, &mut out);
    out
}

fn of_cluster(s: &ClusterReport) -> String {
    let m = &s.metadata;
    let mut out = pairs(&[
        ("metadata server", format!("{} (node {}), up {}", m.name, m.node, span(m.uptime_ms))),
        ("cluster map", format!("epoch {}", m.map_epoch)),
        ("clients", count(m.sessions)),
        ("files in use", count(m.files_in_use)),
        ("inodes", count(m.inodes)),
    ]);
    out.push_str("\ndata servers\n");
    out.push_str(&data_servers(&s.data));
    out.push_str("\ntiers\n");
    out.push_str(&server_tiers(&s.data));
    if !s.clients.is_empty() {
        out.push_str("\nclients\n");
        out.push_str(&clients(&s.clients));
    }
    if !s.lost_files.is_empty() {
        out.push_str("\nfiles that lost both copies of a part\n");
        out.push_str(&lost_files(&s.lost_files));
    }
    out
}

fn lost_files(files: &[LostFileReport]) -> String {
    let mut table = Table::new(&[("lost", Align::Right), ("inode", Align::Right), ("path", Align::Left)]);
    for file in files {
        table.row([bytes(file.lost_bytes), file.inode.to_string(), file.path.clone()]);
    }
    table.render(2)
}

fn data_servers(servers: &[DataServerReport]) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("node", right),
        ("name", Align::Left),
        ("state", Align::Left),
        ("last report", right),
        ("only in memory", right),
        ("available", right),
        ("of", right),
        ("to leave", right),
        ("requests", right),
        ("address", Align::Left),
    ]);
    for server in servers {
        table.row([
            server.node.to_string(),
            server.name.clone(),
            server.state.clone(),
            format!("{} ago", span(server.report_age_ms)),
            bytes(server.only_in_memory_bytes),
            bytes(server.available_bytes),
            bytes(server.total_bytes),
            if server.lacking_bytes == 0 { "-".to_owned() } else { bytes(server.lacking_bytes) },
            count(server.requests_waiting),
            server.addresses.join(", "),
        ]);
    }
    table.render(2)
}

fn server_tiers(servers: &[DataServerReport]) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("name", Align::Left),
        ("tier", Align::Left),
        ("used", Align::Left),
        ("", right),
        ("of", right),
        ("available", right),
    ]);
    for server in servers {
        for tier in &server.tiers {
            let ServerTierReport { name, limit_bytes, used_bytes, available_bytes, .. } = tier;
            table.row([
                server.name.clone(),
                name.name().to_owned(),
                bar(*used_bytes, *limit_bytes, 10),
                bytes(*used_bytes),
                bytes(*limit_bytes),
                bytes(*available_bytes),
            ]);
        }
    }
    table.render(2)
}

fn clients(clients: &[ClientReport]) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("host", Align::Left),
        ("client", Align::Left),
        ("since", right),
        ("last heard", right),
        ("open files", right),
        ("for writing", right),
        ("known inodes", right),
    ]);
    for client in clients {
        table.row([
            client.host.clone(),
            client.client.clone(),
            span(client.since_ms),
            format!("{} ago", span(client.silent_ms)),
            count(client.open_files),
            count(client.open_for_writing),
            count(client.known_inodes),
        ]);
    }
    table.render(2)
}

/// That of a mount's machine.
fn own_server(s: &ClusterMountReport, own: &OwnReport) -> String {
    let name = s.servers.iter().find(|server| server.node == own.node).map_or("", |server| &server.name);
    let takes = if own.takes { "" } else { ", gets nothing new" };
    let files = match own.passthrough_files {
        0 => String::new(),
        n => format!(", {} read in place", files(n)),
    };
    format!("{} ({name}), over the {}{takes}{files}", own.node, own.way)
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
    let mut columns = vec![
        ("node", Align::Right),
        ("name", Align::Left),
        ("roles", Align::Left),
        ("state", Align::Left),
        ("rack", Align::Left),
        ("address", Align::Left),
    ];
    let drains = nodes.iter().any(|node| node.drain.is_some());
    if drains {
        columns.push(("left", Align::Left));
    }
    let presses = nodes.iter().any(|node| node.pressure.is_some());
    if presses {
        columns.push(("room", Align::Left));
    }
    let mut table = Table::new(&columns);
    for node in nodes {
        let rack = if node.rack.is_empty() { "-".to_owned() } else { node.rack.clone() };
        let mut row = vec![
            number(node),
            node.name.clone(),
            node.roles.join(", "),
            node.state.clone(),
            rack,
            node.addresses.join(", "),
        ];
        if drains {
            row.push(node.drain.as_ref().map_or("-".to_owned(), left));
        }
        if presses {
            row.push(node.pressure.as_ref().map_or("-".to_owned(), pressure));
        }
        table.row(row);
    }
    table.render(0)
}

/// How a data server is that sends something to others.
fn pressure(pressure: &PressureReport) -> String {
    let PressureReport { full, files_sent, bytes_sent, why } = pressure;
    let mut words = Vec::new();
    if *full {
        words.push("full".to_owned());
    }
    if *files_sent > 0 {
        words.push(format!("{}, {} sent to others", files(*files_sent), bytes(*bytes_sent)));
    }
    if !why.is_empty() {
        words.push(format!("one waits: {why}"));
    }
    words.join("; ")
}

/// What a data server that is being drained still holds.
fn left(drain: &DrainReport) -> String {
    let DrainReport { known, files_left, bytes_left, files_failed, why, drained, .. } = drain;
    if *drained {
        return "nothing".to_owned();
    }
    if !known {
        return if why.is_empty() { "not known yet".to_owned() } else { format!("not known: {why}") };
    }
    let plural = if *files_left == 1 { "file" } else { "files" };
    let all = format!("{} {plural}, about {}", count(*files_left), bytes(*bytes_left));
    if *files_failed == 0 { all } else { format!("{all}; {} wait: {why}", count(*files_failed)) }
}

/// The metadata servers of a cluster.
pub fn mds(servers: &[MdsReport]) -> String {
    let mut table = Table::new(&[
        ("node", Align::Right),
        ("name", Align::Left),
        ("slots", Align::Right),
        ("on duty", Align::Left),
        ("standby", Align::Left),
        ("address", Align::Left),
    ]);
    for server in servers {
        let slots = match server {
            MdsReport { slots: 0, standby_only: true, .. } => "standby only".to_owned(),
            MdsReport { slots: 0, .. } => "-".to_owned(),
            MdsReport { slots, standby_only: true, .. } => format!("{}, for now", count(*slots)),
            MdsReport { slots, .. } => count(*slots),
        };
        let duty = if server.on_duty { "yes" } else { "-" };
        let (node, name) = (server.node.to_string(), server.name.clone());
        let standby = match &server.standby {
            Some(of) => standby(of),
            None if server.silent => "it does not answer".to_owned(),
            None => "-".to_owned(),
        };
        table.row([node, name, slots, duty.to_owned(), standby, server.addresses.join(", ")]);
    }
    table.render(0)
}

fn standby(standby: &StandbyReport) -> String {
    let since = span(standby.since_ms);
    let mut text = match standby {
        StandbyReport { off: true, .. } => return "off".to_owned(),
        StandbyReport { node: 0, .. } => return format!("none, {since}"),
        StandbyReport { node, complete: true, .. } => format!("node {node}, complete, {since}"),
        StandbyReport { node, .. } => format!("node {node}, not complete, {since}"),
    };
    if standby.waiting > 0 {
        text.push_str(&format!(", {} wait", count(standby.waiting)));
    }
    text
}

fn number(node: &NodeReport) -> String {
    if node.node == 0 { "-".to_owned() } else { node.node.to_string() }
}

fn warnings(warnings: &[String], out: &mut String) {
    for warning in warnings {
        out.push_str(&format!("\nwarning: {warning}\n"));
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a cluster is shown with what is wrong at the end. Method: a small one, looked through for its words.
    use types::TierId;

    use super::*;
    use crate::control::MetadataServerReport;

    #[test]
    fn a_full_node_is_shown() {
        let pressure =
            |full, why: &str| PressureReport { full, files_sent: 3, bytes_sent: 4 << 20, why: why.into() };
        let node = |node, pressure| NodeReport { node, pressure, ..NodeReport::default() };
        let all = [node(1, None), node(2, Some(pressure(true, "w"))), node(3, Some(pressure(false, "")))];
        let text = nodes(&all);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("room") && lines[1].ends_with("-"), "{text}");
        assert!(lines[2].ends_with("full; 3 files, 4.0 MiB sent to others; one waits: w"), "{text}");
        assert!(lines[3].ends_with("3 files, 4.0 MiB sent to others"), "{text}");
        assert!(!nodes(&all[..1]).contains("room"));
    }

    #[test]
    fn metadata_servers_are_shown() {
        let copy = StandbyReport { node: 3, complete: true, since_ms: 1000, ..StandbyReport::default() };
        let full =
            MdsReport { node: 1, slots: 2071, on_duty: true, standby: Some(copy), ..MdsReport::default() };
        let dead = MdsReport { node: 2, silent: true, ..MdsReport::default() };
        let only = MdsReport { node: 3, standby_only: true, ..MdsReport::default() };
        let text = mds(&[full, dead, only.clone(), MdsReport { slots: 9, ..only }]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("2 071  yes") && lines[1].contains("node 3, complete, 1s"), "{text}");
        assert!(lines[2].contains("it does not answer"), "{text}");
        assert!(lines[3].contains("standby only"), "{text}");
        assert!(lines[4].contains("9, for now"), "{text}");
    }

    #[test]
    fn a_whole_cluster_is_shown() {
        let tier = ServerTierReport {
            name: TierId::Ssd,
            limit_bytes: 4 << 20,
            used_bytes: 1 << 20,
            available_bytes: 3 << 20,
            writers_wait: false,
            slow: false,
        };
        let server = DataServerReport {
            node: 2,
            name: "n2".into(),
            state: "away".into(),
            report_age_ms: 61_000,
            tiers: vec![tier],
            ..DataServerReport::default()
        };
        let client = ClientReport { host: "h1".into(), open_files: 3, ..ClientReport::default() };
        let report = ClusterReport {
            metadata: MetadataServerReport { node: 1, name: "n1".into(), ..MetadataServerReport::default() },
            data: vec![server],
            clients: vec![client],
            warnings: vec!["n2 is away".into()],
            lost_files: vec![LostFileReport { inode: 77, path: "/a/b".into(), lost_bytes: 4 << 20 }],
        };
        let text = cluster(&report);
        let row = |begins: &str| text.lines().find(|line| line.trim_start().starts_with(begins)).unwrap();
        assert!(row("metadata server").ends_with("n1 (node 1), up 0ms"));
        assert!(row("2  n2").contains("away   1min 1s ago"), "{text}");
        assert!(row("n2").contains("ssd   [###.......]  25%  1.0 MiB  4.0 MiB"), "{text}");
        assert!(row("h1").contains(" 3 "), "{text}");
        assert!(row("4.0 MiB     77").ends_with("/a/b"), "{text}");
        assert!(text.ends_with("\nwarning: n2 is away\n"), "{text}");
    }
}
