//! The queues of FUSE over io_uring: their memory, and which hand each entry is in.
//!
//! A queue has a fixed number of entries, each with a header block and a payload buffer that the kernel fills with
//! a request and takes the answer from. An entry is in one of two hands: the kernel's (a command is under way) or
//! ours (a [`RingSlot`] exists); a completion moves it to us, a commit back. So a `RingSlot` is the only one to
//! touch its entry's memory.
//!
//! It does not know how commands reach the kernel: an entry that is answered waits in a list for the queue's thread.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{abi, buffer::Mapping, decode::Body};

/// Room for one entry's header block; the kernel wants 288 bytes of it.
const HEADER_STRIDE: usize = 512;
const _: () = assert!(size_of::<abi::RingHeader>() <= HEADER_STRIDE);
/// The part of a queue that calls on any thread share.
pub(crate) struct RingQueue {
    pub(crate) id: u16,
    pub(crate) depth: u16,
    pub(crate) payload_bytes: usize,
    headers: Mapping,
    payloads: Mapping,
    pub(crate) mailbox: Mutex<Vec<u16>>,
    pub(crate) wake: OwnedFd,
}

thread_local! {
    /// The queue that this thread serves.
    pub(crate) static SERVED: Cell<*const RingQueue> = const { Cell::new(std::ptr::null()) };
    /// Its entries that were answered on this thread and are yet to be committed.
    pub(crate) static ANSWERED: RefCell<Vec<u16>> = const { RefCell::new(Vec::new()) };
}

impl RingQueue {
    pub(crate) fn new(id: u16, depth: u16, payload_bytes: usize) -> io::Result<Arc<RingQueue>> {
        // SAFETY: no pointers involved.
        let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if wake < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Arc::new(RingQueue {
            id,
            depth,
            payload_bytes,
            headers: Mapping::new(usize::from(depth) * HEADER_STRIDE)?,
            payloads: Mapping::new(usize::from(depth) * payload_bytes)?,
            mailbox: Mutex::new(Vec::with_capacity(usize::from(depth))),
            // SAFETY: just made, owned by nobody else.
            wake: unsafe { OwnedFd::from_raw_fd(wake) },
        }))
    }

    /// Bytes of all buffers.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        (self.headers.len() + self.payloads.len()) as u64
    }

    pub(crate) fn wake(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes that outlive the call.
        let n = unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
        // The only refusal is a full counter, which wakes just as well.
        debug_assert!(n == 8 || io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN));
    }

    pub(crate) fn header(&self, index: u16) -> *mut abi::RingHeader {
        self.headers.at(usize::from(index) * HEADER_STRIDE).cast()
    }

    pub(crate) fn payload(&self, index: u16) -> *mut u8 {
        self.payloads.at(usize::from(index) * self.payload_bytes)
    }

    fn commit(&self, index: u16) {
        let here = SERVED.try_with(|served| std::ptr::eq(served.get(), self)).unwrap_or(false);
        if here && ANSWERED.try_with(|list| list.borrow_mut().push(index)).is_ok() {
            return;
        }
        let first = {
            let mut mailbox = self.mailbox.lock();
            mailbox.push(index);
            mailbox.len() == 1
        };
        if first {
            self.wake();
        }
    }
}

/// The exclusive hold of one entry with a request in it.
pub(crate) struct RingSlot {
    pub(crate) queue: Arc<RingQueue>,
    pub(crate) index: u16,
    /// Bytes of the request in the payload buffer.
    pub(crate) request_bytes: usize,
}

impl RingSlot {
    pub(crate) fn body(&self) -> Body<'_> {
        // SAFETY: the entry is in our hands, so that nobody writes while the borrow lasts; both runs of bytes lie in
        // the queue's mappings, which the Arc keeps.
        unsafe {
            let op_in = (&raw const (*self.queue.header(self.index)).op_in).cast::<u8>();
            Body::Split {
                fixed: std::slice::from_raw_parts(op_in, abi::OP_IN_BYTES),
                rest: std::slice::from_raw_parts(self.queue.payload(self.index), self.request_bytes),
            }
        }
    }

    pub(crate) fn payload(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.queue.payload(self.index), self.queue.payload_bytes) }
    }

    /// Hands the entry back with an answer of `len` payload bytes.
    pub(crate) fn finish(self, unique: u64, error: i32, len: usize) {
        let out = abi::OutHeader { len: (size_of::<abi::OutHeader>() + len) as u32, error, unique };
        let header = self.queue.header(self.index);
        // SAFETY: the entry is in our hands; header blocks are aligned to 512 bytes.
        unsafe {
            (&raw mut (*header).in_out).cast::<abi::OutHeader>().write(out);
            (&raw mut (*header).entry.payload_sz).write(len as u32);
        }
        self.queue.commit(self.index);
    }
}

/// How many queues the kernel wants: one per possible CPU.
pub(crate) fn possible_cpus() -> u16 {
    let listed =
        std::fs::read_to_string("/sys/devices/system/cpu/possible").ok().and_then(|text| count_cpus(&text));
    let online = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    listed.unwrap_or_else(|| u16::try_from(online()).unwrap_or(u16::MAX))
}

/// The number of CPUs in a list such as `0-3,8-11`.
fn count_cpus(list: &str) -> Option<u16> {
    list.trim().split(',').try_fold(0_u16, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the kernel's CPU lists are counted. Method: lists as the kernel writes them, and nonsense.
    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(count_cpus("0-1\n"), Some(2));
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-3,8-11"), Some(8));
        assert_eq!(count_cpus("3-1"), None);
        assert_eq!(count_cpus(""), None);
    }
}
