//! The error numbers that a POSIX caller can see: the one table that every layer's errors end in.

use std::fmt;

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// An error number of the Linux kernel's interface.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        pub enum Errno { $($(#[$doc])* $name,)* }

        impl Errno {
            pub const ALL: &'static [Errno] = &[$(Errno::$name,)*];
            /// The positive number, as in errno(3).
            pub const fn raw(self) -> i32 {
                match self { $(Errno::$name => libc::$name,)* }
            }
            pub const fn name(self) -> &'static str {
                match self { $(Errno::$name => stringify!($name),)* }
            }
            const fn text(self) -> &'static str {
                match self { $(Errno::$name => $text,)* }
            }
        }
    };
}

errnos! {
    EPERM = "operation not permitted",
    ENOENT = "no such file or directory",
    EINTR = "interrupted",
    EIO = "input/output error",
    ENXIO = "no such device or address",
    E2BIG = "argument too long",
    EBADF = "bad file descriptor",
    EAGAIN = "try again",
    ENOMEM = "out of memory",
    EACCES = "permission denied",
    EBUSY = "busy",
    EEXIST = "file exists",
    EXDEV = "not on the same file system",
    ENODEV = "no such device",
    ENOTDIR = "not a directory",
    EISDIR = "is a directory",
    EINVAL = "invalid argument",
    EMFILE = "too many open files",
    ENOTTY = "inappropriate ioctl",
    ETXTBSY = "text file busy",
    EFBIG = "file too large",
    ENOSPC = "no space left",
    ESPIPE = "illegal seek",
    EROFS = "read-only file system",
    EMLINK = "too many links",
    EPIPE = "broken pipe",
    ERANGE = "result too large",
    EDEADLK = "deadlock avoided",
    ENAMETOOLONG = "name too long",
    ENOLCK = "no more locks",
    ENOSYS = "not implemented",
    ENOTEMPTY = "directory not empty",
    ELOOP = "too many symbolic links",
    ENODATA = "no such attribute",
    EOVERFLOW = "value too large",
    EOPNOTSUPP = "operation not supported",
    ESTALE = "stale file handle",
    EREMOTE = "served elsewhere",
    EDQUOT = "quota exceeded",
    ETIMEDOUT = "timed out",
}

impl Errno {
    /// From the operating system's number; numbers that no caller of ours should see become `EIO`.
    pub fn from_raw(raw: i32) -> Errno {
        Errno::ALL.iter().copied().find(|e| e.raw() == raw).unwrap_or(Errno::EIO)
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Errno {
        error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.name())
    }
}

impl std::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_the_unknown_is_eio() {
        for e in Errno::ALL {
            assert_eq!(Errno::from_raw(e.raw()), *e);
        }
        assert_eq!(Errno::from_raw(9999), Errno::EIO);
    }
}
