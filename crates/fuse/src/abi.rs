//! The kernel's public FUSE interface (version 7), byte for byte: opcodes, structures and flag values.
//!
//! Every structure is `repr(C)`, has no padding that is not a named field, and any bits make a valid value,
//! so that it may be read from and written to bytes ([`Plain`]). Numbers are in the host's byte order, as the
//! kernel's are. Nothing here interprets them.

use std::mem::size_of;

/// Types that are their bytes.
///
/// # Safety
/// `repr(C)`, no implicit padding, every bit pattern valid.
pub(crate) unsafe trait Plain: Copy {}

/// The first bytes of `bytes` as a `T`; `None` when there are too few.
pub(crate) fn read<T: Plain>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: long enough, any alignment, and every bit pattern is a valid `Plain`.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The bytes of a `T`.
pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: a `Plain` has no padding, so all its bytes are initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

macro_rules! plain {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$note:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub(crate) struct $name { $($(#[$note])* pub(crate) $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$ty>())*, "no implicit padding");
        // SAFETY: `repr(C)`, integers only, and the assertion above excludes padding.
        unsafe impl Plain for $name {}
    )*};
}

// SAFETY: an integer.
unsafe impl Plain for u64 {}

plain! {
    struct InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        /// Length of the extensions at the end, in units of 8 bytes.
        total_extlen: u16,
        padding: u16,
    }
    struct OutHeader { len: u32, error: i32, unique: u64, }
    struct InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11], }
    struct InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    struct WireAttr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    struct WireEntry {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: WireAttr,
    }
    struct WireAttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: WireAttr, }
    struct StatxTime { sec: i64, nsec: u32, reserved: i32, }
    struct WireStatx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime, btime: StatxTime,
        ctime: StatxTime, mtime: StatxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32,
        spare2: [u64; 14],
    }
    struct WireStatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: WireStatx, }
    struct WireStatfs {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    struct FileLock { start: u64, end: u64, kind: u32, pid: u32, }
    struct ForgetIn { nlookup: u64, }
    struct ForgetOne { nodeid: u64, nlookup: u64, }
    struct BatchForgetIn { count: u32, dummy: u32, }
    struct GetattrIn { flags: u32, dummy: u32, fh: u64, }
    struct StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    struct SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    struct MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    struct MkdirIn { mode: u32, umask: u32, }
    struct RenameIn { newdir: u64, }
    struct Rename2In { newdir: u64, flags: u32, padding: u32, }
    struct LinkIn { oldnodeid: u64, }
    struct OpenIn { flags: u32, open_flags: u32, }
    struct CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    struct WireOpen { fh: u64, open_flags: u32, backing_id: i32, }
    struct ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    struct FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    struct ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    struct WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    struct WriteOut { size: u32, padding: u32, }
    struct FsyncIn { fh: u64, flags: u32, padding: u32, }
    struct SetxattrIn { size: u32, flags: u32, }
    struct SetxattrExtIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    struct GetxattrIn { size: u32, padding: u32, }
    struct LkIn { fh: u64, owner: u64, lock: FileLock, lk_flags: u32, padding: u32, }
    struct AccessIn { mask: u32, padding: u32, }
    struct InterruptIn { unique: u64, }
    struct BmapIn { block: u64, blocksize: u32, padding: u32, }
    struct IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    struct IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    struct PollIn { fh: u64, kh: u64, flags: u32, events: u32, }
    struct PollOut { revents: u32, padding: u32, }
    struct FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    struct LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    struct CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    struct Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    struct ExtHeader { size: u32, kind: u32, }
    struct InvalInode { ino: u64, off: i64, len: i64, }
    struct InvalEntry { parent: u64, namelen: u32, flags: u32, }
    struct NotifyDelete { parent: u64, child: u64, namelen: u32, padding: u32, }
    struct NotifyPrune { count: u32, padding: u32, spare: u64, }
    struct BackingMap { fd: i32, flags: u32, padding: u64, }
    /// The first part of an io_uring entry's memory; 288 bytes.
    struct RingHeader { in_out: [Chunk; 4], op_in: [Chunk; 4], entry: RingEntry, }
    struct RingEntry { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64, }
    /// In the command area of a submission.
    struct RingCommand { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }
    /// 32 bytes; only there because `Default` ends at arrays of 32.
    struct Chunk { bytes: [u8; 32], }
}

pub(crate) const ROOT_ID: u64 = 1;
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version whose structures this file describes.
pub(crate) const MINOR: u32 = 45;
/// The oldest that we serve (Linux 5.4): from here on no structure has an older, shorter form but INIT and SETXATTR.
pub(crate) const MINOR_MIN: u32 = 31;
pub(crate) const MIN_READ_BUFFER: usize = 8192;
pub(crate) const OP_IN_BYTES: usize = 128;

macro_rules! opcodes {
    ($($name:ident = $number:literal $word:literal,)*) => {
        pub(crate) mod op {
            $(pub(crate) const $name: u32 = $number;)*

            pub(crate) const fn is_answered(opcode: u32) -> bool {
                !matches!(opcode, FORGET | BATCH_FORGET | INTERRUPT)
            }

            /// As people call it.
            pub(crate) const fn name(opcode: u32) -> &'static str {
                match opcode { $($name => $word,)* _ => "other" }
            }
        }
    };
}

opcodes! {
    LOOKUP = 1 "lookup",
    FORGET = 2 "forget",
    GETATTR = 3 "getattr",
    SETATTR = 4 "setattr",
    READLINK = 5 "readlink",
    SYMLINK = 6 "symlink",
    MKNOD = 8 "mknod",
    MKDIR = 9 "mkdir",
    UNLINK = 10 "unlink",
    RMDIR = 11 "rmdir",
    RENAME = 12 "rename",
    LINK = 13 "link",
    OPEN = 14 "open",
    READ = 15 "read",
    WRITE = 16 "write",
    STATFS = 17 "statfs",
    RELEASE = 18 "release",
    FSYNC = 20 "fsync",
    SETXATTR = 21 "setxattr",
    GETXATTR = 22 "getxattr",
    LISTXATTR = 23 "listxattr",
    REMOVEXATTR = 24 "removexattr",
    FLUSH = 25 "flush",
    INIT = 26 "init",
    OPENDIR = 27 "opendir",
    READDIR = 28 "readdir",
    RELEASEDIR = 29 "releasedir",
    FSYNCDIR = 30 "fsyncdir",
    GETLK = 31 "getlk",
    SETLK = 32 "setlk",
    SETLKW = 33 "setlkw",
    ACCESS = 34 "access",
    CREATE = 35 "create",
    INTERRUPT = 36 "interrupt",
    BMAP = 37 "bmap",
    DESTROY = 38 "destroy",
    IOCTL = 39 "ioctl",
    POLL = 40 "poll",
    BATCH_FORGET = 42 "forget",
    FALLOCATE = 43 "fallocate",
    READDIRPLUS = 44 "readdirplus",
    RENAME2 = 45 "rename",
    LSEEK = 46 "lseek",
    COPY_FILE_RANGE = 47 "copy_file_range",
    SYNCFS = 50 "syncfs",
    TMPFILE = 51 "tmpfile",
    STATX = 52 "getattr",
    COPY_FILE_RANGE_64 = 53 "copy_file_range",
}

/// `SetattrIn::valid`.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const LOCKOWNER: u32 = 1 << 9;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

pub(crate) const GETATTR_FH: u32 = 1;
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1;
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub(crate) const RELEASE_FLUSH: u32 = 1 << 0;
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub(crate) const FSYNC_FDATASYNC: u32 = 1;
pub(crate) const LK_FLOCK: u32 = 1;
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1;
pub(crate) const EXT_GROUPS: u32 = 32;
pub(crate) const EXPIRE_ONLY: u32 = 1;

pub(crate) const MINOR_OF_LINUX_6_1: u32 = 37;
/// The first minor version with [`NOTIFY_PRUNE`].
pub(crate) const MINOR_OF_PRUNE: u32 = 45;
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
pub(crate) const NOTIFY_DELETE: i32 = 6;
/// The kernel sends again what was read and not answered (Linux 6.9).
pub(crate) const NOTIFY_RESEND: i32 = 7;
pub(crate) const NOTIFY_PRUNE: i32 = 9;

/// `_IOR(229, 0, u32)`, `_IOW(229, 1, BackingMap)`, `_IOW(229, 2, u32)`.
pub(crate) const IOC_CLONE: u64 = 0x8004_e500;
pub(crate) const IOC_BACKING_OPEN: u64 = 0x4010_e501;
pub(crate) const IOC_BACKING_CLOSE: u64 = 0x4004_e502;

pub(crate) const RING_REGISTER: u32 = 1;
pub(crate) const RING_COMMIT_AND_FETCH: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the sizes are the kernel's. Method: compare with the sizes of the public header.
    #[test]
    fn sizes_are_the_kernels() {
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<OutHeader>(), 16);
        assert_eq!(size_of::<InitIn>(), 64);
        assert_eq!(size_of::<InitOut>(), 64);
        assert_eq!(size_of::<WireAttr>(), 88);
        assert_eq!(size_of::<WireEntry>(), 128);
        assert_eq!(size_of::<WireAttrOut>(), 104);
        assert_eq!(size_of::<WireStatx>(), 256);
        assert_eq!(size_of::<WireStatxOut>(), 288);
        assert_eq!(size_of::<WireStatfs>(), 80);
        assert_eq!(size_of::<SetattrIn>(), 88);
        assert_eq!(size_of::<ReadIn>(), 40);
        assert_eq!(size_of::<WriteIn>(), 40);
        assert_eq!(size_of::<LkIn>(), 48);
        assert_eq!(size_of::<CopyFileRangeIn>(), 56);
        assert_eq!(size_of::<IoctlIn>(), 32);
        assert_eq!(size_of::<Dirent>(), 24);
        assert_eq!(size_of::<NotifyPrune>(), 16);
        assert_eq!(size_of::<RingHeader>(), 288);
        assert_eq!(std::mem::offset_of!(RingHeader, op_in), 128);
        assert_eq!(std::mem::offset_of!(RingHeader, entry), 256);
        assert_eq!(size_of::<RingCommand>(), 24);
    }
}
