//! Background duties: making device bytes durable, freeing what was given up, measuring space.

use crate::{
    DataServer,
    object::{Object, State},
    seal::has_unsealed,
};
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use store::ObjectFd;
use types::{Errno, Ino, TierId, TierSet};

/// Unsynced objects above which whole tiers are synced.
const ONE_BY_ONE_MAX: usize = 16;

/// Objects that wait for something; they stay in memory until it is done.
#[derive(Default)]
pub(crate) struct Todo {
    unsynced: Mutex<BTreeMap<Ino, Arc<Object>>>,
    /// Held by whoever syncs devices: who comes later must not find nothing to do while it is not done.
    syncing: Mutex<()>,
    /// When that was done last.
    synced: Mutex<Option<Instant>>,
    condemned: Mutex<BTreeMap<Ino, Arc<Object>>>,
    /// A device failed to make their bytes durable. They stay in memory, so that this is not forgotten.
    failed: Mutex<BTreeMap<Ino, Arc<Object>>>,
    settling: Mutex<()>,
    /// Programs may write to them through a mapping.
    mapped: Mutex<BTreeMap<Ino, Arc<Object>>>,
    /// They may have device bytes without a checksum; since when nothing is known to have changed there.
    pub unsealed: Mutex<BTreeMap<Ino, Instant>>,
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
            self.sync_what_waits(&syncing);
        }
        Ok(())
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

    pub(crate) fn note_mapped(&self, object: &Object, mapped: bool) {
        let mut all = self.keeper.mapped.lock();
        match object.me.upgrade().filter(|_| mapped) {
            Some(me) => all.insert(object.ino, me),
            None => all.remove(&object.ino),
        };
    }

    pub(crate) fn all_mapped(&self) -> Vec<Arc<Object>> {
        self.keeper.mapped.lock().values().cloned().collect()
    }

    /// Makes every byte durable that was written to a device so far. Runs before each sync of the journal, so that
    /// the journal never speaks of bytes that a power cut could take. Bytes that a device refuses are their own object's
    /// concern (S-32): its syncs fail, and nobody else's.
    pub fn sync_devices(&self) {
        self.sync_what_waits(&self.keeper.syncing.lock());
    }

    fn sync_what_waits(&self, _one_at_a_time: &MutexGuard<'_, ()>) {
        *self.keeper.synced.lock() = Some(Instant::now());
        let objects = std::mem::take(&mut *self.keeper.unsynced.lock());
        let devices = self.ours(TierSet::PERSISTENT);
        for (ino, object) in &objects {
            // Never waits for an object's lock. Most have what movements copied.
            if object.state.try_read().is_none_or(|state| has_unsealed(&state.map, devices)) {
                self.note_unsealed(*ino);
            }
        }
        if objects.len() > ONE_BY_ONE_MAX {
            return self.sync_whole_tiers(&objects);
        }
        for object in objects.into_values() {
            // One that failed stays so until its last close. What fails now is said, and its next sync fails.
            let _ = self.sync_object_devices(&object);
        }
    }

    /// Many small files cost less together.
    fn sync_whole_tiers(&self, objects: &BTreeMap<Ino, Arc<Object>>) {
        // What is written after this is noted again by its writer.
        let mut begun = Vec::new();
        for object in objects.values() {
            // One that failed stays so until its last close.
            begun.extend(object.unsynced.begin().unwrap_or_default().into_iter().map(|b| (object, b)));
        }
        let wanted = begun.iter().map(|(_, b)| b.tier).fold(TierSet::EMPTY, TierSet::with);
        for tier in wanted.iter() {
            let Some(store) = &self.stores[tier.index()] else { continue };
            let of_tier = begun.iter().filter(|(_, b)| b.tier == tier);
            if let Err(errno) = store.sync_all() {
                tracing::error!(%tier, %errno, "bytes on a device could not be made durable");
                of_tier.for_each(|(object, _)| self.note_failed(object, tier));
                // Whatever came meanwhile may be among what the device refused.
                let meanwhile: Vec<_> = self.keeper.unsynced.lock().values().cloned().collect();
                let here = meanwhile.iter().filter(|object| object.unsynced.tiers().contains(tier));
                here.for_each(|object| self.note_failed(object, tier));
                continue;
            }
            for (object, one) in of_tier {
                // That another sync of it failed is noted there.
                if object.unsynced.end(one).unwrap_or(false) {
                    self.note_unsynced(object);
                }
            }
        }
    }

    pub(crate) fn forget_failed(&self, object: &Object) {
        self.keeper.failed.lock().remove(&object.ino);
    }

    fn note_failed(&self, object: &Object, tier: TierId) {
        object.unsynced.fail(tier);
        if let Some(me) = object.me.upgrade() {
            self.keeper.failed.lock().insert(object.ino, me);
        }
    }

    /// Makes the bytes of one file durable. That a device refused is kept: a later success would prove nothing.
    pub(crate) fn sync_file(&self, object: &Object, file: &ObjectFd) -> Result<(), Errno> {
        let _one = object.unsynced.one_at_a_time();
        file.data_sync().inspect_err(|errno| {
            let (ino, tier) = (object.ino, file.tier());
            tracing::error!(%ino, %tier, %errno, "bytes on a device could not be made durable");
            self.note_failed(object, tier);
        })
    }

    /// The same, of a copy for which others are given up.
    pub(crate) fn sync_to_rely_on(&self, object: &Object, file: &ObjectFd) -> Result<(), Errno> {
        self.sync_file(object, file)?;
        // Another sync may have been told of the failure.
        if object.unsynced.distrusted().contains(file.tier()) { Err(Errno::EIO) } else { Ok(()) }
    }

    pub(crate) fn sync_object_devices(&self, object: &Object) -> Result<(), Errno> {
        for one in object.unsynced.begin()? {
            self.sync_file(object, &one.file)?;
            if object.unsynced.end(&one)? {
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

    /// What nobody asks for and takes longer than the keeper may.
    pub(crate) fn run_idle(&self) {
        while !self.stopping() {
            self.sleep(self.sync_period);
            self.absorb_due();
            self.sync_due();
            self.seal_idle();
            self.scrub_round();
        }
    }

    /// The journal's syncs take device bytes along, but while nothing is committed there are none.
    fn sync_due(&self) {
        let recent = |at: Instant| at.elapsed() < self.safe_within;
        if !self.keeper.unsynced.lock().is_empty() && !self.keeper.synced.lock().is_some_and(recent) {
            self.sync_devices();
        }
    }

    /// Calls the core at its deadlines.
    pub(crate) fn run_clock(&self) {
        while !self.stopping() {
            let pause = self.driver.tick();
            self.sleep(pause.max(Duration::from_millis(1)));
        }
    }

    pub(crate) fn sleep(&self, span: Duration) {
        let mut guard = self.sleeping.0.lock();
        if !self.stopping() {
            self.sleeping.1.wait_for(&mut guard, span);
        }
    }
}
