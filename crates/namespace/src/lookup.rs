//! Finding inodes: by name, by number, the directory above, a link's target.

use types::{Errno, FileKind, Ino};

use crate::{
    Env, Found, Place,
    create::SYMLINK_VERSION,
    error::{Error, Result, refuse},
    inode::{self, Inode},
    key, name, parts,
    txn::{Bytes, KvError, Reader},
};

/// The inode that `at` names. "." and ".." are known.
pub fn lookup<R: Reader + ?Sized>(reader: &R, env: &Env, at: Place<'_>) -> Result<Found> {
    name::check(at.name)?;
    let dir = || inode::load_dir(reader, at.dir);
    let ino = match at.name {
        b"." => dir().map(|_| at.dir)?,
        b".." => parent_of(at.dir, &dir()?)?,
        _ => match parts::find(reader, &env.names, at)? {
            Some(entry) => entry.ino,
            None => return refuse(Errno::ENOENT),
        },
    };
    Ok(inode::load_named(reader, ino)?.found(ino, env))
}

/// What the entry at `at` names, without a look at that. "." and ".." are known.
pub fn lookup_entry<R: Reader + ?Sized>(reader: &R, env: &Env, at: Place<'_>) -> Result<(Ino, FileKind)> {
    name::check(at.name)?;
    let dir = || inode::load_dir(reader, at.dir);
    match at.name {
        b"." => dir().map(|_| (at.dir, FileKind::Directory)),
        b".." => Ok((parent_of(at.dir, &dir()?)?, FileKind::Directory)),
        _ => match parts::find(reader, &env.names, at)? {
            Some(entry) => Ok((entry.ino, entry.kind)),
            None => refuse(Errno::ENOENT),
        },
    }
}

/// What the entry at `at` names, if that is no directory and its own record is damaged: all that is known of it.
pub fn damaged<R: Reader + ?Sized>(reader: &R, env: &Env, at: Place<'_>) -> Result<Option<(Ino, FileKind)>> {
    let Some(entry) = parts::find(reader, &env.names, at)? else { return Ok(None) };
    match inode::load_named(reader, entry.ino) {
        Err(Error::Store(KvError::Corrupt(_))) if entry.kind != FileKind::Directory => {
            Ok(Some((entry.ino, entry.kind)))
        }
        other => other.map(|_| None),
    }
}

/// The inode with this number, named or not. Of a directory that is spread its parts are looked at, too.
pub fn find<R: Reader + ?Sized>(reader: &R, env: &Env, ino: Ino) -> Result<Found> {
    let mut inode = inode::load(reader, ino)?;
    parts::complete(reader, &mut inode)?;
    Ok(inode.found(ino, env))
}

/// As [`find`], by the inode's own record alone: of a directory that is spread its parts know more.
pub fn find_alone<R: Reader + ?Sized>(reader: &R, env: &Env, ino: Ino) -> Result<Found> {
    Ok(inode::load(reader, ino)?.found(ino, env))
}

/// The directory that holds directory `ino` (the root's is itself). Of anything else the directory in which it was last
/// named: it need not have a name there now, and the directory may be gone.
pub fn parent<R: Reader + ?Sized>(reader: &R, ino: Ino) -> Result<Ino> {
    let inode = inode::load(reader, ino)?;
    match inode.parent {
        Some(parent) if !inode.is_dir() => Ok(parent),
        None if !inode.is_dir() => refuse(Errno::ENOENT),
        Some(_) | None => parent_of(ino, &inode),
    }
}

/// The target of symbolic link `ino`.
pub fn readlink<R: Reader + ?Sized>(reader: &R, ino: Ino) -> Result<Bytes> {
    let inode = inode::load(reader, ino)?;
    if inode.kind != FileKind::Symlink {
        return refuse(Errno::EINVAL);
    }
    let key = key::symlink(ino);
    match reader.get(&key)? {
        Some(record) if is_symlink_record(&record, &inode) => Ok(record.slice(1..)),
        Some(_) | None => Err(inode::corrupt(&key).into()),
    }
}

pub(crate) fn is_symlink_record(record: &[u8], inode: &Inode) -> bool {
    record.first() == Some(&SYMLINK_VERSION) && record.len() as u64 == inode.size + 1
}

fn parent_of(ino: Ino, dir: &Inode) -> Result<Ino> {
    match dir.parent {
        Some(parent) if dir.nlink > 0 => Ok(parent),
        // Removed: the parent may be gone, and its number must not be followed.
        Some(_) => refuse(Errno::ENOENT),
        None => Err(inode::corrupt(&key::inode(ino)).into()),
    }
}
