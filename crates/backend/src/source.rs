//! A file of theirs that is open for reading.

use std::{
    io::IoSliceMut,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use link::{Found, Source};
use rustix::io::{Errno as Sys, ReadWriteFlags, pread, preadv2};
use types::Errno;

use crate::{
    call::Call,
    error::{errno, retry},
    faults::Faults,
    root::Root,
};

pub(crate) struct OpenFile {
    fd: OwnedFd,
    root: Arc<Root>,
    /// The file system can say that it would have to wait.
    nowait: AtomicBool,
    faults: Faults,
}

impl OpenFile {
    pub(crate) fn new(fd: OwnedFd, root: Arc<Root>, faults: Faults) -> OpenFile {
        OpenFile { fd, root, nowait: AtomicBool::new(true), faults }
    }
}

impl Source for OpenFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.faults.check(Call::Read)?;
        let mut done = 0;
        while done < buf.len() {
            match retry(|| pread(&self.fd, &mut buf[done..], offset + done as u64))? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    fn read_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>, Errno> {
        if !self.nowait.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut done = 0;
        while done < buf.len() {
            let mut slices = [IoSliceMut::new(&mut buf[done..])];
            let at = offset + done as u64;
            match preadv2(&self.fd, &mut slices, at, ReadWriteFlags::NOWAIT) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Sys::INTR) => {}
                Err(Sys::AGAIN) => return Ok(None),
                Err(Sys::OPNOTSUPP | Sys::NOSYS) => {
                    self.nowait.store(false, Ordering::Relaxed);
                    return Ok(None);
                }
                Err(e) => return Err(errno(e)),
            }
        }
        Ok(Some(done))
    }

    fn look(&self) -> Result<Found, Errno> {
        self.faults.check(Call::Look)?;
        let clock = self.root.times.clock();
        self.root.found(self.fd.as_fd(), clock)?.ok_or(Errno::ESTALE)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // What closing meets, nobody can be told; it may hang all the same.
        let _ = self.faults.check(Call::Close);
    }
}
