//! `onfs mds`: which metadata server has what, and having it served by another.

use std::{collections::BTreeMap, os::unix::fs::MetadataExt, path::Path, time::Duration};

use cluster::{
    map::{ClusterMap, NodeId},
    node::Node,
};
use net::Address;
use proto::{
    control::Hello,
    owners::Bring,
    tail::{TailNow, TailStatus},
};
use types::{Ino, LocalId, Slot, UgsdId};

use super::{
    cluster_call::{Cluster, ask},
    spread::{gather, spread},
};
use crate::{
    args::{ConfigArgs, MdsCommand, Output},
    config::is_source,
    control::{MdsReport, StandbyReport},
    exit::{Failure, Outcome},
    mounts, render,
};

/// A map is far smaller.
const MAP_BYTES_MAX: u32 = 4 << 20;
/// It is away, and the others know nearly as much.
const PATIENCE_WITH_DUTY: Duration = Duration::from_secs(3);
/// Of a hand-over: whoever is inside of the slot ends first, and what was committed goes into the database.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn mds(command: &MdsCommand) -> Outcome {
    match command {
        MdsCommand::List { config, dir, output } => {
            let source = dir.as_deref().and_then(source_of);
            let cluster = Cluster::named(config, source.as_deref())?;
            let map = map(&cluster)?;
            let only = match dir {
                Some(dir) => Some(slot_of(dir)?.0),
                None => None,
            };
            show(&cluster, &map, only, output)
        }
        MdsCommand::Move { config, dir, to, output } => move_dir(config, dir, *to, output),
        MdsCommand::Spread { dir, over, output } => spread(dir, *over, output),
        MdsCommand::Gather { dir, output } => gather(dir, output),
    }
}

/// Of the server that makes it: others are told a moment later.
fn map(cluster: &Cluster) -> Outcome<ClusterMap> {
    let (_, body) = cluster.ask(&Hello {}, MAP_BYTES_MAX)?;
    let told = decoded(&body)?;
    let Some(duty) = told.slot(UgsdId::ROOT.slot()).owner.and_then(|node| told.node(node)) else {
        return Ok(told);
    };
    for address in duty.addresses.iter().filter_map(|text| text.parse::<Address>().ok()) {
        let client = cluster.client(&address, Some(duty.id.0));
        if let Ok((_, body)) = ask(&client, &Hello {}, MAP_BYTES_MAX, PATIENCE_WITH_DUTY) {
            return decoded(&body);
        }
    }
    Ok(told)
}

fn decoded(body: &[u8]) -> Outcome<ClusterMap> {
    ClusterMap::decode(body)
        .map_err(|error| Failure::failed(format!("the cluster map cannot be read: {error}")))
}

/// The cluster that is mounted there, as the mount was told.
fn source_of(path: &Path) -> Option<String> {
    let path = std::fs::canonicalize(path).ok()?;
    let mounts = mounts::mounts().ok()?;
    let source = &mounts::mount_of(&mounts, &path).filter(|mount| mount.is_onfs())?.source;
    Some(source.clone()).filter(|source| is_source(source))
}

/// The slot of what is there, and whether that is a directory that can be moved.
fn slot_of(path: &Path) -> Outcome<(Slot, bool)> {
    let found =
        std::fs::metadata(path).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    let ino = Ino::from_raw(found.ino())
        .ok_or_else(|| Failure::usage(format!("{} is not on a mount of a cluster", path.display())))?;
    let is_top = ino.local() == LocalId::TOP && ino.ugsd() != UgsdId::ROOT && found.is_dir();
    Ok((ino.ugsd().slot(), is_top))
}

fn move_dir(config: &ConfigArgs, dir: &Path, to: u64, output: &Output) -> Outcome {
    let (slot, is_top) = slot_of(dir)?;
    if !is_top {
        let why = format!("{} is no directory below the root of a mount of a cluster", dir.display());
        return Err(Failure::usage(why).hint("those are what metadata servers divide among them"));
    }
    let cluster = Cluster::ordered(config, source_of(dir).as_deref())?;
    let before = map(&cluster)?;
    let duty = before.slot(UgsdId::ROOT.slot()).owner.and_then(|node| before.node(node));
    let Some(duty) = duty else {
        return Err(Failure::usage("the cluster has one metadata server (metadata.servers)"));
    };
    let bring = Bring { node: to, slots: proto::owners::runs([slot.get()]), stay: true };
    let mut last = format!("{} has no address", duty.name);
    for address in duty.addresses.iter().filter_map(|text| text.parse::<Address>().ok()) {
        match ask(&cluster.client(&address, Some(duty.id.0)), &bring, 0, PATIENCE) {
            Ok(_) => return show(&cluster, &map(&cluster)?, Some(slot), output),
            Err(why) => last = why,
        }
    }
    Err(Failure::failed(last).hint("the directory is served on by whoever has it: onfs mds list"))
}

/// Of a server of several, as it says.
fn standby_of(cluster: &Cluster, node: &Node) -> Option<StandbyReport> {
    let addresses = node.addresses.iter().filter_map(|text| text.parse::<Address>().ok());
    let asked = |address: Address| {
        let client = cluster.client(&address, Some(node.id.0));
        ask(&client, &TailNow {}, 0, PATIENCE_WITH_DUTY).ok()
    };
    let (TailStatus { standby, complete, waiting, since_ms, off }, _) = addresses.filter_map(asked).next()?;
    Some(StandbyReport { node: standby, complete, since_ms, waiting, off })
}

fn show(cluster: &Cluster, map: &ClusterMap, only: Option<Slot>, output: &Output) -> Outcome {
    let on_duty = map.slot(UgsdId::ROOT.slot()).owner;
    let mut slots: BTreeMap<NodeId, u64> = BTreeMap::new();
    for owner in map.slots().filter_map(|(_, entry)| entry.owner) {
        *slots.entry(owner).or_default() += 1;
    }
    let servers = map.nodes().filter(|node| node.roles.has(wire::handshake::Roles::MDS));
    let servers = servers.filter(|node| only.is_none_or(|slot| map.slot(slot).owner == Some(node.id)));
    let reports: Vec<MdsReport> = servers
        .map(|node| {
            let standby = on_duty.and_then(|_| standby_of(cluster, node));
            MdsReport {
                node: node.id.0,
                name: node.name.clone(),
                addresses: node.addresses.clone(),
                slots: slots.get(&node.id).copied().unwrap_or(0),
                on_duty: on_duty == Some(node.id),
                standby_only: node.is_standby_only(),
                silent: on_duty.is_some() && standby.is_none(),
                standby,
            }
        })
        .collect();
    if output.json { render::json(&reports) } else { render::print(&render::mds(&reports)) }
}
