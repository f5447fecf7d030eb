//! What the threads of one session share: the file system, what INIT agreed on, and how they end.

use std::{
    io,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    Filesystem,
    abi::{self, op},
    buffer::{Pool, REQUEST_AT},
    call::{Agreed, Call, DeviceSlot, Slot},
    device::Device,
    queue::RingQueue,
    under_way::UnderWay,
};

pub(crate) struct Core {
    pub(crate) filesystem: Arc<dyn Filesystem>,
    pub(crate) agreed: Agreed,
    /// Set when the kernel has ended the connection.
    pub(crate) stopping: AtomicBool,
    /// See [`Core::abandon`].
    abandoned: AtomicBool,
    /// See [`Core::leave`].
    leaving: AtomicBool,
    /// Requests of /dev/fuse that are not answered yet, but for parked ones.
    under_way: Arc<AtomicUsize>,
    pub(crate) queues: Vec<Arc<RingQueue>>,
    life: Mutex<Life>,
    ended: Condvar,
}

#[derive(Default)]
struct Life {
    threads: usize,
    /// INIT was answered, so that `destroy` is owed.
    started: bool,
    ended: bool,
}

impl Core {
    pub(crate) fn new(
        filesystem: Arc<dyn Filesystem>,
        agreed: Agreed,
        queues: Vec<Arc<RingQueue>>,
    ) -> Arc<Core> {
        Arc::new(Core {
            filesystem,
            agreed,
            stopping: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            under_way: Arc::default(),
            queues,
            life: Mutex::new(Life::default()),
            ended: Condvar::new(),
        })
    }

    pub(crate) fn started(&self) {
        self.life.lock().started = true;
    }

    /// Counts the holder as a thread of the session until it is dropped.
    pub(crate) fn enter(self: &Arc<Core>) -> Presence {
        self.life.lock().threads += 1;
        Presence { core: Arc::clone(self) }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.life.lock().ended
    }

    /// Waits until all threads have ended and `destroy` was called; for ever when `patience` is `None`.
    pub(crate) fn wait_ended(&self, patience: Option<Duration>) -> bool {
        let deadline = patience.map(|patience| Instant::now() + patience);
        let mut life = self.life.lock();
        while !life.ended {
            match deadline {
                Some(deadline) if self.ended.wait_until(&mut life, deadline).timed_out() => {
                    return life.ended;
                }
                Some(_) => {}
                None => self.ended.wait(&mut life),
            }
        }
        true
    }

    /// The connection has ended: nothing comes any more.
    pub(crate) fn stop(&self) {
        if !self.stopping.swap(true, Ordering::AcqRel) {
            self.queues.iter().for_each(|queue| queue.wake());
        }
    }

    /// For a connection that the kernel does not let us end: what comes from now on is `ENODEV`, and the session counts as
    /// ended, although its threads go on until the process ends. `destroy` is not called.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        let mut life = self.life.lock();
        life.started = false;
        life.ended = true;
        self.ended.notify_all();
    }

    /// From now on no request is begun: threads that read one leave it. Waits until what was begun is answered; whether it is.
    pub(crate) fn leave(&self, patience: Duration) -> bool {
        self.leaving.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + patience;
        while self.under_way.load(Ordering::SeqCst) > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// Gives a call to the file system. One that panics has its call dropped, which answers EIO.
    pub(crate) fn dispatch(&self, call: Call) {
        if call.header().opcode == op::DESTROY {
            return call.reply_ok();
        }
        if self.abandoned.load(Ordering::Acquire) {
            return call.turn_away();
        }
        if std::panic::catch_unwind(AssertUnwindSafe(|| self.filesystem.dispatch(call))).is_err() {
            tracing::error!("the file system panicked in a request");
        }
    }

    /// Reads requests from /dev/fuse until the connection ends. With io_uring only FORGET and INTERRUPT come here.
    pub(crate) fn serve_device(&self, device: &Arc<Device>, pool: &Arc<Pool>) -> io::Result<()> {
        const TOLERATED: u32 = 1000;
        let mut failures = 0;
        loop {
            let error = match self.read_one(device, pool) {
                Ok(()) => {
                    failures = 0;
                    continue;
                }
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::ENODEV | libc::ECONNABORTED | libc::ENOTCONN) => {
                    self.stop();
                    return Ok(());
                }
                // ENOENT: the caller gave up before we read it.
                Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => {}
                _ if failures < TOLERATED => failures += 1,
                _ => return Err(error),
            }
        }
    }

    fn read_one(&self, device: &Arc<Device>, pool: &Arc<Pool>) -> io::Result<()> {
        let mut buffer = pool.take()?;
        let len = device.read(&mut buffer.bytes_mut()[REQUEST_AT..])?;
        let end = REQUEST_AT + len;
        let wire: Option<abi::InHeader> = abi::read(&buffer.bytes()[REQUEST_AT..end]);
        let counted = UnderWay::new(&self.under_way);
        if self.leaving.load(Ordering::SeqCst) && wire.is_some_and(|wire| op::is_answered(wire.opcode)) {
            drop((counted, buffer));
            // The kernel has it, and gives it to the next process. There is nothing more to do for this thread.
            loop {
                std::thread::park();
            }
        }
        match wire {
            Some(wire) if wire.len as usize == len => {
                let slot = DeviceSlot { device: Arc::clone(device), buffer, end, _counted: counted };
                self.dispatch(Call::new(&wire, self.agreed, Slot::Device(slot)));
            }
            _ => tracing::error!(len, "a request with a damaged header"),
        }
        Ok(())
    }
}

/// See [`Core::enter`]. The last one out calls `destroy`.
pub(crate) struct Presence {
    core: Arc<Core>,
}

impl Drop for Presence {
    fn drop(&mut self) {
        let destroy = {
            let mut life = self.core.life.lock();
            life.threads -= 1;
            life.threads == 0 && std::mem::take(&mut life.started)
        };
        if destroy {
            self.core.filesystem.destroy();
        }
        let mut life = self.core.life.lock();
        if life.threads == 0 {
            life.ended = true;
            self.core.ended.notify_all();
        }
    }
}
