//! The store as its callers see it, on the machine's own file system.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use kv::{
    ApplyError, Batch, Engine, Lsn, MemoryEngine, MetaStore, MetaStoreOptions, OpenError, SystemDisk,
    WriteSet,
};
use namespace::txn::{KvError, Reader, Txn, Visit};

fn options() -> MetaStoreOptions {
    MetaStoreOptions {
        background: false,
        cache_bytes: 1 << 20,
        checkpoint_bytes: 1 << 16,
        ..MetaStoreOptions::default()
    }
}

fn open_on(dir: &std::path::Path, engine: &MemoryEngine) -> MetaStore {
    let engine = engine.clone();
    MetaStore::open(dir, |_, _| Ok(Box::new(engine)), options(), Arc::new(SystemDisk)).unwrap()
}

fn one(key: &[u8], value: &'static str) -> WriteSet {
    let mut writes = WriteSet::new();
    writes.put(key, Bytes::from(value));
    writes
}

fn all(store: &impl Reader) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    store
        .scan(b"", &[0xff; 20], &mut |key, value| {
            found.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    found
}

#[test]
fn a_transaction_sees_its_own_writes_and_others_see_them_after_commit() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_on(dir.path(), &MemoryEngine::new());
    store.commit(one(b"a", "old")).unwrap();
    store.commit(one(b"c", "there")).unwrap();
    store.checkpoint().unwrap();
    let mut txn = store.begin();
    txn.put(b"b", Bytes::from("new"));
    txn.put(b"a", Bytes::from("changed"));
    txn.delete(b"c");
    txn.put(b"d", Bytes::from("last"));
    assert_eq!(txn.get(b"a").unwrap(), Some(Bytes::from("changed")));
    assert_eq!(txn.get(b"c").unwrap(), None);
    let expected: Vec<(Vec<u8>, Vec<u8>)> = [("a", "changed"), ("b", "new"), ("d", "last")]
        .map(|(k, v)| (k.as_bytes().to_vec(), v.as_bytes().to_vec()))
        .to_vec();
    assert_eq!(all(&txn), expected);
    assert_eq!(store.get(b"a").unwrap(), Some(Bytes::from("old")));
    assert_eq!(store.get(b"b").unwrap(), None);
    assert_eq!(txn.commit().unwrap(), Lsn(3));
    assert_eq!(all(&store), expected);
    let mut dropped = store.begin();
    dropped.put(b"a", Bytes::from("never"));
    drop(dropped);
    assert_eq!(all(&store), expected);
}

#[test]
fn random_commits_checkpoints_and_reopenings_agree_with_a_map() {
    // Goal: whatever lies in the overlays, the cache and the engine, reads see the commits. Method: a random mix
    // against a BTreeMap, on the default engine; every step reads a point and a range.
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(7);
    let mut model: BTreeMap<Vec<u8>, Bytes> = BTreeMap::new();
    let open = || MetaStore::open_default(dir.path(), options()).unwrap();
    let mut store = open();
    for step in 0..3000u64 {
        match random.below(200) {
            0 => store.checkpoint().unwrap(),
            1 => store.sync().unwrap(),
            2 if random.below(3) == 0 => {
                store.close().unwrap();
                drop(store);
                store = open();
            }
            _ => {
                let mut writes = WriteSet::new();
                for _ in 0..random.below(6) {
                    let key = random.key();
                    if random.below(3) == 0 {
                        model.remove(&key);
                        writes.delete(&key);
                    } else {
                        let value = Bytes::from(vec![step as u8; random.below(100) as usize]);
                        model.insert(key.clone(), value.clone());
                        writes.put(&key, value);
                    }
                }
                store.commit(writes).unwrap();
            }
        }
        let (a, b) = (random.key(), random.key());
        assert_eq!(store.get(&a).unwrap(), model.get(&a).cloned(), "step {step}");
        let mut found = Vec::new();
        store
            .scan(&a, &b, &mut |k, v| {
                found.push((k.to_vec(), Bytes::copy_from_slice(v)));
                ControlFlow::Continue(())
            })
            .unwrap();
        let expected: Vec<_> =
            model.iter().filter(|(k, _)| a <= **k && **k < b).map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(found, expected, "step {step}");
    }
    assert!(store.stats().cache_hits > 0);
}

#[test]
fn readers_never_see_an_older_value_while_checkpoints_run() {
    // Goal: no interleaving of fills, commits and checkpoints shows a reader a value older than one that it could have
    // seen before. Method: one writer counts up in a few keys, checkpoints run all the time, readers check that
    // each key only grows and is never behind what the writer had finished.
    let dir = tempfile::tempdir().unwrap();
    let store = open_on(dir.path(), &MemoryEngine::new());
    const KEYS: u64 = 5;
    const ROUNDS: u64 = 4000;
    let done: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let key = |n: u64| [n.to_be_bytes().as_slice(), b"I"].concat();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (store, done, ended) = (&store, &done, &ended);
            scope.spawn(move || {
                let mut n = reader;
                while !ended.load(Ordering::Acquire) {
                    n = (n + 1) % KEYS;
                    let floor = done[n as usize].load(Ordering::Acquire);
                    let point = store.get(&key(n)).unwrap().map_or(0, |v| number(&v));
                    assert!(point >= floor, "key {n}: {point} after {floor}");
                    let mut scanned = 0;
                    store
                        .scan(&key(n), &key(n + 1), &mut |_, v| {
                            scanned = number(v);
                            ControlFlow::Break(())
                        })
                        .unwrap();
                    assert!(scanned >= point, "key {n}: scanned {scanned} after {point}");
                }
            });
        }
        let (store_ref, ended_ref) = (&store, &ended);
        scope.spawn(move || {
            while !ended_ref.load(Ordering::Acquire) {
                store_ref.checkpoint().unwrap();
            }
        });
        let _ending = fuzzing::Ending(&ended);
        for round in 1.. {
            let n = round % KEYS;
            let mut writes = WriteSet::new();
            writes.put(&key(n), Bytes::copy_from_slice(&round.to_le_bytes()));
            store.commit(writes).unwrap();
            done[n as usize].store(round, Ordering::Release);
            if round >= ROUNDS && store.stats().checkpoints > 0 {
                break;
            }
        }
    });
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

#[test]
fn threads_in_different_ugsds_commit_at_once_and_all_of_it_survives() {
    let dir = tempfile::tempdir().unwrap();
    let engine = MemoryEngine::new();
    let mut with_background = options();
    with_background.background = true;
    with_background.checkpoint_bytes = 20_000;
    let copy = engine.clone();
    let store = MetaStore::open(dir.path(), |_, _| Ok(Box::new(copy)), with_background, Arc::new(SystemDisk))
        .unwrap();
    let key = |ugsd: u64, n: u64| [((ugsd << 40) + n).to_be_bytes().as_slice(), b"I"].concat();
    std::thread::scope(|scope| {
        for ugsd in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                for n in 1..=1000 {
                    store.commit(one(&key(ugsd, n), "value")).unwrap();
                    if n % 300 == 0 {
                        store.sync().unwrap();
                        assert!(store.synced_lsn() >= Lsn(n));
                    }
                }
            });
        }
    });
    assert_eq!(store.last_lsn(), Lsn(4000));
    assert_eq!(all(&store).len(), 4000);
    store.close().unwrap();
    assert_eq!(engine.applied_lsn().unwrap(), Lsn(4000));
    drop(store);
    let store = open_on(dir.path(), &engine);
    assert_eq!(store.recovery().replayed, 0, "a clean close leaves nothing in the journal");
    assert_eq!(all(&store).len(), 4000);
}

#[test]
fn the_hook_runs_before_what_it_covers_is_called_durable() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_on(dir.path(), &MemoryEngine::new());
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    store.set_before_sync(Box::new(move || match counted.fetch_add(1, Ordering::SeqCst) {
        0 => Err(KvError::Io("the data is not durable yet".to_owned())),
        _ => Ok(()),
    }));
    let lsn = store.commit(one(b"key", "value")).unwrap();
    assert_eq!(store.sync(), Err(KvError::Io("the data is not durable yet".to_owned())));
    assert_eq!(store.synced_lsn(), Lsn(0));
    store.sync().unwrap();
    assert_eq!(store.synced_lsn(), lsn);
    store.sync().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2, "nothing to sync: no hook, no fsync");
    store.commit(one(b"key", "next")).unwrap();
    store.checkpoint().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 3, "a checkpoint syncs first");
}

#[test]
fn a_closed_store_refuses_commits_and_still_reads() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_on(dir.path(), &MemoryEngine::new());
    store.commit(one(b"key", "value")).unwrap();
    store.close().unwrap();
    store.close().unwrap();
    assert_eq!(store.commit(one(b"key", "more")), Err(KvError::ReadOnly("the store is closed".to_owned())));
    assert_eq!(store.get(b"key").unwrap(), Some(Bytes::from("value")));
    assert_eq!(std::fs::read_dir(dir.path().join("journal")).unwrap().count(), 0);
}

#[test]
fn each_obstacle_at_opening_has_its_own_error() {
    // Goal: in use, newer, foreign, lost: told apart. Method: make each by hand.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let open = || MetaStore::open_default(path, options());
    let store = open().unwrap();
    store.commit(one(b"key", "value")).unwrap();
    let pid = Some(std::process::id());
    assert_eq!(open().err(), Some(OpenError::Locked { path: path.to_owned(), pid }));
    drop(store);
    let foreign =
        MetaStore::open(path, |_, _| Ok(Box::new(MemoryEngine::new())), options(), Arc::new(SystemDisk));
    let (found, wanted) = ("lsm-tree".to_owned(), "memory".to_owned());
    let foreign = foreign.map(drop);
    assert_eq!(foreign.clone().err(), Some(OpenError::OtherEngine { path: path.to_owned(), found, wanted }));
    let named = MetaStoreOptions { engine: Some("memory"), ..options() };
    let unopened = MetaStore::open(path, |_, _| panic!("it is not opened"), named, Arc::new(SystemDisk));
    assert_eq!(unopened.err(), foreign.err());
    assert_eq!(kv::engine_of(path), Ok(Some("lsm-tree".to_owned())));
    let mut header = [0u8; 64];
    header[..9].copy_from_slice(b"ONFSJRNL\x03");
    let segment = path.join("journal/0000000000000009.seg");
    std::fs::write(&segment, header).unwrap();
    assert_eq!(open().err(), Some(OpenError::Newer { path: segment.clone(), found: 3, known: 2 }));
    std::fs::remove_file(&segment).unwrap();
    let format = path.join("FORMAT");
    let text = std::fs::read_to_string(&format).unwrap();
    std::fs::remove_file(&format).unwrap();
    assert_eq!(open().err(), Some(OpenError::NotAStore { path: path.to_owned() }));
    std::fs::write(&format, text).unwrap();
    open().unwrap();
    std::fs::remove_dir_all(path.join("engine")).unwrap();
    assert!(matches!(open().err(), Some(OpenError::Damaged { .. })));
}

#[test]
fn what_cannot_be_stored_is_refused_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_on(dir.path(), &MemoryEngine::new());
    for key in [vec![], vec![1; 4097], vec![0xff; 16]] {
        let mut writes = one(b"key", "value");
        writes.put(&key, Bytes::from("value"));
        assert!(matches!(store.commit(writes), Err(KvError::Io(_))));
    }
    let mut writes = WriteSet::new();
    writes.put(b"key", Bytes::from(vec![0; kv::FRAME_BYTES_MAX]));
    assert!(matches!(store.commit(writes), Err(KvError::Io(_))));
    assert_eq!(store.last_lsn(), Lsn(0));
    assert_eq!(store.commit(WriteSet::new()).unwrap(), Lsn(0));
    assert!(all(&store).is_empty());
}

/// Counts what it is asked for.
#[derive(Clone, Default)]
struct Counting(MemoryEngine, Arc<AtomicU64>);

impl Engine for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.get(key)
    }
    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        self.0.scan(from, to, visit)
    }
    fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError> {
        self.0.apply(batch, lsn)
    }
    fn applied_lsn(&self) -> Result<Lsn, KvError> {
        self.0.applied_lsn()
    }
    fn approximate_bytes(&self) -> u64 {
        self.0.approximate_bytes()
    }
    fn close(&self) -> Result<(), KvError> {
        Ok(())
    }
}

/// Goal: the engine is not asked for what cannot be there, and what came there meanwhile is not hidden. Method: something new that is written afterwards, and
/// one that was written, carried into the engine, or changed by others before it is said to be new.
#[test]
fn what_is_new_is_not_asked_of_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Counting::default();
    let inner = engine.clone();
    let store =
        MetaStore::open(dir.path(), |_, _| Ok(Box::new(inner)), options(), Arc::new(SystemDisk)).unwrap();
    let asked = || engine.1.load(Ordering::Relaxed);
    let value = |key: &[u8]| store.get(key).unwrap().map(|value| value.to_vec());
    let before = store.before_new();
    store.commit(one(b"file", "made")).unwrap();
    store.was_new(before, b"layout");
    assert_eq!((value(b"layout"), asked()), (None, 0));
    store.commit(one(b"layout", "here")).unwrap();
    assert_eq!(value(b"layout"), Some(b"here".to_vec()));
    store.checkpoint().unwrap();
    assert_eq!(value(b"layout"), Some(b"here".to_vec()));
    // Carried in before it was said.
    let before = store.before_new();
    store.commit(one(b"other", "there")).unwrap();
    store.checkpoint().unwrap();
    store.forget_reads();
    store.was_new(before, b"other");
    assert_eq!((value(b"other"), asked()), (Some(b"there".to_vec()), 1));
    // Others have written.
    let before = store.before_new();
    engine.0.apply(&[(b"theirs", Some(b"1"))], store.last_lsn()).unwrap();
    store.forget_reads();
    store.was_new(before, b"theirs");
    assert_eq!(value(b"theirs"), Some(b"1".to_vec()));
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// Few enough to meet often, in several UGSDs.
    fn key(&mut self) -> Vec<u8> {
        let ugsd = self.below(4) * 37;
        let ino = (ugsd << 40) + self.below(12);
        [ino.to_be_bytes().as_slice(), &b"IDX"[..self.below(4) as usize]].concat()
    }
}
