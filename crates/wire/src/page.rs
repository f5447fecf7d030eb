//! Memory for a body: a large one begins at a page, as what it is copied from and to mostly does.
//!
//! Large allocations begin 16 bytes behind a page. There the kernel's copy (`rep movsb`) out of the processor's cache has half the rate on some processors, 8
//! bytes behind it a fifth, and each page that the kernel copies to touches two of ours.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

const PAGE: usize = 4096;
/// Shorter ones begin anywhere.
pub const LARGE: usize = 64 << 10;

/// Bytes that begin at a page if they are many. It keeps its place as long as it has room.
#[derive(Default)]
pub struct PageBuffer {
    memory: Vec<u8>,
    /// Of the memory what is used.
    from: usize,
    len: usize,
}

impl PageBuffer {
    /// So many zeros.
    pub fn new(len: usize) -> PageBuffer {
        let memory = vec![0; if len < LARGE { len } else { len + PAGE }];
        let from = if len < LARGE { 0 } else { memory.as_ptr().align_offset(PAGE) };
        // The offset may be unknown while constants are made, and nowhere else.
        PageBuffer { from: if from + len <= memory.len() { from } else { 0 }, memory, len }
    }

    /// Gives it that length. What is in it has no meaning then.
    pub fn resize_for(&mut self, len: usize) {
        if self.room() < len {
            *self = PageBuffer::new(len);
        }
        self.len = len;
    }

    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// How long it can be where it is.
    pub fn room(&self) -> usize {
        self.memory.len() - self.from
    }

    /// The same bytes, moved to the front of their memory where they are not there.
    pub fn into_vec(mut self) -> Vec<u8> {
        self.memory.truncate(self.from + self.len);
        self.memory.drain(..self.from);
        self.memory
    }
}

impl From<Vec<u8>> for PageBuffer {
    /// As it lies.
    fn from(memory: Vec<u8>) -> PageBuffer {
        PageBuffer { len: memory.len(), from: 0, memory }
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.from..self.from + self.len]
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.from..self.from + self.len]
    }
}

impl AsRef<[u8]> for PageBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for PageBuffer {
    fn clone(&self) -> PageBuffer {
        let mut copy = PageBuffer::new(self.len);
        copy.copy_from_slice(self);
        copy
    }
}

impl PartialEq for PageBuffer {
    fn eq(&self, other: &PageBuffer) -> bool {
        **self == **other
    }
}

impl Eq for PageBuffer {}

impl PartialEq<Vec<u8>> for PageBuffer {
    fn eq(&self, other: &Vec<u8>) -> bool {
        **self == **other
    }
}

impl fmt::Debug for PageBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a large body begins at a page, has the length that it was given, and keeps its memory. Method: lengths around the limits, and addresses.
    use super::*;

    #[test]
    fn a_large_body_begins_at_a_page_and_stays_there() {
        for len in [LARGE, LARGE + 1, 100_000, 1 << 20] {
            let buffer = PageBuffer::new(len);
            assert_eq!((buffer.len(), buffer.as_ptr().align_offset(PAGE)), (len, 0));
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
        let mut buffer = PageBuffer::new(1 << 20);
        let place = buffer.as_ptr();
        for len in [10, 70_000, 1 << 20, 0] {
            buffer.resize_for(len);
            assert_eq!((buffer.as_ptr(), buffer.len()), (place, len));
        }
        buffer.resize_for((1 << 20) + 2 * PAGE);
        assert_eq!((buffer.len(), buffer.as_ptr().align_offset(PAGE)), ((1 << 20) + 2 * PAGE, 0));
        buffer.truncate(5);
        buffer.truncate(7);
        assert_eq!(buffer.len(), 5);
    }

    #[test]
    fn its_bytes_are_the_same_as_a_vector() {
        for len in [0, 1, 3000, LARGE - 1, LARGE, LARGE + 5000] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let mut buffer = PageBuffer::new(len);
            buffer.copy_from_slice(&bytes);
            assert!(buffer.clone() == buffer && buffer == bytes);
            assert!(PageBuffer::from(bytes.clone()).into_vec() == bytes);
            assert!(buffer.into_vec() == bytes, "{len}");
        }
    }
}
