//! Space: what each object is charged for, what the devices really have, and freeing what was given up.

use crate::{
    DataServer,
    copy::keeping_mtime,
    load::dirty_tiers,
    object::{Object, State},
    seal::has_unsealed,
};
use layout::ObjectRecord;
use std::{collections::HashMap, ops::ControlFlow, sync::atomic::Ordering};
use store::ScanEntry;
use tier::{Input, ObjectPolicy};
use types::{Errno, Ino, SAU_BYTES, TierId, TierSet};

/// More than any back end has, and little enough to add to.
const BOUNDLESS: u64 = 1 << 60;

impl DataServer {
    /// Charges the object for what its file in a tier really takes. Space asked for ahead is given back.
    pub(crate) fn settle_charge(&self, object: &Object, state: &mut State, tier: TierId) {
        let at = tier.index();
        let now = match &state.files[at] {
            Some(file) => match file.stat() {
                Ok(stat) => stat.blocks * 512,
                Err(_) => return,
            },
            None => 0,
        };
        state.credit[at] = 0;
        let before = std::mem::replace(&mut state.charged[at], now);
        if now != before {
            let delta = now as i64 - before as i64;
            self.driver.tell(Input::Stored { ino: object.ino(), tier, delta });
        }
    }

    /// Frees what was given up: in memory at once, on a device as soon as the map that says so is durable.
    /// Returns whether something must wait.
    pub(crate) fn free_condemned(&self, object: &Object, state: &mut State) -> bool {
        if state.condemned.is_empty() {
            return false;
        }
        let synced = self.maps.synced();
        let busy = object.in_passthrough() || state.moving.is_some();
        let mut touched = TierSet::EMPTY;
        let (mut waiting, mut refused) = (Vec::new(), Vec::new());
        for one in std::mem::take(&mut state.condemned) {
            if state.map.get(one.sau).valid.contains(one.tier) {
                // It came back to this tier meanwhile.
                continue;
            }
            let durable = one.tier == TierId::Memory || one.after <= synced;
            if busy || !durable {
                waiting.push(one);
                continue;
            }
            touched = touched.with(one.tier);
            if let Some(file) = &state.files[one.tier.index()]
                && let Err(errno) = keeping_mtime(file, |file| file.clear(one.sau.start(), SAU_BYTES))
            {
                tracing::warn!(ino = %object.ino(), tier = %one.tier, %errno, "space of an old copy was not freed");
                // Whoever frees something next tries again; until then nobody may read the file in place.
                refused.push(one);
            }
        }
        let left = !waiting.is_empty();
        waiting.append(&mut refused);
        state.condemned = waiting;
        for tier in touched.iter() {
            trim(object.ino(), state, tier);
            self.remove_if_empty(object, state, tier);
            let before = state.charged[tier.index()];
            self.settle_charge(object, state, tier);
            self.counters.freed_bytes.add(before.saturating_sub(state.charged[tier.index()]));
        }
        left
    }

    /// A tier that holds nothing of a closed object loses its file, unless it is the object's last one.
    fn remove_if_empty(&self, object: &Object, state: &mut State, tier: TierId) {
        let linked = self.linked.is_some() && state.map.count_in(TierId::Nearline) > 0;
        let others = linked || TierId::ALL.iter().any(|t| *t != tier && state.files[t.index()].is_some());
        let waiting = state.condemned.iter().any(|c| c.tier == tier);
        if object.is_open() || !others || waiting || state.map.count_in(tier) > 0 {
            return;
        }
        let Some(store) = &self.stores[tier.index()] else { return };
        match store.remove(object.ino()) {
            Ok(_) => {
                state.files[tier.index()] = None;
                state.file_len[tier.index()] = 0;
                state.unsynced.forget(tier);
            }
            Err(errno) => {
                tracing::warn!(ino = %object.ino(), %tier, %errno, "the empty file of an object was not removed");
            }
        }
    }

    /// A device may have less room than the user allowed: the limit is what ONFS has there and what is free.
    pub(crate) fn refresh_limit(&self, tier: TierId) {
        let Some(store) = &self.stores[tier.index()] else { return };
        let wanted = self.limits[tier.index()].load(Ordering::Acquire);
        if tier == TierId::Memory {
            self.driver.tell(Input::LimitChanged { tier, limit: wanted });
            return;
        }
        match store.space() {
            Ok(space) => self.driver.with(|core, now| {
                let used = core.tier(tier).map_or(0, |t| t.used);
                // Something for the file system's own needs: metadata of objects, its journal.
                let free = space.free.saturating_sub(space.total / 100);
                self.device_free[tier.index()].store(free, Ordering::Release);
                let limit = wanted.min(used.saturating_add(free));
                core.handle(now, Input::LimitChanged { tier, limit });
            }),
            Err(errno) => tracing::error!(%tier, %errno, "cannot read the free space of the tier"),
        }
    }

    /// Shows each object that has a file in the slowest tier of ours, and the bytes that it takes there.
    pub fn scan_lowest(&self, see: &mut dyn FnMut(Ino, u64)) -> Result<(), Errno> {
        let Some(store) = self.stores.iter().rev().flatten().next() else { return Ok(()) };
        store.scan(&mut |entry| {
            if let ScanEntry::Object { ino, blocks, .. } = entry {
                see(ino, blocks * 512);
            }
            ControlFlow::Continue(())
        })
    }

    /// Counts what the tiers hold, and tells the core of every object that can move.
    pub(crate) fn take_stock(&self) -> Result<(), Errno> {
        let mut movable: HashMap<Ino, [u64; 3]> = HashMap::new();
        if self.linked.is_some() {
            // What moves there takes no space of ours.
            self.driver.tell(Input::Space { tier: TierId::Nearline, limit: BOUNDLESS, used: 0 });
        }
        let slowest = self.present().iter().last();
        for tier in self.present().iter() {
            let Some(store) = &self.stores[tier.index()] else { continue };
            let mut used = 0;
            store.scan(&mut |entry| {
                match entry {
                    ScanEntry::Object { ino, blocks, .. } => {
                        used += blocks * 512;
                        if Some(tier) != slowest {
                            movable.entry(ino).or_default()[tier.index()] = blocks * 512;
                        } else if let Some(bytes) = movable.get_mut(&ino) {
                            bytes[tier.index()] = blocks * 512;
                        }
                    }
                    ScanEntry::Stranger(path) => {
                        tracing::warn!(%tier, path = %path.display(), "not an object of ONFS: left alone");
                    }
                }
                ControlFlow::Continue(())
            })?;
            let limit = self.limits[tier.index()].load(Ordering::Acquire);
            self.driver.tell(Input::Space { tier, limit, used });
            self.refresh_limit(tier);
        }
        let mut strays = Vec::new();
        for (ino, bytes) in movable {
            let dirty = match self.maps.load(ino) {
                Ok(Some(record)) => {
                    if has_unsealed(&record.map, self.ours(TierSet::PERSISTENT)) {
                        self.note_found_unsealed(ino);
                    }
                    self.dirty_of(record)
                }
                Ok(None) => {
                    strays.extend((bytes == [0; 3]).then_some(ino));
                    TierSet::MEMORY
                }
                // Its map cannot be read, and that was said: nothing of it moves or is dropped.
                Err(_) => continue,
            };
            self.driver.tell(Input::Attached { ino, bytes, dirty });
        }
        *self.strays.lock() = strays;
        for (ino, tier) in self.maps.pins()? {
            self.pins.lock().insert(ino, tier);
            self.driver.tell(Input::Pinned { ino, tier });
        }
        Ok(())
    }

    /// A kill between the making of an object's file and its first record leaves a file without a byte, and if the inode then
    /// goes, nobody looks for it: it had no object. `is_gone` knows the inodes.
    pub fn remove_strays(&self, is_gone: &dyn Fn(Ino) -> bool) {
        for ino in std::mem::take(&mut *self.strays.lock()).into_iter().filter(|ino| is_gone(*ino)) {
            for store in self.stores.iter().flatten() {
                if let Err(error) = store.remove(ino) {
                    tracing::warn!(%ino, %error, "the empty object of a removed file was not removed");
                }
            }
            self.driver.tell(Input::Removed { ino });
        }
    }

    /// Objects that a crash left in memory have the policies of their directories from the start, and not only from their
    /// next opening: a transient one is not written down meanwhile.
    pub fn resume_policies(
        &self,
        policy_of: &dyn Fn(Ino) -> Result<ObjectPolicy, Errno>,
    ) -> Result<(), Errno> {
        let Some(store) = &self.stores[TierId::Memory.index()] else { return Ok(()) };
        store.scan(&mut |entry| {
            if let ScanEntry::Object { ino, .. } = entry {
                match policy_of(ino) {
                    Ok(policy) if policy != ObjectPolicy::default() => self.note_policy(ino, policy),
                    // Of an inode that is gone nothing is kept; what cannot be read was said.
                    Ok(_) | Err(_) => {}
                }
            }
            ControlFlow::Continue(())
        })
    }

    fn dirty_of(&self, record: ObjectRecord) -> TierSet {
        let mut state = State::empty();
        state.map = record.map;
        if record.memory_generation != self.memory_generation {
            state.map.forget_memory();
        }
        dirty_tiers(&state)
    }
}

/// What a cut left of a device file behind the object's end.
fn trim(ino: Ino, state: &mut State, tier: TierId) {
    let size = state.size;
    if state.file_len[tier.index()] <= size || state.condemned.iter().any(|c| c.tier == tier) {
        return;
    }
    let Some(file) = &state.files[tier.index()] else { return };
    match keeping_mtime(file, |file| file.truncate(size)) {
        Ok(()) => state.file_len[tier.index()] = size,
        Err(errno) => tracing::warn!(%ino, %tier, %errno, "the end of an old copy was not cut off"),
    }
}
