//! Background duties: making device bytes durable, freeing what was given up, measuring space.

use crate::{DataServer, object::Object};
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use types::{Errno, Ino, TierId, TierSet};

/// Unsynced objects above which whole tiers are synced.
const ONE_BY_ONE_MAX: usize = 16;
/// Unsynced objects that movements leave to the next sync.
const UNSYNCED_MAX: usize = 512;

/// Objects that wait for something; they stay in memory until it is done.
#[derive(Default)]
pub(crate) struct Todo {
    unsynced: Mutex<BTreeMap<Ino, Arc<Object>>>,
    condemned: Mutex<BTreeMap<Ino, Arc<Object>>>,
}

impl DataServer {
    pub(crate) fn note_unsynced(&self, object: &Object) {
        if let Some(me) = object.me.upgrade() {
            self.keeper.unsynced.lock().insert(object.ino, me);
        }
    }

    /// Each object that waits for a sync keeps its files open: not more of them than the process can bear.
    pub(crate) fn bound_unsynced(&self) -> Result<(), Errno> {
        let waiting = self.keeper.unsynced.lock().len();
        if waiting > UNSYNCED_MAX { self.sync_devices() } else { Ok(()) }
    }

    pub(crate) fn note_condemned(&self, object: &Object) {
        if let Some(me) = object.me.upgrade() {
            self.keeper.condemned.lock().insert(object.ino, me);
        }
    }

    /// Makes every byte durable that was written to a device so far. Runs before each sync of the journal, so that
    /// the journal never speaks of bytes that a power cut could take.
    pub fn sync_devices(&self) -> Result<(), Errno> {
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
        let mut wanted = TierSet::EMPTY;
        for object in objects.values() {
            let unsynced = std::mem::take(&mut object.state.write().unsynced);
            wanted = unsynced.iter().fold(wanted, TierSet::with);
        }
        for tier in wanted.iter() {
            let Some(store) = &self.stores[tier.index()] else { continue };
            if let Err(errno) = store.sync_all() {
                tracing::error!(%tier, %errno, "bytes on a device could not be made durable");
                objects.values().for_each(|object| object.state.write().sync_failed = true);
                return Err(errno);
            }
        }
        Ok(())
    }

    pub(crate) fn sync_object_devices(&self, object: &Object) -> Result<(), Errno> {
        let (unsynced, files) = {
            let mut state = object.state.write();
            if state.sync_failed {
                return Err(Errno::EIO);
            }
            let unsynced = std::mem::take(&mut state.unsynced);
            (unsynced, state.files.clone())
        };
        for tier in unsynced.iter() {
            let Some(file) = &files[tier.index()] else { continue };
            if let Err(errno) = file.data_sync() {
                let mut state = object.state.write();
                state.unsynced = state.unsynced.with(tier);
                state.sync_failed = true;
                return Err(errno);
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
