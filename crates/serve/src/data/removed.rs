//! Objects that were removed a while ago: a write that was under way then does not make them again.
//!
//! In memory, and bounded: a write is under way for a minute or two, and an inode's number is never used again.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;
use types::Ino;

/// 16 bytes each; as many as a fast purge removes in some minutes.
const REMEMBERED_MAX: usize = 1 << 18;

#[derive(Default)]
pub(super) struct Removed(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    known: HashSet<Ino>,
    order: VecDeque<Ino>,
}

impl Removed {
    pub(super) fn add(&self, ino: Ino) {
        let mut numbers = self.0.lock();
        if !numbers.known.insert(ino) {
            return;
        }
        numbers.order.push_back(ino);
        if numbers.order.len() > REMEMBERED_MAX
            && let Some(oldest) = numbers.order.pop_front()
        {
            numbers.known.remove(&oldest);
        }
    }

    pub(super) fn has(&self, ino: Ino) -> bool {
        self.0.lock().known.contains(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let removed = Removed::default();
        let ino = |n: u64| Ino::from_raw(n + 2).unwrap();
        for n in 0..REMEMBERED_MAX as u64 + 1 {
            removed.add(ino(n));
            removed.add(ino(n));
        }
        assert_eq!((removed.has(ino(0)), removed.has(ino(1))), (false, true));
        assert_eq!(removed.0.lock().known.len(), REMEMBERED_MAX);
    }
}
