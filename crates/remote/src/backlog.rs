//! The writes that a mount keeps back, for all its threads: the lock, and how they wait for who sends. What comes and goes, [`crate::keeping_back`] says.

use std::{sync::atomic::AtomicBool, thread::JoinHandle, time::Instant};

use parking_lot::{Condvar, Mutex};
use types::Ino;

use crate::back::{Back, BackCounts};

/// The table for all threads.
pub(crate) struct Backlog {
    /// `None`: nothing is kept back.
    pub(crate) back: Option<Mutex<Back>>,
    /// Somebody has sent what he had to.
    pub(crate) sent: Condvar,
    /// The server knows nothing of it.
    pub(crate) unknown: AtomicBool,
    /// Of several metadata servers one could not be told then that writes may be kept back.
    pub(crate) untold: Mutex<Option<Instant>>,
    pub(crate) ended: Mutex<bool>,
    pub(crate) end: Condvar,
    pub(crate) sender: Mutex<Option<JoinHandle<()>>>,
}

impl Backlog {
    pub(crate) fn new(bytes: u64) -> Backlog {
        Backlog {
            back: (bytes > 0).then(|| Mutex::new(Back::new(bytes))),
            sent: Condvar::new(),
            unknown: AtomicBool::new(false),
            untold: Mutex::default(),
            ended: Mutex::new(false),
            end: Condvar::new(),
            sender: Mutex::default(),
        }
    }

    pub(crate) fn counts(&self) -> BackCounts {
        self.back.as_ref().map(|back| back.lock().counts()).unwrap_or_default()
    }

    pub(crate) fn has_rights(&self) -> bool {
        self.back.as_ref().is_some_and(|back| back.lock().has_rights())
    }

    pub(crate) fn has_number(&self, node: u64) -> bool {
        Ino::from_raw(node).is_some_and(|ino| self.has(ino))
    }

    /// Is something of the file kept back?
    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.back.as_ref().is_some_and(|back| back.lock().has(ino))
    }
}
