//! Bringing the state of an object into memory, and what a reboot or a lost file means for it.

use crate::{
    DataServer,
    copy::{copy_range, keeping_mtime, reach},
    linked::Stub,
    object::{Mapped, Object, State, Verified},
    seal::has_unsealed,
};
use layout::{ObjectRecord, Sau, SauIndex};
use std::sync::Arc;
use tier::Input;
use types::{Errno, Ino, SAU_BYTES, TierId, TierSet, Timestamp};

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
    /// The inode is linked, and this is the size of their file: without an object record all of it, up to `size`, is in
    /// near-line.
    pub linked: Option<u64>,
}

impl DataServer {
    /// The object of an inode, loaded if nobody uses it. The hint counts when it is loaded, and for the size of a
    /// settled file.
    pub fn attach(&self, ino: Ino, hint: &ObjectHint) -> Result<Arc<Object>, Errno> {
        let (object, loaded) = self.get_or_load(ino, Some(hint))?;
        if object.is_open_for_write() {
            return Ok(object);
        }
        // A mover may have loaded it before, who knows of no hint.
        let mut state = object.state.write();
        if std::mem::take(&mut state.for_movement) {
            state.known = false;
            self.make_known(&object, &mut state);
        }
        if hint.stale_live && object.mtime().is_none() {
            object.set_mtime(state.found_mtime);
        }
        if !loaded {
            state.grow(hint.size);
        }
        drop(state);
        Ok(object)
    }

    /// As `attach`, for movements, which know no hint. `ENOENT` if the object does not exist.
    pub(crate) fn attach_for_move(&self, ino: Ino) -> Result<Arc<Object>, Errno> {
        Ok(self.get_or_load(ino, None)?.0)
    }

    /// As `attach_for_move`, and the core knows of the object as long as somebody has it: also of one that takes no space, or
    /// is in the slowest tier.
    pub(crate) fn attach_for_request(&self, ino: Ino) -> Result<Arc<Object>, Errno> {
        let object = self.attach_for_move(ino)?;
        let mut state = object.state.write();
        if std::mem::take(&mut state.for_movement) {
            state.known = false;
        }
        self.make_known(&object, &mut state);
        drop(state);
        Ok(object)
    }

    fn get_or_load(&self, ino: Ino, hint: Option<&ObjectHint>) -> Result<(Arc<Object>, bool), Errno> {
        let (object, loaded) = match self.table.get_or_load(ino, || self.load(ino, hint)) {
            // Objects that wait for a sync keep their files open.
            Err(Errno::EMFILE) => {
                self.settle_waiting()?;
                self.table.get_or_load(ino, || self.load(ino, hint))
            }
            other => other,
        }?;
        if loaded {
            // Not in the table's lock, which a sync of the journal may want. What fails does not keep anyone from reading.
            let mut state = object.state.write();
            if let Err(errno) = self.save_unsaved(&object, &mut state) {
                tracing::warn!(%ino, %errno, "what became of the object is not recorded: nothing is written to it before");
            }
        }
        Ok((object, loaded))
    }

    fn load(&self, ino: Ino, hint: Option<&ObjectHint>) -> Result<Arc<Object>, Errno> {
        if self.removed.lock().contains(&ino) {
            return Err(Errno::ENOENT);
        }
        let mut state = State::empty();
        let policy = self.policies.lock().get(&ino).copied().unwrap_or_default();
        (state.transient, state.promote) = (policy.transient, policy.promote);
        state.pinned = self.pins.lock().get(&ino).copied();
        if hint.is_some_and(|h| !h.written && (h.linked.is_none() || self.linked.is_none())) {
            state.size = hint.map_or(0, |h| h.size);
            // A kill between the making of a file and its record leaves the file, and nothing of it counts.
            state.unprobed = self.own();
            return Ok(Object::new(ino, state, Verified::default(), self.home()));
        }
        let record = self.maps.load(ino)?;
        state.recorded = record.is_some();
        let pending = record.as_ref().and_then(|r| r.pending_truncate);
        let settled = hint.is_some_and(|h| !h.stale_live);
        let times = self.open_files(ino, &mut state, record.as_ref(), settled)?;
        let mapped = record.as_ref().is_some_and(|r| r.mapped);
        let synced_size = record.as_ref().map_or(0, |r| r.synced_size);
        state.linked_len = record.as_ref().map_or(0, |r| r.linked_len);
        let stub = self.stub_of(ino, &state, hint)?;
        let old = record.as_ref().is_none_or(|r| r.memory_generation != self.memory_generation);
        self.load_map(ino, &mut state, record);
        state.size = known_size(&state, hint);
        let (is_stub, old_cut) = (stub.is_some(), self.load_stub(&mut state, stub));
        state.size = pending.map_or(state.size, |size| state.size.min(size));
        state.synced_size = synced_size.min(state.size);
        if let Some(size) = pending {
            state.map.truncate_to(size);
        }
        // Of a stub nothing counts that is here.
        if settled || is_stub {
            cut_to_size(&mut state)?;
        }
        let old_cut = old_cut || state.linked_len > state.size;
        state.linked_len = state.linked_len.min(state.size);
        clear_holes(&mut state)?;
        if mapped {
            absorb_after_crash(&mut state);
        }
        if has_unsealed(&state.map, self.ours(TierSet::PERSISTENT)) {
            self.note_found_unsealed(ino);
        }
        // What is lost must be known to be lost before the file is written in the present life of the memory tier.
        // And how much of a linked file counts, before it is made longer again.
        state.unsaved = pending.is_some() || mapped || (old && state.map.lost() > 0) || old_cut;
        state.map.keep();
        // A file that the map does not name may be the beginning of a copy, with the time of that.
        let named = TierId::ALL.into_iter().filter(|t| state.map.count_in(*t) > 0 || state.map.is_empty());
        state.found_mtime = named.filter_map(|t| times[t.index()]).max();
        // The core knows the objects that it moves.
        state.known = true;
        state.for_movement = hint.is_none();
        if hint.is_some() {
            self.tell_found(ino, &state);
        }
        let unsynced = !state.unsynced.tiers().is_empty();
        let object = Object::new(ino, state, self.table.take_compared(ino), self.home());
        if unsynced {
            self.note_unsynced(&object);
        }
        Ok(object)
    }

    /// The core hears of it, and of its pin, which it forgot with the last user.
    fn tell_found(&self, ino: Ino, state: &State) {
        let files = state.unprobed.is_empty().then(|| state.tiers_with_file());
        self.driver.with(|core, now| {
            core.handle(now, attached(ino, state));
            state.pinned.into_iter().for_each(|tier| core.handle(now, Input::Pinned { ino, tier }));
            files.into_iter().for_each(|files| core.note_files(ino, files));
        });
    }

    /// Opens the tiers' files, finishes a cut that was begun, and returns when each was last written.
    fn open_files(
        &self,
        ino: Ino,
        state: &mut State,
        record: Option<&ObjectRecord>,
        settled: bool,
    ) -> Result<[Option<Timestamp>; 3], Errno> {
        let pending = record.and_then(|r| r.pending_truncate);
        let mut times = [None; 3];
        // Without a record there is nothing. Only who must find the size of an unsettled file looks for it.
        let known = if settled { self.driver.with(|core, _| core.files(ino)) } else { None };
        for tier in TierId::ALL.into_iter().rev() {
            // The core may have forgotten; what the map names is looked for in any case.
            let named = record.is_some_and(|r| r.map.count_in(tier) > 0 || pending.is_some());
            let elsewhere = !named && known.is_some_and(|files| !files.contains(tier));
            if elsewhere || record.is_none() && settled && tier.is_persistent() {
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
            if pending.is_some() {
                state.note_change(tier);
            }
        }
        Ok(times)
    }

    /// Of an object without a record, what it is if it is linked.
    fn stub_of(&self, ino: Ino, state: &State, hint: Option<&ObjectHint>) -> Result<Option<Stub>, Errno> {
        let Some(linked) = self.linked.as_ref().filter(|_| !state.recorded) else { return Ok(None) };
        match hint {
            Some(hint) => Ok(hint.linked.map(|theirs| Stub { size: hint.size, theirs })),
            None => linked.stub(ino),
        }
    }

    /// The map of a stub. Returns whether their file has more than ours: then this is recorded before ours grows.
    fn load_stub(&self, state: &mut State, stub: Option<Stub>) -> bool {
        let Some(Stub { size, theirs }) = stub else { return false };
        state.stub = true;
        state.size = state.size.max(size);
        state.linked_len = size.min(theirs);
        state.map.fill(state.linked_len, TierId::Nearline);
        theirs > size
    }

    fn load_map(&self, ino: Ino, state: &mut State, record: Option<ObjectRecord>) {
        // Without a record nothing was ever written: the record comes before the first byte.
        let mut known = 0;
        if let Some(record) = record {
            state.map = record.map;
            known = state.map.lost();
            if record.memory_generation != self.memory_generation {
                state.map.forget_memory();
            }
        }
        // A linked file that is missing is not lost: it may be back.
        for tier in self.own().iter() {
            if state.files[tier.index()].is_none() && state.map.count_in(tier) > 0 {
                tracing::error!(%ino, %tier, "the object's file is missing in this tier");
                let gone: Vec<_> =
                    state.map.iter().filter(|(_, s)| s.valid.contains(tier)).map(|(sau, _)| sau).collect();
                for sau in gone {
                    state.map.note_failed(sau, tier);
                }
            }
        }
        let lost = state.map.lost() - known;
        if lost > 0 {
            self.counters.lost_saus.add(u64::from(lost));
            tracing::warn!(%ino, saus = lost, "bytes that were only in memory are lost: reads of them give EIO");
        }
    }

    /// Tells the core of an object that is about to take its first space: most files that are made and closed, or opened
    /// and closed, never do.
    pub(crate) fn make_known(&self, object: &Object, state: &mut State) {
        if std::mem::replace(&mut state.known, true) {
            return;
        }
        let ino = object.ino();
        let policy = self.policies.lock().get(&ino).copied();
        let mut inputs = vec![attached(ino, state)];
        inputs.extend(policy.map(|policy| Input::Policy { ino, policy }));
        inputs.extend(state.pinned.map(|tier| Input::Pinned { ino, tier }));
        inputs.extend((0..object.opens()).map(|_| Input::Opened { ino }));
        inputs.extend(object.in_passthrough().then_some(Input::PassthroughBegan { ino }));
        let files = state.tiers_with_file();
        self.driver.with(|core, now| {
            inputs.into_iter().for_each(|input| core.handle(now, input));
            core.note_files(ino, files);
        });
    }
}

/// A linked near-line has bytes that can come up, and is charged for none.
pub(crate) fn attached(ino: Ino, state: &State) -> Input {
    let mut bytes = state.charged;
    bytes[TierId::Nearline.index()] += state.linked_bytes();
    Input::Attached { ino, bytes, dirty: dirty_tiers(state) }
}

/// A crash came before what was given up was freed: readers in place would see it in the holes of the map.
fn clear_holes(state: &mut State) -> Result<(), Errno> {
    for tier in TierId::ALL {
        let Some(file) = state.files[tier.index()].clone() else { continue };
        let reached = state.file_len[tier.index()].div_ceil(SAU_BYTES);
        let mapped = state.map.iter().take_while(|(sau, _)| u64::from(sau.get()) < reached).count();
        if !state.recorded || mapped as u64 == reached {
            continue;
        }
        let mut at = 0;
        while let Some(data) = file.seek_data(at)? {
            let sau = SauIndex::of(data);
            if state.map.get(sau).is_hole() {
                keeping_mtime(&file, |file| file.clear(sau.start(), SAU_BYTES))?;
                state.note_change(tier);
            }
            at = sau.end();
        }
    }
    Ok(())
}

/// Where the metadata do not know it, how far the files reach.
fn known_size(state: &State, hint: Option<&ObjectHint>) -> u64 {
    // What was written may be nowhere but in near-line by now.
    let linked = if state.map.count_in(TierId::Nearline) > 0 { state.linked_len } else { 0 };
    let reached = mapped_len(state).max(linked);
    match hint {
        Some(h) if !h.stale_live => h.size,
        // Writes told nobody else; a size that was set is in the metadata.
        Some(h) => reached.max(h.size),
        None => reached,
    }
}

/// How far the files reach where the map names them.
fn mapped_len(state: &State) -> u64 {
    let mut len = 0;
    for (sau, now) in state.map.iter() {
        for tier in now.valid.iter() {
            len = len.max(state.file_len[tier.index()].min(sau.end()));
        }
    }
    len
}

/// The metadata know the size of a settled file: what lies behind it is left from a cut that was not finished.
fn cut_to_size(state: &mut State) -> Result<(), Errno> {
    for tier in TierId::ALL {
        let Some(file) = &state.files[tier.index()] else { continue };
        if state.file_len[tier.index()] > state.size {
            file.truncate(state.size)?;
            state.file_len[tier.index()] = state.size;
            state.note_change(tier);
        }
    }
    // Lost SAUs behind the size stay: they say that the file may have been longer.
    if state.map.lost() == 0 {
        state.map.truncate_to(state.size);
    }
    Ok(())
}

/// Programs were writing through mappings of the fastest copy when the daemon died: the others may be old, and are
/// written over, so that what was safe is safe again. No seal is of the bytes that are there now.
fn absorb_after_crash(state: &mut State) {
    let held: Vec<_> = state.map.iter().filter(|(_, s)| !s.lost).collect();
    for (sau, now) in held {
        let Some(from) = now.valid.fastest() else { continue };
        let len = u64::from(sau.bytes_within(state.size));
        let mut valid = TierSet::of(from);
        for to in now.valid.without(from).iter() {
            let files = (&state.files[from.index()], &state.files[to.index()]);
            let (Some(source), Some(copy)) = files else { continue };
            let end = sau.start() + len;
            match copy_range(source, copy, sau.start(), len, false).and_then(|_| reach(copy, end)) {
                Ok(()) => valid = valid.with(to),
                Err(errno) => {
                    tracing::warn!(tier = %to, %errno, "an old copy was not brought up to date: it is not used")
                }
            }
            state.file_len[to.index()] = state.file_len[to.index()].max(end);
            if to.is_persistent() {
                state.note_change(to);
            }
        }
        let _ = state.map.set(sau, Sau::in_tiers(valid));
    }
    // Programs outlive the daemon, and so do their mappings.
    if state.files.iter().flatten().any(|file| file.is_used_elsewhere().unwrap_or(true)) {
        state.mapped = Some(Mapped::left_over());
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
