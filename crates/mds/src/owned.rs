//! Which slots are served here, and how they come and go.
//!
//! - I-OWN-1: an operation reads and writes only what is in slots that are ours while it holds their locks; reads without locks
//!   begin while the slot is ours. So who has let a slot go changes nothing in it, and what is read was true after the reading began.
//! - I-OWN-2: what was committed in a slot is in the engine before the slot is let go, and nothing that was read of it is remembered after.
//!
//! An operation is for the owner of the slot of the inode that it begins with, its *home*. What it needs beside that is gathered
//! here for it ([`Gather`]), so each operation stays one commit of one server, however many slots it touches.

use std::{
    collections::HashSet,
    ops::ControlFlow,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use namespace::{
    key::{self, Parsed},
    superblock::{self, Superblock},
    txn::{Bytes, KvError, Reader},
};
use types::{Errno, SLOTS, Slot, UgsdId};

use crate::{orphans::Replay, server::Mds, slots::SlotSet};

const WORDS: usize = SLOTS as usize / 64;
/// Slots that were gathered may be gone again before their locks are had.
pub(crate) const GATHERINGS_MAX: usize = 8;

/// Has the slots that an operation needs come here.
pub trait Gather: Send + Sync {
    /// All of them were ours a moment ago when it returns. The error is the operation's; `EAGAIN`: not now.
    fn gather(&self, slots: &[Slot]) -> Result<(), Errno>;
}

/// What a server needs to know to serve slots of a file system that another one made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// Its epoch is one that nobody else has.
    pub superblock: Superblock,
}

pub(crate) struct Owned {
    words: Box<[AtomicU64]>,
    /// Other servers may have slots.
    shared: bool,
}

impl Owned {
    pub(crate) fn all() -> Owned {
        Owned { words: (0..WORDS).map(|_| AtomicU64::new(u64::MAX)).collect(), shared: false }
    }

    pub(crate) fn some(slots: &[Slot]) -> Owned {
        let owned = Owned { words: (0..WORDS).map(|_| AtomicU64::new(0)).collect(), shared: true };
        owned.set(slots, true);
        owned
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    fn place(&self, slot: Slot) -> (&AtomicU64, u64) {
        let slot = usize::from(slot.get());
        // Slots are less than `SLOTS`.
        (&self.words[slot / 64], 1 << (slot % 64))
    }

    pub(crate) fn has(&self, slot: Slot) -> bool {
        let (word, bit) = self.place(slot);
        word.load(Ordering::Acquire) & bit != 0
    }

    fn set(&self, slots: &[Slot], ours: bool) {
        for slot in slots {
            let (word, bit) = self.place(*slot);
            if ours {
                word.fetch_or(bit, Ordering::AcqRel);
            } else {
                word.fetch_and(!bit, Ordering::AcqRel);
            }
        }
    }
}

/// The slot that guards a key, where several servers have them: all keys of the file system as a whole are in the root's.
pub(crate) fn guard_of(key: &[u8]) -> Option<Slot> {
    let parsed = Parsed::new(key)?;
    match parsed.ugsd() {
        Some(ugsd) => Some(ugsd.slot()),
        None if parsed.kind == key::QUOTA => Some(UgsdId::ROOT.slot()),
        None => None,
    }
}

/// The committed state of our slots. After a refusal its reading counts for nothing.
pub(crate) struct OurReader<'a> {
    mds: &'a Mds,
    refused: std::cell::Cell<bool>,
}

impl OurReader<'_> {
    fn admit(&self, key: &[u8]) -> Result<(), KvError> {
        let owned = &self.mds.owned;
        if !owned.is_shared() || guard_of(key).is_none_or(|slot| owned.has(slot)) {
            return Ok(());
        }
        self.refused.set(true);
        Err(KvError::Io(String::new()))
    }
}

impl Reader for OurReader<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.admit(key)?;
        self.mds.store.get(key)
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), KvError> {
        self.admit(from)?;
        self.mds.store.scan(from, to, visit)
    }
}

impl Mds {
    /// Looks at what is committed; `EREMOTE`: some of it is another server's.
    pub(crate) fn read<V>(
        &self,
        look: impl FnOnce(&OurReader<'_>) -> namespace::Result<V>,
    ) -> Result<V, Errno> {
        let reader = OurReader { mds: self, refused: std::cell::Cell::new(false) };
        let result = look(&reader);
        if reader.refused.get() { Err(Errno::EREMOTE) } else { result.map_err(|e| self.errno(e)) }
    }

    /// Once, before the first operation; `EBUSY` after. Who sets it keeps it.
    pub fn set_gatherer(&self, gatherer: &Arc<dyn Gather>) -> Result<(), Errno> {
        self.gatherer.set(Arc::downgrade(gatherer)).map_err(|_| Errno::EBUSY)
    }

    pub fn serves(&self, slot: Slot) -> bool {
        self.owned.has(slot)
    }

    /// Of those that are needed, which are not ours? Under their locks that stays so.
    pub(crate) fn lacks(&self, set: &SlotSet) -> Result<bool, Errno> {
        if !self.owned.is_shared() {
            return Ok(false);
        }
        if !self.owned.has(set.home()) {
            return Err(Errno::EREMOTE);
        }
        Ok(set.slots().iter().any(|slot| !self.owned.has(*slot)))
    }

    pub(crate) fn gather(&self, set: &SlotSet) -> Result<(), Errno> {
        let gatherer = self.gatherer.get().and_then(Weak::upgrade);
        gatherer.ok_or(Errno::EREMOTE)?.gather(set.slots())
    }

    /// Lets slots go: when this returns all that was answered in them is in the engine, and nothing here answers for them any more. On
    /// an error they are still ours. What their inodes are referred to by is forgotten: their next server is told by those who do.
    pub fn let_go(&self, slots: &[Slot]) -> Result<(), Errno> {
        if !self.owned.is_shared() {
            return Err(Errno::EINVAL);
        }
        let ours: Vec<Slot> = slots.iter().copied().filter(|slot| self.owned.has(*slot)).collect();
        let Some(set) = SlotSet::of_all(&ours) else { return Ok(()) };
        if ours.contains(&UgsdId::ROOT.slot()) {
            self.save_count()?;
        }
        {
            let _alone = self.locks.write(&set);
            self.owned.set(&ours, false);
        }
        if let Err(error) = self.store.checkpoint() {
            self.owned.set(&ours, true);
            return Err(self.errno(error.into()));
        }
        self.store.forget_reads();
        let gone: HashSet<Slot> = ours.into_iter().collect();
        self.numbers.forget(&gone);
        self.orphans.forget(&gone);
        self.reservations.forget(&gone);
        Ok(())
    }

    /// Serves slots that no other server serves, and that the engine takes our batches for. `next_ugsd` is the file system's, or was.
    pub fn take_on(&self, slots: &[Slot], next_ugsd: u32) -> Result<(), Errno> {
        if !self.owned.is_shared() {
            return Err(Errno::EINVAL);
        }
        self.ugsds.fetch_max(next_ugsd, Ordering::AcqRel);
        self.store.forget_reads();
        let Some(set) = SlotSet::of_all(slots) else { return Ok(()) };
        {
            let _alone = self.locks.write(&set);
            self.owned.set(slots, true);
        }
        // Files without a name that nobody told us of.
        *self.replay.lock() = Replay::of_all();
        Ok(())
    }

    /// What another server needs to begin, with an epoch of its own; durable. For who serves the root's slot.
    pub fn welcome(&self) -> Result<Welcome, Errno> {
        let superblock = self.change_when_full(SlotSet::root(), |txn, _| {
            let mut superblock = superblock::load(txn)?;
            superblock.epoch += 1;
            superblock::store(txn, &superblock);
            Ok(superblock)
        })?;
        self.sync()?;
        Ok(Welcome { superblock })
    }

    /// Numbers of UGSDs are below it, as far as is known here.
    pub fn next_ugsd(&self) -> Result<u32, Errno> {
        if !self.owned.has(UgsdId::ROOT.slot()) {
            return Ok(self.ugsds.load(Ordering::Acquire));
        }
        self.read(|reader| Ok(superblock::load(reader)?.next_ugsd))
    }
}
