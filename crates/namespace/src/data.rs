//! The data state of regular files: when writing begins, what it came to, and what writing takes away.

use types::{Errno, FileKind, Ino, Timestamp};

use crate::{
    DataState, Env,
    error::{Result, refuse},
    inode::{self, Inode, InodeFlags, blocks_of},
    quota,
    txn::Txn,
    xattr,
};

/// What writing came to, as the data server knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settled {
    pub size: u64,
    /// 512-byte units; without it, as many as a file without holes has.
    pub blocks: Option<u64>,
    /// When it was last written, if it was.
    pub mtime: Option<Timestamp>,
    /// Somebody still has it open for writing: size and mtime stay the object's.
    pub still_open: bool,
}

fn load_regular<T: Txn + ?Sized>(txn: &T, ino: Ino) -> Result<Inode> {
    let inode = inode::load(txn, ino)?;
    match inode.kind {
        FileKind::Regular => Ok(inode),
        FileKind::Directory => refuse(Errno::EISDIR),
        FileKind::Symlink
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => refuse(Errno::EINVAL),
    }
}

/// Whether [`begin_write`] would change nothing, so that no transaction is needed.
pub fn is_begun(inode: &Inode, env: &Env) -> bool {
    inode.kind == FileKind::Regular
        && inode.flags.contains(InodeFlags::WRITTEN)
        && inode.live_epoch == env.epoch
        && inode.memory_generation == env.memory_generation
}

/// Notes that bytes of `ino` are about to be written, in this mount and this generation of the memory tier. Must be
/// committed before the first byte is. File capabilities go, as with any write.
pub fn begin_write<T: Txn + ?Sized>(txn: &mut T, env: &Env, ino: Ino) -> Result<DataState> {
    let mut inode = load_regular(txn, ino)?;
    if !is_begun(&inode, env) {
        inode.flags |= InodeFlags::WRITTEN;
        inode.live_epoch = env.epoch;
        inode.memory_generation = env.memory_generation;
        xattr::kill_capability(txn, ino, &mut inode)?;
        inode::store(txn, ino, &inode);
    }
    Ok(inode.data(env.epoch))
}

/// Records what writing came to and charges the project; no limit applies, since the bytes are written.
/// Returns whether anything changed.
pub fn settle<T: Txn + ?Sized>(txn: &mut T, env: &Env, ino: Ino, settled: &Settled) -> Result<bool> {
    let before = load_regular(txn, ino)?;
    if settled.size > inode::SIZE_MAX {
        return refuse(Errno::EFBIG);
    }
    let mut inode = before;
    inode.size = settled.size;
    inode.blocks = settled.blocks.unwrap_or_else(|| blocks_of(settled.size));
    if let Some(mtime) = settled.mtime {
        inode.mtime = mtime;
        // A time that somebody set may lie in the future; the change was now at the latest.
        inode.ctime = inode.ctime.max(mtime.min(env.now));
    }
    if !settled.still_open {
        inode.live_epoch = 0;
    }
    if inode == before {
        return Ok(false);
    }
    let bytes = quota::bytes_delta(before.size, inode.size);
    quota::settle(txn, inode.project, quota::Delta { bytes, inodes: 0 })?;
    inode::store(txn, ino, &inode);
    Ok(true)
}

/// A read changed the access time; the change time stays.
pub fn touch<T: Txn + ?Sized>(txn: &mut T, ino: Ino, atime: Timestamp) -> Result<()> {
    let mut inode = inode::load(txn, ino)?;
    inode.atime = atime;
    inode::store(txn, ino, &inode);
    Ok(())
}

/// A write takes file capabilities away, and by somebody without the right to keep them set-id bits too (`set_id`).
/// Returns whether there were any.
pub fn kill_privileges<T: Txn + ?Sized>(txn: &mut T, env: &Env, ino: Ino, set_id: bool) -> Result<bool> {
    let before = inode::load(txn, ino)?;
    let mut inode = before;
    if set_id {
        inode.kill_suidgid();
    }
    xattr::kill_capability(txn, ino, &mut inode)?;
    if inode == before {
        return Ok(false);
    }
    inode.ctime = env.now;
    inode::store(txn, ino, &inode);
    Ok(true)
}
