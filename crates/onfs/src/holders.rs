//! Who keeps a mount busy: processes with open files, working directories or mappings on it, and mounts below it.
//!
//! Looks through /proc without touching the file system itself, which may hang: descriptors are matched by the
//! `mnt_id` that the kernel shows, mappings by device number, directories by name.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::mounts::{self, MountEntry};

/// One process, and the first few things by which it holds the mount.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Holder {
    pub pid: u32,
    pub uid: u32,
    pub command: String,
    pub uses: Vec<String>,
}

/// Uses listed per process; more say nothing new.
const USES_MAX: usize = 4;
const HOLDERS_SHOWN: usize = 10;

/// All holders that this user may see (root sees all), except process `except`.
pub fn holders(mount: &MountEntry, except: &[u32]) -> Vec<Holder> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| !except.contains(pid)).filter_map(|pid| holder(mount, pid)).collect()
}

/// Who has the file system of device `major:minor` mounted in another mount name space than this process; one process for each.
/// The kernel copies all mounts when such a space is made (containers, `unshare -m`, a unit with `PrivateMounts=`), and serves them
/// until the last copy is gone. Who looks sees those of processes that are his; root sees all.
pub fn copies((major, minor): (u32, u32)) -> Vec<Holder> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let mut spaces: Vec<PathBuf> = fs::read_link("/proc/self/ns/mnt").into_iter().collect();
    let mut pids: Vec<u32> =
        processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let mut found = Vec::new();
    for pid in pids {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let Ok(space) = fs::read_link(proc.join("ns/mnt")) else { continue };
        if spaces.contains(&space) {
            continue;
        }
        let copies = mounts::mounts_of(pid).unwrap_or_default();
        spaces.push(space);
        let copies = copies.iter().filter(|mount| (mount.major, mount.minor) == (major, minor));
        let uses: Vec<_> = copies
            .take(USES_MAX)
            .map(|mount| format!("mounted at {} in its mount namespace", mount.mountpoint.display()))
            .collect();
        if !uses.is_empty() {
            found.push(Holder { uses, ..process(pid) });
        }
    }
    found
}

/// Mount points below the mount, which keep it busy too.
pub fn mounts_below(mount: &MountEntry, all: &[MountEntry]) -> Vec<PathBuf> {
    all.iter().filter(|m| m.parent == mount.id && m.id != mount.id).map(|m| m.mountpoint.clone()).collect()
}

/// The holders as lines of a message.
pub struct HolderList<'a>(pub &'a [Holder], pub &'a [PathBuf]);

impl fmt::Display for HolderList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for below in self.1 {
            write!(f, "\n  mounted below: {}", below.display())?;
        }
        for holder in self.0.iter().take(HOLDERS_SHOWN) {
            let line = format!(
                "{} (pid {}, uid {}): {}",
                holder.command,
                holder.pid,
                holder.uid,
                holder.uses.join(", ")
            );
            // Names of processes and files are anybody's words.
            write!(f, "\n  {}", line.replace(char::is_control, "?"))?;
        }
        if self.0.len() > HOLDERS_SHOWN {
            write!(f, "\n  and {} more processes", self.0.len() - HOLDERS_SHOWN)?;
        }
        if self.0.is_empty() && self.1.is_empty() {
            write!(f, "\n  (nothing that this user may see: try as root)")?;
        }
        Ok(())
    }
}

fn holder(mount: &MountEntry, pid: u32) -> Option<Holder> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let mut uses = Vec::new();
    for (name, what) in [("cwd", "working directory"), ("root", "root directory"), ("exe", "program")] {
        if let Some(path) = below(mount, fs::read_link(proc.join(name)).ok()) {
            uses.push(format!("{what} {}", path.display()));
        }
    }
    open_files(mount, &proc, &mut uses);
    mappings(mount, &proc, &mut uses);
    if uses.is_empty() {
        return None;
    }
    uses.truncate(USES_MAX);
    Some(Holder { uses, ..process(pid) })
}

fn process(pid: u32) -> Holder {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let command = fs::read_to_string(proc.join("comm")).unwrap_or_default().trim().to_owned();
    let status = fs::read_to_string(proc.join("status")).unwrap_or_default();
    Holder { pid, uid: uid_of(&status), command, uses: Vec::new() }
}

fn open_files(mount: &MountEntry, proc: &Path, uses: &mut Vec<String>) {
    let Ok(files) = fs::read_dir(proc.join("fdinfo")) else { return };
    for file in files.flatten() {
        if uses.len() >= USES_MAX {
            return;
        }
        let Ok(info) = fs::read_to_string(file.path()) else { continue };
        if mount_id(&info) == Some(mount.id) {
            let target = fs::read_link(proc.join("fd").join(file.file_name())).unwrap_or_default();
            uses.push(format!("open file {}", target.display()));
        }
    }
}

fn mappings(mount: &MountEntry, proc: &Path, uses: &mut Vec<String>) {
    let Ok(maps) = fs::read(proc.join("maps")) else { return };
    let device = format!("{:02x}:{:02x}", mount.major, mount.minor);
    let mut seen: Vec<String> = Vec::new();
    for line in String::from_utf8_lossy(&maps).lines() {
        let mut fields = line.split_ascii_whitespace();
        let here = fields.nth(3) == Some(&device);
        let Some(path) = fields.nth(1).filter(|_| here && uses.len() < USES_MAX) else { continue };
        if !seen.iter().any(|p| p == path) {
            uses.push(format!("mapped file {path}"));
            seen.push(path.to_owned());
        }
    }
}

fn below(mount: &MountEntry, path: Option<PathBuf>) -> Option<PathBuf> {
    path.filter(|path| path.starts_with(&mount.mountpoint))
}

fn mount_id(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

fn uid_of(status: &str) -> u32 {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.and_then(|ids| ids.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    //! Goal: a process that holds a mount is found, with its uses. Method: this process opens a file on some
    //! mount of the machine, and is looked for there.
    use super::*;
    use crate::mounts::{mount_of, mounts};

    #[test]
    fn this_process_is_found_by_its_open_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = fs::canonicalize(file.path()).unwrap();
        let mounts = mounts().unwrap();
        let mount = mount_of(&mounts, &path).unwrap();
        let mut uses = Vec::new();
        open_files(mount, Path::new("/proc/self"), &mut uses);
        assert!(!uses.is_empty());
        let me = std::process::id();
        assert!(holders(mount, &[]).iter().any(|h| h.pid == me));
        assert!(!holders(mount, &[me]).iter().any(|h| h.pid == me));
    }

    #[test]
    fn proc_texts_are_read() {
        assert_eq!(mount_id("pos:\t0\nflags:\t02\nmnt_id:\t27\nino:\t5\n"), Some(27));
        assert_eq!(uid_of("Name:\tx\nUid:\t1000\t1000\t1000\t1000\n"), 1000);
        let text = HolderList(&[], &[]).to_string();
        assert!(text.contains("root"));
    }
}
