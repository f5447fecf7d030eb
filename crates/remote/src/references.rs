//! The inodes that the kernel refers to, which are the session's references, and those that are to be given back.

use std::collections::HashMap;

use parking_lot::Mutex;
use proto::{BATCH_MAX, metadata::Reference};
use types::Ino;

#[derive(Default)]
pub(crate) struct References {
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    /// As many as the kernel knows, so it has the kernel's bound.
    held: HashMap<u64, u64>,
    /// Given up by the kernel, and not yet given back. At most as many as were held.
    back: HashMap<u64, u64>,
}

impl References {
    pub(crate) fn add(&self, ino: Ino) {
        *self.tables.lock().held.entry(ino.get()).or_default() += 1;
    }

    /// The kernel has given up so many.
    pub(crate) fn forget(&self, ino: u64, count: u64) {
        let mut tables = self.tables.lock();
        let Some(held) = tables.held.get_mut(&ino) else { return };
        let count = count.min(*held);
        *held -= count;
        if *held == 0 {
            tables.held.remove(&ino);
        }
        *tables.back.entry(ino).or_default() += count;
    }

    /// One that came with an answer and that the kernel was not told of.
    pub(crate) fn untold(&self, ino: Ino) {
        *self.tables.lock().back.entry(ino.get()).or_default() += 1;
    }

    /// They were taken to be given back, and were not.
    pub(crate) fn again(&self, reference: Reference) {
        *self.tables.lock().back.entry(reference.ino).or_default() += reference.count;
    }

    /// Some that are to be given back; they are no longer here.
    pub(crate) fn take_back(&self) -> Vec<Reference> {
        let mut tables = self.tables.lock();
        let some: Vec<u64> = tables.back.keys().take(BATCH_MAX).copied().collect();
        let taken =
            some.into_iter().filter_map(|ino| tables.back.remove(&ino).map(|count| Reference { ino, count }));
        taken.filter(|reference| reference.count > 0).collect()
    }

    /// All that a session made in place of a lost one must have. What was to be given back is gone with that.
    pub(crate) fn all(&self) -> Vec<Reference> {
        let mut tables = self.tables.lock();
        tables.back.clear();
        tables.held.iter().map(|(ino, count)| Reference { ino: *ino, count: *count }).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.tables.lock().held.len()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what is held and what goes back add up to what came. Method: references that come and go.
    use super::*;

    #[test]
    fn references_add_up() {
        let references = References::default();
        let ino = Ino::ROOT;
        (0..3).for_each(|_| references.add(ino));
        references.untold(ino);
        references.forget(ino.get(), 2);
        assert_eq!(references.len(), 1);
        assert_eq!(references.take_back(), [Reference { ino: 1, count: 3 }]);
        assert!(references.take_back().is_empty());
        references.forget(ino.get(), 9);
        assert_eq!(references.all(), []);
        assert!(references.take_back().is_empty(), "a new session has none to give back");
        references.forget(77, 1);
        assert_eq!(references.len(), 0);
    }
}
