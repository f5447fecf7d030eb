//! From a path to the daemon that serves it.
//!
//! A file on ONFS answers the extended attribute `user.onfs.control` with the path of its daemon's control socket.
//! A file that this user may not read, or that cannot have the attribute (symlinks, devices), is found through the
//! directories above it. A dead or hung file system gets an answer too: every look has a deadline.

use std::{
    io,
    os::unix::{ffi::OsStringExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::mpsc,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use crate::{
    control::{CallError, Client, FileRef},
    exit::{Exit, Failure, Outcome, system_text},
    mounts,
};

/// The attribute that names the control socket.
pub const CONTROL_XATTR: &str = "user.onfs.control";

/// A file system that does not answer a look within this time is called hung.
const LOOK_DEADLINE: Duration = Duration::from_secs(20);
/// How long a daemon that serves may take to listen for commands.
const LISTEN_PATIENCE: Duration = Duration::from_secs(2);
const SOCKET_PATH_MAX: usize = 4096;

/// A path on ONFS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Located {
    /// As the user wrote it.
    pub path: PathBuf,
    pub socket: PathBuf,
    pub file: FileRef,
    pub is_dir: bool,
    pub dev: u64,
}

/// Finds the daemon of `path`, following symlinks.
pub fn locate(path: &Path) -> Outcome<Located> {
    let wanted = path.to_owned();
    let looked = with_deadline(LOOK_DEADLINE, move || {
        let (located, real) = look(&wanted)?;
        // Any owner of a file can give it such an attribute; only that of a FUSE mount is believed.
        let mounts = mounts::mounts().unwrap_or_default();
        let on_fuse = mounts::mount_of(&mounts, &real).is_some_and(|m| m.fs_type.starts_with("fuse"));
        if on_fuse { Ok(located) } else { Err(not_onfs(&wanted)) }
    });
    looked.unwrap_or_else(|| Err(hung(path)))
}

/// Connects to the daemon of a located path.
pub fn connect(socket: &Path) -> Outcome<Client> {
    let end = Instant::now() + LISTEN_PATIENCE;
    let connected = loop {
        match Client::connect(socket) {
            // It serves, or another one begins to in its place, and does not listen yet.
            Err(CallError::NotRunning(_)) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            connected => break connected,
        }
    };
    connected.map_err(|error| {
        Failure::new(Exit::NotOnfs, format!("{}: {error}", socket.display()))
            .hint("is the daemon running? a mount that it left behind goes away with: onfs umount MOUNTPOINT")
    })
}

/// Runs `look` on a thread of its own; `None` when it took too long, and the thread is left to its fate.
pub fn with_deadline<T: Send + 'static>(
    deadline: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (answer, answered) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("look".into()).spawn(move || {
        let _ = answer.send(look());
    });
    thread.ok()?;
    answered.recv_timeout(deadline).ok()
}

/// What `statfs` of a mount point says about the file system there. The kernel asks the daemon each time; what it
/// remembers of names and attributes would let a dead one look alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    Alive,
    /// A dead FUSE daemon: ENOTCONN or ECONNABORTED.
    Dead,
    Hung,
    Missing,
}

pub fn health(path: &Path) -> Health {
    let looked = path.to_owned();
    match with_deadline(LOOK_DEADLINE, move || Ok(rustix::fs::statfs(&looked)?)) {
        None => Health::Hung,
        Some(Ok(_)) => Health::Alive,
        Some(Err(error)) if is_dead(&error) => Health::Dead,
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => Health::Missing,
        Some(Err(_)) => Health::Alive,
    }
}

/// An absolute path without symlinks in it, also for the mount point of a dead file system.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    match std::fs::canonicalize(path) {
        Err(error) if is_dead(&error) => {
            let absolute = std::path::absolute(path)?;
            match (absolute.parent(), absolute.file_name()) {
                (Some(parent), Some(name)) => Ok(std::fs::canonicalize(parent)?.join(name)),
                (Some(_) | None, _) => Ok(absolute),
            }
        }
        other => other,
    }
}

/// What the attributes say, and the path without symlinks.
fn look(path: &Path) -> Outcome<(Located, PathBuf)> {
    let meta = std::fs::metadata(path).map_err(|error| unreachable_path(path, &error))?;
    let real = std::fs::canonicalize(path).map_err(|error| unreachable_path(path, &error))?;
    for place in real.ancestors() {
        // Not beyond the file system that the path is on.
        if std::fs::metadata(place).is_ok_and(|m| m.dev() != meta.dev()) {
            break;
        }
        let mut value = vec![0u8; SOCKET_PATH_MAX];
        match rustix::fs::getxattr(place, CONTROL_XATTR, value.as_mut_slice()) {
            Ok(length) if length > 0 => {
                value.truncate(length);
                let socket = PathBuf::from(std::ffi::OsString::from_vec(value));
                let file = FileRef { ino: meta.ino(), path: path.display().to_string() };
                let (is_dir, dev) = (meta.is_dir(), meta.dev());
                return Ok((Located { path: path.to_owned(), socket, file, is_dir, dev }, real.clone()));
            }
            Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::ACCESS | Errno::PERM) => {}
            Err(error) => return Err(unreachable_path(path, &error.into())),
        }
    }
    Err(not_onfs(path))
}

fn not_onfs(path: &Path) -> Failure {
    Failure::new(Exit::NotOnfs, format!("{}: not on an ONFS mount", path.display()))
        .hint("onfs status lists the mounts of this machine")
}

fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

fn unreachable_path(path: &Path, error: &io::Error) -> Failure {
    if !is_dead(error) {
        let failure = Failure::failed(format!("{}: {}", path.display(), system_text(error)));
        let shut = error.kind() == io::ErrorKind::PermissionDenied && rustix::process::geteuid().is_root();
        // Even root is shut out of a FUSE mount that its user keeps to himself.
        return if shut {
            failure.hint("mounted by a user without allow_other: run this as that user")
        } else {
            failure
        };
    }
    let mountpoint = std::path::absolute(path).ok().and_then(|absolute| {
        let mounts = mounts::mounts().ok()?;
        mounts::mount_of(&mounts, &absolute).map(|m| m.mountpoint.display().to_string())
    });
    let mountpoint = mountpoint.unwrap_or_else(|| "MOUNTPOINT".into());
    Failure::new(Exit::NotOnfs, format!("{}: the daemon of this mount does not run any more", path.display()))
        .hint(format!("mount it again (onfs mount ... {mountpoint}) or remove it (onfs umount {mountpoint})"))
}

fn hung(path: &Path) -> Failure {
    let seconds = LOOK_DEADLINE.as_secs();
    Failure::new(Exit::TimedOut, format!("{}: no answer for {seconds} s", path.display()))
        .hint("the daemon's log in the state directory says what it waits for")
}

#[cfg(test)]
mod tests {
    //! Goal: paths that are not ours are told apart from paths that are not there, and looking never hangs.
    //! Method: real directories of the machine, and a look that never returns.
    use super::*;

    #[test]
    fn other_file_systems_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let failure = locate(dir.path()).unwrap_err();
        assert_eq!(failure.exit, Exit::NotOnfs);
        let failure = locate(&dir.path().join("missing")).unwrap_err();
        assert_eq!(failure.exit, Exit::Failure);
        assert_eq!(health(dir.path()), Health::Alive);
        assert_eq!(health(&dir.path().join("missing")), Health::Missing);
    }

    #[test]
    fn a_socket_named_by_the_attribute_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        if rustix::fs::setxattr(dir.path(), CONTROL_XATTR, b"/run/x.sock", flags).is_err() {
            return; // a file system without user attributes
        }
        let file = dir.path().join("f");
        std::fs::write(&file, b"x").unwrap();
        assert_eq!(locate(&file).unwrap_err().exit, Exit::NotOnfs, "anybody can write such an attribute");
        let (located, _) = look(&file).unwrap();
        assert_eq!(located.socket, Path::new("/run/x.sock"));
        assert!(!located.is_dir);
        assert_eq!(connect(&located.socket).unwrap_err().exit, Exit::NotOnfs);
    }

    #[test]
    fn a_look_that_hangs_is_left() {
        let (keep, never) = mpsc::channel::<()>();
        let looked = with_deadline(Duration::from_millis(10), move || never.recv());
        assert!(looked.is_none());
        drop(keep);
    }
}
