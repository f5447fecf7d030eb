//! The other data servers: where they are, asking them, and leave to answer for what both have ([`cluster::replica::trust`]).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use cluster::{
    replica::{
        Member,
        copy::{Copy, Leave},
        trust::Trust,
    },
    tenure::{Terms, Time},
};
use net::{Address, Answered, Call, Channel, Client, Credentials, NobodyAnswers, Target, Tuning};
use parking_lot::{Condvar, Mutex, MutexGuard};
use prost::Message;
use proto::{Request, control::Peer, data::Object};
use types::Ino;
use wire::{
    frame::{Body, Verdict},
    handshake::Wish,
    schema::Lane,
};

use crate::answer::No;

/// What one lets another do is over after that.
pub(super) const TERMS: Terms = Terms {
    lease: Duration::from_secs(2),
    beat_every: Duration::from_millis(300),
    suspect_after: Duration::from_secs(2),
    drift_one_in: 20,
};
/// An answer is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// A connection.
const CONNECTING: Duration = Duration::from_millis(300);
/// Who could not be reached is not tried again before.
const REST: Duration = Duration::from_millis(200);
/// Leave is asked for so long after somebody wanted it.
const WANTED_FOR: Duration = Duration::from_secs(3);

struct Known {
    trust: Trust,
    wanted: Option<Instant>,
    asked: Option<Instant>,
    is_asking: bool,
    /// Views of objects of which it said that we do not have them: it is told that we know.
    knows: Vec<Object>,
}

struct Reached {
    addresses: Vec<String>,
    clients: Vec<Arc<Client>>,
    failed: Option<Instant>,
}

#[derive(Default)]
struct State {
    trust: BTreeMap<Member, Known>,
    nodes: HashMap<u64, Reached>,
    /// Who there is.
    asked_who: Option<Instant>,
    /// Of the map by which they were told.
    epoch: u64,
}

pub(in crate::data) struct Peers {
    started: Instant,
    credentials: OnceLock<Credentials>,
    state: Mutex<State>,
    /// Somebody wants leave.
    pub(super) woken: (Mutex<bool>, Condvar),
    /// Has the metadata server asked who there is.
    asks_who: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// It said so.
    heard_who: Condvar,
}

impl State {
    fn known(&mut self, member: Member) -> &mut Known {
        self.trust.entry(member).or_insert_with(|| Known {
            trust: Trust::new(TERMS),
            wanted: None,
            asked: None,
            is_asking: false,
            knows: Vec::new(),
        })
    }
}

/// A question about leave that is to be asked.
pub(super) struct Question {
    pub of: Member,
    pub number: u64,
    pub knows: Vec<Object>,
}

impl Peers {
    pub fn new() -> Peers {
        Peers {
            started: Instant::now(),
            credentials: OnceLock::new(),
            state: Mutex::default(),
            woken: Default::default(),
            asks_who: OnceLock::new(),
            heard_who: Condvar::new(),
        }
    }

    pub fn set_credentials(&self, credentials: Credentials) {
        // They are the process's.
        let _ = self.credentials.set(credentials);
    }

    pub fn ask_who_with(&self, asks: Box<dyn Fn() + Send + Sync>) {
        // It is the process's.
        let _ = self.asks_who.set(asks);
    }

    pub fn now(&self) -> Time {
        self.started.elapsed()
    }

    pub fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }

    /// A metadata server says who there is.
    pub fn know(&self, epoch: u64, peers: &[Peer]) {
        let mut state = self.state.lock();
        if peers.is_empty() {
            return;
        }
        state.epoch = epoch;
        for peer in peers {
            let same = state.nodes.get(&peer.node).is_some_and(|known| known.addresses == peer.addresses);
            if !same {
                let reached =
                    Reached { addresses: peer.addresses.clone(), clients: Vec::new(), failed: None };
                state.nodes.insert(peer.node, reached);
            }
        }
        self.heard_who.notify_all();
    }

    /// One that has come since we reported last is there when that is done again.
    fn wait_to_hear_of(&self, node: u64) {
        let Some(ask) = self.asks_who.get() else { return };
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.nodes.contains_key(&node) {
            return;
        }
        let asked = state.asked_who.filter(|at| now < *at + CONNECTING + REST);
        let until = asked.unwrap_or(now) + CONNECTING;
        if asked.is_none() {
            state.asked_who = Some(now);
            MutexGuard::unlocked(&mut state, ask);
        }
        while !state.nodes.contains_key(&node) {
            if self.heard_who.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    // Leave.

    pub fn leave(&self, copy: &Copy, ino: Ino) -> Leave {
        let (now, peer) = (self.now(), copy.peer());
        let mut state = self.state.lock();
        let settled = state.trust.values().all(|known| known.trust.is_settled(now, ino));
        let act = peer.and_then(|peer| state.trust.get_mut(&peer)).is_some_and(|known| {
            // It is used: it is asked for again before it ends.
            known.wanted = Some(Instant::now());
            known.trust.may_act(now)
        });
        Leave { view: copy.view().map_or(0, |view| view.number), act, settled }
    }

    pub fn want(&self, member: Member) {
        self.state.lock().known(member).wanted = Some(Instant::now());
        self.wake();
    }

    pub fn wake(&self) {
        *self.woken.0.lock() = true;
        self.woken.1.notify_all();
    }

    pub fn leave_out(&self, member: Member, ino: Ino, view: u64) {
        self.state.lock().known(member).trust.leave_out(ino, view);
    }

    /// It asks, and says what it knows. The objects that it is to be told of, if it may not.
    pub fn asked(&self, by: Member, knows: &[(Ino, u64)]) -> Result<(), Vec<Ino>> {
        let now = self.now();
        let mut state = self.state.lock();
        let known = state.known(by);
        knows.iter().for_each(|(ino, view)| known.trust.knows(*ino, *view));
        if known.trust.grant(now) {
            return Ok(());
        }
        Err(known.trust.untold().map(|(ino, _)| ino).take(proto::copies::LEFT_OUT_MAX).collect())
    }

    /// Whom to ask now.
    pub fn questions(&self) -> Vec<Question> {
        let now = self.now();
        let mut state = self.state.lock();
        let mut questions = Vec::new();
        for (member, known) in &mut state.trust {
            let is_wanted =
                known.wanted.is_some_and(|at| at.elapsed() < WANTED_FOR) || !known.knows.is_empty();
            let pause = if known.trust.may_act(now) { TERMS.beat_every } else { TERMS.beat_every / 6 };
            if known.is_asking || !is_wanted || known.asked.is_some_and(|at| at.elapsed() < pause) {
                continue;
            }
            (known.is_asking, known.asked) = (true, Some(Instant::now()));
            let number = known.trust.ask(now);
            questions.push(Question { of: *member, number, knows: known.knows.clone() });
        }
        questions
    }

    /// The answer. `None`: there was none.
    pub fn answered(&self, question: &Question, granted: Option<bool>) {
        let mut state = self.state.lock();
        let known = state.known(question.of);
        known.is_asking = false;
        if granted.is_some() {
            known.knows.retain(|object| !question.knows.contains(object));
        }
        if granted == Some(true) {
            known.trust.granted(question.number);
        }
    }

    /// We know that we do not have these any more, as it said.
    pub fn note_known(&self, of: Member, objects: Vec<Object>) {
        let mut state = self.state.lock();
        let known = state.known(of);
        known.knows.extend(objects);
        known.knows.truncate(proto::copies::LEFT_OUT_MAX);
        known.asked = None;
        drop(state);
        self.wake();
    }

    // Connections.

    /// A connection to it.
    pub fn channel(&self, node: u64) -> Result<Arc<Channel>, No> {
        self.wait_to_hear_of(node);
        let clients = self.clients(node)?;
        let until = Instant::now() + CONNECTING;
        for client in clients {
            if let Ok(channel) = client.channel(until) {
                return Ok(channel);
            }
        }
        if let Some(reached) = self.state.lock().nodes.get_mut(&node) {
            reached.failed = Some(Instant::now());
        }
        Err(No::soon(node, "it cannot be reached"))
    }

    fn clients(&self, node: u64) -> Result<Vec<Arc<Client>>, No> {
        let mut state = self.state.lock();
        let Some(reached) = state.nodes.get_mut(&node) else {
            return Err(No::soon(node, "nobody has said where it is"));
        };
        if reached.failed.is_some_and(|at| at.elapsed() < REST) {
            return Err(No::soon(node, "it could not be reached a moment ago"));
        }
        reached.failed = None;
        if reached.clients.is_empty() {
            let credentials = self.credentials.get().ok_or_else(|| No::away(node, "without credentials"))?;
            let addresses = reached.addresses.iter().filter_map(|text| text.parse::<Address>().ok());
            let client = |address| {
                Arc::new(Client::new(Target {
                    address,
                    wish: Wish { lane: Lane::Data, node: Some(node) },
                    credentials: credentials.clone(),
                    handler: Arc::new(NobodyAnswers),
                    tuning: Tuning { connect_wait: PATIENCE / 2, ..Tuning::default() },
                }))
            };
            reached.clients = addresses.map(client).collect();
        }
        Ok(reached.clients.clone())
    }

    /// Asks, and waits.
    pub fn ask<R: Request>(&self, node: u64, request: &R) -> Result<R::Answer, No> {
        let channel = self.channel(node)?;
        let answered = channel.call(call(request, Body::default()));
        answer::<R>(node, &answered.map_err(|error| No::soon(node, &error.to_string()))?)
    }
}

pub(super) fn call<R: Request>(request: &R, body: Body) -> Call {
    let call = Call::new(R::METHOD.number(), request.encode_to_vec(), Instant::now() + PATIENCE);
    Call { body, ..call }
}

pub(super) fn answer<R: Request>(node: u64, answered: &Answered) -> Result<R::Answer, No> {
    match answered.header.verdict {
        Verdict::Done => {
            R::Answer::decode(&answered.meta[..]).map_err(|_| No::away(node, "an answer that is none"))
        }
        Verdict::Fault => Err(No(Box::new(proto::fault::read(&answered.meta)))),
        Verdict::Refused => Err(No::soon(node, "refused")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_who_came_lately_is_asked_for_at_once() {
        let peers = Arc::new(Peers::new());
        let weak = Arc::downgrade(&peers);
        peers.ask_who_with(Box::new(move || {
            let one = Peer { node: 3, addresses: vec!["127.0.0.1:9".into()] };
            weak.upgrade().into_iter().for_each(|peers| peers.know(2, std::slice::from_ref(&one)));
        }));
        assert!(peers.clients(3).is_err_and(|no| no.0.detail.contains("nobody has said where it is")));
        // That it has nothing to prove itself with is found after who that is.
        assert!(peers.channel(3).is_err_and(|no| !no.0.detail.contains("nobody has said where it is")));
    }
}
