//! Seeded random numbers (SplitMix64): the same seed gives the same run on every machine.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// An independent stream, told apart by `tag`.
    pub fn fork(&self, tag: u64) -> Random {
        Random(mix(self.0 ^ mix(tag.wrapping_add(0x51_7c_c1_b7_27_22_0a_95))))
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `0..limit`; 0 when the limit is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.bits() % limit }
    }

    /// True in `percent` of 100 draws.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.below(from.len() as u64) as usize) }
    }

    /// A number up to `limit` whose logarithm is evenly spread: small ones are as likely as large ones.
    pub fn log_below(&mut self, limit: u64) -> u64 {
        let bits = 64 - limit.leading_zeros() as u64;
        let cut = self.below(bits + 1);
        let top = if cut >= 63 { u64::MAX } else { 1 << cut };
        self.below(top.min(limit))
    }
}

/// One round of SplitMix64's finisher: a good hash of 64 bits.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills `out` with the bytes that belong at `offset` of the pattern `fill`. No byte is zero, so that a hole
/// where data should be never compares equal.
pub fn pattern(fill: u32, offset: u64, out: &mut [u8]) {
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let word = mix((u64::from(fill) << 40) ^ (at >> 3)).to_le_bytes();
        let skip = (at & 7) as usize;
        let take = (8 - skip).min(rest.len());
        let (now, later) = rest.split_at_mut(take);
        for (to, from) in now.iter_mut().zip(&word[skip..]) {
            *to = from | 1;
        }
        at += take as u64;
        rest = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_function_of_the_offset_and_never_zero() {
        let mut whole = vec![0; 1000];
        pattern(7, 0, &mut whole);
        assert!(whole.iter().all(|b| *b != 0));
        for cut in [1, 7, 8, 9, 500] {
            let mut part = vec![0; 1000 - cut];
            pattern(7, cut as u64, &mut part);
            assert_eq!(part, whole[cut..]);
        }
    }

    #[test]
    fn streams_repeat_and_forks_differ() {
        let (mut a, mut b) = (Random::new(3), Random::new(3));
        assert_eq!(a.bits(), b.bits());
        assert_ne!(a.fork(1).bits(), a.fork(2).bits());
        assert_eq!(a.below(0), 0);
        assert!((0..1000).all(|_| a.log_below(9) < 9));
    }
}
