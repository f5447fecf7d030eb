//! Which tier a read comes from and a write goes to: decided from the SAU's state and from what the tiers
//! can take, by the caller's word.

use crate::Sau;
use types::{TierId, TierSet};

/// Where to read a SAU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadPlace {
    Tier(TierId),
    Zeros,
    /// Gone with the memory: `EIO`.
    Lost,
    /// Only tiers that are not mounted hold it: `EIO`, until they are back.
    Absent,
}

/// The best source among the tiers `present`: the fastest that holds the current bytes.
pub fn read_place(sau: Sau, present: TierSet) -> ReadPlace {
    if sau.lost {
        return ReadPlace::Lost;
    }
    if sau.valid.is_empty() {
        return ReadPlace::Zeros;
    }
    sau.valid.intersect(present).fastest().map_or(ReadPlace::Absent, ReadPlace::Tier)
}

/// What a write brings with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteWish {
    /// Tiers that can take one more SAU of this object now. Leave out those that policy excludes.
    pub room: TierSet,
    /// Tiers that are mounted and writable; those that hold the SAU already are written over without needing room.
    pub present: TierSet,
    /// The object is in sync mode: an fsynced file is homed in the first persistent tier.
    pub sync: bool,
    /// The write covers every byte that the file has in this SAU.
    pub whole: bool,
}

/// Where to write a SAU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WritePlace {
    /// The tier holds the current bytes: write over them (`note_written`).
    Over(TierId),
    /// Nothing to keep: write there (`note_replaced`). Needs a new SAU there.
    Fresh(TierId),
    /// Copy the SAU first, then write over the copy. Needs a new SAU in `to`.
    Move { from: TierId, to: TierId },
    /// A part of bytes that are gone cannot be written: `EIO`.
    Lost,
    /// The current bytes are only in tiers that cannot be written, and cannot be read either: `EIO`.
    Absent,
    /// Wait for room, or `ENOSPC` when none will come.
    Full,
}

/// Where a write goes.
///
/// - Nothing to keep: the first tier with room; in sync mode the first persistent one, and memory only when
///   no persistent tier has room.
/// - Otherwise over the fastest current copy, which needs no room; in sync mode over the fastest persistent
///   copy, or a move to the first persistent tier with room; only if there is none, over the memory copy.
pub fn write_place(sau: Sau, wish: WriteWish) -> WritePlace {
    let room = wish.room.intersect(wish.present);
    let home = |tiers: TierSet| {
        let safe = tiers.intersect(TierSet::PERSISTENT).fastest();
        if wish.sync { safe.or(tiers.fastest()) } else { tiers.fastest() }
    };
    if sau.is_hole() || (sau.lost && wish.whole) {
        return home(room).map_or(WritePlace::Full, WritePlace::Fresh);
    }
    if sau.lost {
        return WritePlace::Lost;
    }
    let held = sau.valid.intersect(wish.present);
    let Some(over) = home(held) else {
        return match home(room).filter(|_| wish.whole) {
            Some(tier) => WritePlace::Fresh(tier),
            None if wish.whole => WritePlace::Full,
            None => WritePlace::Absent,
        };
    };
    let better = home(room)
        .filter(|to| if wish.sync { !over.is_persistent() && to.is_persistent() } else { *to < over });
    match better {
        Some(to) if wish.whole => WritePlace::Fresh(to),
        Some(to) if wish.sync => WritePlace::Move { from: over, to },
        Some(_) | None => WritePlace::Over(over),
    }
}
