//! unlink(2).

use types::{Attr, Errno, FileKind, Ino};

use crate::{
    Env, Place, dentry,
    error::{Result, refuse},
    inode::{self, Inode, InodeFlags},
    name, orphan,
    txn::Txn,
};

/// An inode that lost a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unlinked {
    pub ino: Ino,
    /// At 0 it is an orphan now, or gone.
    pub nlink_left: u32,
    /// It is gone with all that was stored about it, and was this.
    pub gone: Option<Attr>,
}

/// Takes the name at `at` from what is not a directory. A regular file without a name that never had a byte and that
/// nobody has open (`is_open`) is purged at once: it has no object that would have to go first.
pub fn unlink<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    at: Place<'_>,
    is_open: &dyn Fn(Ino) -> bool,
) -> Result<Unlinked> {
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
    let blank = inode.kind == FileKind::Regular && !inode.flags.contains(InodeFlags::WRITTEN);
    let unlinked = if inode.nlink == 1 && blank && !is_open(entry.ino) {
        inode.nlink = 0;
        inode.ctime = env.now;
        orphan::delete(txn, entry.ino, &inode)?;
        Unlinked { ino: entry.ino, nlink_left: 0, gone: Some(inode.attr(entry.ino)) }
    } else {
        lose_name(txn, env, entry.ino, &mut inode)
    };
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
    Unlinked { ino, nlink_left: inode.nlink, gone: None }
}
