//! New numbers: of inodes a range per UGSD in memory, and one of UGSDs.
//!
//! Invariants: called under the UGSD's slot lock (the root's for UGSDs). A number is used only when its range is reserved by a
//! commit that survives a power cut, for clients and data servers of other machines remember it (I-MDS-2). The range after
//! the next is reserved with a use, long before it is needed, so an operation seldom waits for that. A number is taken only after
//! the commit that uses it, so one that failed leaves no gap.

use std::{
    collections::HashSet,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use kv::Lsn;
use namespace::{alloc, txn::Txn};
use parking_lot::Mutex;
use types::{Errno, Ino, LocalId, NumberMap, Slot, UgsdId};

/// Inode numbers per range: what a crash wastes at most, of 2^40. Half of one is used up in no less time than the journal's
/// next sync takes, or nearly so.
const INODES: u64 = 1 << 16;
/// UGSDs per range. There are 2^24.
const UGSDS: u32 = 128;
const SHARDS: usize = 64;
/// UGSDs remembered per shard; beyond, ranges are forgotten and their rest is never used.
const REMEMBERED_MAX: usize = 4096;

/// Whose numbers have to be reserved before an operation can go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    Inodes(UgsdId),
    Ugsds,
}

impl Wanted {
    /// That guards them.
    pub(crate) fn slot(self) -> Slot {
        match self {
            Wanted::Inodes(ugsd) => ugsd.slot(),
            Wanted::Ugsds => UgsdId::ROOT.slot(),
        }
    }

    /// So many ranges of them, in one, which counts once the transaction is committed.
    fn reserve<T: Txn + ?Sized>(self, txn: &mut T, times: u32) -> namespace::Result<Range<u64>> {
        match self {
            Wanted::Inodes(ugsd) => alloc::reserve(txn, ugsd, INODES * u64::from(times)),
            Wanted::Ugsds => alloc::reserve_ugsds(txn, UGSDS * times)
                .map(|range| u64::from(range.start)..u64::from(range.end)),
        }
    }

    /// So few are left that the next are reserved.
    fn is_low(self, left: &Range<u64>) -> bool {
        let whole = match self {
            Wanted::Inodes(_) => INODES,
            Wanted::Ugsds => u64::from(UGSDS),
        };
        left.end - left.start < whole / 2
    }
}

/// What is known of the numbers of one kind.
#[derive(Clone, Default)]
struct Known {
    /// They can be used.
    now: Range<u64>,
    then: Option<Next>,
}

#[derive(Clone)]
struct Next {
    range: Range<u64>,
    /// Of the commit that reserved them; `None` while that is not committed.
    at: Option<Lsn>,
}

impl Known {
    /// The next number that can be used, of what survives with the commits up to `synced`.
    fn take<T: Txn + ?Sized>(
        mut self,
        txn: &mut T,
        wanted: Wanted,
        synced: &dyn Fn() -> Lsn,
    ) -> namespace::Result<Option<(u64, Known)>> {
        if self.now.is_empty() {
            match self.then.take() {
                Some(Next { range, at: Some(lsn) }) if synced() >= lsn => self.now = range,
                Some(_) | None => return Ok(None),
            }
        }
        let Some(number) = self.now.next() else { return Ok(None) };
        if self.then.is_none() && wanted.is_low(&self.now) {
            match wanted.reserve(txn, 1) {
                Ok(range) => self.then = Some(Next { range, at: None }),
                // There are no more: what is left can be used.
                Err(namespace::Error::Errno(Errno::ENOSPC)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some((number, self)))
    }
}

/// A number that can be used in the transaction that it was found in.
pub(crate) struct Fresh {
    pub(crate) number: u64,
    wanted: Wanted,
    rest: Known,
}

impl Fresh {
    /// Of an inode of `ugsd`; `ENOSPC`: there is no such number.
    pub(crate) fn ino(&self, ugsd: UgsdId) -> namespace::Result<Ino> {
        Ok(Ino::new(ugsd, LocalId::new(self.number).ok_or(Errno::ENOSPC)?))
    }
}

pub(crate) struct Numbers {
    shards: Box<[Mutex<NumberMap<UgsdId, Known>>]>,
    ugsds: Mutex<Known>,
    ugsds_used_up: AtomicBool,
}

impl Numbers {
    pub(crate) fn new() -> Numbers {
        Numbers {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            ugsds: Mutex::default(),
            ugsds_used_up: AtomicBool::new(false),
        }
    }

    fn shard(&self, ugsd: UgsdId) -> &Mutex<NumberMap<UgsdId, Known>> {
        &self.shards[ugsd.get() as usize % SHARDS]
    }

    fn known(&self, wanted: Wanted) -> Known {
        match wanted {
            Wanted::Inodes(ugsd) => self.shard(ugsd).lock().get(&ugsd).cloned().unwrap_or_default(),
            Wanted::Ugsds => self.ugsds.lock().clone(),
        }
    }

    fn know(&self, wanted: Wanted, known: Known) {
        match wanted {
            Wanted::Inodes(ugsd) => {
                let mut shard = self.shard(ugsd).lock();
                if shard.len() >= REMEMBERED_MAX && !shard.contains_key(&ugsd) {
                    shard.clear();
                }
                shard.insert(ugsd, known);
            }
            Wanted::Ugsds => *self.ugsds.lock() = known,
        }
    }

    /// The next one, the next after `last` in the transaction that found that. `None`: they have to be reserved first
    /// ([`Numbers::reserve`]), or that has to be made durable. `synced` says up to which commit everything is.
    pub(crate) fn fresh<T: Txn + ?Sized>(
        &self,
        txn: &mut T,
        (wanted, last): (Wanted, Option<&Fresh>),
        synced: &dyn Fn() -> Lsn,
    ) -> namespace::Result<Option<Fresh>> {
        let known = last.map_or_else(|| self.known(wanted), |last| last.rest.clone());
        let taken = known.take(txn, wanted, synced)?;
        Ok(taken.map(|(number, rest)| Fresh { number, wanted, rest }))
    }

    /// The numbers of a new UGSD, whose directory is made by the same commit: if that is lost so is the UGSD, and its number is
    /// not given again.
    pub(crate) fn first<T: Txn + ?Sized>(&self, txn: &mut T, ugsd: UgsdId) -> Fresh {
        let rest = Known { now: alloc::first(txn, ugsd, INODES), then: None };
        Fresh { number: LocalId::TOP.get(), wanted: Wanted::Inodes(ugsd), rest }
    }

    /// The commit that used `fresh` succeeded; it is one of those up to `lsn`.
    pub(crate) fn took(&self, fresh: Fresh, lsn: Lsn) {
        let Fresh { wanted, mut rest, .. } = fresh;
        if let Some(next) = &mut rest.then {
            next.at.get_or_insert(lsn);
        }
        self.know(wanted, rest);
    }

    /// The next range, unless there is one already: then the commit that has to be durable before it is used. One for whom
    /// that was not enough, which is not the `time`-th time 0, gets more.
    pub(crate) fn reserve<T: Txn + ?Sized>(
        &self,
        txn: &mut T,
        (wanted, time): (Wanted, u32),
    ) -> namespace::Result<Reserved> {
        match self.known(wanted).then {
            Some(Next { at: Some(lsn), .. }) if time == 0 => Ok(Reserved::At(lsn)),
            Some(Next { range, .. }) => {
                let more = wanted.reserve(txn, 4 << time)?;
                // Something else in between is no error: what is left of it is not used.
                let start = if range.end == more.start { range.start } else { more.start };
                Ok(Reserved::Now(start..more.end))
            }
            None => wanted.reserve(txn, 1).map(Reserved::Now),
        }
    }

    /// The commit that reserved `range` is one of those up to `lsn`.
    pub(crate) fn reserved(&self, wanted: Wanted, range: Range<u64>, lsn: Lsn) {
        let known = self.known(wanted);
        self.know(wanted, Known { then: Some(Next { range, at: Some(lsn) }), ..known });
    }

    /// There will be no new UGSDs in this file system.
    pub(crate) fn has_no_ugsds(&self) -> bool {
        self.ugsds_used_up.load(Ordering::Acquire)
    }

    pub(crate) fn no_more_ugsds(&self) {
        self.ugsds_used_up.store(true, Ordering::Release);
    }

    /// These slots are another server's: the rests of their ranges are never used.
    pub(crate) fn forget(&self, slots: &HashSet<Slot>) {
        for shard in &self.shards {
            shard.lock().retain(|ugsd, _| !slots.contains(&ugsd.slot()));
        }
    }

    /// Nobody is given UGSDs here any more: the rest of what was reserved, if it is the last part of `..end`.
    pub(crate) fn rest_of_ugsds(&self, end: u32) -> Option<u32> {
        let Known { now, then } = std::mem::take(&mut *self.ugsds.lock());
        let rest = match then {
            Some(Next { range, .. }) if now.is_empty() || now.end == range.start => {
                if now.is_empty() {
                    range
                } else {
                    now.start..range.end
                }
            }
            Some(_) => return None,
            None => now,
        };
        u32::try_from(rest.start).ok().filter(|start| rest.end == u64::from(end) && *start < end)
    }
}

/// See [`Numbers::reserve`].
pub(crate) enum Reserved {
    Now(Range<u64>),
    At(Lsn),
}
