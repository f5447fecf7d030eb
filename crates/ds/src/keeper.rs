//! Background duties: making device bytes durable, freeing what was given up, measuring space.

use crate::{
    DataServer,
    object::{Object, State},
};
use parking_lot::{Mutex, MutexGuard};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use types::{Errno, Ino, TierId, TierSet};

/// Unsynced objects above which whole tiers are synced.
const ONE_BY_ONE_MAX: usize = 16;

/// Objects that wait for something; they stay in memory until it is done.
#[derive(Default)]
pub(crate) struct Todo {
    unsynced: Mutex<BTreeMap<Ino, Arc<Object>>>,
    /// Held by whoever syncs devices: who comes later must not find nothing to do while it is not done.
    syncing: Mutex<()>,
    condemned: Mutex<BTreeMap<Ino, Arc<Object>>>,
    /// A device failed to make their bytes durable. They stay in memory, so that this is not forgotten.
    failed: Mutex<BTreeMap<Ino, Arc<Object>>>,
    settling: Mutex<()>,
}

impl DataServer {
    pub(crate) fn note_unsynced(&self, object: &Object) {
        if let Some(me) = object.me.upgrade() {
            self.keeper.unsynced.lock().insert(object.ino, me);
        }
    }

    pub(crate) fn note_if_unsynced(&self, object: &Object, state: &State) {
        if !state.unsynced.tiers().is_empty() {
            self.note_unsynced(object);
        }
    }

    /// Each object that waits for a sync, of a device or of the journal, keeps its files open: not more of them than the
    /// process can bear.
    pub(crate) fn bound_waiting(&self) -> Result<(), Errno> {
        if self.keeper.condemned.lock().len() > self.waiting_max {
            return self.settle_waiting();
        }
        if self.keeper.unsynced.lock().len() <= self.waiting_max {
            return Ok(());
        }
        // Whoever is at it keeps the files open of as many again.
        let syncing = self.keeper.syncing.lock();
        if self.keeper.unsynced.lock().len() > self.waiting_max {
            self.sync_what_waits(&syncing)
        } else {
            Ok(())
        }
    }

    pub(crate) fn too_many_wait(&self) -> bool {
        self.keeper.unsynced.lock().len() > self.waiting_max
            || self.keeper.condemned.lock().len() > self.waiting_max
    }

    /// Afterwards only what came meanwhile waits. The caller holds no lock of an object.
    pub(crate) fn settle_waiting(&self) -> Result<(), Errno> {
        let _one = self.keeper.settling.lock();
        self.maps.sync()?;
        self.free_what_was_given_up();
        Ok(())
    }

    pub(crate) fn note_condemned(&self, object: &Object) {
        if let Some(me) = object.me.upgrade() {
            self.keeper.condemned.lock().insert(object.ino, me);
        }
    }

    /// Makes every byte durable that was written to a device so far. Runs before each sync of the journal, so that
    /// the journal never speaks of bytes that a power cut could take.
    pub fn sync_devices(&self) -> Result<(), Errno> {
        self.sync_what_waits(&self.keeper.syncing.lock())
    }

    fn sync_what_waits(&self, _one_at_a_time: &MutexGuard<'_, ()>) -> Result<(), Errno> {
        let objects = std::mem::take(&mut *self.keeper.unsynced.lock());
        if objects.len() > ONE_BY_ONE_MAX {
            return self.sync_whole_tiers(&objects);
        }
        let mut failed = None;
        for (ino, object) in objects {
            if let Err(errno) = self.sync_object_devices(&object) {
                tracing::error!(%ino, %errno, "bytes on a device could not be made durable");
                failed = Some(errno);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Many small files cost less together.
    fn sync_whole_tiers(&self, objects: &BTreeMap<Ino, Arc<Object>>) -> Result<(), Errno> {
        // What is written after this is noted again by its writer.
        let mut begun = Vec::new();
        for object in objects.values() {
            // One that failed stays so until its last close.
            begun.extend(object.unsynced.begin().unwrap_or_default().into_iter().map(|b| (object, b)));
        }
        let wanted = begun.iter().map(|(_, b)| b.tier).fold(TierSet::EMPTY, TierSet::with);
        for tier in wanted.iter() {
            let Some(store) = &self.stores[tier.index()] else { continue };
            if let Err(errno) = store.sync_all() {
                tracing::error!(%tier, %errno, "bytes on a device could not be made durable");
                begun
                    .iter()
                    .filter(|(_, b)| b.tier == tier)
                    .for_each(|(object, _)| self.note_failed(object, tier));
                return Err(errno);
            }
            for (object, one) in begun.iter().filter(|(_, b)| b.tier == tier) {
                if object.unsynced.end(one) {
                    self.note_unsynced(object);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn forget_failed(&self, object: &Object) {
        object.unsynced.trust();
        self.keeper.failed.lock().remove(&object.ino);
    }

    fn note_failed(&self, object: &Object, tier: TierId) {
        object.unsynced.fail(tier);
        if let Some(me) = object.me.upgrade() {
            self.keeper.failed.lock().insert(object.ino, me);
        }
    }

    pub(crate) fn sync_object_devices(&self, object: &Object) -> Result<(), Errno> {
        for one in object.unsynced.begin()? {
            if let Err(errno) = one.file.data_sync() {
                self.note_failed(object, one.tier);
                return Err(errno);
            }
            if object.unsynced.end(&one) {
                self.note_unsynced(object);
            }
        }
        Ok(())
    }

    fn free_what_was_given_up(&self) {
        let objects = std::mem::take(&mut *self.keeper.condemned.lock());
        for object in objects.into_values() {
            let waits = self.free_condemned(&object, &mut object.state.write());
            if waits {
                self.note_condemned(&object);
            }
        }
    }

    pub(crate) fn run_keeper(&self) {
        while !self.stopping() {
            self.sleep(self.sync_period);
            self.free_what_was_given_up();
            for tier in [TierId::Ssd, TierId::Nearline] {
                self.refresh_limit(tier);
            }
            self.driver.tell(tier::Input::RateSample);
        }
    }

    /// Calls the core at its deadlines.
    pub(crate) fn run_clock(&self) {
        while !self.stopping() {
            let pause = self.driver.tick();
            self.sleep(pause.max(Duration::from_millis(1)));
        }
    }

    fn sleep(&self, span: Duration) {
        let mut guard = self.sleeping.0.lock();
        if !self.stopping() {
            self.sleeping.1.wait_for(&mut guard, span);
        }
    }
}
