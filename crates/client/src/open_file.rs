//! What is kept of an open file; how files are opened and closed is in `open.rs`.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU64},
};

use handover::Place;
use lease::Mode;

use crate::{access::Access, inode::InodeRef};

/// One open file.
pub(crate) struct OpenFile {
    pub inode: InodeRef,
    pub access: Access,
    pub mode: Mode,
    /// The file's quota project has a limit: growth is asked for before it happens.
    pub limited: AtomicBool,
    /// The changes of quotas that `limited` knows of.
    pub limit_seen: AtomicU64,
    /// The next read changes the access time.
    pub atime_due: AtomicBool,
    /// Where it is written down for the next daemon.
    pub place: OnceLock<Place>,
}

impl OpenFile {
    /// `limited` with the changes of quotas that it knows of.
    pub(crate) fn new(
        inode: InodeRef,
        access: Access,
        mode: Mode,
        (limited, limit_seen): (bool, u64),
    ) -> OpenFile {
        OpenFile {
            inode,
            access,
            mode,
            limited: AtomicBool::new(limited),
            limit_seen: AtomicU64::new(limit_seen),
            atime_due: AtomicBool::new(false),
            place: OnceLock::new(),
        }
    }
}
