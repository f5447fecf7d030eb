//! Which files the kernel reads by itself (passthrough), and with which backing file. How that comes about: `borrowing`.
//!
//! - The kernel has all openings of a file in passthrough, with one backing file, or none: who comes first decides, and whoever comes
//!   meanwhile waits for that. It begins with a reader who is alone, and ends with the last opening.

use std::{
    collections::BTreeMap,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use fuse::{Backing, BackingId};
use parking_lot::{Condvar, Mutex};
use types::{Errno, Ino};

/// Longer than who decides takes.
const DECIDED: Duration = Duration::from_secs(30);
#[derive(Default)]
struct Opened {
    openings: u32,
    /// Somebody is at it.
    deciding: bool,
    backing: Option<BackingId>,
}

#[derive(Default)]
pub(crate) struct Through {
    pub(crate) backing: OnceLock<Backing>,
    /// The kernel does not let us.
    pub(crate) refused: AtomicBool,
    /// Of files that are open: as many as the server lets the session have.
    table: Mutex<BTreeMap<Ino, Opened>>,
    decided: Condvar,
    /// Files that were lent to this mount so far.
    pub(crate) began: AtomicU64,
}

/// An opening that is counted.
pub(crate) enum Entered {
    First,
    Beside(Option<BackingId>),
}

impl Through {
    pub(crate) fn attach(&self, backing: Backing) {
        // A second INIT on the same mount cannot be: the session answers one.
        let _ = self.backing.set(backing);
    }

    /// Files that the kernel reads by itself now, and that it did so far.
    pub(crate) fn files(&self) -> (usize, u64) {
        let now = self.table.lock().values().filter(|one| one.backing.is_some()).count();
        (now, self.began.load(Ordering::Relaxed))
    }

    /// Does the kernel read it by itself, or is that being decided?
    pub(crate) fn has(&self, ino: Ino) -> bool {
        let table = self.table.lock();
        table.get(&ino).is_some_and(|opened| opened.backing.is_some() || opened.deciding)
    }

    pub(crate) fn enter(&self, ino: Ino) -> Result<Entered, Errno> {
        let (mut table, end) = (self.table.lock(), Instant::now() + DECIDED);
        loop {
            let opened = table.entry(ino).or_default();
            if !opened.deciding {
                opened.openings += 1;
                opened.deciding = opened.openings == 1;
                return Ok(if opened.deciding { Entered::First } else { Entered::Beside(opened.backing) });
            }
            if self.decided.wait_until(&mut table, end).timed_out() {
                return Err(Errno::EIO);
            }
        }
    }

    pub(crate) fn decide(&self, ino: Ino, backing: Option<BackingId>) {
        if let Some(opened) = self.table.lock().get_mut(&ino) {
            (opened.deciding, opened.backing) = (false, backing);
        }
        self.decided.notify_all();
    }

    /// An opening is closed. The kernel has ended its passthrough before it says so.
    pub(crate) fn leave(&self, ino: Ino) {
        let mut table = self.table.lock();
        let Some(opened) = table.get_mut(&ino) else { return };
        opened.openings = opened.openings.saturating_sub(1);
        if opened.openings > 0 {
            return;
        }
        let backing = table.remove(&ino).and_then(|opened| opened.backing);
        // Under the lock: nobody begins anew before.
        if let (Some(of), Some(id)) = (self.backing.get(), backing)
            && let Err(error) = of.close(id)
        {
            tracing::debug!(%ino, %error, "a backing file was not let go");
        }
    }
}
