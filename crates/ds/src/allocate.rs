//! fallocate and SEEK_DATA / SEEK_HOLE.

use crate::{
    DataServer,
    beside::in_place_and_safe,
    durable::vouches,
    object::{Object, State},
};
use layout::{FILE_BYTES_MAX, Sau, SauIndex, pieces};
use types::{Errno, SAU_BYTES, TierId, TierSet};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateMode {
    /// Promise space.
    Reserve,
    /// Free the space; the bytes read as zeros. The metadata have the size already: a hole at the end does not tell. Without space for what lies between, a range of zeros is the same.
    Zero,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    Data,
    Hole,
}

impl DataServer {
    /// Within the size: who grows a file calls [`DataServer::grow`], and records the size first.
    pub fn allocate(&self, object: &Object, mode: AllocateMode, offset: u64, len: u64) -> Result<(), Errno> {
        offset.checked_add(len).filter(|e| *e <= FILE_BYTES_MAX).ok_or(Errno::EFBIG)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        match mode {
            // Space is promised by no tier for longer than until the file moves; what can be promised is
            // that the tiers together have it now.
            AllocateMode::Reserve => self.check_room(object, offset, len),
            AllocateMode::Zero => self.zero(object, offset, len),
        }
    }

    fn check_room(&self, object: &Object, offset: u64, len: u64) -> Result<(), Errno> {
        let held: u64 = {
            let state = object.state.read();
            pieces(offset, len).filter(|p| !state.map.get(p.sau).is_hole()).map(|p| u64::from(p.len)).sum()
        };
        let room: i64 = self
            .driver
            .with(|core, _| self.own().iter().filter_map(|t| core.tier(t)).map(|t| t.available.max(0)).sum());
        if (len - held) as i64 > room { Err(Errno::ENOSPC) } else { Ok(()) }
    }

    /// Makes the range read as zeros, without changing the size.
    fn zero(&self, object: &Object, offset: u64, len: u64) -> Result<(), Errno> {
        loop {
            self.renew_distrusted(object)?;
            let mut state = object.state.write();
            if state.moving.is_some() {
                drop(state);
                drop(object.stop_copier());
                continue;
            }
            let end = (offset + len).min(state.size);
            if offset >= end {
                return Ok(());
            }
            let in_part = |p: &layout::Piece| !p.covers_all(state.size) || state.in_place.is_some();
            let linked = pieces(offset, end - offset).filter(in_part).find(|p| self.must_lift(&state, p.sau));
            if let Some(piece) = linked {
                drop(state);
                self.lift(object, piece.sau)?;
                continue;
            }
            self.save_unsaved(object, &mut state)?;
            // What was not saved of the map is undone.
            let zeroed = self.zero_pieces(object, &mut state, offset, end - offset);
            if zeroed.inspect_err(|_| state.map.roll_back())? {
                return Ok(());
            }
            drop(state);
            self.make_durable()?;
        }
    }

    /// `false`: something must become durable first, then again.
    fn zero_pieces(&self, object: &Object, state: &mut State, offset: u64, len: u64) -> Result<bool, Errno> {
        // First the map, saved: whole SAUs become holes, parts lose their seal and all copies but one.
        let mut kept = Vec::new();
        let mut freed = Vec::new();
        let (mut changed, mut struck) = (false, false);
        for piece in pieces(offset, len) {
            let now = state.map.get(piece.sau);
            if now.is_hole() {
                continue;
            }
            // Where the kernel reads the file by itself the zeros must be in the file.
            if piece.covers_all(state.size) && state.in_place.is_none() {
                // What was left behind in other tiers' files would show in the hole.
                freed.extend(state.reaching(piece.sau).iter().map(|tier| (tier, piece.sau)));
                state.map.note_punched(piece.sau);
                changed = true;
            } else if now.lost {
                return Err(Errno::EIO);
            } else {
                let keep = self.copies_to_zero(state, now).ok_or(Errno::EIO)?;
                if let Some(alone) = keep.fastest().filter(|_| keep.iter().count() == 1) {
                    self.let_stand_alone(object, state, now, alone)?;
                }
                struck |= keep.iter().any(|tier| vouches(now, tier));
                changed |= now != Sau::in_tiers(keep);
                let _ = state.map.set(piece.sau, Sau::in_tiers(keep));
                freed.extend(now.valid.iter().filter(|t| !keep.contains(*t)).map(|t| (t, piece.sau)));
                kept.extend(keep.iter().map(|tier| (tier, piece)));
            }
            object.verified.lock().remove(piece.sau);
        }
        state.note_for_version(offset, len);
        self.record_zeroed(object, state, (changed, struck), freed)?;
        if kept.iter().any(|(tier, _)| !self.may_change(state, *tier)) {
            return Ok(false);
        }
        for (tier, piece) in kept {
            let file = state.files[tier.index()].clone().ok_or(Errno::EIO)?;
            file.clear(piece.offset, u64::from(piece.len))?;
            if self.linked.is_some() {
                self.notice_dirty(object, tier);
            }
            if tier.is_persistent() {
                state.note_change(tier);
                self.note_unsynced(object);
            }
        }
        object.note_written(|| self.now());
        self.free_condemned(object, state);
        for tier in TierId::ALL {
            if state.charged[tier.index()] > 0 {
                self.settle_charge(object, state, tier);
            }
        }
        Ok(true)
    }

    pub(crate) fn record_zeroed(
        &self,
        object: &Object,
        state: &mut State,
        (changed, struck): (bool, bool),
        freed: Vec<(TierId, SauIndex)>,
    ) -> Result<(), Errno> {
        if !changed {
            return Ok(());
        }
        let saved = self.save_map(object, state)?;
        if struck {
            state.struck = saved;
        }
        for (tier, sau) in freed {
            self.give_up(object, state, tier, sau, saved);
        }
        Ok(())
    }

    /// The copies that a partly zeroed SAU keeps: the safe one if there is one, so that nothing safe comes to depend on
    /// memory; all of them while the kernel reads one by itself.
    fn copies_to_zero(&self, state: &State, sau: Sau) -> Option<TierSet> {
        let held = sau.valid.intersect(self.own());
        match state.in_place {
            Some(TierId::Memory) if !state.is_mapped() => {
                return Some(in_place_and_safe(Sau::in_tiers(held))).filter(|h| !h.is_empty());
            }
            Some(_) => return Some(held).filter(|h| !h.is_empty()),
            None => {}
        }
        let safe = held.intersect(TierSet::PERSISTENT).fastest();
        safe.or(held.fastest()).map(TierSet::of)
    }

    /// The next data or hole at or after `offset`; `ENXIO` at or past the end.
    pub fn seek(&self, object: &Object, offset: u64, whence: Whence) -> Result<u64, Errno> {
        let state = object.state.read();
        if offset >= state.size {
            return Err(Errno::ENXIO);
        }
        let mut at = offset;
        while at < state.size {
            let sau = SauIndex::of(at);
            let end = sau.end().min(state.size);
            if let Some(found) = self.seek_in_sau(&state, sau, at, end, whence)? {
                return Ok(found);
            }
            at = end;
        }
        match whence {
            Whence::Data => Err(Errno::ENXIO),
            Whence::Hole => Ok(state.size),
        }
    }

    fn seek_in_sau(
        &self,
        state: &State,
        sau: SauIndex,
        at: u64,
        end: u64,
        whence: Whence,
    ) -> Result<Option<u64>, Errno> {
        let now = state.map.get(sau);
        if now.is_hole() {
            return Ok((whence == Whence::Hole).then_some(at));
        }
        let file = now.valid.intersect(self.own()).fastest().and_then(|t| state.files[t.index()].as_ref());
        // Lost bytes count as data: reading them is an error, not zeros.
        let Some(file) = file else { return Ok((whence == Whence::Data).then_some(at)) };
        let found = match whence {
            Whence::Data => file.seek_data(at)?,
            Whence::Hole => Some(file.seek_hole(at)?.unwrap_or(at)),
        };
        debug_assert!(end <= sau.start() + SAU_BYTES);
        Ok(found.filter(|f| *f < end))
    }
}
