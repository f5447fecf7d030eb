//! The threads of one back end, apart by what they do, and what its calls have in common.

use std::{sync::Arc, time::Duration};

use link::Way;
use parking_lot::Mutex;
use types::Errno;

use crate::{
    call::Call,
    marks::{Mark, Marks},
    pool::Pool,
    tally::Tally,
    ticket::Late,
};

/// How long, and how many at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Of each call, from when it is asked for. Of a listing: from one batch to the next.
    pub deadline: Duration,
    /// Threads for looks, listings and what else asks for names and attributes.
    pub looks: usize,
    /// Threads for what changes something, the writing of versions with it.
    pub changes: usize,
    /// Threads that read files.
    pub reads: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { deadline: Duration::from_secs(30), looks: 16, changes: 16, reads: 16 }
    }
}

/// A buffer that is longer is not kept.
const BUFFER_BYTES_MAX: usize = 8 << 20;

/// Threads that hang with reads do not keep looks waiting, and so on.
pub(crate) struct Lanes {
    pub looks: Pool,
    pub changes: Pool,
    pub reads: Pool,
    pub tally: Arc<Tally>,
    pub limits: Limits,
    marks: Marks,
    /// For bytes on their way to or from a thread, one for each reading thread at the most: new memory costs more than the copy.
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl Lanes {
    pub(crate) fn new(limits: Limits) -> Lanes {
        let tally = Arc::new(Tally::default());
        let pool = |name, threads| Pool::new(name, threads, limits.deadline, tally.clone());
        Lanes {
            looks: pool("backend-look", limits.looks),
            changes: pool("backend-change", limits.changes),
            reads: pool("backend-read", limits.reads),
            limits,
            marks: Marks::default(),
            buffers: Mutex::new(Vec::new()),
            tally,
        }
    }

    /// `EBUSY` while a change of one of these names is out that nobody waits for.
    pub(crate) fn mark(&self, ways: &[&Way]) -> Result<Mark, Errno> {
        self.marks.of(ways).ok_or(Errno::EBUSY)
    }

    pub(crate) fn look<T: Send + 'static>(
        &self,
        call: Call,
        work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        self.told(call, self.looks.call((), None, move |()| work()))
    }

    pub(crate) fn read<T: Send + 'static>(
        &self,
        call: Call,
        work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        self.told(call, self.reads.call((), None, move |()| work()))
    }

    /// `ways`: the names that it is about.
    pub(crate) fn change<T: Send + 'static>(
        &self,
        call: Call,
        ways: &[&Way],
        work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let mark = self.mark(ways)?;
        self.told(call, self.changes.call((), Some(mark), move |()| work()))
    }

    /// Counts how a call ended.
    pub(crate) fn told<T, I>(
        &self,
        call: Call,
        answer: Result<Result<T, Errno>, Late<I>>,
    ) -> Result<T, Errno> {
        match answer {
            Ok(answer) => answer.inspect_err(|errno| self.tally.failed(call, *errno)),
            Err(Late::InLine(_) | Late::Hangs) => {
                self.tally.given_up(call);
                Err(Errno::ETIMEDOUT)
            }
        }
    }

    pub(crate) fn take_buffer(&self) -> Vec<u8> {
        self.buffers.lock().pop().unwrap_or_default()
    }

    pub(crate) fn give_buffer(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.lock();
        if buffer.capacity() <= BUFFER_BYTES_MAX && buffers.len() < self.limits.reads {
            buffers.push(buffer);
        }
    }
}
