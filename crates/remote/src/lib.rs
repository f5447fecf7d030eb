//! The client of a cluster: a file system whose names are at a metadata server and whose bytes are at data servers.
//!
//! - [`Remote`] is one mount: its session, its operations as plain calls, and a [`fuse::Filesystem`] over them.
//! - Where there are several metadata servers, each is asked about the inodes whose slots it has; it is followed when another has them, or is on duty.
//! - The locks of its programs are the metadata server's. It knows what they have, to come back with.
//! - It keeps names and attributes as long as the metadata server lets it, and the kernel keeps nothing: so all clients see the same. Beside that it
//!   keeps what it has: references, openings, where the bytes of an open file are.
//!
//! - The data server of its machine is asked at its Unix socket (`near`), and the kernel reads files by itself that it lends (`borrowing`).
//!
//! Invariants:
//! - I-REMOTE-1: a change is carried out once: it has one number for all its attempts, and ends as unknown rather than twice.
//! - I-REMOTE-2: a reference that the kernel counts is the session's, also after the server has been started again.
//! - I-REMOTE-3: no thread of the transport waits for the network, and every wait ends; that of a program for a lock is nobody's thread.
//! - I-REMOTE-4: what cannot be read is an error, and never zeros or a short end.
#![forbid(unsafe_code)]

mod access;
mod ahead;
mod answered;
mod at_once;
mod back;
mod backlog;
mod borrowing;
mod bringing;
mod cache;
mod caching;
mod closes;
mod closing;
mod covering;
mod declaring;
mod dirs;
mod droppers;
mod dropping;
mod duty;
mod extents;
mod finding;
mod forgetting;
mod heard;
mod held;
mod homes;
mod inherited;
mod keeping;
mod keeping_back;
mod keeping_now;
mod kept;
mod kernel;
mod keys;
mod landed;
mod late;
mod line;
mod lock_calls;
mod locking;
mod mapped;
mod members;
mod moved;
mod names;
mod near;
mod nodes;
mod opening;
mod openings;
mod options;
mod outstanding;
mod pages;
mod parts;
mod pool;
mod pruning;
mod reading;
mod recovery;
mod references;
mod remote;
mod renewing;
mod routing;
mod running;
mod sending;
mod session;
mod shape;
mod spreads;
mod status;
mod stride;
mod stripes;
mod succession;
mod through;
mod waiting;
mod writing;
mod written;
mod xattr;

pub use access::Access;
pub use ahead::AheadCounts;
pub use back::BackCounts;
pub use dirs::{Listed, Page};
pub use held::Holder;
pub use kept::KeptCounts;
pub use names::Place;
pub use openings::OpenFile;
pub use options::{OwnNode, RemoteOptions, Sockets};
pub use pages::PageCounts;
pub use remote::{Remote, StartError};
pub use shape::AllocateArgs;
pub use status::{OwnStatus, RemoteStatus, ServerStatus};
pub use waiting::LockWish;
pub use writing::WriteHow;
pub use written::node as written_node;
pub use xattr::Xattr;
