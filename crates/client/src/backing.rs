//! What is known of a file that the kernel reads in place; when it is let go is in `passthrough.rs`.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use types::{Errno, TierId};

/// Has anybody beside this descriptor the file open or mapped? A write lease (fcntl(2), `F_SETLEASE`) that can be
/// taken says no. Without such a question passthrough stays off.
pub type InUse = fn(BorrowedFd<'_>) -> Result<bool, Errno>;

/// A backing file that the kernel was told of.
pub(crate) struct Registered {
    pub id: fuse::BackingId,
    pub file: Arc<dyn AsFd + Send + Sync>,
    pub tier: TierId,
    /// Some open file uses it; else it lingers.
    pub active: bool,
    /// It was open for reading and writing, so it may be mapped for writing.
    pub writable: bool,
    /// An earlier daemon told the kernel of it, which has that one's open file as long as it has this number.
    pub inherited: bool,
    /// Where it is written down for the next daemon.
    pub place: Option<handover::Place>,
}
