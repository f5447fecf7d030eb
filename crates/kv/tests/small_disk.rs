//! A disk that others filled up: what the reserve, the journal and the engine take of it is counted to the byte.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use kv::{
    ApplyError, Batch, BootId, Disk, DiskFile, Engine, Lsn, MemoryEngine, MetaStore, MetaStoreOptions,
    OpenError, Space, SystemDisk, WriteSet,
};
use namespace::txn::{KvError, Visit};

const TOTAL: u64 = 128 << 20;

/// The machine's files, on a disk of [`TOTAL`] bytes.
#[derive(Clone, Default)]
struct SmallDisk(Arc<Mutex<Used>>);

#[derive(Default)]
struct Used {
    files: BTreeMap<PathBuf, u64>,
    engine: u64,
    others: u64,
}

impl Used {
    fn free(&self) -> u64 {
        TOTAL - self.files.values().sum::<u64>() - self.engine - self.others
    }
}

impl SmallDisk {
    fn free(&self) -> u64 {
        self.0.lock().unwrap().free()
    }

    /// Others take all that is free but `left`.
    fn fill(&self, left: u64) {
        let mut used = self.0.lock().unwrap();
        used.others += used.free() - left;
    }

    fn set(&self, path: &Path, len: u64) -> io::Result<()> {
        let mut used = self.0.lock().unwrap();
        let had = used.files.get(path).copied().unwrap_or(0);
        if len > had + used.free() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        used.files.insert(path.to_owned(), len);
        Ok(())
    }

    fn at_least(&self, path: &Path, len: u64) -> io::Result<()> {
        let had = self.0.lock().unwrap().files.get(path).copied().unwrap_or(0);
        self.set(path, had.max(len))
    }

    fn file(&self, path: &Path, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(SmallFile { disk: self.clone(), path: path.to_owned(), file })
    }
}

impl Disk for SmallDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        SystemDisk.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        SystemDisk.list(dir)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.set(path, 0)?;
        Ok(self.file(path, SystemDisk.create(path)?))
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        SystemDisk.read(path)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        SystemDisk.remove(path)?;
        self.0.lock().unwrap().files.remove(path);
        Ok(())
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        SystemDisk.sync_dir(dir)
    }
    fn open_or_create(&self, path: &Path) -> io::Result<(Arc<dyn DiskFile>, u64)> {
        let (file, len) = SystemDisk.open_or_create(path)?;
        Ok((self.file(path, file), len))
    }
    fn space(&self, _dir: &Path) -> io::Result<Space> {
        Ok(Space { free: self.free(), total: TOTAL })
    }
    fn boot_id(&self) -> Option<BootId> {
        SystemDisk.boot_id()
    }
}

struct SmallFile {
    disk: SmallDisk,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
}

impl DiskFile for SmallFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.at_least(&self.path, offset + bytes.len() as u64)?;
        self.file.write_at(bytes, offset)
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.at_least(&self.path, offset + len)?;
        self.file.allocate(offset, len)
    }
    fn shrink(&self, len: u64) -> io::Result<()> {
        self.disk.set(&self.path, len)?;
        self.file.shrink(len)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// A batch needs room for what it says and a bit more; what it replaces is merged away at once.
#[derive(Clone, Default)]
struct SmallEngine {
    disk: SmallDisk,
    inner: MemoryEngine,
    during: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>,
}

impl Engine for SmallEngine {
    fn name(&self) -> &'static str {
        "small"
    }
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.inner.get(key)
    }
    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        self.inner.scan(from, to, visit)
    }
    fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError> {
        if let Some(during) = self.during.get() {
            during();
        }
        let says: usize = batch.iter().map(|(k, v)| k.len() + v.map_or(0, <[u8]>::len)).sum();
        let takes = says as u64 * 5 / 4 + (300 << 10);
        if self.disk.free() < takes {
            return Err(ApplyError::Nothing(KvError::Full));
        }
        self.inner.apply(batch, lsn)?;
        self.disk.0.lock().unwrap().engine = self.inner.approximate_bytes();
        Ok(())
    }
    fn applied_lsn(&self) -> Result<Lsn, KvError> {
        self.inner.applied_lsn()
    }
    fn approximate_bytes(&self) -> u64 {
        self.inner.approximate_bytes()
    }
    fn close(&self) -> Result<(), KvError> {
        Ok(())
    }
}

struct Small {
    dir: tempfile::TempDir,
    engine: SmallEngine,
}

impl Small {
    fn new() -> Small {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Small { dir, engine: SmallEngine::default() }
    }

    fn disk(&self) -> &SmallDisk {
        &self.engine.disk
    }

    fn open(&self, background: bool) -> Result<MetaStore, OpenError> {
        let options = MetaStoreOptions {
            background,
            checkpoint_bytes: 1 << 20,
            cache_bytes: 1 << 20,
            checkpoint_period: Duration::from_secs(3600),
            ..MetaStoreOptions::default()
        };
        let engine = self.engine.clone();
        MetaStore::open(self.dir.path(), |_, _| Ok(Box::new(engine)), options, Arc::new(self.disk().clone()))
    }
}

/// A few keys, so that the engine stays small.
fn put(n: u64, may_use_reserve: bool) -> WriteSet {
    let mut writes = WriteSet::new();
    writes.put(&[(n % 7).to_be_bytes().as_slice(), b"I"].concat(), Bytes::from(vec![n as u8; 4000]));
    if may_use_reserve {
        writes.use_reserve();
    }
    writes
}

#[test]
fn regression_a_refused_commit_leaves_a_running_checkpoint_its_room() {
    // Goal: the reserve is not taken back from the checkpoint that it was given to. Method: a full disk, and a commit that
    // is refused, and looks for space, in the middle of the engine's batch.
    let small = Small::new();
    let store = Arc::new(small.open(false).unwrap());
    for n in 0..200 {
        store.commit(put(n, true)).unwrap();
    }
    small.disk().fill(0);
    store.checkpoint().unwrap();
    assert!(store.stats().short_of_space, "the new segment is of the reserve's room");
    store.commit(put(0, true)).unwrap();
    let (inside, disk) = (Arc::downgrade(&store), small.disk().clone());
    let tried = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&tried);
    let during = move || {
        let Some(store) = inside.upgrade() else { return };
        let before = disk.free();
        assert_eq!(store.commit(put(1, false)), Err(KvError::Full));
        assert!(before > 300 << 10);
        assert_eq!(disk.free(), before, "the room stays the checkpoint's");
        noted.store(true, Ordering::SeqCst);
    };
    assert!(small.engine.during.set(Box::new(during)).is_ok());
    store.checkpoint().unwrap();
    assert!(tried.load(Ordering::SeqCst));
}

#[test]
fn regression_the_journal_leaves_the_room_to_carry_it() {
    // Goal: whatever is committed while the reserve is given to a checkpoint, this one and the next find the room that they
    // need, and so does the next start. Method: a full disk; in the middle of the engine's batch all that is taken, of
    // commits that may use the reserve; then checkpoints, and an opening of what a kill would leave.
    let mut small = Small::new();
    let store = Arc::new(small.open(false).unwrap());
    for n in 0..200 {
        store.commit(put(n, true)).unwrap();
    }
    small.disk().fill(0);
    let inside = Arc::downgrade(&store);
    let during = move || {
        let Some(store) = inside.upgrade() else { return };
        let taken = (0..100_000).take_while(|n| store.commit(put(*n, true)).is_ok()).count();
        assert!(taken < 100_000, "the disk is full");
    };
    assert!(small.engine.during.set(Box::new(during)).is_ok());
    for round in 0..5 {
        for n in 0..100_000 {
            if store.commit(put(n, true)).is_err() {
                break;
            }
        }
        assert_eq!(store.checkpoint(), Ok(()), "round {round}");
    }
    assert!(store.commit(put(1, true)).is_ok(), "removals go on");
    std::mem::forget(store);
    std::fs::remove_file(small.dir.path().join("LOCK")).unwrap();
    small.engine.during = Arc::default();
    drop(small.open(false).unwrap());
}

#[test]
fn regression_a_full_segment_on_a_full_disk_does_not_refuse_removals() {
    // Goal: when the segment is full and the disk has no room for more of it, a commit that may use the reserve is taken
    // at once, and not after the next periodic checkpoint, which here never comes. Method: commits until one is refused,
    // then many that may, of two threads, with refused ones in between.
    let small = Small::new();
    let store = small.open(true).unwrap();
    small.disk().fill(0);
    let taken = (0..100_000).take_while(|n| store.commit(put(*n, false)).is_ok()).count();
    assert!(taken < 100_000, "the disk is full");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let store = &store;
            scope.spawn(move || {
                for n in 0..1500 {
                    store.commit(put(n, true)).unwrap_or_else(|e| panic!("{thread}, {n}: {e}"));
                    if n % 10 == 0 {
                        drop(store.commit(put(n, false)));
                    }
                }
            });
        }
    });
    assert!(store.stats().checkpoints > 1);
}
