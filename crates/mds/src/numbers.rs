//! New inode numbers: a range per UGSD in memory, taken from the store before numbers from it are used.
//!
//! Invariants: called under the UGSD's slot lock. A number is taken only after the commit that uses it (and that
//! reserved its range), so one that failed leaves no gap and no number without a range.

use std::{collections::HashSet, ops::Range};

use namespace::{alloc, txn::Txn};
use parking_lot::Mutex;
use types::{Errno, Ino, LocalId, NumberMap, Slot, UgsdId};

/// Numbers per range: what a crash wastes at most, and how seldom a range is written.
const RANGE: u64 = 4096;
const SHARDS: usize = 64;
/// UGSDs remembered per shard; beyond, ranges are forgotten and their rest is never used.
const REMEMBERED_MAX: usize = 4096;

type Ranges = NumberMap<UgsdId, Range<u64>>;

pub(crate) struct Numbers {
    shards: Box<[Mutex<Ranges>]>,
}

/// A number that can be used in the transaction that it was found in.
pub(crate) struct Fresh {
    pub(crate) ino: Ino,
    rest: Range<u64>,
}

impl Fresh {
    fn out_of<T: Txn + ?Sized>(
        txn: &mut T,
        ugsd: UgsdId,
        known: Option<Range<u64>>,
    ) -> namespace::Result<Fresh> {
        let range = match known.filter(|range| !range.is_empty()) {
            Some(range) => range,
            None => alloc::reserve(txn, ugsd, RANGE)?,
        };
        let local = LocalId::new(range.start).ok_or(Errno::ENOSPC)?;
        Ok(Fresh { ino: Ino::new(ugsd, local), rest: range.start + 1..range.end })
    }
}

impl Numbers {
    pub(crate) fn new() -> Numbers {
        Numbers { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ugsd: UgsdId) -> &Mutex<Ranges> {
        &self.shards[ugsd.get() as usize % SHARDS]
    }

    pub(crate) fn fresh<T: Txn + ?Sized>(&self, txn: &mut T, ugsd: UgsdId) -> namespace::Result<Fresh> {
        let known = self.shard(ugsd).lock().get(&ugsd).cloned();
        Fresh::out_of(txn, ugsd, known)
    }

    /// One more in the transaction that found `last`.
    pub(crate) fn another<T: Txn + ?Sized>(&self, txn: &mut T, last: &Fresh) -> namespace::Result<Fresh> {
        Fresh::out_of(txn, last.ino.ugsd(), Some(last.rest.clone()))
    }

    /// These slots are another server's: the rests of their ranges are never used.
    pub(crate) fn forget(&self, slots: &HashSet<Slot>) {
        for shard in &self.shards {
            shard.lock().retain(|ugsd, _| !slots.contains(&ugsd.slot()));
        }
    }

    /// The commit that used `fresh` succeeded.
    pub(crate) fn took(&self, fresh: Fresh) {
        let mut ranges = self.shard(fresh.ino.ugsd()).lock();
        if ranges.len() >= REMEMBERED_MAX && !ranges.contains_key(&fresh.ino.ugsd()) {
            ranges.clear();
        }
        ranges.insert(fresh.ino.ugsd(), fresh.rest);
    }
}
