//! Why a namespace operation did not happen.

use types::Errno;

use crate::txn::KvError;

/// Either POSIX says no, or the store could not answer. In both cases the transaction must be dropped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The answer to the caller.
    #[error("{0}")]
    Errno(Errno),
    /// The store under the namespace failed; the shell decides which error number that is.
    #[error("{0}")]
    Store(KvError),
}

pub type Result<T> = std::result::Result<T, Error>;

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error::Errno(errno)
    }
}

impl From<KvError> for Error {
    fn from(error: KvError) -> Error {
        Error::Store(error)
    }
}

/// `Err` with an error number, for the many places that refuse.
pub(crate) fn refuse<T>(errno: Errno) -> Result<T> {
    Err(Error::Errno(errno))
}
