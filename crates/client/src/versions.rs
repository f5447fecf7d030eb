//! Which cached pages are old: a count, per inode, of the times that its bytes may have changed behind the
//! kernel's page cache.
//!
//! Invariants: only writes through a backing file go behind it, and before Linux 6.6 those of files opened for direct
//! I/O (all others the kernel sees and drops the pages itself); an inode that the kernel has forgotten has no pages, so its count goes with it; the table holds
//! nothing for files that were never open for writing in one of these ways.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use types::Ino;

const SHARDS: usize = 8;

pub(crate) struct Versions {
    shards: [Mutex<HashMap<u64, u64>>; SHARDS],
    entries: AtomicUsize,
}

impl Versions {
    pub(crate) fn new() -> Versions {
        Versions { shards: std::array::from_fn(|_| Mutex::new(HashMap::new())), entries: AtomicUsize::new(0) }
    }

    pub(crate) fn get(&self, ino: Ino) -> u64 {
        if self.entries.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.shard(ino).lock().get(&ino.get()).copied().unwrap_or(0)
    }

    /// Before and after an open file that may write behind the page cache.
    pub(crate) fn changed(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        let count = shard.entry(ino.get()).or_insert_with(|| {
            self.entries.fetch_add(1, Ordering::Relaxed);
            0
        });
        *count += 1;
    }

    pub(crate) fn forget(&self, ino: Ino) {
        if self.entries.load(Ordering::Relaxed) > 0 && self.shard(ino).lock().remove(&ino.get()).is_some() {
            self.entries.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<u64, u64>> {
        &self.shards[ino.get() as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: changes are counted per inode and forgotten with it.
    #[test]
    fn versions_are_per_inode() {
        let versions = Versions::new();
        let (a, b) = (Ino::from_raw(2).unwrap(), Ino::from_raw(2 + SHARDS as u64).unwrap());
        assert_eq!(versions.get(a), 0);
        versions.changed(a);
        versions.changed(a);
        assert_eq!((versions.get(a), versions.get(b)), (2, 0));
        versions.forget(b);
        versions.forget(a);
        assert_eq!((versions.get(a), versions.entries.load(Ordering::Relaxed)), (0, 0));
    }
}
