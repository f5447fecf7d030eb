//! Calls about names, and what they are answered, as they are recorded.

use serde::{Deserialize, Serialize};

use crate::op::RenameKind;

pub const DIRS: u8 = 2;
pub const NAMES: u8 = 3;

/// A name in one of the two directories; both by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct At {
    pub dir: u8,
    pub name: u8,
}

/// The mode tells what was made by which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryOp {
    Create {
        at: At,
        mode: u16,
    },
    Mkdir {
        at: At,
        mode: u16,
    },
    Unlink {
        at: At,
    },
    Rmdir {
        at: At,
    },
    Rename {
        from: At,
        to: At,
        kind: RenameKind,
    },
    Link {
        from: At,
        to: At,
    },
    Stat {
        at: At,
    },
    Chmod {
        at: At,
        mode: u16,
    },
    Truncate {
        at: At,
        size: u64,
    },
    List {
        dir: u8,
    },
    /// Below a directory that may be removed or replaced meanwhile.
    CreateBelow {
        at: At,
        mode: u16,
    },
    UnlinkBelow {
        at: At,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryAnswer {
    Done,
    File { mode: u16, links: u32, size: u64 },
    Directory { mode: u16 },
    Names(Vec<u8>),
    Refused(Refusal),
}

/// Errors that say something of the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    NotThere,
    There,
    IsDirectory,
    NotDirectory,
    NotEmpty,
    /// `link` of a directory.
    NotPermitted,
    /// The kernel could not move a directory, which another client had moved, to where it is now (S-170).
    Moved,
}
