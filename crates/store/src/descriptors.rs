//! How many objects may be open at once, in all tiers together: the rest of what the process may open is for what must
//! never run out, the metadata's journal and engine before all.

use std::sync::atomic::{AtomicUsize, Ordering};

use types::Errno;

/// Shared by the stores of a process.
#[derive(Debug)]
pub struct Descriptors {
    open: AtomicUsize,
    max: usize,
}

impl Descriptors {
    pub fn new(max: usize) -> Descriptors {
        Descriptors { open: AtomicUsize::new(0), max }
    }

    pub fn max(&self) -> usize {
        self.max
    }

    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// One more, or `EMFILE`. [`Descriptors::give`] follows.
    pub(crate) fn take(&self) -> Result<(), Errno> {
        let more = |open: usize| (open < self.max).then_some(open + 1);
        match self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(()),
            Err(_) => Err(Errno::EMFILE),
        }
    }

    pub(crate) fn give(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}
