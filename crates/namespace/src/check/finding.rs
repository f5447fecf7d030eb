//! What a check can find.

use std::fmt;

use types::{FileKind, Ino, ProjectId, UgsdId};

use crate::{InodeFlags, key, quota::Delta};

/// One thing that is not as it must be. [`super::repair`] says which can be put right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// A record that does not have its form, or a key that none of our records has. Only damaged quota and
    /// allocator records can be made anew.
    Damaged { key: Vec<u8> },
    /// No inode record of the root directory.
    NoRoot,
    /// An entry of an inode that does not exist.
    Dangling { dir: Ino, name: Vec<u8>, ino: Ino },
    /// An entry that says another kind than the inode.
    WrongKind { dir: Ino, name: Vec<u8>, ino: Ino, kind: FileKind },
    /// An entry under another hash than its name's, or with a name that cannot be.
    WrongName { dir: Ino, hash: u64, name: Vec<u8> },
    /// Directory `ino` has an entry in `dir`, but another parent.
    WrongParent { dir: Ino, name: Vec<u8>, ino: Ino },
    /// The link count is not what was counted.
    WrongLinks { ino: Ino, stored: u32, counted: u32 },
    /// An inode with links, but no name anywhere.
    Lost { ino: Ino, kind: FileKind },
    /// A directory whose parents do not lead to the root.
    Detached { ino: Ino },
    /// An inode without links that nothing would ever purge.
    NoOrphanRecord { ino: Ino },
    /// An orphan's record of an inode that has links or does not exist.
    NotOrphan { ino: Ino },
    /// Records about an inode that does not exist.
    Stray { ino: Ino },
    /// Entries in what is not a (living) directory.
    MisplacedEntries { ino: Ino },
    /// A symbolic link without a target of its size, or a target where none belongs.
    WrongTarget { ino: Ino },
    /// The flags do not say which attributes there are.
    WrongFlags { ino: Ino, stored: InodeFlags, counted: InodeFlags },
    /// The mode does not say what the access ACL says.
    WrongMode { ino: Ino, stored: u32, acl: u32 },
    /// Numbers that are in use could be given out again.
    AllocatorBehind { ugsd: UgsdId, next: u64, used: u64 },
    /// A UGSD number that is in use could be given out again.
    UgsdBehind { next: u32, used: u32 },
    /// An entry of a directory that is spread, in another part than its name's, or in none.
    WrongPart { dir: Ino, name: Vec<u8>, right: Ino },
    /// A part of a directory that is missing, or does not say what the directory says.
    BadPart { dir: Ino, part: Ino },
    /// A hidden directory that is nobody's part.
    StrayPart { ino: Ino },
    /// A pin of an inode that does not exist.
    StrayPin { ino: Ino },
    /// A policy of what is no directory or does not exist.
    StrayPolicy { ino: Ino },
    /// What the linked directory had of an inode that does not exist, and nothing is to be done there.
    StrayLink { ino: Ino },
    /// A project's counters are not the sums over its inodes.
    WrongUsage { project: ProjectId, stored: Delta, counted: Delta },
}

impl Finding {
    /// The inode it is about, if that exists: for an entry its directory.
    pub fn subject(&self) -> Option<Ino> {
        match self {
            Finding::Dangling { dir, .. }
            | Finding::WrongKind { dir, .. }
            | Finding::WrongName { dir, .. }
            | Finding::WrongPart { dir, .. }
            | Finding::BadPart { dir, .. } => Some(*dir),
            Finding::WrongParent { ino, .. }
            | Finding::WrongLinks { ino, .. }
            | Finding::Lost { ino, .. }
            | Finding::Detached { ino }
            | Finding::NoOrphanRecord { ino }
            | Finding::StrayPart { ino }
            | Finding::WrongTarget { ino }
            | Finding::WrongFlags { ino, .. }
            | Finding::WrongMode { ino, .. } => Some(*ino),
            Finding::Damaged { .. }
            | Finding::NoRoot
            | Finding::NotOrphan { .. }
            | Finding::Stray { .. }
            | Finding::MisplacedEntries { .. }
            | Finding::AllocatorBehind { .. }
            | Finding::UgsdBehind { .. }
            | Finding::StrayPin { .. }
            | Finding::StrayPolicy { .. }
            | Finding::StrayLink { .. }
            | Finding::WrongUsage { .. } => None,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |name: &[u8]| name.escape_ascii().to_string();
        match self {
            Finding::Damaged { key } => write!(f, "record {} is damaged", key::describe(key)),
            Finding::NoRoot => f.write_str("the root directory is missing"),
            Finding::Dangling { dir, name: n, ino } => {
                write!(f, "entry \"{}\" of directory {dir} names inode {ino}, which does not exist", name(n))
            }
            Finding::WrongKind { dir, name: n, ino, kind } => {
                write!(
                    f,
                    "entry \"{}\" of directory {dir} has not the kind of inode {ino}, {kind:?}",
                    name(n)
                )
            }
            Finding::WrongName { dir, name: n, .. } => {
                write!(f, "entry \"{}\" of directory {dir} is not where its name belongs", name(n))
            }
            Finding::WrongParent { dir, name: n, ino } => {
                write!(f, "directory {ino} is in directory {dir} as \"{}\", but has another parent", name(n))
            }
            Finding::WrongLinks { ino, stored, counted } => {
                write!(f, "inode {ino} has link count {stored}, counted {counted}")
            }
            Finding::Lost { ino, kind } => write!(f, "inode {ino} ({kind:?}) has no name"),
            Finding::Detached { ino } => write!(f, "directory {ino} is not below the root"),
            Finding::NoOrphanRecord { ino } => {
                write!(f, "inode {ino} has no links and is not marked for removal")
            }
            Finding::NotOrphan { ino } => {
                write!(f, "inode {ino} is marked for removal, but has links or is gone")
            }
            Finding::Stray { ino } => write!(f, "records about inode {ino}, which does not exist"),
            Finding::MisplacedEntries { ino } => {
                write!(f, "inode {ino} has entries and is no living directory")
            }
            Finding::WrongTarget { ino } => write!(f, "the link target of inode {ino} is not as it must be"),
            Finding::WrongFlags { ino, stored, counted } => {
                write!(f, "inode {ino} has flags {:#x}, its records say {:#x}", stored.bits(), counted.bits())
            }
            Finding::WrongMode { ino, stored, acl } => {
                write!(f, "inode {ino} has permissions {stored:o}, its ACL says {acl:o}")
            }
            Finding::AllocatorBehind { ugsd, next, used } => {
                write!(f, "the next inode number of UGSD {} is {next}, but {used} is in use", ugsd.get())
            }
            Finding::UgsdBehind { next, used } => {
                write!(f, "the next UGSD number is {next}, but {used} is in use")
            }
            Finding::WrongPart { dir, name: n, right } => {
                write!(f, "entry \"{}\" is in directory {dir} and belongs into its part {right}", name(n))
            }
            Finding::BadPart { dir, part } => {
                write!(f, "part {part} of directory {dir} is missing, or differs from it")
            }
            Finding::StrayPart { ino } => write!(f, "directory {ino} is a part of none"),
            Finding::StrayPin { ino } => write!(f, "inode {ino} is pinned and does not exist"),
            Finding::StrayPolicy { ino } => write!(f, "inode {ino} has a policy and is no directory"),
            Finding::StrayLink { ino } => {
                write!(f, "inode {ino} is remembered of the linked directory and does not exist")
            }
            Finding::WrongUsage { project, stored, counted } => write!(
                f,
                "project {} is charged {} bytes and {} inodes, counted {} and {}",
                project.0, stored.bytes, stored.inodes, counted.bytes, counted.inodes
            ),
        }
    }
}
