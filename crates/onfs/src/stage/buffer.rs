//! The buffer of a thread: large, and aligned to pages, so that a file system can take it whole.

use super::{pieces::PIECE, sum::BLOCK};

/// A storage allocation unit of ONFS; pieces are multiples of it.
pub const BUFFER: usize = 4 << 20;
const _: () = assert!(PIECE.is_multiple_of(BUFFER as u64) && BUFFER.is_multiple_of(BLOCK));

pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    pub fn new() -> Buffer {
        let bytes = vec![0; BUFFER + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK).min(BLOCK);
        Buffer { bytes, start }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + BUFFER]
    }
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aligned() {
        let mut buffer = Buffer::new();
        assert_eq!(buffer.bytes().as_ptr() as usize % BLOCK, 0);
        assert_eq!(buffer.bytes().len(), BUFFER);
    }
}
