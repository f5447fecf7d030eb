//! Copying a range of an object to the same offsets of its file in another tier.

use crate::{
    error::errno,
    faults::IoKind,
    object::{ObjectFd, ZEROS},
};
use rustix::io::Errno as Sys;
use std::ops::ControlFlow;
use types::Errno;

/// Bytes in flight per copy: small enough to stay in the processor's cache between read, checksum and write.
const BUFFER: usize = 256 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyRange {
    pub offset: u64,
    /// Bytes. What the source does not have of them (holes, past its end) are zeros.
    pub len: u64,
    /// Compute the CRC-32C of the `len` bytes; the copy then goes through a buffer.
    pub checksum: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    /// Bytes of data written; holes are not counted.
    pub data: u64,
    /// CRC-32C of the whole range, if asked for and if the copy was not stopped.
    pub crc: Option<u32>,
    /// The caller's word ended the copy early.
    pub stopped: bool,
}

impl ObjectFd {
    /// Copies a range to the same offsets of `to`, where it then reads as it does here, holes included
    /// (I-STORE-5). Nothing is synced. `progress` hears the bytes done since the last call (holes too), at least
    /// every 256 KiB of data, and may stop the copy.
    pub fn copy_to(
        &self,
        to: &ObjectFd,
        range: CopyRange,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Copied, Errno> {
        let mut run = Run {
            from: self,
            to,
            checksum: range.checksum,
            crc: 0,
            data: 0,
            buffer: Vec::new(),
            direct: true,
        };
        let end = range.offset.checked_add(range.len).ok_or(Errno::EFBIG)?;
        let mut at = range.offset;
        let mut stopped = false;
        while at < end && !stopped {
            let data = self.seek_data(at)?.map_or(end, |d| d.min(end));
            if data > at {
                run.hole(at, data - at)?;
                stopped = progress(data - at).is_break();
                at = data;
                continue;
            }
            let hole = self.seek_hole(at)?.map_or(end, |h| h.min(end));
            if hole <= at {
                // The object shrank under us: what is left is past its end.
                run.hole(at, end - at)?;
                break;
            }
            while at < hole && !stopped {
                let n = run.some(at, hole - at)?;
                at += n;
                stopped = progress(n).is_break();
            }
        }
        let stopped = stopped && at < end;
        Ok(Copied { data: run.data, crc: (range.checksum && !stopped).then_some(run.crc), stopped })
    }

    /// CRC-32C of a range, holes and what lies past the end being zeros.
    pub fn checksum(&self, offset: u64, len: u64) -> Result<u32, Errno> {
        let mut crc = 0;
        let mut buffer = vec![0; BUFFER.min(usize::try_from(len).unwrap_or(BUFFER))];
        let mut done = 0;
        while done < len {
            let want = buffer.len().min(usize::try_from(len - done).unwrap_or(BUFFER));
            let n = self.read_at(&mut buffer[..want], offset + done)?;
            if n == 0 {
                crc = append_zeros(crc, len - done);
                break;
            }
            crc = crc32c::crc32c_append(crc, &buffer[..n]);
            done += n as u64;
        }
        Ok(crc)
    }
}

struct Run<'a> {
    from: &'a ObjectFd,
    to: &'a ObjectFd,
    checksum: bool,
    crc: u32,
    data: u64,
    buffer: Vec<u8>,
    /// copy_file_range was not refused yet.
    direct: bool,
}

impl Run<'_> {
    fn hole(&mut self, offset: u64, len: u64) -> Result<(), Errno> {
        self.to.clear(offset, len)?;
        if self.checksum {
            self.crc = append_zeros(self.crc, len);
        }
        Ok(())
    }

    /// Copies the first part of what is data at `offset`; returns its length, at least 1.
    fn some(&mut self, offset: u64, len: u64) -> Result<u64, Errno> {
        if self.direct && !self.checksum {
            match self.in_kernel(offset, len.min(4 * BUFFER as u64))? {
                Some(n) if n > 0 => {
                    self.data += n;
                    return Ok(n);
                }
                Some(_) | None => self.direct = false,
            }
        }
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER];
        }
        let want = usize::try_from(len).unwrap_or(BUFFER).min(BUFFER);
        let n = self.from.read_at(&mut self.buffer[..want], offset)?;
        if n == 0 {
            self.hole(offset, len)?;
            return Ok(len);
        }
        self.to.write_at(&self.buffer[..n], offset)?;
        if self.checksum {
            self.crc = crc32c::crc32c_append(self.crc, &self.buffer[..n]);
        }
        self.data += n as u64;
        Ok(n as u64)
    }

    /// `None` where the kernel cannot copy between these two files.
    fn in_kernel(&self, offset: u64, len: u64) -> Result<Option<u64>, Errno> {
        self.from.check_fault(IoKind::Read)?;
        self.to.check_fault(IoKind::Write)?;
        let (mut from, mut to) = (offset, offset);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(self.from, Some(&mut from), self.to, Some(&mut to), len) {
            Ok(n) => Ok(Some(n as u64)),
            Err(Sys::XDEV | Sys::INVAL | Sys::OPNOTSUPP | Sys::NOSYS | Sys::PERM | Sys::INTR) => Ok(None),
            Err(e) => Err(errno(e)),
        }
    }
}

pub(crate) fn append_zeros(mut crc: u32, mut len: u64) -> u32 {
    while len > 0 {
        let n = len.min(ZEROS.len() as u64);
        crc = crc32c::crc32c_append(crc, &ZEROS[..n as usize]);
        len -= n;
    }
    crc
}
