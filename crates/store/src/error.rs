//! Why a tier cannot be opened. Operations on objects answer with `types::Errno` alone.

use crate::id::FsUuid;
use std::path::{Path, PathBuf};
use types::{Errno, TierId};

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{path:?} does not exist: create it, or name another directory")]
    Missing { path: PathBuf },
    #[error("{path:?} is not a directory")]
    NotADirectory { path: PathBuf },
    #[error("{path:?} cannot be written: {errno}")]
    NotWritable { path: PathBuf, errno: Errno },
    #[error("{path:?} is not empty and is no tier of ours: name an empty directory")]
    NotEmpty { path: PathBuf },
    #[error("{path:?} has no onfs-tier.toml: is its device mounted?")]
    NoMarker { path: PathBuf },
    #[error(
        "{path:?} belongs to file system {found}, not to {expected}: give the --state it was mounted with, or another directory"
    )]
    OtherFileSystem { path: PathBuf, found: FsUuid, expected: FsUuid },
    #[error("{path:?} is the {found} tier of this file system, not the {expected} tier")]
    OtherTier { path: PathBuf, found: TierId, expected: TierId },
    #[error("{path:?} has format {found}, and this version knows {known}: use a newer onfs")]
    NewerFormat { path: PathBuf, found: u32, known: u32 },
    #[error("{path:?} is damaged: {detail}")]
    DamagedMarker { path: PathBuf, detail: String },
    #[error("{path:?} is in use by another process")]
    InUse { path: PathBuf },
    #[error("{path:?} is not safe to use: {detail}")]
    Unsafe { path: PathBuf, detail: &'static str },
    #[error("{path:?} holds more than {limit} bytes: move data out first")]
    StillFull { path: PathBuf, limit: u64 },
    #[error("cannot {action} {path:?}: {errno}")]
    Io { path: PathBuf, action: &'static str, errno: Errno },
}

impl StoreError {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(rustix::io::Errno) -> StoreError {
        let path = path.to_owned();
        move |e| StoreError::Io { path, action, errno: errno(e) }
    }

    /// The number for a caller that can take nothing else.
    pub fn errno(&self) -> Errno {
        match self {
            StoreError::Missing { .. } | StoreError::NoMarker { .. } => Errno::ENOENT,
            StoreError::NotADirectory { .. } => Errno::ENOTDIR,
            StoreError::NotWritable { errno, .. } | StoreError::Io { errno, .. } => *errno,
            StoreError::NotEmpty { .. } => Errno::ENOTEMPTY,
            StoreError::OtherFileSystem { .. }
            | StoreError::OtherTier { .. }
            | StoreError::NewerFormat { .. }
            | StoreError::DamagedMarker { .. } => Errno::EINVAL,
            StoreError::InUse { .. } | StoreError::StillFull { .. } => Errno::EBUSY,
            StoreError::Unsafe { .. } => Errno::EPERM,
        }
    }
}

pub(crate) fn errno(e: rustix::io::Errno) -> Errno {
    Errno::from_raw(e.raw_os_error())
}
