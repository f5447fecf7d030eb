//! What a tier's store and its open objects have in common: the fan-out directories, and whose entries are durable.

use crate::{
    descriptors::Descriptors,
    error::{StoreError, errno},
    faults::{Faults, IoKind},
    gauge::Gauge,
};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno as Sys,
};
use std::{
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};
use types::{Errno, Ino, TierId};

pub(crate) const FAN_OUT: usize = 256;

/// What the store and its open objects have in common.
pub(crate) struct Shared {
    pub tier: TierId,
    pub read_only: bool,
    pub can_punch: bool,
    /// Reads that refuse to wait are understood by the file system below.
    pub nowait: AtomicBool,
    pub faults: Faults,
    pub descriptors: Arc<Descriptors>,
    /// `None`: memory.
    pub gauge: Option<Gauge>,
    pub dirs: Vec<FanOut>,
}

/// One of the 256 directories. Entries created since its last sync are what `data_sync` must make durable.
pub(crate) struct FanOut {
    pub fd: OwnedFd,
    pub creating: AtomicU32,
    pub created: AtomicU64,
    synced: AtomicU64,
}

impl Shared {
    pub fn dir(&self, ino: Ino) -> &FanOut {
        &self.dirs[(ino.get() % FAN_OUT as u64) as usize]
    }

    /// Runs an operation of the device, of so many bytes.
    pub fn timed<R>(&self, bytes: usize, run: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        match &self.gauge {
            Some(gauge) => gauge.time(bytes as u64, run),
            None => run(),
        }
    }

    /// Makes the entry of an object durable, unless it is known to be.
    pub fn sync_entry(&self, ino: Ino) -> Result<(), Errno> {
        if !self.tier.is_persistent() {
            return Ok(());
        }
        let dir = self.dir(ino);
        // In this order: a creation that is not seen as under way is seen as counted.
        let creating = dir.creating.load(Ordering::SeqCst);
        let created = dir.created.load(Ordering::SeqCst);
        if creating == 0 && dir.synced.load(Ordering::SeqCst) >= created {
            return Ok(());
        }
        self.faults.check(IoKind::Sync)?;
        rustix::fs::fsync(&dir.fd).map_err(errno)?;
        dir.synced.fetch_max(created, Ordering::SeqCst);
        Ok(())
    }
}

/// Opens the directories, made if they are missing.
pub(crate) fn open_fan_out(
    root: BorrowedFd<'_>,
    path: &Path,
    read_only: bool,
) -> Result<Vec<FanOut>, StoreError> {
    let mut made = false;
    let mut dirs = Vec::with_capacity(FAN_OUT);
    for number in 0..FAN_OUT {
        let name = format!("{number:02x}");
        if !read_only {
            match rustix::fs::mkdirat(root, &name, Mode::from(0o700)) {
                Ok(()) => made = true,
                Err(Sys::EXIST) => {}
                Err(e) => return Err(StoreError::NotWritable { path: path.join(&name), errno: errno(e) }),
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(root, &name, flags, Mode::empty())
            .map_err(StoreError::io(&path.join(&name), "open"))?;
        // What a process before this one created may not be durable: as if one entry were unsynced.
        let (created, synced) = (AtomicU64::new(1), AtomicU64::new(0));
        dirs.push(FanOut { fd, creating: AtomicU32::new(0), created, synced });
    }
    if made {
        rustix::fs::fsync(root).map_err(StoreError::io(path, "sync"))?;
    }
    Ok(dirs)
}
