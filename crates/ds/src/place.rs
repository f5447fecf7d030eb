//! Finding a tier for bytes that have no place yet, or whose tier is full.

use crate::{
    DataServer,
    object::{Object, State},
    truncate::cut_file,
    write::{Patience, Stop},
};
use layout::{Piece, Sau, SauIndex};
use tier::{Admit, Need, Placement};
use types::{Errno, TierId};

const PAGE: u64 = 4096;

impl DataServer {
    /// A hole, or lost bytes that are wholly replaced: finds a tier and clears what an earlier life of the SAU left
    /// in its file.
    pub(crate) fn place_fresh(
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
            && !state.is_promised(piece.sau)
            && self.present().contains(TierId::Memory)
        {
            state.credit[TierId::Memory.index()] -= need;
            TierId::Memory
        } else if piece.sau.start() < state.synced_size && self.has_persistent() {
            self.place_safe(object, state, piece, need, patience)?
        } else {
            self.place(object, state, piece, need, patience)?
        };
        let held_up = tier == TierId::Nearline || (patience.only_memory && tier.is_persistent());
        if !patience.may_wait && held_up {
            self.settle_charge(object, state, tier);
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

    pub(crate) fn clear_stale(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        tier: TierId,
    ) -> Result<(), Stop> {
        if state.is_moving(piece.sau.start(), types::SAU_BYTES) {
            return Err(Stop::Copier);
        }
        if self.still_vouched(state, tier, piece.sau) {
            return Err(Stop::Undurable);
        }
        object.verified.lock().remove(piece.sau);
        self.clear_place(object, state, tier, piece.sau)?;
        Ok(())
    }

    /// Takes away what an earlier life of a SAU left in a tier's file. Where nothing comes behind it on a device the file
    /// ends there: a cut left it longer, and its length says how far the SAU was written.
    pub(crate) fn clear_place(
        &self,
        object: &Object,
        state: &mut State,
        tier: TierId,
        sau: SauIndex,
    ) -> Result<(), Errno> {
        state.condemned.retain(|c| !(c.tier == tier && c.sau == sau));
        if sau.start() >= state.file_len[tier.index()] {
            return Ok(());
        }
        let behind = |(other, now): (SauIndex, Sau)| other > sau && now.valid.contains(tier);
        if tier.is_persistent() && state.in_place != Some(tier) && !state.map.iter_from(sau).any(behind) {
            state.condemned.retain(|c| !(c.tier == tier && c.sau > sau));
            return cut_file(state, tier, sau.start());
        }
        let file = self.file_for_write(object, state, tier)?;
        file.clear(sau.start(), types::SAU_BYTES)
    }

    /// Asks the core for a tier, for `need` bytes and some more if the object is growing.
    pub(crate) fn place(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        need: u64,
        patience: Patience,
    ) -> Result<TierId, Stop> {
        let ahead = if piece.offset > 0 { ahead(state, piece) } else { 0 };
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

    /// A place in a persistent tier, or `ENOSPC`: what an fsync promised does not come to depend on memory.
    pub(crate) fn place_safe(
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
        match placed? {
            TierId::Memory => Err(Stop::Failed(Errno::ENOSPC)),
            tier @ (TierId::Ssd | TierId::Nearline) => Ok(tier),
        }
    }

    /// A place for a SAU whose tier is full.
    pub(crate) fn place_elsewhere(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        (from, need): (TierId, u64),
        patience: Patience,
    ) -> Result<TierId, Stop> {
        if from.is_persistent() {
            self.place_safe(object, state, piece, need, patience)
        } else {
            self.place(object, state, piece, need, patience)
        }
    }

    /// Growth of a SAU that lives in `tier`. If the tier cannot take it, the SAU moves on. Returns where it is now.
    pub(crate) fn admit_growth(
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
        for extra in [ahead(state, piece), 0] {
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
        let to = self.place_elsewhere(object, state, piece, (tier, need), patience)?;
        if to != tier {
            self.relocate(object, state, piece, tier, to)?;
        }
        Ok(to)
    }
}

fn round_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE)
}

/// Space to ask for ahead of a growing object: as much again as it has, to the end of the SAU at the most.
fn ahead(state: &State, piece: Piece) -> u64 {
    state.size.next_multiple_of(PAGE).min(piece.sau.end() - round_up(piece.end()))
}
