//! A file that is being filled: a new one under a name on the way, or the one that is there.

use std::{
    num::NonZeroU64,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use link::{Attributes, Found, Version, Way, is_on_the_way};
use rustix::{
    fs::{Advice, AtFlags, Mode, OFlags, fadvise, fdatasync, fsync, ftruncate, openat, unlinkat},
    io::pwrite,
};
use types::{Errno, FileKind};

use crate::{
    attributes,
    call::Call,
    error::retry,
    faults::Faults,
    root::Root,
    stat::{self, Fresh},
};

/// What is written is made durable each so many bytes, so that no call has more than that to wait for and a deadline says
/// something of the back end, not of the file. At 112 MB/s it is 0.3 s.
const UNSYNCED_BYTES_MAX: u64 = 32 << 20;
/// The device begins with each so many bytes while the next are copied.
const BEGUN_BYTES: u64 = 4 << 20;
/// How often what has the name is removed: somebody may make it anew each time.
const TRIES: u32 = 8;

pub(crate) struct Filling {
    fd: OwnedFd,
    root: Arc<Root>,
    /// Of a new file, while it is not finished.
    name: Option<Name>,
    unsynced: u64,
    /// Of them, the device was not asked yet to take these.
    waiting: Range<u64>,
    faults: Faults,
}

struct Name {
    dir: OwnedFd,
    name: Vec<u8>,
}

impl Filling {
    /// `EINVAL` for a name that is not on the way: what has it might be theirs.
    pub(crate) fn aside(root: Arc<Root>, way: &Way, faults: Faults) -> Result<Filling, Errno> {
        let (dir, name) = root.parent(way)?;
        if !is_on_the_way(name) {
            return Err(Errno::EINVAL);
        }
        let fd = create(dir.as_fd(), name)?;
        let name = Some(Name { dir, name: name.to_vec() });
        Ok(Filling { fd, root, name, unsynced: 0, waiting: 0..0, faults })
    }

    /// `fd`: of the file that is there, open for writing.
    pub(crate) fn in_place(root: Arc<Root>, fd: OwnedFd, faults: Faults) -> Filling {
        Filling { fd, root, name: None, unsynced: 0, waiting: 0..0, faults }
    }

    /// Has the device begin with what was written last, without waiting for it. Linux writes what it is told to drop; and it does drop what is
    /// written by then, which our tiers have anyway. What fails is said by the sync that follows.
    fn begin_writing(&mut self, written: Range<u64>) {
        if written.start != self.waiting.end {
            self.waiting.start = written.start;
        }
        self.waiting.end = written.end;
        if let Some(len) = NonZeroU64::new(self.waiting.end - self.waiting.start)
            && len.get() >= BEGUN_BYTES
        {
            let _ = fadvise(&self.fd, self.waiting.start, Some(len), Advice::DontNeed);
            self.waiting.start = self.waiting.end;
        }
    }

    fn filled(&mut self, to: &Attributes<'_>) -> Result<Found, Errno> {
        let fd = self.fd.as_fd();
        match self.name {
            Some(_) => attributes::set_all(&self.root, fd, to)?,
            None => attributes::set_again(&self.root, fd, to)?,
        }
        retry(|| fsync(fd))?;
        let clock = self.root.times.clock();
        self.root.found(fd, clock)?.ok_or(Errno::ESTALE)
    }
}

impl Version for Filling {
    fn write_at(&mut self, data: &[u8], offset: u64) -> Result<(), Errno> {
        self.faults.check(Call::Write)?;
        let mut done = 0;
        while done < data.len() {
            match retry(|| pwrite(&self.fd, &data[done..], offset + done as u64))? {
                0 => return Err(Errno::EIO),
                n => done += n,
            }
        }
        self.unsynced += data.len() as u64;
        self.begin_writing(offset..offset + data.len() as u64);
        if self.unsynced >= UNSYNCED_BYTES_MAX {
            retry(|| fdatasync(&self.fd))?;
            self.unsynced = 0;
        }
        Ok(())
    }

    fn set_len(&mut self, len: u64) -> Result<(), Errno> {
        self.faults.check(Call::SetLen)?;
        retry(|| ftruncate(&self.fd, len))
    }

    fn finish(mut self: Box<Self>, attributes: &Attributes<'_>) -> Result<Found, Errno> {
        self.faults.check(Call::Finish)?;
        let found = self.filled(attributes)?;
        self.name = None;
        Ok(found)
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        // Neither can fail in a way that anybody could be told: what is left is removed when it is begun again.
        let _ = self.faults.check(Call::Close);
        if let Some(Name { dir, name }) = &self.name
            && is_named(self.fd.as_fd(), dir.as_fd(), name)
        {
            let _ = retry(|| unlinkat(dir, name.as_slice(), AtFlags::empty()));
        }
    }
}

/// Has this very object the name still?
pub(crate) fn is_named(fd: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> bool {
    let number = |s: rustix::fs::Statx| (s.stx_dev_major, s.stx_dev_minor, s.stx_ino);
    let (own, named) = (stat::of(fd, Fresh::Any), stat::of_name(dir, name, Fresh::AsStat));
    matches!((own.map(number), named.map(number)), (Ok(own), Ok(named)) if own == named)
}

/// A new file, which nobody else can read yet.
fn create(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..TRIES {
        match retry(|| openat(dir, name, flags, Mode::RUSR | Mode::WUSR)) {
            Err(Errno::EEXIST) => {}
            other => return other,
        }
        match stat::of_name(dir, name, Fresh::AsStat) {
            Ok(there) if stat::kind(&there)? != FileKind::Regular => return Err(Errno::EEXIST),
            Ok(_) | Err(Errno::ENOENT) => {}
            Err(e) => return Err(e),
        }
        match retry(|| unlinkat(dir, name, AtFlags::empty())) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::EBUSY)
}
