//! What can be leased, and which leases and operations go together.

use types::{Ino, Slot, UgsdId};

/// What a lease is on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    Inode(Ino),
    /// A name in a directory, there or not.
    Entry {
        dir: Ino,
        name: Box<[u8]>,
    },
}

impl Key {
    pub const fn ugsd(&self) -> UgsdId {
        match self {
            Key::Inode(ino) | Key::Entry { dir: ino, .. } => ino.ugsd(),
        }
    }

    /// Its owner grants it.
    pub const fn slot(&self) -> Slot {
        self.ugsd().slot()
    }
}

/// What a client may do without asking.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rights(u8);

impl Rights {
    pub const NONE: Rights = Rights(0);
    /// Keep what was told: of an inode its attributes, of an entry what it names, or that it is not there.
    pub const ATTRIBUTES: Rights = Rights(1);
    /// Keep what was read: the pages of a file, the listing of a directory.
    pub const PAGES: Rights = Rights(2);
    /// Keep what was written, and so know size and times better than anybody else.
    pub const WRITE_BACK: Rights = Rights(4);
    pub const ALL: Rights = Rights(7);

    /// As they are sent; bits that nobody knows are not believed.
    pub const fn from_bits(bits: u8) -> Option<Rights> {
        if bits & !Rights::ALL.0 == 0 { Some(Rights(bits)) } else { None }
    }
    pub const fn bits(self) -> u8 {
        self.0
    }
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    pub const fn contains(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }
    #[must_use]
    pub const fn with(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }
    #[must_use]
    pub const fn without(self, other: Rights) -> Rights {
        Rights(self.0 & !other.0)
    }
    #[must_use]
    pub const fn both(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }
    /// May two clients not have these at one time? Who keeps what it wrote is alone.
    pub const fn conflicts(self, other: Rights) -> bool {
        (self.contains(Rights::WRITE_BACK) && !other.is_empty())
            || (other.contains(Rights::WRITE_BACK) && !self.is_empty())
    }
}

impl std::fmt::Debug for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (right, letter) in [(Rights::ATTRIBUTES, 'a'), (Rights::PAGES, 'p'), (Rights::WRITE_BACK, 'w')] {
            write!(f, "{}", if self.contains(right) { letter } else { '-' })?;
        }
        Ok(())
    }
}

/// What an operation does to a key. One that lasts is an opening of a file. Claims of several clients go together: what they do
/// goes to the servers, which put it in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Claim {
    /// It wants the truth: a look at attributes, an opening for reading.
    Look,
    /// It changes what is told, and no bytes: `chmod`, an entry that comes or goes.
    Change,
    /// It changes bytes or size: an opening for writing, `truncate`, the listing of a directory.
    Modify,
}

impl Claim {
    /// What no other client may have meanwhile.
    pub const fn excludes(self) -> Rights {
        match self {
            Claim::Look => Rights::WRITE_BACK,
            Claim::Change => Rights::ATTRIBUTES.with(Rights::WRITE_BACK),
            Claim::Modify => Rights::ALL,
        }
    }

    /// What its own client may be given meanwhile. Only who has a file open for writing can come to keep what it writes.
    pub const fn allows(self) -> Rights {
        match self {
            Claim::Look | Claim::Change => Rights::ATTRIBUTES.with(Rights::PAGES),
            Claim::Modify => Rights::ALL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_that_conflict_are_those_that_a_claim_for_them_excludes() {
        // Goal: one matrix, told in two ways. Method: every pair of rights.
        for (mine, other) in (0..8).flat_map(|a| (0..8).map(move |b| (Rights(a), Rights(b)))) {
            let needs = if mine.contains(Rights::WRITE_BACK) { Claim::Modify } else { Claim::Look };
            let excluded = !mine.is_empty() && !needs.excludes().both(other).is_empty();
            assert_eq!(mine.conflicts(other), excluded, "{mine:?} {other:?}");
            assert_eq!(mine.conflicts(other), other.conflicts(mine));
        }
        assert!((0..=255).all(|bits| Rights::from_bits(bits).is_some() == (bits < 8)));
    }
}
