//! Who an answer is for: a thread that waits for it, or something to be done with it.

use std::{sync::Arc, time::Instant};

use parking_lot::{Condvar, Mutex};
use wire::{PageBuffer, connection::Failure, frame::Header};

/// What came back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered {
    pub header: Header,
    pub meta: Vec<u8>,
    /// The caller's buffer, as long as the answer's body.
    pub body: PageBuffer,
}

/// Done with what came back, on the connection's reader thread: it must not wait for anything.
pub(crate) type Then = Box<dyn FnOnce(Result<Answered, Failure>) + Send>;

/// Where a caller waits.
#[derive(Default)]
pub(crate) struct Slot {
    result: Mutex<Option<Result<Answered, Failure>>>,
    filled: Condvar,
}

impl Slot {
    fn fill(&self, result: Result<Answered, Failure>) {
        *self.result.lock() = Some(result);
        self.filled.notify_one();
    }

    pub(crate) fn wait(&self, until: Instant) -> Option<Result<Answered, Failure>> {
        let mut result = self.result.lock();
        while result.is_none() {
            if self.filled.wait_until(&mut result, until).timed_out() {
                break;
            }
        }
        result.take()
    }
}

pub(crate) enum Waiter {
    Thread(Arc<Slot>),
    Then(Then),
}

impl Waiter {
    /// Wakes a thread that waits. What is to be done otherwise is given back, for who holds no lock.
    pub(crate) fn failed(self, failure: Failure) -> Option<Woken> {
        match self {
            Waiter::Thread(slot) => {
                slot.fill(Err(failure));
                None
            }
            Waiter::Then(_) => Some(Woken { waiter: self, result: Err(failure) }),
        }
    }
}

/// Somebody whose answer is there.
pub(crate) struct Woken {
    pub(crate) waiter: Waiter,
    pub(crate) result: Result<Answered, Failure>,
}

impl Woken {
    pub(crate) fn wake(self) {
        match self.waiter {
            Waiter::Thread(slot) => slot.fill(self.result),
            Waiter::Then(then) => then(self.result),
        }
    }
}
