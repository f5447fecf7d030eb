//! Slots that come to this server and go from it, and reading what is its own: see [`crate::owned`].

use std::{
    collections::HashSet,
    ops::ControlFlow,
    sync::{Arc, Weak, atomic::Ordering},
};

use namespace::{
    superblock,
    txn::{Bytes, KvError, Reader},
};
use types::{Errno, Slot, UgsdId};

use crate::{
    orphans::Replay,
    owned::{Gather, Welcome, guard_of},
    server::Mds,
    slots::SlotSet,
};

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

    /// Grows whenever slots have come, which others may have changed: also those that were here before.
    pub fn comings(&self) -> u64 {
        self.owned.comings()
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
            self.give_back_ugsds()?;
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
            if slots.contains(&UgsdId::ROOT.slot()) {
                self.take_count()?;
            }
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
