//! `onfs node`: asks the metadata server who is in the cluster.

use cluster::{
    map::ClusterMap,
    node::{Node, NodeState},
};
use proto::control::Hello;
use wire::handshake::Roles;

use super::cluster_call::Cluster;
use crate::{
    args::NodeCommand,
    control::NodeReport,
    exit::{Failure, Outcome},
    render,
};

/// A map is far smaller.
const MAP_BYTES_MAX: u32 = 4 << 20;

pub fn node(command: &NodeCommand) -> Outcome {
    let NodeCommand::List { config, cluster, output } = command;
    let (_, body) = Cluster::named(config, cluster.as_deref())?.ask(&Hello {}, MAP_BYTES_MAX)?;
    let map = ClusterMap::decode(&body)
        .map_err(|error| Failure::failed(format!("the cluster map cannot be read: {error}")))?;
    let reports: Vec<NodeReport> = map.nodes().map(report).collect();
    if output.json { render::json(&reports) } else { render::print(&render::nodes(&reports)) }
}

fn report(node: &Node) -> NodeReport {
    let roles = [(Roles::MDS, "metadata"), (Roles::DS, "data")];
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
        in_flight: 0,
    }
}
