//! The metadata server: runs the namespace's transaction functions against the durable store.
//!
//! Invariants
//! - I-MDS-1: an operation holds the locks of the slots of all the inodes that it changes, until it is committed.
//! - I-MDS-2: an inode number is given out once, also over crashes and power cuts.
//! - I-MDS-3: an inode is purged only when it has no name and the kernel does not refer to it.
//! - I-MDS-4: a [`Recorder`] is told of every change, in the transaction that makes it, and of those of one inode in the order
//!   of their commits.
//! - I-OWN-1, I-OWN-2: of [`owned`], where several servers have the slots of one file system.
//!
//! It refuses to decide: what POSIX says is in `namespace`, durability in `kv`. It knows nothing of file data beyond the
//! data state in the inode.

mod attributes;
mod clock;
mod count;
mod data;
mod directory;
mod error;
mod fresh;
mod fsck;
mod hand_over;
mod maintenance;
mod nameless;
mod numbers;
mod orphans;
mod owned;
mod recorder;
mod reservations;
mod server;
mod slots;
mod spreading;
mod transact;

pub use clock::{Clock, SystemClock};
pub use data::Closed;
pub use error::Error;
pub use fsck::{Fsck, fsck};
pub use maintenance::Usage;
pub use namespace::{
    Caller, DataState, DirEntry, Found, NewNode, RenameMode, Renamed, SetAttr, SetTime, SetXattr, Settled,
    Unlinked, XattrMode,
    mode::{CloseSync, FileMode, Mode},
    policy::{DirPolicy, Promote, WriteBehind},
    quota::{Limits, Quota},
    txn::Bytes,
};
pub use owned::{Gather, Welcome};
pub use recorder::{Change, Recorded, Recorder};
pub use server::{Mds, MdsOptions};
pub use spreading::SPREAD_ENTRIES_MAX;
pub use transact::Context;
