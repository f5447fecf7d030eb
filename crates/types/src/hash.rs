//! A hash for numbers that we give out ourselves, inodes above all: nobody can choose them to collide.
//!
//! It refuses to know bytes: names and keys of others need a keyed hash.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// A map by [`crate::Ino`], [`crate::UgsdId`] or another number of ours.
pub type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

#[derive(Clone, Copy, Default, Debug)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    /// Both halves of the product: a table takes its place from the low bits, and compares the high ones.
    fn finish(&self) -> u64 {
        let product = u128::from(self.0) * u128::from(FACTOR);
        (product >> 64) as u64 ^ product as u64
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = self.0.rotate_left(23).wrapping_mul(FACTOR) ^ n;
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;
    use crate::{Ino, LocalId, UgsdId};

    /// Goal: neighbours, and the first inodes of many UGSDs, are spread over a table's places. Method: count the low and the
    /// high bits of their hashes; each place must get a fair share.
    #[test]
    fn our_numbers_are_spread() {
        let build = BuildHasherDefault::<NumberHasher>::default();
        let inos = |ugsds: u32, locals: u64| -> Vec<u64> {
            let each = (0..ugsds).flat_map(|u| (1..=locals).map(move |l| (u, l)));
            each.map(|(u, l)| build.hash_one(Ino::new(UgsdId::new(u).unwrap(), LocalId::new(l).unwrap())))
                .collect()
        };
        for hashes in [inos(1, 1 << 14), inos(1 << 14, 1), inos(1 << 7, 1 << 7)] {
            for shift in [0, 57] {
                let mut places = [0; 128];
                hashes.iter().for_each(|hash| places[(hash >> shift) as usize % 128] += 1);
                let (least, most) = (places.iter().min().unwrap(), places.iter().max().unwrap());
                assert!(*least > 64 && *most < 256, "{least} to {most} of 128");
            }
        }
    }
}
