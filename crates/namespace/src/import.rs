//! What a linked directory has, taken over: entries, attributes, link targets, extended attributes.
//!
//! Nobody here asked for it, so nothing is inherited but the project, no quota refuses it, and no time of ours is given: what
//! is there is shown as it is there. Directories keep their times when names are imported.

use std::collections::BTreeMap;

use types::{Errno, FileKind, Ino, MODE_MASK, Timestamp};

use crate::{
    Env, Found, Place,
    create::{check_target, symlink_record},
    dentry::{self, Dentry},
    error::{Result, refuse},
    inode::{self, Inode, InodeFlags},
    key, mkdir, name, orphan, parts, quota, setattr,
    txn::{Bytes, Txn},
    xattr,
};

/// The attributes of an object in the linked directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Theirs {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of devices, as in [`types::Attr`].
    pub rdev: u32,
    /// Of regular files.
    pub size: u64,
    /// 512-byte units, of regular files.
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// Creation, where it is known; without it, for a new inode, `ctime`.
    pub btime: Option<Timestamp>,
}

bitflags::bitflags! {
    /// What stays ours in a [`refresh`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Keep: u8 {
        const MODE = 1;
        /// User and group.
        const OWNER = 2;
        /// atime and mtime.
        const TIMES = 4;
        /// And blocks.
        const SIZE = 8;
    }
}

impl Theirs {
    fn check(&self) -> Result<()> {
        let times = [self.atime, self.mtime, self.ctime, self.btime.unwrap_or_default()];
        if times.iter().any(|time| time.nsec >= 1_000_000_000) {
            return refuse(Errno::EINVAL);
        }
        if self.kind == FileKind::Regular && self.size > inode::SIZE_MAX {
            return refuse(Errno::EFBIG);
        }
        Ok(())
    }

    fn has_data(&self) -> bool {
        self.kind == FileKind::Regular && self.size > 0
    }

    fn is_device(&self) -> bool {
        matches!(self.kind, FileKind::CharDevice | FileKind::BlockDevice)
    }

    /// A new inode with these attributes.
    fn inode(&self, dir: Ino, parent: &Inode, target: &[u8]) -> Inode {
        let (size, blocks) = match self.kind {
            FileKind::Regular => (self.size, self.blocks),
            FileKind::Symlink => (target.len() as u64, 0),
            FileKind::Directory | FileKind::Fifo | FileKind::Socket => (0, 0),
            FileKind::CharDevice | FileKind::BlockDevice => (0, 0),
        };
        let flags = if self.has_data() { STUB } else { InodeFlags::empty() };
        Inode {
            kind: self.kind,
            mode: if self.kind == FileKind::Symlink { 0o777 } else { self.mode & MODE_MASK },
            flags,
            nlink: if self.kind == FileKind::Directory { 2 } else { 1 },
            uid: self.uid,
            gid: self.gid,
            rdev: if self.is_device() { self.rdev } else { 0 },
            size,
            blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime.unwrap_or(self.ctime),
            parent: Some(parent.shown(dir)),
            project: parent.project,
            live_epoch: 0,
            memory_generation: 0,
        }
    }
}

/// Of a file whose data are all in the linked directory. Written: copies of it may be in the tiers.
const STUB: InodeFlags = InodeFlags::LINKED.union(InodeFlags::WRITTEN);

/// Makes an entry at `at` and inode `ino`, with exactly these attributes; a symbolic link with `target`. A regular file that
/// is not empty is linked. `EEXIST` if the name is taken.
pub fn import<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    at: Place<'_>,
    theirs: &Theirs,
    target: &[u8],
    ino: Ino,
) -> Result<Found> {
    name::check_new(at.name)?;
    theirs.check()?;
    let target = check_target(theirs.kind, Some(target))?;
    let (at, mut dir) = parts::enter_live(txn, &env.names, at)?;
    let entry = dentry::key_of(&env.names, at);
    if dentry::get_at(txn, &entry)?.is_some() {
        return refuse(Errno::EEXIST);
    }
    let inode = theirs.inode(at.dir, &dir, target);
    if inode.is_dir() {
        mkdir::gain_subdir(&mut dir)?;
        inode::store(txn, at.dir, &dir);
    }
    let bytes = quota::bytes_of(&inode) as i64;
    quota::settle(txn, inode.project, quota::Delta { bytes, inodes: 1 })?;
    if inode.kind == FileKind::Symlink {
        txn.put(&key::symlink(ino), symlink_record(target));
    }
    inode::store(txn, ino, &inode);
    txn.put(&entry, Dentry { ino, kind: inode.kind }.encode());
    Ok(inode.found(ino, env))
}

/// Takes over what the linked directory says of an inode that it has, but for what `keep` names. `EINVAL` if it is of another
/// kind. ACLs stay; an access ACL follows the mode, as in chmod(2). Sizes of directories are never taken over.
///
/// The change time becomes theirs if that is later, and now if it is not and something but the access time changed: it never
/// goes back, and it shows every change.
pub fn refresh<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    ino: Ino,
    theirs: &Theirs,
    keep: Keep,
) -> Result<Found> {
    let (before, mut inode) = taken_over(txn, ino, theirs, keep)?;
    store_changed(txn, env, ino, &before, &mut inode)?;
    Ok(inode.found(ino, env))
}

/// As [`refresh`], of a regular file whose data are now all theirs: its object's record goes, and it is settled and linked (not
/// when theirs is empty). The caller has the object's lock, and what copies of it there are count for nothing.
pub fn refresh_stub<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    ino: Ino,
    theirs: &Theirs,
    keep: Keep,
) -> Result<Found> {
    if theirs.kind != FileKind::Regular {
        return refuse(Errno::EINVAL);
    }
    let (before, mut inode) = taken_over(txn, ino, theirs, keep)?;
    orphan::delete_range(txn, &key::object(ino), &key::object_end(ino))?;
    inode.live_epoch = 0;
    inode.flags.remove(InodeFlags::LINKED);
    if theirs.has_data() {
        inode.flags |= STUB;
    }
    store_changed(txn, env, ino, &before, &mut inode)?;
    Ok(inode.found(ino, env))
}

/// A version of a regular file is in the linked directory from now on (or nothing of it is any more, and its object's record
/// says where all of it is).
pub fn set_linked<T: Txn + ?Sized>(txn: &mut T, ino: Ino, linked: bool) -> Result<()> {
    let mut inode = inode::load(txn, ino)?;
    if inode.kind != FileKind::Regular {
        return refuse(Errno::EINVAL);
    }
    let before = inode.flags;
    inode.flags.set(InodeFlags::LINKED, linked);
    if linked {
        inode.flags |= STUB;
    }
    if inode.flags != before {
        inode::store(txn, ino, &inode);
    }
    Ok(())
}

/// A symbolic link of theirs was made anew, with another target.
pub fn retarget<T: Txn + ?Sized>(txn: &mut T, env: &Env, ino: Ino, target: &[u8]) -> Result<Found> {
    let mut inode = inode::load(txn, ino)?;
    if inode.kind != FileKind::Symlink {
        return refuse(Errno::EINVAL);
    }
    let record = symlink_record(check_target(inode.kind, Some(target))?);
    let key = key::symlink(ino);
    if txn.get(&key)?.is_none_or(|before| before != record) {
        inode.size = target.len() as u64;
        inode.ctime = inode.ctime.max(env.now);
        txn.put(&key, record);
        inode::store(txn, ino, &inode);
    }
    Ok(inode.found(ino, env))
}

/// The inode as it was, and with their attributes. An ACL is written already.
fn taken_over<T: Txn + ?Sized>(txn: &mut T, ino: Ino, theirs: &Theirs, keep: Keep) -> Result<(Inode, Inode)> {
    theirs.check()?;
    let before = inode::load(txn, ino)?;
    let mut inode = before;
    if inode.kind != theirs.kind {
        return refuse(Errno::EINVAL);
    }
    let mode = theirs.mode & MODE_MASK;
    if !keep.contains(Keep::MODE) && inode.kind != FileKind::Symlink && inode.mode != mode {
        setattr::chmod(txn, ino, &mut inode, mode)?;
    }
    if !keep.contains(Keep::OWNER) {
        (inode.uid, inode.gid) = (theirs.uid, theirs.gid);
    }
    if !keep.contains(Keep::TIMES) {
        (inode.atime, inode.mtime) = (theirs.atime, theirs.mtime);
    }
    if !keep.contains(Keep::SIZE) && inode.kind == FileKind::Regular {
        (inode.size, inode.blocks) = (theirs.size, theirs.blocks);
    }
    if theirs.is_device() {
        inode.rdev = theirs.rdev;
    }
    inode.btime = theirs.btime.unwrap_or(inode.btime);
    inode.ctime = inode.ctime.max(theirs.ctime);
    Ok((before, inode))
}

fn store_changed<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    ino: Ino,
    before: &Inode,
    inode: &mut Inode,
) -> Result<()> {
    let shown = |inode: &Inode| {
        let Inode { mode, uid, gid, rdev, size, blocks, mtime, .. } = *inode;
        (mode, uid, gid, rdev, size, blocks, mtime)
    };
    if inode.ctime == before.ctime && shown(inode) != shown(before) {
        inode.ctime = inode.ctime.max(env.now);
    }
    if inode == before {
        return Ok(());
    }
    let bytes = quota::bytes_delta(quota::bytes_of(before), quota::bytes_of(inode));
    quota::settle(txn, inode.project, quota::Delta { bytes, inodes: 0 })?;
    inode::store(txn, ino, inode);
    parts::reflect(txn, ino, inode, inode.mtime != before.mtime)
}

/// Replaces all extended attributes of an inode, ACLs included: an access ACL gives the mode its permissions, and one that
/// the mode can say is not stored. Times stay: [`refresh`] takes over theirs. Returns how many could not be taken: names
/// of kinds that we do not have, ACLs that are not valid, and what is more than an inode may have.
pub fn import_xattrs<T: Txn + ?Sized>(txn: &mut T, ino: Ino, theirs: &[(Vec<u8>, Vec<u8>)]) -> Result<usize> {
    let before = inode::load(txn, ino)?;
    let mut inode = before;
    let mut wanted: BTreeMap<&[u8], Bytes> = BTreeMap::new();
    let mut room = xattr::Room::default();
    inode.flags.remove(InodeFlags::XATTR | InodeFlags::ACL_ACCESS | InodeFlags::ACL_DEFAULT);
    let mut left_out = 0;
    for (name, value) in theirs {
        match xattr::take_one(&mut inode, &mut room, (name, value)) {
            Ok(Some(record)) => _ = wanted.insert(name, record),
            Ok(None) => {}
            Err(_) => left_out += 1,
        }
    }
    replace_all(txn, ino, &before, wanted)?;
    if inode != before {
        inode::store(txn, ino, &inode);
    }
    parts::reflect(txn, ino, &inode, false)?;
    Ok(left_out)
}

fn replace_all<T: Txn + ?Sized>(
    txn: &mut T,
    ino: Ino,
    before: &Inode,
    wanted: BTreeMap<&[u8], Bytes>,
) -> Result<()> {
    let any = InodeFlags::XATTR | InodeFlags::ACL_ACCESS | InodeFlags::ACL_DEFAULT;
    let mut stored: BTreeMap<Vec<u8>, Bytes> = BTreeMap::new();
    if before.flags.intersects(any) {
        xattr::visit_records(txn, ino, &mut |name, record| {
            stored.insert(name.to_vec(), Bytes::copy_from_slice(record));
            std::ops::ControlFlow::Continue(())
        })?;
    }
    for name in stored.keys().filter(|name| !wanted.contains_key(&name[..])) {
        txn.delete(&key::xattr(ino, name));
    }
    for (name, record) in wanted {
        if stored.get(name) != Some(&record) {
            txn.put(&key::xattr(ino, name), record);
        }
    }
    Ok(())
}
