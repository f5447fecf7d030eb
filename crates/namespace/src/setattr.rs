//! chmod, chown, truncate, utimensat: the changes of an inode's own attributes.

use types::{Errno, FileKind, Ino, MODE_MASK, Timestamp};

use crate::{
    Env, Found, acl,
    error::{Result, refuse},
    inode::{self, Inode, InodeFlags, blocks_of},
    parts, quota,
    txn::Txn,
    xattr,
};

/// What to change; `None` stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Only recorded here; the data server truncates the object.
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Without it, now.
    pub ctime: Option<Timestamp>,
    /// The caller may not keep set-id bits over a truncation.
    pub kill_suidgid: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    Now,
    At(Timestamp),
}

impl SetTime {
    fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            SetTime::Now => now,
            SetTime::At(time) => time,
        }
    }
}

pub fn setattr<T: Txn + ?Sized>(txn: &mut T, env: &Env, ino: Ino, change: &SetAttr) -> Result<Found> {
    let mut inode = inode::load(txn, ino)?;
    parts::check_shown(&inode)?;
    if let Some(size) = change.size {
        truncate(txn, env, &mut inode, size)?;
    }
    if change.uid.is_some() || change.gid.is_some() {
        inode.uid = change.uid.unwrap_or(inode.uid);
        inode.gid = change.gid.unwrap_or(inode.gid);
        inode.kill_suidgid();
    }
    if change.kill_suidgid {
        inode.kill_suidgid();
    }
    if inode.kind == FileKind::Regular
        && (change.size.is_some() || change.uid.is_some() || change.gid.is_some() || change.kill_suidgid)
    {
        xattr::kill_capability(txn, ino, &mut inode)?;
    }
    if let Some(mode) = change.mode {
        chmod(txn, ino, &mut inode, mode)?;
    }
    if let Some(time) = change.atime {
        inode.atime = time.resolve(env.now);
    }
    if let Some(time) = change.mtime {
        inode.mtime = time.resolve(env.now);
    }
    inode.ctime = change.ctime.unwrap_or(env.now);
    if [inode.atime, inode.mtime, inode.ctime].iter().any(|t| t.nsec >= 1_000_000_000) {
        return refuse(Errno::EINVAL);
    }
    inode::store(txn, ino, &inode);
    if inode.spread().is_some() {
        if change.mode.is_some() || change.uid.is_some() || change.gid.is_some() || change.mtime.is_some() {
            parts::reflect(txn, ino, &inode, change.mtime.is_some())?;
        }
        parts::complete(txn, &mut inode)?;
    }
    Ok(inode.found(ino, env))
}

fn truncate<T: Txn + ?Sized>(txn: &mut T, env: &Env, inode: &mut Inode, size: u64) -> Result<()> {
    match inode.kind {
        FileKind::Regular => {}
        FileKind::Directory => return refuse(Errno::EISDIR),
        FileKind::Symlink
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => {
            return refuse(Errno::EINVAL);
        }
    }
    if size > inode::SIZE_MAX {
        return refuse(Errno::EFBIG);
    }
    let bytes = quota::bytes_delta(inode.size, size);
    quota::charge(txn, inode.project, quota::Delta { bytes, inodes: 0 })?;
    inode.size = size;
    // A longer file gets a hole.
    inode.blocks = inode.blocks.min(blocks_of(size));
    inode.mtime = env.now;
    Ok(())
}

pub(crate) fn chmod<T: Txn + ?Sized>(txn: &mut T, ino: Ino, inode: &mut Inode, mode: u32) -> Result<()> {
    if inode.kind == FileKind::Symlink {
        return refuse(Errno::EOPNOTSUPP);
    }
    inode.mode = mode & MODE_MASK;
    if inode.flags.contains(InodeFlags::ACL_ACCESS)
        && let Some(mut access) = xattr::load_acl(txn, ino, acl::ACCESS)?
    {
        access.chmod(mode);
        xattr::store_acl(txn, ino, acl::ACCESS, &access);
    }
    Ok(())
}
