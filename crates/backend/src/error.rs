//! From the system's errors to ours.

use rustix::io::Errno as Sys;
use types::Errno;

pub(crate) fn errno(e: Sys) -> Errno {
    Errno::from_raw(e.raw_os_error())
}

/// Again after a signal.
pub(crate) fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Sys::INTR) => {}
            other => return other.map_err(errno),
        }
    }
}
