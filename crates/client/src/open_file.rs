//! What is kept of an open file; how files are opened and closed is in `open.rs`.

use std::sync::atomic::{AtomicBool, AtomicU64};

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
}
