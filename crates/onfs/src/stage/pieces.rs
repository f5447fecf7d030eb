//! How a file is cut into pieces: the unit that is copied by one thread, recorded with its checksum, and read back. Pure.

use std::ops::Range;

/// At 112 MB/s a piece is 0.3 s of work, so that much is lost when a copy is killed; its record takes 38 bytes.
pub const PIECE: u64 = 32 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pieces {
    size: u64,
}

impl Pieces {
    pub fn of(size: u64) -> Pieces {
        Pieces { size }
    }

    pub fn count(self) -> u32 {
        // A file has 2^63 bytes at the most; what does not fit here would be 2^57 of them.
        u32::try_from(self.size.div_ceil(PIECE)).unwrap_or(u32::MAX)
    }

    /// A file of one piece is copied by the thread that finds it.
    pub fn is_large(self) -> bool {
        self.size > PIECE
    }

    pub fn range(self, piece: u32) -> Range<u64> {
        let start = (u64::from(piece) * PIECE).min(self.size);
        start..(start + PIECE).min(self.size)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the pieces are the file, once. Method: sizes at and between the borders.
    use super::*;

    #[test]
    fn pieces_cover_a_file_without_overlap() {
        for size in [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE, 7 * PIECE + 3, 64 << 40] {
            let pieces = Pieces::of(size);
            let mut end = 0;
            for piece in 0..pieces.count() {
                let range = pieces.range(piece);
                assert_eq!(range.start, end);
                assert!(range.end > range.start && range.end - range.start <= PIECE);
                end = range.end;
            }
            assert_eq!(end, size);
            assert_eq!(pieces.is_large(), pieces.count() > 1);
        }
    }
}
