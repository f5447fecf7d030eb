//! The parts' errors at the start, as what the user has to do about them.

use fuse::MountError;
use kv::OpenError;
use namespace::txn::KvError;
use store::StoreError;

use crate::running::StartError;

pub(super) fn of_store(error: StoreError) -> StartError {
    let text = error.to_string();
    match error {
        StoreError::InUse { .. } => StartError::Busy(text),
        StoreError::NewerFormat { .. } | StoreError::DamagedMarker { .. } => StartError::Damaged(text),
        StoreError::Missing { .. }
        | StoreError::NotADirectory { .. }
        | StoreError::NotWritable { .. }
        | StoreError::NotEmpty { .. }
        | StoreError::NoMarker { .. }
        | StoreError::OtherFileSystem { .. }
        | StoreError::OtherTier { .. }
        | StoreError::Unsafe { .. }
        | StoreError::StillFull { .. } => StartError::Config(text),
        StoreError::Io { .. } => StartError::Failed(text),
    }
}

pub(super) fn of_open(error: OpenError) -> StartError {
    let text = error.to_string();
    match error {
        OpenError::Locked { .. } => StartError::Busy(text),
        OpenError::Newer { .. } => StartError::Damaged(text),
        OpenError::Damaged { .. } => StartError::Damaged(format!(
            "{text}\nonfs fsck --repair --state DIR opens it without what follows the damage, and says what is lost"
        )),
        OpenError::EngineDamaged { .. } => StartError::Damaged(format!(
            "{text}\nnothing was changed; onfs has no repair for these files: put back a copy of the state directory's meta/ \
             if there is one"
        )),
        OpenError::OtherEngine { .. } | OpenError::NotAStore { .. } | OpenError::Refused(_) => {
            StartError::Config(text)
        }
        OpenError::Engine(KvError::Corrupt(_)) => StartError::Damaged(text),
        OpenError::Io { .. } | OpenError::Engine(_) => StartError::Failed(text),
    }
}

pub(super) fn of_mount(error: MountError) -> StartError {
    let text = error.to_string();
    match error {
        MountError::NoMountpoint(_) | MountError::NotADirectory(_) | MountError::BadOption(_) => {
            StartError::Config(text)
        }
        MountError::Stale(_)
        | MountError::Mountpoint { .. }
        | MountError::NoDevice
        | MountError::NoHelper
        | MountError::NotPermitted(_)
        | MountError::Failed(_)
        | MountError::KernelTooOld { .. }
        | MountError::NoInit
        | MountError::NoRing(_)
        | MountError::NoResend
        | MountError::OtherTerms(_)
        | MountError::Refused(_)
        | MountError::Setup(_) => StartError::Failed(text),
    }
}
