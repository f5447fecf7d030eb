//! rename(2) and renameat2(2): replace, do not replace, exchange.

use types::{Errno, FileKind, Ino};

use crate::{
    Env, Place, apart,
    dentry::{self, Dentry},
    error::{Result, refuse},
    inode::{self, Inode},
    mkdir, name, parts, quota, rmdir,
    txn::{KvError, Reader, Txn},
    unlink::{self, Unlinked},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameMode {
    /// What is at the target goes.
    Replace,
    /// `EEXIST` if there is a target.
    NoReplace,
    /// Both stay, with each other's names.
    Exchange,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renamed {
    /// What has the new name now. Nothing if both were names of one inode: then nothing changed.
    pub source: Option<Dentry>,
    /// What was at the target, if it was replaced.
    pub replaced: Option<Unlinked>,
    /// What has the old name now, if both stay.
    pub exchanged: Option<Dentry>,
}

/// Deeper trees than this are damage: a circle of parents.
const DEPTH_MAX: usize = 1 << 20;

/// The directories of both names; one record when they are one directory.
struct Dirs {
    from: Inode,
    to: Option<Inode>,
}

impl Dirs {
    fn to(&mut self) -> &mut Inode {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
    fn store<T: Txn + ?Sized>(mut self, txn: &mut T, env: &Env, from: Ino, to: Ino) {
        self.from.entries_changed(env.now);
        inode::store(txn, from, &self.from);
        if let Some(dir) = &mut self.to {
            dir.entries_changed(env.now);
            inode::store(txn, to, dir);
        }
    }
}

pub fn rename<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    from: Place<'_>,
    to: Place<'_>,
    mode: RenameMode,
) -> Result<Renamed> {
    name::check(from.name)?;
    name::check(to.name)?;
    let (from, from_dir) = parts::enter(txn, &env.names, from)?;
    let (to, to_dir) = parts::enter(txn, &env.names, to)?;
    let mut dirs = Dirs { from: from_dir, to: if from.dir == to.dir { None } else { Some(to_dir) } };
    if name::is_dots(from.name) || name::is_dots(to.name) {
        return refuse(Errno::EBUSY);
    }
    let Some(source) = dentry::get(txn, &env.names, from)? else { return refuse(Errno::ENOENT) };
    if dirs.to().nlink == 0 {
        return refuse(Errno::ENOENT);
    }
    let target = dentry::get(txn, &env.names, to)?;
    match (mode, target) {
        (RenameMode::NoReplace, Some(_)) => refuse(Errno::EEXIST),
        (RenameMode::Exchange, None) => refuse(Errno::ENOENT),
        (RenameMode::Replace | RenameMode::Exchange, Some(target)) if target.ino == source.ino => {
            Ok(Renamed { source: None, replaced: None, exchanged: None })
        }
        (RenameMode::Exchange, Some(target)) => exchange(txn, env, dirs, (from, source), (to, target)),
        (RenameMode::Replace | RenameMode::NoReplace, target) => {
            replace(txn, env, dirs, (from, source), (to, target))
        }
    }
}

fn replace<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    mut dirs: Dirs,
    (from, source): (Place<'_>, Dentry),
    (to, target): (Place<'_>, Option<Dentry>),
) -> Result<Renamed> {
    let mut inode = inode::load_named(txn, source.ino)?;
    let moves_dir = source.kind == FileKind::Directory && from.dir != to.dir;
    let (from_shown, to_shown) = (dirs.from.shown(from.dir), dirs.to().shown(to.dir));
    if moves_dir && from_shown != to_shown && is_within(txn, to.dir, source.ino)? {
        return refuse(Errno::EINVAL);
    }
    if let Some(target) = target {
        check_replace(txn, source.kind, target)?;
    }
    // From one part of a directory to another is within it.
    if from_shown != to_shown {
        quota::check_move(inode.project, dirs.to().project)?;
        apart::cross(&mut inode, dirs.from.is_apart(), dirs.to().is_apart())?;
    }
    if moves_dir {
        mkdir::lose_subdir(&mut dirs.from);
    }
    let replaced = match target {
        None => None,
        Some(target) => Some(drop_target(txn, env, &mut dirs, target)?),
    };
    if moves_dir {
        mkdir::gain_subdir(dirs.to())?;
    }
    inode.parent = Some(to_shown);
    dentry::delete(txn, &env.names, from);
    dentry::put(txn, &env.names, to, source);
    inode.ctime = env.now;
    inode::store(txn, source.ino, &inode);
    dirs.store(txn, env, from.dir, to.dir);
    Ok(Renamed { source: Some(source), replaced, exchanged: None })
}

fn check_replace<T: Txn + ?Sized>(txn: &T, source: FileKind, target: Dentry) -> Result<()> {
    match (source == FileKind::Directory, target.kind == FileKind::Directory) {
        (true, false) => refuse(Errno::ENOTDIR),
        (false, true) => refuse(Errno::EISDIR),
        (true, true) => {
            let inode = inode::load_named(txn, target.ino)?;
            if parts::is_empty(txn, target.ino, &inode)? { Ok(()) } else { refuse(Errno::ENOTEMPTY) }
        }
        (false, false) => Ok(()),
    }
}

fn drop_target<T: Txn + ?Sized>(txn: &mut T, env: &Env, dirs: &mut Dirs, target: Dentry) -> Result<Unlinked> {
    let mut inode = inode::load_named(txn, target.ino)?;
    if inode.is_dir() {
        rmdir::remove(txn, env, target.ino, &mut inode);
        mkdir::lose_subdir(dirs.to());
        return Ok(Unlinked { ino: target.ino, kind: inode.kind, nlink_left: 0, gone: None });
    }
    Ok(unlink::lose_name(txn, env, target.ino, &mut inode))
}

fn exchange<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    mut dirs: Dirs,
    (from, source): (Place<'_>, Dentry),
    (to, target): (Place<'_>, Dentry),
) -> Result<Renamed> {
    let mut first = inode::load_named(txn, source.ino)?;
    let mut second = inode::load_named(txn, target.ino)?;
    let (from_shown, to_shown) = (dirs.from.shown(from.dir), dirs.to().shown(to.dir));
    if from_shown != to_shown {
        if (first.is_dir() && is_within(txn, to.dir, source.ino)?)
            || (second.is_dir() && is_within(txn, from.dir, target.ino)?)
        {
            return refuse(Errno::EINVAL);
        }
        // One of the two would go in.
        if dirs.from.is_apart() != dirs.to().is_apart() {
            return refuse(Errno::EXDEV);
        }
        quota::check_move(first.project, dirs.to().project)?;
        quota::check_move(second.project, dirs.from.project)?;
    }
    if from.dir != to.dir {
        if first.is_dir() {
            mkdir::lose_subdir(&mut dirs.from);
        }
        if second.is_dir() {
            mkdir::lose_subdir(dirs.to());
            mkdir::gain_subdir(&mut dirs.from)?;
        }
        if first.is_dir() {
            mkdir::gain_subdir(dirs.to())?;
        }
    }
    first.parent = Some(to_shown);
    second.parent = Some(from_shown);
    dentry::put(txn, &env.names, from, target);
    dentry::put(txn, &env.names, to, source);
    for (ino, inode) in [(source.ino, &mut first), (target.ino, &mut second)] {
        inode.ctime = env.now;
        inode::store(txn, ino, inode);
    }
    dirs.store(txn, env, from.dir, to.dir);
    Ok(Renamed { source: Some(source), replaced: None, exchanged: Some(target) })
}

/// Whether directory `dir` is `top` or below it.
fn is_within<R: Reader + ?Sized>(reader: &R, dir: Ino, top: Ino) -> Result<bool> {
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == top {
            return Ok(true);
        }
        if at == Ino::ROOT {
            return Ok(false);
        }
        match inode::load_named(reader, at)?.parent {
            Some(parent) => at = parent,
            None => break,
        }
    }
    Err(KvError::Corrupt(format!("directory {dir:?} is not below the root")).into())
}
