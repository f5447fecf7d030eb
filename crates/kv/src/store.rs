//! The store: commits go to the journal and the overlay, reads come from overlay, cache and engine.
//!
//! Lock order: see [`Shared`]. Callers' code (visitors) runs under no lock.

use std::{
    cell::RefCell,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::SystemTime,
};

use bytes::Bytes;
use namespace::txn::{KvError, Reader, Visit};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    BeforeSync, Disk, Engine, FRAME_BYTES_MAX, Follower, Lsn, MetaStoreOptions, OpenError, RecoveryReport,
    SystemDisk, WriteSet,
    cache::{Cache, Ticket},
    checkpoint,
    engine::RESERVED_KEY,
    error::kv_error,
    frame,
    journal::{Appended, Health, Journal, Start},
    overlay::{self, Overlay},
    recovery::{self, Replay},
    reserve::{self, Reserve},
    shared::{BACKLOG, Shared},
    state_dir::StateDir,
    work::Work,
};

/// Keys are at least one byte and at most this.
const KEY_BYTES_MAX: usize = 4096;
/// For so many checkpoints a commit waits whose room others took before.
const FULL_WAITS: usize = 3;
/// A frame buffer that has grown beyond this is not kept.
const KEPT_BUFFER_BYTES: usize = 1 << 20;

/// How the store is. Bytes are in memory unless said otherwise.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub lsn: Lsn,
    pub synced_lsn: Lsn,
    pub applied_lsn: Lsn,
    /// Estimated.
    pub overlay_bytes: u64,
    pub cache_bytes: u64,
    pub cache_hits: u64,
    pub cache_misses: u64,
    /// On the disk.
    pub journal_bytes: u64,
    /// On the disk.
    pub engine_bytes: u64,
    pub checkpoints: u64,
    pub syncs: u64,
    /// The disk is full: only commits that may use the reserve are taken.
    pub short_of_space: bool,
    /// Why it takes no more writes, if it was not closed.
    pub read_only: Option<String>,
}

/// A moment at which the engine had nothing of what is made since.
#[derive(Clone, Copy)]
pub struct BeforeNew(Ticket);

/// See the crate's page. Shared by reference or `Arc`; every method may be called from any thread.
pub struct MetaStore {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    recovery: RecoveryReport,
}

impl MetaStore {
    /// Opens or creates the store in `dir`. `open_engine` gets the engine's directory and its cache's bound in bytes.
    pub fn open(
        dir: &Path,
        open_engine: impl FnOnce(&Path, u64) -> Result<Box<dyn Engine>, OpenError>,
        mut options: MetaStoreOptions,
        disk: Arc<dyn Disk>,
    ) -> Result<MetaStore, OpenError> {
        let state_dir = StateDir::lock(dir)?;
        let (engine_dir, journal_dir) = (state_dir.engine(), state_dir.journal());
        let format = state_dir.read_format()?;
        if let (Some(found), Some(wanted)) = (&format, options.engine) {
            check_engine(&state_dir, found, wanted)?;
        }
        if format.is_some() && !engine_dir.exists() {
            let detail = "the engine's directory is missing".to_owned();
            return Err(OpenError::Damaged { path: engine_dir, offset: 0, detail });
        }
        std::fs::create_dir_all(&engine_dir).map_err(|e| OpenError::io(&engine_dir, &e))?;
        disk.create_dir(&journal_dir).map_err(|e| OpenError::io(&journal_dir, &e))?;
        let wished = options.checkpoint_bytes.saturating_mul(BACKLOG);
        let reserve = Arc::new(Reserve::open(&*disk, state_dir.path(), wished, format.is_none())?);
        options.checkpoint_bytes = options.checkpoint_bytes.min(reserve.journal_max() / BACKLOG);
        let engine = open_engine(&engine_dir, options.cache_bytes / 2)?;
        let applied = engine.applied_lsn()?;
        settle_format(&state_dir, format, &*engine, applied)?;
        let mut found = recovery::recover(&*disk, &journal_dir, applied, options.repair)?;
        let last = found.replay.last().map_or(applied, |replay| replay.lsn);
        let taken_over = leave_out(&*engine, &mut found, (applied, last))?;
        log_recovery(&found.report);
        let free_bytes = || disk.space(&journal_dir).map(|s| s.free).map_err(|e| kv_error("journal", &e));
        let cost = reserve::cost_of(found.replay.iter().map(Replay::bytes).sum());
        checkpoint::make_room(&free_bytes, &reserve, cost, 0)?;
        checkpoint::replay_into(&*engine, found.replay, last)?;
        for path in &found.segments {
            disk.remove(path).map_err(|e| OpenError::io(path, &e))?;
        }
        // The names must be gone before numbers after `last` are given out again.
        disk.sync_dir(&journal_dir).map_err(|e| OpenError::io(&journal_dir, &e))?;
        taken_over.then(|| engine.begin_anew()).transpose()?;
        let health = Arc::new(Health::default());
        let bytes_max = if options.background { reserve.journal_max() } else { u64::MAX };
        let step_bytes = options.checkpoint_bytes.max(4096);
        let (sequence, kept) = (found.next_sequence, Arc::clone(&reserve));
        let start = Start { sequence, last, step_bytes, bytes_max, reserve: kept };
        let journal = Journal::start(disk, &journal_dir, Arc::clone(&health), start)?;
        reserve.take(journal.free_bytes()?)?;
        let shared = Arc::new(Shared {
            engine,
            overlay: Overlay::new(),
            cache: Cache::new(options.cache_bytes - options.cache_bytes / 2),
            journal,
            health,
            options,
            reserve,
            gate: RwLock::new(()),
            checkpointing: Mutex::new(None),
            applied: AtomicU64::new(last.0),
            checkpoints: AtomicU64::new(0),
            no_space: AtomicBool::new(false),
            space_checked: Mutex::new(None),
            work: Work::default(),
            begun: AtomicU64::new(0),
            rotating: AtomicBool::new(false),
            room: (Mutex::new(0), Condvar::new()),
            state_dir,
        });
        let threads = if shared.options.background { checkpoint::start(&shared)? } else { Vec::new() };
        Ok(MetaStore { shared, threads: Mutex::new(threads), recovery: found.report })
    }

    /// The default engine on the machine's file system.
    pub fn open_default(dir: &Path, mut options: MetaStoreOptions) -> Result<MetaStore, OpenError> {
        options.engine = Some(crate::LSM_NAME);
        MetaStore::open(dir, crate::lsm, options, Arc::new(SystemDisk))
    }

    /// As in the FORMAT file.
    pub fn engine_name(&self) -> &'static str {
        self.shared.engine.name()
    }

    /// Since when and why the engine is in trouble, if it is not on this machine. See [`Engine::trouble`].
    pub fn engine_trouble(&self) -> Option<(SystemTime, String)> {
        self.shared.engine.trouble()
    }

    /// What the opening found in the journal.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// Makes `writes` one commit: in the journal file, then visible, then this returns. An empty set is no commit.
    ///
    /// `Full` and `Io`: nothing changed. `ReadOnly`: nothing changed, and nothing will; a reopened store goes on.
    pub fn commit(&self, writes: WriteSet) -> Result<Lsn, KvError> {
        thread_local! {
            static FRAME: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        let shared = &*self.shared;
        if writes.is_empty() {
            return Ok(shared.journal.last());
        }
        check_limits(&writes)?;
        if shared.journal.active_bytes() > shared.options.checkpoint_bytes
            && shared.options.background
            && !shared.rotating.load(Ordering::Acquire)
        {
            shared.work.request_checkpoint();
        }
        if !writes.may_use_reserve() && shared.reserve.is_short() && !shared.space_came_back() {
            return Err(KvError::Full);
        }
        let patient = writes.may_use_reserve();
        let mut waits = 0;
        FRAME.with_borrow_mut(|buffer| {
            frame::encode(&writes, buffer);
            loop {
                let shut = shared.gate.read();
                match shared.journal.append(buffer) {
                    Ok(Appended::As(lsn)) => {
                        shared.overlay.insert(writes.into_entries(), lsn);
                        drop(shut);
                        if buffer.capacity() > KEPT_BUFFER_BYTES {
                            *buffer = Vec::new();
                        }
                        return Ok(lsn);
                    }
                    Ok(Appended::AfterCheckpoint) => {
                        drop(shut);
                        shared.wait_for_room(buffer.len() as u64, patient)?;
                    }
                    Err(KvError::Full) if waits < FULL_WAITS => {
                        drop(shut);
                        shared.after_full(patient)?;
                        waits += 1;
                    }
                    Err(error) => return Err(error),
                }
            }
        })
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let shared = &*self.shared;
        if let Some(value) = shared.overlay.get(key) {
            return Ok(value);
        }
        match shared.cache.get(key) {
            Ok(value) => Ok(value),
            Err(ticket) => {
                let value = shared.engine.get(key)?;
                shared.cache.fill(ticket, key, value.clone());
                Ok(value)
            }
        }
    }

    /// To be taken before something is made that never was, for [`MetaStore::was_new`].
    pub fn before_new(&self) -> BeforeNew {
        BeforeNew(self.shared.cache.ticket())
    }

    /// This key is of what was made since then: the engine, which may be on another machine, need not be asked for it.
    pub fn was_new(&self, before: BeforeNew, key: &[u8]) {
        self.shared.cache.fill(before.0, key, None);
    }

    /// Visits the entries with `from <= key < to` in key order until `visit` breaks. Entries that are there all the
    /// while are visited once; what is committed meanwhile may be seen or not. `visit` may use the store.
    pub fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        const FIRST_PART: usize = 16;
        const LARGEST_PART: usize = 1024;
        let (mut from, mut limit) = (from.to_vec(), FIRST_PART);
        while *from < *to {
            let part = self.shared.overlay.part(&from, to, limit);
            let end = part.end.as_deref().unwrap_or(to);
            let engine = &self.shared.engine;
            if overlay::merge(&part.entries, |below| engine.scan(&from, end, below), visit)?.is_break() {
                return Ok(());
            }
            match part.end {
                Some(end) => from = end,
                None => return Ok(()),
            }
            limit = (limit * 2).min(LARGEST_PART);
        }
        Ok(())
    }

    /// Returns when everything committed before the call is durable. Callers share fsyncs.
    pub fn sync(&self) -> Result<(), KvError> {
        self.wait_synced(self.shared.journal.last())
    }

    /// Returns when the commits up to `lsn` are durable.
    pub fn wait_synced(&self, lsn: Lsn) -> Result<(), KvError> {
        self.shared.journal.sync_to(lsn.min(self.shared.journal.last()))
    }

    pub fn last_lsn(&self) -> Lsn {
        self.shared.journal.last()
    }

    pub fn synced_lsn(&self) -> Lsn {
        self.shared.journal.synced()
    }

    /// From now on run before each fsync of the journal. Its error is given to those who wait for that fsync.
    pub fn set_before_sync(&self, hook: BeforeSync) {
        self.shared.journal.set_before_sync(hook);
    }

    /// From now on told of each commit, and asked before any goes into the engine. Once, before the first commit; false: there is one.
    pub fn set_follower(&self, follower: Arc<dyn Follower>) -> bool {
        self.shared.journal.set_follower(follower)
    }

    /// Leaves in the journal how far it is durable, so that damage is told from a power cut. Done in the background, too.
    pub fn mark_synced(&self) -> Result<(), KvError> {
        self.shared.journal.mark_synced()
    }

    /// Carries everything committed so far into the engine.
    pub fn checkpoint(&self) -> Result<(), KvError> {
        self.shared.checkpoint()
    }

    /// Others have written to parts of the engine, or are about to: what was read of it is forgotten. Commits in those parts
    /// since the last checkpoint would hide theirs, so there must be none.
    pub fn forget_reads(&self) {
        self.shared.cache.clear();
    }

    pub fn stats(&self) -> Stats {
        let shared = &*self.shared;
        let (cache_hits, cache_misses) = shared.cache.hits_and_misses();
        Stats {
            lsn: shared.journal.last(),
            synced_lsn: shared.journal.synced(),
            applied_lsn: Lsn(shared.applied.load(Ordering::Acquire)),
            overlay_bytes: shared.overlay.bytes() as u64,
            cache_bytes: shared.cache.bytes() as u64,
            cache_hits,
            cache_misses,
            journal_bytes: shared.journal.bytes(),
            engine_bytes: shared.engine.approximate_bytes(),
            checkpoints: shared.checkpoints.load(Ordering::Relaxed),
            syncs: shared.journal.syncs(),
            short_of_space: shared.reserve.is_short(),
            read_only: shared.health.reason().filter(|_| !shared.health.is_closed()),
        }
    }

    /// Carries everything into the engine and ends the store: later commits are refused, reads still work. The
    /// directory stays locked until the store is dropped. Again: does nothing.
    pub fn close(&self) -> Result<(), KvError> {
        let shared = &*self.shared;
        shared.work.stop();
        let mut threads = self.threads.lock();
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                shared.health.fail("a background thread of the metadata store panicked");
            }
        }
        shared.close()
    }
}

impl Reader for MetaStore {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        MetaStore::get(self, key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        MetaStore::scan(self, from, to, visit)
    }
}

impl Drop for MetaStore {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            let dir = self.shared.state_dir.path().display();
            tracing::error!(%dir, %error, "the metadata store was not closed cleanly; its journal stays");
        }
    }
}

/// Did another writer go on in our place? Then commits of which it knows nothing were not acknowledged, and others may have changed the same
/// since. Their numbers are not given again.
fn leave_out(
    engine: &dyn Engine,
    found: &mut recovery::Recovered,
    (applied, last): (Lsn, Lsn),
) -> Result<bool, OpenError> {
    if !engine.taken_over()? {
        return Ok(false);
    }
    let unheard = found.replay.len();
    tracing::warn!(
        unheard,
        "another server went on in this one's place: commits that it had not heard of are left out"
    );
    found.replay.clear();
    found.report.replayed = 0;
    if last > applied {
        engine.apply(&[], last).map_err(|error| OpenError::Engine(KvError::Io(error.to_string())))?;
    }
    Ok(true)
}

/// Is the directory a store of this engine? An empty one becomes one.
fn settle_format(
    state_dir: &StateDir,
    format: Option<String>,
    engine: &dyn Engine,
    applied: Lsn,
) -> Result<(), OpenError> {
    match format {
        Some(found) => check_engine(state_dir, &found, engine.name()),
        None if applied == Lsn(0) => state_dir.write_format(engine.name()),
        None => Err(OpenError::NotAStore { path: state_dir.path().to_owned() }),
    }
}

fn check_engine(state_dir: &StateDir, found: &str, wanted: &str) -> Result<(), OpenError> {
    if found == wanted {
        return Ok(());
    }
    let (path, found, wanted) = (state_dir.path().to_owned(), found.to_owned(), wanted.to_owned());
    Err(OpenError::OtherEngine { path, found, wanted })
}

fn check_limits(writes: &WriteSet) -> Result<(), KvError> {
    let mut bytes = 4;
    for (key, value) in writes.iter() {
        if key.is_empty() || key.len() > KEY_BYTES_MAX || key == RESERVED_KEY {
            return Err(KvError::Io(format!("a key of {} bytes cannot be stored", key.len())));
        }
        bytes += 6 + key.len() + value.map_or(0, Bytes::len);
    }
    if bytes > FRAME_BYTES_MAX {
        return Err(KvError::Io(format!("a commit of {bytes} bytes is over the limit of {FRAME_BYTES_MAX}")));
    }
    Ok(())
}

fn log_recovery(report: &RecoveryReport) {
    let RecoveryReport { replayed, dropped, cut_at, repaired } = report;
    match cut_at {
        Some((path, offset)) => {
            let path = path.display();
            tracing::warn!(replayed, dropped, repaired, %path, offset, "the metadata journal was cut");
        }
        None if *replayed > 0 => tracing::info!(replayed, "commits were taken from the metadata journal"),
        None => {}
    }
}
