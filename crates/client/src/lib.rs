//! The file system that the FUSE transport calls: names and attributes from the metadata server, bytes from the data
//! server, and the kernel's caches kept true.
//!
//! A shell: the lease core decides how the kernel treats an open file, mds and ds decide everything else; this
//! crate carries requests to them and answers back.
//!
//! Invariants:
//! - A request that needs no waiting is answered on the transport's thread; one that must wait goes to a bounded
//!   pool of workers. Wherever it is, it is reported when it is older than its deadline.
//! - What is acknowledged is at the mds and the ds: nothing is held back here.
//! - No lock of this crate that concerns more than one file is held over I/O, but the one that has removed files
//!   purged by one thread at a time.
//!
//! Refuses to know: which transport runs, where bytes are, how metadata are stored, who may do what (the kernel
//! checks permissions).
#![forbid(unsafe_code)]

mod access;
mod attr;
mod backing;
mod beside;
mod client;
mod dirs;
mod dispatch;
mod handles;
mod inode;
mod invalidate;
mod io;
mod known;
mod lingering;
mod listener;
mod messenger;
mod metrics;
mod modes;
mod names;
mod open;
mod open_file;
mod openings;
mod passthrough;
mod policies;
mod pool;
mod purge;
mod settling;
mod statfs;
mod succession;
mod turn;
mod versions;
mod watch;
mod xattr;

pub use backing::InUse;
pub use client::{Client, ClientOptions, FileInUse};
pub use listener::{Listener, Opening, Purpose};
pub use metrics::{ClientStats, Op, OpStats};
pub use policies::{Policies, Policy, Promise};
