//! Writes: over the copy that a SAU has, or into a tier that has room for a new one.
//!
//! Order (I-DS-2): a map that strikes other copies, or gives a hole its first place, is saved before the first byte; a
//! map that moves bytes to a new place is saved after they are in it, and before the answer.

use crate::{
    DataServer,
    copy::{copy_range, reach},
    durable::{changes_vouched, vouches},
    object::{Condemned, Object, State},
};
use layout::{FILE_BYTES_MAX, Piece, Sau, SauIndex, WritePlace, WriteWish, pieces, write_place};
use std::time::{Duration, Instant};
use types::{Errno, TierId, TierSet};

/// Device writes up to this size go to the page cache on the calling thread.
const INLINE_MAX: usize = 128 << 10;

/// Why a piece could not be written yet.
pub(crate) enum Stop {
    Wait {
        tier: TierId,
        for_at_most: Duration,
    },
    /// A copier is at work on the SAU, and its place must change.
    Copier,
    /// Something must become durable first: see `durable.rs`.
    Undurable,
    /// The copy that is to stay is one that a device perhaps did not take.
    Distrusted,
    /// A linked near-line has the SAU: see `lift.rs`.
    Lift(SauIndex),
    WouldWait,
    Failed(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Failed(errno)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Patience {
    pub may_wait: bool,
    pub waited: Duration,
    /// No device is asked for anything, not even for a place in its page cache.
    pub only_memory: bool,
}

impl Patience {
    pub(crate) fn since(begun: Instant) -> Patience {
        Patience { may_wait: true, waited: begun.elapsed(), only_memory: false }
    }
}

/// One piece of a write, and its bytes.
#[derive(Clone, Copy)]
struct Put<'a> {
    piece: Piece,
    bytes: &'a [u8],
    patience: Patience,
}

impl DataServer {
    /// Writes all of `data`. Waits for space as the tiering core says; `ENOSPC` only when no tier has any. Short when an
    /// error comes after a SAU's part of it.
    pub fn write(&self, object: &Object, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        check_range(offset, data.len())?;
        let mut done = 0;
        match self.write_all(object, offset, data, &mut done) {
            Ok(()) => Ok(data.len()),
            Err(errno) => written(done, errno),
        }
    }

    /// `done`: bytes from the beginning that are written, come what may.
    fn write_all(&self, object: &Object, offset: u64, data: &[u8], done: &mut usize) -> Result<(), Errno> {
        let begun = Instant::now();
        let mut relieved = false;
        // A failure here is one of all the objects that wait, and this one's next sync says so.
        let _ = self.bound_waiting();
        loop {
            let patience = Patience::since(begun);
            if self.write_steady(object, offset, data, patience)? {
                return Ok(());
            }
            let mut state = object.state.write();
            let written = self.write_pieces(object, &mut state, (offset, data), patience, done);
            drop(state);
            match written {
                Ok(()) => {
                    start_writeback(object, offset, data.len());
                    return Ok(());
                }
                Err(stop) => self.wait_out(object, stop, &mut relieved)?,
            }
        }
    }

    /// Returns when what stopped a write may be over, or why it is not going to be. The caller holds no lock of the object.
    pub(crate) fn wait_out(&self, object: &Object, stop: Stop, relieved: &mut bool) -> Result<(), Errno> {
        match stop {
            // Objects that wait for a sync keep their files open, and the space of what they gave up.
            Stop::Failed(Errno::EMFILE | Errno::ENOSPC) if !*relieved => {
                *relieved = true;
                self.settle_waiting()
            }
            Stop::Failed(errno) => Err(errno),
            Stop::WouldWait => Err(Errno::EIO),
            Stop::Undurable => self.make_durable(),
            Stop::Distrusted => self.renew_distrusted(object),
            Stop::Copier => {
                drop(object.stop_copier());
                Ok(())
            }
            Stop::Lift(sau) => self.lift(object, sau),
            Stop::Wait { tier, for_at_most } => {
                self.driver.wait_for_room(tier, for_at_most);
                Ok(())
            }
        }
    }

    /// Overwrites that change nothing but bytes: one current copy, no seal, no growth, no copier at work. Takes the
    /// lock shared, so writers of one object run side by side. `false`: not such a write; nothing was done.
    pub(crate) fn write_steady(
        &self,
        object: &Object,
        offset: u64,
        data: &[u8],
        Patience { may_wait, only_memory, .. }: Patience,
    ) -> Result<bool, Errno> {
        let state = if may_wait { Some(object.state.read()) } else { object.state.try_read() };
        let Some(state) = state else { return Ok(false) };
        let len = data.len() as u64;
        let noted = state.is_moving(offset, len) || state.version.is_some();
        if offset + len > state.size || noted || len == 0 || state.unsaved {
            return Ok(false);
        }
        let Some(tier) = state.map.get(layout::SauIndex::of(offset)).valid.fastest() else {
            return Ok(false);
        };
        let only = Sau::in_tiers(TierSet::of(tier));
        if !pieces(offset, len).all(|p| state.map.get(p.sau) == only) {
            return Ok(false);
        }
        let small = data.len() <= INLINE_MAX && tier == TierId::Ssd && !only_memory;
        let ready = match tier {
            TierId::Memory => !(state.sync_mode && self.has_persistent()) || state.in_place.is_some(),
            TierId::Ssd | TierId::Nearline => {
                state.is_unsynced(tier) && self.may_change(&state, tier) && (may_wait || small)
            }
        };
        if !ready || offset + len > state.file_len[tier.index()] {
            return Ok(false);
        }
        let Some(file) = &state.files[tier.index()] else { return Err(Errno::EIO) };
        match file.write_at(data, offset) {
            Ok(()) => {}
            // The long way round moves the SAU to where there is room.
            Err(Errno::ENOSPC) => return Ok(false),
            Err(errno) => {
                state.note_change(tier);
                self.note_unsynced(object);
                return Err(errno);
            }
        }
        if state.note_change(tier) {
            self.note_unsynced(object);
        }
        // Before a copier can take the time of the last write for that of its copy.
        object.note_written(|| self.now());
        drop(state);
        self.notice_dirty(object, tier);
        Ok(true)
    }

    pub(crate) fn write_pieces(
        &self,
        object: &Object,
        state: &mut State,
        (offset, data): (u64, &[u8]),
        patience: Patience,
        done: &mut usize,
    ) -> Result<(), Stop> {
        self.make_known(object, state);
        self.save_unsaved(object, state)?;
        if offset > state.size {
            self.take_new_holes_in(object, state, offset)?;
        }
        for piece in pieces(offset, data.len() as u64) {
            let at = (piece.offset - offset) as usize;
            let bytes = &data[at..at + piece.len as usize];
            if let Err(stop) = self.write_piece(object, state, piece, bytes, patience) {
                if let Stop::Failed(_) = stop {
                    self.clean_up(object, state, piece);
                }
                return Err(stop);
            }
            *done = (*done).max(at + bytes.len());
            object.note_written(|| self.now());
        }
        Ok(())
    }

    /// A write failed, perhaps after some of its bytes: none may lie behind the end of the object (I-DS-3), nor where nobody
    /// knows of them. What is within counts as written, in part.
    fn clean_up(&self, object: &Object, state: &mut State, piece: Piece) {
        state.note_for_copier(piece.offset, u64::from(piece.len));
        for tier in state.tiers_with_file().iter() {
            let Some(file) = state.files[tier.index()].clone() else { continue };
            let at = tier.index();
            let len = file.stat().map_or(piece.end(), |stat| stat.size);
            state.file_len[at] = state.file_len[at].max(len);
            // Nor is it durable, or what a checksum that is being computed is of.
            if tier.is_persistent() && state.map.get(piece.sau).valid.contains(tier) {
                state.note_change(tier);
                self.note_unsynced(object);
            }
            let from = state.size.max(piece.offset);
            if from >= piece.end().min(len) || self.still_vouched(state, tier, piece.sau) {
                continue;
            }
            if let Err(errno) = file.clear(from, piece.end() - from) {
                tracing::warn!(ino = %object.ino(), %tier, %errno, "the part of a write that failed is in the file still");
            }
            if tier.is_persistent() {
                state.note_change(tier);
                self.note_unsynced(object);
            }
        }
    }

    fn write_piece(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        bytes: &[u8],
        patience: Patience,
    ) -> Result<(), Stop> {
        if state.in_place == Some(TierId::Memory) && state.map.get(piece.sau).is_hole() {
            self.keep_promise(object, state, piece, patience)?;
        }
        let sau = state.map.get(piece.sau);
        let whole = piece.covers_all(state.size.max(piece.end()));
        if self.must_lift(state, piece.sau) && !(whole && self.ours(sau.valid).is_empty()) {
            return Err(Stop::Lift(piece.sau));
        }
        let used = state.used_space();
        let wish = WriteWish {
            room: TierSet::EMPTY,
            present: self.own(),
            sync: state.sync_mode && state.in_place.is_none() && self.has_persistent(),
            whole,
        };
        let tier = match write_place(sau, wish) {
            // What a persistent tier holds, perhaps since an fsync, must not come to depend on memory again.
            WritePlace::Over(TierId::Memory)
                if state.in_place.is_none() && (wish.sync || self.is_safe(sau)) =>
            {
                self.leave_memory(object, state, piece, patience)?
            }
            WritePlace::Over(tier)
                if state.in_place == Some(tier) && !tier.is_persistent() && self.is_safe(sau) =>
            {
                self.write_through(object, state, piece, bytes, patience)?;
                tier
            }
            WritePlace::Over(tier) => self.write_over(object, state, piece, tier, patience)?,
            WritePlace::Full => self.write_fresh(object, state, piece, patience)?,
            WritePlace::Lost | WritePlace::Absent => return Err(Stop::Failed(Errno::EIO)),
            // Only with room, and none was offered.
            WritePlace::Fresh(_) | WritePlace::Move { .. } => return Err(Stop::Failed(Errno::EIO)),
        };
        let tier = match self.put_bytes(object, state, tier, Put { piece, bytes, patience }) {
            // A worker comes with the same bytes: what was asked for them is theirs.
            Err(Stop::WouldWait) => {
                state.credit[tier.index()] = state.charged[tier.index()].saturating_sub(used[tier.index()]);
                return Err(Stop::WouldWait);
            }
            other => other?,
        };
        let now = state.map.get(piece.sau);
        if !now.valid.contains(tier) {
            if self.linked.is_some() && now.valid.contains(TierId::Nearline) && tier.is_persistent() {
                self.rely_on_overwrite(object, state, tier, patience)?;
            }
            state.map.note_replaced(piece.sau, tier);
            self.save_map(object, state)?;
        }
        if tier.is_persistent() {
            state.note_change(tier);
            self.note_unsynced(object);
        }
        let end = piece.end();
        state.file_len[tier.index()] = state.file_len[tier.index()].max(end);
        state.grow(end);
        state.note_for_copier(piece.offset, u64::from(piece.len));
        self.notice_dirty(object, tier);
        Ok(())
    }

    /// Does a persistent tier of ours hold the SAU?
    fn is_safe(&self, sau: Sau) -> bool {
        !self.ours(sau.valid).intersect(TierSet::PERSISTENT).is_empty()
    }

    /// All of a SAU that a linked near-line had was written over: the record without near-line's is to come with the bytes.
    fn rely_on_overwrite(
        &self,
        object: &Object,
        state: &State,
        tier: TierId,
        patience: Patience,
    ) -> Result<(), Stop> {
        if !patience.may_wait {
            return Err(Stop::WouldWait);
        }
        let file = state.files[tier.index()].as_ref().ok_or(Errno::EIO)?;
        Ok(self.sync_to_rely_on(object, file)?)
    }

    /// Into a SAU that nothing of is kept: finds a tier, and records it.
    fn write_fresh(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        patience: Patience,
    ) -> Result<TierId, Stop> {
        let used = state.used_space();
        let tier = self.place_fresh(object, state, piece, patience)?;
        // The record before the first byte: should the tier be lost, the loss is known. The file before the record, or a
        // crash between them would look like a loss.
        if state.map.get(piece.sau).is_hole() {
            if let Err(stop) = self.begin_file(object, state, piece, tier, patience) {
                state.credit[tier.index()] = state.charged[tier.index()].saturating_sub(used[tier.index()]);
                return Err(stop);
            }
            state.map.note_written(piece.sau, tier).map_err(|_| Errno::EIO)?;
            self.save_map(object, state)?;
        }
        Ok(tier)
    }

    /// The object's file in a tier, for its first SAU there. Zeros that an fsync promised would be lost if the record came to
    /// be durable and the file not.
    pub(crate) fn begin_file(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        tier: TierId,
        patience: Patience,
    ) -> Result<(), Stop> {
        let file = self.file_for_write(object, state, tier)?;
        let promised = tier.is_persistent() && piece.sau.start() < state.synced_size;
        if !promised || state.map.count_in(tier) > 0 {
            return Ok(());
        }
        if !patience.may_wait {
            return Err(Stop::WouldWait);
        }
        Ok(self.sync_file(object, &file)?)
    }

    /// Writes into the tier's file; a device that is full makes the SAU move to a tier that has room. Returns the tier
    /// where the bytes are.
    fn put_bytes(
        &self,
        object: &Object,
        state: &mut State,
        tier: TierId,
        put: Put<'_>,
    ) -> Result<TierId, Stop> {
        let Put { piece, bytes, patience } = put;
        let long = bytes.len() > INLINE_MAX || piece.end() == piece.sau.end();
        let held_up = patience.only_memory || tier != TierId::Ssd || long;
        if !patience.may_wait && tier.is_persistent() && held_up {
            return Err(Stop::WouldWait);
        }
        let file = self.file_for_write(object, state, tier)?;
        match file.write_at(bytes, piece.offset) {
            Ok(()) => Ok(tier),
            Err(Errno::ENOSPC) => {
                // What is written below a file's length was not asked for, be it this one's or another's.
                self.settle_charge(object, state, tier);
                self.refresh_limit(tier);
                if !patience.may_wait {
                    return Err(Stop::WouldWait);
                }
                if state.in_place.is_some() {
                    return Err(Stop::Failed(Errno::ENOSPC));
                }
                let need = u64::from(piece.len);
                let mut to = self.place_elsewhere(object, state, piece, (tier, need), patience)?;
                if to == TierId::Memory {
                    self.settle_charge(object, state, to);
                    to = self.place_safe(object, state, piece, need, patience)?;
                }
                if to == tier {
                    return Err(Stop::Failed(Errno::ENOSPC));
                }
                if state.map.get(piece.sau).valid.contains(tier) {
                    self.relocate(object, state, piece, tier, to)?;
                }
                let file = self.file_for_write(object, state, to)?;
                file.write_at(bytes, piece.offset)?;
                Ok(to)
            }
            Err(errno) => Err(Stop::Failed(errno)),
        }
    }

    /// Over the copy that a tier has. Returns where the SAU is now, should the tier have no room for its growth.
    fn write_over(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        tier: TierId,
        patience: Patience,
    ) -> Result<TierId, Stop> {
        let before = state.map.get(piece.sau);
        if before.valid != TierSet::of(tier) && object.unsynced.distrusted().contains(tier) {
            return Err(Stop::Distrusted);
        }
        if before != Sau::in_tiers(TierSet::of(tier)) {
            self.strike_others(object, state, piece, tier)?;
        }
        let behind_seal = before.seal.is_some() && !changes_vouched(before, piece, tier);
        if !behind_seal && !self.may_change(state, tier) {
            return Err(Stop::Undurable);
        }
        self.admit_growth(object, state, tier, piece, patience)
    }

    /// The other copies become old with this write: out of the map, and saved, before the first byte.
    fn strike_others(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        tier: TierId,
    ) -> Result<(), Stop> {
        let before = state.map.get(piece.sau);
        self.let_stand_alone(object, state, before, tier)?;
        state.map.note_written(piece.sau, tier).map_err(|_| Errno::EIO)?;
        let saved = self.save_map(object, state)?;
        if vouches(before, tier) {
            state.struck = saved;
        }
        object.verified.lock().remove(piece.sau);
        for other in before.valid.without(tier).iter() {
            self.give_up(object, state, other, piece.sau, saved);
        }
        Ok(())
    }

    /// A SAU that is in memory goes on in a persistent tier: it has a copy there, or the object is in sync mode, where
    /// the next fsync is to be only a flush.
    fn leave_memory(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        patience: Patience,
    ) -> Result<TierId, Stop> {
        let held = state.map.get(piece.sau).valid.intersect(TierSet::PERSISTENT).intersect(self.own());
        // Over a slow copy each write would wait for the slow device; where there is a faster one the SAU moves there.
        if let Some(tier) = held.fastest().filter(|t| Some(*t) == self.first_persistent()) {
            return self.write_over(object, state, piece, tier, patience);
        }
        let bytes = u64::from(piece.sau.bytes_within(state.size));
        let to = match self.place_safe(object, state, piece, bytes, patience) {
            Ok(to) => to,
            Err(Stop::Failed(Errno::ENOSPC)) if !held.is_empty() => {
                // No room but in memory: over the slow copy, then.
                let slow = held.fastest().unwrap_or(TierId::Nearline);
                return self.write_over(object, state, piece, slow, patience);
            }
            Err(Stop::Failed(Errno::ENOSPC)) => {
                return self.admit_growth(object, state, TierId::Memory, piece, patience);
            }
            Err(stop) => return Err(stop),
        };
        if held.contains(to) {
            // What was asked for is there.
            self.settle_charge(object, state, to);
            return self.write_over(object, state, piece, to, patience);
        }
        if !patience.may_wait {
            return Err(Stop::WouldWait);
        }
        self.relocate(object, state, piece, TierId::Memory, to)?;
        Ok(to)
    }

    /// Moves one SAU while writers are held off.
    pub(crate) fn relocate(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        from: TierId,
        to: TierId,
    ) -> Result<(), Stop> {
        if state.in_place.is_some() {
            return Err(Stop::Failed(Errno::ENOSPC));
        }
        if object.unsynced.distrusted().contains(to) {
            return Err(Stop::Distrusted);
        }
        self.clear_stale(object, state, piece, to)?;
        let source = state.files[from.index()].clone().ok_or(Stop::Failed(Errno::EIO))?;
        let dest = self.file_for_write(object, state, to)?;
        let end = piece.sau.end().min(state.file_len[from.index()]);
        if end > piece.sau.start() {
            copy_range(&source, &dest, piece.sau.start(), end - piece.sau.start(), false)?;
            reach(&dest, end)?;
            state.file_len[to.index()] = state.file_len[to.index()].max(end);
        }
        let before = state.map.get(piece.sau).valid;
        // Another device copy may end for this one. And nothing else would tell, after a power cut, that the record came and
        // the bytes did not.
        if to.is_persistent() {
            self.sync_to_rely_on(object, &dest)?;
        }
        state.map.note_replaced(piece.sau, to);
        if to.is_persistent() {
            state.note_change(to);
            self.note_unsynced(object);
        }
        let saved = self.save_map(object, state)?;
        for other in before.without(to).iter() {
            self.give_up(object, state, other, piece.sau, saved);
        }
        Ok(())
    }

    /// A tier's copy of a SAU is out of the saved map: its space may be freed, on a device once the map is durable.
    pub(crate) fn give_up(
        &self,
        object: &Object,
        state: &mut State,
        tier: TierId,
        sau: layout::SauIndex,
        saved: u64,
    ) {
        if self.ours(TierSet::of(tier)).is_empty() {
            return;
        }
        state.condemned.push(Condemned { tier, sau, after: saved });
        self.note_condemned(object);
    }
}

/// A SAU that was written to its end is most likely complete: a device may begin with it while the next one comes, so
/// that who streams to a device does not wait for all of it at the end.
fn start_writeback(object: &Object, offset: u64, len: usize) {
    for piece in pieces(offset, len as u64).filter(|p| p.end() == p.sau.end()) {
        let file = {
            let state = object.state.read();
            state.map.get(piece.sau).valid.fastest().and_then(|tier| state.files[tier.index()].clone())
        };
        if let Some(file) = file {
            file.start_writeback(piece.sau.start(), types::SAU_BYTES);
        }
    }
}

/// What a write that failed half-way answers.
pub(crate) fn written(done: usize, errno: Errno) -> Result<usize, Errno> {
    if done > 0 { Ok(done) } else { Err(errno) }
}

pub(crate) fn check_range(offset: u64, len: usize) -> Result<(), Errno> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(()),
        Some(_) | None => Err(Errno::EFBIG),
    }
}
