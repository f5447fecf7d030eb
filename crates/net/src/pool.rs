//! Buffers for bodies, used again: a fresh megabyte costs as much to get from the kernel, and to fill with zeros, as to read.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;

/// Of one connection: what a reader and a few handlers have at once. What is beyond is given back to the system.
const KEPT_MAX: usize = 4;
/// Shorter bodies have a fresh one. In a large one they would shorten it, and to lengthen it again is to fill it again.
const LEN_MIN: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct Pool {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Pool {
    /// For so many bytes, but of any length; what is in it has no meaning.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        if len < LEN_MIN { Vec::new() } else { self.free.lock().pop().unwrap_or_default() }
    }

    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut free = self.free.lock();
        if free.len() < KEPT_MAX && buffer.len() >= LEN_MIN {
            free.push(buffer);
        }
    }
}

/// What comes from a file's pages goes to the beginning of a page. Large allocations begin 16 bytes behind one: there the kernel's copy (`rep movsb`) out of
/// the processor's cache has half the rate on some processors, 8 bytes behind it a fifth; from 32 bytes on there is no difference.
const PAGE: usize = 4096;

/// A connection's buffer for the body of an answer, which begins at a page if it is a large one. It is used again when the answer is on its way.
pub struct Buffer {
    bytes: Vec<u8>,
    pool: Arc<Pool>,
    /// Of it what is used.
    from: usize,
    len: usize,
}

impl Buffer {
    /// What is in it has no meaning.
    pub(crate) fn new(pool: &Arc<Pool>, len: usize) -> Buffer {
        let mut bytes = pool.take(len);
        let room = if len < LEN_MIN { len } else { len + PAGE };
        if bytes.len() < room {
            bytes.resize(room, 0);
        }
        let from = bytes.as_ptr().align_offset(PAGE);
        let from = if from + len <= bytes.len() { from } else { 0 };
        Buffer { bytes, pool: pool.clone(), from, len }
    }

    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.len]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Bytes {
        Bytes::from_owner(buffer)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    //! Goal: large buffers come back when the last who has their bytes is gone, and no other's bytes are seen beyond a body's end. Method: the
    //! address of a buffer tells which it is.
    use super::*;

    #[test]
    fn a_large_buffer_is_used_again_and_ends_where_its_body_does() {
        let pool = Arc::new(Pool::default());
        let mut buffer = Buffer::new(&pool, 1 << 20);
        let place = buffer.as_ptr();
        buffer.fill(7);
        buffer.truncate(100_000);
        let bytes = Bytes::from(buffer);
        let part = bytes.slice(50_000..);
        drop(bytes);
        assert_ne!(Buffer::new(&pool, 1 << 20).as_ptr(), place);
        assert!(part.len() == 50_000 && part.iter().all(|byte| *byte == 7));
        drop(part);
        let mut kept: Vec<_> = (0..2).map(|_| Buffer::new(&pool, 70_000)).collect();
        assert!(kept.iter().any(|one| one.as_ptr() == place));
        assert!(kept.iter().all(|one| one.len() == 70_000));
        kept.clear();
        // Wherever it begins, it begins at a page, and ends where it was said.
        assert!((65_536..65_600).all(|len| {
            let buffer = Buffer::new(&pool, len);
            buffer.len() == len && buffer.as_ptr().align_offset(PAGE) == 0
        }));
        // Its whole length is there at once.
        assert!((0..2).any(|_| pool.take(1 << 20).len() >= 1 << 20));
    }

    #[test]
    fn small_ones_are_not_kept() {
        let pool = Arc::new(Pool::default());
        drop(Buffer::new(&pool, 4096));
        pool.give(vec![1; 100]);
        assert!(pool.free.lock().is_empty());
    }
}
