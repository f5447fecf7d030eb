//! Giving an object its attributes, in an order in which none undoes another: a change of the owner clears set-id bits and
//! capabilities, and everything else changes times.

use std::{os::fd::BorrowedFd, sync::atomic::Ordering};

use link::{Attributes, Attrs};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, chmod, chownat, utimensat};
use types::{Errno, FileKind, Timestamp};

use crate::{
    error::retry,
    root::Root,
    stat::{self, Fresh},
    xattrs,
};

/// Those of `what`, to what the descriptor is open on.
pub(crate) fn set(root: &Root, fd: BorrowedFd<'_>, what: Attrs, to: &Attributes<'_>) -> Result<(), Errno> {
    if has(what, Attrs::OWNER) {
        kept(root, set_owner(fd, to))?;
    }
    set_below_owner(root, fd, what, to)
}

/// All, to an object that was just made: what it inherited there and does not have here goes.
pub(crate) fn set_all(root: &Root, fd: BorrowedFd<'_>, to: &Attributes<'_>) -> Result<(), Errno> {
    let given = kept(root, set_owner(fd, to));
    if given == Err(Errno::EPERM) {
        // What we made ourselves: an export that makes root a nobody, say.
        root.gives_away.store(false, Ordering::Relaxed);
    }
    given?;
    let kind = stat::kind(&stat::of(fd, Fresh::Any)?)?;
    let inherited: &[&[u8]] = match kind {
        FileKind::Directory => &[xattrs::ACL, xattrs::DEFAULT_ACL],
        FileKind::Symlink => &[],
        FileKind::Regular
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => &[xattrs::ACL],
    };
    for name in inherited.iter().filter(|name| !to.xattrs.iter().any(|(own, _)| own == *name)) {
        without_xattrs(xattrs::remove(fd, name))?;
    }
    set_xattrs(root, fd, to)?;
    set_below_owner(root, fd, Attrs::MODE.with(Attrs::TIMES), to)
}

/// All, to a file that was there.
pub(crate) fn set_again(root: &Root, fd: BorrowedFd<'_>, to: &Attributes<'_>) -> Result<(), Errno> {
    kept(root, set_owner(fd, to))?;
    set_xattrs(root, fd, to)?;
    set_below_owner(root, fd, Attrs::MODE.with(Attrs::TIMES), to)
}

fn set_below_owner(root: &Root, fd: BorrowedFd<'_>, what: Attrs, to: &Attributes<'_>) -> Result<(), Errno> {
    // A link has the mode that it has.
    if has(what, Attrs::MODE) && stat::kind(&stat::of(fd, Fresh::Any)?)? != FileKind::Symlink {
        let path = xattrs::path(fd);
        kept(root, retry(|| chmod(path.as_str(), Mode::from_raw_mode(to.mode))))?;
    }
    if has(what, Attrs::TIMES) {
        let times = Timestamps { last_access: timespec(to.atime), last_modification: timespec(to.mtime) };
        kept(root, retry(|| utimensat(fd, "", &times, AtFlags::EMPTY_PATH)))?;
    }
    Ok(())
}

fn set_owner(fd: BorrowedFd<'_>, to: &Attributes<'_>) -> Result<(), Errno> {
    let stat = stat::of(fd, Fresh::AsStat)?;
    if (stat.stx_uid, stat.stx_gid) == (to.uid, to.gid) {
        return Ok(());
    }
    let (uid, gid) = (Some(Uid::from_raw(to.uid)), Some(Gid::from_raw(to.gid)));
    retry(|| chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH))
}

/// Those that would be shown. Where none can be kept, data and names are still worth it.
fn set_xattrs(root: &Root, fd: BorrowedFd<'_>, to: &Attributes<'_>) -> Result<(), Errno> {
    let trusted = xattrs::sees_trusted(&root.site);
    let mut shown = to.xattrs.iter().filter(|(name, _)| xattrs::is_shown(name, trusted));
    shown.try_for_each(|(name, value)| without_xattrs(xattrs::set(fd, name, value)))
}

fn without_xattrs(done: Result<(), Errno>) -> Result<(), Errno> {
    if done == Err(Errno::EOPNOTSUPP) { Ok(()) } else { done }
}

/// Of a file system that keeps no attributes it is no error that it does not.
fn kept(root: &Root, done: Result<(), Errno>) -> Result<(), Errno> {
    match done {
        Err(Errno::EPERM | Errno::EOPNOTSUPP | Errno::EINVAL) if !root.site.attributes => Ok(()),
        other => other,
    }
}

fn has(what: Attrs, one: Attrs) -> bool {
    what.bits() & one.bits() != 0
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.sec, tv_nsec: i64::from(time.nsec) }
}
