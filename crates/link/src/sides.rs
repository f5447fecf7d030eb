//! The two sides of one directory: ours with what is not applied yet, and theirs as it was listed.

use std::collections::{BTreeMap, BTreeSet};

use types::{FileKind, Ino};

use crate::seen::Seen;

pub(crate) type Name = Vec<u8>;

/// What we have of an inode under one name. With several names it has one of these for each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ours {
    pub ino: Ino,
    pub kind: FileKind,
    pub standing: Standing,
    pub changed: Changed,
    /// A step of it is being applied, or was since the listing began: nothing is concluded about it now.
    pub busy: bool,
}

/// Which side has it in this directory, as far as we know. At most one inode has a name of ours, and one a name of theirs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Both. The names differ while a rename of ours is not applied.
    Both { ours: Name, theirs: Name, agreed: Seen },
    /// Made here, not applied.
    Created { ours: Name },
    /// From another directory, not applied: their place is there.
    RenamedIn { ours: Name },
    /// To another directory, not applied.
    RenamedOut { theirs: Name, agreed: Seen },
    /// Unlinked or replaced here, not applied.
    Deleted { theirs: Name, agreed: Seen },
}

impl Standing {
    pub(crate) fn ours(&self) -> Option<&Name> {
        match self {
            Standing::Both { ours, .. } | Standing::Created { ours } | Standing::RenamedIn { ours } => {
                Some(ours)
            }
            Standing::RenamedOut { .. } | Standing::Deleted { .. } => None,
        }
    }

    pub(crate) fn theirs(&self) -> Option<(&Name, &Seen)> {
        match self {
            Standing::Both { theirs, agreed, .. }
            | Standing::RenamedOut { theirs, agreed }
            | Standing::Deleted { theirs, agreed } => Some((theirs, agreed)),
            Standing::Created { .. } | Standing::RenamedIn { .. } => None,
        }
    }
}

/// What is changed here and not applied there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Changed {
    Nothing,
    Attributes,
    /// Bytes; of a directory, anything below it.
    Data,
}

/// What the back end has in the directory, without "." and "..".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    pub entries: BTreeMap<Name, Seen>,
    /// It was read to its end, and the directory's own times were the same before and after: what is not in it is not there.
    pub whole: bool,
    /// Names in the directory that steps under way give, or gave since the listing began ([`crate::Log::under_way`]): whose
    /// they are is not known yet.
    pub busy: BTreeSet<Name>,
}
