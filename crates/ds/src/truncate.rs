//! Changing the size of an object.

use crate::{
    DataServer,
    object::{Object, State},
};
use layout::{FILE_BYTES_MAX, SauIndex};
use types::{Errno, SAU_BYTES, TierId, TierSet};

impl DataServer {
    /// Cuts or extends; the metadata have the new size already. What is lost behind the size goes with what is cut, even if
    /// the size that is known stays. After a crash the object has the old size with its old bytes, or the new one.
    pub fn truncate(&self, object: &Object, size: u64) -> Result<(), Errno> {
        self.resize(object, size, true)
    }

    /// Would [`DataServer::truncate`] to this size wait for a device, or take long there?
    pub fn truncating_waits(&self, object: &Object, size: u64) -> bool {
        let Some(state) = object.state.try_read() else { return true };
        let between_saus =
            size.is_multiple_of(SAU_BYTES) && !state.in_place.is_some_and(TierId::is_persistent);
        let on_device =
            |(_, s): (SauIndex, layout::Sau)| !self.ours(s.valid).without(TierId::Memory).is_empty();
        state.size > SAU_BYTES
            || state.moving.is_some()
            || size < state.size && !between_saus && state.map.iter_from(SauIndex::of(size)).any(on_device)
    }

    /// Extends to at least this size.
    pub fn grow(&self, object: &Object, size: u64) -> Result<(), Errno> {
        self.resize(object, size, false)
    }

    fn resize(&self, object: &Object, size: u64, may_cut: bool) -> Result<(), Errno> {
        if size > FILE_BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        loop {
            let mut state = object.state.write();
            if state.moving.is_some() {
                drop(state);
                drop(object.stop_copier());
                continue;
            }
            self.save_unsaved(object, &mut state)?;
            let cuts = size < state.size || (size == state.size && state.end_is_lost());
            if !cuts {
                return self.extend(object, &mut state, size);
            }
            if !may_cut {
                return Ok(());
            }
            let promised = state.synced_size;
            state.synced_size = promised.min(size);
            match self.shrink(object, &mut state, size) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(errno) => {
                    state.synced_size = promised.min(state.size);
                    self.forget_cut(object, &mut state);
                    return Err(errno);
                }
            }
            drop(state);
            self.wait_for_cut(object)?;
        }
    }

    /// `false`: something must become durable first, then again.
    fn shrink(&self, object: &Object, state: &mut State, size: u64) -> Result<bool, Errno> {
        let seen_by_readers = state.in_place.is_some_and(TierId::is_persistent);
        if size.is_multiple_of(SAU_BYTES) && !seen_by_readers {
            return self.drop_tail(object, state, size).map(|()| true);
        }
        // The record says what must be finished after a crash; on a device it is begun only when that is durable.
        let is_there = |valid| !self.ours(valid).without(TierId::Memory).is_empty();
        let on_device = state.map.iter_from(SauIndex::of(size)).any(|(_, s)| is_there(s.valid));
        if state.must_record() {
            if state.pending.is_none_or(|(to, _)| to != size) {
                state.pending = Some((size, u64::MAX));
                let saved = self.save_map(object, state)?;
                state.pending = Some((size, saved));
            }
            if on_device && !state.pending.is_some_and(|(_, saved)| self.is_durable(saved)) {
                return Ok(false);
            }
        }
        // Memory last: it fails the least.
        for tier in TierId::ALL.into_iter().rev() {
            cut_file(state, tier, size)?;
        }
        // It is done. A crash would do it once more, so the record is saved before anything else is.
        state.map.truncate_to(size);
        state.map.keep();
        note_cut(state, size);
        state.pending = None;
        state.unsaved = state.must_record();
        object.note_written(|| self.now());
        if on_device {
            // Once the record does not say any more that a cut was begun, nobody would repeat it.
            for tier in TierSet::PERSISTENT.iter().filter(|tier| state.is_unsynced(*tier)) {
                state.files[tier.index()].as_ref().map_or(Ok(()), |file| self.sync_file(object, file))?;
            }
            self.note_if_unsynced(object, state);
        }
        if let Err(errno) = self.save_unsaved(object, state) {
            tracing::warn!(ino = %object.ino(), %errno, "that a cut is done is not recorded: nothing is written before");
        }
        self.settle_charges(object, state);
        Ok(true)
    }

    /// Cuts between two SAUs: no byte of what stays changes, so nothing is waited for. What device files have behind the
    /// new size goes when the map without it is durable; until then nothing reads it.
    fn drop_tail(&self, object: &Object, state: &mut State, size: u64) -> Result<(), Errno> {
        let mut given_up = Vec::new();
        for (sau, _) in state.map.iter_from(SauIndex::of(size)).filter(|(sau, _)| sau.start() >= size) {
            given_up.extend(state.reaching(sau).without(TierId::Memory).iter().map(|tier| (tier, sau)));
        }
        state.map.truncate_to(size);
        let linked_len = state.linked_len;
        state.linked_len = linked_len.min(size);
        let saved = if state.must_record() {
            self.save_map(object, state).inspect_err(|_| state.linked_len = linked_len)?
        } else {
            0
        };
        state.map.keep();
        note_cut(state, size);
        object.note_written(|| self.now());
        for (tier, sau) in given_up {
            self.give_up(object, state, tier, sau, saved);
        }
        for tier in TierId::ALL {
            if !has_condemned(state, tier) {
                cut_file(state, tier, size)?;
            }
        }
        self.note_if_unsynced(object, state);
        self.settle_charges(object, state);
        Ok(())
    }

    /// The caller holds no lock. A cut that cannot be recorded is not done.
    fn wait_for_cut(&self, object: &Object) -> Result<(), Errno> {
        let durable = self.make_durable();
        if durable.is_err() {
            self.forget_cut(object, &mut object.state.write());
        }
        durable
    }

    /// A cut that failed must not be finished by a later mount, over what was written since.
    fn forget_cut(&self, object: &Object, state: &mut State) {
        if state.pending.take().is_some() {
            // If that fails, it is saved before the next change.
            state.unsaved = true;
            let _ = self.save_map(object, state);
        }
    }

    pub(crate) fn settle_charges(&self, object: &Object, state: &mut State) {
        for tier in TierId::ALL {
            if state.charged[tier.index()] > 0 {
                self.settle_charge(object, state, tier);
            }
        }
    }

    /// One file gets the new length, that of readers in place if there are any: they take its end for the object's. The
    /// metadata know it anyway.
    fn extend(&self, object: &Object, state: &mut State, size: u64) -> Result<(), Errno> {
        if size == state.size {
            return Ok(());
        }
        let usable = |t: &TierId| state.files[t.index()].is_some() && !has_condemned(state, *t);
        if let Some(tier) = state.in_place.into_iter().chain(TierId::ALL).find(usable) {
            // What an earlier copy left between the two sizes must not come to light.
            cut_file(state, tier, state.size)?;
            self.note_if_unsynced(object, state);
            if let Some(file) = &state.files[tier.index()] {
                file.truncate(size)?;
                state.file_len[tier.index()] = size;
            }
        }
        // Nobody stores to what has no place in the map.
        self.take_new_holes_in(object, state, size).inspect_err(|_| {
            if let Some(tier) = state.in_place
                && let Err(errno) = cut_file(state, tier, state.size)
            {
                tracing::warn!(ino = %object.ino(), %tier, %errno, "a file was not made longer, but its object is");
            }
        })?;
        state.grow(size);
        object.note_written(|| self.now());
        Ok(())
    }
}

fn note_cut(state: &mut State, size: u64) {
    state.size = size;
    state.linked_len = state.linked_len.min(size);
    if let Some(version) = &mut state.version {
        version.note_cut(size);
    }
}

/// Does a device file have bytes that the durable map may still name?
pub(crate) fn has_condemned(state: &State, tier: TierId) -> bool {
    tier.is_persistent() && state.condemned.iter().any(|c| c.tier == tier)
}

/// Makes a tier's file no longer than `size`. The caller sees to it that the object is among the unsynced.
pub(crate) fn cut_file(state: &mut State, tier: TierId, size: u64) -> Result<(), Errno> {
    if let Some(file) = &state.files[tier.index()]
        && state.file_len[tier.index()] > size
    {
        file.truncate(size)?;
        state.file_len[tier.index()] = size;
        state.note_change(tier);
    }
    Ok(())
}
