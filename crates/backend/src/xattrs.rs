//! Extended attributes of an object that a descriptor is open on, be it one for looks only: by its name in /proc, which
//! leads to the object itself, also when that is a symbolic link.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use types::Errno;

use crate::{error::retry, site::Site};

pub(crate) const ACL: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// A list and a value may be as long as this, says the kernel.
const BYTES_MAX: usize = 64 << 10;

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
    let mut buffer = vec![0; BYTES_MAX];
    let length = match retry(|| listxattr(path.as_str(), &mut buffer[..])) {
        Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    let mut value = vec![0; BYTES_MAX];
    for name in buffer[..length].split(|b| *b == 0).filter(|name| is_shown(name, trusted)) {
        match retry(|| getxattr(path.as_str(), name, &mut value[..])) {
            Ok(length) => found.push((name.to_vec(), value[..length].to_vec())),
            // Removed since.
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
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
