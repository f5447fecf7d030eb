//! What a linked directory is not told of: what is in transient directories, and files that are transient themselves.
//!
//! Invariants, where a directory is linked:
//! - All that is in a directory that is apart ([`InodeFlags::APART`]) is apart, directories with what is in them.
//! - The linked directory never hears less of an inode than it did: nothing that it was told of comes to be apart, but a file
//!   of which it has nothing yet, which the caller knows. So no number comes back to it either.
//! - A file that is apart outside of such a directory has one name, and says itself that it is transient.
//!
//! So the border is one way: a file goes out by a rename, and is new there; in, and for directories both ways, there is only
//! copying (`EXDEV`), as with quotas.
//!
//! Refuses to know what the linked directory was told.

use std::ops::ControlFlow;

use types::{Errno, FileKind, Ino};

use crate::{
    Env,
    error::{Result, refuse},
    inode::{self, Inode, InodeFlags},
    mode::{FileMode, Mode},
    parts,
    readdir::readdir,
    txn::{Reader, Txn},
};

/// A file begins or ends to be apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Crossing {
    pub apart: bool,
    /// Its one name.
    pub dir: Ino,
    pub name: Vec<u8>,
}

/// `inode` is to be moved from one directory to another; `from` and `to` say whether these are apart.
pub(crate) fn cross(inode: &mut Inode, from: bool, to: bool) -> Result<()> {
    match (from, to) {
        (false, false) | (true, true) => Ok(()),
        (false, true) if !inode.is_dir() && inode.is_apart() => Ok(()),
        (true, false) if !inode.is_dir() && inode.nlink == 1 => {
            inode.flags.set(InodeFlags::APART, inode.file_mode() == Some(FileMode::Transient));
            Ok(())
        }
        (false, true) | (true, false) => refuse(Errno::EXDEV),
    }
}

/// What is not a directory is to get one more name, in a directory that is apart or not. The first says what it is; what is
/// transient itself gets no second.
pub(crate) fn gain_name(inode: &mut Inode, dir: bool) -> Result<()> {
    if inode.nlink == 0 {
        inode.flags.set(InodeFlags::APART, dir);
    }
    let alone = inode.nlink > 0 && inode.file_mode() == Some(FileMode::Transient);
    if inode.is_apart() == dir && !alone { Ok(()) } else { refuse(Errno::EXDEV) }
}

/// A directory is to have this mode of its own.
pub(crate) fn set_for_dir<T: Txn + ?Sized>(
    txn: &T,
    ino: Ino,
    dir: &mut Inode,
    mode: Option<Mode>,
) -> Result<()> {
    let above = match dir.parent {
        Some(parent) if ino != Ino::ROOT => inode::load(txn, parent)?.is_apart(),
        Some(_) | None => false,
    };
    let apart = match mode {
        Some(Mode::Transient) if ino == Ino::ROOT => return refuse(Errno::EINVAL),
        Some(Mode::Transient) => true,
        Some(Mode::Global | Mode::Local | Mode::Hybrid) if above => return refuse(Errno::EINVAL),
        Some(Mode::Global | Mode::Local | Mode::Hybrid) => false,
        None => above,
    };
    if apart != dir.is_apart() && !parts::is_empty(txn, ino, dir)? {
        return refuse(Errno::ENOTEMPTY);
    }
    dir.flags.set(InodeFlags::APART, apart);
    Ok(())
}

/// What a regular file says of its mode itself. With a linked directory: what becomes of it there. `EXDEV`: it has several
/// names, and would begin or end to be apart.
pub fn set_file_mode<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    ino: Ino,
    mode: Option<FileMode>,
    linked: bool,
) -> Result<Option<Crossing>> {
    let mut inode = inode::load(txn, ino)?;
    let (FileKind::Regular, Some(dir)) = (inode.kind, inode.parent) else { return refuse(Errno::EINVAL) };
    if inode.nlink == 0 {
        return refuse(Errno::ENOENT);
    }
    let before = inode.flags;
    inode.set_file_mode(mode);
    let mut crossing = None;
    let apart = mode == Some(FileMode::Transient);
    if linked && apart != inode.is_apart() && (inode.nlink > 1 || !inode::load(txn, dir)?.is_apart()) {
        let names = names_of(txn, dir, ino)?;
        let (1, [name]) = (inode.nlink, names.as_slice()) else { return refuse(Errno::EXDEV) };
        crossing = Some(Crossing { apart, dir, name: name.clone() });
        inode.flags.set(InodeFlags::APART, apart);
    }
    if inode.flags != before {
        inode.ctime = env.now;
        inode::store(txn, ino, &inode);
    }
    Ok(crossing)
}

fn names_of<R: Reader + ?Sized>(reader: &R, dir: Ino, ino: Ino) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let damaged = readdir(reader, dir, 0, &mut |entry| {
        if entry.ino == ino && !matches!(entry.name, b"." | b"..") {
            names.push(entry.name.to_vec());
        }
        ControlFlow::Continue(())
    })?;
    damaged.map_or(Ok(names), |error| Err(error.into()))
}

/// Is something in the directory apart, however deep, or would be?
pub fn is_below<R: Reader + ?Sized>(reader: &R, dir: Ino) -> Result<bool> {
    let mut dirs = vec![dir];
    while let Some(dir) = dirs.pop() {
        if inode::load(reader, dir)?.is_apart() {
            return Ok(true);
        }
        let mut entries = Vec::new();
        let damaged = readdir(reader, dir, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                entries.push((entry.ino, entry.kind));
            }
            ControlFlow::Continue(())
        })?;
        if let Some(error) = damaged {
            return Err(error.into());
        }
        for (ino, kind) in entries {
            match kind {
                FileKind::Directory => dirs.push(ino),
                FileKind::Regular if inode::get(reader, ino)?.is_some_and(|inode| inode.is_apart()) => {
                    return Ok(true);
                }
                FileKind::Regular
                | FileKind::Symlink
                | FileKind::Fifo
                | FileKind::Socket
                | FileKind::CharDevice
                | FileKind::BlockDevice => {}
            }
        }
    }
    Ok(false)
}
