//! Bringing the state of an object into memory, and what a reboot or a lost file means for it.

use crate::{
    DataServer,
    copy::copy_range,
    object::{Object, State},
};
use layout::{ObjectRecord, Sau};
use std::sync::Arc;
use tier::Input;
use types::{Errno, Ino, TierId, TierSet};

/// What the metadata know of an object when it is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectHint {
    /// The settled size.
    pub size: u64,
    /// An object may exist: someone opened the file for writing once. Without it no tier is asked.
    pub written: bool,
    /// The file was open for writing when the daemon died: the object knows its size, not the metadata.
    pub stale_live: bool,
    /// Life of the memory tier in which the file was last opened for writing.
    pub memory_generation: u32,
}

impl DataServer {
    /// The object of an inode, loaded if nobody uses it. The hint counts when it is loaded, and for the size of a
    /// settled file.
    pub fn attach(&self, ino: Ino, hint: &ObjectHint) -> Result<Arc<Object>, Errno> {
        let (object, loaded) = self.table.get_or_load(ino, || self.load(ino, Some(hint)))?;
        if object.is_open_for_write() {
            return Ok(object);
        }
        // A mover may have loaded it before, who knows of no hint.
        let mut state = object.state.write();
        if hint.stale_live {
            if object.mtime().is_none() {
                object.set_mtime(state.found_mtime);
            }
            if hint.memory_generation != self.memory_generation {
                state.size = state.size.max(hint.size);
            }
        } else if !loaded {
            state.size = state.size.max(hint.size);
        }
        drop(state);
        Ok(object)
    }

    /// As `attach`, for movements, which know no hint. `ENOENT` if the object does not exist.
    pub(crate) fn attach_for_move(&self, ino: Ino) -> Result<Arc<Object>, Errno> {
        let (object, _) = self.table.get_or_load(ino, || self.load(ino, None))?;
        Ok(object)
    }

    fn load(&self, ino: Ino, hint: Option<&ObjectHint>) -> Result<Arc<Object>, Errno> {
        let mut state = State::empty();
        if hint.is_some_and(|h| !h.written) {
            state.size = hint.map_or(0, |h| h.size);
            self.introduce(ino, &state);
            return Ok(Object::new(ino, state, self.home()));
        }
        state.transient = self.policies.lock().get(&ino).is_some_and(|p| p.transient);
        state.pinned = self.pins.lock().get(&ino).copied();
        let record = self.maps.load(ino)?;
        state.recorded = record.is_some();
        let pending = record.as_ref().and_then(|r| r.pending_truncate);
        let mut times = [None; 3];
        // Without a record there is nothing. Only who must find the size of an unsettled file looks for it.
        let settled = hint.is_some_and(|h| !h.stale_live);
        for tier in TierId::ALL.into_iter().rev() {
            if record.is_none() && settled && tier.is_persistent() {
                state.unprobed = state.unprobed.with(tier);
                continue;
            }
            let Some(store) = &self.stores[tier.index()] else { continue };
            let Some(file) = store.open_object(ino, false)? else { continue };
            if let Some(size) = pending {
                file.truncate(size)?;
            }
            let stat = file.stat()?;
            state.file_len[tier.index()] = stat.size;
            state.charged[tier.index()] = stat.blocks * 512;
            state.files[tier.index()] = Some(file);
            times[tier.index()] = Some(stat.mtime);
        }
        let on_disk = state.file_len.iter().copied().max().unwrap_or(0);
        let exists = state.files.iter().any(Option::is_some);
        state.size = match hint {
            Some(h) if !h.stale_live || !exists => h.size,
            // The longest file may have been in the memory that is gone; a size that was set is in the metadata too.
            Some(h) if h.memory_generation != self.memory_generation => on_disk.max(h.size),
            Some(_) | None => on_disk,
        };
        if let Some(size) = pending {
            state.size = state.size.min(size);
        }
        let mapped = record.as_ref().is_some_and(|r| r.mapped);
        let old = record.as_ref().is_none_or(|r| r.memory_generation != self.memory_generation);
        self.load_map(ino, &mut state, record);
        if let Some(size) = pending {
            state.map.truncate_to(size);
        }
        if settled {
            cut_to_size(&mut state)?;
        }
        if mapped {
            absorb_after_crash(&mut state);
        }
        // What is lost must be known to be lost before the file is written in the present life of the memory tier.
        let must_save = pending.is_some() || mapped || (old && state.map.lost() > 0);
        // A file that the map does not name may be the beginning of a copy, with the time of that.
        let named = TierId::ALL.into_iter().filter(|t| state.map.count_in(*t) > 0 || state.map.is_empty());
        state.found_mtime = named.filter_map(|t| times[t.index()]).max();
        // The core knows the objects that it moves.
        if hint.is_some() {
            self.introduce(ino, &state);
        }
        let object = Object::new(ino, state, self.home());
        if mapped {
            self.note_unsynced(&object);
        }
        if must_save {
            let mut state = object.state.write();
            self.save_map(&object, &mut state)?;
        }
        Ok(object)
    }

    fn load_map(&self, ino: Ino, state: &mut State, record: Option<ObjectRecord>) {
        let lost_before = state.map.lost();
        // Without a record nothing was ever written: the record comes before the first byte.
        if let Some(record) = record {
            state.map = record.map;
            if record.memory_generation != self.memory_generation {
                state.map.forget_memory();
            }
        }
        for tier in self.present().iter() {
            if state.files[tier.index()].is_none() && state.map.count_in(tier) > 0 {
                tracing::error!(%ino, %tier, "the object's file is missing in this tier");
                let gone: Vec<_> =
                    state.map.iter().filter(|(_, s)| s.valid.contains(tier)).map(|(sau, _)| sau).collect();
                for sau in gone {
                    state.map.note_failed(sau, tier);
                }
            }
        }
        let lost = state.map.lost() - lost_before;
        if lost > 0 {
            self.counters.lost_saus.add(u64::from(lost));
            tracing::warn!(%ino, saus = lost, "bytes that were only in memory are lost: reads of them give EIO");
        }
    }

    /// Tells the core what there is of an object.
    pub(crate) fn introduce(&self, ino: Ino, state: &State) {
        self.driver.tell(Input::Attached { ino, bytes: state.charged, dirty: dirty_tiers(state) });
    }
}

/// The metadata know the size of a settled file: what lies behind it is left from a cut that was not finished.
fn cut_to_size(state: &mut State) -> Result<(), Errno> {
    for tier in TierId::ALL {
        let Some(file) = &state.files[tier.index()] else { continue };
        if state.file_len[tier.index()] > state.size {
            file.truncate(state.size)?;
            state.file_len[tier.index()] = state.size;
        }
    }
    // Lost SAUs behind the size stay: they say that the file may have been longer.
    if state.map.lost() == 0 {
        state.map.truncate_to(state.size);
    }
    Ok(())
}

/// Programs were writing through mappings of the fastest copy when the daemon died: the others may be old, and are
/// written over, so that what was safe is safe again.
fn absorb_after_crash(state: &mut State) {
    let held: Vec<_> = state.map.iter().filter(|(_, s)| s.valid.iter().count() > 1).collect();
    for (sau, now) in held {
        let Some(from) = now.valid.fastest() else { continue };
        let len = u64::from(sau.bytes_within(state.size));
        let mut valid = TierSet::of(from);
        for to in now.valid.without(from).iter() {
            let files = (&state.files[from.index()], &state.files[to.index()]);
            let (Some(source), Some(copy)) = files else { continue };
            match copy_range(source, copy, sau.start(), len, false) {
                Ok(_) => valid = valid.with(to),
                Err(errno) => {
                    tracing::warn!(tier = %to, %errno, "an old copy was not brought up to date: it is not used")
                }
            }
            state.file_len[to.index()] = state.file_len[to.index()].max(sau.start() + len);
            if to.is_persistent() {
                state.unsynced = state.unsynced.with(to);
            }
        }
        let _ = state.map.set(sau, Sau::in_tiers(valid));
    }
}

/// The tiers that hold a SAU which no slower tier holds.
pub(crate) fn dirty_tiers(state: &State) -> TierSet {
    let mut dirty = TierSet::EMPTY;
    for (_, sau) in state.map.iter() {
        if let Some(slowest) = sau.valid.iter().last()
            && slowest != TierId::Nearline
        {
            dirty = dirty.with(slowest);
        }
        if dirty == TierSet::MEMORY.with(TierId::Ssd) {
            break;
        }
    }
    dirty
}
