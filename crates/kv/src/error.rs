//! Why a store cannot be opened, and how errors of the operating system become ours.

use std::{io, path::PathBuf};

use namespace::txn::KvError;

/// Why [`crate::MetaStore::open`] refused. Nothing was changed, except that an empty store may have been begun.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the store open.
    #[error("the metadata in {} is in use by {}", path.display(), pid.map_or("another process".to_owned(), |pid| format!("process {pid}")))]
    Locked { path: PathBuf, pid: Option<u32> },
    /// A newer release wrote it.
    #[error("{} has format {found}, this release knows formats up to {known}: use a newer release", path.display())]
    Newer { path: PathBuf, found: u32, known: u32 },
    /// The store was made with another engine.
    #[error("the metadata in {} was made with the engine {found:?}, not {wanted:?}", path.display())]
    OtherEngine { path: PathBuf, found: String, wanted: String },
    /// The directory holds something, but not a metadata store.
    #[error("{} holds files, but no metadata store (there is no FORMAT file)", path.display())]
    NotAStore { path: PathBuf },
    /// Bytes that must be there are missing or wrong. `repair` opens such a journal, without what follows.
    #[error("{} is damaged at byte {offset}: {detail}", path.display())]
    Damaged { path: PathBuf, offset: u64, detail: String },
    /// The engine's files are missing or damaged. Nothing puts them right.
    #[error("the files of the metadata engine in {} are damaged: {detail}", path.display())]
    EngineDamaged { path: PathBuf, detail: String },
    /// The engine is not this store's, or not with these settings. Nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// The operating system reported an error.
    #[error("{}: {detail}", path.display())]
    Io { path: PathBuf, full: bool, detail: String },
    /// The engine reported an error.
    #[error("metadata engine: {0}")]
    Engine(#[from] KvError),
}

impl OpenError {
    pub(crate) fn io(path: impl Into<PathBuf>, error: &io::Error) -> OpenError {
        OpenError::Io { path: path.into(), full: is_full(error), detail: error.to_string() }
    }
}

impl From<OpenError> for KvError {
    fn from(error: OpenError) -> KvError {
        match error {
            OpenError::Engine(inner) => inner,
            OpenError::Io { full: true, .. } => KvError::Full,
            OpenError::Damaged { .. } | OpenError::EngineDamaged { .. } | OpenError::NotAStore { .. } => {
                KvError::Corrupt(error.to_string())
            }
            OpenError::Locked { .. }
            | OpenError::Newer { .. }
            | OpenError::OtherEngine { .. }
            | OpenError::Refused(_)
            | OpenError::Io { .. } => KvError::Io(error.to_string()),
        }
    }
}

/// Is it "no room" (no space, or over a quota) rather than a failing device?
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Is it "no file descriptor": the process, or the machine, has as many open as it may?
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    let [process, machine] = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].map(|e| e.raw_os_error());
    error.raw_os_error().is_some_and(|raw| raw == process || raw == machine)
}

/// The error of an operation that named `what`.
pub(crate) fn kv_error(what: &str, error: &io::Error) -> KvError {
    if is_full(error) { KvError::Full } else { KvError::Io(format!("{what}: {error}")) }
}
