//! rmdir(2).

use types::{Errno, FileKind, Ino};

use crate::{
    Env, Place, dentry,
    error::{Result, refuse},
    inode::{self, Inode},
    mkdir, name, orphan,
    txn::Txn,
};

/// Removes the empty directory at `at`. Its inode stays, as an orphan, for those who have it open.
pub fn rmdir<T: Txn + ?Sized>(txn: &mut T, env: &Env, at: Place<'_>) -> Result<Ino> {
    name::check(at.name)?;
    let mut dir = inode::load_dir(txn, at.dir)?;
    match at.name {
        b"." => return refuse(Errno::EINVAL),
        b".." => return refuse(Errno::ENOTEMPTY),
        _ => {}
    }
    let Some(entry) = dentry::get(txn, &env.names, at)? else { return refuse(Errno::ENOENT) };
    if entry.kind != FileKind::Directory {
        return refuse(Errno::ENOTDIR);
    }
    let mut inode = inode::load_named(txn, entry.ino)?;
    if !dentry::is_empty(txn, entry.ino)? {
        return refuse(Errno::ENOTEMPTY);
    }
    dentry::delete(txn, &env.names, at);
    remove(txn, env, entry.ino, &mut inode);
    mkdir::lose_subdir(&mut dir);
    dir.entries_changed(env.now);
    inode::store(txn, at.dir, &dir);
    Ok(entry.ino)
}

/// Makes an orphan of an empty directory whose entry is gone.
pub(crate) fn remove<T: Txn + ?Sized>(txn: &mut T, env: &Env, ino: Ino, inode: &mut Inode) {
    inode.nlink = 0;
    inode.ctime = env.now;
    inode::store(txn, ino, inode);
    orphan::add(txn, env, ino, orphan::Origin::Unlinked);
}
