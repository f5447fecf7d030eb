//! Asking other metadata servers.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use cluster::{ClusterMap, NodeId};
use net::{Address, Call, Channel, Client, Credentials, NobodyAnswers, Target, Tuning};
use parking_lot::Mutex;
use prost::Message;
use proto::Request;
use types::Errno;
use wire::{
    frame::{Body, Verdict},
    handshake::Wish,
    schema::{Lane, Retry},
};

use crate::answer::No;

/// Bytes of an answer's body.
const BODY_MAX: u32 = 4 << 20;

/// One server.
pub(crate) struct Peer {
    addresses: Vec<Address>,
    clients: Vec<Client>,
}

impl Peer {
    pub(crate) fn new(addresses: Vec<Address>, node: Option<NodeId>, credentials: &Credentials) -> Peer {
        let client = |address: &Address| {
            Client::new(Target {
                address: address.clone(),
                wish: Wish { lane: Lane::Control, node: node.map(|node| node.0) },
                credentials: credentials.clone(),
                handler: Arc::new(NobodyAnswers),
                tuning: Tuning { connect_wait: Duration::from_secs(1), ..Tuning::default() },
            })
        };
        Peer { clients: addresses.iter().map(client).collect(), addresses }
    }

    /// A connection, if there is one. Waits for nothing.
    pub(crate) fn there(&self) -> Option<Arc<Channel>> {
        self.clients.iter().find_map(Client::there)
    }

    /// One that is made, if there is none.
    pub(crate) fn connected(&self, wait: Duration) -> Option<Arc<Channel>> {
        let until = Instant::now() + wait;
        self.there().or_else(|| self.clients.iter().find_map(|client| client.channel(until).ok()))
    }

    /// The answer and its body.
    pub(crate) fn ask<R: Request>(
        &self,
        request: &R,
        body: Vec<u8>,
        wait: Duration,
    ) -> Result<(R::Answer, Vec<u8>), No> {
        let until = Instant::now() + wait;
        let mut why = "it has no address".to_owned();
        for client in &self.clients {
            let call = Call {
                body: Body::new(body.clone()),
                answer_bytes_max: BODY_MAX,
                ..Call::new(R::METHOD.number(), request.encode_to_vec(), until)
            };
            match client.call(call) {
                Ok(answered) if answered.header.verdict == Verdict::Done => {
                    let answer = R::Answer::decode(&answered.meta[..]).map_err(|_| Errno::EIO)?;
                    return Ok((answer, answered.body));
                }
                Ok(answered) if answered.header.verdict == Verdict::Fault => {
                    return Err(No(Box::new(proto::fault::read(&answered.meta))));
                }
                Ok(_) => why = "it is leaving".to_owned(),
                Err(error) => why = error.to_string(),
            }
        }
        Err(No::new(
            Errno::ETIMEDOUT,
            Retry::Unknown,
            proto::Reason::None,
            format!("a metadata server does not answer: {why}"),
        ))
    }
}

/// Those of the map.
pub(crate) struct Peers {
    credentials: Credentials,
    known: Mutex<BTreeMap<NodeId, Arc<Peer>>>,
}

impl Peers {
    pub(crate) fn new(credentials: Credentials) -> Peers {
        Peers { credentials, known: Mutex::default() }
    }

    pub(crate) fn of(&self, map: &ClusterMap, node: NodeId) -> Result<Arc<Peer>, No> {
        let there = map.node(node).ok_or_else(|| No::later("a metadata server that is not in the map"))?;
        let addresses: Vec<Address> =
            there.addresses.iter().filter_map(|address| address.parse().ok()).collect();
        let mut known = self.known.lock();
        let peer = known.get(&node).filter(|peer| peer.addresses == addresses).cloned();
        Ok(peer.unwrap_or_else(|| {
            let peer = Arc::new(Peer::new(addresses, Some(node), &self.credentials));
            known.insert(node, peer.clone());
            peer
        }))
    }
}
