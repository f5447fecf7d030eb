//! Directories that are spread, as far as this mount was told: a request for a name in one goes to the part in which the name is.
//!
//! - I-SPREADS-1: what is remembered is only where to ask. Whoever is asked wrongly says so, and does nothing of it: then it is learned anew.

use std::collections::HashMap;

use parking_lot::Mutex;
use proto::{Request, spread::Over};

/// Directories that are remembered; beyond, all are learned anew. Some 64 bytes each.
const KNOWN_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct Spreads {
    known: Mutex<HashMap<u64, Over>>,
}

impl Spreads {
    pub(crate) fn of(&self, dir: u64) -> Option<Over> {
        self.known.lock().get(&dir).copied()
    }

    pub(crate) fn learn(&self, dir: u64, over: Option<Over>) {
        let mut known = self.known.lock();
        match over {
            Some(over) => {
                if known.len() >= KNOWN_MAX {
                    known.clear();
                }
                known.insert(dir, over);
            }
            None => drop(known.remove(&dir)),
        }
    }

    pub(crate) fn forget(&self, dir: u64) {
        self.known.lock().remove(&dir);
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
