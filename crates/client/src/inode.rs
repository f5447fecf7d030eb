//! The inodes whose data the client uses now, and the turn of each from settled to being written and back.
//!
//! Invariants:
//! - An inode is in the table exactly while something holds an [`InodeRef`] to it.
//! - I-CLIENT-1: before the first byte changes the mds has recorded that the file is being written
//!   (`begin_write`); after the last writer it is told size and time (`settle`). Both happen under the inode's
//!   lock, so they never overtake each other.
//! - While a file is being written, or was and is not settled, size, blocks and mtime are the object's; an mtime
//!   that somebody set stands until the next write.
//!
//! No lock of the table is held over a call to the mds or the ds.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use ds::{DataServer, Object, ObjectHint, ObjectPolicy};
use mds::{Found, Mds, Settled};
use parking_lot::{Mutex, MutexGuard};
use types::{Attr, Errno, FileKind, Ino, S_ISGID, S_ISUID, Timestamp};

use crate::backing::Registered;

const SHARDS: usize = 16;

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
    pub set_id: AtomicBool,
    state: Mutex<State>,
}

/// What changes while an inode is open; guarded by the inode's lock.
#[derive(Default)]
pub(crate) struct State {
    writers: u32,
    /// The mds was told `begin_write` and not yet `settle`d with no writer left.
    unsettled: bool,
    /// The backing file, while passthrough is on or lingers.
    pub registered: Option<Registered>,
    /// What the data server was told last, since the inode is in use.
    pub policy: Option<ObjectPolicy>,
}

impl Inodes {
    pub(crate) fn new(mds: Arc<Mds>, ds: Arc<DataServer>) -> Inodes {
        Inodes {
            shards: std::array::from_fn(|_| Mutex::new(HashMap::new())),
            attaching: std::array::from_fn(|_| Mutex::new(())),
            mds,
            ds,
        }
    }

    /// Takes a regular file into use, and says what the mds knows of it. Waits for a device only when a crash left
    /// the file unsettled.
    pub(crate) fn acquire(self: &Arc<Self>, ino: Ino) -> Result<(InodeRef, Found), Errno> {
        if let Some(inode) = self.get(ino) {
            let found = self.mds.find(ino)?;
            return Ok((inode, found));
        }
        // One at a time per shard, and with a look at the mds that nobody can make old: while the inode is not in
        // the table, all that was written to it is settled, and nobody else can begin to write.
        let _attaching = self.attaching[shard_index(ino)].lock();
        if let Some(inode) = self.get(ino) {
            let found = self.mds.find(ino)?;
            return Ok((inode, found));
        }
        let found = self.mds.find(ino)?;
        let hint = ObjectHint {
            size: found.attr.size,
            written: found.data.written,
            // Of a file that nobody uses and that is not settled the object alone knows the size, even if it was
            // this mount that failed to settle it.
            stale_live: found.data.live,
            memory_generation: found.data.memory_generation,
        };
        let inode = self.attach(&found, &hint)?;
        Ok((inode, found))
    }

    /// Takes a file into use that was created a moment ago and that nobody else can know.
    pub(crate) fn acquire_created(self: &Arc<Self>, found: &Found) -> Result<InodeRef, Errno> {
        let hint = ObjectHint {
            size: 0,
            written: false,
            stale_live: false,
            memory_generation: found.data.memory_generation,
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
        // After a crash the object has the time of its last write. A later change of the metadata, perhaps of that very
        // time, counts more.
        if hint.stale_live && self.ds.live(&object).mtime.is_some_and(|m| m <= found.attr.ctime) {
            self.ds.settled(&object);
        }
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

    pub(crate) fn is_used(&self, ino: Ino) -> bool {
        self.shards[shard_index(ino)].lock().contains_key(&ino.get())
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// How many are in passthrough.
    pub(crate) fn count_passthrough(self: &Arc<Self>) -> usize {
        self.all().iter().filter(|inode| inode.lock().registered.is_some()).count()
    }

    /// Makes `found` true for a file that is being written, and says whether it is. A file that a crash left
    /// unsettled is settled on the way.
    pub(crate) fn complete(self: &Arc<Self>, found: &mut Found) -> Result<bool, Errno> {
        loop {
            let Some(inode) = self.get(found.attr.ino) else {
                if !found.data.live {
                    return Ok(false);
                }
                let (inode, now) = self.acquire(found.attr.ino)?;
                *found = now;
                inode.settle_if_idle()?;
                continue;
            };
            let state = inode.state.lock();
            if state.unsettled {
                inode.show_live(&mut found.attr);
                return Ok(state.writers > 0);
            }
            if !found.data.live {
                return Ok(false);
            }
            // Settled since `found` was read. Each further round needs one more settling.
            drop(state);
            *found = self.mds.find(found.attr.ino)?;
        }
    }

    fn release(&self, inode: &Arc<Inode>) {
        let mut shard = self.shards[shard_index(inode.ino)].lock();
        if inode.holders.fetch_sub(1, Ordering::Relaxed) == 1 {
            shard.remove(&inode.ino.get());
        }
    }
}

impl State {
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
            holders: AtomicU32::new(0),
            cached_readers: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// The mode is new.
    pub(crate) fn note_mode(&self, mode: u32) {
        self.set_id.store(has_set_id(mode), Ordering::Release);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
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

    /// One more writer. The mds knows of it when this returns.
    pub(crate) fn begin_write(&self) -> Result<(), Errno> {
        let mut state = self.inode.state.lock();
        if state.writers == 0 {
            self.table.mds.begin_write(self.inode.ino)?;
            state.unsettled = true;
        }
        state.writers += 1;
        Ok(())
    }

    /// One more writer of a file that was created for writing: the mds knows already.
    pub(crate) fn begin_write_created(&self) {
        let mut state = self.inode.state.lock();
        state.unsettled = true;
        state.writers += 1;
    }

    /// One writer less; the last one settles. A failure to settle is logged and leaves the file for the next
    /// use to settle, as a crash would.
    pub(crate) fn end_write(&self) {
        self.inode.state.lock().writers -= 1;
        if let Err(error) = self.settle_if_idle()
            && error != Errno::ENOENT
        {
            tracing::warn!(ino = self.inode.ino.get(), %error, "size and time of a written file were not recorded");
        }
    }

    /// Tells the mds the final size and time unless somebody writes.
    pub(crate) fn settle_if_idle(&self) -> Result<(), Errno> {
        let mut state = self.inode.state.lock();
        if state.writers > 0 || !state.unsettled {
            return Ok(());
        }
        self.report(false)?;
        self.table.ds.settled(&self.inode.object);
        state.unsettled = false;
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
        let live = self.table.ds.live(&self.inode.object);
        let settled = Settled { size: live.size, blocks: Some(live.blocks), mtime: live.mtime, still_open };
        self.table.mds.settle(self.inode.ino, &settled)
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
