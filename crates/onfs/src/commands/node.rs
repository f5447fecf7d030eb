//! `onfs node`: asks the metadata server who is in the cluster.

use std::time::{Duration, Instant};

use cluster::{
    map::ClusterMap,
    node::{Node, NodeState},
};
use net::{Call, Client, NobodyAnswers, Target, Tuning};
use prost::Message;
use proto::{Request, control};
use wire::{
    frame::Verdict,
    handshake::{Roles, Wish},
    schema::Lane,
};

use super::settings::{settings, wrong};
use crate::{
    args::NodeCommand,
    assemble::{client_number, credentials},
    config::{ClusterConfig, Host},
    control::NodeReport,
    exit::{Exit, Failure, Outcome},
    render,
    running::StartError,
};

/// For one metadata server; there may be several addresses.
const PATIENCE: Duration = Duration::from_secs(10);
/// A map is far smaller.
const MAP_BYTES_MAX: u32 = 4 << 20;

pub fn node(command: &NodeCommand) -> Outcome {
    let NodeCommand::List { config, cluster, output } = command;
    let host = Host::detect();
    let mut settings = settings(config, &host)?;
    if let Some(source) = cluster {
        settings.apply_flag("mount.source", source, source).map_err(|error| wrong(&[error]))?;
    }
    let cluster = ClusterConfig::resolve(&settings).map_err(|error| wrong(&[error]))?;
    if cluster.metadata.is_empty() {
        return Err(Failure::usage("which cluster? write HOST[:PORT]:/, or set cluster.metadata"));
    }
    let map = ask(&cluster)?;
    let reports: Vec<NodeReport> = map.nodes().map(report).collect();
    if output.json { render::json(&reports) } else { render::print(&render::nodes(&reports)) }
}

/// The map of the first metadata server that answers.
fn ask(cluster: &ClusterConfig) -> Outcome<ClusterMap> {
    let number = client_number().map_err(start_failure)?;
    let credentials = credentials(cluster, number, Roles::CLIENT).map_err(start_failure)?;
    let mut last = String::new();
    for address in &cluster.metadata {
        let client = Client::new(Target {
            address: address.clone(),
            wish: Wish { lane: Lane::Control, node: None },
            credentials: credentials.clone(),
            handler: std::sync::Arc::new(NobodyAnswers),
            tuning: Tuning::default(),
        });
        let mut call = Call::new(
            control::Hello::METHOD.number(),
            control::Hello {}.encode_to_vec(),
            Instant::now() + PATIENCE,
        );
        call.answer_bytes_max = MAP_BYTES_MAX;
        match client.call(call) {
            Ok(answered) if answered.header.verdict == Verdict::Done => {
                return ClusterMap::decode(&answered.body)
                    .map_err(|error| Failure::failed(format!("{address}: the cluster map: {error}")));
            }
            Ok(answered) => last = format!("{address}: {}", proto::fault::read(&answered.meta).detail),
            Err(error) => last = format!("{address}: {error}"),
        }
    }
    Err(Failure::new(Exit::TimedOut, last).hint("does the metadata server run there, with this cluster key?"))
}

fn start_failure(error: StartError) -> Failure {
    Failure::usage(error.to_string())
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
