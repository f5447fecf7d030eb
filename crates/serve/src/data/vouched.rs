//! Whether this server is the one that its number stands for, as the metadata servers say.
//!
//! - I-DATA-9: what it has not is not said to be empty before a metadata server took its report. While one says that the number is another
//!   server's, nothing is answered: it has none of that server's data.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use proto::Reason;
use types::Errno;
use wire::schema::Retry;

use crate::answer::No;

/// See the module's page.
#[derive(Default)]
pub(super) struct Vouched {
    /// No report was taken yet, and there will be some.
    waits: AtomicBool,
    /// How many metadata servers say that it is another.
    refusals: AtomicUsize,
}

impl Vouched {
    pub(super) fn wait(&self) {
        self.waits.store(true, Ordering::Release);
    }

    /// What one metadata server says now, and said last.
    pub(super) fn said(&self, refused: bool, before: bool) {
        match (before, refused) {
            (false, true) => drop(self.refusals.fetch_add(1, Ordering::AcqRel)),
            (true, false) => drop(self.refusals.fetch_sub(1, Ordering::AcqRel)),
            (true, true) | (false, false) => {}
        }
    }

    pub(super) fn taken(&self) {
        self.waits.store(false, Ordering::Release);
    }

    pub(super) fn may_answer(&self) -> Result<(), No> {
        if self.refusals.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let why = "the number of this data server is another's";
        Err(No::new(Errno::EIO, Retry::Never, Reason::DataServerAway, why))
    }

    pub(super) fn may_say_nothing(&self) -> Result<(), No> {
        if self.waits.load(Ordering::Acquire) {
            return Err(No::later("no metadata server has taken its report yet"));
        }
        Ok(())
    }
}
