//! Asking the servers of a cluster over the wire, as a client that mounts nothing.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cluster::map::ClusterMap;
use net::{Address, Call, Client, Credentials, NobodyAnswers, Target, Tuning};
use prost::Message;
use proto::{
    Request,
    control::Hello,
    watch::{ClusterNow, ClusterStatus, WATCH_BYTES_MAX},
};
use types::UgsdId;
use wire::{
    frame::Verdict,
    handshake::{Roles, Wish},
    schema::Lane,
};

use super::settings::{settings, wrong};
use crate::{
    args::ConfigArgs,
    assemble::{client_number, credentials},
    config::{ClusterConfig, Host},
    exit::{Exit, Failure, Outcome},
    running::StartError,
};

/// A map is far smaller.
const MAP_BYTES_MAX: u32 = 4 << 20;
/// For one server; there may be several addresses.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A cluster, and what is needed to ask it.
pub(super) struct Cluster {
    credentials: Credentials,
    metadata: Vec<Address>,
}

impl Cluster {
    /// The one that is named, else that of the configuration.
    pub(super) fn named(config: &ConfigArgs, source: Option<&str>) -> Outcome<Cluster> {
        Cluster::asked_as(config, source, Roles::CLIENT)
    }

    /// The same, asked by who may be a server there.
    pub(super) fn ordered(config: &ConfigArgs, source: Option<&str>) -> Outcome<Cluster> {
        Cluster::asked_as(config, source, Roles::MDS)
    }

    fn asked_as(config: &ConfigArgs, source: Option<&str>, roles: Roles) -> Outcome<Cluster> {
        let host = Host::detect();
        let mut settings = settings(config, &host)?;
        if let Some(source) = source {
            settings.apply_flag("mount.source", source, source).map_err(|error| wrong(&[error]))?;
        }
        let cluster = ClusterConfig::resolve(&settings, &host).map_err(|error| wrong(&[error]))?;
        if cluster.metadata.is_empty() {
            return Err(Failure::usage("which cluster? write HOST[:PORT]:/, or set cluster.metadata"));
        }
        let number = client_number().map_err(start_failure)?;
        let credentials = credentials(&cluster, number, roles).map_err(start_failure)?;
        Ok(Cluster { credentials, metadata: cluster.metadata })
    }

    /// The same, who makes the map first: of several metadata servers the one on duty.
    pub(super) fn on_duty_first(mut self) -> Outcome<Cluster> {
        let (_, body) = self.ask(&Hello {}, MAP_BYTES_MAX)?;
        let map = ClusterMap::decode(&body)
            .map_err(|error| Failure::failed(format!("the cluster map cannot be read: {error}")))?;
        let duty = map.slot(UgsdId::ROOT.slot()).owner.and_then(|node| map.node(node));
        let addresses = duty.into_iter().flat_map(|node| &node.addresses);
        let first: Vec<Address> = addresses.filter_map(|text| text.parse().ok()).collect();
        self.metadata.retain(|address| !first.contains(address));
        self.metadata.splice(0..0, first);
        Ok(self)
    }

    /// A lane on which nothing large goes. Made when it is used.
    pub(super) fn client(&self, address: &Address, node: Option<u64>) -> Client {
        Client::new(Target {
            address: address.clone(),
            wish: Wish { lane: Lane::Control, node },
            credentials: self.credentials.clone(),
            handler: Arc::new(NobodyAnswers),
            tuning: Tuning::default(),
        })
    }

    /// Asks the first metadata server that answers.
    pub(super) fn ask<R: Request>(&self, request: &R, bytes_max: u32) -> Outcome<(R::Answer, Vec<u8>)> {
        let mut last = String::new();
        for address in &self.metadata {
            match ask(&self.client(address, None), request, bytes_max, PATIENCE) {
                Ok(answered) => return Ok(answered),
                Err(why) => last = format!("{address}: {why}"),
            }
        }
        Err(Failure::new(Exit::TimedOut, last)
            .hint("does the metadata server run there, with this cluster key?"))
    }

    /// Has something done. What the metadata server says no to is not asked of another.
    pub(super) fn order<R: Request>(&self, request: &R) -> Outcome<R::Answer> {
        let mut last = String::new();
        for address in &self.metadata {
            let call = Call::new(R::METHOD.number(), request.encode_to_vec(), Instant::now() + PATIENCE);
            match self.client(address, None).call(call) {
                Ok(answered) if answered.header.verdict == Verdict::Fault => {
                    let fault = proto::fault::read(&answered.meta);
                    let errno = types::Errno::from_raw(fault.errno);
                    let why = if fault.detail.is_empty() { errno.to_string() } else { fault.detail };
                    let exit = if errno == types::Errno::EBUSY { Exit::Busy } else { Exit::Failure };
                    return Err(Failure::new(exit, why));
                }
                Ok(answered) if answered.header.verdict == Verdict::Done => {
                    return R::Answer::decode(&answered.meta[..])
                        .map_err(|error| Failure::failed(error.to_string()));
                }
                Ok(_) => last = format!("{address}: it is ending"),
                Err(error) => last = format!("{address}: {error}"),
            }
        }
        Err(Failure::new(Exit::TimedOut, last)
            .hint("does the metadata server run there, with this cluster key?"))
    }

    /// What the metadata server knows of the cluster.
    pub(super) fn now(&self) -> Outcome<ClusterNow> {
        let (_, body) = self.ask(&ClusterStatus {}, WATCH_BYTES_MAX)?;
        ClusterNow::decode(&body[..])
            .map_err(|error| Failure::failed(format!("the metadata server's answer makes no sense: {error}")))
    }

    pub(super) fn metadata(&self) -> &[Address] {
        &self.metadata
    }
}

/// One request to one server, and why it has no answer.
pub(super) fn ask<R: Request>(
    client: &Client,
    request: &R,
    bytes_max: u32,
    patience: Duration,
) -> Result<(R::Answer, Vec<u8>), String> {
    let mut call = Call::new(R::METHOD.number(), request.encode_to_vec(), Instant::now() + patience);
    call.answer_bytes_max = bytes_max;
    let answered = client.call(call).map_err(|error| error.to_string())?;
    match answered.header.verdict {
        Verdict::Done => {
            let answer = R::Answer::decode(&answered.meta[..]).map_err(|error| error.to_string())?;
            Ok((answer, answered.body.into_vec()))
        }
        Verdict::Fault => {
            let fault = proto::fault::read(&answered.meta);
            let errno = types::Errno::from_raw(fault.errno);
            Err(if fault.detail.is_empty() { errno.to_string() } else { fault.detail })
        }
        Verdict::Refused => Err("it is ending".to_owned()),
    }
}

fn start_failure(error: StartError) -> Failure {
    Failure::usage(error.to_string())
}
