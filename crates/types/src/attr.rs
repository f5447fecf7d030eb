//! What `stat` shows of an inode.

use crate::{Ino, ProjectId, Timestamp};

pub const S_ISUID: u32 = 0o4000;
pub const S_ISGID: u32 = 0o2000;
pub const S_ISVTX: u32 = 0o1000;
/// The bits of a mode that are not the file type.
pub const MODE_MASK: u32 = 0o7777;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FileKind {
    Regular = 1,
    Directory = 2,
    Symlink = 3,
    Fifo = 4,
    Socket = 5,
    CharDevice = 6,
    BlockDevice = 7,
}

impl FileKind {
    pub const fn from_u8(n: u8) -> Option<FileKind> {
        Some(match n {
            1 => FileKind::Regular,
            2 => FileKind::Directory,
            3 => FileKind::Symlink,
            4 => FileKind::Fifo,
            5 => FileKind::Socket,
            6 => FileKind::CharDevice,
            7 => FileKind::BlockDevice,
            _ => return None,
        })
    }
    /// The `S_IFMT` part of a `st_mode`.
    pub const fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => libc::S_IFREG,
            FileKind::Directory => libc::S_IFDIR,
            FileKind::Symlink => libc::S_IFLNK,
            FileKind::Fifo => libc::S_IFIFO,
            FileKind::Socket => libc::S_IFSOCK,
            FileKind::CharDevice => libc::S_IFCHR,
            FileKind::BlockDevice => libc::S_IFBLK,
        }
    }
    /// From the `S_IFMT` part of a `st_mode`; type 0 means a regular file, as for mknod(2).
    pub const fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & libc::S_IFMT {
            0 | libc::S_IFREG => FileKind::Regular,
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFLNK => FileKind::Symlink,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFCHR => FileKind::CharDevice,
            libc::S_IFBLK => FileKind::BlockDevice,
            _ => return None,
        })
    }
}

/// The attributes of one inode, as every layer passes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileKind,
    /// Permission, set-id and sticky bits ([`MODE_MASK`]); the type is in `kind`.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Linux device number (`new_encode_dev` form, 32 bits), 0 unless a device.
    pub rdev: u32,
    /// Bytes.
    pub size: u64,
    /// 512-byte units, as in `st_blocks`.
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    pub project: ProjectId,
}
