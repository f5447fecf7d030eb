//! The inodes whose data the client uses now, and the turn of each from settled to being written and back.
//!
//! Invariants:
//! - An inode is in the table exactly while something holds an [`InodeRef`] to it.
//! - I-CLIENT-1: before the first byte changes the mds has recorded that the file is being written; after the last
//!   writer it is told size and time (`settle`). Both happen under the inode's lock, so they never overtake each other.
//!   The first is done at the first change and not at the open: by the record of an object's first bytes, in the same
//!   commit (`before_write`), else by a commit of its own (`before_change`).
//! - While a file is being written, or was and is not settled, size, blocks and mtime are the object's; an mtime
//!   that somebody set stands until the next write.
//!
//! No lock of the table is held over a call to the mds or the ds. An inode's lock is, also while the ds waits for a device:
//! a request on a transport's thread that finds it taken goes to a worker ([`Inode::lock_in`]).

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use ds::{DataServer, Object, ObjectHint, ObjectPolicy};
use linked::Linked;
use mds::{Closed, Found, Mds, Settled};
use parking_lot::{Mutex, MutexGuard};
use types::{Attr, Errno, FileKind, Ino, S_ISGID, S_ISUID, Timestamp};

use crate::{
    backing::Registered,
    settling::Settling,
    turn::{Answer, Stop, Turn},
};

const SHARDS: usize = 16;
/// How long a transport's thread waits for an inode's lock: longer than who needs no device has it.
const PATIENCE: Duration = Duration::from_millis(1);

/// Set-user-id or set-group-id.
pub(crate) fn has_set_id(mode: u32) -> bool {
    mode & (S_ISUID | S_ISGID) != 0
}

fn shard_index(ino: Ino) -> usize {
    ino.get() as usize % SHARDS
}

/// The table of inodes in use.
pub(crate) struct Inodes {
    shards: [Mutex<HashMap<u64, Arc<Inode>>>; SHARDS],
    /// Held while an inode of the shard is brought into the table.
    attaching: [Mutex<()>; SHARDS],
    mds: Arc<Mds>,
    ds: Arc<DataServer>,
    pub(crate) linked: Option<Arc<Linked>>,
    pub settling: Settling<InodeRef>,
}

/// One inode in use.
pub(crate) struct Inode {
    pub ino: Ino,
    pub object: Arc<Object>,
    /// Becomes 0, or rises from it, only under the shard's lock.
    holders: AtomicU32,
    /// Some open file reads through the page cache: writes of others drop their range from it.
    pub cached_readers: AtomicBool,
    /// A write may have to clear set-id bits.
    set_id: AtomicBool,
    /// Capabilities were given to it since its writing began, which took those before away.
    capabilities: AtomicBool,
    /// The mds knows that the file is being written, or will by the commit that records its first bytes. Changes under
    /// the inode's lock.
    begun: AtomicBool,
    state: Mutex<State>,
}

/// What changes while an inode is open; guarded by the inode's lock.
#[derive(Default)]
pub(crate) struct State {
    writers: u32,
    /// Changed, and not yet `settle`d with no writer left.
    unsettled: bool,
    /// The access time that a read left and the mds is still to be told.
    atime: Option<Timestamp>,
    /// Among those to be settled together.
    queued: bool,
    /// The backing file, while passthrough is on or lingers.
    pub registered: Option<Registered>,
    /// Among those that are looked at, since they linger or did.
    pub looked_at: bool,
    /// What the data server was told last, since the inode is in use.
    pub policy: Option<ObjectPolicy>,
    pub waits: crate::policies::Waits,
}

impl Inodes {
    pub(crate) fn new(mds: Arc<Mds>, ds: Arc<DataServer>, linked: Option<Arc<Linked>>) -> Inodes {
        Inodes {
            shards: std::array::from_fn(|_| Mutex::new(HashMap::new())),
            attaching: std::array::from_fn(|_| Mutex::new(())),
            mds,
            ds,
            linked,
            settling: Settling::new(),
        }
    }

    /// Takes a regular file into use, and says what the mds knows of it. Waits for a device only when a crash left
    /// the file unsettled.
    pub(crate) fn acquire(self: &Arc<Self>, ino: Ino) -> Result<(InodeRef, Found), Errno> {
        self.acquire_if(ino, |_| Ok(()))
    }

    /// As `acquire`, unless `check` of what the mds knows fails: then nothing was done.
    pub(crate) fn acquire_if<E: From<Errno>>(
        self: &Arc<Self>,
        ino: Ino,
        check: impl FnOnce(&Found) -> Result<(), E>,
    ) -> Result<(InodeRef, Found), E> {
        if let Some(inode) = self.get(ino) {
            let found = self.mds.find(ino)?;
            check(&found)?;
            return Ok((inode, found));
        }
        // One at a time per shard, and with a look at the mds that nobody can make old: while the inode is not in
        // the table, all that was written to it is settled, and nobody else can begin to write.
        let _attaching = self.attaching[shard_index(ino)].lock();
        if let Some(inode) = self.get(ino) {
            let found = self.mds.find(ino)?;
            check(&found)?;
            return Ok((inode, found));
        }
        let found = self.mds.find_to_open(ino)?;
        check(&found)?;
        let hint = self.hint(&found)?;
        let inode = self.attach(&found, &hint)?;
        Ok((inode, found))
    }

    /// Takes a file into use that was created a moment ago and that nobody else can know: the kernel has its directory
    /// locked until it is answered.
    pub(crate) fn acquire_created(self: &Arc<Self>, found: &Found) -> Result<InodeRef, Errno> {
        let hint = ObjectHint {
            size: 0,
            written: false,
            stale_live: false,
            memory_generation: found.data.memory_generation,
            linked: None,
        };
        self.attach(found, &hint)
    }

    fn attach(self: &Arc<Self>, found: &Found, hint: &ObjectHint) -> Result<InodeRef, Errno> {
        let ino = found.attr.ino;
        match found.attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            FileKind::Symlink
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => return Err(Errno::EINVAL),
        }
        let object = self.ds.attach(ino, hint)?;
        let state = State { unsettled: found.data.live, ..State::default() };
        let mut shard = self.shards[shard_index(ino)].lock();
        let inode =
            shard.entry(ino.get()).or_insert_with(|| Arc::new(Inode::new(object, found.attr.mode, state)));
        inode.holders.fetch_add(1, Ordering::Relaxed);
        Ok(InodeRef { table: self.clone(), inode: inode.clone() })
    }

    /// The inode, if it is in use.
    pub(crate) fn get(self: &Arc<Self>, ino: Ino) -> Option<InodeRef> {
        let shard = self.shards[shard_index(ino)].lock();
        let inode = shard.get(&ino.get())?;
        inode.holders.fetch_add(1, Ordering::Relaxed);
        Some(InodeRef { table: self.clone(), inode: inode.clone() })
    }

    pub(crate) fn all(self: &Arc<Self>) -> Vec<InodeRef> {
        let mut all = Vec::new();
        for shard in &self.shards {
            for inode in shard.lock().values() {
                inode.holders.fetch_add(1, Ordering::Relaxed);
                all.push(InodeRef { table: self.clone(), inode: inode.clone() });
            }
        }
        all
    }

    /// As `get`; an inode that is being brought into the table, with what was known before, is there by then.
    pub(crate) fn get_attached(self: &Arc<Self>, ino: Ino) -> Option<InodeRef> {
        drop(self.attaching[shard_index(ino)].lock());
        self.get(ino)
    }

    /// As `is_used`, or it is being brought into the table.
    pub(crate) fn may_be_open(&self, ino: Ino) -> bool {
        let none_attaches = self.attaching[shard_index(ino)].try_lock();
        none_attaches.is_none() || self.is_used(ino)
    }

    pub(crate) fn is_used(&self, ino: Ino) -> bool {
        self.shards[shard_index(ino)].lock().contains_key(&ino.get())
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// How many are in passthrough. One whose lock somebody keeps counts: it begins or ends there, or is cut.
    pub(crate) fn count_passthrough(self: &Arc<Self>) -> usize {
        let is_in = |inode: &&InodeRef| match inode.lock_in(Turn::Transport) {
            Ok(state) => state.registered.is_some(),
            Err(_) => true,
        };
        self.all().iter().filter(is_in).count()
    }

    /// Makes `found` true for a file that is being written, and says whether it may be behind the kernel's back, through a
    /// mapping of its object. A file that a crash left unsettled is settled on the way.
    pub(crate) fn complete(self: &Arc<Self>, turn: Turn, found: &mut Found) -> Answer<bool> {
        loop {
            let Some(inode) = self.get(found.attr.ino) else {
                if !found.data.live {
                    return Ok(false);
                }
                turn.wait()?;
                let (inode, now) = self.acquire(found.attr.ino)?;
                *found = now;
                if let Err(error) = inode.settle_if_idle() {
                    // The metadata take nothing now; the object knows all the same.
                    tracing::debug!(ino = found.attr.ino.get(), %error, "a file stays unsettled");
                    inode.show_live(&mut found.attr);
                    return Ok(false);
                }
                continue;
            };
            let mut state = inode.lock_in(turn)?;
            if let Some(atime) = state.atime {
                found.attr.atime = atime;
            }
            let unseen = state.may_be_stored_to();
            // Metadata that take nothing now do not keep anyone from looking.
            let settle = inode.see_stores(&mut state).unwrap_or_default() && state.is_due();
            if state.unsettled {
                inode.show_live(&mut found.attr);
                drop(state);
                inode.settle_soon(settle);
                return Ok(unseen);
            }
            if !found.data.live {
                return Ok(unseen);
            }
            // Settled since `found` was read. Each further round needs one more settling.
            drop(state);
            *found = self.mds.find(found.attr.ino)?;
        }
    }

    /// Tells the mds sizes and times of files that nobody writes any more, in one commit. A failure is logged and leaves
    /// them for the next use to settle, as a crash would. Waits for no inode's lock: those that others have come again, and are
    /// returned.
    pub(crate) fn settle_closed(&self) -> Vec<InodeRef> {
        let _turn = self.settling.turn();
        let due = self.settling.take();
        let (mut locked, mut left) = (Vec::with_capacity(due.len()), Vec::new());
        let (mut files, mut through) = (Vec::with_capacity(due.len()), Vec::new());
        for inode in &due {
            let Some(mut state) = inode.state.try_lock() else {
                left.push(inode);
                continue;
            };
            if state.writers == 0 && state.unsettled && inode.see_stores(&mut state).is_err() {
                left.push(inode);
                continue;
            }
            state.queued = false;
            let settled = (state.writers == 0 && state.unsettled).then(|| inode.outcome(false));
            let atime = state.atime;
            if settled.is_some() || atime.is_some() {
                files.push(Closed { ino: inode.ino, settled, atime });
                locked.push((inode, state, settled.is_some()));
            }
        }
        match self.mds.settle_all(&mut files) {
            Ok(()) => {
                for (inode, state, settled) in &mut locked {
                    state.atime = None;
                    if *settled {
                        inode.settled(state);
                        through.extend(Some(inode.ino).filter(|_| state.waits.through));
                    }
                }
            }
            Err(_) => left.extend(locked.iter().map(|(inode, ..)| *inode)),
        }
        drop(locked);
        self.publish_soon(&through);
        left.into_iter().filter_map(|inode| self.settle_again(inode)).collect()
    }

    /// One that could not be settled with others. `Some`: nor now, since somebody has its lock.
    fn settle_again(&self, inode: &InodeRef) -> Option<InodeRef> {
        let Some(mut state) = inode.state.try_lock() else {
            self.settling.put_back(inode.another());
            return Some(inode.another());
        };
        state.queued = false;
        if let Err(error) = inode.settle(&mut state)
            && error != Errno::ESTALE
        {
            tracing::warn!(ino = inode.ino.get(), %error, "size and time of a written file were not recorded");
        }
        None
    }

    fn release(&self, inode: &Arc<Inode>) {
        let mut shard = self.shards[shard_index(inode.ino)].lock();
        if inode.holders.fetch_sub(1, Ordering::Relaxed) == 1 {
            shard.remove(&inode.ino.get());
        }
    }
}

impl State {
    /// Somebody set the access time: it stands.
    pub(crate) fn atime_was_set(&mut self) {
        self.atime = None;
    }

    /// Is it to be put among those to be settled? The caller does so.
    pub(crate) fn is_due(&mut self) -> bool {
        self.writers == 0 && self.unsettled && !std::mem::replace(&mut self.queued, true)
    }

    /// By programs that have the object's file mapped.
    fn may_be_stored_to(&self) -> bool {
        self.registered.as_ref().is_some_and(|registered| registered.writable)
    }

    pub(crate) fn backing_id(&self) -> Option<fuse::BackingId> {
        self.registered.as_ref().map(|registered| registered.id)
    }
}

impl Inode {
    fn new(object: Arc<Object>, mode: u32, state: State) -> Inode {
        Inode {
            ino: object.ino(),
            object,
            set_id: AtomicBool::new(has_set_id(mode)),
            capabilities: AtomicBool::new(false),
            begun: AtomicBool::new(false),
            holders: AtomicU32::new(0),
            cached_readers: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// The mode is new.
    pub(crate) fn note_mode(&self, mode: u32) {
        self.set_id.store(has_set_id(mode), Ordering::Release);
    }

    /// It has capabilities now.
    pub(crate) fn note_capabilities(&self) {
        self.capabilities.store(true, Ordering::Release);
    }

    /// Which of the two a write has to take away; whoever is told of them does it, or gives them back.
    fn take_privileges(&self, set_id: bool) -> (bool, bool) {
        let take = |flag: &AtomicBool| flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::AcqRel);
        (set_id && take(&self.set_id), take(&self.capabilities))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// As `lock`, by who serves a request and has changed nothing yet.
    pub(crate) fn lock_in(&self, turn: Turn) -> Answer<MutexGuard<'_, State>> {
        match turn {
            Turn::Transport => self.state.try_lock_for(PATIENCE).ok_or(Stop::MustWait),
            Turn::Worker => Ok(self.state.lock()),
        }
    }

    /// Does somebody have the inode's lock for longer than a transport's thread may wait?
    pub(crate) fn wait_for_lock(&self, turn: Turn) -> Answer<()> {
        self.lock_in(turn).map(drop)
    }
}

/// A use of an inode; dropping it ends the use.
pub(crate) struct InodeRef {
    table: Arc<Inodes>,
    inode: Arc<Inode>,
}

impl InodeRef {
    pub(crate) fn another(&self) -> InodeRef {
        // It is in use, so the count is above 0 and the inode stays in the table.
        self.inode.holders.fetch_add(1, Ordering::Relaxed);
        InodeRef { table: self.table.clone(), inode: self.inode.clone() }
    }

    pub(crate) fn add_writer(&self) {
        self.inode.state.lock().writers += 1;
    }

    /// One more writer, which changes the file at once: the mds knows of it when this returns.
    pub(crate) fn begin_write(&self) -> Result<(), Errno> {
        let mut state = self.inode.state.lock();
        self.begin(&mut state, false)?;
        state.writers += 1;
        Ok(())
    }

    /// To be called before each write of a writer.
    pub(crate) fn before_write(&self, turn: Turn) -> Answer<()> {
        if self.inode.begun.load(Ordering::Acquire) {
            return Ok(());
        }
        Ok(self.begin(&mut *self.inode.lock_in(turn)?, true)?)
    }

    /// To be called before any other change of a writer, which may be without a record of the object.
    pub(crate) fn before_change(&self) -> Result<(), Errno> {
        self.begin(&mut self.inode.state.lock(), false)
    }

    /// To be called before bytes change: file capabilities go, and with `set_id` (the caller may not keep them) set-id bits.
    pub(crate) fn drop_privileges(&self, set_id: bool) -> Result<(), Errno> {
        let (set_id, capabilities) = self.inode.take_privileges(set_id);
        if !set_id && !capabilities {
            return Ok(());
        }
        self.table.mds.kill_privileges(self.inode.ino, set_id).inspect_err(|_| {
            // Still there: the next write tries again.
            self.inode.set_id.fetch_or(set_id, Ordering::AcqRel);
            self.inode.capabilities.fetch_or(capabilities, Ordering::AcqRel);
        })
    }

    /// As `before_change`, by somebody who has the inode's lock.
    pub(crate) fn begin(&self, state: &mut State, writes: bool) -> Result<(), Errno> {
        let (mds, ds) = (&self.table.mds, &self.table.ds);
        if self.inode.begun.load(Ordering::Acquire) {
            if !writes && ds.first_record_is_late(&self.inode.object) {
                // If it fails the first record still has to tell.
                mds.begin_write(self.inode.ino)?;
                ds.first_record_came(&self.inode.object);
            }
            return Ok(());
        }
        if !(writes && ds.joins_first_record(&self.inode.object)) {
            if !state.unsettled {
                // Until it is settled the object's time counts, also after a crash: it begins with the one that is shown.
                let found = mds.find(self.inode.ino)?;
                if found.data.written {
                    self.time_was_set(found.attr.mtime);
                }
            }
            mds.begin_write(self.inode.ino)?;
        }
        state.unsettled = true;
        self.inode.begun.store(true, Ordering::Release);
        Ok(())
    }

    /// One writer less; after the last one the file is settled soon, with others.
    pub(crate) fn end_write(&self) {
        let queue = {
            let mut state = self.inode.state.lock();
            state.writers -= 1;
            state.is_due()
        };
        self.settle_soon(queue);
    }

    /// A read leaves this access time: visible at once, recorded soon.
    pub(crate) fn was_read(&self, turn: Turn, atime: Timestamp) -> Answer<()> {
        let queue = {
            let mut state = self.inode.lock_in(turn)?;
            state.atime = Some(atime);
            !std::mem::replace(&mut state.queued, true)
        };
        self.settle_soon(queue);
        Ok(())
    }

    /// Stores through a mapping make the file one that was written, when they are seen: the caller has it settled. Returns
    /// whether some were.
    pub(crate) fn see_stores(&self, state: &mut State) -> Result<bool, Errno> {
        let ds = &self.table.ds;
        let stored = if state.may_be_stored_to() { ds.stored_since(&self.inode.object) } else { None };
        let Some(time) = stored else { return Ok(false) };
        self.begin(state, false)?;
        ds.note_stored(&self.inode.object, time);
        Ok(true)
    }

    pub(crate) fn settle_soon(&self, queue: bool) {
        if queue && self.table.settling.add(self.another()) {
            drop(self.table.settle_closed());
        }
    }

    /// Tells the mds the final size and time unless somebody writes.
    pub(crate) fn settle_if_idle(&self) -> Result<(), Errno> {
        self.settle(&mut self.inode.state.lock())
    }

    fn settle(&self, state: &mut State) -> Result<(), Errno> {
        if let Some(atime) = state.atime {
            self.table.mds.settle_all(&mut [Closed {
                ino: self.inode.ino,
                settled: None,
                atime: Some(atime),
            }])?;
            state.atime = None;
        }
        if state.writers > 0 || !state.unsettled {
            return Ok(());
        }
        // What is shown already is not undone by a time that the file got from an earlier write.
        self.see_stores(state)?;
        self.report(false)?;
        self.settled(state);
        Ok(())
    }

    /// Tells the mds the size and time as they are now (fsync).
    pub(crate) fn settle_now(&self) -> Result<(), Errno> {
        let state = self.inode.state.lock();
        if state.writers == 0 {
            drop(state);
            return self.settle_if_idle();
        }
        self.report(true)
    }

    /// Replaces what the object knows better.
    fn show_live(&self, attr: &mut Attr) {
        let live = self.table.ds.live(&self.inode.object);
        attr.size = live.size;
        attr.blocks = live.blocks;
        if let Some(mtime) = live.mtime {
            attr.mtime = mtime;
            attr.ctime = attr.ctime.max(mtime);
        }
    }

    fn report(&self, still_open: bool) -> Result<(), Errno> {
        self.table.mds.settle(self.inode.ino, &self.outcome(still_open))
    }

    fn outcome(&self, still_open: bool) -> Settled {
        let live = self.table.ds.live(&self.inode.object);
        Settled { size: live.size, blocks: Some(live.blocks), mtime: live.mtime, still_open }
    }

    fn settled(&self, state: &mut State) {
        self.table.ds.settled(&self.inode.object);
        state.unsettled = false;
        self.inode.begun.store(false, Ordering::Release);
    }

    /// The mds has an mtime that somebody set: it stands until the next write.
    pub(crate) fn time_was_set(&self, mtime: Timestamp) {
        if let Err(error) = self.table.ds.set_mtime(&self.inode.object, mtime) {
            tracing::debug!(ino = self.inode.ino.get(), %error, "a modification time was not kept on the object");
        }
    }
}

impl Deref for InodeRef {
    type Target = Inode;
    fn deref(&self) -> &Inode {
        &self.inode
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        self.table.release(&self.inode);
    }
}
