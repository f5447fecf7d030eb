//! One open object: positioned I/O on its file.

use crate::{error::errno, faults::IoKind, shared::Shared};
use rustix::{
    fs::{FallocateFlags, SeekFrom},
    io::{Errno as Sys, ReadWriteFlags},
};
use std::{
    io::IoSliceMut,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
};
use types::{Errno, Ino, TierId, Timestamp};

/// An object's open file. Shared by all its users; closed when the last one is done (I-STORE-4).
pub struct ObjectFd {
    fd: OwnedFd,
    ino: Ino,
    newly_created: bool,
    shared: Arc<Shared>,
}

/// What the device says of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectStat {
    /// Bytes.
    pub size: u64,
    /// 512-byte units that are allocated.
    pub blocks: u64,
    pub mtime: Timestamp,
    pub atime: Timestamp,
}

impl Drop for ObjectFd {
    fn drop(&mut self) {
        self.shared.descriptors.give();
    }
}

impl ObjectFd {
    /// The caller has taken a descriptor from [`Shared::descriptors`].
    pub(crate) fn new(fd: OwnedFd, ino: Ino, newly_created: bool, shared: Arc<Shared>) -> ObjectFd {
        ObjectFd { fd, ino, newly_created, shared }
    }

    pub fn ino(&self) -> Ino {
        self.ino
    }
    pub fn tier(&self) -> TierId {
        self.shared.tier
    }
    /// Did the opening that made this descriptor create the object? (Its entry becomes durable with `data_sync`.)
    pub fn newly_created(&self) -> bool {
        self.newly_created
    }

    /// Fills `buf` from `offset`. Short only at the end of the object.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.shared.timed(buf.len(), || self.read_all(buf, offset))
    }

    fn read_all(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.shared.faults.check(IoKind::Read)?;
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(&self.fd, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Sys::INTR) => {}
                Err(e) => return Err(errno(e)),
            }
        }
        Ok(done)
    }

    /// As `read_at`, if that needs no waiting for a device; `None` if it does, or if the file system below cannot tell.
    pub fn read_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>, Errno> {
        if !self.tier().is_persistent() {
            return self.read_at(buf, offset).map(Some);
        }
        if !self.shared.nowait.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.shared.faults.check(IoKind::Read)?;
        let mut done = 0;
        while done < buf.len() {
            let mut slices = [IoSliceMut::new(&mut buf[done..])];
            let at = offset + done as u64;
            match rustix::io::preadv2(&self.fd, &mut slices, at, ReadWriteFlags::NOWAIT) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Sys::INTR) => {}
                Err(Sys::AGAIN) => return Ok(None),
                Err(Sys::OPNOTSUPP | Sys::NOSYS) => {
                    self.shared.nowait.store(false, Ordering::Relaxed);
                    return Ok(None);
                }
                Err(e) => return Err(errno(e)),
            }
        }
        Ok(Some(done))
    }

    /// Writes all of `data`. After an error any part of the range may have been written.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Errno> {
        self.writable()?;
        self.shared.timed(data.len(), || {
            if let Some(failure) = self.shared.faults.failure(IoKind::Write) {
                if failure.torn {
                    self.write_all(&data[..data.len() / 2], offset)?;
                }
                return Err(failure.errno);
            }
            self.write_all(data, offset)
        })
    }

    fn write_all(&self, data: &[u8], offset: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&self.fd, &data[done..], offset + done as u64) {
                Ok(0) => return Err(Errno::EIO),
                Ok(n) => done += n,
                Err(Sys::INTR) => {}
                Err(e) => return Err(errno(e)),
            }
        }
        Ok(())
    }

    /// Frees the range: it reads as zeros; the size stays. `EOPNOTSUPP` where `TierStore::can_punch` is false.
    pub fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
    }

    /// Makes the range read as zeros, by whatever way this file system has; the size stays. Cheap on a hole.
    pub fn clear(&self, offset: u64, len: u64) -> Result<(), Errno> {
        if self.shared.can_punch {
            return self.punch(offset, len);
        }
        let end = offset.saturating_add(len).min(self.stat()?.size);
        let mut at = offset;
        while at < end {
            let Some(data) = self.seek_data(at)?.filter(|d| *d < end) else { break };
            let n = (end - data).min(ZEROS.len() as u64);
            self.write_at(&ZEROS[..n as usize], data)?;
            at = data + n;
        }
        Ok(())
    }

    /// Makes the range zeros with its space reserved; the size stays.
    pub fn zero_range(&self, offset: u64, len: u64) -> Result<(), Errno> {
        match self.fallocate(FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, offset, len) {
            Err(Errno::EOPNOTSUPP) => {
                self.clear(offset, len)?;
                self.allocate(offset, len)
            }
            other => other,
        }
    }

    /// Reserves space for the range; neither bytes nor size change.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.fallocate(FallocateFlags::KEEP_SIZE, offset, len)
    }

    fn fallocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
        self.writable()?;
        if len == 0 {
            return Ok(());
        }
        self.shared.faults.check(IoKind::Allocate)?;
        retry(|| rustix::fs::fallocate(&self.fd, mode, offset, len))
    }

    pub fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.writable()?;
        self.shared.faults.check(IoKind::Truncate)?;
        retry(|| rustix::fs::ftruncate(&self.fd, size))
    }

    /// Has the device begin to take the range's bytes, and does not wait for it: a sync later finds less to do. Promises
    /// nothing; what fails is said by the next sync. May wait while the device's queue is full.
    pub fn start_writeback(&self, offset: u64, len: u64) {
        let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
        if self.tier().is_persistent() {
            // SAFETY: plain numbers on an open descriptor; no memory is touched.
            unsafe { libc::sync_file_range(self.fd.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
        }
    }

    /// Bytes, size and the object's entry are durable when it returns (I-STORE-3). After an error what the device
    /// holds of unsynced bytes is unknown, and a repetition proves nothing: treat that copy as failed.
    pub fn data_sync(&self) -> Result<(), Errno> {
        self.shared.timed(0, || {
            self.shared.faults.check(IoKind::Sync)?;
            retry(|| rustix::fs::fdatasync(&self.fd))?;
            self.shared.sync_entry(self.ino)
        })
    }

    /// As `data_sync`, and times too.
    pub fn sync(&self) -> Result<(), Errno> {
        self.shared.timed(0, || {
            self.shared.faults.check(IoKind::Sync)?;
            retry(|| rustix::fs::fsync(&self.fd))?;
            self.shared.sync_entry(self.ino)
        })
    }

    /// Sets the modification time, which outlives a crash of the daemon with the object.
    pub fn set_mtime(&self, time: Timestamp) -> Result<(), Errno> {
        let mtime = rustix::fs::Timespec { tv_sec: time.sec, tv_nsec: i64::from(time.nsec) };
        let omit = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let times = rustix::fs::Timestamps { last_access: omit, last_modification: mtime };
        rustix::fs::futimens(&self.fd, &times).map_err(errno)
    }

    /// Has anybody beside this descriptor the file open or mapped? Asked by taking a write lease for an instant, which
    /// the kernel refuses while there is such a user.
    pub fn is_used_elsewhere(&self) -> Result<bool, Errno> {
        is_used_elsewhere(self.fd.as_fd())
    }

    pub fn stat(&self) -> Result<ObjectStat, Errno> {
        self.shared.faults.check(IoKind::Stat)?;
        let s = rustix::fs::fstat(&self.fd).map_err(errno)?;
        Ok(ObjectStat {
            size: s.st_size as u64,
            blocks: s.st_blocks as u64,
            mtime: Timestamp { sec: s.st_mtime, nsec: s.st_mtime_nsec as u32 },
            atime: Timestamp { sec: s.st_atime, nsec: s.st_atime_nsec as u32 },
        })
    }

    /// The first byte of data from `offset` on; `None` when only a hole follows.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>, Errno> {
        self.seek(SeekFrom::Data(offset))
    }
    /// The first byte of a hole from `offset` on (the end of the object is one); `None` past the end.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>, Errno> {
        self.seek(SeekFrom::Hole(offset))
    }

    fn seek(&self, to: SeekFrom) -> Result<Option<u64>, Errno> {
        self.shared.faults.check(IoKind::Seek)?;
        match rustix::fs::seek(&self.fd, to) {
            Ok(at) => Ok(Some(at)),
            Err(Sys::NXIO) => Ok(None),
            Err(e) => Err(errno(e)),
        }
    }

    pub(crate) fn check_fault(&self, kind: IoKind) -> Result<(), Errno> {
        self.shared.faults.check(kind)
    }

    fn writable(&self) -> Result<(), Errno> {
        if self.shared.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }
}

pub(crate) static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

fn retry(mut call: impl FnMut() -> rustix::io::Result<()>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Sys::INTR) => {}
            other => return other.map_err(errno),
        }
    }
}

/// As [`ObjectFd::is_used_elsewhere`], of any descriptor of a regular file that is open for reading and writing.
pub fn is_used_elsewhere(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    /// fcntl(2): the signal instead of SIGIO, which would end the process. Missing in the libc crate.
    const F_SETSIG: libc::c_int = 10;
    let fd = file.as_raw_fd();
    // SAFETY: fcntl(2) with plain numbers on an open descriptor; no memory is touched. SIGURG, which would tell of
    // another's open while the lease is held, is ignored by default.
    let refused = unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG);
        if libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) == 0 {
            libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK);
            return Ok(false);
        }
        std::io::Error::last_os_error()
    };
    match refused.raw_os_error() {
        Some(libc::EAGAIN) => Ok(true),
        Some(_) | None => Err(refused.into()),
    }
}

impl AsFd for ObjectFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::fmt::Debug for ObjectFd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectFd({} in {})", self.ino, self.tier())
    }
}
