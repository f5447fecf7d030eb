//! The default engine: one log-structured merge tree (crate `lsm-tree`), without a journal of its own.
//!
//! A batch becomes one sorted run in files of its own, and a new version of the tree's manifest names it: so a batch is
//! there whole or not at all, and an open replays nothing. A thread of the engine's merges runs.
//!
//! Invariants: the applied [`Lsn`] is the value of [`RESERVED_KEY`] and travels in the same batch; that key is never
//! shown. A batch or a merge that found no room, or no descriptor, left nothing behind. What the tree's code panics over
//! is an error of this engine: see [`super::guard`].

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;
use lsm_tree::{
    AbstractTree, AnyTree, Cache, DescriptorTable, Guard, SeqNo, SequenceNumberCounter, compaction::Leveled,
};
use namespace::txn::{KvError, Visit};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{ApplyError, Batch, Engine, RESERVED_KEY, checked, guard::guarded};
use crate::{
    Lsn, OpenError,
    error::{is_exhausted, is_full, kv_error},
};

const OPEN_FILES_MAX: usize = 64;
/// Files of this size: a merge rewrites few bytes that it need not.
const TABLE_BYTES: u64 = 16 << 20;
/// Runs of batches that are merged into the first level: that many, if it is worth rewriting what they meet there, else
/// as many as a reader should have to look into.
const RUNS_MERGED: u8 = 4;
const RUNS_READ_MAX: usize = 16;
const WORTH_MERGING_BYTES: u64 = 4 << 20;
/// The manifest has one byte for the number of runs; merging fails for good long before.
const RUNS_MAX: usize = 200;
/// A merge takes as much room as what it merges, until it is done. This much of it is looked for beforehand.
const MERGE_ROOM_MAX: u64 = 256 << 20;
/// Between two merges that failed, doubled up to the second.
const PAUSES: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(60);

pub struct LsmEngine {
    shared: Arc<Shared>,
    merger: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    dir: PathBuf,
    tree: AnyTree,
    seqno: SequenceNumberCounter,
    /// Held by a batch and by a merge: one at a time, so that what one of them leaves behind is known to be its own.
    writing: Mutex<()>,
    work: Mutex<bool>,
    changed: Condvar,
    stop: AtomicBool,
    /// Removals are to be merged at once, whatever it costs.
    tight: AtomicBool,
    /// What is on the disk may be another version than what is in memory: nothing more is written.
    astray: AtomicBool,
}

/// As in the FORMAT file.
pub const LSM_NAME: &str = "lsm-tree";

/// Opens or creates the default engine in `dir`: the opener to give to [`crate::MetaStore::open`].
pub fn lsm(dir: &Path, cache_bytes: u64) -> Result<Box<dyn Engine>, OpenError> {
    Ok(Box::new(LsmEngine::open(dir, cache_bytes)?))
}

impl LsmEngine {
    /// `cache_bytes` bounds the block cache.
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<LsmEngine, OpenError> {
        checked::check(dir)?;
        let (seqno, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
        let config = lsm_tree::Config::new(dir, seqno.clone(), visible.clone())
            .use_cache(Arc::new(Cache::with_capacity_bytes(cache_bytes)))
            .use_descriptor_table(Some(Arc::new(DescriptorTable::new(OPEN_FILES_MAX))));
        let tree = guarded(|| {
            let tree = config.open().map_err(engine_error)?;
            let next = tree.get_highest_seqno().map_or(0, |highest| highest + 1);
            seqno.fetch_max(next);
            visible.fetch_max(next);
            Ok(tree)
        })
        .map_err(|error| of_open(dir, error))?;
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            tree,
            seqno,
            writing: Mutex::default(),
            work: Mutex::new(true),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            tight: AtomicBool::new(false),
            astray: AtomicBool::new(false),
        });
        let merging = Arc::clone(&shared);
        let merger = std::thread::Builder::new()
            .name("kv-merge".to_owned())
            .spawn(move || merging.merge_all())
            .map_err(|e| OpenError::Engine(KvError::Io(format!("cannot start a thread: {e}"))))?;
        Ok(LsmEngine { shared, merger: Mutex::new(Some(merger)) })
    }

    fn end(&self) {
        self.shared.stop.store(true, Ordering::Release);
        drop(self.shared.work.lock());
        self.shared.changed.notify_all();
        if let Some(merger) = self.merger.lock().take()
            && merger.join().is_err()
        {
            tracing::error!("the thread that merges the metadata engine's files panicked");
        }
    }
}

impl Engine for LsmEngine {
    fn name(&self) -> &'static str {
        LSM_NAME
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        if key == RESERVED_KEY {
            return Ok(None);
        }
        // Copied: a slice would keep its whole block alive.
        guarded(|| Ok(self.shared.find(key)?.map(|value| Bytes::copy_from_slice(&value))))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        if from >= to {
            return Ok(());
        }
        let mut entries = guarded(|| Ok(self.shared.tree.range(from..to, SeqNo::MAX, None)))?;
        loop {
            // The visitor is the caller's: what it panics over is not ours.
            let next = guarded(|| match entries.next() {
                Some(entry) => entry.into_inner().map(Some).map_err(engine_error),
                None => Ok(None),
            })?;
            let Some((key, value)) = next else { return Ok(()) };
            if *key != *RESERVED_KEY && visit(&key, &value).is_break() {
                return Ok(());
            }
        }
    }

    fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError> {
        let result = self.shared.write_and_sweep(|shared| shared.add_run(batch, lsn));
        self.shared.begin_merging();
        result
    }

    fn applied_lsn(&self) -> Result<Lsn, KvError> {
        match guarded(|| self.shared.find(RESERVED_KEY))? {
            None => Ok(Lsn(0)),
            Some(bytes) => {
                let bytes: [u8; 8] = (*bytes)
                    .try_into()
                    .map_err(|_| KvError::Corrupt("the engine's applied number is not 8 bytes".to_owned()))?;
                Ok(Lsn(u64::from_le_bytes(bytes)))
            }
        }
    }

    fn want_room(&self) {
        self.shared.tight.store(true, Ordering::Release);
        self.shared.begin_merging();
    }

    fn approximate_bytes(&self) -> u64 {
        self.shared.disk_bytes()
    }

    fn close(&self) -> Result<(), KvError> {
        self.end();
        Ok(())
    }
}

impl Drop for LsmEngine {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn find(&self, key: &[u8]) -> Result<Option<lsm_tree::Slice>, KvError> {
        self.tree.get(key, SeqNo::MAX).map_err(engine_error)
    }

    fn disk_bytes(&self) -> u64 {
        guarded(|| Ok(self.tree.disk_space())).unwrap_or(0)
    }

    /// `batch` and its number as the newest run, durable.
    fn add_run(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError> {
        if self.tree.l0_run_count() >= RUNS_MAX {
            let text = "the engine's files were not merged for too long: see the log";
            return Err(ApplyError::Nothing(KvError::Io(text.to_owned())));
        }
        let lsn = lsn.0.to_le_bytes();
        let mut run = self.tree.ingestion()?;
        // In rising order of keys, among them the engine's own.
        let own = batch.partition_point(|(key, _)| *key < RESERVED_KEY);
        let (before, after) = batch.split_at(own);
        for (key, value) in before.iter().chain([&(RESERVED_KEY, Some(&lsn[..]))]).chain(after) {
            match value {
                Some(value) => run.write(*key, *value)?,
                None => run.write_tombstone(*key)?,
            }
        }
        run.finish()?;
        self.forget_versions();
        Ok(())
    }

    /// Nobody reads an older version of the tree by its number. Those who are reading hold it.
    fn forget_versions(&self) {
        let newest = self.seqno.get();
        if let Err(error) = self.tree.get_version_history_lock().maintenance(&self.dir, newest) {
            tracing::warn!(%error, "an old manifest of the metadata engine cannot be deleted");
        }
    }

    /// Runs `step` alone. If it fails, the files that it made are deleted: nobody ever saw them. Unless the disk has its
    /// version already, and only a sync after that failed: then the next opening has what it did.
    fn write_and_sweep(
        &self,
        step: impl FnOnce(&Shared) -> Result<(), ApplyError>,
    ) -> Result<(), ApplyError> {
        let writing = self.writing.lock();
        if self.astray.load(Ordering::Acquire) {
            let text = "a version of the engine's files was begun and not ended: see the log";
            return Err(ApplyError::Unknown(KvError::Io(text.to_owned())));
        }
        let first = self.tree.next_table_id();
        let current = checked::current_file(&self.dir).ok();
        let mut result = guarded(|| Ok(step(self))).unwrap_or_else(|error| Err(ApplyError::Unknown(error)));
        if let Err(ApplyError::Nothing(error)) = &result
            && !self.disk_agrees(current)
        {
            tracing::error!(%error, "the metadata engine's files have a version that it could not end");
            self.astray.store(true, Ordering::Release);
            result = Err(ApplyError::Unknown(error.clone()));
        }
        if let Err(ApplyError::Nothing(_)) = &result {
            let made = first..self.tree.next_table_id();
            let used: Vec<u64> = self.tree.current_version().iter_tables().map(|table| table.id()).collect();
            for id in made.filter(|id| !used.contains(id)) {
                drop(std::fs::remove_file(self.dir.join(checked::TABLES).join(id.to_string())));
            }
        }
        // A batch waits for this lock, and a thread that merges takes it again at once.
        MutexGuard::unlock_fair(writing);
        result
    }

    /// Is the version in memory the one that the disk names? `current` was its file before.
    fn disk_agrees(&self, current: Option<u64>) -> bool {
        let same_file = current.is_some() && checked::current_file(&self.dir).ok() == current;
        same_file
            || checked::newest_version(&self.dir).is_ok_and(|disk| disk == self.tree.current_version().id())
    }

    fn begin_merging(&self) {
        *self.work.lock() = true;
        self.changed.notify_all();
    }

    /// Merges while there is something to merge, then waits for the next batch.
    fn merge_all(&self) {
        let mut pause = PAUSES.start;
        let mut failing = false;
        while self.wait_for_work() {
            let tight = self.tight.swap(false, Ordering::AcqRel);
            let result = guarded(|| Ok(self.merge(tight))).unwrap_or_else(|e| Err(ApplyError::Unknown(e)));
            match &result {
                Ok(()) => (pause, failing) = (PAUSES.start, false),
                Err(error) if !failing => {
                    tracing::warn!(%error, "the metadata engine's files are not merged; tried again later");
                    failing = true;
                }
                Err(_) => {}
            }
            if result.is_err() {
                let mut work = self.work.lock();
                *work = true;
                if !self.stop.load(Ordering::Acquire) {
                    self.changed.wait_for(&mut work, pause);
                }
                pause = (pause * 2).min(PAUSES.end);
            }
        }
    }

    fn wait_for_work(&self) -> bool {
        let mut work = self.work.lock();
        while !*work && !self.stop.load(Ordering::Acquire) {
            self.changed.wait(&mut work);
        }
        *work = false;
        !self.stop.load(Ordering::Acquire)
    }

    /// Until the tree's policy finds nothing more to merge.
    fn merge(&self, tight: bool) -> Result<(), ApplyError> {
        while !self.stop.load(Ordering::Acquire) {
            let version = self.tree.current_version();
            let (before, runs) = (version.id(), self.tree.l0_run_count());
            let worth = runs >= RUNS_READ_MAX || version.l0().size() >= WORTH_MERGING_BYTES;
            drop(version);
            if !worth && !tight {
                break;
            }
            // A merge that finds no room leaves nothing, but takes all the room that there is until then.
            let room = self.disk_bytes().min(MERGE_ROOM_MAX);
            if !tight && runs < RUNS_MAX / 2 && free_bytes(&self.dir)? < room {
                return Err(ApplyError::Nothing(KvError::Full));
            }
            let threshold = if tight { 1 } else { RUNS_MERGED };
            self.write_and_sweep(|shared| {
                let policy =
                    Leveled::default().with_l0_threshold(threshold).with_table_target_size(TABLE_BYTES);
                shared.tree.compact(Arc::new(policy), shared.seqno.get())?;
                shared.forget_versions();
                Ok(())
            })?;
            if self.tree.current_version().id() == before {
                break;
            }
        }
        Ok(())
    }
}

fn free_bytes(dir: &Path) -> Result<u64, ApplyError> {
    let stat = rustix::fs::statvfs(dir).map_err(|e| ApplyError::Nothing(KvError::Io(e.to_string())))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

impl From<lsm_tree::Error> for ApplyError {
    fn from(error: lsm_tree::Error) -> ApplyError {
        let again = matches!(&error, lsm_tree::Error::Io(e) if is_full(e) || is_exhausted(e));
        let error = engine_error(error);
        if again { ApplyError::Nothing(error) } else { ApplyError::Unknown(error) }
    }
}

/// The tree marks its errors as open-ended, so what is not about the device is taken as damage.
#[expect(clippy::wildcard_enum_match_arm, reason = "an enum of another crate, marked non-exhaustive")]
fn engine_error(error: lsm_tree::Error) -> KvError {
    match error {
        // A file that ends too early, is not there, or sends a reader astray: the device did what it was asked.
        lsm_tree::Error::Io(e)
            if matches!(
                e.kind(),
                io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::NotFound
                    | io::ErrorKind::InvalidData
                    | io::ErrorKind::InvalidInput
            ) =>
        {
            KvError::Corrupt(format!("engine: {e}"))
        }
        lsm_tree::Error::Io(e) => kv_error("engine", &e),
        other => KvError::Corrupt(format!("engine: {other:?}")),
    }
}

fn of_open(dir: &Path, error: KvError) -> OpenError {
    match error {
        KvError::Corrupt(detail) => OpenError::EngineDamaged { path: dir.to_owned(), detail },
        KvError::Io(_) | KvError::Full | KvError::ReadOnly(_) => OpenError::Engine(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(dir: &Path) -> usize {
        std::fs::read_dir(dir.join(checked::TABLES)).unwrap().count()
    }

    /// Begins a table, and fails for want of a file descriptor.
    fn fail(shared: &Shared) -> Result<(), ApplyError> {
        let mut run = shared.tree.ingestion()?;
        run.write(&b"new"[..], &b"value"[..])?;
        drop(run);
        Err(lsm_tree::Error::Io(rustix::io::Errno::MFILE.into()).into())
    }

    #[test]
    fn regression_a_version_on_the_disk_keeps_its_tables() {
        // Goal: a step that fails after the disk has its version is not taken for one that did nothing, and its tables
        // stay. Method: a step that fails before; the same, but as after the manifest's renaming.
        let dir = tempfile::tempdir().unwrap();
        let engine = LsmEngine::open(dir.path(), 1 << 20).unwrap();
        engine.apply(&[(b"key", Some(b"value"))], Lsn(1)).unwrap();
        let before = tables(dir.path());
        let result = engine.shared.write_and_sweep(fail);
        assert!(matches!(result, Err(ApplyError::Nothing(_))), "{result:?}");
        assert_eq!(tables(dir.path()), before);
        engine.apply(&[(b"key", Some(b"next"))], Lsn(2)).unwrap();
        let before = tables(dir.path());
        let result = engine.shared.write_and_sweep(|shared| {
            let current = dir.path().join("current");
            let mut content = std::fs::read(&current).unwrap();
            content[0] += 1;
            std::fs::write(dir.path().join("next"), content).unwrap();
            std::fs::rename(dir.path().join("next"), &current).unwrap();
            fail(shared)
        });
        assert!(matches!(result, Err(ApplyError::Unknown(_))), "{result:?}");
        assert!(tables(dir.path()) > before, "they may be the disk's");
        assert!(matches!(engine.apply(&[(b"key", None)], Lsn(3)), Err(ApplyError::Unknown(_))));
    }
}
