//! Memory for requests and answers: anonymous mappings, so that a large buffer costs only the pages it used,
//! and a pool of them for the /dev/fuse transport.

use std::{io, ptr::NonNull, sync::Arc};

use parking_lot::Mutex;

use crate::abi;

pub(crate) const PAGE: usize = 4096;
/// Where a request from /dev/fuse begins in its buffer: so that the data of a WRITE begin at a page, as they mostly do where they come from, and
/// each of the kernel's copies is of a whole page.
pub(crate) const REQUEST_AT: usize = PAGE - size_of::<abi::InHeader>() - size_of::<abi::WriteIn>();
pub(crate) const BODY_AT: usize = REQUEST_AT + size_of::<abi::InHeader>();

/// Zeroed, page-aligned memory. Who may touch which part is up to the owner.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory without any tie to a thread; access goes through raw pointers or an exclusive borrow.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared access gives out pointers only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` is rounded up to whole pages.
    pub(crate) fn new(len: usize) -> io::Result<Mapping> {
        Mapping::with(len, 0)
    }

    /// All of its pages are there from the beginning.
    pub(crate) fn populated(len: usize) -> io::Result<Mapping> {
        Mapping::with(len, libc::MAP_POPULATE)
    }

    fn with(len: usize, also: i32) -> io::Result<Mapping> {
        let len = len.max(1).next_multiple_of(PAGE);
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | also);
        // SAFETY: a new anonymous mapping touches no memory that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// A pointer to `offset`, which must lie inside.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len, "offset {offset} outside of a mapping of {} bytes", self.len);
        // SAFETY: inside of the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped, initialised (zeroed) and exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        // SAFETY: mapped and initialised; only called where no ring has this memory, so nobody writes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing borrows from it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Buffers of one size. At most `keep` idle ones are kept; how many are out at once is bounded by the number of
/// requests that the kernel has under way.
pub(crate) struct Pool {
    buffer_bytes: usize,
    keep: usize,
    /// Buffers whose pages are there: the kernel does not give a page to a process that is being killed, and would end the request
    /// that it copies there with an error.
    populated: bool,
    idle: Mutex<Vec<Mapping>>,
}

impl Pool {
    pub(crate) fn new(buffer_bytes: usize, keep: usize, populated: bool) -> Arc<Pool> {
        Arc::new(Pool { buffer_bytes, keep, populated, idle: Mutex::new(Vec::with_capacity(keep)) })
    }

    pub(crate) fn take(self: &Arc<Pool>) -> io::Result<Pooled> {
        let idle = self.idle.lock().pop();
        let mapping = match idle {
            Some(mapping) => mapping,
            None if self.populated => Mapping::populated(self.buffer_bytes)?,
            None => Mapping::new(self.buffer_bytes)?,
        };
        Ok(Pooled { mapping: Some(mapping), pool: Arc::clone(self) })
    }
}

/// A buffer that goes back to its pool.
pub(crate) struct Pooled {
    mapping: Option<Mapping>,
    pool: Arc<Pool>,
}

impl Pooled {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.mapping.as_ref().map_or(&[], Mapping::as_bytes)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.mapping.as_mut().map_or(&mut [], Mapping::bytes)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(mapping) = self.mapping.take() {
            let mut idle = self.pool.idle.lock();
            if idle.len() < self.pool.keep {
                idle.push(mapping);
            }
        }
    }
}
