//! Making anything that is not a directory: regular files, symbolic links, fifos, sockets, devices.
//!
//! Record of a symbolic link, version 1: version u8 | target, not empty, without NUL.

use types::{Errno, FileKind, Ino, SYMLINK_MAX};

use crate::{
    Caller, Env, Found, Place,
    dentry::{self, Dentry},
    error::{Result, refuse},
    inode::{self, Inode, InodeFlags},
    key, name,
    newborn::{self, Wish},
    orphan, parts,
    txn::{Bytes, Txn},
};

pub(crate) const SYMLINK_VERSION: u8 = 1;

/// What to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewNode<'a> {
    /// Anything but a directory.
    pub kind: FileKind,
    pub mode: u32,
    /// Of devices; ignored for the rest.
    pub rdev: u32,
    /// Of symbolic links, which need one.
    pub target: Option<&'a [u8]>,
    /// A regular file that is opened for writing at once, as by [`crate::data::begin_write`].
    pub for_write: bool,
}

/// Makes `node` at `at` with the new number `ino`.
pub fn create<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    caller: &Caller,
    at: Place<'_>,
    node: &NewNode<'_>,
    ino: Ino,
) -> Result<Found> {
    name::check_new(at.name)?;
    let (at, mut dir) = parts::enter_live(txn, &env.names, at)?;
    let entry = dentry::key_of(&env.names, at);
    if dentry::get_at(txn, &entry)?.is_some() {
        return refuse(Errno::EEXIST);
    }
    let target = check_target(node.kind, node.target)?;
    let wish = Wish { ino, kind: node.kind, mode: node.mode };
    let mut inode = newborn::conceive(txn, env, caller, (at.dir, &dir), wish)?;
    match node.kind {
        FileKind::Directory => return refuse(Errno::EINVAL),
        FileKind::Symlink => inode.size = target.len() as u64,
        FileKind::CharDevice | FileKind::BlockDevice => inode.rdev = node.rdev,
        FileKind::Regular if node.for_write => go_live(env, &mut inode),
        FileKind::Regular | FileKind::Fifo | FileKind::Socket => {}
    }
    if node.kind == FileKind::Symlink {
        txn.put(&key::symlink(ino), symlink_record(target));
    }
    inode::store(txn, ino, &inode);
    txn.put(&entry, Dentry { ino, kind: node.kind }.encode());
    dir.entries_changed(env.now);
    inode::store(txn, at.dir, &dir);
    Ok(inode.found(ino, env))
}

/// `O_TMPFILE`: a regular file below `dir` that has no name, open for writing.
pub fn create_unnamed<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    caller: &Caller,
    dir: Ino,
    mode: u32,
    ino: Ino,
) -> Result<Found> {
    let dir_inode = inode::load_live_dir(txn, dir)?;
    let wish = Wish { ino, kind: FileKind::Regular, mode };
    let mut inode = newborn::conceive(txn, env, caller, (dir, &dir_inode), wish)?;
    inode.nlink = 0;
    go_live(env, &mut inode);
    inode::store(txn, ino, &inode);
    orphan::add(txn, env, ino, orphan::Origin::Unnamed);
    Ok(inode.found(ino, env))
}

fn go_live(env: &Env, inode: &mut Inode) {
    inode.flags |= InodeFlags::WRITTEN;
    inode.live_epoch = env.epoch;
    inode.memory_generation = env.memory_generation;
}

/// Of anything but a symbolic link it is empty.
pub(crate) fn check_target(kind: FileKind, target: Option<&[u8]>) -> Result<&[u8]> {
    if kind != FileKind::Symlink {
        return Ok(b"");
    }
    match target {
        None => refuse(Errno::EINVAL),
        Some([]) => refuse(Errno::ENOENT),
        Some(target) if target.len() > SYMLINK_MAX => refuse(Errno::ENAMETOOLONG),
        Some(target) if target.contains(&0) => refuse(Errno::EINVAL),
        Some(target) => Ok(target),
    }
}

pub(crate) fn symlink_record(target: &[u8]) -> Bytes {
    let mut record = Vec::with_capacity(1 + target.len());
    record.push(SYMLINK_VERSION);
    record.extend_from_slice(target);
    Bytes::from(record)
}
