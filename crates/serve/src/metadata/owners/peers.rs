//! Asking other metadata servers.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, sync_channel},
    },
    time::{Duration, Instant},
};

use cluster::{ClusterMap, NodeId};
use net::{Address, Answered, Call, CallError, Channel, Client, Credentials, NobodyAnswers, Target, Tuning};
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
/// To make a connection.
const CONNECT_WAIT: Duration = Duration::from_secs(1);
/// Between two looks whether who was asked is still there.
const LOOK: Duration = Duration::from_millis(50);

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
                tuning: Tuning { connect_wait: CONNECT_WAIT, ..Tuning::default() },
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
        self.ask_by(request, body, wait, |client, call| client.call(call).map_err(|error| error.to_string()))
    }

    /// The same, and not for longer than it is there: a connection that is lost is made again once, and who is not heard any more is not waited for.
    /// What he was asked may be carried out all the same.
    pub(crate) fn ask_while<R: Request>(
        &self,
        request: &R,
        body: Vec<u8>,
        wait: Duration,
        is_heard: impl Fn() -> bool,
    ) -> Result<(R::Answer, Vec<u8>), No> {
        self.ask_by(request, body, wait, |client, call| call_while(client, call, &is_heard))
    }

    fn ask_by<R: Request>(
        &self,
        request: &R,
        body: Vec<u8>,
        wait: Duration,
        ask: impl Fn(&Client, Call) -> Result<Answered, String>,
    ) -> Result<(R::Answer, Vec<u8>), No> {
        let until = Instant::now() + wait;
        let mut why = "it has no address".to_owned();
        for client in &self.clients {
            let call = Call {
                body: Body::new(body.clone()),
                answer_bytes_max: BODY_MAX,
                ..Call::new(R::METHOD.number(), request.encode_to_vec(), until)
            };
            match ask(client, call) {
                Ok(answered) if answered.header.verdict == Verdict::Done => {
                    let answer = R::Answer::decode(&answered.meta[..]).map_err(|_| Errno::EIO)?;
                    return Ok((answer, answered.body.into_vec()));
                }
                Ok(answered) if answered.header.verdict == Verdict::Fault => {
                    return Err(No(Box::new(proto::fault::read(&answered.meta))));
                }
                Ok(_) => why = "it is leaving".to_owned(),
                Err(error) => why = error,
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

fn call_while(client: &Client, call: Call, is_heard: &dyn Fn() -> bool) -> Result<Answered, String> {
    let text = |error: CallError| error.to_string();
    let until = call.deadline;
    let channel = client.channel(until.min(Instant::now() + CONNECT_WAIT)).map_err(text)?;
    let (answer, answered) = sync_channel(1);
    let heard = move |result| drop(answer.send(result));
    channel.begin_then(call, heard).map_err(text)?;
    loop {
        match answered.recv_timeout(LOOK) {
            Ok(result) => return result.map_err(|failure| text(failure.into())),
            Err(RecvTimeoutError::Timeout) if Instant::now() >= until => {
                return Err("no answer in time".to_owned());
            }
            Err(RecvTimeoutError::Timeout) if is_heard() => {}
            Err(RecvTimeoutError::Timeout) => return Err("it is not heard any more".to_owned()),
            Err(RecvTimeoutError::Disconnected) => return Err("the connection is over".to_owned()),
        }
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

    /// It has come anew: attempts to reach its last life do not hold up those to reach this one.
    pub(crate) fn forget(&self, node: NodeId) {
        self.known.lock().remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use net::{Bounds, Handler, Incoming, Reply, Server};
    use proto::owners::SlotLoads;
    use wire::{
        connection::Window,
        handshake::{Identity, Roles, Versions},
        key::ClusterKey,
    };

    use super::*;

    /// Hears everything and says nothing.
    #[derive(Default)]
    struct Mute(Mutex<Vec<Reply>>);

    impl Handler for Mute {
        fn asked(&self, _: Incoming, reply: Reply) {
            self.0.lock().push(reply);
        }
    }

    fn credentials(node: u64) -> Credentials {
        let takes = Window { requests: 64, bytes: 1 << 20 };
        let (roles, versions) = (Roles::MDS, Versions::OURS);
        let me = Identity { cluster: [1; 16], node, roles, build: "test".into(), versions, takes };
        Credentials { me, key: ClusterKey::new([7; 32]), tls: None }
    }

    /// Goal: a server that hangs is waited for as long as it is heard, and no longer, whatever the time that it has. Method: it is heard three times,
    /// and has a day.
    #[test]
    fn regression_who_is_not_heard_any_more_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let address: Address = format!("unix:{}", dir.path().join("socket").display()).parse().unwrap();
        let handler = Arc::new(Mute::default());
        let (tuning, bounds) = (Tuning::default(), Bounds::default());
        let server = Server::start(&address, credentials(1), handler.clone(), tuning, bounds).unwrap();
        let peer = Peer::new(vec![address], Some(NodeId(1)), &credentials(2));
        let looks = AtomicU32::new(0);
        let is_heard = || looks.fetch_add(1, Ordering::Relaxed) < 3;
        let day = Duration::from_secs(24 * 3600);
        let no = peer.ask_while(&SlotLoads {}, Vec::new(), day, is_heard).unwrap_err();
        assert!(no.0.detail.contains("not heard any more"), "{}", no.0.detail);
        assert_eq!((looks.load(Ordering::Relaxed), handler.0.lock().len()), (4, 1));
        drop(server);
    }
}
