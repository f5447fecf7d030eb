//! The mount table, and taking mounts out of it.
//!
//! Reads /proc/self/mountinfo only, so that a dead or hung file system is never touched by looking for it.

use std::{
    ffi::OsString,
    io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    process::Command,
};

/// The type of our mounts in the table: FUSE, subtype onfs.
pub const FS_TYPE: &str = "fuse.onfs";

/// A line of /proc/self/mountinfo.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    pub id: u64,
    pub parent: u64,
    pub major: u32,
    pub minor: u32,
    pub mountpoint: PathBuf,
    pub options: String,
    pub fs_type: String,
    pub source: String,
}

impl MountEntry {
    pub fn is_onfs(&self) -> bool {
        self.fs_type == FS_TYPE
    }
}

/// The mounts of this process's name space, in mounting order.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mounts in the name space of another process.
pub fn mounts_of(pid: u32) -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read(format!("/proc/{pid}/mountinfo"))?))
}

/// The ONFS mount that covers `mountpoint` exactly: the topmost one there.
pub fn onfs_at(mountpoint: &Path) -> io::Result<Option<MountEntry>> {
    let top = mounts()?.into_iter().rev().find(|m| m.mountpoint == mountpoint);
    Ok(top.filter(MountEntry::is_onfs))
}

/// The mount that a path lies on, by name alone. `path` is absolute, without `..`.
pub fn mount_of<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    let covers = mounts.iter().enumerate().filter(|(_, m)| path.starts_with(&m.mountpoint));
    covers.max_by_key(|(i, m)| (m.mountpoint.components().count(), *i)).map(|(_, m)| m)
}

/// Unmounts: the system call as root, else the set-user-id helper of FUSE. `lazy` detaches a mount in use.
pub fn detach(mountpoint: &Path, lazy: bool) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags =
            if lazy { rustix::mount::UnmountFlags::DETACH } else { rustix::mount::UnmountFlags::empty() };
        return Ok(rustix::mount::unmount(mountpoint, flags)?);
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mountpoint);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let busy = text.contains("busy");
    let kind = if busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, text.trim().to_owned()))
}

fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /mountpoint options [optional fields] - type source super-options`
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ');
    let id = text(fields.next()?).parse().ok()?;
    let parent = text(fields.next()?).parse().ok()?;
    let device = text(fields.next()?);
    let (major, minor) = device.split_once(':')?;
    let mountpoint = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let options = text(fields.next()?);
    fields.find(|f| *f == b"-")?;
    Some(MountEntry {
        id,
        parent,
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        mountpoint,
        options,
        fs_type: text(fields.next()?),
        source: text(&unescape(fields.next()?)),
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The kernel writes blank, tab, newline and backslash as `\ooo`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                out.push(byte);
                rest = &tail[3..];
            }
            Some(_) | None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    //! Goal: the table is read right, with hostile names too. Method: lines as the kernel writes them.
    use super::*;

    const TABLE: &str = "22 1 8:1 / / rw - ext4 /dev/root rw\n\
        40 22 0:35 / /mnt/a\\040b rw,nosuid shared:7 master:1 - fuse.onfs onfs rw,user_id=0\n\
        nonsense\n\
        41 40 0:36 / /mnt/a\\040b/sub rw - tmpfs tmpfs rw\n";

    #[test]
    fn lines_are_read() {
        let mounts = parse(TABLE.as_bytes());
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[1].mountpoint, Path::new("/mnt/a b"));
        assert!(mounts[1].is_onfs());
        assert_eq!((mounts[1].id, mounts[1].parent, mounts[1].minor), (40, 22, 35));
        assert_eq!(mount_of(&mounts, Path::new("/mnt/a b/x")).unwrap().id, 40);
        assert_eq!(mount_of(&mounts, Path::new("/mnt/a b/sub/y")).unwrap().id, 41);
        assert_eq!(mount_of(&mounts, Path::new("/mnt/a")).unwrap().id, 22);
    }

    #[test]
    fn escapes_of_any_shape_do_not_break_it() {
        assert_eq!(unescape(b"a\\134b"), b"a\\b");
        assert_eq!(unescape(b"\\"), b"\\");
        assert_eq!(unescape(b"\\9x\\777"), b"\\9x\\777");
        assert!(!mounts().unwrap().is_empty());
    }
}
