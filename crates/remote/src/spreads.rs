//! Directories that are spread, as far as this mount was told: a request for a name in one goes to the part in which the name is.
//!
//! - I-SPREADS-1: what is remembered is only where to ask. Whoever is asked wrongly says so, and does nothing of it: then it is learned anew.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use proto::{Request, spread::Over};
use types::Ino;

/// Directories that are remembered; beyond, all are learned anew. Some 64 bytes each.
const KNOWN_MAX: usize = 4096;

#[derive(Default)]
struct Known {
    over: HashMap<u64, Over>,
    /// Of each part, the directory.
    wholes: HashMap<Ino, u64>,
}

impl Known {
    fn forget(&mut self, dir: u64) {
        if let Some(over) = self.over.remove(&dir) {
            for part in over.parts() {
                self.wholes.remove(&part);
            }
        }
    }
}

#[derive(Default)]
pub(crate) struct Spreads {
    known: Mutex<Known>,
    /// Times that what is known has changed.
    learned: AtomicU64,
}

impl Spreads {
    pub(crate) fn of(&self, dir: u64) -> Option<Over> {
        self.known.lock().over.get(&dir).copied()
    }

    pub(crate) fn learn(&self, dir: u64, over: Option<Over>) {
        let mut known = self.known.lock();
        known.forget(dir);
        if let Some(over) = over {
            if known.over.len() >= KNOWN_MAX {
                *known = Known::default();
            }
            known.wholes.extend(over.parts().map(|part| (part, dir)));
            known.over.insert(dir, over);
        }
        self.learned.fetch_add(1, Ordering::AcqRel);
    }

    /// Times that what is known has changed.
    pub(crate) fn learned(&self) -> u64 {
        self.learned.load(Ordering::Acquire)
    }

    /// The directory that a program names, whose part this may be.
    pub(crate) fn whole_of(&self, part: Ino) -> Ino {
        let whole = self.known.lock().wholes.get(&part).copied();
        whole.and_then(Ino::from_raw).unwrap_or(part)
    }

    /// Where its server knows the name: in the directory, or in a part of it.
    pub(crate) fn place(&self, dir: Ino, name: &[u8]) -> Ino {
        self.of(dir.get()).map_or(dir, |over| over.part_of(name))
    }

    /// Has the request be about the parts. Returns the directories whose places they took.
    pub(crate) fn enter<R: Request>(&self, request: &mut R) -> Vec<u64> {
        let mut entered = Vec::new();
        request.directories(&mut |dir, name| {
            if let Some(name) = name.filter(|name| *name != b"." && *name != b"..")
                && let Some(over) = self.of(*dir)
            {
                entered.push(*dir);
                *dir = over.part_of(name).get();
            }
        });
        entered
    }
}
