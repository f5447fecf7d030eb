//! unlink(2).

use types::{Attr, Errno, FileKind, Ino};

use crate::{
    Env, Place, dentry,
    error::{Error, Result, refuse},
    inode::{self, Inode, InodeFlags},
    name, orphan, parts,
    txn::{KvError, Txn},
};

/// An inode that lost a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unlinked {
    pub ino: Ino,
    pub kind: FileKind,
    /// At 0 it is an orphan now, or gone. Of an inode whose record is damaged it is 1.
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
    let (at, mut dir) = parts::enter(txn, &env.names, at)?;
    if name::is_dots(at.name) {
        return refuse(Errno::EISDIR);
    }
    let key = dentry::key_of(&env.names, at);
    let Some(entry) = dentry::get_at(txn, &key)? else { return refuse(Errno::ENOENT) };
    if entry.kind == FileKind::Directory {
        return refuse(Errno::EISDIR);
    }
    txn.delete(&key);
    dir.entries_changed(env.now);
    inode::store(txn, at.dir, &dir);
    let mut inode = match inode::load_named(txn, entry.ino) {
        // The name can be got rid of. What else it has, and its object, nobody knows: they stay.
        Err(Error::Store(KvError::Corrupt(_))) => {
            return Ok(Unlinked { ino: entry.ino, kind: entry.kind, nlink_left: 1, gone: None });
        }
        other => other?,
    };
    let blank = inode.kind == FileKind::Regular && !inode.flags.contains(InodeFlags::WRITTEN);
    let unlinked = if inode.nlink == 1 && blank && !is_open(entry.ino) {
        inode.nlink = 0;
        inode.ctime = env.now;
        orphan::delete(txn, entry.ino, &inode)?;
        Unlinked { ino: entry.ino, kind: inode.kind, nlink_left: 0, gone: Some(inode.attr(entry.ino)) }
    } else {
        lose_name(txn, env, entry.ino, &mut inode)
    };
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
    Unlinked { ino, kind: inode.kind, nlink_left: inode.nlink, gone: None }
}
