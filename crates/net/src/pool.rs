//! Buffers for bodies, used again: a fresh megabyte costs as much to get from the kernel, and to fill with zeros, as to read.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use wire::{LARGE, PageBuffer};

/// Of one connection: what a reader and a few handlers have at once. What is beyond is given back to the system.
const KEPT_MAX: usize = 4;

#[derive(Default)]
pub(crate) struct Pool {
    free: Mutex<Vec<PageBuffer>>,
}

impl Pool {
    /// For so many bytes, but of any length; what is in it has no meaning. Shorter bodies than large ones have fresh memory.
    pub(crate) fn take(&self, len: usize) -> PageBuffer {
        if len < LARGE { PageBuffer::default() } else { self.free.lock().pop().unwrap_or_default() }
    }

    pub(crate) fn give(&self, buffer: PageBuffer) {
        let mut free = self.free.lock();
        if free.len() < KEPT_MAX && buffer.room() >= LARGE {
            free.push(buffer);
        }
    }
}

/// A connection's buffer for the body of an answer, which begins at a page if it is a large one. It is used again when the answer is on its way.
pub struct Buffer {
    bytes: PageBuffer,
    pool: Arc<Pool>,
}

impl Buffer {
    /// What is in it has no meaning.
    pub(crate) fn new(pool: &Arc<Pool>, len: usize) -> Buffer {
        let mut bytes = pool.take(len);
        bytes.resize_for(len);
        Buffer { bytes, pool: pool.clone() }
    }

    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
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
        // Wherever its memory lies, it begins at a page, and ends where it was said.
        assert!((65_536..65_600).all(|len| {
            let buffer = Buffer::new(&pool, len);
            buffer.len() == len && buffer.as_ptr().align_offset(4096) == 0
        }));
        // Its whole length is there at once.
        assert!((0..2).any(|_| pool.take(1 << 20).room() >= 1 << 20));
    }

    #[test]
    fn small_ones_are_not_kept() {
        let pool = Arc::new(Pool::default());
        drop(Buffer::new(&pool, 4096));
        pool.give(vec![1; 100].into());
        assert!(pool.free.lock().is_empty());
    }
}
