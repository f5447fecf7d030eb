//! What a new inode gets from its maker and from its directory: owner, group, mode, ACLs, project, times, and whether it is
//! apart.

use types::{FileKind, Ino, MODE_MASK, S_ISGID};

use crate::{
    Caller, Env,
    acl::{self, Acl},
    error::Result,
    inode::{Inode, InodeFlags},
    quota,
    txn::Txn,
    xattr,
};

/// What is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
}

/// The record of a new inode below `dir`, charged to the directory's project, its inherited ACLs written. The
/// caller completes and stores it.
pub(crate) fn conceive<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    caller: &Caller,
    dir: (Ino, &Inode),
    wish: Wish,
) -> Result<Inode> {
    let (dir_ino, dir) = dir;
    quota::charge(txn, dir.project, quota::Delta { bytes: 0, inodes: 1 })?;
    let is_dir = wish.kind == FileKind::Directory;
    let mut inode = Inode {
        kind: wish.kind,
        mode: wish.mode & MODE_MASK,
        flags: dir.flags.intersection(InodeFlags::APART),
        nlink: if is_dir { 2 } else { 1 },
        uid: caller.uid,
        gid: caller.gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: env.now,
        mtime: env.now,
        ctime: env.now,
        btime: env.now,
        parent: Some(dir.shown(dir_ino)),
        project: dir.project,
        live_epoch: 0,
        memory_generation: 0,
    };
    if dir.mode & S_ISGID != 0 {
        inode.gid = dir.gid;
        if is_dir {
            inode.mode |= S_ISGID;
        }
    }
    if wish.kind == FileKind::Symlink {
        inode.mode = 0o777;
    } else if dir.flags.contains(InodeFlags::ACL_DEFAULT) {
        inherit_acl(txn, dir_ino, wish.ino, &mut inode)?;
    } else {
        inode.mode &= !(caller.umask & 0o777);
    }
    Ok(inode)
}

fn inherit_acl<T: Txn + ?Sized>(txn: &mut T, dir: Ino, ino: Ino, inode: &mut Inode) -> Result<()> {
    let Some(default) = xattr::load_acl(txn, dir, acl::DEFAULT)? else { return Ok(()) };
    if inode.is_dir() {
        xattr::store_acl(txn, ino, acl::DEFAULT, &default);
        inode.flags |= InodeFlags::ACL_DEFAULT;
    }
    let mut access: Acl = default;
    inode.mode = access.inherit(inode.mode);
    if !access.is_minimal() {
        xattr::store_acl(txn, ino, acl::ACCESS, &access);
        inode.flags |= InodeFlags::ACL_ACCESS;
    }
    Ok(())
}
