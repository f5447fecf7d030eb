//! One SAU: its number, its state, and the pieces of a byte range that fall into each.

use types::{SAU_BYTES, TierSet};

/// SAUs that one object can have. Bounds the memory that a hostile offset or record can ask for (128 MiB).
pub const SAUS_MAX: u32 = 1 << 24;
/// Largest size of an object: 64 TiB. Callers answer `EFBIG` beyond it.
pub const FILE_BYTES_MAX: u64 = SAUS_MAX as u64 * SAU_BYTES;

/// The number of a SAU within its object, below [`SAUS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SauIndex(u32);

impl SauIndex {
    pub const ZERO: SauIndex = SauIndex(0);

    /// `None` from [`SAUS_MAX`] on.
    pub const fn new(n: u32) -> Option<SauIndex> {
        if n < SAUS_MAX { Some(SauIndex(n)) } else { None }
    }
    /// The SAU that holds the byte at `offset`. Offsets from [`FILE_BYTES_MAX`] on, which callers refuse
    /// beforehand, count to the last SAU.
    pub const fn of(offset: u64) -> SauIndex {
        if offset < FILE_BYTES_MAX { SauIndex((offset / SAU_BYTES) as u32) } else { SauIndex(SAUS_MAX - 1) }
    }
    pub const fn get(self) -> u32 {
        self.0
    }
    /// Offset in the object of its first byte.
    pub const fn start(self) -> u64 {
        self.0 as u64 * SAU_BYTES
    }
    /// Offset in the object just past its last byte.
    pub const fn end(self) -> u64 {
        self.start() + SAU_BYTES
    }
    /// How many bytes a file of `size` bytes has in it.
    pub const fn bytes_within(self, size: u64) -> u32 {
        let left = size.saturating_sub(self.start());
        if left < SAU_BYTES { left as u32 } else { SAU_BYTES as u32 }
    }
}

/// Checksum of the first `len` bytes of a SAU; the bytes that follow them are zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Seal {
    /// CRC-32C (Castagnoli).
    pub crc: u32,
    /// Bytes, at most `SAU_BYTES`.
    pub len: u32,
}

/// The state of one SAU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sau {
    /// The tiers that hold its current bytes.
    pub valid: TierSet,
    /// Only memory held it, and that memory is gone: reads are `EIO`.
    pub lost: bool,
    pub seal: Option<Seal>,
}

impl Sau {
    /// Never written, or punched: reads as zeros.
    pub const HOLE: Sau = Sau { valid: TierSet::EMPTY, lost: false, seal: None };
    pub const LOST: Sau = Sau { valid: TierSet::EMPTY, lost: true, seal: None };

    pub const fn in_tiers(valid: TierSet) -> Sau {
        Sau { valid, lost: false, seal: None }
    }
    pub const fn is_hole(self) -> bool {
        self.valid.is_empty() && !self.lost
    }
    /// Would a reboot lose it?
    pub const fn is_at_risk(self) -> bool {
        !self.valid.is_empty() && self.valid.intersect(TierSet::PERSISTENT).is_empty()
    }
    /// I-LAYOUT-1 and I-LAYOUT-2.
    pub fn is_consistent(self) -> bool {
        let lost_ok = !self.lost || (self.valid.is_empty() && self.seal.is_none());
        let seal_ok = self.seal.is_none_or(|s| !self.valid.is_empty() && u64::from(s.len) <= SAU_BYTES);
        lost_ok && seal_ok
    }
}

/// The part of a byte range that lies in one SAU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub sau: SauIndex,
    /// Offset in the object.
    pub offset: u64,
    /// Bytes, 1 to `SAU_BYTES`.
    pub len: u32,
}

impl Piece {
    pub const fn end(self) -> u64 {
        self.offset + self.len as u64
    }
    /// Does it cover every byte that a file of `size` bytes has in this SAU?
    pub const fn covers_all(self, size: u64) -> bool {
        self.offset == self.sau.start() && (self.end() >= size || self.end() == self.sau.end())
    }
}

/// The pieces of `len` bytes from `offset`, in order. What lies past [`FILE_BYTES_MAX`] is left out.
pub fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> + Clone {
    let end = offset.saturating_add(len).min(FILE_BYTES_MAX);
    let first = offset / SAU_BYTES;
    let count = if offset < end { (end - 1) / SAU_BYTES - first + 1 } else { 0 };
    (0..count).map(move |n| {
        let sau = SauIndex((first + n) as u32);
        let from = offset.max(sau.start());
        Piece { sau, offset: from, len: (end.min(sau.end()) - from) as u32 }
    })
}
