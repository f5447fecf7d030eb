//! Sets of flags that a file system sees.

use bitflags::bitflags;

bitflags! {
    /// What the kernel offers at INIT and what a file system takes of it. Bits 32 and up travel in `flags2`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Capabilities: u64 {
        /// Several reads of one file at a time.
        const ASYNC_READ = 1 << 0;
        /// POSIX locks are sent to us; otherwise the kernel keeps them itself.
        const POSIX_LOCKS = 1 << 1;
        /// `O_TRUNC` is part of OPEN instead of a SETATTR after it.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// LOOKUP of "." and ".." works for any node (NFS export).
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        /// The umask is left to us (needed for default ACLs).
        const DONT_MASK = 1 << 6;
        /// flock locks are sent to us; otherwise the kernel keeps them itself.
        const FLOCK_LOCKS = 1 << 10;
        const IOCTL_DIR = 1 << 11;
        /// Drop cached pages when size or mtime changed at a GETATTR.
        const AUTO_INVAL_DATA = 1 << 12;
        const READDIRPLUS = 1 << 13;
        /// READDIRPLUS only where the kernel thinks it pays.
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        /// The kernel gathers writes in its page cache. Excludes `PASSTHROUGH`.
        const WRITEBACK_CACHE = 1 << 16;
        /// OPEN answered with ENOSYS means: no OPEN at all from now on.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// LOOKUP and READDIR in one directory at the same time.
        const PARALLEL_DIROPS = 1 << 18;
        const HANDLE_KILLPRIV = 1 << 19;
        /// The kernel checks permissions with the ACLs in `system.posix_acl_*`.
        const POSIX_ACL = 1 << 20;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        /// OPENDIR answered with ENOSYS means: no OPENDIR at all, and directories are cached.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Drop cached pages only when told to. Excludes `AUTO_INVAL_DATA`.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// Set-id bits are cleared by us on write, truncate and chown, when the request says so.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR carries flags of its own (clear the set-group-id bit with an ACL).
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        /// Requests that create carry the caller's group that owns the parent directory.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// An entry may be expired without being dropped.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Shared mmap of files opened with direct I/O.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Files backed by another file that the kernel reads itself; needs `max_stack_depth` of 1 or 2.
        const PASSTHROUGH = 1 << 37;
        const NO_EXPORT_SUPPORT = 1 << 38;
        const HAS_RESEND = 1 << 39;
        const ALLOW_IDMAP = 1 << 40;
        /// The transport's own: set and cleared by the session, not by the file system.
        const OVER_IO_URING = 1 << 41;
        const REQUEST_TIMEOUT = 1 << 42;
        const _ = !0;
    }

    /// The answer to OPEN, OPENDIR and CREATE.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct OpenFlags: u32 {
        /// Bypass the page cache.
        const DIRECT_IO = 1 << 0;
        /// Keep the pages that an earlier open left.
        const KEEP_CACHE = 1 << 1;
        const NONSEEKABLE = 1 << 2;
        /// Cache the entries of this directory.
        const CACHE_DIR = 1 << 3;
        const STREAM = 1 << 4;
        /// No FLUSH at close.
        const NOFLUSH = 1 << 5;
        /// Direct writes that do not extend the file need no lock of each other.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        /// Read and write the backing file.
        const PASSTHROUGH = 1 << 7;
    }
}

impl Capabilities {
    /// What came after Linux 6.1, the kernel of Debian 12.
    pub const NEWER_THAN_LINUX_6_1: Capabilities = Capabilities::from_bits_retain(!0 << 34);
}
