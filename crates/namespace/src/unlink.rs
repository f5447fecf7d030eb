//! unlink(2).

use types::{Errno, FileKind, Ino};

use crate::{
    Env, Place, dentry,
    error::{Result, refuse},
    inode::{self, Inode},
    name, orphan,
    txn::Txn,
};

/// An inode that lost a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unlinked {
    pub ino: Ino,
    /// At 0 it is an orphan now.
    pub nlink_left: u32,
}

/// Takes the name at `at` from what is not a directory.
pub fn unlink<T: Txn + ?Sized>(txn: &mut T, env: &Env, at: Place<'_>) -> Result<Unlinked> {
    name::check(at.name)?;
    let mut dir = inode::load_dir(txn, at.dir)?;
    if name::is_dots(at.name) {
        return refuse(Errno::EISDIR);
    }
    let Some(entry) = dentry::get(txn, &env.names, at)? else { return refuse(Errno::ENOENT) };
    if entry.kind == FileKind::Directory {
        return refuse(Errno::EISDIR);
    }
    let mut inode = inode::load_named(txn, entry.ino)?;
    dentry::delete(txn, &env.names, at);
    let unlinked = lose_name(txn, env, entry.ino, &mut inode);
    dir.entries_changed(env.now);
    inode::store(txn, at.dir, &dir);
    Ok(unlinked)
}

/// One name less for what is not a directory; without the last one it is an orphan.
pub(crate) fn lose_name<T: Txn + ?Sized>(txn: &mut T, env: &Env, ino: Ino, inode: &mut Inode) -> Unlinked {
    inode.nlink = inode.nlink.saturating_sub(1);
    inode.ctime = env.now;
    inode::store(txn, ino, inode);
    if inode.nlink == 0 {
        orphan::add(txn, env, ino, orphan::Origin::Unlinked);
    }
    Unlinked { ino, nlink_left: inode.nlink }
}
