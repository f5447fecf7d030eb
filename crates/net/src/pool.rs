//! Buffers for bodies, used again: a fresh megabyte costs as much to get from the kernel as to read.

use parking_lot::Mutex;

/// Of one connection: what a reader and a few handlers have at once. What is beyond is given back to the system.
const KEPT_MAX: usize = 4;

#[derive(Default)]
pub(crate) struct Pool {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Pool {
    /// Of any length; what is in it has no meaning.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.free.lock().pop().unwrap_or_default()
    }

    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut free = self.free.lock();
        if free.len() < KEPT_MAX && buffer.capacity() > 0 {
            free.push(buffer);
        }
    }
}
