//! Extended attributes of an object that a descriptor is open on, be it one for looks only: by its name in /proc, which
//! leads to the object itself, also when that is a symbolic link.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{XattrFlags, getxattr, lgetxattr, listxattr, llistxattr, removexattr, setxattr};
use types::Errno;

use crate::{error::retry, site::Site};

pub(crate) const ACL: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// A list and a value may be as long as this, says the kernel.
const BYTES_MAX: usize = 64 << 10;
const BYTES_SHORT: usize = 1 << 10;

/// Name and value.
type Xattr = (Vec<u8>, Vec<u8>);

/// Whether a user of the mount may see it. Other namespaces belong to the back end's own machine (security modules) or its
/// bookkeeping; so does `trusted` of a file system that is not local ([`sees_trusted`]): the layouts of Lustre, say.
pub(crate) fn is_shown(name: &[u8], trusted: bool) -> bool {
    let shown = name.starts_with(b"user.") && !name.starts_with(b"user.onfs.");
    shown
        || [ACL, DEFAULT_ACL, b"security.capability"].contains(&name)
        || (trusted && name.starts_with(b"trusted."))
}

pub(crate) fn sees_trusted(site: &Site) -> bool {
    site.local && rustix::process::geteuid().is_root()
}

/// Those that are shown, with their values. A file system that has none has none here.
pub(crate) fn all(fd: BorrowedFd<'_>, trusted: bool) -> Result<Vec<Xattr>, Errno> {
    let path = path(fd);
    let list = match sized(|buffer| listxattr(path.as_str(), buffer)) {
        Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    };
    shown(&list, trusted, |name| sized(|buffer| getxattr(path.as_str(), name, buffer)))
}

/// As [`all`], of what has the name in a directory.
pub(crate) fn all_of_name(dir: BorrowedFd<'_>, name: &[u8], trusted: bool) -> Result<Vec<Xattr>, Errno> {
    let mut at = path(dir).into_bytes();
    at.push(b'/');
    at.extend(name);
    let list = match sized(|buffer| llistxattr(&at[..], buffer)) {
        Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    };
    shown(&list, trusted, |name| sized(|buffer| lgetxattr(&at[..], name, buffer)))
}

fn shown(
    list: &[u8],
    trusted: bool,
    value: impl Fn(&[u8]) -> Result<Vec<u8>, Errno>,
) -> Result<Vec<Xattr>, Errno> {
    let mut found = Vec::new();
    for name in list.split(|b| *b == 0).filter(|name| is_shown(name, trusted)) {
        match value(name) {
            Ok(value) => found.push((name.to_vec(), value)),
            // Removed since.
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

/// Most have none, or short ones: the long buffer is for those that do not fit in the short one.
fn sized(mut ask: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Vec<u8>, Errno> {
    let mut short = [0; BYTES_SHORT];
    match retry(|| ask(&mut short)) {
        Ok(length) => Ok(short[..length].to_vec()),
        Err(Errno::ERANGE) => {
            let mut long = vec![0; BYTES_MAX];
            let length = retry(|| ask(&mut long))?;
            long.truncate(length);
            Ok(long)
        }
        Err(e) => Err(e),
    }
}

pub(crate) fn set(fd: BorrowedFd<'_>, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    let path = path(fd);
    retry(|| setxattr(path.as_str(), name, value, XattrFlags::empty()))
}

/// It is gone, whether it was there or not.
pub(crate) fn remove(fd: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let path = path(fd);
    match retry(|| removexattr(path.as_str(), name)) {
        Err(Errno::ENODATA) => Ok(()),
        other => other,
    }
}

/// Whether the file system keeps any at all.
pub(crate) fn has_any_place(fd: BorrowedFd<'_>) -> bool {
    let path = path(fd);
    let mut value = [0; 1];
    let asked = retry(|| getxattr(path.as_str(), &b"user.onfs.none"[..], &mut value[..]));
    asked != Err(Errno::EOPNOTSUPP)
}

pub(crate) fn path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_business_of_a_user_is_not_shown() {
        for name in [&b"user.a"[..], b"user.onf", ACL, DEFAULT_ACL, b"security.capability"] {
            assert!(is_shown(name, false), "{name:?}");
        }
        for name in [
            &b"user.onfs.tier"[..],
            b"security.selinux",
            b"lustre.lov",
            b"system.nfs4_acl",
            b"trusted.lov",
            b"",
        ] {
            assert!(!is_shown(name, false), "{name:?}");
        }
        assert!(is_shown(b"trusted.a", true));
    }
}
