//! The objects of one tier, in one directory.

use crate::{
    descriptors::Descriptors,
    error::{StoreError, errno},
    faults::{Faults, IoKind},
    fd_cache::{FdCache, Inserted},
    gauge::{Gauge, Reading},
    id::FsUuid,
    marker::{self, FORMAT, Marker},
    object::ObjectFd,
    shared::{FAN_OUT, Shared, open_fan_out},
};
use rustix::{
    fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags},
    io::Errno as Sys,
};
use std::{
    ffi::CStr,
    ops::ControlFlow,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use types::{Errno, Ino, TierId};

const MARKER: &str = "onfs-tier.toml";
const PROBE: &str = "onfs-probe";

#[derive(Clone, Debug)]
pub struct TierStoreOptions {
    pub tier: TierId,
    pub fs_uuid: FsUuid,
    /// Make an empty directory ours. Without it a directory that has no marker is an error: its device may just
    /// not be mounted.
    pub create: bool,
    /// Change nothing, not even the marker.
    pub read_only: bool,
    /// Descriptors of objects kept open, beside the 256 of the fan-out directories.
    pub fd_cache: usize,
    /// How many objects may be open, in all stores that share this.
    pub descriptors: Arc<Descriptors>,
    /// An operation of a device that takes longer is slow ([`Reading::slow`]).
    pub slow_after: Duration,
    /// For tests.
    pub faults: Faults,
}

impl TierStoreOptions {
    /// Read-write, creating, 1024 descriptors, no faults.
    pub fn new(tier: TierId, fs_uuid: FsUuid) -> TierStoreOptions {
        TierStoreOptions {
            tier,
            fs_uuid,
            create: true,
            read_only: false,
            fd_cache: 1024,
            descriptors: Arc::new(Descriptors::new(usize::MAX)),
            slow_after: Duration::from_millis(500),
            faults: Faults::default(),
        }
    }
}

/// Bytes of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    pub total: u64,
    /// What this process may still use.
    pub free: u64,
}

/// What a scan finds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScanEntry {
    /// Bytes, and allocated 512-byte units.
    Object { ino: Ino, size: u64, blocks: u64 },
    /// A name that no object has; relative to the tier's directory.
    Stranger(PathBuf),
}

/// Until an object has it.
struct Taken<'a>(&'a Descriptors);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.give();
    }
}

/// The objects in one tier's directory.
pub struct TierStore {
    path: PathBuf,
    shared: Arc<Shared>,
    cache: FdCache,
    root: OwnedFd,
    /// Holds the lock that keeps other processes out.
    _lock: OwnedFd,
}

impl TierStore {
    /// Into so many directories objects are dealt out, by their numbers.
    pub const PARTS: usize = FAN_OUT;

    pub fn open(dir: &Path, options: TierStoreOptions) -> Result<TierStore, StoreError> {
        let root = marker::open_dir(dir)?;
        let lock = claim(&root, dir, &options)?;
        let can_punch = if options.read_only { false } else { probe(root.as_fd(), dir)? };
        let dirs = open_fan_out(root.as_fd(), dir, options.read_only)?;
        let shared = Shared {
            tier: options.tier,
            read_only: options.read_only,
            can_punch,
            nowait: AtomicBool::new(true),
            faults: options.faults,
            descriptors: options.descriptors,
            gauge: options.tier.is_persistent().then(|| Gauge::new(options.slow_after)),
            dirs,
        };
        let cache = FdCache::new(options.fd_cache);
        Ok(TierStore { path: dir.to_owned(), shared: Arc::new(shared), cache, root, _lock: lock })
    }

    /// Two tiers with the same number share a file system, and its free space.
    pub fn device(&self) -> Result<u64, Errno> {
        rustix::fs::fstat(&self.root).map(|stat| stat.st_dev).map_err(errno)
    }

    /// What its device took so far; `None`: memory.
    pub fn reading(&self) -> Option<Reading> {
        self.shared.gauge.as_ref().map(Gauge::read)
    }

    /// Longer operations of its device are slow; `None`: memory.
    pub fn slow_after(&self) -> Option<Duration> {
        self.shared.gauge.as_ref().map(|gauge| gauge.limit)
    }

    /// Writes a page and has it durable, so that there is something to judge the device by. Leaves nothing behind.
    pub fn try_device(&self) -> Result<(), Errno> {
        if self.shared.read_only {
            return Ok(());
        }
        let mode = Mode::from(0o600);
        self.shared.timed(4096, || {
            self.shared.faults.check(IoKind::Sync)?;
            let unnamed = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
            let fd = match rustix::fs::openat(&self.root, ".", unnamed, mode) {
                Ok(fd) => fd,
                Err(Sys::OPNOTSUPP | Sys::ISDIR | Sys::NOENT) => {
                    let named = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                    let fd = rustix::fs::openat(&self.root, PROBE, named, mode).map_err(errno)?;
                    rustix::fs::unlinkat(&self.root, PROBE, AtFlags::empty()).map_err(errno)?;
                    fd
                }
                Err(e) => return Err(errno(e)),
            };
            rustix::io::pwrite(&fd, &[0; 4096], 0).map_err(errno)?;
            rustix::fs::fdatasync(&fd).map_err(errno)
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
    pub fn tier(&self) -> TierId {
        self.shared.tier
    }
    pub fn is_read_only(&self) -> bool {
        self.shared.read_only
    }
    /// Can the file system below free the middle of a file?
    pub fn can_punch(&self) -> bool {
        self.shared.can_punch
    }
    /// Descriptors in the cache now.
    pub fn cached_fds(&self) -> usize {
        self.cache.len()
    }

    /// The object, opened or from the cache. `None` when it is not there and is not to be created. `EMFILE`: too many are
    /// open, and those that the cache kept were not enough.
    pub fn open_object(&self, ino: Ino, create: bool) -> Result<Option<Arc<ObjectFd>>, Errno> {
        // Another object's removal makes the cache refuse what was opened meanwhile; the file is ours all the same.
        let mut created = false;
        loop {
            let ticket = match self.cache.get(ino) {
                Ok(object) => return Ok(Some(object)),
                Err(ticket) => ticket,
            };
            self.shared.faults.check(IoKind::Open)?;
            let taken = self.take_descriptor()?;
            let opened = if create { self.create_file(ino)? } else { None };
            let (fd, newly_created) = match opened {
                Some(fd) => (fd, true),
                None => match self.open_file(ino)? {
                    Some(fd) => (fd, created),
                    // Removed between the two attempts.
                    None if create => continue,
                    None => return Ok(None),
                },
            };
            created |= newly_created;
            std::mem::forget(taken);
            let object = Arc::new(ObjectFd::new(fd, ino, newly_created, self.shared.clone()));
            if let Inserted::Is(object) = self.cache.insert(ticket, &object) {
                return Ok(Some(object));
            }
        }
    }

    fn take_descriptor(&self) -> Result<Taken<'_>, Errno> {
        let descriptors = &*self.shared.descriptors;
        if descriptors.take().is_err() {
            self.cache.clear();
            descriptors.take()?;
        }
        Ok(Taken(descriptors))
    }

    fn open_file(&self, ino: Ino) -> Result<Option<OwnedFd>, Errno> {
        let access = if self.shared.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::openat(&self.shared.dir(ino).fd, ObjectName::of(ino).c_str(), flags, Mode::empty())
        {
            Ok(fd) => Ok(Some(fd)),
            Err(Sys::NOENT) => Ok(None),
            Err(e) => Err(errno(e)),
        }
    }

    /// `None` when it exists already.
    fn create_file(&self, ino: Ino) -> Result<Option<OwnedFd>, Errno> {
        if self.shared.read_only {
            return Err(Errno::EROFS);
        }
        let dir = self.shared.dir(ino);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        dir.creating.fetch_add(1, Ordering::SeqCst);
        let result = rustix::fs::openat(&dir.fd, ObjectName::of(ino).c_str(), flags, Mode::from(0o600));
        if result.is_ok() {
            dir.created.fetch_add(1, Ordering::SeqCst);
        }
        dir.creating.fetch_sub(1, Ordering::SeqCst);
        match result {
            Ok(fd) => Ok(Some(fd)),
            Err(Sys::EXIST) => Ok(None),
            Err(e) => Err(errno(e)),
        }
    }

    /// Removes the object. `false` when there was none. Not made durable: it may be back after a power loss.
    pub fn remove(&self, ino: Ino) -> Result<bool, Errno> {
        if self.shared.read_only {
            return Err(Errno::EROFS);
        }
        self.shared.faults.check(IoKind::Remove)?;
        let result =
            rustix::fs::unlinkat(&self.shared.dir(ino).fd, ObjectName::of(ino).c_str(), AtFlags::empty());
        match result {
            Ok(()) => {
                self.cache.removed(ino);
                Ok(true)
            }
            Err(Sys::NOENT) => Ok(false),
            Err(e) => Err(errno(e)),
        }
    }

    pub fn exists(&self, ino: Ino) -> Result<bool, Errno> {
        self.bytes_of(ino).map(|bytes| bytes.is_some())
    }

    /// What the object's file takes; `None`: there is none.
    pub fn bytes_of(&self, ino: Ino) -> Result<Option<u64>, Errno> {
        self.shared.faults.check(IoKind::Stat)?;
        match rustix::fs::statat(
            &self.shared.dir(ino).fd,
            ObjectName::of(ino).c_str(),
            AtFlags::SYMLINK_NOFOLLOW,
        ) {
            Ok(stat) => Ok(Some(stat.st_blocks as u64 * 512)),
            Err(Sys::NOENT) => Ok(None),
            Err(e) => Err(errno(e)),
        }
    }

    /// Makes an object's entry durable; `ObjectFd::data_sync` does so too.
    pub fn sync_dir(&self, ino: Ino) -> Result<(), Errno> {
        self.shared.sync_entry(ino)
    }

    /// Makes everything in the tier durable, entries and content, with whatever else its file system holds.
    pub fn sync_all(&self) -> Result<(), Errno> {
        self.shared.faults.check(IoKind::Sync)?;
        rustix::fs::syncfs(&self.root).map_err(errno)
    }

    pub fn space(&self) -> Result<Space, Errno> {
        self.shared.faults.check(IoKind::Space)?;
        let s = rustix::fs::fstatvfs(&self.root).map_err(errno)?;
        Ok(Space { total: s.f_blocks * s.f_frsize, free: s.f_bavail * s.f_frsize })
    }

    /// Every object, in no order, while others come and go. `visit` may end the scan.
    pub fn scan(&self, visit: &mut dyn FnMut(ScanEntry) -> ControlFlow<()>) -> Result<(), Errno> {
        for number in 0..self.shared.dirs.len() {
            if self.scan_part(number, visit)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// As [`TierStore::scan`], of one of its [`TierStore::PARTS`] directories.
    pub fn scan_part(
        &self,
        number: usize,
        visit: &mut dyn FnMut(ScanEntry) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Errno> {
        let Some(dir) = self.shared.dirs.get(number) else { return Ok(ControlFlow::Continue(())) };
        // Its own descriptor: a listing has a position.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = rustix::fs::openat(&dir.fd, ".", flags, Mode::empty()).map_err(errno)?;
        for entry in rustix::fs::Dir::new(own).map_err(errno)? {
            let entry = entry.map_err(errno)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = match rustix::fs::statat(&dir.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Sys::NOENT) => continue,
                Err(e) => return Err(errno(e)),
            };
            let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
            let found = match parse_name(name.to_bytes(), number).filter(|_| is_file) {
                Some(ino) => {
                    ScanEntry::Object { ino, size: stat.st_size as u64, blocks: stat.st_blocks as u64 }
                }
                None => {
                    let path = Path::new(&format!("{number:02x}")).join(&*name.to_string_lossy());
                    ScanEntry::Stranger(path)
                }
            };
            if visit(found).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Bytes allocated by all objects, by a scan.
    pub fn used_bytes(&self) -> Result<u64, Errno> {
        let mut used = 0;
        self.scan(&mut |entry| {
            if let ScanEntry::Object { blocks, .. } = entry {
                used += blocks * 512;
            }
            ControlFlow::Continue(())
        })?;
        Ok(used)
    }
}

/// Checks or writes the marker, and locks it.
fn claim(root: &OwnedFd, path: &Path, options: &TierStoreOptions) -> Result<OwnedFd, StoreError> {
    let writable = !options.read_only;
    if marker::read(root.as_fd(), path, MARKER, writable)?.is_none() {
        if options.read_only || !options.create {
            return Err(StoreError::NoMarker { path: path.to_owned() });
        }
        if !marker::is_vacant(root, path, |name| name.starts_with(b"onfs-"))? {
            return Err(StoreError::NotEmpty { path: path.to_owned() });
        }
        let fresh = Marker {
            format: FORMAT,
            file_system: options.fs_uuid,
            tier: options.tier.name().to_owned(),
            instance: None,
        };
        marker::write(root.as_fd(), path, MARKER, &fresh)?;
    }
    let (found, file) = marker::read(root.as_fd(), path, MARKER, writable)?
        .ok_or_else(|| StoreError::NoMarker { path: path.to_owned() })?;
    let tier = TierId::from_name(&found.tier).ok_or_else(|| StoreError::DamagedMarker {
        path: path.join(MARKER),
        detail: format!("no tier is called {:?}", found.tier),
    })?;
    if found.file_system != options.fs_uuid {
        let (found, expected) = (found.file_system, options.fs_uuid);
        return Err(StoreError::OtherFileSystem { path: path.to_owned(), found, expected });
    }
    if tier != options.tier {
        return Err(StoreError::OtherTier { path: path.to_owned(), found: tier, expected: options.tier });
    }
    let mode = if options.read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match rustix::fs::flock(&file, mode) {
        Ok(()) => Ok(file),
        Err(Sys::WOULDBLOCK) => Err(StoreError::InUse { path: path.to_owned() }),
        Err(e) => Err(StoreError::io(path, "lock")(e)),
    }
}

/// Writes a small file and punches it: proves that the directory can be written and says whether holes can be made.
fn probe(root: BorrowedFd<'_>, path: &Path) -> Result<bool, StoreError> {
    let unwritable = |e| StoreError::NotWritable { path: path.to_owned(), errno: errno(e) };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(root, PROBE, flags, Mode::from(0o600)).map_err(unwritable)?;
    // Best effort: a full device is still a tier that can be read and emptied.
    let _ = rustix::io::pwrite(&file, &[1; 8192], 0);
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let can_punch = match rustix::fs::fallocate(&file, mode, 0, 4096) {
        Err(Sys::OPNOTSUPP | Sys::NOSYS) => {
            tracing::warn!(path = %path.display(), "file system cannot punch holes: moved data is freed only with its file");
            false
        }
        Ok(()) | Err(_) => true,
    };
    rustix::fs::unlinkat(root, PROBE, AtFlags::empty()).map_err(unwritable)?;
    Ok(can_punch)
}

/// 16 hexadecimal digits and a terminator; made without an allocation.
struct ObjectName([u8; 17]);

impl ObjectName {
    fn of(ino: Ino) -> ObjectName {
        let mut name = [0; 17];
        for (i, byte) in name[..16].iter_mut().enumerate() {
            *byte = b"0123456789abcdef"[(ino.get() >> (60 - 4 * i)) as usize & 15];
        }
        ObjectName(name)
    }
    fn c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// `None` when no object of the fan-out directory `number` has this name.
fn parse_name(name: &[u8], number: usize) -> Option<Ino> {
    if name.len() != 16 || !name.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let raw = u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()?;
    Ino::from_raw(raw).filter(|ino| ino.get() % FAN_OUT as u64 == number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuzzing::{as_it_is, fuzz};

    /// Goal: a name in a tier's directory is that of one object, or of none. Method: [`fuzzing`] of names.
    #[test]
    fn fuzz_object_name() {
        let good = [1, 2, 0x0102_0304_0506, (1 << 64) - 1]
            .into_iter()
            .filter_map(|raw: u128| Ino::from_raw(raw as u64))
            .map(|ino| ObjectName::of(ino).c_str().to_bytes().to_vec())
            .collect::<Vec<_>>();
        fuzz("object-name", &good, as_it_is, |bytes| {
            let taken: Vec<_> = (0..FAN_OUT).filter_map(|number| parse_name(bytes, number)).collect();
            assert!(taken.len() <= 1);
            for ino in taken {
                assert_eq!(ObjectName::of(ino).c_str().to_bytes(), bytes);
            }
        });
    }
}
