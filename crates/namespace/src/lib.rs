//! POSIX namespace operations as transaction functions over an ordered key-value store.
//!
//! Invariants: no clock, no random numbers, no locks, no I/O; time and new ids come in as arguments, and
//! everything that an operation changes goes through one [`Txn`](txn::Txn), so it happens whole or not at all. After an
//! error the transaction must be dropped. Nothing here asks who may do what: permission bits, the sticky bit and
//! group membership are the kernel's (`default_permissions`); set-id bits, ACLs and quotas are ours.
//!
//! What is stored is in `docs/data-model.md`; [`check`] verifies it.

pub mod acl;
pub mod alloc;
pub mod apart;
pub mod check;
mod codec;
pub mod create;
pub mod data;
pub mod dentry;
mod error;
#[cfg(test)]
mod fuzz;
pub mod import;
pub mod inode;
pub mod key;
pub mod link;
pub mod lookup;
mod mkdir;
pub mod mode;
mod name;
mod newborn;
pub mod orphan;
pub mod parts;
pub mod policy;
pub mod quota;
pub mod readdir;
pub mod rename;
mod rmdir;
pub mod setattr;
pub mod spread;
pub mod striping;
pub mod superblock;
pub mod txn;
mod unlink;
pub mod xattr;

use types::{Ino, Timestamp};

pub use create::{NewNode, create, create_unnamed};
pub use data::Settled;
pub use error::{Error, Result};
pub use import::{Keep, Theirs, import, import_xattrs, refresh, refresh_stub, retarget, set_linked};
pub use inode::{DataState, Found, Inode, InodeFlags};
pub use link::link;
pub use lookup::{damaged as lookup_damaged, find, find_alone, lookup, lookup_entry, parent, readlink};
pub use mkdir::mkdir;
pub use name::NameHasher;
pub use readdir::{DirEntry, readdir};
pub use rename::{RenameMode, Renamed, rename};
pub use rmdir::rmdir;
pub use setattr::{SetAttr, SetTime, setattr};
pub use spread::Spread;
pub use unlink::{Unlinked, unlink};
pub use xattr::{SetXattr, XattrMode};

/// What every operation is told about the world.
#[derive(Clone, Copy, Debug)]
pub struct Env {
    pub now: Timestamp,
    /// Number of the running mount, from 1.
    pub epoch: u32,
    /// The memory tier's generation, from 1.
    pub memory_generation: u32,
    pub names: NameHasher,
}

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
}

/// Who makes an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Applied unless the directory has a default ACL.
    pub umask: u32,
}
