//! When looks were made, and which are being made: one at a time at each inode, and at the names of each directory.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use types::Ino;

/// Inodes whose last look is remembered in memory; with more all are forgotten, and looked at again.
const REMEMBERED: usize = 1 << 20;
/// What is looked at: an inode itself, or the names of a directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum At {
    Itself(Ino),
    Names(Ino),
}

/// When we last looked, and who looks now.
#[derive(Default)]
pub(crate) struct Looks {
    last: Mutex<HashMap<At, Instant>>,
    running: Mutex<BTreeSet<At>>,
    ended: Condvar,
}

impl Looks {
    pub fn is_due(&self, at: At, interval: Duration) -> bool {
        self.last.lock().get(&at).is_none_or(|last| last.elapsed() >= interval)
    }

    pub fn note(&self, at: At) {
        let mut last = self.last.lock();
        if last.len() >= REMEMBERED {
            last.clear();
        }
        last.insert(at, Instant::now());
    }

    pub fn forget_all(&self) {
        self.last.lock().clear();
    }

    pub fn forget(&self, at: At) {
        self.last.lock().remove(&at);
    }

    /// `None`: somebody else has just looked.
    pub fn begin(&self, at: At, deadline: Duration) -> Option<Running<'_>> {
        let mut running = self.running.lock();
        if running.insert(at) {
            return Some(Running { looks: self, at });
        }
        let until = Instant::now() + deadline;
        while running.contains(&at) {
            if self.ended.wait_until(&mut running, until).timed_out() {
                break;
            }
        }
        None
    }
}

pub(crate) struct Running<'a> {
    looks: &'a Looks,
    at: At,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.looks.running.lock().remove(&self.at);
        self.looks.ended.notify_all();
    }
}
