//! The bytes that a mount keeps, for all its threads: the lock, and how they wait for what one of them reads. What comes and goes, [`crate::caching`] says.

use parking_lot::{Condvar, Mutex};
use types::Ino;

use crate::pages::{PageCounts, Pages};

/// `None`: nothing is kept.
pub(crate) struct Caching {
    pub(crate) pages: Option<Mutex<Pages>>,
    /// Something came, failed or was overtaken.
    pub(crate) came: Condvar,
}

impl Caching {
    pub(crate) fn new(bytes: u64) -> Caching {
        Caching { pages: Pages::new(bytes).map(Mutex::new), came: Condvar::new() }
    }

    pub(crate) fn counts(&self) -> PageCounts {
        self.pages.as_ref().map(|pages| pages.lock().counts()).unwrap_or_default()
    }

    /// It was asked back.
    pub(crate) fn forget(&self, ino: Ino) {
        if let Some(pages) = &self.pages {
            pages.lock().forget(ino);
            self.came.notify_all();
        }
    }

    pub(crate) fn clear(&self) {
        if let Some(pages) = &self.pages {
            pages.lock().clear();
            self.came.notify_all();
        }
    }
}
