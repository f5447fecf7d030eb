//! What a look at a file says of it. Pure but for the conversion from what the system gives.

use std::{
    fs::Metadata,
    os::unix::fs::{FileTypeExt, MetadataExt},
};

use types::Timestamp;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    pub kind: Kind,
    pub dev: u64,
    pub ino: u64,
    pub links: u64,
    /// Permission and set-id bits alone.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of a device.
    pub rdev: u64,
    pub size: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

/// What shows that a source is still the one that was read. Device numbers are left out: a mount may get another one at
/// each boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    pub ino: u64,
    pub size: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

impl Facts {
    pub fn of(meta: &Metadata) -> Facts {
        Facts {
            kind: kind(meta),
            dev: meta.dev(),
            ino: meta.ino(),
            links: meta.nlink(),
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            rdev: meta.rdev(),
            size: meta.size(),
            atime: time(meta.atime(), meta.atime_nsec()),
            mtime: time(meta.mtime(), meta.mtime_nsec()),
            ctime: time(meta.ctime(), meta.ctime_nsec()),
        }
    }

    pub fn stamp(&self) -> Stamp {
        Stamp { ino: self.ino, size: self.size, mtime: self.mtime, ctime: self.ctime }
    }

    /// The same object, by two names.
    pub fn is_same(&self, other: &Facts) -> bool {
        (self.dev, self.ino) == (other.dev, other.ino)
    }
}

fn kind(meta: &Metadata) -> Kind {
    let kind = meta.file_type();
    if kind.is_dir() {
        Kind::Directory
    } else if kind.is_symlink() {
        Kind::Symlink
    } else if kind.is_fifo() {
        Kind::Fifo
    } else if kind.is_socket() {
        Kind::Socket
    } else if kind.is_char_device() {
        Kind::CharDevice
    } else if kind.is_block_device() {
        Kind::BlockDevice
    } else {
        Kind::Regular
    }
}

fn time(sec: i64, nsec: i64) -> Timestamp {
    Timestamp { sec, nsec: u32::try_from(nsec).unwrap_or(0) }
}
