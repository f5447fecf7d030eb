//! Opening, closing and what a file is like meanwhile.

use crate::{
    DataServer,
    copy::copy_range,
    object::{LiveAttr, Object, OpenKind, State},
};
use layout::Sau;
use std::sync::{Arc, atomic::Ordering};
use store::ObjectFd;
use tier::{Input, ObjectPolicy};
use types::{Errno, TierId, Timestamp};

impl DataServer {
    pub fn open(&self, object: &Object, kind: OpenKind) {
        object.count_open(kind);
        self.driver.tell(Input::Opened { ino: object.ino() });
    }

    pub fn close(&self, object: &Object, kind: OpenKind) {
        let last = object.count_close(kind);
        if last {
            let mut state = object.state.write();
            state.sync_mode = false;
            state.sync_failed = false;
            for tier in TierId::ALL {
                self.settle_charge(object, &mut state, tier);
            }
        }
        let at_risk = {
            let state = object.state.read();
            state.map.bytes_at_risk(state.size)
        };
        self.driver.tell(Input::Closed { ino: object.ino(), dirty_bytes: at_risk });
    }

    /// What only the object knows.
    pub fn live(&self, object: &Object) -> LiveAttr {
        let state = object.state.read();
        LiveAttr { size: state.size, mtime: object.mtime(), blocks: blocks(&state) }
    }

    /// Is something lost at the known end or behind it? Then the file may have been longer, and its end must not be read as its end.
    pub fn end_is_lost(&self, object: &Object) -> bool {
        object.state.read().end_is_lost()
    }

    /// The metadata have the size and time now: the next write counts anew.
    pub fn settled(&self, object: &Object) {
        object.set_mtime(None);
    }

    /// Someone set the modification time: it counts, and not the last write's. Kept on the object too, so that it
    /// is the one found after a crash.
    pub fn set_mtime(&self, object: &Object, time: Timestamp) -> Result<(), Errno> {
        let state = object.state.read();
        for file in state.files.iter().flatten() {
            file.set_mtime(time)?;
        }
        object.set_mtime(None);
        Ok(())
    }

    pub fn set_policy(&self, object: &Object, policy: ObjectPolicy) {
        object.state.write().transient = policy.transient;
        {
            let mut policies = self.policies.lock();
            if policy == ObjectPolicy::default() {
                policies.remove(&object.ino());
            } else {
                policies.insert(object.ino(), policy);
            }
        }
        self.driver.tell(Input::Policy { ino: object.ino(), policy });
    }

    /// The one tier that holds all of the object, if the kernel may read its file by itself: nothing to verify
    /// first, nothing lost, nothing moving.
    pub fn passthrough_file(&self, object: &Object) -> Option<(TierId, Arc<ObjectFd>)> {
        self.passthrough_in(object, &object.state.read())
    }

    fn passthrough_in(&self, object: &Object, state: &State) -> Option<(TierId, Arc<ObjectFd>)> {
        if state.moving.is_some() || state.map.lost() > 0 {
            return None;
        }
        let tier = match state.in_place {
            Some(tier) => tier,
            None => self.present().iter().find(|t| state.map.is_wholly_in(*t))?,
        };
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

    pub fn end_passthrough(&self, object: &Object) {
        if object.count_passthrough(false) {
            object.state.write().in_place = None;
            self.driver.tell(Input::PassthroughEnded { ino: object.ino() });
            self.note_condemned(object);
        }
    }

    /// From now on programs may write through a mapping of the object's file, which passes us by. The record says so:
    /// after a crash the file that is mapped is the one that counts.
    pub fn begin_mapped_writes(&self, object: &Object) -> Result<(), Errno> {
        let mut state = object.state.write();
        if state.mapped || state.in_place.is_none() {
            return Ok(());
        }
        state.mapped = true;
        self.save_map(object, &mut state).map(|_| ())
    }

    /// Brings the other tiers' copies up to what programs wrote through mappings so far. They stay valid all the
    /// while: what was safe stays as safe as a file that is being written anywhere.
    pub fn absorb_mapped_writes(&self, object: &Object, mappings_ended: bool) -> Result<(), Errno> {
        let _copier = object.stop_copier();
        let mut state = object.state.write();
        let Some(from) = state.in_place.filter(|_| state.mapped) else { return Ok(()) };
        let copies: Vec<_> = state.map.iter().filter(|(_, s)| s.valid.contains(from)).collect();
        for (sau, now) in &copies {
            let _ = state.map.set(*sau, Sau::in_tiers(now.valid));
            object.verified.lock().remove(*sau);
        }
        self.save_map(object, &mut state)?;
        let source = state.files[from.index()].clone().ok_or(Errno::EIO)?;
        for (sau, now) in &copies {
            for to in now.valid.without(from).iter() {
                let file = self.file_for_write(object, &mut state, to)?;
                let len = u64::from(sau.bytes_within(state.size));
                copy_range(&source, &file, sau.start(), len, false)?;
                state.file_len[to.index()] = state.file_len[to.index()].max(sau.start() + len);
                if to.is_persistent() {
                    state.unsynced = state.unsynced.with(to);
                    self.note_unsynced(object);
                }
            }
        }
        if from.is_persistent() {
            state.unsynced = state.unsynced.with(from);
            self.note_unsynced(object);
        }
        if mappings_ended {
            state.mapped = false;
            self.save_map(object, &mut state)?;
        }
        Ok(())
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
        Ok(file)
    }

    /// Saves the map. The number says when it is durable.
    pub(crate) fn save_map(&self, object: &Object, state: &mut State) -> Result<u64, Errno> {
        let record = layout::ObjectRecord {
            map: std::mem::take(&mut state.map),
            memory_generation: self.memory_generation,
            pending_truncate: None,
            mapped: state.mapped,
        };
        let saved = self.maps.save(object.ino, &record);
        state.map = record.map;
        let lsn = saved?;
        state.recorded = true;
        Ok(lsn)
    }

    /// Deletes every tier's file of an inode that no longer exists.
    pub fn remove(&self, ino: types::Ino) -> Result<(), Errno> {
        if let Some(object) = self.table.get(ino) {
            let _copier = object.stop_copier();
            let mut state = object.state.write();
            state.removed = true;
            state.condemned.clear();
            state.files = [None, None, None];
            state.map = layout::SauMap::new();
        }
        for store in self.stores.iter().flatten() {
            store.remove(ino)?;
        }
        self.policies.lock().remove(&ino);
        if self.pins.lock().remove(&ino).is_some() {
            self.maps.save_pin(ino, None)?;
        }
        self.driver.tell(Input::Removed { ino });
        Ok(())
    }
}

fn blocks(state: &State) -> u64 {
    // Copies in slower tiers are ONFS's own business: a file shows the space of one copy.
    let mut bytes = 0;
    for (sau, s) in state.map.iter() {
        if !s.valid.is_empty() || s.lost {
            bytes += u64::from(sau.bytes_within(state.size));
        }
    }
    bytes.div_ceil(512)
}

impl Object {
    /// Someone waits for the present copier to stop.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanting.load(Ordering::Acquire) > 0
    }
}
