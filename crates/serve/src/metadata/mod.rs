//! The metadata service: names, attributes, layouts, sessions, and who has which file open.
//!
//! - I-META-1: before the first byte of a file changes the metadata say that it is being written, and where its data are; after the last
//!   writer its data servers are asked what it came to. Both under the file's lock.
//! - I-META-2: while a file is being written its size is the largest end that its data servers or the metadata know; its time is
//!   that of the last write, until somebody sets one.
//! - I-META-3: a cut is recorded before the first object is cut and finished before anything else is done with the file.
//! - I-META-4: the objects of an inode without a name and references go first, then the inode. Nothing is removed before
//!   sessions of an earlier life of the server had time to come back.
//!
//! It asks data servers with a deadline and never holds a lock of a table meanwhile. It refuses to know bytes, and permissions.

mod attributes;
mod batches;
mod carried;
mod cluster;
mod control;
mod draining;
mod drains;
mod fencing;
mod files;
mod keeping;
mod keeping_back;
mod layouts;
mod leaving;
mod listing;
mod live;
mod locking;
mod mailbox;
mod moving;
mod nameless;
mod names;
mod needing;
mod opening;
mod owners;
mod placed;
mod pressing;
mod purge;
mod replicas;
mod resuming;
mod sendings;
mod service;
mod session;
mod spreading;
mod tail;
mod tending;
mod terms;
mod truths;
mod turns;
mod vacating;
mod verdicts;
mod views;
mod wishes;

pub use owners::{JoinError, Joining, Shared, SlotRights, join};
pub use service::{MetadataOptions, MetadataService};
pub use session::SessionLimits;
pub use tail::{StandbyOptions, TailRows, TailTrouble, TailView};
pub use terms::Counts as LeaseCounts;
