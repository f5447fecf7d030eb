//! Opening, closing and what a file is like meanwhile.

use crate::{
    DataServer,
    mapped::HOLES_MAX,
    object::{LiveAttr, Object, OpenKind, State, UNSAVED, Verified},
};
use std::sync::{Arc, atomic::Ordering};
use store::ObjectFd;
use tier::{Input, ObjectPolicy};
use types::{Errno, Ino, SAU_BYTES, TierId, Timestamp};

impl DataServer {
    pub fn open(&self, object: &Object, kind: OpenKind) {
        // Under the lock, so that whoever makes the object known counts this opening or leaves it to us.
        let state = object.state.read();
        object.count_open(kind);
        if state.known {
            self.driver.tell(Input::Opened { ino: object.ino() });
        }
    }

    pub fn close(&self, object: &Object, kind: OpenKind) {
        let mut state = object.state.write();
        if object.count_close(kind) {
            state.sync_mode = false;
            object.reading.close();
            if state.unsynced.forget_failure() {
                self.note_if_unsynced(object, &state);
            }
            for tier in TierId::ALL {
                self.settle_charge(object, &mut state, tier);
            }
        }
        if state.known {
            let dirty_bytes = state.map.bytes_at_risk(state.size);
            self.driver.tell(Input::Closed { ino: object.ino(), dirty_bytes });
        }
    }

    /// The first write of an object that never had a byte saves the object's first record. From now on that record says
    /// in the same commit that the file is being written. `false`: it has a record; the caller tells the metadata.
    pub fn joins_first_record(&self, object: &Object) -> bool {
        let state = object.state.read();
        let joins = !state.recorded && state.map.is_empty();
        object.first_write.store(joins, Ordering::Release);
        joins
    }

    /// For a change that is no write: the caller tells the metadata after all, if the record has not. Then
    /// [`DataServer::first_record_came`] follows.
    pub fn first_record_is_late(&self, object: &Object) -> bool {
        let _no_record_now = object.state.read();
        object.first_write.load(Ordering::Acquire)
    }

    /// The metadata know that the file is being written.
    pub fn first_record_came(&self, object: &Object) {
        object.first_write.store(false, Ordering::Release);
    }

    /// What only the object knows.
    pub fn live(&self, object: &Object) -> LiveAttr {
        let state = object.state.read();
        let still = state.grown.elapsed();
        LiveAttr { size: state.size, mtime: object.mtime(), blocks: blocks(&state), still }
    }

    /// Is something lost at the known end or behind it? Then the file may have been longer, and its end must not be read as its end.
    pub fn end_is_lost(&self, object: &Object) -> bool {
        object.state.read().end_is_lost()
    }

    /// The metadata have the size and time now: the next write counts anew.
    pub fn settled(&self, object: &Object) {
        object.set_mtime(None);
        object.first_write.store(false, Ordering::Release);
    }

    /// Someone set the modification time: it counts, and not the last write's. Kept on the object too, so that it
    /// is the one found after a crash.
    pub fn set_mtime(&self, object: &Object, time: Timestamp) -> Result<(), Errno> {
        let state = object.state.read();
        let (mapped, in_place) = (state.mapped.as_ref(), state.in_place.map(TierId::index));
        for (tier, file) in state.files.iter().enumerate() {
            let Some(file) = file else { continue };
            let mapped = mapped.filter(|_| in_place == Some(tier));
            if let Some(mapped) = mapped {
                let now = file.stat()?.mtime;
                mapped.note_mtime(now, mapped.is_news(now));
            }
            file.set_mtime(time)?;
            if let Some(mapped) = mapped {
                // As the device keeps it.
                let now = file.stat()?.mtime;
                mapped.note_mtime(now, self.is_recent(now));
            }
        }
        object.set_mtime(None);
        Ok(())
    }

    pub fn set_policy(&self, object: &Object, policy: ObjectPolicy) {
        {
            let mut state = object.state.write();
            (state.transient, state.promote) = (policy.transient, policy.promote);
        }
        self.note_policy(object.ino(), policy);
    }

    /// What holds for an object that nobody uses.
    pub(crate) fn note_policy(&self, ino: Ino, policy: ObjectPolicy) {
        {
            let mut policies = self.policies.lock();
            if policy == ObjectPolicy::default() {
                policies.remove(&ino);
            } else {
                policies.insert(ino, policy);
            }
        }
        self.driver.tell(Input::Policy { ino, policy });
    }

    /// The one tier that holds all of the object, if the kernel may read its file by itself: nothing to verify
    /// first, nothing lost, nothing of it in a faster tier. A copy or a move that is under way does not matter: it gives up
    /// nothing of what is in place, and brings nothing up.
    pub fn passthrough_file(&self, object: &Object) -> Option<(TierId, Arc<ObjectFd>)> {
        self.passthrough_in(object, &object.state.read())
    }

    fn passthrough_in(&self, object: &Object, state: &State) -> Option<(TierId, Arc<ObjectFd>)> {
        if state.map.lost() > 0 {
            return None;
        }
        let fastest = || state.map.tiers_used().intersect(self.present()).fastest();
        let tier = state.in_place.or_else(fastest)?;
        if !state.map.is_wholly_in(tier) {
            return None;
        }
        if state.size.div_ceil(SAU_BYTES).saturating_sub(u64::from(state.map.used())) > HOLES_MAX {
            return None;
        }
        // Of a hole the file may still have what was there before.
        if state.condemned.iter().any(|c| c.tier == tier) {
            return None;
        }
        let file = state.files[tier.index()].clone()?;
        if tier != TierId::Memory {
            let verified = object.verified.lock();
            if state.map.iter().any(|(sau, s)| s.seal.is_some() && !verified.contains(sau)) {
                return None;
            }
        }
        // The kernel takes the end of this file for the end of the file.
        if state.file_len[tier.index()] != state.size {
            return None;
        }
        Some((tier, file))
    }

    /// Bytes that a passthrough open pins in its tier.
    pub fn size_in(&self, object: &Object, tier: TierId) -> u64 {
        object.state.read().charged[tier.index()]
    }

    /// From now on the kernel reads the object's file by itself: all of it stays in that tier, and new bytes go there.
    /// `false`, and nothing changed, if no one tier holds all of it.
    pub fn begin_passthrough(&self, object: &Object) -> bool {
        {
            let mut state = object.state.write();
            if state.in_place.is_none() {
                let file = self.passthrough_in(object, &state);
                let Some((tier, _)) = file else { return false };
                state.in_place = Some(tier);
            }
        }
        if object.count_passthrough(true) {
            self.driver.tell(Input::PassthroughBegan { ino: object.ino() });
        }
        true
    }

    /// As [`DataServer::begin_passthrough`] of an object whose file in this tier is read in place already, since before a start: whatever else is
    /// known of it, it stays. `None`: there is no such file.
    pub fn hold_in_place(&self, object: &Object, tier: TierId) -> Option<Arc<ObjectFd>> {
        let file = {
            let mut state = object.state.write();
            let file = state.files[tier.index()].clone()?;
            state.in_place = Some(tier);
            file
        };
        if object.count_passthrough(true) {
            self.driver.tell(Input::PassthroughBegan { ino: object.ino() });
        }
        Some(file)
    }

    pub fn end_passthrough(&self, object: &Object) {
        if object.count_passthrough(false) {
            object.state.write().in_place = None;
            self.driver.tell(Input::PassthroughEnded { ino: object.ino() });
            self.note_condemned(object);
        }
    }

    /// Tells the core that the object has bytes that no slower tier has, at most once a second.
    pub(crate) fn notice_dirty(&self, object: &Object, tier: TierId) {
        let second = self.driver.now().as_secs() + 1;
        if object.noticed.swap(second, Ordering::Relaxed) != second {
            self.driver.tell(Input::Dirty { ino: object.ino(), tier });
        }
    }

    pub(crate) fn touch(&self, object: &Object, offset: u64) {
        if object.is_touch(offset) {
            self.driver.tell(Input::Touched { ino: object.ino(), offset });
        }
    }

    /// The object's file in a tier, made if there is none.
    pub(crate) fn file_for_write(
        &self,
        object: &Object,
        state: &mut State,
        tier: TierId,
    ) -> Result<Arc<ObjectFd>, Errno> {
        if let Some(file) = &state.files[tier.index()] {
            return Ok(file.clone());
        }
        let store = self.stores[tier.index()].as_ref().ok_or(Errno::EIO)?;
        let file = store.open_object(object.ino, true)?.ok_or(Errno::EIO)?;
        if !file.newly_created() && state.unprobed.contains(tier) {
            // A copy that was not finished; the map never said that it counts.
            file.truncate(0)?;
        } else if !file.newly_created() {
            // Loading would have found it. Whatever it is, it is not ours to write over.
            tracing::error!(ino = %object.ino, %tier, "an object's file exists that its map does not know");
            return Err(Errno::EIO);
        }
        state.unprobed = state.unprobed.without(tier);
        state.file_len[tier.index()] = 0;
        state.files[tier.index()] = Some(file.clone());
        if state.known {
            self.driver.with(|core, _| {
                if let Some(files) = core.files(object.ino) {
                    core.note_files(object.ino, files.with(tier));
                }
            });
        }
        Ok(file)
    }

    /// Saves the map. The number says when it is durable. If that fails the map is again what the record says, so that
    /// nobody takes for recorded what is not.
    pub(crate) fn save_map(&self, object: &Object, state: &mut State) -> Result<u64, Errno> {
        let far = state.map.count_in(TierId::Nearline) > 0;
        let record = layout::ObjectRecord {
            map: std::mem::take(&mut state.map),
            memory_generation: self.memory_generation,
            pending_truncate: state.pending.map(|(size, _)| size),
            mapped: state.mapped.is_some(),
            synced_size: state.synced_size,
            linked_len: if far { state.linked_len } else { 0 },
        };
        let first = object.first_write.load(Ordering::Acquire);
        let saved = if first {
            self.maps.save_first(object.ino, &record)
        } else {
            self.maps.save(object.ino, &record)
        };
        state.map = record.map;
        let lsn = match saved {
            Ok(lsn) => lsn,
            Err(errno) => {
                state.map.roll_back();
                return Err(errno);
            }
        };
        state.map.stored();
        state.unsaved = false;
        state.condemned.iter_mut().filter(|c| c.after == UNSAVED).for_each(|c| c.after = lsn);
        if first {
            object.first_write.store(false, Ordering::Release);
        }
        (state.recorded, state.stub) = (true, false);
        Ok(lsn)
    }

    /// Before any change of an object whose record could not be saved.
    pub(crate) fn save_unsaved(&self, object: &Object, state: &mut State) -> Result<(), Errno> {
        if state.unsaved { self.save_map(object, state).map(|_| ()) } else { Ok(()) }
    }

    /// Deletes every tier's file of an inode that no longer exists. [`DataServer::forget_removed`] follows when its records
    /// are deleted, too.
    pub fn remove(&self, ino: types::Ino) -> Result<(), Errno> {
        // Also when nobody uses it: a mover that comes upon it meanwhile finds that it is removed.
        self.removed.lock().insert(ino);
        let mut gone = State::empty();
        gone.removed = true;
        let unused = || Ok(Object::new(ino, gone, Verified::default(), self.home()));
        let (object, made) = self.table.get_or_load(ino, unused)?;
        if !made {
            let _copier = object.stop_copier();
            let mut state = object.state.write();
            state.removed = true;
            state.condemned.clear();
            state.version = None;
            object.theirs.replace(None);
            self.kept.let_go(ino);
            state.files = [None, None, None];
            TierId::ALL.into_iter().for_each(|tier| state.unsynced.forget(tier));
            state.map = layout::SauMap::new();
            *object.verified.lock() = Verified::default();
            drop(state);
            self.forget_failed(&object);
        }
        let files = self.driver.with(|core, _| core.files(ino));
        let mut freed = Vec::new();
        let removed: Result<(), Errno> = files.unwrap_or(self.present()).iter().try_for_each(|tier| {
            let Some(store) = &self.stores[tier.index()] else { return Ok(()) };
            let took = store.bytes_of(ino)?.unwrap_or(0);
            store.remove(ino)?;
            freed.push((tier, took));
            Ok(())
        });
        self.driver.with(|core, now| {
            if core.object_bytes(ino).is_none() {
                // Of what nobody uses and cannot move the core keeps no record: only what all objects take.
                for (tier, took) in freed {
                    core.handle(now, Input::Stored { ino, tier, delta: -(took as i64) });
                }
            } else if removed.is_ok() {
                core.handle(now, Input::Removed { ino });
            }
        });
        removed?;
        self.maps.drop_chunks(ino)?;
        self.policies.lock().remove(&ino);
        drop(self.table.take_compared(ino));
        if self.pins.lock().remove(&ino).is_some() {
            self.maps.save_pin(ino, None)?;
        }
        Ok(())
    }
}

impl DataServer {
    /// Nothing is stored about these any more.
    pub fn forget_removed(&self, inos: &[Ino]) {
        let mut removed = self.removed.lock();
        inos.iter().for_each(|ino| {
            removed.remove(ino);
        });
    }
}

fn blocks(state: &State) -> u64 {
    // Copies in slower tiers are ONFS's own business: a file shows the space of one copy.
    state.map.bytes_within(state.size).div_ceil(512)
}

impl Object {
    /// Someone waits for the present copier to stop.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanting.load(Ordering::Acquire) > 0
    }

    /// So does somebody who changes the object, or makes it safe.
    pub(crate) fn is_wanted_by_any(&self) -> bool {
        self.is_wanted() || self.syncing.load(Ordering::Acquire) > 0
    }
}
