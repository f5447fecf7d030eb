//! Over which hidden directories, its *parts*, a directory is spread, and in which of them a name is.
//!
//! Invariants: the first bits of a name's hash say the part, so the parts one after the other have the directory's order; parts are the tops of
//! UGSDs whose numbers follow each other, so their slots do, too. What is done with them: [`crate::parts`].

use types::{Ino, LocalId, UgsdId};

use crate::name::{HASH_BITS, NameHasher};

/// At most 64 parts: what changes the directory itself changes all of them in one commit.
pub const BITS_MAX: u32 = 6;
const FIRST_BITS: u32 = 24;

/// Over which parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    first: UgsdId,
    bits: u32,
}

impl Spread {
    /// `2^bits` parts, the tops of UGSDs whose numbers follow each other. `None`: there are no such.
    pub fn new(first: u32, bits: u32) -> Option<Spread> {
        let first = UgsdId::new(first).filter(|ugsd| *ugsd != UgsdId::ROOT)?;
        if bits == 0 || bits > BITS_MAX {
            return None;
        }
        UgsdId::new(first.get() + (1 << bits) - 1)?;
        Some(Spread { first, bits })
    }

    pub(crate) fn decode(word: u32) -> Option<Spread> {
        Spread::new(word & ((1 << FIRST_BITS) - 1), word >> FIRST_BITS)
    }

    pub(crate) fn encode(self) -> u32 {
        self.first.get() | self.bits << FIRST_BITS
    }

    pub fn first(self) -> UgsdId {
        self.first
    }

    pub fn bits(self) -> u32 {
        self.bits
    }

    pub fn count(self) -> u32 {
        1 << self.bits
    }

    pub(crate) fn part(self, index: u32) -> Ino {
        // All of them are numbers of UGSDs: see `Spread::new`.
        let ugsd = UgsdId::new(self.first.get() + index).unwrap_or(self.first);
        Ino::new(ugsd, LocalId::TOP)
    }

    pub fn parts(self) -> impl Iterator<Item = Ino> {
        (0..self.count()).map(move |index| self.part(index))
    }

    /// Those in which names with this hash or a greater one are.
    pub(crate) fn parts_from(self, hash: u64) -> impl Iterator<Item = Ino> {
        (self.index_of_hash(hash)..self.count()).map(move |index| self.part(index))
    }

    pub(crate) fn index_of_hash(self, hash: u64) -> u32 {
        ((hash >> (HASH_BITS - self.bits)) as u32).min(self.count() - 1)
    }

    pub fn part_of(self, names: &NameHasher, name: &[u8]) -> Ino {
        self.part(self.index_of_hash(names.hash(name)))
    }

    pub fn has(self, ino: Ino) -> bool {
        let index = ino.ugsd().get().wrapping_sub(self.first.get());
        ino.local() == LocalId::TOP && index < self.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8; 16] = b"0123456789abcdef";

    /// Goal: where an entry is never changes, and no part can be that is no number of a UGSD. Method: golden values; numbers at the bounds.
    #[test]
    fn parts_have_their_golden_values() {
        let names = NameHasher::new(KEY);
        let spread = Spread::new(0x0102, 3).unwrap();
        assert_eq!((spread.encode(), spread.count()), (0x0300_0102, 8));
        assert_eq!(Spread::decode(0x0300_0102), Some(spread));
        // The hashes that `name` pins: 0.153 and 0.864 of all.
        assert_eq!(spread.part_of(&names, b"a"), Ino::from_raw(0x0103 << 40 | 1).unwrap());
        assert_eq!(spread.part_of(&names, b"Makefile"), Ino::from_raw(0x0108 << 40 | 1).unwrap());
        assert_eq!(spread.parts().count(), 8);
        for bad in [(0, 1), (1, 0), (1, 7), (0xff_ffff, 1), (1 << 24, 1)] {
            assert_eq!(Spread::new(bad.0, bad.1), None, "{bad:?}");
        }
        assert_eq!(Spread::new(0xff_fffe, 1).map(|s| s.parts().count()), Some(2));
        let parts: Vec<Ino> = spread.parts().collect();
        assert!(parts.iter().all(|part| spread.has(*part)));
        let other = |raw: u64| Ino::from_raw(raw).unwrap();
        assert!(
            ![other(0x0101 << 40 | 1), other(0x010a << 40 | 1), other(0x0102 << 40 | 2)]
                .iter()
                .any(|ino| spread.has(*ino))
        );
    }

    /// Goal: no part has much more than its share. Method: names as programs make them, over each number of parts.
    #[test]
    fn parts_get_their_share() {
        let names = NameHasher::new(KEY);
        for bits in 1..=BITS_MAX {
            let spread = Spread::new(7, bits).unwrap();
            let mut counts = std::collections::BTreeMap::new();
            for n in 0..6400 {
                *counts
                    .entry(spread.part_of(&names, format!("rank-{n:05}.out").as_bytes()))
                    .or_insert(0u32) += 1;
            }
            let share = 6400 / spread.count();
            assert_eq!(counts.len(), spread.count() as usize);
            assert!(counts.values().all(|n| (share / 2..share * 2).contains(n)), "{bits}: {counts:?}");
        }
    }

    /// Goal: a listing that goes on after a hash finds all that is behind it. Method: each part's first and last hash.
    #[test]
    fn hashes_say_their_part() {
        let spread = Spread::new(9, 2).unwrap();
        let all: Vec<Ino> = spread.parts().collect();
        for (hash, first) in
            [(0, 0), (16, 0), ((1 << 58) - 1, 0), (1 << 58, 1), ((1 << 60) - 1, 3), (u64::MAX, 3)]
        {
            assert_eq!(spread.parts_from(hash).collect::<Vec<_>>(), all[first..], "{hash:x}");
        }
    }
}
