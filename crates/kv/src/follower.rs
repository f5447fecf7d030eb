//! Who is told of each commit, so that a copy of the journal's end can be kept elsewhere; and what such a commit says.

use bytes::Bytes;
use namespace::txn::KvError;

use crate::{Lsn, frame};

/// See [`crate::MetaStore::set_follower`].
pub trait Follower: Send + Sync {
    /// The commit is in the journal. In the order of the numbers, without holes, under the journal's lock: it returns at once, and calls
    /// nothing of the store. `body` is what [`entries_of`] reads.
    fn added(&self, lsn: Lsn, body: &[u8]);
    /// May the engine have all up to this? An error puts it off: it is asked again. It may wait.
    fn before_apply(&self, lsn: Lsn) -> Result<(), KvError>;
    /// The engine has it.
    fn applied(&self, lsn: Lsn);
}

/// A key, and what it has from then on; `None`: nothing.
pub type Entry = (Box<[u8]>, Option<Bytes>);

/// What a commit says, in rising order of distinct keys; `None`: these are not the bytes of a whole one.
pub fn entries_of(body: &[u8]) -> Option<Vec<Entry>> {
    let entries = frame::entries(body)?;
    let rises = entries.windows(2).all(|two| two[0].0 < two[1].0);
    rises.then(|| entries.into_iter().map(|(key, value)| (Box::from(&*key), value)).collect())
}

#[cfg(test)]
mod tests {
    //! Goal: a follower hears of each commit in order and holds the engine back; a store in whose place another went on leaves out what was not
    //! heard of, and gives no number twice. Method: an engine in memory that outlives the store.
    use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    };

    use namespace::txn::Visit;
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        ApplyError, Batch, Engine, MemoryEngine, MetaStore, MetaStoreOptions, OpenError, SystemDisk, WriteSet,
    };

    #[derive(Clone)]
    struct Lasting {
        engine: MemoryEngine,
        taken_over: Arc<AtomicBool>,
    }

    impl Engine for Lasting {
        fn name(&self) -> &'static str {
            self.engine.name()
        }
        fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
            self.engine.get(key)
        }
        fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
            self.engine.scan(from, to, visit)
        }
        fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError> {
            self.engine.apply(batch, lsn)
        }
        fn applied_lsn(&self) -> Result<Lsn, KvError> {
            self.engine.applied_lsn()
        }
        fn taken_over(&self) -> Result<bool, KvError> {
            Ok(self.taken_over.load(Ordering::Acquire))
        }
        fn begin_anew(&self) -> Result<(), KvError> {
            self.taken_over.store(false, Ordering::Release);
            Ok(())
        }
        fn approximate_bytes(&self) -> u64 {
            0
        }
        fn close(&self) -> Result<(), KvError> {
            Ok(())
        }
    }

    #[derive(Default)]
    struct Heard {
        commits: Mutex<Vec<(u64, Vec<Entry>)>>,
        may: AtomicU64,
        applied: AtomicU64,
    }

    impl Follower for Heard {
        fn added(&self, lsn: Lsn, body: &[u8]) {
            self.commits.lock().push((lsn.0, entries_of(body).unwrap()));
        }
        fn before_apply(&self, lsn: Lsn) -> Result<(), KvError> {
            let may = self.may.load(Ordering::Acquire);
            if lsn.0 <= may { Ok(()) } else { Err(KvError::Io("not yet".to_owned())) }
        }
        fn applied(&self, lsn: Lsn) {
            self.applied.store(lsn.0, Ordering::Release);
        }
    }

    fn open(dir: &std::path::Path, engine: &Lasting) -> Result<MetaStore, OpenError> {
        let options = MetaStoreOptions { background: false, ..MetaStoreOptions::default() };
        let engine = Box::new(engine.clone());
        MetaStore::open(dir, |_, _| Ok(engine), options, Arc::new(SystemDisk))
    }

    fn put(store: &MetaStore, key: &[u8]) {
        let mut writes = WriteSet::new();
        writes.put(key, Bytes::copy_from_slice(key));
        store.commit(writes).unwrap();
    }

    #[test]
    fn a_follower_hears_all_and_holds_the_engine_back() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Lasting { engine: MemoryEngine::new(), taken_over: Arc::default() };
        let store = open(dir.path(), &engine).unwrap();
        let heard: Arc<Heard> = Arc::default();
        assert!(store.set_follower(heard.clone()) && !store.set_follower(heard.clone()));
        put(&store, b"one");
        put(&store, b"two");
        let said: Vec<(u64, Vec<Entry>)> = [(1, b"one"), (2, b"two")]
            .map(|(n, key)| (n, vec![(Box::from(&key[..]), Some(Bytes::copy_from_slice(key)))]))
            .into();
        assert_eq!(*heard.commits.lock(), said);
        heard.may.store(1, Ordering::Release);
        assert!(store.checkpoint().is_err());
        assert_eq!((engine.applied_lsn(), store.get(b"two").unwrap().is_some()), (Ok(Lsn(0)), true));
        heard.may.store(2, Ordering::Release);
        store.checkpoint().unwrap();
        assert_eq!((engine.applied_lsn(), heard.applied.load(Ordering::Acquire)), (Ok(Lsn(2)), 2));
        assert_eq!(entries_of(b"x"), None);
    }

    #[test]
    fn what_was_not_heard_of_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Lasting { engine: MemoryEngine::new(), taken_over: Arc::default() };
        let store = open(dir.path(), &engine).unwrap();
        // None of it goes into the engine, not even at the end.
        assert!(store.set_follower(Arc::new(Heard::default())));
        ["one", "two", "three"].iter().for_each(|key| put(&store, key.as_bytes()));
        drop(store);
        // Another had heard of the first, and went on.
        engine.apply(&[(b"one", Some(b"one"))], Lsn(1)).unwrap();
        engine.taken_over.store(true, Ordering::Release);
        let store = open(dir.path(), &engine).unwrap();
        assert_eq!((store.get(b"two"), store.get(b"three")), (Ok(None), Ok(None)));
        assert!(store.get(b"one").unwrap().is_some());
        assert_eq!(
            (store.recovery().replayed, store.last_lsn(), engine.taken_over()),
            (0, Lsn(3), Ok(false))
        );
        put(&store, b"four");
        assert_eq!(store.last_lsn(), Lsn(4));
        drop(store);
        let store = open(dir.path(), &engine).unwrap();
        assert!(store.get(b"four").unwrap().is_some() && store.get(b"two").unwrap().is_none());
    }
}
