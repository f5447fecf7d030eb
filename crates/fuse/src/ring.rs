//! FUSE over io_uring: one queue per possible CPU, each served by one thread pinned there.
//!
//! A queue has a fixed number of entries, each with a header block and a payload buffer that the kernel fills with
//! a request and takes the answer from. An entry is in one of two hands: the kernel's (a command is under way) or
//! ours (a [`RingSlot`] exists); a completion moves it to us, a commit back. So a `RingSlot` is the only one to
//! touch its entry's memory.
//!
//! Answers given on the queue's own thread wait in a list of that thread and go to the kernel with its next wait:
//! one system call per request. Answers from other threads come through a mailbox and an eventfd.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
};

use io_uring::{IoUring, cqueue, opcode, squeue, types as uring};
use parking_lot::Mutex;

use crate::{
    abi,
    buffer::{Mapping, PAGE},
    call::{Agreed, Call, Slot},
    core::Core,
    decode::Body,
    device::Device,
};

/// Room for one entry's header block; the kernel wants 288 bytes of it.
const HEADER_STRIDE: usize = 512;
const _: () = assert!(size_of::<abi::RingHeader>() <= HEADER_STRIDE);
/// Marks the completion of the eventfd's poll.
const WAKE: u64 = u64::MAX;
/// In an `io_uring_sqe`, where `len` is.
const SQE_LEN_OFFSET: usize = 24;

/// The part of a queue that calls on any thread share.
pub(crate) struct RingQueue {
    id: u16,
    depth: u16,
    payload_bytes: usize,
    headers: Mapping,
    payloads: Mapping,
    mailbox: Mutex<Vec<u16>>,
    wake: OwnedFd,
}

thread_local! {
    /// The queue that this thread serves.
    static SERVED: Cell<*const RingQueue> = const { Cell::new(std::ptr::null()) };
    /// Its entries that were answered on this thread and are yet to be committed.
    static ANSWERED: RefCell<Vec<u16>> = const { RefCell::new(Vec::new()) };
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

    fn header(&self, index: u16) -> *mut abi::RingHeader {
        self.headers.at(usize::from(index) * HEADER_STRIDE).cast()
    }

    fn payload(&self, index: u16) -> *mut u8 {
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
    queue: Arc<RingQueue>,
    index: u16,
    /// Bytes of the request in the payload buffer.
    request_bytes: usize,
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

/// What a queue's thread has for itself.
pub(crate) struct RingThread {
    queue: Arc<RingQueue>,
    ring: IoUring<squeue::Entry128>,
    /// Of the request in each entry.
    commit_ids: Vec<u64>,
    /// How many entries are in the kernel's hands.
    in_kernel: usize,
    commits: Vec<u16>,
    done: Vec<(u64, i32, u32)>,
}

impl RingThread {
    /// To be called on the thread that will serve the queue. The descriptors are registered with the ring, so that
    /// no submission has to look them up.
    pub(crate) fn new(queue: Arc<RingQueue>, device: &Device) -> io::Result<RingThread> {
        pin_to_cpu(queue.id);
        let entries = u32::from(queue.depth) + 2;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(entries.next_power_of_two() * 4)
            .build(entries)?;
        ring.submitter().register_files(&[device.raw(), queue.wake.as_raw_fd()])?;
        SERVED.set(Arc::as_ptr(&queue));
        let depth = usize::from(queue.depth);
        ANSWERED.with_borrow_mut(|list| list.reserve(depth));
        Ok(RingThread {
            queue,
            ring,
            commit_ids: vec![0; depth],
            in_kernel: 0,
            commits: Vec::with_capacity(depth),
            done: Vec::with_capacity(depth + 1),
        })
    }

    /// Gives all entries to the kernel. An error means that the kernel refused one.
    pub(crate) fn register(&mut self) -> io::Result<()> {
        let iovecs: Vec<[libc::iovec; 2]> = (0..self.queue.depth)
            .map(|index| {
                let header = self.queue.header(index).cast();
                let payload = self.queue.payload(index).cast();
                [
                    libc::iovec { iov_base: header, iov_len: size_of::<abi::RingHeader>() },
                    libc::iovec { iov_base: payload, iov_len: self.queue.payload_bytes },
                ]
            })
            .collect();
        self.watch_mailbox();
        for (index, iovec) in (0..).zip(&iovecs) {
            let entry = self.command(abi::RING_REGISTER, index, iovec.as_ptr() as u64);
            self.push(&set_len(entry, 2));
            self.in_kernel += 1;
        }
        // The kernel reads the iovecs during the submission, and posts a completion for what it refuses.
        self.ring.submit()?;
        self.collect();
        let refused = |&(user_data, result, _): &(u64, i32, u32)| user_data != WAKE && result < 0;
        match self.done.iter().find(|done| refused(done)) {
            Some((_, result, _))
                if self.done.iter().filter(|done| refused(done)).count() == self.in_kernel =>
            {
                Err(io::Error::from_raw_os_error(-result))
            }
            _ => Ok(()),
        }
    }

    /// Serves the queue until the file system is unmounted.
    pub(crate) fn run(&mut self, core: &Core) -> io::Result<()> {
        loop {
            self.reap(core);
            ANSWERED.with_borrow_mut(|list| self.commits.append(list));
            self.submit_commits();
            if core.stopping.load(Ordering::Acquire) && self.in_kernel == 0 {
                return Ok(());
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // The completion queue is full: take from it, then try again.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(error),
            }
            self.collect();
        }
    }

    fn collect(&mut self) {
        self.done.extend(self.ring.completion().map(|c| (c.user_data(), c.result(), c.flags())));
    }

    fn reap(&mut self, core: &Core) {
        let mut done = std::mem::take(&mut self.done);
        for (user_data, result, flags) in done.drain(..) {
            if user_data == WAKE {
                if !cqueue::more(flags) {
                    self.watch_mailbox();
                }
                self.commits.append(&mut self.queue.mailbox.lock());
            } else {
                self.completed(core, user_data, result);
            }
        }
        self.done = done;
    }

    fn submit_commits(&mut self) {
        let mut commits = std::mem::take(&mut self.commits);
        for index in commits.drain(..) {
            let entry = self.command(abi::RING_COMMIT_AND_FETCH, index, 0);
            self.push(&entry);
            self.in_kernel += 1;
        }
        self.commits = commits;
    }

    /// A command has ended: with a request in its entry, or because the connection has.
    fn completed(&mut self, core: &Core, user_data: u64, result: i32) {
        self.in_kernel -= 1;
        let Some(index) = u16::try_from(user_data).ok().filter(|index| *index < self.queue.depth) else {
            tracing::error!(user_data, "a completion of an unknown entry");
            return;
        };
        if result < 0 {
            let ending =
                matches!(-result, libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED);
            if !ending {
                tracing::error!(queue = self.queue.id, index, errno = -result, "a ring entry is lost");
            }
            return;
        }
        // SAFETY: the completion put the entry into our hands; header blocks are aligned to 512 bytes.
        let (wire, entry) = unsafe {
            let header = self.queue.header(index);
            ((&raw const (*header).in_out).cast::<abi::InHeader>().read(), (*header).entry)
        };
        self.commit_ids[usize::from(index)] = entry.commit_id;
        let request_bytes = (entry.payload_sz as usize).min(self.queue.payload_bytes);
        let slot = RingSlot { queue: Arc::clone(&self.queue), index, request_bytes };
        core.dispatch(Call::new(&wire, core.agreed, Slot::Ring(slot)));
    }

    fn watch_mailbox(&mut self) {
        let poll = opcode::PollAdd::new(uring::Fixed(1), libc::POLLIN as u32).multi(true).build();
        self.push(&squeue::Entry128::from(poll.user_data(WAKE)));
    }

    fn command(&self, command: u32, index: u16, address: u64) -> squeue::Entry128 {
        let request = abi::RingCommand {
            flags: 0,
            commit_id: self.commit_ids[usize::from(index)],
            qid: self.queue.id,
            padding: [0; 6],
        };
        let mut area = [0; 80];
        area[..size_of::<abi::RingCommand>()].copy_from_slice(abi::bytes_of(&request));
        opcode::UringCmd80::new(uring::Fixed(0), command)
            .cmd(area)
            .addr(Some(address))
            .build()
            .user_data(u64::from(index))
    }

    /// The queue has room for every entry and the poll at once, so that this cannot fail.
    fn push(&mut self, entry: &squeue::Entry128) {
        // SAFETY: what the entry points at (iovecs of a registration) outlives its submission; the registered memory
        // is the queue's, whose Arc this thread holds as long as the ring.
        if unsafe { self.ring.submission().push(entry) }.is_err() {
            tracing::error!(queue = self.queue.id, "the submission queue is full");
            debug_assert!(false, "submission queue full");
        }
    }
}

impl Drop for RingThread {
    fn drop(&mut self) {
        SERVED.set(std::ptr::null());
    }
}

/// Sets the `len` field, for which the builder of passthrough commands has no method.
fn set_len(mut entry: squeue::Entry128, len: u32) -> squeue::Entry128 {
    const _: () = assert!(size_of::<squeue::Entry128>() == 128);
    // SAFETY: an Entry128 is `repr(C)` around the kernel's 128-byte structure, in which `len` is a u32 at 24.
    unsafe { (&raw mut entry).cast::<u8>().add(SQE_LEN_OFFSET).cast::<u32>().write_unaligned(len) };
    entry
}

/// A CPU that is offline or forbidden to us still has a queue; it is then served from anywhere.
fn pin_to_cpu(cpu: u16) {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if usize::from(cpu) >= libc::CPU_SETSIZE as usize {
        return;
    }
    // SAFETY: the index was checked; the set outlives the call.
    let result = unsafe {
        libc::CPU_SET(usize::from(cpu), &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result < 0 {
        tracing::debug!(cpu, "a queue's thread cannot be pinned to its CPU");
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

/// Payload bytes that the kernel wants for an entry.
pub(crate) fn payload_bytes(agreed: &Agreed) -> usize {
    agreed.payload.max(abi::MIN_READ_BUFFER).next_multiple_of(PAGE)
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
