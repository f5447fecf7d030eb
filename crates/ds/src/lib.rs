//! The data server of one node: objects in the node's tiers, and their movement between them.
//!
//! A shell: the residency map decides where bytes are (`layout`), the tiering core decides what moves (`tier`), and
//! this crate does it, with locks, threads and files. Its own invariants are in `object.rs`.
//!
//! Refuses to know: names, directories, who may do what, and FUSE.

mod allocate;
mod beside;
mod commands;
mod copy;
mod driver;
mod durable;
mod fetch;
mod fill;
mod filler;
mod glance;
mod health;
mod keep;
mod keeper;
mod kept;
mod later;
mod lift;
mod line;
mod linked;
mod load;
mod lost;
mod mapped;
mod maps;
mod metrics;
mod mover;
mod noting;
mod object;
mod open;
mod part;
mod place;
mod read;
mod scrub;
mod seal;
mod space;
mod stub;
mod sync;
mod table;
mod theirs;
mod truncate;
mod try_write;
mod unsynced;
mod version;
mod write;

pub use allocate::{AllocateMode, Whence};
pub use commands::{AtRisk, ObjectReport, TierStatus};
pub use glance::Glance;
pub use health::words as health_words;
pub use linked::{Linked, Stub};
pub use load::ObjectHint;
pub use maps::{Entries, FirstRecord, KvMaps, MapStore, load_record};
pub use metrics::{Counters, CountersNow};
pub use object::{LiveAttr, Object, OpenKind};
pub use read::Attempt;
pub use scrub::{Found as ScrubFound, Pass as ScrubPass, Record as ScrubRecord, ScrubOptions};
pub use tier::{MoveReport, ObjectPolicy, RequestError, RequestReport};
pub use version::Snapshot;

use driver::{Driver, Job};
use filler::{FILLERS, Filler};
use object::Home;
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use store::{MemoryTier, TierStore};
use table::ObjectTable;
use types::{Errno, Ino, TierId, TierSet, Timestamp};

/// What a data server is made of.
pub struct DsOptions {
    /// The tmpfs of the memory tier, if there is one, and the store in it.
    pub memory: Option<(MemoryTier, TierStore)>,
    pub ssd: Option<DeviceTier>,
    pub nearline: Nearline,
    /// Number of the memory tier's life: one more for each fresh one.
    pub memory_generation: u32,
    pub maps: Arc<dyn MapStore>,
    pub tiering: tier::Settings,
    /// Threads that move data.
    pub movers: usize,
    /// Memory for what is read of a linked near-line and has no place yet; two SAUs at least.
    pub fill_bytes_max: u64,
    /// How often unsynced bytes are made durable and space is measured again.
    pub sync_period: Duration,
    /// Objects that may wait for a sync of a device, or of the journal, with their files open; above it, writers and
    /// movements see to it.
    pub waiting_max: usize,
    /// How soon what was stored through mappings, or written over a copy on a device, is made durable without being asked.
    pub safe_within: Duration,
    /// For how long a closed object's device bytes do not change before they get a checksum.
    pub seal_after: Duration,
    pub scrub: ScrubOptions,
    /// No movement begins before [`DataServer::release`]: whoever starts this has policies to tell first.
    pub held: bool,
}

/// The slowest tier.
pub enum Nearline {
    None,
    /// A directory of ours.
    Native(DeviceTier),
    /// Somebody else's.
    Linked(Arc<dyn Linked>),
}

/// A tier on a device.
pub struct DeviceTier {
    pub store: TierStore,
    /// Bytes that ONFS may use; `None`: as much as the device has.
    pub limit: Option<u64>,
}

/// One node's objects.
pub struct DataServer {
    pub(crate) stores: [Option<TierStore>; 3],
    /// Near-line, if it is somebody else's: then it has no store.
    pub(crate) linked: Option<Arc<dyn Linked>>,
    pub(crate) memory: Mutex<Option<MemoryTier>>,
    pub(crate) memory_generation: u32,
    /// What the user set for each tier; `u64::MAX` where the device alone limits it.
    pub(crate) limits: [AtomicU64; 3],
    /// The file system of each tier, and its free bytes when they were last measured.
    pub(crate) devices: [u64; 3],
    pub(crate) device_free: [AtomicU64; 3],
    pub(crate) maps: Arc<dyn MapStore>,
    pub(crate) table: Arc<ObjectTable>,
    pub(crate) driver: Arc<Driver>,
    pub(crate) filler: Filler,
    pub(crate) kept: kept::KeptFiles,
    /// What is read of a linked near-line comes up, if no policy says otherwise.
    pub(crate) fill_on_read: bool,
    pub(crate) counters: Counters,
    pub(crate) keeper: keeper::Todo,
    /// Of objects whose policy is not the default, and that are in use or have bytes in memory alone: others get theirs when
    /// they are next opened.
    pub(crate) policies: Arc<Mutex<HashMap<Ino, ObjectPolicy>>>,
    pub(crate) pins: Mutex<HashMap<Ino, TierId>>,
    /// Objects that are gone while their record is still there: who comes upon one must not take it for lost.
    pub(crate) removed: Mutex<HashSet<Ino>>,
    /// Objects without a record and without a byte, as found at the start.
    pub(crate) strays: Mutex<Vec<Ino>>,
    pub(crate) stop: AtomicBool,
    pub(crate) sleeping: (Mutex<()>, Condvar),
    pub(crate) sync_period: Duration,
    pub(crate) waiting_max: usize,
    pub(crate) safe_within: Duration,
    pub(crate) seal_after: Duration,
    pub(crate) scrub: scrub::Scrub,
    pub(crate) held: AtomicBool,
    pub(crate) watches: health::Watches,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl DataServer {
    /// Takes stock of the tiers and starts the threads that move data.
    pub fn start(options: DsOptions) -> Result<Arc<DataServer>, Errno> {
        let (nearline, linked) = match options.nearline {
            Nearline::None => (None, None),
            Nearline::Native(device) => (Some(device), None),
            Nearline::Linked(linked) => (None, Some(linked)),
        };
        let mut tiering = options.tiering;
        let mut fill_on_read = false;
        if linked.is_some() {
            // Reading brings it up: whole only what is read whole.
            fill_on_read = tiering.promote_on_open.contains(TierId::Nearline);
            tiering.promote_on_open = tiering.promote_on_open.without(TierId::Nearline);
            tiering.movements_only = tiering.movements_only.with(TierId::Nearline);
        }
        let (driver, jobs) = Driver::new(tiering);
        let driver = Arc::new(driver);
        let (memory, memory_store) = options.memory.map_or((None, None), |(m, s)| (Some(m), Some(s)));
        let limit = |tier: &Option<DeviceTier>| tier.as_ref().and_then(|t| t.limit).unwrap_or(u64::MAX);
        let limits = [memory.as_ref().map_or(0, MemoryTier::limit), limit(&options.ssd), limit(&nearline)];
        let stores = [memory_store, options.ssd.map(|t| t.store), nearline.map(|t| t.store)];
        let mut devices = [0; 3];
        for (device, store) in devices.iter_mut().zip(&stores) {
            *device = store.as_ref().map_or(Ok(0), TierStore::device)?;
        }
        let policies = Arc::default();
        let scrub = scrub::Scrub::new(options.scrub, options.maps.scrub()?);
        let watches = health::Watches::new(&stores, driver.now());
        let server = Arc::new(DataServer {
            watches,
            stores,
            linked,
            devices,
            device_free: Default::default(),
            memory: Mutex::new(memory),
            memory_generation: options.memory_generation,
            limits: limits.map(AtomicU64::new),
            maps: options.maps,
            table: ObjectTable::new(driver.clone(), Arc::clone(&policies)),
            driver,
            filler: Filler::new(options.fill_bytes_max),
            kept: kept::KeptFiles::default(),
            fill_on_read,
            counters: Counters::default(),
            keeper: keeper::Todo::default(),
            policies,
            pins: Mutex::default(),
            removed: Mutex::default(),
            strays: Mutex::default(),
            stop: AtomicBool::new(false),
            sleeping: Default::default(),
            sync_period: options.sync_period,
            waiting_max: options.waiting_max,
            safe_within: options.safe_within,
            seal_after: options.seal_after,
            scrub,
            held: AtomicBool::new(options.held),
            threads: Mutex::default(),
        });
        server.take_stock()?;
        server.spawn_threads(options.movers.max(1), &jobs)?;
        Ok(server)
    }

    fn spawn_threads(
        self: &Arc<DataServer>,
        movers: usize,
        jobs: &crossbeam_channel::Receiver<Job>,
    ) -> Result<(), Errno> {
        let mut threads = self.threads.lock();
        for n in 0..movers {
            let (server, jobs) = (self.clone(), jobs.clone());
            let named = std::thread::Builder::new().name(format!("mover-{n}"));
            threads.push(named.spawn(move || server.run_mover(&jobs))?);
        }
        for n in 0..if self.linked.is_some() { FILLERS } else { 0 } {
            let (server, named) = (self.clone(), std::thread::Builder::new().name(format!("fill-{n}")));
            threads.push(named.spawn(move || server.run_filler())?);
        }
        let server = self.clone();
        threads
            .push(std::thread::Builder::new().name("tier-clock".into()).spawn(move || server.run_clock())?);
        let server = self.clone();
        threads.push(std::thread::Builder::new().name("line".into()).spawn(move || server.run_line())?);
        let server = self.clone();
        threads.push(std::thread::Builder::new().name("keeper".into()).spawn(move || server.run_keeper())?);
        let server = self.clone();
        threads.push(std::thread::Builder::new().name("sealer".into()).spawn(move || server.run_idle())?);
        self.watch_devices(&mut threads)
    }

    /// Movements may begin.
    pub fn release(&self) {
        self.held.store(false, Ordering::Release);
        drop(self.sleeping.0.lock());
        self.sleeping.1.notify_all();
    }

    /// Stops the threads. Movements under way stop at the next SAU; what they finished stays.
    pub fn shutdown(&self) {
        self.stop.store(true, Ordering::Release);
        drop(self.sleeping.0.lock());
        self.sleeping.1.notify_all();
        self.filler.end();
        self.driver.end();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A mover that panicked has said so already.
            let _ = thread.join();
        }
        self.filler.clear();
        self.kept.clear();
    }

    /// After `shutdown`, with the last reference: gives the memory tier back to the machine if nothing in it would be
    /// lost. Returns whether it is gone (or was none).
    pub fn release_memory(self: Arc<DataServer>) -> Result<bool, store::StoreError> {
        let Some(server) = Arc::into_inner(self) else { return Ok(false) };
        let Some(memory) = server.memory.into_inner() else { return Ok(true) };
        drop((server.stores, server.table, server.keeper));
        memory.unmount().map(|()| true)
    }

    pub(crate) fn home(&self) -> Weak<dyn Home> {
        let home: Weak<ObjectTable> = Arc::downgrade(&self.table);
        home
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The tiers that are mounted, a linked one among them.
    pub fn present(&self) -> TierSet {
        let mut set = if self.linked.is_some() { TierSet::of(TierId::Nearline) } else { TierSet::EMPTY };
        for tier in TierId::ALL {
            if self.stores[tier.index()].is_some() {
                set = set.with(tier);
            }
        }
        set
    }

    pub(crate) fn has_persistent(&self) -> bool {
        self.first_persistent().is_some()
    }

    /// Of ours.
    pub(crate) fn first_persistent(&self) -> Option<TierId> {
        self.own().intersect(TierSet::PERSISTENT).fastest()
    }

    pub fn memory_generation(&self) -> u32 {
        self.memory_generation
    }

    pub fn counters(&self) -> CountersNow {
        self.counters.now()
    }

    pub(crate) fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
    }
}
