//! Which slots are served here, and how they come and go.
//!
//! - I-OWN-1: an operation reads and writes only what is in slots that are ours while it holds their locks; reads without locks
//!   begin while the slot is ours. So who has let a slot go changes nothing in it, and what is read was true after the reading began.
//! - I-OWN-2: what was committed in a slot is in the engine before the slot is let go, and nothing that was read of it is remembered after.
//!
//! An operation is for the owner of the slot of the inode that it begins with, its *home*. What it needs beside that is gathered
//! here for it ([`Gather`]), so each operation stays one commit of one server, however many slots it touches.

use std::sync::atomic::{AtomicU64, Ordering};

use namespace::{
    key::{self, Parsed},
    superblock::Superblock,
};
use types::{Errno, SLOTS, Slot, UgsdId};

const WORDS: usize = SLOTS as usize / 64;
/// Slots that were gathered may be gone again before their locks are had.
pub(crate) const GATHERINGS_MAX: usize = 8;

/// Has the slots that an operation needs come here.
pub trait Gather: Send + Sync {
    /// All of them were ours a moment ago when it returns. The error is the operation's; `EAGAIN`: not now.
    fn gather(&self, slots: &[Slot]) -> Result<(), Errno>;
}

/// What a server needs to know to serve slots of a file system that another one made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// Its epoch is one that nobody else has.
    pub superblock: Superblock,
}

pub(crate) struct Owned {
    words: Box<[AtomicU64]>,
    /// Other servers may have slots.
    shared: bool,
    /// Grows when some come.
    comings: AtomicU64,
}

impl Owned {
    pub(crate) fn all() -> Owned {
        Owned {
            words: (0..WORDS).map(|_| AtomicU64::new(u64::MAX)).collect(),
            shared: false,
            comings: AtomicU64::new(0),
        }
    }

    pub(crate) fn some(slots: &[Slot]) -> Owned {
        let owned = Owned {
            words: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            shared: true,
            comings: AtomicU64::new(0),
        };
        owned.set(slots, true);
        owned
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    fn place(&self, slot: Slot) -> (&AtomicU64, u64) {
        let slot = usize::from(slot.get());
        // Slots are less than `SLOTS`.
        (&self.words[slot / 64], 1 << (slot % 64))
    }

    pub(crate) fn has(&self, slot: Slot) -> bool {
        let (word, bit) = self.place(slot);
        word.load(Ordering::Acquire) & bit != 0
    }

    pub(crate) fn set(&self, slots: &[Slot], ours: bool) {
        let comes = || ours.then(|| self.comings.fetch_add(1, Ordering::AcqRel));
        // Who finds one here finds that it has come; who finds it not here yet will.
        comes();
        for slot in slots {
            let (word, bit) = self.place(*slot);
            if ours {
                word.fetch_or(bit, Ordering::AcqRel);
            } else {
                word.fetch_and(!bit, Ordering::AcqRel);
            }
        }
        comes();
    }

    /// Grows whenever slots have come: also when all that went are back.
    pub(crate) fn comings(&self) -> u64 {
        self.comings.load(Ordering::Acquire)
    }
}

/// The slot that guards a key, where several servers have them: all keys of the file system as a whole are in the root's.
pub(crate) fn guard_of(key: &[u8]) -> Option<Slot> {
    let parsed = Parsed::new(key)?;
    match parsed.ugsd() {
        Some(ugsd) => Some(ugsd.slot()),
        None if parsed.kind == key::QUOTA => Some(UgsdId::ROOT.slot()),
        None => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Goal: who looked through all slots finds that some were another's meanwhile. Method: all go, and the same come back.
    #[test]
    fn slots_that_went_and_are_back_have_come() {
        let slots: Vec<Slot> = Slot::all().collect();
        let owned = Owned::some(&slots);
        let before = owned.comings();
        owned.set(&slots, false);
        assert_eq!(owned.comings(), before);
        owned.set(&slots, true);
        assert!(owned.comings() > before && slots.iter().all(|slot| owned.has(*slot)));
    }
}
