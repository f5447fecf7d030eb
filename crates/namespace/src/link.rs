//! link(2): one more name for what is not a directory; also the first name of an `O_TMPFILE` file.

use types::{Attr, Errno, Ino, LINK_MAX};

use crate::{
    Env, Place, apart,
    dentry::{self, Dentry},
    error::{Result, refuse},
    inode, name, orphan, parts, quota,
    txn::Txn,
};

pub fn link<T: Txn + ?Sized>(txn: &mut T, env: &Env, ino: Ino, at: Place<'_>) -> Result<Attr> {
    name::check_new(at.name)?;
    let (at, mut dir) = parts::enter_live(txn, &env.names, at)?;
    let mut inode = inode::load(txn, ino)?;
    if inode.is_dir() {
        return refuse(Errno::EPERM);
    }
    if dentry::get(txn, &env.names, at)?.is_some() {
        return refuse(Errno::EEXIST);
    }
    if inode.nlink == 0 {
        // An unlinked file stays unlinked; only one that never had a name may get one.
        match orphan::get(txn, ino)?.map(|o| o.origin) {
            Some(orphan::Origin::Unnamed) => orphan::drop_record(txn, ino),
            Some(orphan::Origin::Unlinked) | None => return refuse(Errno::ENOENT),
        }
    }
    if inode.nlink >= LINK_MAX {
        return refuse(Errno::EMLINK);
    }
    quota::check_move(inode.project, dir.project)?;
    apart::gain_name(&mut inode, dir.is_apart())?;
    inode.nlink += 1;
    inode.parent = Some(dir.shown(at.dir));
    inode.ctime = env.now;
    inode::store(txn, ino, &inode);
    dentry::put(txn, &env.names, at, Dentry { ino, kind: inode.kind });
    dir.entries_changed(env.now);
    inode::store(txn, at.dir, &dir);
    Ok(inode.attr(ino))
}
