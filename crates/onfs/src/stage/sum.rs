//! The checksum of file content: XXH3 (64 bits) over the blocks that are not all zero, and where they are.
//!
//! So it is the same whether a file system keeps zeros as a hole or not, and holes cost no reading on either side. It
//! finds accidents; it is no protection against somebody who wants two files to have one checksum.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Holes are looked for in units of this.
pub const BLOCK: usize = 4096;
const ZEROS: [u8; BLOCK] = [0; BLOCK];

/// Takes the content in order of its offsets. What is not given counts as zeros.
#[derive(Default)]
pub struct Sum {
    hash: Xxh3,
    /// Where the last run of blocks that are not zero ended.
    end: Option<u64>,
}

impl Sum {
    /// `offset` is a multiple of [`BLOCK`]; only the last of a file may end within a block.
    pub fn take(&mut self, offset: u64, data: &[u8]) {
        let mut run: Option<usize> = None;
        for (n, block) in data.chunks(BLOCK).enumerate() {
            let zero = block == &ZEROS[..block.len()];
            match run {
                Some(start) if zero => {
                    self.run(offset, start, &data[start..n * BLOCK]);
                    run = None;
                }
                None if !zero => run = Some(n * BLOCK),
                Some(_) | None => {}
            }
        }
        if let Some(start) = run {
            self.run(offset, start, &data[start..]);
        }
    }

    pub fn finish(mut self) -> u64 {
        self.close();
        self.hash.digest()
    }

    fn run(&mut self, offset: u64, start: usize, data: &[u8]) {
        let at = offset + start as u64;
        if self.end != Some(at) {
            self.close();
            self.hash.update(&at.to_le_bytes());
        }
        self.hash.update(data);
        self.end = Some(at + data.len() as u64);
    }

    fn close(&mut self) {
        if let Some(end) = self.end.take() {
            self.hash.update(&end.to_le_bytes());
        }
    }
}

/// Of a whole file, from those of its pieces.
pub fn whole(pieces: &[u64]) -> u64 {
    let bytes: Vec<u8> = pieces.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    xxh3_64(&bytes)
}

#[cfg(test)]
mod tests {
    //! Goal: one checksum for one content, however it is cut and wherever it has holes, and another for another.
    //! Method: contents of few block patterns, given in different ways.
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn of(parts: &[(u64, &[u8])]) -> u64 {
        let mut sum = Sum::default();
        parts.iter().for_each(|(offset, data)| sum.take(*offset, data));
        sum.finish()
    }

    #[test]
    fn checksums_are_fixed() {
        // Stored in journals: these values may not change.
        assert_eq!(of(&[]), 0x2d06_8005_38d3_94c2);
        assert_eq!(of(&[(0, &ZEROS), (BLOCK as u64, &[0; 7])]), of(&[]));
        assert_eq!(of(&[(0, b"abc")]), GOLDEN);
        assert_eq!(whole(&[1, 2]), GOLDEN_WHOLE);
    }
    const GOLDEN: u64 = 0xa898_20c8_2474_0d39;
    const GOLDEN_WHOLE: u64 = 0x07ee_86c2_8144_6bef;

    proptest! {
        #[test]
        fn holes_and_cuts_do_not_matter(blocks in vec(0u8..3, 0..12), tail in 0usize..BLOCK, cut in 0usize..12) {
            let mut data: Vec<u8> = blocks.iter().flat_map(|b| vec![*b; BLOCK]).collect();
            data.extend(vec![7u8; tail]);
            let one = of(&[(0, &data)]);
            let cut = (cut * BLOCK).min(data.len());
            prop_assert_eq!(of(&[(0, &data[..cut]), (cut as u64, &data[cut..])]), one);
            let parts: Vec<(u64, &[u8])> = data
                .chunks(BLOCK)
                .enumerate()
                .map(|(n, block)| ((n * BLOCK) as u64, block))
                .filter(|(_, block)| block.iter().any(|b| *b != 0))
                .collect();
            prop_assert_eq!(of(&parts), one);
        }

        #[test]
        fn another_content_has_another(blocks in vec(0u8..3, 1..8), at in 0usize..8 * BLOCK) {
            let data: Vec<u8> = blocks.iter().flat_map(|b| vec![*b; BLOCK]).collect();
            let mut other = data.clone();
            let at = at % other.len();
            other[at] ^= 0x40;
            prop_assert_ne!(of(&[(0, &data)]), of(&[(0, &other)]));
            let moved: Vec<u8> = [&ZEROS[..], &data].concat();
            if data.iter().any(|b| *b != 0) {
                prop_assert_ne!(of(&[(0, &data)]), of(&[(0, &moved)]));
            }
        }
    }
}
