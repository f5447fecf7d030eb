//! Objects that are being copied to another data server, by the attempt that is followed.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use cluster::moving::Outgoing;
use parking_lot::Mutex;
use types::Ino;

/// One that nobody asks about for so long is not followed any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// Objects at once: each destination copies a few.
const FOLLOWED_MAX: usize = 1024;

pub(super) struct Leaving {
    began: Instant,
    /// Of the table: mostly none, and then nobody looks.
    count: AtomicUsize,
    table: Mutex<HashMap<Ino, One>>,
}

struct One {
    outgoing: Outgoing,
    asked: Duration,
}

impl Default for Leaving {
    fn default() -> Leaving {
        Leaving { began: Instant::now(), count: AtomicUsize::new(0), table: Mutex::default() }
    }
}

impl Leaving {
    /// With the object's followed attempt, if there is one.
    pub(super) fn with<R>(&self, ino: Ino, run: impl FnOnce(&mut Outgoing, Duration) -> R) -> Option<R> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let now = self.began.elapsed();
        self.table.lock().get_mut(&ino).map(|one| run(&mut one.outgoing, now))
    }

    /// Nobody is at the object meanwhile.
    pub(super) fn begin(&self, ino: Ino, attempt: u64) -> bool {
        let now = self.began.elapsed();
        let mut table = self.table.lock();
        table.retain(|_, one| now.saturating_sub(one.asked) < FORGOTTEN_AFTER);
        let newer = table.get(&ino).is_none_or(|one| one.outgoing.attempt() < attempt);
        let begins = newer && table.len() < FOLLOWED_MAX;
        if begins {
            table.insert(ino, One { outgoing: Outgoing::begin(attempt), asked: now });
        }
        self.count.store(table.len(), Ordering::Release);
        begins
    }

    pub(super) fn asked(&self, ino: Ino) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        if let Some(one) = self.table.lock().get_mut(&ino) {
            one.asked = self.began.elapsed();
        }
    }

    /// Was any of them asked about lately?
    pub(super) fn is_active(&self, lately: Duration) -> bool {
        let now = self.began.elapsed();
        self.table.lock().values().any(|one| now.saturating_sub(one.asked) < lately)
    }

    pub(super) fn forget(&self, ino: Ino) {
        let mut table = self.table.lock();
        table.remove(&ino);
        self.count.store(table.len(), Ordering::Release);
    }
}
