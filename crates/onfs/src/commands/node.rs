//! `onfs node`: who is in the cluster, and taking data servers out of it while files are in use.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use cluster::{
    map::ClusterMap,
    node::{Node, NodeState},
};
use prost::Message;
use proto::{
    control::Hello,
    moving::{DrainNode, RemoveNode, Standing, StandingKind, StandingList, Standings},
};
use wire::handshake::Roles;

use super::cluster_call::Cluster;
use crate::{
    args::{NodeCommand, Output, WhichNode},
    control::{DrainReport, NodeReport, PressureReport, Progress, Unit},
    exit::{Exit, Failure, Outcome},
    render::{self, Meter},
};

/// A map is far smaller.
const MAP_BYTES_MAX: u32 = 4 << 20;
/// Between two looks at a data server that is being drained.
const LOOK: Duration = Duration::from_millis(500);
/// A metadata server that is started again meanwhile is waited for.
const AWAY_MAX: Duration = Duration::from_secs(120);

pub fn node(command: &NodeCommand) -> Outcome {
    match command {
        NodeCommand::List { config, cluster, output } => {
            let cluster = Cluster::named(config, cluster.as_deref())?.on_duty_first()?;
            let reports = reports(&cluster)?;
            if output.json { render::json(&reports) } else { render::print(&render::nodes(&reports)) }
        }
        NodeCommand::Drain { node, wait, output } => drain(node, *wait, output),
        NodeCommand::Undrain { node } => {
            let (cluster, node) = found(node)?;
            cluster.order(&DrainNode { node: node.node, undo: true })?;
            render::print(&format!("{} is taken back: it gets new files as all others\n", named(&node)))
        }
        NodeCommand::Remove { node } => {
            let (cluster, node) = found(node)?;
            cluster.order(&RemoveNode { node: node.node })?;
            let is_metadata = |role: &String| role == "metadata";
            if node.roles.iter().any(is_metadata) && !node.roles.iter().any(|role| role == "data") {
                let how = "If it is started again it comes as one that is new";
                return render::print(&format!("{} is not in the cluster any more. {how}\n", named(&node)));
            }
            let how = format!("`onfs node undrain {}`", node.node);
            render::print(&format!(
                "{} is not in the cluster any more. If it is started again it is refused, until {how}\n",
                named(&node)
            ))
        }
    }
}

fn drain(which: &WhichNode, wait: bool, output: &Output) -> Outcome {
    let (cluster, node) = found(which)?;
    let standing = cluster.order(&DrainNode { node: node.node, undo: false })?;
    let report = if wait { until_drained(&cluster, &node)? } else { drain_report(&standing) };
    if output.json {
        return render::json(&NodeReport { state: "draining".into(), drain: Some(report), ..node });
    }
    let number = node.node;
    // Its metadata server is another matter.
    let is_off = if node.roles.iter().any(|role| role == "metadata") {
        "its metadata server goes on"
    } else {
        "it can be switched off"
    };
    render::print(&if report.drained {
        format!(
            "{} holds nothing any more; {is_off}\n`onfs node remove {number}` takes it out of the cluster for good\n",
            named(&node)
        )
    } else {
        format!("{} is being drained: `onfs node list` says what is left\n", named(&node))
    })
}

fn until_drained(cluster: &Cluster, node: &NodeReport) -> Outcome<DrainReport> {
    let mut meter = Meter::new(&format!("draining {}", node.name));
    let mut heard = Instant::now();
    loop {
        match standings(cluster) {
            Ok(mut standings) => {
                heard = Instant::now();
                let standing = standings.remove(&node.node).unwrap_or_default();
                if standing.kind() != StandingKind::Draining {
                    let why = format!("{} is not being drained any more", named(node));
                    return Err(Failure::new(Exit::Failure, why));
                }
                let report = drain_report(&standing);
                if report.drained {
                    meter.finish();
                    return Ok(report);
                }
                meter.show(&progress(&report));
            }
            Err(failure) if heard.elapsed() > AWAY_MAX => return Err(failure),
            Err(_) => (),
        }
        thread::sleep(LOOK);
    }
}

fn progress(report: &DrainReport) -> Progress {
    let total = if report.known { report.files_moved.saturating_add(report.files_left) } else { 0 };
    let what = match (report.known, report.files_failed) {
        (false, _) if report.why.is_empty() => "looking for what it holds".to_owned(),
        (false, _) => format!("what it holds is not known: {}", report.why),
        (true, 0) => "files".to_owned(),
        (true, failed) => format!("files; {failed} wait: {}", report.why),
    };
    Progress { done: report.files_moved, total, unit: Unit::Items, what }
}

/// The node that is meant, and the cluster, asked by who may be a server there.
fn found(which: &WhichNode) -> Outcome<(Cluster, NodeReport)> {
    let cluster = Cluster::ordered(&which.config, which.cluster.as_deref())?.on_duty_first()?;
    let number = which.node.parse::<u64>().ok();
    let is_it = |one: &NodeReport| number.map_or(one.name == which.node, |number| one.node == number);
    match (reports(&cluster)?.into_iter().find(is_it), number) {
        (Some(node), _) => Ok((cluster, node)),
        // The metadata server may say more.
        (None, Some(node)) if node > 0 => Ok((cluster, NodeReport { node, ..NodeReport::default() })),
        (None, _) => Err(Failure::usage(format!("the cluster has no node {}", which.node))
            .hint("`onfs node list` shows those that it has")),
    }
}

fn named(node: &NodeReport) -> String {
    if node.name.is_empty() {
        format!("node {}", node.node)
    } else {
        format!("node {} ({})", node.node, node.name)
    }
}

fn standings(cluster: &Cluster) -> Outcome<BTreeMap<u64, Standing>> {
    let (_, body) = cluster.ask(&Standings {}, MAP_BYTES_MAX)?;
    let list = StandingList::decode(&body[..])
        .map_err(|error| Failure::failed(format!("the metadata server's answer makes no sense: {error}")))?;
    Ok(list.standings.into_iter().map(|standing| (standing.node, standing)).collect())
}

/// Those of the map, and those that were removed or have not been heard of since they are being drained.
fn reports(cluster: &Cluster) -> Outcome<Vec<NodeReport>> {
    let (_, body) = cluster.ask(&Hello {}, MAP_BYTES_MAX)?;
    let map = ClusterMap::decode(&body)
        .map_err(|error| Failure::failed(format!("the cluster map cannot be read: {error}")))?;
    let mut reports: BTreeMap<u64, NodeReport> = map.nodes().map(|node| (node.id.0, report(node))).collect();
    for (number, standing) in standings(cluster)? {
        let absent = || NodeReport { node: number, name: standing.name.clone(), ..NodeReport::default() };
        let report = reports.entry(number).or_insert_with(absent);
        report.pressure = pressure_report(&standing);
        match standing.kind() {
            StandingKind::In => (),
            StandingKind::Draining => {
                report.state = "draining".to_owned();
                report.drain = Some(drain_report(&standing));
            }
            // Its data are out; a metadata server on it is not.
            StandingKind::Removed if report.roles.is_empty() => report.state = "removed".to_owned(),
            StandingKind::Removed => (),
        }
    }
    Ok(reports.into_values().collect())
}

fn drain_report(standing: &Standing) -> DrainReport {
    DrainReport {
        known: standing.known,
        files_left: standing.files_left,
        bytes_left: standing.bytes_left,
        files_moved: standing.files_moved,
        bytes_moved: standing.bytes_moved,
        files_failed: standing.files_failed,
        why: standing.why.clone(),
        drained: standing.known && standing.files_left == 0,
    }
}

fn pressure_report(standing: &Standing) -> Option<PressureReport> {
    let report = PressureReport {
        full: standing.full,
        files_sent: standing.files_sent,
        bytes_sent: standing.bytes_sent,
        why: standing.stuck.clone(),
    };
    Some(report).filter(|report| *report != PressureReport::default())
}

fn report(node: &Node) -> NodeReport {
    let roles = [(Roles::MDS, "metadata"), (Roles::STANDBY_ONLY, "standby only"), (Roles::DS, "data")];
    NodeReport {
        node: node.id.0,
        name: node.name.clone(),
        addresses: node.addresses.clone(),
        rack: node.rack().unwrap_or_default().to_owned(),
        roles: roles
            .iter()
            .filter(|(role, _)| node.roles.has(*role))
            .map(|(_, name)| (*name).to_owned())
            .collect(),
        state: match node.state {
            NodeState::Joining => "joining",
            NodeState::Up => "up",
            NodeState::Draining => "draining",
            NodeState::Down => "down",
        }
        .to_owned(),
        ..NodeReport::default()
    }
}
