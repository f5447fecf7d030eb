//! Several metadata servers over one engine, data servers, and sessions that ask whoever has the slot.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use cluster::{
    ClusterMap, Epoch, NodeId,
    node::{Node, NodeState},
    tail::{
        Terms,
        row::{Change, Row},
    },
    tenure,
};
use kv::{ApplyError, Batch, Engine, Lsn, MetaStore, MetaStoreOptions, OpenError, SystemDisk};
use mds::{Bytes, MdsOptions};
use namespace::txn::{KvError, Visit};
use net::{Address, Bounds, Client, Server, Tuning};
use parking_lot::Mutex;
use prost::Message;
use proto::{
    Head, Reason, Request, SessionId,
    attr::{Attr, Caller},
    control::{MapSince, Mount, NodeReport},
    locks::{HadLocks, HeldLock},
    metadata::*,
    owners::{Bare, Bring, runs},
};
use serve::{
    MetadataService,
    metadata::{Joining, MetadataOptions, SlotRights, StandbyOptions, TailRows, TailTrouble, TailView, join},
    reporters::{Reporters, Servers},
    reporting::Reporter,
};
use types::{Errno, Ino, Slot};
use wire::{
    handshake::Roles,
    schema::{Fault, Lane},
};

use super::{
    DataSite, PATIENCE, ask, client_to,
    cluster::options,
    common_engine::{Common, Part},
    credentials, deadline,
    state::State,
    until,
};

const FIRST: u64 = 100;
/// Of operations: those of a session that comes again are others.
static FIRST_NUMBER: AtomicU64 = AtomicU64::new(1 << 20);

/// The rows, as one of them sees them.
struct Rows {
    common: Arc<Common>,
    refuse: Arc<AtomicBool>,
    slow: Arc<AtomicUsize>,
    epochs: Arc<Mutex<BTreeMap<u16, u64>>>,
    me: usize,
}

impl SlotRights for Rows {
    fn take_free(&self, slots: &[u16]) -> Result<BTreeMap<u16, u64>, String> {
        if self.refuse.load(Ordering::SeqCst) {
            return Err("the database does not answer".to_owned());
        }
        let end = deadline();
        while self.slow.load(Ordering::SeqCst) == self.me && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        let (mut owners, mut epochs) = (self.common.owners.lock(), self.epochs.lock());
        for slot in slots {
            if !owners.contains_key(slot) {
                owners.insert(*slot, self.me);
                *epochs.entry(*slot).or_default() += 1;
            }
        }
        let ours = slots.iter().filter(|slot| owners.get(slot) == Some(&self.me));
        Ok(ours.map(|slot| (*slot, epochs[slot])).collect())
    }

    fn release(&self, slots: &[u16]) -> Result<(), String> {
        let mut owners = self.common.owners.lock();
        for slot in slots {
            if owners.get(slot) == Some(&self.me) {
                owners.remove(slot);
            }
        }
        Ok(())
    }

    fn ours(&self) -> BTreeMap<u16, u64> {
        let (owners, epochs) = (self.common.owners.lock(), self.epochs.lock());
        owners.iter().filter(|(_, owner)| **owner == self.me).map(|(slot, _)| (*slot, epochs[slot])).collect()
    }
}

/// What the rows say of one server and its standby.
#[derive(Default)]
struct TailOf {
    row: Row<String>,
    /// It is not heard by the database any more.
    dead: bool,
    /// Somebody went on in its place, and it was not told.
    taken_over: bool,
    /// Its session has ended.
    fenced: bool,
    taken: BTreeSet<(String, u64)>,
}

/// All that one process does to the rows and the engine; a killed one does nothing.
#[derive(Clone)]
struct Life {
    common: Arc<Common>,
    epochs: Arc<Mutex<BTreeMap<u16, u64>>>,
    applied: Vec<Arc<Mutex<Lsn>>>,
    tails: Arc<Mutex<Vec<TailOf>>>,
    me: usize,
    killed: Arc<AtomicBool>,
}

impl Life {
    fn name(n: usize) -> String {
        format!("writer{n}")
    }

    fn is_killed(&self) -> bool {
        self.killed.load(Ordering::SeqCst)
    }
}

impl TailRows for Life {
    fn writer(&self) -> String {
        Life::name(self.me)
    }

    fn see(&self, writer: &str) -> Result<Option<TailView>, String> {
        let tails = self.tails.lock();
        let seen = (0..tails.len()).find(|n| Life::name(*n) == writer).map(|n| &tails[n]);
        Ok(seen.map(|of| TailView { row: of.row.clone(), ended: of.dead }))
    }

    fn write(&self, change: &Change<String>) -> Result<(), TailTrouble> {
        let mut tails = self.tails.lock();
        let of = &mut tails[self.me];
        if self.is_killed() {
            return Err(TailTrouble::Failed("killed".to_owned()));
        }
        if of.fenced {
            return Err(TailTrouble::Fenced("taken over".to_owned()));
        }
        of.row = of.row.change(change).map_err(TailTrouble::Refused)?;
        Ok(())
    }

    fn take_over(
        &self,
        from: &str,
        copy: u64,
        tail: &[(Lsn, Vec<kv::Entry>)],
    ) -> Result<BTreeMap<u16, u64>, TailTrouble> {
        let mut tails = self.tails.lock();
        if self.is_killed() {
            return Err(TailTrouble::Failed("killed".to_owned()));
        }
        let n = (0..tails.len()).find(|n| Life::name(*n) == from).unwrap();
        let mine = |life: &Life| {
            let (owners, epochs) = (life.common.owners.lock(), life.epochs.lock());
            owners.iter().filter(|(_, of)| **of == life.me).map(|(slot, _)| (*slot, epochs[slot])).collect()
        };
        let of = &mut tails[n];
        if of.taken.contains(&(self.writer(), copy)) {
            return Ok(mine(self));
        }
        of.row = of.row.take_over(&self.writer(), copy, of.dead).map_err(TailTrouble::Refused)?;
        let mut applied = self.applied[n].lock();
        for (lsn, entries) in tail.iter().filter(|(lsn, _)| *lsn > *applied).collect::<Vec<_>>() {
            assert_eq!(lsn.0, applied.0 + 1, "a hole in what is taken over");
            let mut all = self.common.entries.lock();
            for (key, value) in entries {
                match value {
                    Some(value) => drop(all.insert(key.to_vec(), value.clone())),
                    None => drop(all.remove(&key[..])),
                }
            }
            *applied = *lsn;
        }
        let mut taken = BTreeMap::new();
        for (slot, owner) in self.common.owners.lock().iter_mut().filter(|(_, owner)| **owner == n) {
            *owner = self.me;
            let mut epochs = self.epochs.lock();
            *epochs.entry(*slot).or_default() += 1;
            taken.insert(*slot, epochs[slot]);
        }
        (of.taken_over, of.fenced) = (true, true);
        of.taken.insert((self.writer(), copy));
        Ok(taken)
    }
}

/// The engine of one process.
struct Lived {
    part: Part,
    life: Life,
}

impl Engine for Lived {
    fn name(&self) -> &'static str {
        self.part.name()
    }
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.part.get(key)
    }
    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        self.part.scan(from, to, visit)
    }
    fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError> {
        let tails = self.life.tails.lock();
        if self.life.is_killed() {
            return Err(ApplyError::Nothing(KvError::Io("killed".to_owned())));
        }
        if tails[self.life.me].fenced {
            return Err(ApplyError::Fenced(KvError::Io("taken over".to_owned())));
        }
        self.part.apply(batch, lsn)
    }
    fn applied_lsn(&self) -> Result<Lsn, KvError> {
        self.part.applied_lsn()
    }
    fn taken_over(&self) -> Result<bool, KvError> {
        Ok(self.life.tails.lock()[self.life.me].taken_over)
    }
    fn begin_anew(&self) -> Result<(), KvError> {
        self.life.tails.lock()[self.life.me].taken_over = false;
        Ok(())
    }
    fn approximate_bytes(&self) -> u64 {
        0
    }
    fn close(&self) -> Result<(), KvError> {
        Ok(())
    }
}

/// As the default, but sooner.
pub fn terms() -> Terms {
    Terms {
        tenure: tenure::Terms {
            lease: Duration::from_millis(1500),
            beat_every: Duration::from_millis(100),
            suspect_after: Duration::from_millis(1500),
            drift_one_in: 100,
        },
        patience: Duration::from_millis(700),
        again: Duration::from_millis(200),
        pause: Duration::from_millis(100),
        ..Terms::default()
    }
}

struct Running {
    killed: Arc<AtomicBool>,
    store: Arc<MetaStore>,
    service: Arc<MetadataService>,
    server: Server,
}

pub struct Several {
    dir: tempfile::TempDir,
    common: Arc<Common>,
    epochs: Arc<Mutex<BTreeMap<u16, u64>>>,
    applied: Vec<Arc<Mutex<Lsn>>>,
    tails: Arc<Mutex<Vec<TailOf>>>,
    pub standby: bool,
    /// Nobody gets a row.
    pub refuse: Arc<AtomicBool>,
    /// This one waits for rows, for as long as it is said here.
    pub slow: Arc<AtomicUsize>,
    notes: Vec<State>,
    pub options: MetadataOptions,
    /// Those that only keep copies.
    pub standbys: BTreeSet<usize>,
    /// So many are in everybody's configuration.
    configured: usize,
    hidden: Option<usize>,
    running: Vec<Option<Running>>,
    pub data: Vec<DataSite>,
    /// To which server, of which data server.
    reporters: BTreeMap<(usize, usize), Reporter>,
    /// Of those that find the servers by the map.
    following: Vec<Reporters>,
}

/// What a site begins with.
pub struct Begin {
    /// All that there will be.
    pub servers: usize,
    /// Those that are started, and that everybody is told of.
    pub first: usize,
    pub standbys: BTreeSet<usize>,
    pub data: Vec<DataSite>,
    pub options: MetadataOptions,
}

impl Several {
    /// All of them up, with slots, and told of the data servers.
    pub fn new(servers: usize, data: u64) -> Several {
        Several::with(servers, data, options())
    }

    pub fn with(servers: usize, data: u64, options: MetadataOptions) -> Several {
        let data = (1..=data).map(DataSite::started).collect();
        Several::of(servers, data, options)
    }

    /// With data servers that were started.
    pub fn of(servers: usize, data: Vec<DataSite>, options: MetadataOptions) -> Several {
        Several::begun(Begin { servers, first: servers, standbys: BTreeSet::new(), data, options })
    }

    pub fn begun(begin: Begin) -> Several {
        let Begin { servers, first, standbys, data, options } = begin;
        let mut site = Several {
            dir: tempfile::tempdir().unwrap(),
            common: Arc::default(),
            epochs: Arc::default(),
            applied: (0..servers).map(|_| Arc::new(Mutex::new(Lsn(0)))).collect(),
            tails: Arc::new(Mutex::new((0..servers).map(|_| TailOf::default()).collect())),
            standby: true,
            refuse: Arc::default(),
            slow: Arc::new(AtomicUsize::new(usize::MAX)),
            notes: (0..servers).map(|_| State::new()).collect(),
            options,
            standbys,
            configured: first,
            hidden: None,
            running: (0..servers).map(|_| None).collect(),
            data,
            reporters: BTreeMap::new(),
            following: Vec::new(),
        };
        (0..first).for_each(|n| site.start(n));
        if first == servers {
            (0..site.data.len()).for_each(|data| site.report(data));
        } else {
            site.following = site.data.iter().map(|data| site.reports_by_the_map(data)).collect();
        }
        site.settled();
        site
    }

    /// A data server reports to all servers.
    pub fn report(&mut self, data: usize) {
        for n in 0..self.running.len() {
            let of = &self.data[data];
            let about = NodeReport {
                node: of.node,
                name: format!("data-{}", of.node),
                addresses: vec![of.address().to_string()],
                ..NodeReport::default()
            };
            let client = client_to(&self.address(n), Several::node(n), Lane::Control);
            let reporter = Reporter::start(of.service().clone(), client, about).unwrap();
            self.reporters.insert((n, data), reporter);
        }
    }

    /// It goes on, and one server hears nothing of it.
    pub fn cut_off_data(&mut self, data: usize, n: usize) {
        self.reporters.remove(&(n, data));
    }

    /// A data server dies.
    pub fn kill_data(&mut self, data: usize) {
        self.reporters.retain(|(_, of), _| *of != data);
        self.data[data].kill();
    }

    /// A data server that knows of the first servers alone.
    fn reports_by_the_map(&self, data: &DataSite) -> Reporters {
        let about = NodeReport {
            node: data.node,
            name: format!("data-{}", data.node),
            addresses: vec![data.address().to_string()],
            ..NodeReport::default()
        };
        let servers = Servers { addresses: self.addresses(), credentials: credentials(data.node) };
        Reporters::start(data.service().clone(), servers, about).unwrap()
    }

    /// And comes back.
    pub fn start_data(&mut self, data: usize) {
        self.data[data].start();
        self.report(data);
    }

    /// Of a data server that finds the servers by the map: why it is not well.
    pub fn trouble_of(&self, data: usize) -> Option<String> {
        self.following[data].trouble().map(|trouble| trouble.why)
    }

    /// In everybody's configuration.
    fn addresses(&self) -> Vec<Address> {
        (0..self.configured).map(|n| self.address(n)).collect()
    }

    pub fn servers(&self) -> usize {
        self.running.len()
    }

    pub fn node(n: usize) -> u64 {
        FIRST + n as u64
    }

    fn up(&self) -> Vec<usize> {
        (0..self.running.len()).filter(|n| self.is_up(*n)).collect()
    }

    /// All have slots, all have the same map, and the data servers are in it.
    pub fn settled(&self) {
        let up = self.up();
        until("the servers share the slots", || {
            let map = self.map(self.owner(Ino::ROOT.get()));
            let nodes = up.iter().filter(|n| !self.standbys.contains(n)).map(|n| NodeId(Several::node(*n)));
            nodes.into_iter().all(|node| map.slots_of(node).next().is_some())
                && map.slots().all(|(_, entry)| entry.owner.is_some())
                && self.data.iter().all(|data| map.node(NodeId(data.node)).is_some())
                && up.iter().all(|n| self.map(*n) == map)
                && up.iter().all(|n| self.service(*n).nodes().measures().len() == self.data.len())
        });
    }

    /// All that are up have slots, whatever goes on.
    pub fn shared(&self) {
        let up = self.up();
        until("all have slots", || {
            let map = self.map(self.owner(Ino::ROOT.get()));
            up.iter().all(|n| map.slots_of(NodeId(Several::node(*n))).next().is_some())
        });
    }

    pub fn map(&self, n: usize) -> ClusterMap {
        self.service(n).nodes().map()
    }

    pub fn address(&self, n: usize) -> Address {
        let path: PathBuf = self.dir.path().join(format!("socket-{n}"));
        format!("unix:{}", path.display()).parse().unwrap()
    }

    /// Where it is when it is started.
    pub fn bound(&self, n: usize) -> Address {
        if self.hidden != Some(n) {
            return self.address(n);
        }
        format!("{}-hidden", self.address(n)).parse().unwrap()
    }

    /// Clients do not find it when it is started, until it is revealed.
    pub fn hide(&mut self, n: usize) {
        self.hidden = Some(n);
    }

    pub fn reveal(&mut self) {
        let n = self.hidden.unwrap();
        let path = |address: Address| PathBuf::from(address.to_string().trim_start_matches("unix:"));
        std::fs::rename(path(self.bound(n)), path(self.address(n))).unwrap();
        self.hidden = None;
    }

    pub fn service(&self, n: usize) -> &Arc<MetadataService> {
        &self.running[n].as_ref().unwrap().service
    }

    fn rows(&self, me: usize) -> Rows {
        let (common, epochs) = (self.common.clone(), self.epochs.clone());
        Rows { common, refuse: self.refuse.clone(), slow: self.slow.clone(), epochs, me }
    }

    fn store(&self, n: usize, life: &Life) -> Arc<MetaStore> {
        let end = deadline();
        loop {
            let part = Part { common: self.common.clone(), me: n, applied: self.applied[n].clone() };
            let part = Lived { part, life: life.clone() };
            let dir = self.dir.path().join(format!("meta-{n}"));
            std::fs::create_dir_all(&dir).unwrap();
            let options = MetaStoreOptions { checkpoint_bytes: 64 << 10, ..MetaStoreOptions::default() };
            match MetaStore::open(&dir, |_, _| Ok(Box::new(part)), options, Arc::new(SystemDisk)) {
                // A thread of the earlier life has it until it is through with what it did.
                Err(OpenError::Locked { .. }) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                opened => return Arc::new(opened.unwrap()),
            }
        }
    }

    pub fn start(&mut self, n: usize) {
        let killed: Arc<AtomicBool> = Arc::default();
        let life = Life {
            common: self.common.clone(),
            epochs: self.epochs.clone(),
            applied: self.applied.clone(),
            tails: self.tails.clone(),
            me: n,
            killed: killed.clone(),
        };
        {
            let of = &mut self.tails.lock()[n];
            (of.dead, of.fenced) = (false, false);
        }
        let store = self.store(n, &life);
        let node = Several::node(n);
        let me = Node {
            id: NodeId(node),
            name: format!("meta-{node}"),
            addresses: vec![self.address(n).to_string()],
            roles: if self.standbys.contains(&n) { Roles::MDS.and(Roles::STANDBY_ONLY) } else { Roles::MDS },
            labels: BTreeMap::new(),
            state: NodeState::Up,
            joined: Epoch(1),
        };
        let joining = Joining {
            me,
            servers: self.addresses(),
            credentials: credentials(node),
            rights: Arc::new(self.rows(n)),
            patience: PATIENCE,
            relief: Default::default(),
            standby: Some(StandbyOptions {
                rows: Arc::new(life),
                dir: self.dir.path().join(format!("copies-{n}")),
                on: self.standby,
                terms: terms(),
            }),
        };
        let notes = self.notes[n].open(&self.dir.path().join(format!("notes-{n}")));
        let (mds, shared) = join(&store, &notes, MdsOptions::default(), joining).unwrap();
        let (credentials, options) = (credentials(node), self.options.clone());
        let service = MetadataService::start_among(
            Arc::new(mds),
            store.clone(),
            credentials.clone(),
            options,
            Some(shared),
        );
        let service = service.unwrap();
        let (tuning, bounds) = (Tuning::default(), Bounds::default());
        let server = Server::start(&self.bound(n), credentials, service.clone(), tuning, bounds).unwrap();
        self.running[n] = Some(Running { killed, store, service, server });
    }

    /// It ends without a word to the others. (Its journal is carried into the engine: a kill is another test's.)
    pub fn stop(&mut self, n: usize) {
        let Running { store, service, server, .. } = self.running[n].take().unwrap();
        service.shutdown();
        drop(server);
        drop(service);
        let _ = store.close();
    }

    /// It ends in order: its slots go to the others before.
    pub fn leave(&mut self, n: usize) {
        assert_eq!(self.service(n).leave(PATIENCE), Some(0));
        self.stop(n);
    }

    /// Its rows say that it gave its slots up, and nobody knows what sessions had in them.
    pub fn give_up(&self, n: usize) {
        self.common.owners.lock().retain(|_, owner| *owner != n);
    }

    /// As kill -9: what is in its journal and was not copied is nowhere else.
    pub fn kill(&mut self, n: usize) {
        self.end_life(n, false);
        self.bury(n);
    }

    /// The same, at a moment when its standby may go on: a busy machine has it go on alone now and then.
    pub fn kill_copied(&mut self, n: usize) {
        self.end_life(n, true);
        self.bury(n);
    }

    /// It does nothing to the rows and the engine any more, and is dead by the database.
    fn end_life(&self, n: usize, copied: bool) {
        until("the server has a standby", || {
            let mut tails = self.tails.lock();
            let dies = !copied || tails[n].row.complete;
            if dies {
                self.running[n].as_ref().unwrap().killed.store(true, Ordering::SeqCst);
                tails[n].dead = true;
            }
            dies
        });
    }

    fn bury(&mut self, n: usize) {
        let Running { store, service, server, .. } = self.running[n].take().unwrap();
        drop(server);
        service.abandon();
        drop(service);
        let _ = store.close();
    }

    /// Returns when its standby has all that it had, and has begun anew if it has to.
    pub fn kill_for_good(&mut self, n: usize) {
        let was_on_duty = self.owner(Ino::ROOT.get()) == n;
        self.kill_copied(n);
        until("another has its slots", || !self.common.owners.lock().values().any(|owner| *owner == n));
        if was_on_duty {
            let next = self.owner(Ino::ROOT.get());
            until("it begins anew", || self.service(next).has_to_begin_anew());
            self.begin_anew();
        }
    }

    /// As a kill at a moment when its standby may go on, for everybody else; it can still be asked.
    pub fn cut(&self, n: usize) {
        self.end_life(n, true);
        self.service(n).fall_silent();
    }

    /// Has it a standby that may go on, by the rows?
    pub fn is_copied(&self, n: usize) -> bool {
        self.tails.lock()[n].row.complete
    }

    /// Who may go on in its place, by the rows.
    pub fn standby_of(&self, n: usize) -> Option<usize> {
        let standby = self.tails.lock()[n].row.standby.clone()?;
        (0..self.servers()).find(|other| Life::name(*other) == standby)
    }

    pub fn is_up(&self, n: usize) -> bool {
        self.running[n].is_some()
    }

    /// As whoever supervises them does.
    pub fn begin_anew(&mut self) {
        for n in 0..self.running.len() {
            if self.is_up(n) && self.service(n).has_to_begin_anew() {
                self.stop(n);
                self.start(n);
            }
        }
    }

    /// Who has the inode's slot, by the rows.
    pub fn owner(&self, ino: u64) -> usize {
        let slot = Ino::from_raw(ino).unwrap().ugsd().slot().get();
        let end = deadline();
        loop {
            if let Some(owner) = self.common.owners.lock().get(&slot) {
                return *owner;
            }
            assert!(Instant::now() < end, "slot {slot} is nobody's for long");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn duty(&self) -> Client {
        let on_duty = self.owner(Ino::ROOT.get());
        client_to(&self.address(on_duty), Several::node(on_duty), Lane::Control)
    }

    /// The inode's slot is nobody's, and what was in it is lost.
    pub fn adrift(&self, ino: u64) {
        self.common.owners.lock().remove(&slot_of(ino).get());
    }

    /// Has an inode's slot brought to a server, as for an operation.
    pub fn bring(&self, ino: u64, to: usize) {
        let slot = Ino::from_raw(ino).unwrap().ugsd().slot().get();
        let duty = self.duty();
        let bring = Bring { node: Several::node(to), slots: runs([slot]), stay: false };
        ask(&duty, &bring, &[], 0).unwrap();
    }

    /// The same, once.
    pub fn try_bring(&self, ino: u64, to: usize) -> Result<(), Fault> {
        let slot = slot_of(ino).get();
        let duty = self.duty();
        let bring = Bring { node: Several::node(to), slots: runs([slot]), stay: true };
        super::ask_once(&duty, &bring, &[], 0).map(drop)
    }

    pub fn session(&self) -> Routed<'_> {
        static LAST: AtomicU64 = AtomicU64::new(1);
        self.session_as(SessionId(u128::from(LAST.fetch_add(1, Ordering::Relaxed))))
    }

    /// Of a client on a node: what it alone writes is put there.
    pub fn session_at(&self, node: u64) -> Routed<'_> {
        static LAST: AtomicU64 = AtomicU64::new(1);
        self.session_on(SessionId(u128::from(LAST.fetch_add(1, Ordering::Relaxed)) << 64), node)
    }

    /// It may be known already where it was before.
    pub fn session_as(&self, id: SessionId) -> Routed<'_> {
        self.session_on(id, 0)
    }

    fn session_on(&self, id: SessionId, node: u64) -> Routed<'_> {
        let client = |n, lane| client_to(&self.address(n), Several::node(n), lane);
        let meta = (0..self.running.len()).map(|n| client(n, Lane::Metadata)).collect();
        let mut joined = BTreeMap::new();
        for n in (0..self.running.len()).filter(|n| self.is_up(*n)) {
            let mount = Mount { head: Some(Head::of(id)), host: "test".into(), node, ..Mount::default() };
            joined.insert(n, ask(&client(n, Lane::Control), &mount, &[], 0).unwrap().0.joined);
        }
        Routed {
            site: self,
            id,
            meta,
            joined,
            number: AtomicU64::new(FIRST_NUMBER.fetch_add(1 << 20, Ordering::Relaxed)),
        }
    }
}

impl Drop for Several {
    fn drop(&mut self) {
        self.reporters.clear();
        self.following.clear();
        for n in 0..self.running.len() {
            if self.running[n].is_some() {
                self.stop(n);
            }
        }
    }
}

/// A session with all servers, which asks whoever has the slot.
pub struct Routed<'a> {
    pub site: &'a Several,
    pub id: SessionId,
    pub meta: Vec<Client>,
    /// As which it came to each.
    pub joined: BTreeMap<usize, u64>,
    number: AtomicU64,
}

impl Routed<'_> {
    /// Of the next operation.
    pub fn op(&self) -> Option<Head> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        Some(Head::operation(self.id, number, 1))
    }

    pub fn head(&self) -> Option<Head> {
        Some(Head::of(self.id))
    }

    pub fn at<R: Request>(&self, n: usize, request: &R) -> Result<R::Answer, Fault> {
        ask(&self.meta[n], request, &[], 0).map(|(answer, _)| answer)
    }

    /// The same request, until its owner answers.
    pub fn ask<R: Request>(&self, request: &R) -> Result<R::Answer, Errno> {
        let mut home = 1;
        request.homes(&mut |ino| home = ino);
        let end = deadline();
        loop {
            match self.at(self.site.owner(home), request) {
                Ok(answer) => return Ok(answer),
                Err(fault) if Reason::of(&fault) == Reason::WrongOwner && Instant::now() < end => {
                    assert!(fault.wrong_owner.is_some());
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(fault) if Reason::of(&fault) == Reason::Bare => self.bring(self.site.owner(home), &[]),
                Err(fault) => return Err(Errno::from_raw(fault.errno)),
            }
        }
    }

    /// Says to this server that it has these locks in slots that came bare, and nothing open.
    pub fn bring(&self, n: usize, locks: &[HeldLock]) {
        let control = client_to(&self.site.address(n), Several::node(n), Lane::Control);
        let bare = Bare { head: self.head(), brought: 0, stamp: 0 };
        let (slots, _) = ask(&control, &bare, &[], 0).unwrap();
        let had = HadLocks { locks: locks.to_vec() };
        ask(&control, &Bare { brought: slots.number, ..bare }, &had.encode_to_vec(), 0).unwrap();
    }

    /// One attempt at this server, which may be dead.
    pub fn once<R: Request>(&self, n: usize, request: &R) -> Result<R::Answer, Fault> {
        super::ask_once(&self.meta[n], request, &[], 0).map(|(answer, _)| answer)
    }

    /// `None`: there was no answer.
    pub fn try_mkdir(&self, dir: u64, name: &str) -> Option<()> {
        let caller = Some(Caller { uid: 0, gid: 0, umask: 0 });
        let mkdir = Mkdir { head: self.op(), caller, dir, name: name.as_bytes().to_vec(), mode: 0o755 };
        self.once(self.site.owner(dir), &mkdir).ok().map(drop)
    }

    pub fn try_rename(&self, dir: u64, from: &str, to: &str) -> Option<()> {
        let (from_name, to_name) = (from.as_bytes().to_vec(), to.as_bytes().to_vec());
        let mode = RenameMode::Replace.into();
        let rename = Rename { head: self.op(), from_dir: dir, from_name, to_dir: dir, to_name, mode };
        self.once(self.site.owner(dir), &rename).ok().map(drop)
    }

    fn attr_of(&self, entry: &Entry) -> Result<Attr, Errno> {
        match entry.attr {
            Some(attr) => Ok(attr),
            None => self.ask(&Find { head: self.op(), ino: entry.ino }).map(|entry| entry.attr.unwrap()),
        }
    }

    pub fn mkdir(&self, dir: u64, name: &str) -> Result<u64, Errno> {
        let caller = Some(Caller { uid: 0, gid: 0, umask: 0 });
        let (head, name) = (self.op(), name.as_bytes().to_vec());
        let made = self.ask(&Mkdir { head, caller, dir, name, mode: 0o755 })?;
        self.attr_of(&made).map(|attr| attr.ino)
    }

    pub fn create(&self, dir: u64, name: &str, opening: u64) -> Result<u64, Errno> {
        let caller = Some(Caller { uid: 0, gid: 0, umask: 0 });
        let (head, name) = (self.op(), name.as_bytes().to_vec());
        let create = Create { head, caller, dir, name, mode: 0o644, opening, write: true };
        self.ask(&create).map(|opened| opened.attr.unwrap().ino)
    }

    pub fn lookup(&self, dir: u64, name: &str) -> Result<Attr, Errno> {
        let entry = self.ask(&Lookup { head: self.op(), dir, name: name.as_bytes().to_vec() })?;
        self.attr_of(&entry)
    }

    pub fn unlink(&self, dir: u64, name: &str) -> Result<(), Errno> {
        self.ask(&Unlink { head: self.op(), dir, name: name.as_bytes().to_vec() }).map(drop)
    }

    pub fn rename(&self, from: (u64, &str), to: (u64, &str)) -> Result<(), Errno> {
        let (from_dir, from_name) = (from.0, from.1.as_bytes().to_vec());
        let (to_dir, to_name) = (to.0, to.1.as_bytes().to_vec());
        let mode = RenameMode::Replace.into();
        self.ask(&Rename { head: self.op(), from_dir, from_name, to_dir, to_name, mode }).map(drop)
    }

    pub fn map(&self, n: usize) -> ClusterMap {
        let control = client_to(&self.site.address(n), Several::node(n), Lane::Control);
        let (_, body) = ask(&control, &MapSince { epoch: 0 }, &[], 4 << 20).unwrap();
        ClusterMap::decode(&body).unwrap()
    }
}

pub fn slot_of(ino: u64) -> Slot {
    Ino::from_raw(ino).unwrap().ugsd().slot()
}
