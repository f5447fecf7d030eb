//! The attributes of a copy, as `cp -a` keeps them: owner, mode, times, extended attributes and ACLs.
//!
//! Set through a descriptor of the object, so that nobody can put another in its place meanwhile.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, CWD, Gid, Mode, OFlags, RawMode, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat,
        getxattr, listxattr, openat, removexattr, setxattr, utimensat,
    },
    io::Errno,
};
use types::Timestamp;

use super::facts::{Facts, Kind};

const ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// A list and a value may be as long as this, says the kernel.
const BYTES_MAX: usize = 64 << 10;
const SET_IDS: u32 = 0o6000;
/// What a file system notes for itself under `trusted.`; a copy of it would be wrong elsewhere.
const BOOKKEEPING: [&[u8]; 14] = [
    b"trusted.lov",
    b"trusted.lma",
    b"trusted.lmv",
    b"trusted.link",
    b"trusted.fid",
    b"trusted.hsm",
    b"trusted.som",
    b"trusted.version",
    b"trusted.dmv",
    b"trusted.overlay.",
    b"trusted.glusterfs.",
    b"trusted.gfid",
    b"trusted.ec.",
    b"trusted.SGI_",
];

pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What the destination did not take; data and names are worth it all the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dropped {
    pub owner: bool,
    pub xattrs: bool,
}

/// For a look at the attributes of anything, without opening it.
pub fn handle(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Those that a copy keeps.
pub fn xattrs(fd: BorrowedFd<'_>) -> io::Result<Xattrs> {
    let path = path(fd);
    let mut names = vec![0; BYTES_MAX];
    let length = match listxattr(path.as_str(), &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    };
    let root = rustix::process::geteuid().is_root();
    let mut found = Vec::new();
    let mut value = Vec::new();
    for name in names[..length].split(|b| *b == 0).filter(|name| is_kept(name, root)) {
        value.resize(BYTES_MAX, 0);
        match getxattr(path.as_str(), name, &mut value[..]) {
            Ok(length) => found.push((name.to_vec(), value[..length].to_vec())),
            // Removed since.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// In an order in which none undoes another: a change of the owner clears set-id bits and capabilities, and everything
/// changes times.
pub fn apply(fd: BorrowedFd<'_>, facts: &Facts, xattrs: &Xattrs) -> io::Result<Dropped> {
    let path = path(fd);
    let mut dropped = Dropped { owner: !set_owner(fd, facts)?, xattrs: false };
    if facts.kind != Kind::Symlink {
        // What a directory above gives to all that is made in it.
        let inherited: &[&[u8]] = if facts.kind == Kind::Directory { &[ACL, DEFAULT_ACL] } else { &[ACL] };
        for name in inherited.iter().filter(|name| !xattrs.iter().any(|(own, _)| own == *name)) {
            match removexattr(path.as_str(), *name) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    for (name, value) in xattrs {
        match setxattr(path.as_str(), name.as_slice(), value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => dropped.xattrs = true,
            Err(error) => return Err(error.into()),
        }
    }
    if facts.kind != Kind::Symlink {
        // Set-id bits of another owner would be a gift to him.
        let mode = if dropped.owner { facts.mode & !SET_IDS } else { facts.mode };
        chmod(path.as_str(), Mode::from_raw_mode(mode as RawMode))?;
    }
    set_times(fd, facts)?;
    Ok(dropped)
}

/// Whether owner and group are those of the source. Only root gives files away.
fn set_owner(fd: BorrowedFd<'_>, facts: &Facts) -> io::Result<bool> {
    let (uid, gid) = (Some(Uid::from_raw(facts.uid)), Some(Gid::from_raw(facts.gid)));
    let refused = |error| matches!(error, Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL);
    match chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH) {
        Ok(()) => Ok(true),
        Err(error) if refused(error) => match chownat(fd, "", None, gid, AtFlags::EMPTY_PATH) {
            Ok(()) => Ok(false),
            Err(error) if refused(error) => Ok(false),
            Err(error) => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}

fn set_times(fd: BorrowedFd<'_>, facts: &Facts) -> io::Result<()> {
    let times = Timestamps { last_access: timespec(facts.atime), last_modification: timespec(facts.mtime) };
    Ok(utimensat(fd, "", &times, AtFlags::EMPTY_PATH)?)
}

fn is_kept(name: &[u8], root: bool) -> bool {
    let users = name.starts_with(b"user.") && !name.starts_with(b"user.onfs.");
    let privileged = name == b"security.capability"
        || (name.starts_with(b"trusted.") && !BOOKKEEPING.iter().any(|prefix| name.starts_with(prefix)));
    users || name == ACL || name == DEFAULT_ACL || (root && privileged)
}

/// Leads to the object itself, also when that is a symbolic link.
fn path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.sec, tv_nsec: i64::from(time.nsec) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_file_system_or_to_onfs_is_not_copied() {
        for name in [&b"user.a"[..], ACL, DEFAULT_ACL] {
            assert!(is_kept(name, false));
        }
        for name in [&b"user.onfs.pin"[..], b"security.selinux", b"lustre.lov", b"trusted.lov", b""] {
            assert!(!is_kept(name, true));
        }
        assert!(is_kept(b"trusted.a", true) && !is_kept(b"trusted.a", false));
        assert!(is_kept(b"security.capability", true) && !is_kept(b"security.capability", false));
    }
}
