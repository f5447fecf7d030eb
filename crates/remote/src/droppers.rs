//! What the threads share that have the kernel drop pages. What they do: [`crate::dropping`].

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use fuse::{Call, Notifier};
use parking_lot::{Condvar, Mutex};
use types::Ino;

use crate::mapped::{Job, Mapped};

/// A look at whether the mount is still there.
const LOOK: Duration = Duration::from_secs(1);

/// A request of the kernel's to write a page back.
pub(crate) struct Again {
    pub(crate) call: Call,
    pub(crate) since: Instant,
    pub(crate) due: Instant,
}

#[derive(Default)]
pub(crate) struct Dropping {
    pub(crate) mapped: Mutex<Mapped>,
    /// What was changed through mappings and could not be written: when it came, and when it is tried again. The kernel has few such requests under
    /// way at once.
    pub(crate) again: Mutex<Vec<Again>>,
    /// There are jobs.
    pub(crate) some: Condvar,
    /// Files can be mapped, and what is to drop their pages is there.
    pub(crate) notifier: OnceLock<Notifier>,
    pub(crate) ended: AtomicBool,
}

impl Dropping {
    /// None: shared mappings are refused, and nothing is known of pages.
    pub(crate) fn is_on(&self) -> bool {
        self.notifier.get().is_some()
    }

    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.is_on() && self.mapped.lock().has(ino)
    }

    /// Files with pages, and how often some were dropped.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let mapped = self.mapped.lock();
        (mapped.len() as u64, mapped.drops())
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.again.lock().clear();
        self.some.notify_all();
    }

    pub(crate) fn next(&self) -> Option<Job> {
        let mut mapped = self.mapped.lock();
        loop {
            if self.ended.load(Ordering::Acquire) {
                return None;
            }
            if let Some(job) = mapped.next() {
                return Some(job);
            }
            self.some.wait_for(&mut mapped, LOOK);
        }
    }
}
