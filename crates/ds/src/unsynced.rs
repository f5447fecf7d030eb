//! The device bytes of an object that wait for a sync.
//!
//! Behind a lock of its own, held for a moment: a sync of the journal makes them durable first, and must not wait for
//! whoever has the object's lock, since he may be waiting for room in the journal.

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use store::ObjectFd;
use types::{Errno, TierId, TierSet};

#[derive(Default)]
pub(crate) struct Unsynced {
    waiting: Mutex<Waiting>,
    syncing: Mutex<()>,
}

#[derive(Default)]
struct Waiting {
    files: [Option<Arc<ObjectFd>>; 3],
    /// How often each tier's file was changed: a sync counts only if nothing came in between. Counted after the change.
    changes: [u64; 3],
    /// A device refused to make bytes durable. The kernel may have dropped them, so a later success proves nothing.
    failed: bool,
    failures: u64,
    /// Tiers that did and whose copies are there still: no other copy is given up for them.
    distrusted: TierSet,
}

/// What a sync is to make durable.
pub(crate) struct Begun {
    pub tier: TierId,
    pub file: Arc<ObjectFd>,
    changes: u64,
    failures: u64,
}

impl Unsynced {
    /// Held over a sync and what is noted of it: the kernel tells of a failure once, and who syncs at the same time must not
    /// be told that all is well.
    pub fn one_at_a_time(&self) -> MutexGuard<'_, ()> {
        self.syncing.lock()
    }

    /// Returns whether nothing of this tier waited before.
    pub fn note(&self, tier: TierId, file: &Arc<ObjectFd>) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.changes[tier.index()] += 1;
        waiting.files[tier.index()].replace(file.clone()).is_none()
    }

    /// How often each tier's file was changed so far.
    pub fn changes(&self) -> [u64; 3] {
        self.waiting.lock().changes
    }

    pub fn tiers(&self) -> TierSet {
        let waiting = self.waiting.lock();
        let all = TierId::ALL.into_iter().filter(|t| waiting.files[t.index()].is_some());
        all.fold(TierSet::EMPTY, TierSet::with)
    }

    /// `EIO` once a sync has failed.
    pub fn begin(&self) -> Result<Vec<Begun>, Errno> {
        let waiting = self.waiting.lock();
        if waiting.failed {
            return Err(Errno::EIO);
        }
        let begun = |tier: TierId| {
            let (at, changes) = (tier.index(), waiting.changes[tier.index()]);
            let failures = waiting.failures;
            waiting.files[at].clone().map(|file| Begun { tier, file, changes, failures })
        };
        Ok(TierId::ALL.into_iter().filter_map(begun).collect())
    }

    /// A sync ended well. Returns whether the file changed meanwhile. `EIO` if another one failed meanwhile.
    pub fn end(&self, begun: &Begun) -> Result<bool, Errno> {
        let mut waiting = self.waiting.lock();
        if waiting.failures != begun.failures {
            return Err(Errno::EIO);
        }
        let at = begun.tier.index();
        let changed = waiting.changes[at] != begun.changes;
        if !changed {
            waiting.files[at] = None;
        }
        Ok(changed)
    }

    pub fn fail(&self, tier: TierId) {
        let mut waiting = self.waiting.lock();
        waiting.failed = true;
        waiting.failures += 1;
        waiting.distrusted = waiting.distrusted.with(tier);
    }

    pub fn distrusted(&self) -> TierSet {
        self.waiting.lock().distrusted
    }

    /// Their copies are about to be made anew: what fails from now on is noted again.
    pub fn trust(&self) -> TierSet {
        std::mem::take(&mut self.waiting.lock().distrusted)
    }

    /// That did not succeed.
    pub fn distrust(&self, tiers: TierSet) {
        let mut waiting = self.waiting.lock();
        waiting.distrusted = tiers.iter().fold(waiting.distrusted, TierSet::with);
    }

    /// Nobody has the object open any more who could ask. Returns whether a sync had failed.
    pub fn forget_failure(&self) -> bool {
        std::mem::take(&mut self.waiting.lock().failed)
    }

    /// What the devices did not take was written to them again: if none failed since, that is forgotten.
    pub fn forgive(&self) {
        let mut waiting = self.waiting.lock();
        waiting.failed &= !waiting.distrusted.is_empty();
    }

    /// The file is removed.
    pub fn forget(&self, tier: TierId) {
        self.waiting.lock().files[tier.index()] = None;
    }
}
