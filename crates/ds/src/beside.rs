//! Writes beside readers that have the object's file in memory open in place: new bytes must be there, and what a persistent
//! tier holds must not come to depend on memory. So they go to both.

use crate::{
    DataServer,
    durable::vouches,
    object::{Object, State},
    write::{Patience, Stop},
};
use layout::{Piece, Sau};
use types::{TierId, TierSet};

impl DataServer {
    /// Readers have the memory file in place, so new bytes must be there; where an fsync promised a hole, its zeros must be
    /// in a persistent tier too. Such a hole becomes a SAU of both before anything is written to it.
    pub(crate) fn keep_promise(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        patience: Patience,
    ) -> Result<(), Stop> {
        if piece.sau.start() >= state.synced_size || !self.has_persistent() {
            return Ok(());
        }
        if !patience.may_wait {
            return Err(Stop::WouldWait);
        }
        let safe = self.place_safe(object, state, piece, u64::from(piece.len), patience)?;
        self.clear_stale(object, state, piece, safe)?;
        self.begin_file(object, state, piece, safe, patience)?;
        self.clear_stale(object, state, piece, TierId::Memory)?;
        self.file_for_write(object, state, TierId::Memory)?;
        let _ = state.map.set(piece.sau, Sau::in_tiers(TierSet::MEMORY.with(safe)));
        self.save_map(object, state)?;
        Ok(())
    }

    /// Readers have the object's file in memory open in place, and a persistent tier holds the SAU too: the bytes go
    /// to both, first to the one that nobody reads, so that nothing safe comes to depend on memory.
    pub(crate) fn write_through(
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
        self.strike_for_both(object, state, piece)?;
        let held = state.map.get(piece.sau).valid;
        if held.iter().any(|tier| !self.may_change(state, tier)) {
            return Err(Stop::Undurable);
        }
        for tier in held.iter() {
            self.admit_growth(object, state, tier, piece, patience)?;
            if tier.is_persistent() {
                let file = self.file_for_write(object, state, tier)?;
                file.write_at(bytes, piece.offset)?;
                state.file_len[tier.index()] = state.file_len[tier.index()].max(piece.end());
                state.note_change(tier);
                self.note_unsynced(object);
            }
        }
        Ok(())
    }

    /// Of the persistent copies one stays, since two would not change at once; and no checksum.
    fn strike_for_both(&self, object: &Object, state: &mut State, piece: Piece) -> Result<(), Stop> {
        let before = state.map.get(piece.sau);
        let now = Sau::in_tiers(in_place_and_safe(Sau::in_tiers(self.ours(before.valid))));
        if now == before {
            return Ok(());
        }
        if state.is_moving(piece.sau.start(), types::SAU_BYTES) {
            return Err(Stop::Copier);
        }
        if now.valid.iter().any(|tier| object.unsynced.distrusted().contains(tier)) {
            return Err(Stop::Distrusted);
        }
        for tier in now.valid.iter() {
            self.let_stand_alone(object, state, before, tier)?;
        }
        let _ = state.map.set(piece.sau, now);
        let saved = self.save_map(object, state)?;
        if now.valid.iter().any(|tier| vouches(before, tier)) {
            state.struck = saved;
        }
        object.verified.lock().remove(piece.sau);
        for other in before.valid.iter().filter(|tier| !now.valid.contains(*tier)) {
            self.give_up(object, state, other, piece.sau, saved);
        }
        Ok(())
    }
}

/// What of a SAU's copies is written while readers have the one in memory in place: it, and the fastest that is safe.
pub(crate) fn in_place_and_safe(sau: Sau) -> TierSet {
    let safe = sau.valid.intersect(TierSet::PERSISTENT).fastest();
    safe.map_or(TierSet::EMPTY, TierSet::of).with(TierId::Memory).intersect(sau.valid)
}
