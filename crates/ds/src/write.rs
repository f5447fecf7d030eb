//! Writes: over the copy that a SAU has, or into a tier that has room for a new one.
//!
//! Order (I-DS-2): a map that strikes other copies, or gives a hole its first place, is saved before the first byte; a
//! map that moves bytes to a new place is saved after they are in it, and before the answer.

use crate::{
    Attempt, DataServer,
    copy::copy_range,
    object::{Condemned, Object, State},
};
use layout::{FILE_BYTES_MAX, Piece, Sau, WritePlace, WriteWish, pieces, write_place};
use std::time::{Duration, Instant};
use tier::{Admit, Need, Placement};
use types::{Errno, TierId, TierSet};

const PAGE: u64 = 4096;
/// Space asked for ahead of a growing object, at the most.
const AHEAD_MAX: u64 = 4 << 20;
/// Device writes up to this size go to the page cache on the calling thread.
const INLINE_MAX: usize = 128 << 10;

/// Why a piece could not be written yet.
enum Stop {
    Wait {
        tier: TierId,
        for_at_most: Duration,
    },
    /// A copier is at work on the SAU, and its place must change.
    Copier,
    WouldWait,
    Failed(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Failed(errno)
    }
}

#[derive(Clone, Copy)]
struct Patience {
    may_wait: bool,
    waited: Duration,
}

/// One piece of a write, and its bytes.
#[derive(Clone, Copy)]
struct Put<'a> {
    piece: Piece,
    bytes: &'a [u8],
    patience: Patience,
}

impl DataServer {
    /// Writes as [`DataServer::write`] does if that needs no waiting. After `WouldWait` some of the bytes may be
    /// written already; the waiting call writes them again.
    pub fn try_write(&self, object: &Object, offset: u64, data: &[u8]) -> Result<Attempt<usize>, Errno> {
        check_range(offset, data.len())?;
        self.touch(object, offset);
        if self.write_steady(object, offset, data, false)? {
            return Ok(Attempt::Done(data.len()));
        }
        let Some(mut state) = object.state.try_write() else { return Ok(Attempt::WouldWait) };
        let patience = Patience { may_wait: false, waited: Duration::ZERO };
        match self.write_pieces(object, &mut state, offset, data, patience) {
            Ok(()) => Ok(Attempt::Done(data.len())),
            Err(Stop::Failed(errno)) => Err(errno),
            Err(Stop::WouldWait | Stop::Copier | Stop::Wait { .. }) => Ok(Attempt::WouldWait),
        }
    }

    /// Writes all of `data`. Waits for space as the tiering core says; `ENOSPC` only when no tier has any.
    pub fn write(&self, object: &Object, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        check_range(offset, data.len())?;
        let begun = Instant::now();
        loop {
            if self.write_steady(object, offset, data, true)? {
                return Ok(data.len());
            }
            let mut state = object.state.write();
            let patience = Patience { may_wait: true, waited: begun.elapsed() };
            match self.write_pieces(object, &mut state, offset, data, patience) {
                Ok(()) => return Ok(data.len()),
                Err(Stop::Failed(errno)) => return Err(errno),
                Err(Stop::WouldWait) => return Err(Errno::EIO),
                Err(Stop::Copier) => {
                    drop(state);
                    drop(object.stop_copier());
                }
                Err(Stop::Wait { tier, for_at_most }) => {
                    drop(state);
                    self.driver.wait_for_room(tier, for_at_most);
                }
            }
        }
    }

    /// Overwrites that change nothing but bytes: one current copy, no seal, no growth, no copier at work. Takes the
    /// lock shared, so writers of one object run side by side. `false`: not such a write; nothing was done.
    fn write_steady(&self, object: &Object, offset: u64, data: &[u8], may_wait: bool) -> Result<bool, Errno> {
        let state = if may_wait { Some(object.state.read()) } else { object.state.try_read() };
        let Some(state) = state else { return Ok(false) };
        let len = data.len() as u64;
        if offset + len > state.size || state.is_moving(offset, len) || len == 0 {
            return Ok(false);
        }
        let Some(tier) = state.map.get(layout::SauIndex::of(offset)).valid.fastest() else {
            return Ok(false);
        };
        let only = Sau::in_tiers(TierSet::of(tier));
        if !pieces(offset, len).all(|p| state.map.get(p.sau) == only) {
            return Ok(false);
        }
        let small = data.len() <= INLINE_MAX && tier == TierId::Ssd;
        let ready = match tier {
            TierId::Memory => !(state.sync_mode && self.has_persistent()) || state.in_place.is_some(),
            TierId::Ssd | TierId::Nearline => state.unsynced.contains(tier) && (may_wait || small),
        };
        if !ready || offset + len > state.file_len[tier.index()] {
            return Ok(false);
        }
        let Some(file) = &state.files[tier.index()] else { return Err(Errno::EIO) };
        match file.write_at(data, offset) {
            Ok(()) => {}
            // The long way round moves the SAU to where there is room.
            Err(Errno::ENOSPC) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        drop(state);
        object.set_mtime(Some(self.now()));
        self.notice_dirty(object, tier);
        Ok(true)
    }

    fn write_pieces(
        &self,
        object: &Object,
        state: &mut State,
        offset: u64,
        data: &[u8],
        patience: Patience,
    ) -> Result<(), Stop> {
        for piece in pieces(offset, data.len() as u64) {
            let at = (piece.offset - offset) as usize;
            let bytes = &data[at..at + piece.len as usize];
            self.write_piece(object, state, piece, bytes, patience)?;
        }
        object.set_mtime(Some(self.now()));
        Ok(())
    }

    fn write_piece(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        bytes: &[u8],
        patience: Patience,
    ) -> Result<(), Stop> {
        let sau = state.map.get(piece.sau);
        let wish = WriteWish {
            room: TierSet::EMPTY,
            present: self.present(),
            sync: state.sync_mode && state.in_place.is_none() && self.has_persistent(),
            whole: piece.covers_all(state.size.max(piece.end())),
        };
        let tier = match write_place(sau, wish) {
            // What a persistent tier holds, perhaps since an fsync, must not come to depend on memory again.
            WritePlace::Over(TierId::Memory) if state.in_place.is_none() && (wish.sync || is_safe(sau)) => {
                self.leave_memory(object, state, piece, patience)?
            }
            WritePlace::Over(tier)
                if state.in_place == Some(tier) && !tier.is_persistent() && is_safe(sau) =>
            {
                self.write_through(object, state, piece, bytes, patience)?;
                tier
            }
            WritePlace::Over(tier) => {
                let tier = self.admit_growth(object, state, tier, piece, patience)?;
                if state.map.get(piece.sau) != Sau::in_tiers(TierSet::of(tier)) {
                    self.strike_others(object, state, piece, tier)?;
                }
                tier
            }
            WritePlace::Full => {
                let tier = self.place_fresh(object, state, piece, patience)?;
                // The record before the first byte: should the tier be lost, the loss is known. The file before the record,
                // or a crash between them would look like a loss.
                if sau.is_hole() {
                    self.file_for_write(object, state, tier)?;
                    state.map.note_written(piece.sau, tier).map_err(|_| Errno::EIO)?;
                    self.save_map(object, state)?;
                }
                tier
            }
            WritePlace::Lost | WritePlace::Absent => return Err(Stop::Failed(Errno::EIO)),
            // Only with room, and none was offered.
            WritePlace::Fresh(_) | WritePlace::Move { .. } => return Err(Stop::Failed(Errno::EIO)),
        };
        let tier = self.put_bytes(object, state, tier, Put { piece, bytes, patience })?;
        let now = state.map.get(piece.sau);
        if !now.valid.contains(tier) {
            state.map.note_replaced(piece.sau, tier);
            self.save_map(object, state)?;
        }
        if tier.is_persistent() {
            state.unsynced = state.unsynced.with(tier);
            self.note_unsynced(object);
        }
        let end = piece.end();
        state.file_len[tier.index()] = state.file_len[tier.index()].max(end);
        state.size = state.size.max(end);
        state.note_for_copier(piece.offset, u64::from(piece.len));
        self.notice_dirty(object, tier);
        Ok(())
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
        if !patience.may_wait && tier.is_persistent() && (tier != TierId::Ssd || bytes.len() > INLINE_MAX) {
            return Err(Stop::WouldWait);
        }
        let file = self.file_for_write(object, state, tier)?;
        match file.write_at(bytes, piece.offset) {
            Ok(()) => Ok(tier),
            Err(Errno::ENOSPC) => {
                self.refresh_limit(tier);
                if !patience.may_wait {
                    return Err(Stop::WouldWait);
                }
                if state.in_place.is_some() {
                    return Err(Stop::Failed(Errno::ENOSPC));
                }
                let to = self.place(object, state, piece, u64::from(piece.len), patience)?;
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

    /// A hole, or lost bytes that are wholly replaced: finds a tier and clears what an earlier life of the SAU left
    /// in its file.
    fn place_fresh(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        patience: Patience,
    ) -> Result<TierId, Stop> {
        let need = round_up(u64::from(piece.len));
        if let Some(tier) = state.in_place {
            return self.place_in(object, state, piece, tier, patience);
        }
        let tier = if state.credit[TierId::Memory.index()] >= need
            && !state.sync_mode
            && self.present().contains(TierId::Memory)
        {
            state.credit[TierId::Memory.index()] -= need;
            TierId::Memory
        } else {
            self.place(object, state, piece, need, patience)?
        };
        if !patience.may_wait && tier == TierId::Nearline {
            return Err(Stop::WouldWait);
        }
        self.clear_stale(object, state, piece, tier)?;
        Ok(tier)
    }

    /// The kernel reads the object's file in this tier, so a new SAU must be there too. The one write that can meet
    /// ENOSPC while other tiers have room.
    fn place_in(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        tier: TierId,
        patience: Patience,
    ) -> Result<TierId, Stop> {
        let bytes = round_up(u64::from(piece.len));
        if state.credit[tier.index()] >= bytes {
            state.credit[tier.index()] -= bytes;
        } else {
            let need = Need { ino: object.ino, bytes, sync: false, waited: patience.waited };
            match self.driver.admit(tier, need) {
                Admit::Yes => state.charged[tier.index()] += bytes,
                Admit::Wait { for_at_most } => return Err(Stop::Wait { tier, for_at_most }),
                Admit::Full if !patience.may_wait => return Err(Stop::WouldWait),
                Admit::Full => {
                    tracing::warn!(ino = %object.ino, %tier, "no room in the tier where readers have this file open in place");
                    return Err(Stop::Failed(Errno::ENOSPC));
                }
            }
        }
        self.clear_stale(object, state, piece, tier)?;
        Ok(tier)
    }

    fn clear_stale(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        tier: TierId,
    ) -> Result<(), Stop> {
        if state.is_moving(piece.sau.start(), types::SAU_BYTES) {
            return Err(Stop::Copier);
        }
        state.condemned.retain(|c| !(c.tier == tier && c.sau == piece.sau));
        object.verified.lock().remove(piece.sau);
        if piece.sau.start() < state.file_len[tier.index()] {
            let file = self.file_for_write(object, state, tier)?;
            file.clear(piece.sau.start(), types::SAU_BYTES)?;
        }
        Ok(())
    }

    /// Asks the core for a tier, for `need` bytes and some more if the object is growing.
    fn place(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        need: u64,
        patience: Patience,
    ) -> Result<TierId, Stop> {
        let ahead = if piece.offset > 0 { state.size.next_multiple_of(PAGE).min(AHEAD_MAX) } else { 0 };
        let sync = state.sync_mode && self.has_persistent();
        for extra in [ahead, 0] {
            let need = Need { ino: object.ino, bytes: need + extra, sync, waited: patience.waited };
            match self.driver.place(need) {
                Placement::Tier(tier) => {
                    state.charged[tier.index()] += need.bytes;
                    state.credit[tier.index()] += extra;
                    return Ok(tier);
                }
                Placement::Wait { tier, for_at_most } if extra == 0 => {
                    return Err(Stop::Wait { tier, for_at_most });
                }
                Placement::NoSpace if extra == 0 => return Err(Stop::Failed(Errno::ENOSPC)),
                Placement::Wait { .. } | Placement::NoSpace => {}
            }
        }
        Err(Stop::Failed(Errno::ENOSPC))
    }

    /// A place in a persistent tier if one has room.
    fn place_safe(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        bytes: u64,
        patience: Patience,
    ) -> Result<TierId, Stop> {
        let sync_mode = std::mem::replace(&mut state.sync_mode, true);
        let placed = self.place(object, state, piece, bytes, patience);
        state.sync_mode = sync_mode;
        placed
    }

    /// Growth of a SAU that lives in `tier`. If the tier cannot take it, the SAU moves on. Returns where it is now.
    fn admit_growth(
        &self,
        object: &Object,
        state: &mut State,
        tier: TierId,
        piece: Piece,
        patience: Patience,
    ) -> Result<TierId, Stop> {
        let len = state.file_len[tier.index()];
        let end = round_up(piece.end());
        let from = round_up(len.max(piece.offset / PAGE * PAGE));
        let need = end.saturating_sub(from);
        let credit = &mut state.credit[tier.index()];
        if need <= *credit {
            *credit -= need;
            return Ok(tier);
        }
        let ahead = state.size.next_multiple_of(PAGE).min(AHEAD_MAX);
        for extra in [ahead, 0] {
            match self.driver.admit(
                tier,
                Need { ino: object.ino, bytes: need + extra, sync: false, waited: patience.waited },
            ) {
                Admit::Yes => {
                    state.charged[tier.index()] += need + extra;
                    state.credit[tier.index()] += extra;
                    return Ok(tier);
                }
                Admit::Wait { for_at_most } if extra == 0 => {
                    return Err(Stop::Wait { tier, for_at_most });
                }
                Admit::Wait { .. } | Admit::Full => {}
            }
        }
        if !patience.may_wait {
            return Err(Stop::WouldWait);
        }
        if state.in_place.is_some() {
            return Err(Stop::Failed(Errno::ENOSPC));
        }
        let to = self.place(object, state, piece, need, patience)?;
        if to != tier {
            self.relocate(object, state, piece, tier, to)?;
        }
        Ok(to)
    }

    /// The other copies become old with this write: out of the map, and saved, before the first byte.
    fn strike_others(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        tier: TierId,
    ) -> Result<(), Errno> {
        let before = state.map.get(piece.sau).valid;
        state.map.note_written(piece.sau, tier).map_err(|_| Errno::EIO)?;
        let saved = self.save_map(object, state)?;
        object.verified.lock().remove(piece.sau);
        for other in before.without(tier).iter() {
            self.give_up(object, state, other, piece.sau, saved);
        }
        Ok(())
    }

    /// Readers have the object's file in memory open in place, and a persistent tier holds the SAU too: the bytes go
    /// to both, first to the one that nobody reads, so that nothing safe comes to depend on memory.
    fn write_through(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        bytes: &[u8],
        patience: Patience,
    ) -> Result<(), Stop> {
        if !patience.may_wait {
            return Err(Stop::WouldWait);
        }
        let before = state.map.get(piece.sau);
        if before.seal.is_some() {
            if state.is_moving(piece.sau.start(), types::SAU_BYTES) {
                return Err(Stop::Copier);
            }
            let _ = state.map.set(piece.sau, Sau::in_tiers(before.valid));
            self.save_map(object, state)?;
        }
        for tier in before.valid.iter() {
            self.admit_growth(object, state, tier, piece, patience)?;
            if tier.is_persistent() {
                let file = self.file_for_write(object, state, tier)?;
                file.write_at(bytes, piece.offset)?;
                state.file_len[tier.index()] = state.file_len[tier.index()].max(piece.end());
                state.unsynced = state.unsynced.with(tier);
                self.note_unsynced(object);
            }
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
        let held = state.map.get(piece.sau).valid.intersect(TierSet::PERSISTENT).intersect(self.present());
        // Over a slow copy each write would wait for the slow device; where there is a faster one the SAU moves there.
        if let Some(tier) = held.fastest().filter(|t| Some(*t) == self.first_persistent()) {
            let tier = self.admit_growth(object, state, tier, piece, patience)?;
            self.strike_others(object, state, piece, tier)?;
            return Ok(tier);
        }
        let bytes = u64::from(piece.sau.bytes_within(state.size));
        let to = match self.place_safe(object, state, piece, bytes, patience) {
            Ok(to) => to,
            Err(Stop::Failed(Errno::ENOSPC)) => TierId::Memory,
            Err(stop) => return Err(stop),
        };
        if to == TierId::Memory && !held.is_empty() {
            // No room but in memory: over the slow copy, then.
            let slow = held.fastest().unwrap_or(TierId::Nearline);
            self.strike_others(object, state, piece, slow)?;
            return Ok(slow);
        }
        if to == TierId::Memory {
            return self.admit_growth(object, state, to, piece, patience);
        }
        if !patience.may_wait {
            return Err(Stop::WouldWait);
        }
        self.relocate(object, state, piece, TierId::Memory, to)?;
        Ok(to)
    }

    /// Moves one SAU while writers are held off.
    fn relocate(
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
        self.clear_stale(object, state, piece, to)?;
        let source = state.files[from.index()].clone().ok_or(Stop::Failed(Errno::EIO))?;
        let dest = self.file_for_write(object, state, to)?;
        let end = piece.sau.end().min(state.file_len[from.index()]);
        if end > piece.sau.start() {
            copy_range(&source, &dest, piece.sau.start(), end - piece.sau.start(), false)?;
            state.file_len[to.index()] = state.file_len[to.index()].max(end);
        }
        let before = state.map.get(piece.sau).valid;
        state.map.note_replaced(piece.sau, to);
        if to.is_persistent() {
            state.unsynced = state.unsynced.with(to);
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
        state.condemned.push(Condemned { tier, sau, after: saved });
        self.note_condemned(object);
    }
}

/// Does a persistent tier hold the SAU?
fn is_safe(sau: Sau) -> bool {
    !sau.valid.intersect(TierSet::PERSISTENT).is_empty()
}

fn check_range(offset: u64, len: usize) -> Result<(), Errno> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(()),
        Some(_) | None => Err(Errno::EFBIG),
    }
}

fn round_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE)
}
