//! mkdir(2).

use types::{Attr, Errno, FileKind, Ino};

use crate::{
    Caller, Env, Place,
    dentry::{self, Dentry},
    error::{Result, refuse},
    inode::{self, Inode},
    name,
    newborn::{self, Wish},
    parts, striping,
    txn::Txn,
};

/// Subdirectories of one directory, plus 2. Not `LINK_MAX`, which is for hard links: directories of millions of
/// entries may hold directories.
const DIR_LINK_MAX: u32 = i32::MAX as u32;

/// Makes a directory at `at` with the new number `ino` (which, below the root, is the top of a new UGSD).
pub fn mkdir<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    caller: &Caller,
    at: Place<'_>,
    mode: u32,
    ino: Ino,
) -> Result<Attr> {
    name::check_new(at.name)?;
    let (at, mut dir) = parts::enter_live(txn, &env.names, at)?;
    if dentry::get(txn, &env.names, at)?.is_some() {
        return refuse(Errno::EEXIST);
    }
    gain_subdir(&mut dir)?;
    let wish = Wish { ino, kind: FileKind::Directory, mode };
    let mut inode = newborn::conceive(txn, env, caller, (at.dir, &dir), wish)?;
    striping::inherit(txn, (at.dir, &dir), (ino, &mut inode))?;
    inode::store(txn, ino, &inode);
    dentry::put(txn, &env.names, at, Dentry { ino, kind: FileKind::Directory });
    dir.entries_changed(env.now);
    inode::store(txn, at.dir, &dir);
    Ok(inode.attr(ino))
}

/// One more subdirectory's "..", or `EMLINK`.
pub(crate) fn gain_subdir(dir: &mut Inode) -> Result<()> {
    if dir.nlink >= DIR_LINK_MAX {
        return refuse(Errno::EMLINK);
    }
    dir.nlink += 1;
    Ok(())
}

/// One subdirectory's ".." less.
pub(crate) fn lose_subdir(dir: &mut Inode) {
    dir.nlink = dir.nlink.saturating_sub(1).max(2);
}
