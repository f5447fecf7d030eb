//! Chance that a seed repeats, of the simulations.

mod post;

use std::time::Duration;

pub use post::{Post, Ways};

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    /// One in so many, or never: half of the runs have it.
    pub fn maybe(&mut self, often: u64) -> u64 {
        if self.one_in(2) { often } else { 0 }
    }

    pub fn millis(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.below(most))
    }
}
