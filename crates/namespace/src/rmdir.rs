//! rmdir(2).

use types::{Errno, FileKind, Ino};

use crate::{
    Env, Place, dentry,
    error::{Result, refuse},
    inode::{self, Inode},
    mkdir, name, orphan, parts,
    txn::Txn,
};

/// Removes the empty directory at `at`. Its inode stays, as an orphan, for those who have it open.
pub fn rmdir<T: Txn + ?Sized>(txn: &mut T, env: &Env, at: Place<'_>) -> Result<Ino> {
    name::check(at.name)?;
    let (at, mut dir) = parts::enter(txn, &env.names, at)?;
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
    if !parts::is_empty(txn, entry.ino, &inode)? {
        return refuse(Errno::ENOTEMPTY);
    }
    dentry::delete(txn, &env.names, at);
    remove(txn, env, entry.ino, &mut inode);
    mkdir::lose_subdir(&mut dir);
    dir.entries_changed(env.now);
    inode::store(txn, at.dir, &dir);
    Ok(entry.ino)
}

/// Makes an orphan of an empty directory whose entry is gone. Its parts go at once: nobody refers to them.
pub(crate) fn remove<T: Txn + ?Sized>(txn: &mut T, env: &Env, ino: Ino, inode: &mut Inode) {
    if let Some(over) = inode.spread() {
        parts::end(txn, inode, over);
    }
    inode.nlink = 0;
    inode.ctime = env.now;
    inode::store(txn, ino, inode);
    orphan::add(txn, env, ino, orphan::Origin::Unlinked);
}
