//! The data servers that the metadata service knows: what they reported, the cluster map of them, and asking them.
//!
//! - A server that was silent for a while gets no new files, and is not waited for: asking it fails at once.
//! - One that cannot be reached for a moment may be starting again: who asks is told to come again soon, until it counts as silent.
//! - One that did not answer in time is not asked again before it has reported once more, so that a server that hangs holds up one
//!   request and not every one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use cluster::{
    Change, ClusterMap, Node, NodeId, NodeState,
    placement::{Measure, Measures},
};
use net::{Address, Answered, Call, CallError, Client, Credentials, Instance, NobodyAnswers, Target, Tuning};
use parking_lot::Mutex;
use prost::Message;
use proto::{
    Request,
    control::{NodeReport, Peer, Pressure},
    moving::StandingKind,
};
use wire::{
    connection::{Cause, Failure},
    frame::Verdict,
    handshake::{Roles, Wish},
    schema::Lane,
};

use crate::{answer::No, standing::Standing, waking::Waking};

/// How long a connection to a data server is waited for.
const CONNECTING_MAX: Duration = Duration::from_millis(300);

/// In one answer.
const PEERS_MAX: usize = 256;

struct Known {
    report: NodeReport,
    heard: Instant,
    /// By the time in which we could hear it.
    heard_awake: Duration,
    /// It did not answer in time, and has not reported since.
    suspect: bool,
    /// One for each address; the first that works is used.
    clients: Vec<Arc<Client>>,
}

struct State {
    map: ClusterMap,
    /// Another makes it,
    follows: bool,
    /// and we have had one.
    adopted: bool,
    nodes: BTreeMap<u64, Known>,
    /// Those that are being drained, or were removed.
    standings: BTreeMap<u64, Standing>,
    /// Rises with each change of them, of several metadata servers at all of them, also when another makes the map.
    standings_version: u64,
}

pub struct Nodes {
    credentials: Credentials,
    /// At each of them, under whatever addresses.
    instance: Instance,
    /// A server that is silent so long is away.
    silence: Duration,
    /// What an answer is waited for.
    patience: Duration,
    /// Since the start: data servers that were there before report within the time of silence.
    clock: Waking,
    state: Mutex<State>,
}

/// How a data server stands that takes stripes of others.
pub(crate) struct Pressed {
    pub node: u64,
    pub pressure: Pressure,
    pub busy: u32,
    pub heard: Instant,
}

/// What is known of a data server, for people.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeStatus {
    pub report: NodeReport,
    pub heard: Duration,
    pub away: bool,
    /// What it has goes elsewhere.
    pub draining: bool,
}

impl State {
    fn kind(&self, node: u64) -> StandingKind {
        self.standings.get(&node).map_or(StandingKind::In, |standing| standing.kind)
    }

    fn kind_in_map(&self, node: u64) -> NodeState {
        match self.kind(node) {
            StandingKind::In => NodeState::Up,
            StandingKind::Draining => NodeState::Draining,
            StandingKind::Removed => NodeState::Down,
        }
    }

    /// What the map is to say of a node whose standing has changed.
    fn changes(&self, node: u64) -> Vec<Change> {
        let Some(there) = self.map.node(NodeId(node)) else { return Vec::new() };
        let gone = self.kind(node) == StandingKind::Removed;
        if gone && !there.roles.has(Roles::MDS) {
            return vec![Change::Remove(there.id)];
        }
        let roles = if gone { there.roles.without(Roles::DS) } else { there.roles };
        // A metadata server's node stays one.
        let state = if gone { NodeState::Up } else { self.kind_in_map(node) };
        vec![Change::Put(Node { roles, state, ..there.clone() })]
    }
}

/// Data servers that are taken out.
impl Nodes {
    /// As it was stored.
    pub(crate) fn know(&self, standings: BTreeMap<u64, Standing>) {
        let mut state = self.state.lock();
        state.standings_version = state.standings_version.max(state.map.epoch().0) + 1;
        state.standings = standings;
    }

    pub(crate) fn standings_version(&self) -> u64 {
        self.state.lock().standings_version
    }

    /// As who makes the map has it. Returns those that are others than before, if it is no older.
    pub(crate) fn adopt_standings(&self, version: u64, standings: BTreeMap<u64, Standing>) -> Vec<u64> {
        let mut state = self.state.lock();
        if version < state.standings_version || !state.follows {
            return Vec::new();
        }
        let before = std::mem::replace(&mut state.standings, standings);
        state.standings_version = version;
        let all: BTreeSet<u64> = before.keys().chain(state.standings.keys()).copied().collect();
        let changed: Vec<u64> =
            all.into_iter().filter(|node| before.get(node) != state.standings.get(node)).collect();
        for node in &changed {
            if state.kind(*node) == StandingKind::Removed {
                state.nodes.remove(node);
            }
        }
        changed
    }

    pub(crate) fn standings(&self) -> BTreeMap<u64, Standing> {
        self.state.lock().standings.clone()
    }

    pub(crate) fn standing(&self, node: u64) -> Option<Standing> {
        self.state.lock().standings.get(&node).cloned()
    }

    /// It is stored already. Everybody is told by the map.
    pub(crate) fn set_standing(&self, node: u64, standing: Option<Standing>) -> Result<(), No> {
        let mut state = self.state.lock();
        state.standings_version = state.standings_version.max(state.map.epoch().0) + 1;
        match standing {
            Some(standing) => state.standings.insert(node, standing),
            None => state.standings.remove(&node),
        };
        if state.kind(node) == StandingKind::Removed {
            state.nodes.remove(&node);
        }
        let changes = state.changes(node);
        if !changes.is_empty() && !state.follows {
            state.map = state.map.next(&changes).map_err(refused)?;
        }
        Ok(())
    }

    pub(crate) fn draining(&self) -> Vec<u64> {
        let state = self.state.lock();
        let draining = |node: &&u64| state.kind(**node) == StandingKind::Draining;
        state.standings.keys().filter(draining).copied().collect()
    }

    pub(crate) fn is_draining(&self, node: u64) -> bool {
        self.state.lock().kind(node) == StandingKind::Draining
    }

    /// Is it there, and may it get something?
    pub(crate) fn takes_data(&self, node: u64) -> bool {
        let state = self.state.lock();
        let here = state.nodes.get(&node).is_some_and(|known| !self.is_away(known));
        here && state.kind(node) == StandingKind::In
    }

    /// `None`: no such data server has reported.
    pub(crate) fn name_of(&self, node: u64) -> Option<String> {
        self.state.lock().nodes.get(&node).map(|known| known.report.name.clone())
    }

    pub(crate) fn addresses(&self, node: u64) -> Option<Vec<String>> {
        self.state.lock().nodes.get(&node).map(|known| known.report.addresses.clone())
    }

    /// Those that do not know of some of their copies whether they count.
    pub(crate) fn with_copies(&self) -> Vec<u64> {
        let state = self.state.lock();
        let with = state.nodes.iter().filter(|(_, known)| known.report.copies > 0 && !self.is_away(known));
        with.map(|(node, _)| *node).collect()
    }
}

fn refused(refused: cluster::Refused) -> No {
    tracing::warn!(%refused, "a change of the map is not made");
    let retry = wire::schema::Retry::Never;
    No::new(types::Errno::EINVAL, retry, proto::Reason::None, refused.to_string())
}

impl Nodes {
    /// `me` is the metadata server's own node, which the map names.
    pub fn new(credentials: Credentials, me: Option<Node>, silence: Duration, patience: Duration) -> Nodes {
        let first = ClusterMap::first(credentials.me.cluster);
        let map = me.and_then(|me| first.next(&[Change::Put(me)]).ok()).unwrap_or(first);
        let state = State {
            map,
            follows: false,
            adopted: false,
            nodes: BTreeMap::new(),
            standings: BTreeMap::new(),
            standings_version: 0,
        };
        let state = Mutex::new(state);
        let instance = Instance::random();
        Nodes { credentials, instance, silence, patience, clock: Waking::for_silence(silence), state }
    }

    pub fn map(&self) -> ClusterMap {
        self.state.lock().map.clone()
    }

    pub fn epoch(&self) -> u64 {
        self.state.lock().map.epoch().0
    }

    /// Makes maps from now on, in place of one that was made for a server alone.
    pub(crate) fn make_maps(&self, map: ClusterMap) {
        let mut state = self.state.lock();
        state.map = map;
        state.follows = false;
    }

    /// Another makes the map from now on, and this is its first.
    pub(crate) fn follow_from(&self, map: ClusterMap) {
        let mut state = self.state.lock();
        state.map = map;
        (state.follows, state.adopted) = (true, true);
    }

    /// Another server makes the map: reports say who is there, and no more. Of who made it before the last one is as good as any.
    pub(crate) fn follow(&self, made: bool) {
        let mut state = self.state.lock();
        (state.follows, state.adopted) = (true, made);
    }

    /// Is there a map to be told?
    pub(crate) fn has_map(&self) -> bool {
        let state = self.state.lock();
        !state.follows || state.adopted
    }

    /// The map of who makes it, unless ours is newer.
    pub(crate) fn adopt(&self, map: ClusterMap) {
        let mut state = self.state.lock();
        if map.epoch() > state.map.epoch() || !state.adopted {
            state.adopted = true;
            state.map = map;
        }
    }

    /// The next map, if there is anything to change.
    pub(crate) fn change(&self, changes: &[Change]) -> Result<(), No> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut state = self.state.lock();
        state.map = state.map.next(changes).map_err(refused)?;
        Ok(())
    }

    /// A data server says what it is. Returns the map's epoch.
    pub fn reported(&self, report: &NodeReport) -> Result<u64, No> {
        let mut state = self.state.lock();
        let addresses = addresses(report)?;
        if state.kind(report.node) == StandingKind::Removed {
            let why = format!(
                "node {} was removed from the cluster; `onfs node undrain {}` takes it back",
                report.node, report.node
            );
            return Err(No::new(types::Errno::EPERM, wire::schema::Retry::Never, proto::Reason::None, why));
        }
        let known = state.nodes.get(&report.node);
        // One that was started again is there: no connection waits any longer because earlier attempts had failed.
        let same = known.is_some_and(|known| {
            known.report.addresses == report.addresses && known.report.incarnation == report.incarnation
        });
        if !state.follows && !known.is_some_and(|known| in_map(&known.report, report)) {
            let node = Node { state: state.kind_in_map(report.node), ..as_node(report, &state.map)? };
            state.map = state.map.next(&[Change::Put(node)]).map_err(|refused| {
                tracing::warn!(node = report.node, %refused, "a data server's report is not taken");
                No::new(
                    types::Errno::EINVAL,
                    wire::schema::Retry::Never,
                    proto::Reason::None,
                    refused.to_string(),
                )
            })?;
        }
        let clients = match state.nodes.remove(&report.node) {
            Some(known) if same => known.clients,
            Some(_) | None => {
                addresses.iter().map(|address| Arc::new(self.client(report.node, address))).collect()
            }
        };
        let known = Known {
            report: report.clone(),
            heard: Instant::now(),
            heard_awake: self.clock.now(),
            suspect: false,
            clients,
        };
        state.nodes.insert(report.node, known);
        Ok(state.map.epoch().0)
    }

    fn client(&self, node: u64, address: &Address) -> Client {
        // Shorter than the patience with an answer: an address that does not work must leave time for the next.
        let tuning = Tuning { connect_wait: self.patience / 2, ..Tuning::default() };
        let target = Target {
            address: address.clone(),
            wish: Wish { lane: Lane::Data, node: Some(node) },
            credentials: self.credentials.clone(),
            handler: Arc::new(NobodyAnswers),
            tuning,
        };
        Client::of(self.instance, target)
    }

    /// The life in which each data server was heard of last, and whether it is there; without those that take part in no second copies.
    pub(crate) fn lives(&self) -> BTreeMap<u64, (u64, bool)> {
        let state = self.state.lock();
        let with = state.nodes.iter().filter(|(_, known)| known.report.life != 0);
        with.map(|(node, known)| (*node, (known.report.life, !self.is_away(known)))).collect()
    }

    /// Where data servers are, for each other.
    pub(crate) fn peers(&self) -> Vec<Peer> {
        let state = self.state.lock();
        let peer =
            |(node, known): (&u64, &Known)| Peer { node: *node, addresses: known.report.addresses.clone() };
        state.nodes.iter().take(PEERS_MAX).map(peer).collect()
    }

    /// Just started, and not all data servers of the map have reported.
    pub(crate) fn is_early(&self) -> bool {
        let state = self.state.lock();
        let mut servers = state.map.nodes().filter(|node| node.takes_data()).peekable();
        // Who makes the map hears of them one after the other.
        let lacks = servers.peek().is_none() || servers.any(|node| !state.nodes.contains_key(&node.id.0));
        self.clock.now() < self.silence && lacks
    }

    /// Of those that are there.
    pub fn measures(&self) -> Measures {
        let state = self.state.lock();
        let here = state.nodes.iter().filter(|(_, known)| !self.is_away(known));
        here.map(|(node, known)| {
            (NodeId(*node), Measure { free: known.report.free, busy: known.report.busy })
        })
        .collect()
    }

    /// The same without those that are taken out: the map may be told later than who that is.
    pub(crate) fn measures_of_takers(&self) -> Measures {
        let mut measures = self.measures();
        let state = self.state.lock();
        measures.retain(|node, _| state.kind(node.0) == StandingKind::In);
        measures
    }

    /// The same without those that are full, unless all are: what went there would soon have to leave.
    pub fn measures_for_new(&self) -> Measures {
        let mut measures = self.measures_of_takers();
        let full: Vec<NodeId> = {
            let state = self.state.lock();
            let forced = |known: &Known| known.report.pressure.is_some_and(|pressure| pressure.forced);
            state.nodes.iter().filter(|(_, known)| forced(known)).map(|(node, _)| NodeId(*node)).collect()
        };
        if measures.keys().any(|node| !full.contains(node)) {
            measures.retain(|node, _| !full.contains(node));
        }
        measures
    }

    /// Of those that say how they stand, and may get something.
    pub(crate) fn pressures(&self) -> Vec<Pressed> {
        let state = self.state.lock();
        let here = state
            .nodes
            .iter()
            .filter(|(node, known)| !self.is_away(known) && state.kind(**node) == StandingKind::In);
        let pressed = here.filter_map(|(node, known)| {
            let pressure = known.report.pressure?;
            Some(Pressed { node: *node, pressure, busy: known.report.busy, heard: known.heard })
        });
        pressed.collect()
    }

    /// Of each of these one part in `one_in` of all its room is free, as it said last.
    pub(crate) fn have_free(&self, nodes: &[u64], one_in: u64) -> bool {
        let state = self.state.lock();
        nodes.iter().all(|node| {
            let here = state.nodes.get(node).filter(|known| !self.is_away(known));
            here.is_some_and(|known| known.report.free >= known.report.total / one_in)
        })
    }

    /// All and free bytes of those that are there.
    pub fn space(&self) -> (u64, u64) {
        let state = self.state.lock();
        let here = state.nodes.values().filter(|known| !self.is_away(known));
        here.fold((0, 0), |(total, free), known| {
            (total.saturating_add(known.report.total), free.saturating_add(known.report.free))
        })
    }

    /// Those that may still carry out something of who is not in this roster: they do not keep to it, and were heard of not so long ago.
    pub(crate) fn without_roster(&self, version: u64, patience: Duration) -> Vec<u64> {
        let state = self.state.lock();
        let without = state.nodes.iter().filter(|(_, known)| {
            let report = &known.report;
            report.refuses && report.roster < version && self.silent(known) <= patience
        });
        without.map(|(node, _)| *node).collect()
    }

    /// Each data server of the map was heard of, and keeps to this roster or a later one.
    pub(crate) fn all_keep(&self, version: u64, patience: Duration) -> bool {
        let state = self.state.lock();
        let keeps = |known: &Known| {
            let report = &known.report;
            report.refuses && report.roster >= version && known.heard.elapsed() <= patience
        };
        let mut servers = state.map.nodes().filter(|node| node.roles.has(Roles::DS));
        servers.all(|node| state.nodes.get(&node.id.0).is_some_and(keeps))
    }

    pub fn status(&self) -> Vec<NodeStatus> {
        let state = self.state.lock();
        let status = |(node, known): (&u64, &Known)| NodeStatus {
            report: known.report.clone(),
            heard: known.heard.elapsed(),
            away: self.is_away(known),
            draining: state.kind(*node) == StandingKind::Draining,
        };
        state.nodes.iter().map(status).collect()
    }

    fn silent(&self, known: &Known) -> Duration {
        self.clock.now().saturating_sub(known.heard_awake)
    }

    fn is_away(&self, known: &Known) -> bool {
        self.silent(known) > self.silence || known.suspect
    }

    /// Time goes on for as long as somebody calls this.
    pub(crate) fn look(&self) {
        self.clock.look();
    }

    /// Asks several servers at once, and waits for all.
    pub fn ask_all<R: Request>(&self, asked: &[(u64, R)]) -> Vec<Result<R::Answer, No>> {
        let deadline = Instant::now() + self.patience;
        let begun: Vec<_> = asked
            .iter()
            .map(|(node, request)| {
                let cuts = R::METHOD.changes_object();
                let call = Call { cuts, ..Call::new(R::METHOD.number(), request.encode_to_vec(), deadline) };
                (*node, self.begin(*node, call))
            })
            .collect();
        let waited = begun.into_iter().map(|(node, begun)| match begun {
            Ok(pending) => {
                let answered = pending.wait().map_err(|error| self.lost(node, &error.into()))?;
                answer::<R>(node, &answered)
            }
            Err(no) => Err(no),
        });
        waited.collect()
    }

    fn begin(&self, node: u64, call: Call) -> Result<net::Pending, No> {
        let clients = {
            let state = self.state.lock();
            let Some(known) = state.nodes.get(&node) else {
                let early = self.clock.now() < self.silence;
                let no = if early { No::soon } else { No::away };
                return Err(no(node, "it has not reported"));
            };
            if self.is_away(known) {
                return Err(No::away(node, "it does not report, or did not answer"));
            }
            known.clients.clone()
        };
        let mut failed = None;
        for client in clients {
            // Whoever asks comes again soon: one that is being started again holds nobody up meanwhile.
            let until = call.deadline.min(Instant::now() + CONNECTING_MAX);
            let begun = client.channel(until).and_then(|channel| channel.begin(call.clone()));
            match begun {
                Ok(pending) => return Ok(pending),
                Err(error) => failed = Some(error),
            }
        }
        Err(match failed {
            Some(error) => self.lost(node, &error),
            None => No::away(node, "it has no address"),
        })
    }

    fn lost(&self, node: u64, error: &CallError) -> No {
        let hangs = matches!(
            error,
            CallError::Failed(Failure::NotSent(Cause::Deadline) | Failure::Unknown(Cause::Deadline))
        );
        if !hangs {
            tracing::debug!(request = %net::trace::current(), node, %error, "a data server cannot be asked now");
            return No::soon(node, &error.to_string());
        }
        tracing::warn!(request = %net::trace::current(), node, %error, "a data server does not answer");
        if let Some(known) = self.state.lock().nodes.get_mut(&node) {
            known.suspect = true;
        }
        No::away(node, &error.to_string())
    }
}

fn answer<R: Request>(node: u64, answered: &Answered) -> Result<R::Answer, No> {
    match answered.header.verdict {
        Verdict::Done => {
            R::Answer::decode(&answered.meta[..]).map_err(|_| No::away(node, "an answer that is none"))
        }
        Verdict::Fault => Err(No(Box::new(proto::fault::read(&answered.meta)))),
        Verdict::Refused => Err(No::away(node, "refused")),
    }
}

/// What the map says of a node is the same in both.
fn in_map(one: &NodeReport, other: &NodeReport) -> bool {
    one.name == other.name
        && one.rack == other.rack
        && one.addresses == other.addresses
        && one.incarnation == other.incarnation
}

fn addresses(report: &NodeReport) -> Result<Vec<Address>, No> {
    let parsed: Result<Vec<Address>, _> = report.addresses.iter().map(|text| text.parse()).collect();
    parsed.map_err(|_| No::from(proto::Bad::Range("address")))
}

/// A node that has the metadata role keeps it.
fn as_node(report: &NodeReport, map: &ClusterMap) -> Result<Node, No> {
    let epoch = map.epoch().0.checked_add(1).ok_or(types::Errno::EOVERFLOW)?;
    let before = map.node(NodeId(report.node));
    let rack = (!report.rack.is_empty()).then(|| (cluster::node::RACK.to_owned(), report.rack.clone()));
    Ok(Node {
        id: NodeId(report.node),
        name: report.name.clone(),
        addresses: report.addresses.clone(),
        roles: before.map_or(Roles::DS, |node| node.roles.and(Roles::DS)),
        labels: rack.into_iter().collect(),
        state: NodeState::Up,
        joined: cluster::Epoch(epoch),
    })
}
