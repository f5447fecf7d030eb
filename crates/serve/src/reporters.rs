//! To which metadata servers a data server reports: those of its configuration, and all others that the cluster map names.
//!
//! - I-REPORT-1: whoever is a metadata server in the newest map that was heard of is reported to, once, whatever the configuration says.
//!
//! Nothing of it is kept: after a start the configured ones tell the rest again.

use std::{
    collections::BTreeMap,
    io,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use cluster::{ClusterMap, node::Node};
use net::{Address, Call, Client, Credentials, NobodyAnswers, Target, Tuning};
use parking_lot::{Condvar, Mutex};
use prost::Message;
use proto::{
    Request,
    control::{Facts, Hello, NodeReport},
};
use wire::{
    frame::Verdict,
    handshake::{Roles, Wish},
    schema::Lane,
};

use crate::{
    DataService,
    reporting::{Reporter, Trouble},
};

const PATIENCE: Duration = Duration::from_secs(2);
/// A map is far smaller.
const MAP_BYTES_MAX: u32 = 4 << 20;

/// Whom to report to.
#[derive(Clone)]
pub struct Servers {
    /// As they were configured.
    pub addresses: Vec<Address>,
    pub credentials: Credentials,
}

/// All reporters of one data server; they end when it is dropped.
pub struct Reporters {
    all: Arc<All>,
    thread: Option<JoinHandle<()>>,
}

struct All {
    service: Arc<DataService>,
    servers: Servers,
    about: NodeReport,
    learnt: Arc<Learnt>,
    reporters: Mutex<BTreeMap<String, Reporter>>,
}

#[derive(Default)]
struct Learnt {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    map: Option<ClusterMap>,
    /// Which node answers at an address.
    nodes: BTreeMap<String, u64>,
    is_new: bool,
    is_over: bool,
}

/// What one reporter tells of the map.
struct Known {
    learnt: Arc<Learnt>,
    address: String,
}

impl Reporters {
    /// `about` says who reports; the numbers are the service's.
    pub fn start(service: Arc<DataService>, servers: Servers, about: NodeReport) -> io::Result<Reporters> {
        let all =
            Arc::new(All { service, servers, about, learnt: Arc::default(), reporters: Mutex::default() });
        for address in &all.servers.addresses {
            all.begin(address, None)?;
        }
        let own = all.clone();
        let thread = std::thread::Builder::new().name("data-reporters".into());
        let thread = thread.spawn(move || {
            while let Some((map, nodes)) = own.learnt.next() {
                own.follow(&map, &nodes);
            }
        })?;
        Ok(Reporters { all, thread: Some(thread) })
    }

    /// `None`: all last reports were taken, by those that serve anything, and nobody says that this is not who its number stands for. Else that of the longest.
    pub fn trouble(&self) -> Option<Trouble> {
        let (map, nodes) = {
            let state = self.all.learnt.state.lock();
            (state.map.clone(), state.nodes.clone())
        };
        let serves =
            |address: &str| map.as_ref().is_none_or(|map| serves(map, address, nodes.get(address).copied()));
        let reporters = self.all.reporters.lock();
        let troubles =
            reporters.iter().filter_map(|(address, reporter)| Some((address, reporter.trouble()?)));
        let troubles = troubles.filter(|(address, trouble)| trouble.refused || serves(address));
        troubles.map(|(_, trouble)| trouble).min_by_key(|trouble| trouble.since)
    }

    /// `None`: a metadata server has taken the last report, and none says that this is not who its number stands for. One that is dead, and for
    /// which another goes on, keeps nobody from being used.
    pub fn unused(&self) -> Option<Trouble> {
        let reporters = self.all.reporters.lock();
        let mut troubles: Vec<Trouble> = reporters.values().filter_map(Reporter::trouble).collect();
        if troubles.len() < reporters.len() {
            troubles.retain(|trouble| trouble.refused);
        }
        troubles.into_iter().min_by_key(|trouble| trouble.since)
    }
}

/// Does who is reached there serve anything? One that died and has no slots any more needs no reports; nor does one that is in no map any more.
fn serves(map: &ClusterMap, address: &str, node: Option<u64>) -> bool {
    // Of one metadata server the map does not say what it has.
    let is_alone = map.slots().all(|(_, entry)| entry.owner.is_none());
    let is_it = |one: &&Node| Some(one.id.0) == node || one.addresses.iter().any(|its| its == address);
    let mut servers = map.nodes().filter(|node| node.roles.has(Roles::MDS));
    is_alone || servers.find(is_it).is_some_and(|it| map.slots_of(it.id).next().is_some())
}

impl Drop for Reporters {
    fn drop(&mut self) {
        self.all.learnt.state.lock().is_over = true;
        self.all.learnt.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that knows whom to report to ended with a panic");
        }
        let reporters = std::mem::take(&mut *self.all.reporters.lock());
        reporters.values().for_each(Reporter::end);
    }
}

impl All {
    fn begin(&self, address: &Address, node: Option<u64>) -> io::Result<()> {
        let to = Client::new(Target {
            address: address.clone(),
            wish: Wish { lane: Lane::Control, node },
            credentials: self.servers.credentials.clone(),
            handler: Arc::new(NobodyAnswers),
            tuning: Tuning::default(),
        });
        let address = address.to_string();
        let known = Known { learnt: self.learnt.clone(), address: address.clone() };
        let taken = Box::new(move |epoch, by: &Client| known.told(epoch, by));
        let reporter = Reporter::telling(self.service.clone(), to, self.about.clone(), taken)?;
        self.reporters.lock().insert(address, reporter);
        Ok(())
    }

    /// There is a newer map, or it became known who is at an address.
    fn follow(&self, map: &ClusterMap, nodes: &BTreeMap<String, u64>) {
        let configured: Vec<String> = self.servers.addresses.iter().map(Address::to_string).collect();
        let reached = |node: u64| configured.iter().any(|address| nodes.get(address) == Some(&node));
        let others = map.nodes().filter(|node| node.roles.has(Roles::MDS) && node.id.0 != self.about.node);
        let others = others.filter(|node| !reached(node.id.0)).filter_map(|node| {
            let address = node.addresses.iter().find_map(|text| text.parse::<Address>().ok())?;
            Some((address.to_string(), (address, node.id.0)))
        });
        let wanted: BTreeMap<String, (Address, u64)> =
            others.filter(|(address, _)| !configured.contains(address)).collect();
        let there: Vec<String> = self.reporters.lock().keys().cloned().collect();
        for (address, node) in wanted.iter().filter(|(text, _)| !there.contains(text)).map(|(_, it)| it) {
            tracing::info!(node, %address, "a metadata server is reported to that the cluster map names");
            if let Err(error) = self.begin(address, Some(*node)) {
                tracing::error!(%error, "the thread that reports");
            }
        }
        for gone in there.iter().filter(|text| !wanted.contains_key(*text) && !configured.contains(text)) {
            // Its end is waited for without the lock.
            let reporter = self.reporters.lock().remove(gone);
            drop(reporter);
        }
    }
}

impl Learnt {
    /// Waits for something new; `None`: it is over.
    fn next(&self) -> Option<(ClusterMap, BTreeMap<String, u64>)> {
        let mut state = self.state.lock();
        loop {
            if state.is_over {
                return None;
            }
            if std::mem::take(&mut state.is_new)
                && let Some(map) = &state.map
            {
                return Some((map.clone(), state.nodes.clone()));
            }
            self.changed.wait(&mut state);
        }
    }
}

impl Known {
    /// A report was answered by who has a map with this epoch.
    fn told(&self, epoch: u64, by: &Client) {
        {
            let state = self.learnt.state.lock();
            let is_old = state.map.as_ref().is_some_and(|map| map.epoch().0 >= epoch);
            if is_old && state.nodes.contains_key(&self.address) {
                return;
            }
        }
        let Some((node, map)) = hello(by) else { return };
        let mut state = self.learnt.state.lock();
        let moved = state.nodes.insert(self.address.clone(), node) != Some(node);
        let newer = state.map.as_ref().is_none_or(|had| had.epoch() < map.epoch());
        if newer {
            state.map = Some(map);
        }
        if moved || newer {
            state.is_new = true;
            self.learnt.changed.notify_all();
        }
    }
}

/// Who it is, and its map. One that was just started may have none yet.
fn hello(to: &Client) -> Option<(u64, ClusterMap)> {
    let deadline = Instant::now() + PATIENCE;
    let call = Call {
        answer_bytes_max: MAP_BYTES_MAX,
        ..Call::new(Hello::METHOD.number(), Hello {}.encode_to_vec(), deadline)
    };
    let answered = to.call(call).ok().filter(|answered| answered.header.verdict == Verdict::Done)?;
    let facts = Facts::decode(&answered.meta[..]).ok()?;
    Some((facts.node, ClusterMap::decode(&answered.body).ok()?))
}
