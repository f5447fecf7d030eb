//! Which of the kernel's FUSE connections is ours: told by its number, which is the device number of the mount, wherever
//! that is mounted, and also when it is mounted nowhere any more.
//!
//! A path says nothing of it: after a lazy unmount anybody may mount something else there.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

use crate::device::Device;

/// Where the control file system of FUSE is usually mounted.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// The number of a connection: the minor number of its device; the major one is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Connection(u32);

/// What lies at a path where we once mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Ours,
    /// Ours, with something else mounted over it.
    Covered,
    Foreign,
}

impl Connection {
    /// Of what has just been mounted. Newer kernels tell it of the descriptor; with others it is what is at the path now.
    pub(crate) fn of(device: &Device, path: &Path) -> io::Result<Connection> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", device.raw())).unwrap_or_default();
        match number_of(&info).map_or_else(|| device_at(path), |number| Ok((0, number)))? {
            (0, number) => Ok(Connection(number)),
            _ => Err(io::Error::other("the mount has no device number of its own kind")),
        }
    }

    pub(crate) fn numbered(number: u32) -> Connection {
        Connection(number)
    }

    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// As in the names of files about devices.
    pub(crate) fn device(self) -> String {
        format!("0:{}", self.0)
    }

    pub(crate) fn place(self, path: &Path) -> Place {
        if device_at(path).is_ok_and(|device| device == (0, self.0)) {
            return Place::Ours;
        }
        let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
        if is_listed(&table, &self.device(), path) { Place::Covered } else { Place::Foreign }
    }

    /// Ends the connection: every request fails, none hangs. `device` is one of it.
    pub(crate) fn abort(self, device: &Device) -> io::Result<()> {
        // Its number may be another's by now.
        if !device.is_connected() {
            return Ok(());
        }
        let name = PathBuf::from(self.0.to_string()).join("abort");
        let mut file = match File::options().write(true).open(Path::new(CONTROL).join(&name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                File::from(openat(control()?, &name, flags, Mode::empty())?)
            }
            opened => opened?,
        };
        file.write_all(b"1")
    }
}

/// The control file system, mounted nowhere: containers often lack it. As root only.
fn control() -> io::Result<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// Major and minor number of what is mounted there. Asks the kernel alone: a file system that hangs, or does not let us
/// in, has one too.
fn device_at(path: &Path) -> io::Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let stat = statx(CWD, path, flags, StatxFlags::empty())?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

/// From the text of /proc/self/fdinfo/N.
fn number_of(info: &str) -> Option<u32> {
    info.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?.trim().parse().ok()
}

/// Does a mountinfo table have this device, mounted on `path`?
fn is_listed(table: &[u8], device: &str, path: &Path) -> bool {
    let wanted = escape_octal(path.as_os_str().as_encoded_bytes());
    table.split(|b| *b == b'\n').any(|line| {
        let mut fields = line.split(|b| *b == b' ').skip(2);
        let found = (fields.next(), fields.nth(1));
        found == (Some(device.as_bytes()), Some(wanted.as_slice()))
    })
}

/// As the kernel writes paths there: space, tab, newline and backslash in octal.
fn escape_octal(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => out.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            _ => out.push(*byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    //! Goal: a mount is known by its device number. Method: texts as the kernel writes them.
    use super::*;

    #[test]
    fn mounts_are_found_by_device_and_path() {
        let table =
            b"25 1 0:5 / /a\\040b rw - tmpfs x rw\n26 1 0:7 / /a\\040b rw - fuse x rw\n27 1 0:9 / /c rw\n";
        assert!(is_listed(table, "0:7", Path::new("/a b")));
        assert!(is_listed(table, "0:5", Path::new("/a b")));
        assert!(!is_listed(table, "0:9", Path::new("/a b")));
        assert!(!is_listed(table, "0:7", Path::new("/c")));
        assert!(!is_listed(b"", "0:7", Path::new("/c")));
    }

    #[test]
    fn the_number_of_a_descriptor_is_read() {
        assert_eq!(number_of("pos:\t0\nino:\t90\nfuse_connection:\t41\n"), Some(41));
        assert_eq!(number_of("pos:\t0\n"), None);
    }
}
