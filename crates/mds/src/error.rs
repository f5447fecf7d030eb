//! What callers see of a failure: an error number, from one table, and a line in the log.

use namespace::txn::KvError;
use parking_lot::Mutex;
use types::Errno;

/// Why a store could not be opened as a file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// Made by a newer or an older program.
    OtherFormat {
        found: u32,
        supported: u32,
    },
    Store(KvError),
    /// No random bytes for a new file system.
    Random(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::OtherFormat { found, supported } => {
                let hint = if found > supported {
                    "use a newer onfs"
                } else {
                    "use the onfs that it was made with, and copy the data out"
                };
                write!(f, "the metadata has format {found}, this program knows format {supported}: {hint}")
            }
            Error::Store(error) => write!(f, "{error}"),
            Error::Random(why) => write!(f, "cannot get random bytes for a new file system: {why}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<KvError> for Error {
    fn from(error: KvError) -> Error {
        Error::Store(error)
    }
}

impl From<namespace::Error> for Error {
    fn from(error: namespace::Error) -> Error {
        match error {
            namespace::Error::Store(error) => Error::Store(error),
            namespace::Error::Errno(errno) => Error::Store(KvError::Corrupt(errno.to_string())),
        }
    }
}

/// The table, and the log of what becomes `EIO`: an error that comes again and again is logged once.
#[derive(Default)]
pub(crate) struct Reporter {
    last: Mutex<Option<KvError>>,
}

impl Reporter {
    pub(crate) fn errno(&self, error: namespace::Error) -> Errno {
        match error {
            namespace::Error::Errno(errno) => errno,
            namespace::Error::Store(error) => self.store_errno(error),
        }
    }

    pub(crate) fn store_errno(&self, error: KvError) -> Errno {
        let errno = match &error {
            KvError::Full => Errno::ENOSPC,
            KvError::ReadOnly(_) => Errno::EROFS,
            KvError::Corrupt(_) | KvError::Io(_) => Errno::EIO,
        };
        let mut last = self.last.lock();
        if last.as_ref() != Some(&error) {
            tracing::error!(%errno, "{error}");
            *last = Some(error);
        }
        errno
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_errors_have_their_error_numbers() {
        let reporter = Reporter::default();
        for (error, errno) in [
            (KvError::Full, Errno::ENOSPC),
            (KvError::ReadOnly(String::new()), Errno::EROFS),
            (KvError::Corrupt(String::new()), Errno::EIO),
            (KvError::Io(String::new()), Errno::EIO),
        ] {
            assert_eq!(reporter.errno(error.into()), errno);
        }
        assert_eq!(reporter.errno(Errno::EXDEV.into()), Errno::EXDEV);
    }
}
