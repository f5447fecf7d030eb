//! A descriptor of the linked root, and how a way leads from it to an object.
//!
//! Each way is resolved by openat2 from the root's descriptor, beneath it, through no symbolic link and into no other file system.
//! What an object is asked or told then goes by a descriptor of it, or by one of its directory and its last name, which is not
//! followed: whatever others rename meanwhile, nothing outside is reached.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::atomic::AtomicBool,
    time::Duration,
};

use link::{Clock, Found, RootId, Way};
use rustix::fs::{CWD, Mode, OFlags, RawDir, ResolveFlags, Statx, openat, openat2};
use types::Errno;

use crate::{
    error::{errno, retry},
    site::{self, Site},
    stat::{self, Fresh},
    times::Times,
    way,
};

/// To be asked with `statx` and to begin ways, not to be read: opening it so has no effect on any kind of object.
pub(crate) const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
pub(crate) const DIRECTORY: OFlags = PLACE.union(OFlags::DIRECTORY);
pub(crate) const LISTED: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

const ENTRIES_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Root {
    fd: OwnedFd,
    pub site: Site,
    pub id: RootId,
    pub times: Times,
    /// May everything be given to anybody? Not once that was refused.
    pub gives_away: AtomicBool,
    pub has_xattrs: bool,
    /// Which mount it is: a file system that was mounted again has the same root, by another.
    mount: u64,
    device: (u32, u32),
}

impl Root {
    /// The directory to which the path leads now. `skew`: as in `Options`.
    pub(crate) fn open(path: &Path, skew: Duration) -> Result<Root, Errno> {
        let (fd, stat) = look_at(path)?;
        let site = Site::of(fd.as_fd())?;
        let (major, minor) = (stat.stx_dev_major, stat.stx_dev_minor);
        let times = Times::new(site.local, site.step, skew);
        times.note(stat::timestamp(stat.stx_ctime));
        Ok(Root {
            id: RootId { device: site::device(fd.as_fd(), major, minor)?, fileid: stat.stx_ino },
            gives_away: AtomicBool::new(rustix::process::geteuid().is_root()),
            has_xattrs: crate::xattrs::has_any_place(fd.as_fd()),
            mount: stat.stx_mnt_id,
            device: (major, minor),
            fd,
            site,
            times,
        })
    }

    /// Does the path lead here still?
    pub(crate) fn is_at(&self, path: &Path) -> Result<bool, Errno> {
        let (_fd, stat) = look_at(path)?;
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        Ok((stat.stx_ino, stat.stx_mnt_id, device) == (self.id.fileid, self.mount, self.device))
    }

    pub(crate) fn is_empty(&self) -> Result<bool, Errno> {
        let dir = self.dir(&[], LISTED)?;
        let mut buffer = Vec::with_capacity(ENTRIES_BYTES);
        let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(errno)?;
            if !is_dots(entry.file_name().to_bytes()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A directory. What stands on the way and is no directory of this file system is as if it was not there: `ENOENT`.
    pub(crate) fn dir(&self, way: &Way, flags: OFlags) -> Result<OwnedFd, Errno> {
        way::check(way)?;
        let dir = self.open_at(way, flags).map_err(|e| if is_off(e) { Errno::ENOENT } else { e })?;
        // A subvolume is no mount, and still another file system with its own inode numbers.
        if self.site.one_device && !way.is_empty() && self.is_foreign(&stat::of(dir.as_fd(), Fresh::Any)?) {
            return Err(Errno::ENOENT);
        }
        Ok(dir)
    }

    /// The directory in which the last name of the way is, and that name. The root is in none: `EINVAL`.
    pub(crate) fn parent<'a>(&self, way: &'a Way) -> Result<(OwnedFd, &'a [u8]), Errno> {
        let (name, dir) = way.split_last().ok_or(Errno::EINVAL)?;
        way::check(std::slice::from_ref(name))?;
        Ok((self.dir(dir, DIRECTORY)?, name))
    }

    /// A descriptor of any object, for looks. `None` and `ENOENT` as for `BackEnd::look`.
    pub(crate) fn object(&self, way: &Way) -> Result<Option<OwnedFd>, Errno> {
        way::check(way)?;
        let found = if self.site.local { self.open_at(way, PLACE) } else { self.object_anew(way) };
        match (found, way.split_last()) {
            (Ok(fd), _) => Ok(Some(fd)),
            (Err(e), Some((_, dir))) if is_off(e) => self.dir(dir, DIRECTORY).map(|_| None),
            (Err(e), _) => Err(e),
        }
    }

    /// The kernel believes for a while what a name led to: only if it is told that the directory changed does it ask again.
    fn object_anew(&self, way: &Way) -> Result<OwnedFd, Errno> {
        let Some((name, dir)) = way.split_last() else { return self.open_at(way, PLACE) };
        let dir = self.open_at(dir, DIRECTORY)?;
        stat::of(dir.as_fd(), Fresh::Forced)?;
        open_beneath(dir.as_fd(), name, PLACE)
    }

    /// The object that was just made under this name.
    pub(crate) fn named(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
        open_beneath(dir, name, PLACE)
    }

    /// What is open on the descriptor; `None` if it belongs to another file system.
    pub(crate) fn found(&self, fd: BorrowedFd<'_>, clock: Clock) -> Result<Option<Found>, Errno> {
        let stat = stat::of(fd, self.fresh())?;
        let is_root = (stat.stx_ino, stat.stx_mnt_id) == (self.id.fileid, self.mount);
        if !is_root && self.is_foreign(&stat) {
            return Ok(None);
        }
        self.times.note(stat::timestamp(stat.stx_ctime));
        stat::found(&stat, clock).map(Some)
    }

    pub(crate) fn is_foreign(&self, stat: &Statx) -> bool {
        let elsewhere = (stat.stx_dev_major, stat.stx_dev_minor) != self.device;
        stat::is_mount_point(stat) || (elsewhere && self.site.one_device)
    }

    /// How a look asks: what a client remembers may be older than the look.
    pub(crate) fn fresh(&self) -> Fresh {
        if self.site.local { Fresh::AsStat } else { Fresh::Forced }
    }

    fn open_at(&self, way: &Way, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut paths = way::paths(way);
        let last = paths.pop().ok_or(Errno::EINVAL)?;
        let mut at: Option<OwnedFd> = None;
        for path in paths {
            at = Some(open_beneath(at.as_ref().map_or(self.fd.as_fd(), OwnedFd::as_fd), &path, DIRECTORY)?);
        }
        open_beneath(at.as_ref().map_or(self.fd.as_fd(), OwnedFd::as_fd), &last, flags)
    }
}

pub(crate) fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// The way does not lead anywhere on this file system.
fn is_off(e: Errno) -> bool {
    matches!(e, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV)
}

fn look_at(path: &Path) -> Result<(OwnedFd, Statx), Errno> {
    // The path itself may lead through links: who linked it said so.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = retry(|| openat(CWD, path, flags, Mode::empty()))?;
    let stat = stat::of(fd.as_fd(), Fresh::Forced)?;
    Ok((fd, stat))
}

fn open_beneath(at: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    retry(|| openat2(at, path, flags, Mode::empty(), resolve))
}
