//! Reading what the device has, and not what the page cache keeps of it.

use crate::{copy::append_zeros, error::errno, faults::IoKind, object::ObjectFd};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno as Sys,
};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use types::Errno;

/// Of addresses, offsets and lengths: no device in use has larger blocks.
const ALIGN: usize = 4096;
/// One read.
const BUFFER: usize = 1 << 20;

impl ObjectFd {
    /// As [`ObjectFd::checksum`], past the page cache; of a file system that cannot read so, from the cache. `offset` is a multiple of 4096.
    pub fn checksum_on_device(&self, offset: u64, len: u64) -> Result<u32, Errno> {
        let Some(past_cache) = self.past_cache() else { return self.checksum(offset, len) };
        self.check_fault(IoKind::Read)?;
        let mut memory = vec![0; BUFFER + ALIGN];
        let first = memory.as_ptr().align_offset(ALIGN);
        let buffer = memory.get_mut(first..first + BUFFER).ok_or(Errno::EIO)?;
        let (mut crc, mut done) = (0, 0);
        while done < len {
            let left = usize::try_from(len - done).unwrap_or(BUFFER).min(BUFFER);
            let part = &mut buffer[..left.next_multiple_of(ALIGN)];
            let n = match rustix::io::pread(&past_cache, part, offset + done) {
                Ok(n) => n.min(left),
                Err(Sys::INTR) => continue,
                Err(Sys::INVAL) => return self.checksum(offset, len),
                Err(e) => return Err(errno(e)),
            };
            if n == 0 {
                return Ok(append_zeros(crc, len - done));
            }
            crc = crc32c::crc32c_append(crc, &buffer[..n]);
            done += n as u64;
            if done < len && n % ALIGN != 0 {
                // The end of the file, or the next offset would be none.
                let end = self.stat()?.size;
                return if end <= offset + done {
                    Ok(append_zeros(crc, len - done))
                } else {
                    self.checksum(offset, len)
                };
            }
        }
        Ok(crc)
    }

    /// Another descriptor of the file; `None`: the file system has no such reads.
    fn past_cache(&self) -> Option<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.as_fd().as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT, Mode::empty()).ok()
    }
}
