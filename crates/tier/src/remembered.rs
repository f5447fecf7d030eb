//! What left a tier while it was on probation, up to a number of bytes: the oldest is forgotten first.

use std::collections::{BTreeMap, VecDeque};

use types::Ino;

/// Files that are remembered; 24 bytes each.
const REMEMBERED_MAX: usize = 1 << 16;

/// What left a tier while it was on probation.
#[derive(Default)]
pub(crate) struct Remembered {
    /// Oldest first, with its size.
    order: VecDeque<(Ino, u64)>,
    /// How often it is in `order`.
    inos: BTreeMap<Ino, u32>,
    bytes: u64,
}

impl Remembered {
    pub fn add(&mut self, ino: Ino, bytes: u64, most: u64) {
        self.order.push_back((ino, bytes));
        *self.inos.entry(ino).or_default() += 1;
        self.bytes += bytes;
        while self.bytes > most || self.order.len() > REMEMBERED_MAX {
            let Some((ino, bytes)) = self.order.pop_front() else { return };
            self.bytes -= bytes;
            if let Some(times) = self.inos.get_mut(&ino) {
                *times -= 1;
                if *times == 0 {
                    self.inos.remove(&ino);
                }
            }
        }
    }

    pub fn contains(&self, ino: Ino) -> bool {
        self.inos.contains_key(&ino)
    }
}
