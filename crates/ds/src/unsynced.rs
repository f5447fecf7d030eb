//! The device bytes of an object that wait for a sync.
//!
//! Behind a lock of its own, held for a moment: a sync of the journal makes them durable first, and must not wait for
//! whoever has the object's lock, since he may be waiting for room in the journal.

use parking_lot::Mutex;
use std::sync::Arc;
use store::ObjectFd;
use types::{Errno, TierId, TierSet};

#[derive(Default)]
pub(crate) struct Unsynced(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    files: [Option<Arc<ObjectFd>>; 3],
    /// How often each tier's file was changed: a sync counts only if nothing came in between. Counted after the change.
    changes: [u64; 3],
    /// A device refused to make bytes durable. The kernel may have dropped them, so a later success proves nothing.
    failed: bool,
    /// Tiers that did and whose copies are there still: no other copy is given up for them.
    distrusted: TierSet,
}

/// What a sync is to make durable.
pub(crate) struct Begun {
    pub tier: TierId,
    pub file: Arc<ObjectFd>,
    changes: u64,
}

impl Unsynced {
    /// Returns whether nothing of this tier waited before.
    pub fn note(&self, tier: TierId, file: &Arc<ObjectFd>) -> bool {
        let mut waiting = self.0.lock();
        waiting.changes[tier.index()] += 1;
        waiting.files[tier.index()].replace(file.clone()).is_none()
    }

    /// How often each tier's file was changed so far.
    pub fn changes(&self) -> [u64; 3] {
        self.0.lock().changes
    }

    pub fn tiers(&self) -> TierSet {
        let waiting = self.0.lock();
        let all = TierId::ALL.into_iter().filter(|t| waiting.files[t.index()].is_some());
        all.fold(TierSet::EMPTY, TierSet::with)
    }

    /// `EIO` once a sync has failed.
    pub fn begin(&self) -> Result<Vec<Begun>, Errno> {
        let waiting = self.0.lock();
        if waiting.failed {
            return Err(Errno::EIO);
        }
        let begun = |tier: TierId| {
            let (at, changes) = (tier.index(), waiting.changes[tier.index()]);
            waiting.files[at].clone().map(|file| Begun { tier, file, changes })
        };
        Ok(TierId::ALL.into_iter().filter_map(begun).collect())
    }

    /// A sync ended well. Returns whether the file changed meanwhile.
    pub fn end(&self, begun: &Begun) -> bool {
        let mut waiting = self.0.lock();
        let at = begun.tier.index();
        let changed = waiting.changes[at] != begun.changes;
        if !changed {
            waiting.files[at] = None;
        }
        changed
    }

    pub fn fail(&self, tier: TierId) {
        let mut waiting = self.0.lock();
        waiting.failed = true;
        waiting.distrusted = waiting.distrusted.with(tier);
    }

    pub fn distrusted(&self) -> TierSet {
        self.0.lock().distrusted
    }

    /// Their copies were struck where there is another.
    pub fn trust(&self) {
        self.0.lock().distrusted = TierSet::EMPTY;
    }

    /// Nobody has the object open any more who could ask. Returns whether a sync had failed.
    pub fn forget_failure(&self) -> bool {
        std::mem::take(&mut self.0.lock().failed)
    }

    /// The file is removed.
    pub fn forget(&self, tier: TierId) {
        self.0.lock().files[tier.index()] = None;
    }
}
