//! Making an object's bytes safe on request: fsync, flush.

use crate::{
    DataServer,
    copy::{Choice, Copier, CopyPlan, CopyStop, copy_range},
    object::{Object, State},
};
use parking_lot::MutexGuard;
use std::time::Duration;
use tier::{Admit, Need};
use types::{Errno, TierId, TierSet};

/// How often a copy that others interrupted is begun again, and how often it lets them.
const ATTEMPTS: usize = 100;
const YIELDS: usize = 20;
/// How often room is looked for, and for how long moves are given to make some, before a copy finds none.
const RELIEFS: usize = 5;
const RELIEF_PAUSE: Duration = Duration::from_millis(200);
/// How long somebody else's publication is waited for before the next attempt.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

struct SyncCopier<'a> {
    object: &'a Object,
    /// Whether it stops for who changes the object.
    yields: bool,
    progress: &'a mut dyn FnMut(u64),
}

/// What is to be done for an object to be safe.
enum Wanted {
    Nothing,
    /// What the devices have is to be made durable.
    Devices,
    /// They lack some of it.
    Copy,
}

impl Copier for SyncCopier<'_> {
    fn must_stop(&self) -> bool {
        self.yields && self.object.is_wanted()
    }
    fn copied(&mut self, bytes: u64) {
        (self.progress)(bytes);
    }
}

impl DataServer {
    /// fsync: when it returns, everything written before is in a persistent tier, and durable there. The caller
    /// syncs the journal afterwards. Without a persistent tier, and for transient files, there is nothing to do: such
    /// data is declared not to outlive the memory.
    ///
    /// A file that is synced while open is homed in the persistent tier from then on, so that its next fsync costs a
    /// flush and not a copy.
    pub fn sync(&self, object: &Object) -> Result<(), Errno> {
        self.make_safe(object, object.is_open_for_write(), &mut |_| {})
    }

    /// As [`DataServer::sync`], of what is promised to near-line: where it is linked it has the file, by its name, when this
    /// returns.
    pub fn sync_through(&self, object: &Object) -> Result<(), Errno> {
        let Some(linked) = self.linked.as_ref().filter(|_| !object.state.read().transient) else {
            return self.sync(object);
        };
        self.counters.syncs.add(1);
        self.absorb_mapped_writes(object)?;
        // With the record of a file's first bytes the metadata, and who keeps the linked directory, hear that there is a version.
        self.save_unsaved(object, &mut object.state.write())?;
        match linked.publish(object.ino(), &|| self.stopping()) {
            // Somebody else is at it, or some of it was written since: the next asks once more.
            Ok(()) | Err(Errno::EBUSY) => self.publish_to_be_safe(object),
            Err(errno @ (Errno::ENOSPC | Errno::EDQUOT)) => Err(errno),
            Err(errno) => {
                tracing::error!(ino = %object.ino(), %errno, "bytes could not be brought through to near-line");
                Err(Errno::EIO)
            }
        }
    }

    /// As fsync, but the file goes on in memory.
    pub fn flush(&self, object: &Object, progress: &mut dyn FnMut(u64)) -> Result<(), Errno> {
        self.make_safe(object, false, progress)
    }

    fn make_safe(
        &self,
        object: &Object,
        sync_mode: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Errno> {
        let Some(first) = self.first_persistent() else { return self.publish_to_be_safe(object) };
        self.counters.syncs.add(1);
        self.absorb_mapped_writes(object)?;
        self.renew_distrusted(object)?;
        match self.copy_to_devices(object, (first, sync_mode), progress) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            // What near-line has needs no room here.
            Err(Errno::ENOSPC) if self.linked.is_some() => self.publish_to_be_safe(object)?,
            Err(errno) => return Err(errno),
        }
        self.sync_object_devices(object)?;
        // Some other sync failed since they were made anew.
        if !object.unsynced.distrusted().is_empty() {
            return Err(Errno::EIO);
        }
        self.promise_holes(object)
    }

    /// A linked near-line is the one place that outlives the machine, or has room.
    fn publish_to_be_safe(&self, object: &Object) -> Result<(), Errno> {
        let Some(linked) = &self.linked else { return Ok(()) };
        let mut attempts = 0;
        while attempts < ATTEMPTS {
            if object.state.read().transient || self.is_published(object) {
                return Ok(());
            }
            // One that is under way is waited for, however long it takes.
            attempts += usize::from(object.state.read().version.is_none());
            match linked.publish(object.ino(), &|| self.stopping()) {
                Ok(()) => {
                    self.tell_clean(object);
                    return Ok(());
                }
                // Somebody else is at it.
                Err(Errno::EBUSY) if !self.stopping() => self.sleep(BUSY_PAUSE),
                Err(errno @ (Errno::ENOSPC | Errno::EDQUOT)) => return Err(errno),
                Err(errno) => {
                    tracing::error!(ino = %object.ino(), %errno, "bytes could not be published to be safe");
                    return Err(Errno::EIO);
                }
            }
        }
        Err(Errno::EIO)
    }

    /// Copies what only memory has. `false`: nothing is to be made durable.
    fn copy_to_devices(
        &self,
        object: &Object,
        (first, sync_mode): (TierId, bool),
        progress: &mut dyn FnMut(u64),
    ) -> Result<bool, Errno> {
        let (mut settled, mut reliefs, mut refused) = (false, 0, TierSet::EMPTY);
        for attempt in 0..ATTEMPTS {
            match self.begin_sync(object, sync_mode)? {
                Wanted::Nothing => return Ok(false),
                Wanted::Devices => return Ok(true),
                Wanted::Copy => {}
            }
            let copier = object.stop_mover();
            let to = match self.tier_for_copy(object, first, refused) {
                // What was given up keeps its space until the next sync.
                Err(Errno::ENOSPC) if reliefs < RELIEFS => {
                    (reliefs, refused) = (reliefs + 1, TierSet::EMPTY);
                    self.settle_waiting()?;
                    self.driver.wait_for_room(first, RELIEF_PAUSE);
                    continue;
                }
                found => found?,
            };
            let plan = CopyPlan { choice: Choice::Dirty, to, free: None, most: u64::MAX };
            let copied = self.copy_object(
                object,
                plan,
                &mut SyncCopier { object, progress, yields: attempt < YIELDS },
            );
            // What was asked for and not used.
            self.settle_charge(object, &mut object.state.write(), to);
            match copied {
                Ok(_) => {
                    self.tell_clean(object);
                    return Ok(true);
                }
                // To whoever interrupted it: he may be removing the object, and must not be overtaken again and again.
                Err(CopyStop::Cancelled | CopyStop::Undurable) => MutexGuard::unlock_fair(copier),
                Err(CopyStop::Gone) => return Ok(false),
                Err(CopyStop::NoSpace) => {
                    self.refresh_limit(to);
                    // Whatever space it has: a quota may be used up, or it takes no more files.
                    refused = refused.with(to);
                }
                // Objects that wait for a sync keep their files open.
                Err(CopyStop::Failed(Errno::EMFILE)) if !settled => {
                    drop(copier);
                    settled = true;
                    self.settle_waiting()?;
                }
                Err(CopyStop::Failed(errno)) => {
                    tracing::error!(ino = %object.ino(), %to, %errno, "a copy to make bytes safe failed");
                    return Err(errno);
                }
            }
        }
        // Others interrupted it again and again: better no answer of success than a wrong one.
        tracing::error!(ino = %object.ino(), "a copy was interrupted {ATTEMPTS} times and given up");
        Err(Errno::EIO)
    }

    fn begin_sync(&self, object: &Object, sync_mode: bool) -> Result<Wanted, Errno> {
        let mut state = object.state.write();
        if state.transient {
            return Ok(Wanted::Nothing);
        }
        self.save_unsaved(object, &mut state)?;
        state.sync_mode |= sync_mode && state.in_place.is_none();
        Ok(if state.map.is_dirty() { Wanted::Copy } else { Wanted::Devices })
    }

    /// A device once failed to make its copy durable: what another tier holds too is written there again, as it is, so that
    /// what the device has stays as good as it was.
    pub(crate) fn renew_distrusted(&self, object: &Object) -> Result<(), Errno> {
        if object.unsynced.distrusted().is_empty() {
            return Ok(());
        }
        let _copier = object.stop_copier();
        let distrusted = object.unsynced.trust();
        let whole = self.rewrite(object, distrusted).inspect_err(|_| object.unsynced.distrust(distrusted))?;
        // Who has it open hears of it until the last close, and so does whoever asks of bytes that are nowhere else.
        if whole && !object.is_open() {
            object.unsynced.forgive();
        }
        if object.unsynced.begin().is_ok() && object.unsynced.distrusted().is_empty() {
            self.forget_failed(object);
            self.note_if_unsynced(object, &object.state.read());
        }
        Ok(())
    }

    /// Returns whether these tiers hold nothing that no other does. The caller holds `object.copying`.
    fn rewrite(&self, object: &Object, tiers: TierSet) -> Result<bool, Errno> {
        let mut next = layout::SauIndex::ZERO;
        let mut whole = true;
        loop {
            // One at a time, as for what is mapped.
            let mut state = object.state.write();
            let held = |s: &layout::Sau| !s.valid.intersect(tiers).is_empty();
            let Some((sau, now)) = state.map.iter_from(next).find(|(_, s)| held(s)) else {
                return Ok(whole);
            };
            let good = tiers.iter().fold(now.valid, TierSet::without).intersect(self.present());
            let good = self.ours(good).fastest().or(good.fastest());
            whole &= good.is_some();
            if good.is_some_and(|good| self.ours(TierSet::of(good)).is_empty()) {
                self.drop_for_linked(object, &mut state, sau, now.valid.intersect(tiers))?;
                continue;
            }
            let len = u64::from(sau.bytes_within(state.size));
            for to in now.valid.intersect(tiers).iter() {
                let files =
                    (good.and_then(|good| state.files[good.index()].as_ref()), &state.files[to.index()]);
                let (Some(source), Some(copy)) = files else { continue };
                // Programs store to this very file: what they stored since is nowhere else.
                if state.mapped.is_some() && state.in_place.is_none_or(|tier| tier == to) {
                    return Err(Errno::EIO);
                }
                // Noted before, too: what fails half-way changed it.
                state.note_change(to);
                copy_range(source, copy, sau.start(), len, false)?;
                state.note_change(to);
                self.note_unsynced(object);
            }
            match layout::SauIndex::new(sau.get() + 1) {
                Some(after) => next = after,
                None => return Ok(whole),
            }
        }
    }

    /// A linked near-line has what these tiers perhaps did not take: it is not copied here again before it is wanted.
    fn drop_for_linked(
        &self,
        object: &Object,
        state: &mut State,
        sau: layout::SauIndex,
        tiers: TierSet,
    ) -> Result<(), Errno> {
        if state.in_place.is_some_and(|tier| tiers.contains(tier)) {
            return Err(Errno::EIO);
        }
        for tier in tiers.iter() {
            state.map.note_dropped(sau, tier).map_err(|_| Errno::EIO)?;
        }
        let saved = self.save_map(object, state)?;
        object.verified.lock().remove(sau);
        tiers.iter().for_each(|tier| self.give_up(object, state, tier, sau, saved));
        Ok(())
    }

    /// The zeros of the file's holes are as safe as its bytes: what is written there later must not put them at risk.
    fn promise_holes(&self, object: &Object) -> Result<(), Errno> {
        let mut state = object.state.write();
        if state.removed || state.synced_size >= state.size {
            return Ok(());
        }
        let promised = state.synced_size;
        state.synced_size = state.size;
        let saus = state.size.div_ceil(types::SAU_BYTES);
        // Near-line's bytes, too, where it is linked: what is written over them goes where they were safe.
        if u64::from(state.map.used()) < saus || self.linked.is_some() {
            self.save_map(object, &mut state).inspect_err(|_| state.synced_size = promised)?;
        }
        Ok(())
    }

    /// The first persistent tier that is well and has room for what is only in memory, or the first that has room.
    fn tier_for_copy(&self, object: &Object, first: TierId, refused: TierSet) -> Result<TierId, Errno> {
        let bytes = {
            let state = object.state.read();
            // Of a sparse file memory holds less than the SAUs that it is in.
            state.map.bytes_at_risk(state.size).min(state.charged[TierId::Memory.index()])
        };
        let all = self.own().iter().filter(|t| *t >= first && !refused.contains(*t));
        for tier in self.well_first(all) {
            let need = Need { ino: object.ino(), bytes, sync: true, waited: Duration::MAX };
            if self.driver.admit(tier, need) == Admit::Yes {
                object.state.write().charged[tier.index()] += bytes;
                return Ok(tier);
            }
        }
        Err(Errno::ENOSPC)
    }
}
