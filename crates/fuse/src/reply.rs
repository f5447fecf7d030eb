//! What answers hold, and how they look to the kernel.

use std::time::Duration;

use types::{Attr, Timestamp};

use crate::{abi, flags::OpenFlags};

/// The answer to LOOKUP and to everything that creates. The kernel counts one lookup of `node`, which a
/// FORGET returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryOut {
    pub node: u64,
    pub generation: u64,
    /// How long the name may be cached.
    pub entry_timeout: Duration,
    pub attr_timeout: Duration,
    pub attr: Attr,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttrOut {
    pub timeout: Duration,
    pub attr: Attr,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOut {
    pub fh: u64,
    pub flags: OpenFlags,
    /// From `Backing::open`; only with [`OpenFlags::PASSTHROUGH`].
    pub backing: Option<BackingId>,
}

/// A file that the kernel may read and write in our place, until closed with `Backing::close`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BackingId(pub(crate) i32);

impl BackingId {
    /// One that an earlier process of the same connection had.
    pub fn from_raw(number: u32) -> Option<BackingId> {
        i32::try_from(number).ok().filter(|number| *number > 0).map(BackingId)
    }

    pub fn raw(self) -> u32 {
        self.0.cast_unsigned()
    }
}

/// In units of `block_size`, as in statvfs(3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatfsOut {
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    pub block_size: u32,
    pub name_max: u32,
}

pub(crate) fn attr(attr: &Attr, block_size: u32) -> abi::WireAttr {
    abi::WireAttr {
        ino: attr.ino.get(),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.sec.cast_unsigned(),
        mtime: attr.mtime.sec.cast_unsigned(),
        ctime: attr.ctime.sec.cast_unsigned(),
        atimensec: attr.atime.nsec,
        mtimensec: attr.mtime.nsec,
        ctimensec: attr.ctime.nsec,
        mode: attr.kind.mode_bits() | attr.mode & types::MODE_MASK,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: block_size,
        flags: 0,
    }
}

pub(crate) fn entry(out: &EntryOut, block_size: u32) -> abi::WireEntry {
    abi::WireEntry {
        nodeid: out.node,
        generation: out.generation,
        entry_valid: out.entry_timeout.as_secs(),
        attr_valid: out.attr_timeout.as_secs(),
        entry_valid_nsec: out.entry_timeout.subsec_nanos(),
        attr_valid_nsec: out.attr_timeout.subsec_nanos(),
        attr: attr(&out.attr, block_size),
    }
}

pub(crate) fn attr_out(out: &AttrOut, block_size: u32) -> abi::WireAttrOut {
    abi::WireAttrOut {
        attr_valid: out.timeout.as_secs(),
        attr_valid_nsec: out.timeout.subsec_nanos(),
        dummy: 0,
        attr: attr(&out.attr, block_size),
    }
}

pub(crate) fn statx_out(out: &AttrOut, block_size: u32) -> abi::WireStatxOut {
    const BASIC_STATS_AND_BTIME: u32 = 0xfff;
    let a = &out.attr;
    let time = |t: Timestamp| abi::StatxTime { sec: t.sec, nsec: t.nsec, reserved: 0 };
    let stat = abi::WireStatx {
        mask: BASIC_STATS_AND_BTIME,
        blksize: block_size,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        // The type and permission bits fill exactly 16 bits.
        mode: (a.kind.mode_bits() | a.mode & types::MODE_MASK) as u16,
        ino: a.ino.get(),
        size: a.size,
        blocks: a.blocks,
        atime: time(a.atime),
        btime: time(a.btime),
        ctime: time(a.ctime),
        mtime: time(a.mtime),
        // The kernel's 32-bit form of a device number: minor in bits 0..8 and 20..32, major in 8..20.
        rdev_major: (a.rdev & 0xf_ff00) >> 8,
        rdev_minor: (a.rdev & 0xff) | ((a.rdev >> 12) & 0xf_ff00),
        ..abi::WireStatx::default()
    };
    abi::WireStatxOut {
        attr_valid: out.timeout.as_secs(),
        attr_valid_nsec: out.timeout.subsec_nanos(),
        flags: 0,
        spare: [0; 2],
        stat,
    }
}

pub(crate) fn open(out: &OpenOut) -> abi::WireOpen {
    abi::WireOpen {
        fh: out.fh,
        open_flags: out.flags.bits(),
        backing_id: out.backing.map_or(0, |backing| backing.0),
    }
}

pub(crate) fn statfs(out: &StatfsOut) -> abi::WireStatfs {
    abi::WireStatfs {
        blocks: out.blocks,
        bfree: out.blocks_free,
        bavail: out.blocks_available,
        files: out.files,
        ffree: out.files_free,
        bsize: out.block_size,
        namelen: out.name_max,
        frsize: out.block_size,
        padding: 0,
        spare: [0; 6],
    }
}
