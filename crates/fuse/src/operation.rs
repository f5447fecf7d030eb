//! What a request asks for, as the file system sees it. Names and data borrow from the request's buffer.
//!
//! An operation's node is in the [`Header`]; directory operations name their directory there. Names are never
//! empty, hold no `/` and no NUL; their length is the file system's to judge.

use std::fmt;

use types::Timestamp;

use crate::abi;

/// Who asks what of which node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The request's number; an INTERRUPT names it.
    pub unique: u64,
    /// The node that the operation is on (1 is the root).
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
    /// 0 when the caller lives in another pid namespace, or for the kernel's own requests.
    pub pid: u32,
    pub opcode: u32,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeOrNow {
    Now,
    At(Timestamp),
}

/// What SETATTR changes; `None` stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetattrArgs {
    /// Permission and set-id bits with the file type, as in `st_mode`.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    pub atime: Option<TimeOrNow>,
    pub mtime: Option<TimeOrNow>,
    pub ctime: Option<Timestamp>,
    /// The open file through which it was asked (ftruncate).
    pub fh: Option<u64>,
    pub lock_owner: Option<u64>,
    /// Clear the set-id bits as for a write by someone without privilege.
    pub kill_suidgid: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreateArgs<'a> {
    pub name: &'a [u8],
    /// As in open(2).
    pub flags: u32,
    pub mode: u32,
    pub umask: u32,
    pub kill_suidgid: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadArgs {
    pub fh: u64,
    /// Bytes from the start; for directories the cookie after which to go on.
    pub offset: u64,
    /// Bytes at most.
    pub size: u32,
    /// As in open(2).
    pub flags: u32,
    pub lock_owner: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WriteArgs<'a> {
    pub fh: u64,
    pub offset: u64,
    pub data: &'a [u8],
    /// Written back from the page cache: `fh`, uid, gid and pid are guesses.
    pub cache: bool,
    pub kill_suidgid: bool,
    /// As in open(2).
    pub flags: u32,
    pub lock_owner: Option<u64>,
}

impl fmt::Debug for WriteArgs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteArgs {{ fh: {}, offset: {}, {} bytes }}", self.fh, self.offset, self.data.len())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReleaseArgs {
    pub fh: u64,
    /// As in open(2).
    pub flags: u32,
    pub lock_owner: u64,
    pub flush: bool,
    pub flock_unlock: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetxattrArgs<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
    /// `XATTR_CREATE`, `XATTR_REPLACE`.
    pub flags: u32,
    /// Clear the set-group-id bit with this ACL.
    pub acl_kill_sgid: bool,
}

/// A byte range lock; `kind` is `F_RDLCK`, `F_WRLCK` or `F_UNLCK`, `end` is inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    pub start: u64,
    pub end: u64,
    pub kind: u32,
    pub pid: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockArgs {
    pub fh: u64,
    pub owner: u64,
    pub lock: Lock,
    /// From flock(2), not fcntl(2).
    pub flock: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyArgs {
    pub fh_in: u64,
    pub offset_in: u64,
    pub node_out: u64,
    pub fh_out: u64,
    pub offset_out: u64,
    pub len: u64,
    pub flags: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoctlArgs<'a> {
    pub fh: u64,
    pub flags: u32,
    pub cmd: u32,
    pub arg: u64,
    pub data: &'a [u8],
    /// Room for the answer's data.
    pub out_size: u32,
}

/// One node to forget, and how many lookups of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forgotten {
    pub node: u64,
    pub lookups: u64,
}

/// The nodes of a BATCH_FORGET.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForgetList<'a>(pub(crate) &'a [u8]);

impl Iterator for ForgetList<'_> {
    type Item = Forgotten;

    fn next(&mut self) -> Option<Forgotten> {
        let one: abi::ForgetOne = abi::read(self.0)?;
        self.0 = &self.0[size_of::<abi::ForgetOne>()..];
        Some(Forgotten { node: one.nodeid, lookups: one.nlookup })
    }
}

/// One request. Each variant says which answer it takes; any may be answered with an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation<'a> {
    /// `reply_entry`, or `reply_negative` to have the absence cached.
    Lookup { name: &'a [u8] },
    /// `reply_none`.
    Forget { lookups: u64 },
    /// `reply_none`.
    BatchForget(ForgetList<'a>),
    /// `reply_attr`.
    Getattr { fh: Option<u64> },
    /// `reply_attr`; asked only when somebody wants more than stat(2) has.
    Statx { fh: Option<u64>, flags: u32, mask: u32 },
    /// `reply_attr`.
    Setattr(SetattrArgs),
    /// `reply_bytes`.
    Readlink,
    /// `reply_entry`.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// `reply_entry`.
    Mknod { name: &'a [u8], mode: u32, rdev: u32, umask: u32 },
    /// `reply_entry`.
    Mkdir { name: &'a [u8], mode: u32, umask: u32 },
    /// `reply_ok`.
    Unlink { name: &'a [u8] },
    /// `reply_ok`.
    Rmdir { name: &'a [u8] },
    /// `reply_ok`. `flags` as in renameat2(2).
    Rename { name: &'a [u8], new_parent: u64, new_name: &'a [u8], flags: u32 },
    /// `reply_entry`. The header's node is the directory, `node` the existing file.
    Link { node: u64, name: &'a [u8] },
    /// `reply_open`.
    Open { flags: u32, kill_suidgid: bool },
    /// `reply_create`.
    Create(CreateArgs<'a>),
    /// `reply_create`. The name means nothing.
    Tmpfile(CreateArgs<'a>),
    /// `reply_with` or `reply_bytes`.
    Read(ReadArgs),
    /// `reply_written`.
    Write(WriteArgs<'a>),
    /// `reply_statfs`.
    Statfs,
    /// `reply_ok`.
    Release(ReleaseArgs),
    /// `reply_ok`. Each close(2) of a descriptor.
    Flush { fh: u64, lock_owner: u64 },
    /// `reply_ok`.
    Fsync { fh: u64, datasync: bool },
    /// `reply_open`.
    Opendir { flags: u32 },
    /// `reply_dir`.
    Readdir(ReadArgs),
    /// `reply_dir`.
    Readdirplus(ReadArgs),
    /// `reply_ok`.
    Releasedir(ReleaseArgs),
    /// `reply_ok`.
    Fsyncdir { fh: u64, datasync: bool },
    /// `reply_ok`.
    Setxattr(SetxattrArgs<'a>),
    /// `reply_xattr_size` when `size` is 0, else `reply_bytes`, or ERANGE when `size` is too small.
    Getxattr { name: &'a [u8], size: u32 },
    /// As for Getxattr; the names each end in NUL.
    Listxattr { size: u32 },
    /// `reply_ok`.
    Removexattr { name: &'a [u8] },
    /// `reply_ok`. As in access(2); not sent with `default_permissions`.
    Access { mask: u32 },
    /// `reply_lock`.
    Getlk(LockArgs),
    /// `reply_ok`.
    Setlk(LockArgs),
    /// `reply_ok`, when the lock is got.
    Setlkw(LockArgs),
    /// `reply_ok`. `mode` as in fallocate(2).
    Fallocate { fh: u64, offset: u64, length: u64, mode: u32 },
    /// `reply_lseek`. `whence` is `SEEK_DATA` or `SEEK_HOLE`.
    Lseek { fh: u64, offset: u64, whence: u32 },
    /// `reply_copied`.
    CopyFileRange(CopyArgs),
    /// `reply_ioctl`.
    Ioctl(IoctlArgs<'a>),
    /// `reply_poll`.
    Poll { fh: u64, kernel_handle: u64, flags: u32, events: u32 },
    /// `reply_none`: whoever waits for the named request would like it to end early.
    Interrupt { unique: u64 },
    /// `reply_bmap`.
    Bmap { block: u64, block_size: u32 },
    /// `reply_ok`.
    Syncfs,
    /// `reply_ok`.
    Destroy,
    /// `reply_error(ENOSYS)`.
    Unknown(u32),
}
