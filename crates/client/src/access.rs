//! What the flags of open(2) ask for, and what the kernel is told about an open file.
//!
//! Invariants: pure mappings; nothing here opens anything.

use ds::OpenKind;
use fuse::OpenFlags;
use lease::Mode;
use types::Errno;

// As in <asm-generic/fcntl.h>; x86-64 and arm64 differ in O_DIRECT alone.
const O_ACCMODE: u32 = 0o3;
const O_WRONLY: u32 = 0o1;
const O_RDWR: u32 = 0o2;
const O_EXCL: u32 = 0o200;
const O_TRUNC: u32 = 0o1000;
const O_DSYNC: u32 = 0o1_0000;
#[cfg(target_arch = "aarch64")]
const O_DIRECT: u32 = 0o20_0000;
#[cfg(not(target_arch = "aarch64"))]
const O_DIRECT: u32 = 0o4_0000;
const O_NOATIME: u32 = 0o100_0000;
/// The bit that `O_SYNC` has beyond `O_DSYNC`.
const O_SYNC_ALONE: u32 = 0o400_0000;

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    pub read: bool,
    pub write: bool,
    pub truncate: bool,
    pub exclusive: bool,
    /// `O_SYNC` or `O_DSYNC`: a write is durable when it is answered. Size and times of a write go into one record, so
    /// the two are the same here.
    pub sync: bool,
    pub direct: bool,
    pub no_atime: bool,
}

impl Access {
    /// `EINVAL` for access mode 3, which Linux keeps for its own.
    pub(crate) fn from_flags(flags: u32) -> Result<Access, Errno> {
        let (read, write) = match flags & O_ACCMODE {
            0 => (true, false),
            O_WRONLY => (false, true),
            O_RDWR => (true, true),
            _ => return Err(Errno::EINVAL),
        };
        Ok(Access {
            read,
            write,
            truncate: flags & O_TRUNC != 0,
            exclusive: flags & O_EXCL != 0,
            sync: write && is_sync(flags),
            direct: flags & O_DIRECT != 0,
            no_atime: flags & O_NOATIME != 0,
        })
    }

    /// As it is written down for the next daemon.
    pub(crate) fn to_bits(self) -> u64 {
        let all =
            [self.read, self.write, self.truncate, self.exclusive, self.sync, self.direct, self.no_atime];
        all.iter().enumerate().map(|(bit, set)| u64::from(*set) << bit).sum()
    }

    pub(crate) fn from_bits(bits: u64) -> Access {
        let has = |bit: u32| bits >> bit & 1 != 0;
        Access {
            read: has(0),
            write: has(1),
            truncate: has(2),
            exclusive: has(3),
            sync: has(4),
            direct: has(5),
            no_atime: has(6),
        }
    }

    pub(crate) fn kind(self) -> OpenKind {
        OpenKind { read: self.read, write: self.write }
    }

    /// As mmap(2) has it: a descriptor that cannot be read cannot be mapped.
    pub(crate) fn may_map_writable(self) -> bool {
        self.read && self.write
    }
}

/// Do the flags of one write ask for it to be durable?
pub(crate) fn is_sync(flags: u32) -> bool {
    flags & (O_DSYNC | O_SYNC_ALONE) != 0
}

/// How the kernel is to treat an open file of this mode. A FLUSH only where closing waits for something: it writes nothing back,
/// as there is no write-back cache.
pub(crate) fn open_flags(mode: Mode, keep_cache: bool, waits_at_close: bool) -> OpenFlags {
    let how = match mode {
        Mode::Passthrough => OpenFlags::PASSTHROUGH,
        Mode::Cached if keep_cache => OpenFlags::KEEP_CACHE,
        Mode::Cached => OpenFlags::empty(),
        Mode::Direct => OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES,
        Mode::PassthroughDirect => {
            OpenFlags::PASSTHROUGH | OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES
        }
    };
    if waits_at_close { how } else { how | OpenFlags::NOFLUSH }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the access mode and each flag are told apart. Method: golden flag words.
    #[test]
    fn open_flags_become_an_access() {
        let read = Access::from_flags(0).unwrap();
        assert!(read.read && !read.write && !read.truncate && !read.direct && !read.no_atime);
        let write = Access::from_flags(0o1 | 0o1000 | 0o200).unwrap();
        assert!(!write.read && write.write && write.truncate && write.exclusive);
        let both = Access::from_flags(0o2 | O_DIRECT | 0o100_0000).unwrap();
        assert!(both.read && both.write && both.direct && both.no_atime);
        assert_eq!(Access::from_flags(3), Err(Errno::EINVAL));
        assert_eq!(both.kind(), OpenKind { read: true, write: true });
    }

    /// Goal: O_SYNC and O_DSYNC are seen; on a file that cannot be written neither means anything.
    #[test]
    fn synchronous_writes_are_known() {
        assert!(Access::from_flags(0o1 | 0o1_0000).unwrap().sync);
        assert!(Access::from_flags(0o1 | 0o401_0000).unwrap().sync);
        assert!(!Access::from_flags(0o401_0000).unwrap().sync);
        assert!(!is_sync(0o2000));
    }

    /// Goal: an access is what it was for the next daemon, whose program may be another. Method: golden bits, and all of them.
    #[test]
    fn golden_access() {
        let append_and_more = Access::from_flags(0o2 | 0o1_0000 | O_DIRECT).unwrap();
        assert_eq!(append_and_more.to_bits(), 0b11_0011);
        assert!((0..128).all(|bits| Access::from_bits(bits).to_bits() == bits));
    }

    /// Goal: each mode has its flags, NOFLUSH where nothing waits. Method: table.
    #[test]
    fn modes_become_open_flags() {
        let table = [
            (Mode::Passthrough, false, OpenFlags::PASSTHROUGH),
            (Mode::Cached, false, OpenFlags::empty()),
            (Mode::Cached, true, OpenFlags::KEEP_CACHE),
            (Mode::Direct, true, OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES),
            (
                Mode::PassthroughDirect,
                false,
                OpenFlags::PASSTHROUGH | OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES,
            ),
        ];
        for (mode, keep, flags) in table {
            assert_eq!(open_flags(mode, keep, false), flags | OpenFlags::NOFLUSH, "{mode:?}");
            assert_eq!(open_flags(mode, keep, true), flags, "{mode:?}");
        }
    }
}
