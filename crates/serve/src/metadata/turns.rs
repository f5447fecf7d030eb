//! Operations that change a name take turns, each alone with its names; and the numbers of operations.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard, RwLock};
use types::Ino;

use crate::answer::No;

/// Others who change the same name are waited for on a thread.
const TURN_MAX: Duration = Duration::from_millis(500);
/// Numbers of claims of operations begin here.
const OPERATION: u64 = 1 << 63;
/// More than there are threads.
const TURNS: usize = 256;

/// Names that are being changed, by their hashes, and numbers of operations.
pub(super) struct Turns {
    locks: Vec<Mutex<()>>,
    last: AtomicU64,
    /// Who spreads or gathers a directory has it alone; changes of names share it.
    pub(super) parts: RwLock<()>,
}

impl Default for Turns {
    fn default() -> Turns {
        let locks = (0..TURNS).map(|_| Mutex::default()).collect();
        Turns { locks, last: AtomicU64::new(OPERATION), parts: RwLock::default() }
    }
}

impl Turns {
    pub(super) fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn take(&self, names: &[Name<'_>]) -> Result<Vec<MutexGuard<'_, ()>>, No> {
        let mut at: Vec<usize> = names.iter().map(turn_of).collect();
        at.sort_unstable();
        at.dedup();
        let guards =
            at.into_iter().filter_map(|at| self.locks.get(at)).map(|lock| lock.try_lock_for(TURN_MAX));
        guards.collect::<Option<_>>().ok_or_else(|| No::later("the name is being changed"))
    }
}

/// A name in a directory.
pub(super) type Name<'a> = (Ino, &'a [u8]);

fn turn_of((dir, name): &Name<'_>) -> usize {
    let mut hash = dir.get().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in *name {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (hash >> 40) as usize % TURNS
}
