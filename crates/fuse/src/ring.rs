//! FUSE over io_uring: one queue per possible CPU, each served by one thread pinned there.
//!
//! Answers given on the queue's own thread wait in a list of that thread and go to the kernel with its next wait:
//! one system call per request. Answers from other threads come through a mailbox and an eventfd.

use std::{
    io,
    os::fd::AsRawFd,
    sync::{Arc, atomic::Ordering},
};

use io_uring::{IoUring, cqueue, opcode, squeue, types as uring};

use crate::{
    abi,
    buffer::PAGE,
    call::{Agreed, Call, Slot},
    core::Core,
    device::Device,
    queue::{ANSWERED, RingQueue, RingSlot, SERVED},
};

/// Marks the completion of the eventfd's poll.
const WAKE: u64 = u64::MAX;
/// In an `io_uring_sqe`, where `len` is.
const SQE_LEN_OFFSET: usize = 24;

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

/// Payload bytes that the kernel wants for an entry.
pub(crate) fn payload_bytes(agreed: &Agreed) -> usize {
    agreed.payload.max(abi::MIN_READ_BUFFER).next_multiple_of(PAGE)
}
