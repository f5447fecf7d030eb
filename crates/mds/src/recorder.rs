//! Who is told of each change, in the transaction that makes it: what keeps a linked directory in step. Without one nothing is
//! found out and nothing kept.
//!
//! Not told: what [`crate::Mds::transact`] does, quotas, policies, access times of reads.

use link::Attrs;
use namespace::txn::Txn;
use types::{Errno, FileKind, Ino, Timestamp};

/// What a change was. One operation may make several, which come in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// With its first name. `writing`: it is open for writing, as after [`Change::Written`].
    Created { ino: Ino, kind: FileKind, dir: Ino, name: Vec<u8>, writing: bool },
    /// `O_TMPFILE`: a file without a name, open for writing. A `Linked` may give it one.
    Unnamed { ino: Ino },
    /// What had the name `to` was told to be unlinked or removed before. Of an exchange there are two.
    Renamed { ino: Ino, kind: FileKind, from: (Ino, Vec<u8>), to: (Ino, Vec<u8>) },
    /// It has `nlink` names now.
    Linked { ino: Ino, kind: FileKind, dir: Ino, name: Vec<u8>, nlink: u32 },
    /// `last`: it has no other name.
    Unlinked { ino: Ino, kind: FileKind, dir: Ino, name: Vec<u8>, last: bool },
    /// A directory, by rmdir or by a rename over it.
    Removed { ino: Ino, dir: Ino, name: Vec<u8> },
    /// These were set, or changed with something else.
    Attributes { ino: Ino, kind: FileKind, what: Attrs },
    /// An extended attribute was set or removed; ACLs are some.
    Xattr { ino: Ino, kind: FileKind, name: Vec<u8> },
    /// Its data will differ: writing began, or its size was set.
    Written { ino: Ino },
    /// After `Written` or `writing`: nobody writes it any more, its size and modification time are true.
    Settled { ino: Ino },
    /// A regular file began to be one that the linked directory is not told of (`apart`), or is to be told of it from now on, by
    /// its one name. Of what is in a directory that is apart all is told here as of anything else.
    Crossed { ino: Ino, apart: bool, dir: Ino, name: Vec<u8> },
    /// All that was stored of it is deleted.
    Gone { ino: Ino },
}

pub trait Recorder: Send + Sync {
    /// Called under the locks of the change's slots, before the commit; it calls nothing of the server. May put records of
    /// types `L`, `W` and `C` into the transaction, which the change's own locks do not guard. An error refuses the
    /// operation.
    fn record<'a>(
        &'a self,
        now: Timestamp,
        changes: &[Change],
        txn: &mut dyn Txn,
    ) -> Result<Box<dyn Recorded + 'a>, Errno>;

    /// Called before an operation that may make the log longer, with no lock of the server's held: it may wait, and an error
    /// refuses the operation. `None`: of an inode that is about to be made. Not called for writing that begins with the first
    /// record of an object, since the object is locked then.
    fn admit(&self, ino: Option<Ino>) -> Result<(), Errno>;
}

/// Kept until the commit has ended.
pub trait Recorded {
    /// Called after the commit, still under the locks. Not committed: nothing of the transaction counts.
    fn ended(self: Box<Self>, committed: bool);
}
