//! The server itself: opening a store as a file system, and running transactions under the right locks.

use std::{
    fs::File,
    io::Read,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering},
    },
};

use kv::MetaStore;
use namespace::{
    Env, NameHasher, Place,
    superblock::{self, FORMAT, FormatOptions, Stored, Superblock},
};
use parking_lot::Mutex;
use types::{Errno, Ino, Slot, Timestamp};

use crate::{
    clock::{Clock, SystemClock},
    count,
    error::{Error, Reporter},
    numbers::Numbers,
    orphans::{Orphans, Replay},
    owned::{GATHERINGS_MAX, Gather, Owned, Welcome},
    recorder::{Recorded, Recorder},
    reservations::Reservations,
    slots::{SlotLocks, SlotSet, SlotTxn},
};

#[derive(Clone)]
pub struct MdsOptions {
    /// The memory tier's generation; 0 keeps the stored one.
    pub memory_generation: u32,
    /// Owner and permission bits of the root directory, when the store is new.
    pub root_uid: u32,
    pub root_gid: u32,
    pub root_mode: u32,
    pub clock: Arc<dyn Clock>,
}

impl Default for MdsOptions {
    fn default() -> MdsOptions {
        MdsOptions {
            memory_generation: 0,
            root_uid: 0,
            root_gid: 0,
            root_mode: 0o755,
            clock: Arc::new(SystemClock),
        }
    }
}

/// See the crate's page. Every method may be called from any thread.
pub struct Mds {
    pub(crate) store: Arc<MetaStore>,
    pub(crate) locks: SlotLocks,
    pub(crate) numbers: Numbers,
    pub(crate) orphans: Orphans,
    pub(crate) replay: Mutex<Replay>,
    pub(crate) reservations: Reservations,
    /// Inodes, orphans included: exact but for what a crash forgets.
    pub(crate) inodes: AtomicI64,
    pub(crate) inodes_saved: AtomicI64,
    pub(crate) quota_changes: AtomicU64,
    pub(crate) recorder: OnceLock<Weak<dyn Recorder>>,
    pub(crate) owned: Owned,
    pub(crate) gatherer: OnceLock<Weak<dyn Gather>>,
    /// Numbers of UGSDs are below it, as far as who does not serve the root's slot was told.
    pub(crate) ugsds: AtomicU32,
    reporter: Reporter,
    clock: Arc<dyn Clock>,
    names: NameHasher,
    pub(crate) hash_key: [u8; 16],
    uuid: [u8; 16],
    epoch: u32,
    memory_generation: AtomicU32,
}

impl Mds {
    /// Opens the file system in `store`, or makes one if the store is empty, and begins a new mount epoch.
    pub fn new(store: Arc<MetaStore>, options: MdsOptions) -> Result<Mds, Error> {
        Mds::begin(store, options, Owned::all())
    }

    /// As [`Mds::new`], of a file system whose slots several servers have. The root's must be among `slots`.
    pub fn first(store: Arc<MetaStore>, options: MdsOptions, slots: &[Slot]) -> Result<Mds, Error> {
        Mds::begin(store, options, Owned::some(slots))
    }

    /// A server beside the one that has the root's slot, and that gave the welcome.
    pub fn join(store: Arc<MetaStore>, options: MdsOptions, welcome: &Welcome, slots: &[Slot]) -> Mds {
        Mds::assemble(store, &welcome.superblock, options.clock, 1, Owned::some(slots))
    }

    fn begin(store: Arc<MetaStore>, options: MdsOptions, owned: Owned) -> Result<Mds, Error> {
        let mut txn = store.begin();
        let mut superblock = match superblock::read(&txn)? {
            Stored::Here(superblock) => superblock,
            Stored::OtherFormat { format } => {
                return Err(Error::OtherFormat { found: format, supported: FORMAT });
            }
            Stored::Nothing => superblock::format(&mut txn, &format_options(&options)?),
        };
        superblock.epoch += 1;
        if options.memory_generation != 0 {
            superblock.memory_generation = options.memory_generation;
        }
        superblock::store(&mut txn, &superblock);
        txn.use_reserve();
        txn.commit()?;
        // Other stores of state may name this epoch from now on, so it must not be lost.
        store.sync()?;
        let inodes = count::load(&*store)?;
        Ok(Mds::assemble(store, &superblock, options.clock, inodes, owned))
    }

    fn assemble(
        store: Arc<MetaStore>,
        superblock: &Superblock,
        clock: Arc<dyn Clock>,
        inodes: i64,
        owned: Owned,
    ) -> Mds {
        Mds {
            store,
            locks: SlotLocks::new(),
            numbers: Numbers::new(),
            orphans: Orphans::new(),
            replay: Mutex::new(Replay::of_earlier_mounts()),
            reservations: Reservations::default(),
            inodes: AtomicI64::new(inodes),
            inodes_saved: AtomicI64::new(inodes),
            quota_changes: AtomicU64::new(0),
            recorder: OnceLock::new(),
            owned,
            gatherer: OnceLock::new(),
            ugsds: AtomicU32::new(superblock.next_ugsd),
            reporter: Reporter::default(),
            clock,
            names: NameHasher::new(&superblock.hash_key),
            hash_key: superblock.hash_key,
            uuid: superblock.uuid,
            epoch: superblock.epoch,
            memory_generation: AtomicU32::new(superblock.memory_generation),
        }
    }

    /// Names this file system.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Number of this mount.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    pub fn memory_generation(&self) -> u32 {
        self.memory_generation.load(Ordering::Acquire)
    }

    /// The memory tier's content was lost (or came back): from now on writes belong to `generation`. Durable on return.
    pub fn set_memory_generation(&self, generation: u32) -> Result<(), Errno> {
        self.change_when_full(SlotSet::root(), |txn, _| {
            let mut superblock = superblock::load(txn)?;
            superblock.memory_generation = generation;
            superblock::store(txn, &superblock);
            Ok(())
        })?;
        self.memory_generation.store(generation, Ordering::Release);
        self.sync()
    }

    /// Everything answered so far is durable on return.
    pub fn sync(&self) -> Result<(), Errno> {
        // Only a count for people, and the error was logged.
        let _ = self.save_count_sometimes();
        self.store.sync().map_err(|e| self.reporter.store_errno(e))
    }

    /// Once, before the first operation; `EBUSY` after. Whoever sets it keeps it: it has the server for its part, and two that
    /// kept each other would never end. When it is gone changes are `EIO`, since nobody would know of them.
    pub fn set_recorder(&self, recorder: &Arc<dyn Recorder>) -> Result<(), Errno> {
        self.recorder.set(Arc::downgrade(recorder)).map_err(|_| Errno::EBUSY)
    }

    fn the_recorder(&self) -> Result<Option<Arc<dyn Recorder>>, Errno> {
        self.recorder.get().map(|recorder| recorder.upgrade().ok_or(Errno::EIO)).transpose()
    }

    pub(crate) fn admit(&self, ino: Option<Ino>) -> Result<(), Errno> {
        self.the_recorder()?.map_or(Ok(()), |recorder| recorder.admit(ino))
    }

    /// As [`Mds::admit`], of what has a name, if something has it: otherwise the operation says what is wrong.
    pub(crate) fn admit_named(&self, at: Place<'_>) -> Result<(), Errno> {
        let Some(recorder) = self.the_recorder()? else { return Ok(()) };
        match self.read(|reader| namespace::lookup(reader, &self.env(), at)) {
            Ok(found) => recorder.admit(Some(found.attr.ino)),
            Err(_) => Ok(()),
        }
    }

    fn env_at(&self, now: Timestamp) -> Env {
        Env { now, epoch: self.epoch, memory_generation: self.memory_generation(), names: self.names }
    }

    /// For reads, which need no time.
    pub(crate) fn env(&self) -> Env {
        self.env_at(Timestamp::EPOCH)
    }

    pub(crate) fn errno(&self, error: namespace::Error) -> Errno {
        self.reporter.errno(error)
    }

    /// Runs `operation` as one transaction under the locks of `set`, and of whatever else it turns out to touch.
    /// It may run more than once; only the last run counts.
    pub(crate) fn change<V>(
        &self,
        set: SlotSet,
        operation: impl Fn(&mut SlotTxn<'_>, &Env) -> namespace::Result<V>,
    ) -> Result<V, Errno> {
        self.change_then(set, operation, |value| value)
    }

    /// As [`Mds::change`], for what makes room or only changes what is there: a full disk does not refuse it.
    pub(crate) fn change_when_full<V>(
        &self,
        set: SlotSet,
        operation: impl Fn(&mut SlotTxn<'_>, &Env) -> namespace::Result<V>,
    ) -> Result<V, Errno> {
        self.change(set, |txn, env| {
            txn.use_reserve();
            operation(txn, env)
        })
    }

    /// As [`Mds::change`], and `then` runs after the commit, still under the locks.
    pub(crate) fn change_then<V, W>(
        &self,
        set: SlotSet,
        operation: impl Fn(&mut SlotTxn<'_>, &Env) -> namespace::Result<V>,
        then: impl FnOnce(V) -> W,
    ) -> Result<W, Errno> {
        self.change_around(set, operation, |_| {}, |value, committed| committed.map(|()| then(value)))
    }

    /// As [`Mds::change`]; `before` runs before the commit and `then` after it, whether it succeeded or not, under the locks.
    pub(crate) fn change_around<V, W>(
        &self,
        mut set: SlotSet,
        mut operation: impl FnMut(&mut SlotTxn<'_>, &Env) -> namespace::Result<V>,
        before: impl Fn(&V),
        then: impl FnOnce(V, Result<(), Errno>) -> Result<W, Errno>,
    ) -> Result<W, Errno> {
        let recorder = self.the_recorder()?;
        let recorder = recorder.as_deref();
        let (mut gatherings, mut reservations) = (0, 0);
        loop {
            let guards = self.locks.write(&set);
            if self.lacks(&set)? {
                drop(guards);
                gatherings += 1;
                if gatherings > GATHERINGS_MAX {
                    return Err(Errno::EAGAIN);
                }
                self.gather(&set)?;
                continue;
            }
            let txn = SlotTxn::new(self.store.begin(), &set, &self.locks);
            let mut txn = txn.told(recorder.is_some()).shared(self.owned.is_shared());
            let env = self.env_at(self.clock.now());
            let result = operation(&mut txn, &env);
            let recorded = match (&result, recorder) {
                (Ok(_), Some(recorder)) if txn.is_whole() => record(recorder, &env, &mut txn),
                (Ok(_) | Err(_), _) => Ok(None),
            };
            let (missing, wanted) = (txn.missing(), txn.wanted());
            if !missing.is_empty() || wanted.is_some() {
                if let Ok(Some(recorded)) = recorded {
                    recorded.ended(false);
                }
                drop((result, txn));
                drop(guards);
                if let Some(wanted) = wanted {
                    self.provide(wanted, reservations)?;
                    reservations += 1;
                }
                set = missing.into_iter().fold(set, SlotSet::with);
                continue;
            }
            let value = result.map_err(|e| self.errno(e))?;
            let recorded = recorded?;
            before(&value);
            let committed = txn.commit().map_err(|e| self.errno(e.into()));
            if let Some(recorded) = recorded {
                recorded.ended(committed.is_ok());
            }
            return then(value, committed);
        }
    }
}

/// Tells of what the transaction changed, if it did.
fn record<'a>(
    recorder: &'a dyn Recorder,
    env: &Env,
    txn: &mut SlotTxn<'_>,
) -> Result<Option<Box<dyn Recorded + 'a>>, Errno> {
    match txn.take_changes() {
        changes if changes.is_empty() => Ok(None),
        changes => recorder.record(env.now, &changes, txn).map(Some),
    }
}

impl Drop for Mds {
    fn drop(&mut self) {
        // Only a count for people, and some numbers, are lost otherwise, and the error was logged.
        let _ = self.save_count().and(self.give_back_ugsds());
    }
}

fn format_options(options: &MdsOptions) -> Result<FormatOptions, Error> {
    let mut random = [0; 32];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut random))
        .map_err(|e| Error::Random(e.to_string()))?;
    let (mut uuid, mut hash_key) = ([0; 16], [0; 16]);
    uuid.copy_from_slice(&random[..16]);
    hash_key.copy_from_slice(&random[16..]);
    // RFC 9562: version 4, variant 1.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(FormatOptions {
        uuid,
        hash_key,
        uid: options.root_uid,
        gid: options.root_gid,
        mode: options.root_mode,
        now: options.clock.now(),
    })
}

#[cfg(test)]
mod tests {
    use kv::{Engine, MemoryEngine, MetaStoreOptions, SystemDisk};
    use namespace::{inode, txn::Txn};

    use super::*;

    /// Goal: what is taken back after a failed commit is taken back before anybody else can have it (an unnamed file's
    /// reference, by the number that the next file gets). Method: a commit that fails; the slot is locked then.
    #[test]
    fn regression_a_failed_commit_is_undone_under_the_locks() {
        let dir = tempfile::tempdir().unwrap();
        let engine = |_: &std::path::Path, _: u64| Ok(Box::new(MemoryEngine::new()) as Box<dyn Engine>);
        let options = MetaStoreOptions { background: false, ..MetaStoreOptions::default() };
        let store = Arc::new(MetaStore::open(dir.path(), engine, options, Arc::new(SystemDisk)).unwrap());
        let mds = Mds::new(Arc::clone(&store), MdsOptions::default()).unwrap();
        store.close().unwrap();
        let slot = Ino::ROOT.ugsd().slot();
        let locked = || mds.locks.lock_of(slot).try_read().is_none();
        let result = mds.change_around(
            SlotSet::root(),
            |txn, _| {
                let root = inode::load(txn, Ino::ROOT)?;
                txn.put(&namespace::key::inode(Ino::ROOT), root.encode());
                Ok(())
            },
            |()| assert!(locked()),
            |(), committed| {
                assert_eq!((committed, locked()), (Err(Errno::EROFS), true));
                committed
            },
        );
        assert_eq!(result, Err(Errno::EROFS));
        assert!(!locked());
        assert_eq!(
            mds.create_unnamed(&namespace::Caller { uid: 0, gid: 0, umask: 0 }, Ino::ROOT, 0).err(),
            Some(Errno::EROFS)
        );
        assert!((1..99).filter_map(Ino::from_raw).all(|ino| !mds.orphans.is_held(ino)));
    }
}
