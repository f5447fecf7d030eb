//! A directory whose entries are in several hidden directories, its *parts*, each the top of a UGSD of its own: so different servers
//! can have them.
//!
//! - I-SPREAD-1: a directory that is spread has no entry of its own. Each is in the part that [`Spread`] says, so the
//!   parts one after the other are the directory in its order, with the cookies that it always had.
//! - I-SPREAD-2: a part has no name, and is nobody's parent: what is in it says that it is in the directory.
//! - I-SPREAD-3: what something new gets from the directory that it is made in (owner, group, mode, project, default ACL, layouts) the parts say as the
//!   directory does, from the same commit on.
//!
//! All operations take either place: a directory that is spread, or the part in which the name is. Refuses to know who serves what.

use std::ops::ControlFlow;

use types::{Attr, Errno, FileKind, Ino};

use crate::{
    Env, NameHasher, Place, acl, alloc, dentry,
    dentry::Dentry,
    error::{Result, refuse},
    inode::{self, Inode, InodeFlags, corrupt},
    key,
    spread::{BITS_MAX, Spread},
    txn::{Bytes, Reader, Txn},
};

/// What a part has of its directory.
const INHERITED: InodeFlags = InodeFlags::APART.union(InodeFlags::ACL_DEFAULT).union(InodeFlags::STRIPING);

/// Where an entry of that name is, or would be, with the record of the directory that has it.
pub(crate) fn enter<'a, R: Reader + ?Sized>(
    reader: &R,
    names: &NameHasher,
    at: Place<'a>,
) -> Result<(Place<'a>, Inode)> {
    let dir = inode::load_dir(reader, at.dir)?;
    let Some(spread) = dir.over() else { return Ok((at, dir)) };
    let part = spread.part_of(names, at.name);
    if dir.is_part() {
        // Whoever believes that the name is here does not know how the directory is spread.
        return if part == at.dir { Ok((at, dir)) } else { refuse(Errno::ESTALE) };
    }
    Ok((Place { dir: part, ..at }, load_part(reader, part)?))
}

/// As [`enter`], and `ENOENT` when the directory was removed.
pub(crate) fn enter_live<'a, R: Reader + ?Sized>(
    reader: &R,
    names: &NameHasher,
    at: Place<'a>,
) -> Result<(Place<'a>, Inode)> {
    let (at, dir) = enter(reader, names, at)?;
    if dir.nlink == 0 { refuse(Errno::ENOENT) } else { Ok((at, dir)) }
}

/// The directory in which an entry of that name is or would be: its UGSD is that of what is made there. Of what is no directory itself.
pub fn home<R: Reader + ?Sized>(reader: &R, names: &NameHasher, at: Place<'_>) -> Result<Ino> {
    let over = inode::get(reader, at.dir)?.and_then(|dir| dir.spread());
    Ok(over.map_or(at.dir, |spread| spread.part_of(names, at.name)))
}

/// The entry, in the directory or in its part.
pub(crate) fn find<R: Reader + ?Sized>(
    reader: &R,
    names: &NameHasher,
    at: Place<'_>,
) -> Result<Option<Dentry>> {
    // Only a directory has entries, and only one that is not spread; so that a look at it is needed where there is none.
    if let Some(entry) = dentry::get(reader, names, at)? {
        return Ok(Some(entry));
    }
    match enter(reader, names, at)? {
        (inner, _) if inner.dir == at.dir => Ok(None),
        (inner, _) => dentry::get(reader, names, inner),
    }
}

/// Whether directory `dir`, whose record is given, has no entries.
pub(crate) fn is_empty<R: Reader + ?Sized>(reader: &R, dir: Ino, inode: &Inode) -> Result<bool> {
    let Some(spread) = inode.spread() else { return dentry::is_empty(reader, dir) };
    for part in spread.parts() {
        if !dentry::is_empty(reader, part)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Programs do not know of parts: what is to be changed is the directory.
pub(crate) fn check_shown(inode: &Inode) -> Result<()> {
    if inode.is_part() { refuse(Errno::EINVAL) } else { Ok(()) }
}

/// Without a part the store is damaged.
fn load_part<R: Reader + ?Sized>(reader: &R, part: Ino) -> Result<Inode> {
    let inode = inode::load_named(reader, part)?;
    if inode.is_part() { Ok(inode) } else { Err(corrupt(&key::inode(part)).into()) }
}

/// Adds what the parts know better than the directory: subdirectories, and when entries changed.
pub(crate) fn complete<R: Reader + ?Sized>(reader: &R, inode: &mut Inode) -> Result<()> {
    let Some(spread) = inode.spread() else { return Ok(()) };
    for part in spread.parts() {
        let part = load_part(reader, part)?;
        inode.nlink = inode.nlink.saturating_add(part.nlink.saturating_sub(2));
        inode.mtime = inode.mtime.max(part.mtime);
        inode.ctime = inode.ctime.max(part.ctime);
    }
    Ok(())
}

/// The same of attributes.
pub fn complete_attr(attr: &mut Attr, part: &Attr) {
    attr.nlink = attr.nlink.saturating_add(part.nlink.saturating_sub(2));
    attr.mtime = attr.mtime.max(part.mtime);
    attr.ctime = attr.ctime.max(part.ctime);
}

/// The directory changed: its parts say the same. `mtime`: its time of change was set, and theirs with it.
pub(crate) fn reflect<T: Txn + ?Sized>(txn: &mut T, dir: Ino, inode: &Inode, mtime: bool) -> Result<()> {
    let Some(spread) = inode.spread() else { return Ok(()) };
    let records = Records::of(txn, dir, inode)?;
    for ino in spread.parts() {
        let mut part = load_part(txn, ino)?;
        take_over(&mut part, inode);
        if mtime {
            part.mtime = inode.mtime;
        }
        inode::store(txn, ino, &part);
        records.put(txn, ino);
    }
    Ok(())
}

fn take_over(part: &mut Inode, dir: &Inode) {
    (part.mode, part.uid, part.gid, part.project) = (dir.mode, dir.uid, dir.gid, dir.project);
    part.flags = dir.flags.intersection(INHERITED) | InodeFlags::PART;
}

/// Whether the part says what its directory says.
pub(crate) fn is_like<R: Reader + ?Sized>(
    reader: &R,
    (dir, of): (Ino, &Inode),
    (ino, part): (Ino, &Inode),
) -> Result<bool> {
    let mut like = *part;
    take_over(&mut like, of);
    let same = like == *part && part.rdev == of.rdev;
    Ok(same && Records::of(reader, dir, of)? == Records::of(reader, ino, part)?)
}

/// What a directory says beside its own record, as it is stored.
#[derive(PartialEq)]
struct Records {
    default_acl: Option<Bytes>,
    stripes: Option<Bytes>,
}

impl Records {
    fn of<R: Reader + ?Sized>(reader: &R, dir: Ino, inode: &Inode) -> Result<Records> {
        let get = |flag, key: key::Key| if inode.flags.contains(flag) { reader.get(&key) } else { Ok(None) };
        Ok(Records {
            default_acl: get(InodeFlags::ACL_DEFAULT, key::xattr(dir, acl::DEFAULT))?,
            stripes: get(InodeFlags::STRIPING, key::stripes(dir))?,
        })
    }

    fn put<T: Txn + ?Sized>(&self, txn: &mut T, part: Ino) {
        let records =
            [(key::xattr(part, acl::DEFAULT), &self.default_acl), (key::stripes(part), &self.stripes)];
        for (key, record) in records {
            match record {
                Some(record) => txn.put(&key, record.clone()),
                None => txn.delete(&key),
            }
        }
    }
}

/// An entry as it is stored.
struct Entry {
    key: Vec<u8>,
    hash: u64,
    name: Vec<u8>,
    record: Bytes,
    is_dir: bool,
}

/// All entries under the number `dir`; `EFBIG` if they are more.
fn entries<R: Reader + ?Sized>(reader: &R, dir: Ino, at_most: usize) -> Result<Vec<Entry>> {
    let (mut entries, mut bad, mut more) = (Vec::new(), None, false);
    reader.scan(&key::dentry_from(dir, 0), &key::dentry_end(dir), &mut |key, record| {
        let named = key::Parsed::new(key).and_then(|parsed| parsed.dentry());
        let (Some((hash, name)), Some(entry)) = (named, Dentry::decode(record)) else {
            bad = Some(corrupt(key));
            return ControlFlow::Break(());
        };
        if entries.len() == at_most {
            more = true;
            return ControlFlow::Break(());
        }
        entries.push(Entry {
            key: key.to_vec(),
            hash,
            name: name.to_vec(),
            record: Bytes::copy_from_slice(record),
            is_dir: entry.kind == FileKind::Directory,
        });
        ControlFlow::Continue(())
    })?;
    match bad {
        Some(error) => Err(error.into()),
        None if more => refuse(Errno::EFBIG),
        None => Ok(entries),
    }
}

/// Numbers of so many UGSDs that follow each other, for the `2^bits` parts of a directory. They are used once that is durable: a client may know a part
/// by its number, and bytes of what was made there, when a power cut has taken it. `EINVAL`: no directory has so many.
pub fn reserve<T: Txn + ?Sized>(txn: &mut T, bits: u32) -> Result<Spread> {
    if bits == 0 || bits > BITS_MAX {
        return refuse(Errno::EINVAL);
    }
    let first = alloc::new_ugsds(txn, 1 << bits)?;
    first.and_then(|first| Spread::new(first.get(), bits)).map_or_else(|| refuse(Errno::ENOSPC), Ok)
}

/// Spreads a directory over parts that were reserved, with all its entries. One that is spread so already stays as it is; over another number it is `EEXIST`.
/// `EFBIG`: it has more than `entries_max` entries. `EINVAL`: the root cannot be spread, since what is made there has a UGSD of its own
/// anyway.
pub fn spread<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    dir: Ino,
    over: Spread,
    entries_max: usize,
) -> Result<Spread> {
    let mut inode = inode::load_live_dir(txn, dir)?;
    if dir == Ino::ROOT || inode.is_part() {
        return refuse(Errno::EINVAL);
    }
    if let Some(spread) = inode.spread() {
        return if spread.bits() == over.bits() { Ok(spread) } else { refuse(Errno::EEXIST) };
    }
    let entries = entries(txn, dir, entries_max)?;
    let spread = over;
    let mut nlinks = vec![2u32; 1 << spread.bits()];
    for entry in &entries {
        let index = spread.index_of_hash(entry.hash);
        txn.delete(&entry.key);
        txn.put(&key::dentry(spread.part(index), entry.hash, &entry.name), entry.record.clone());
        if entry.is_dir {
            nlinks[index as usize] += 1;
        }
    }
    inode.flags |= InodeFlags::SPREAD;
    inode.rdev = spread.encode();
    inode.nlink = 2;
    inode.ctime = env.now;
    inode::store(txn, dir, &inode);
    let records = Records::of(txn, dir, &inode)?;
    for (part, nlink) in spread.parts().zip(nlinks) {
        inode::store(txn, part, &Inode { nlink, ..new_part(dir, &inode) });
        records.put(txn, part);
    }
    Ok(spread)
}

fn new_part(dir: Ino, inode: &Inode) -> Inode {
    let mut part = Inode { nlink: 2, size: 0, blocks: 0, parent: Some(dir), ..*inode };
    take_over(&mut part, inode);
    part
}

/// A part that is missing, or does not say what its directory says, is put right. `Ok(false)`: there is something else in its place.
pub(crate) fn restore<T: Txn + ?Sized>(txn: &mut T, dir: Ino, part: Ino) -> Result<bool> {
    let directory = inode::load_dir(txn, dir)?;
    if !directory.spread().is_some_and(|spread| spread.has(part)) {
        return Ok(false);
    }
    let restored = match inode::get(txn, part)? {
        None => new_part(dir, &directory),
        Some(found) if found.is_part() && found.parent == Some(dir) => {
            let mut found = Inode { rdev: directory.rdev, ..found };
            take_over(&mut found, &directory);
            found
        }
        Some(_) => return Ok(false),
    };
    inode::store(txn, part, &restored);
    Records::of(txn, dir, &directory)?.put(txn, part);
    Ok(true)
}

/// A directory that is spread gets all its entries back. One that is not stays as it is. `EFBIG`: they are more than `entries_max`.
pub fn gather<T: Txn + ?Sized>(txn: &mut T, env: &Env, dir: Ino, entries_max: usize) -> Result<()> {
    let mut inode = inode::load_live_dir(txn, dir)?;
    if inode.is_part() {
        return refuse(Errno::EINVAL);
    }
    let Some(spread) = inode.spread() else { return Ok(()) };
    complete(txn, &mut inode)?;
    let mut left = entries_max;
    for part in spread.parts() {
        let entries = entries(txn, part, left)?;
        left -= entries.len();
        for entry in entries {
            txn.delete(&entry.key);
            txn.put(&key::dentry(dir, entry.hash, &entry.name), entry.record);
        }
    }
    end(txn, &mut inode, spread);
    inode.ctime = env.now;
    inode::store(txn, dir, &inode);
    Ok(())
}

/// The directory is spread no more: its parts, which are empty, go. The caller stores it.
pub(crate) fn end<T: Txn + ?Sized>(txn: &mut T, inode: &mut Inode, spread: Spread) {
    inode.flags.remove(InodeFlags::SPREAD);
    inode.rdev = 0;
    for ino in spread.parts() {
        // No project counts it, and it has nothing else.
        txn.delete(&key::xattr(ino, acl::DEFAULT));
        txn.delete(&key::stripes(ino));
        txn.delete(&key::inode(ino));
    }
}
