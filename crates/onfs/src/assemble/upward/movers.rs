//! Brings files up, and lets files go that were read: a few threads, since each waits for its file.

use std::{collections::VecDeque, time::Duration};

use ds::RequestError;
use parking_lot::{Condvar, Mutex};
use plan::Promotion;
use types::{Errno, Ino, TierId};

use super::{
    parts::{UpwardParts, missing},
    runs::Asked,
};

/// A promotion that takes longer has met something that does not move.
const PATIENCE: Duration = Duration::from_secs(3600);
/// A drop needs no bytes to be moved; what is busy is asked for again when room is short again.
const DROP_PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(200);

/// What is to be done. Bounded by the runs: each has two promotions at most, and gives up each of its files once.
#[derive(Default)]
pub struct Work {
    waiting: Mutex<VecDeque<Asked>>,
    changed: Condvar,
}

impl Work {
    pub fn push(&self, asked: Vec<Asked>) {
        if !asked.is_empty() {
            self.waiting.lock().extend(asked);
            self.changed.notify_all();
        }
    }

    /// Waits a moment for it.
    pub fn next(&self) -> Option<Asked> {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            self.changed.wait_for(&mut waiting, LOOK);
        }
        waiting.pop_front()
    }
}

/// Brings one file up, as long as it is `wanted`.
pub fn promote(parts: &UpwardParts, ino: Ino, wanted: &dyn Fn() -> bool) -> Promotion {
    if !wanted() {
        return Promotion::Failed;
    }
    let file = match parts.client.use_file(ino) {
        Ok(file) => file,
        Err(Errno::ENOENT | Errno::ESTALE) => return Promotion::Never,
        Err(errno) => {
            tracing::debug!(%ino, %errno, "a file of a list could not be taken up");
            return Promotion::Failed;
        }
    };
    let before = parts.room().0;
    match parts.ds.prefetch_while(ino, PATIENCE, wanted) {
        Ok(done) if done.files_skipped == 0 => Promotion::Up { bytes: done.bytes_moved },
        // The core says that it was left, and not why.
        Ok(_) => {
            let now = parts.ds.report(file.object());
            match now.pinned {
                Some(tier) if tier != TierId::Memory => Promotion::Never,
                // There may be room since.
                Some(_) | None if before.min(parts.room().0) < missing(&now) => Promotion::NoRoom,
                Some(_) | None => Promotion::Failed,
            }
        }
        Err(RequestError::NoSpace) => Promotion::NoRoom,
        Err(RequestError::NoSuchObject | RequestError::NoSuchTier | RequestError::Pinned) => Promotion::Never,
        Err(RequestError::Busy | RequestError::Io | RequestError::Cancelled | RequestError::TooMany) => {
            Promotion::Failed
        }
    }
}

/// Gives a file's memory back, if a slower tier has all of it and nobody uses it.
pub fn release(parts: &UpwardParts, ino: Ino) {
    let Ok(file) = parts.client.use_file(ino) else { return };
    let now = parts.ds.report(file.object());
    if now.open || now.at_risk > 0 || now.pinned.is_some() || now.bytes[TierId::Memory.index()] == 0 {
        return;
    }
    let whole = [TierId::Ssd, TierId::Nearline].into_iter().find(|t| now.bytes[t.index()] >= now.size);
    if let Some(tier) = whole
        && let Err(error) = parts.ds.migrate(ino, tier, Some(DROP_PATIENCE))
    {
        tracing::debug!(%ino, ?error, "a file that was read stays in memory");
    }
}
