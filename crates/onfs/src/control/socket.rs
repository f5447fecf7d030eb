//! The control socket's place and its connection, for state directories of any length.
//!
//! A socket's path may have 107 bytes; a longer one goes through the directory's descriptor in /proc.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::{
            ffi::OsStrExt,
            fs::OpenOptionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

/// Name of the socket in the state directory.
pub const SOCKET_NAME: &str = "control.sock";

/// Of `sockaddr_un`, less the terminator.
const PATH_BYTES_MAX: usize = 107;

/// Binds the socket, replacing a dead one. The caller holds the state's lock, so nobody listens on it.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    with_short_path(path, |short| UnixListener::bind(short))
}

pub fn connect(path: &Path) -> io::Result<UnixStream> {
    with_short_path(path, |short| UnixStream::connect(short))
}

fn with_short_path<T>(path: &Path, run: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().as_bytes().len() <= PATH_BYTES_MAX {
        return run(path);
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let dir: File = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(dir)?;
    run(&PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
}
