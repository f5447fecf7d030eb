//! The bytes that a mount keeps or asks for ahead, for all its threads: the locks, and how they wait for what one of them reads. What comes and goes,
//! [`crate::caching`] and [`crate::running`] say.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use parking_lot::{Condvar, Mutex};
use types::Ino;

use crate::{
    ahead::{Ahead, AheadCounts},
    line::Arrived,
    pages::{PageCounts, Pages},
};

const ALL: Range<u64> = 0..u64::MAX;

/// Whoever waits for a block that is on its way: called once, when it came or will not.
pub(crate) type Waiter = Box<dyn FnOnce() + Send>;

/// What is asked for ahead.
pub(crate) struct Runs {
    pub(crate) ahead: Ahead<Arc<Arrived>>,
    /// By the number of what they wait for.
    pub(crate) waiting: BTreeMap<u64, Vec<Waiter>>,
}

/// `None`: nothing is.
pub(crate) struct Caching {
    pub(crate) pages: Option<Mutex<Pages>>,
    /// Something came, failed or was overtaken.
    pub(crate) came: Condvar,
    pub(crate) runs: Option<Mutex<Runs>>,
}

impl Caching {
    pub(crate) fn new(kept: u64, ahead: u64) -> Caching {
        let runs =
            (ahead > 0).then(|| Mutex::new(Runs { ahead: Ahead::new(ahead), waiting: BTreeMap::new() }));
        Caching { pages: Pages::new(kept).map(Mutex::new), came: Condvar::new(), runs }
    }

    pub(crate) fn counts_ahead(&self) -> AheadCounts {
        self.runs.as_ref().map(|runs| runs.lock().ahead.counts()).unwrap_or_default()
    }

    /// This mount begins to change these bytes; `None`: any of them, or the size.
    pub(crate) fn begin_change(&self, ino: Ino, range: Option<&Range<u64>>) {
        if let Some(pages) = &self.pages {
            pages.lock().begin_change(ino, range.cloned());
            self.came.notify_all();
        }
        if let Some(runs) = &self.runs {
            runs.lock().ahead.begin_change(ino, range.unwrap_or(&ALL));
        }
    }

    pub(crate) fn end_change(&self, ino: Ino, range: Option<&Range<u64>>) {
        if let Some(pages) = &self.pages {
            pages.lock().end_change(ino);
            self.came.notify_all();
        }
        if let Some(runs) = &self.runs {
            runs.lock().ahead.end_change(ino, range.unwrap_or(&ALL));
        }
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
        if let Some(runs) = &self.runs {
            runs.lock().ahead.forget(ino);
        }
    }

    pub(crate) fn clear(&self) {
        if let Some(pages) = &self.pages {
            pages.lock().clear();
            self.came.notify_all();
        }
        if let Some(runs) = &self.runs {
            runs.lock().ahead.clear();
        }
    }

    /// An opening ends.
    pub(crate) fn close(&self, ino: Ino, opening: u64) {
        if let Some(runs) = &self.runs {
            runs.lock().ahead.close((ino, opening));
        }
    }
}
