//! Arbiter of the mode of an open file on one node. (Signatures first; bodies follow.)
#![forbid(unsafe_code)]

use types::{Ino, TierId};

/// What one open asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenRequest {
    pub read: bool,
    pub write: bool,
    /// `O_DIRECT`.
    pub direct: bool,
    /// The one tier that holds the whole object, and how many bytes; `None` when it is in several or in none.
    pub wholly_in: Option<(TierId, u64)>,
    /// The kernel offers passthrough, the mount may use it, and the object's policy does not forbid it.
    pub passthrough_allowed: bool,
    /// Changes with every change of the bytes; the page cache is kept when it is the one of the last cached open.
    pub version: u64,
}

/// How the kernel treats one open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// FOPEN_PASSTHROUGH: the kernel reads the object file itself.
    Passthrough,
    /// Page cache.
    Cached,
    /// FOPEN_DIRECT_IO: every read and write comes to us (shared mmap through FUSE_DIRECT_IO_ALLOW_MMAP).
    Direct,
    /// FOPEN_PASSTHROUGH | FOPEN_DIRECT_IO: reads and writes come to us, mmap goes to the object file.
    PassthroughDirect,
}

impl Mode {
    /// Counts as a passthrough open for the kernel: it needs the backing id, the object is pinned in its tier.
    pub const fn is_passthrough(self) -> bool {
        matches!(self, Mode::Passthrough | Mode::PassthroughDirect)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    pub mode: Mode,
    /// FOPEN_KEEP_CACHE: the page cache still holds the current bytes.
    pub keep_cache: bool,
    /// Each write through this open must invalidate the page cache of its range: cached opens exist.
    pub invalidate_on_write: bool,
    /// This open began the passthrough state: register the backing file and pin the object in `tier`.
    pub began_passthrough: Option<TierId>,
}

/// What a close left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed {
    /// The last passthrough open is gone: release the backing file and the pin.
    pub ended_passthrough: bool,
    /// The last open of the inode is gone.
    pub last: bool,
}

pub struct Arbiter {}

impl Arbiter {
    /// `passthrough_budget`: bytes of objects pinned by passthrough, per tier (`TierId::index()`).
    pub fn new(_passthrough_budget: [u64; 3]) -> Arbiter {
        todo!()
    }
    pub fn set_budget(&mut self, _tier: TierId, _bytes: u64) {
        todo!()
    }
    pub fn open(&mut self, _ino: Ino, _request: OpenRequest) -> Grant {
        todo!()
    }
    /// `grant_mode` and `write` as they were at the open. `None`: there was no such open.
    pub fn close(&mut self, _ino: Ino, _mode: Mode, _write: bool, _version: u64) -> Option<Closed> {
        todo!()
    }
    /// Must a write to this inode, from anywhere in this process, invalidate the page cache of its range?
    pub fn invalidate_on_write(&self, _ino: Ino) -> bool {
        todo!()
    }
    /// The tier that the object must not leave now.
    pub fn passthrough_tier(&self, _ino: Ino) -> Option<TierId> {
        todo!()
    }
    /// Bytes pinned by passthrough in a tier.
    pub fn pinned_bytes(&self, _tier: TierId) -> u64 {
        todo!()
    }
}
