//! One session, and the numbers of its operations.
//!
//! A number is open from when it is given out until its operation has ended, however it ended. All below the lowest open one are
//! acknowledged. On a guarded mount the number of a request of the kernel's is open until the kernel has its answer, and is written down before
//! it is used: who goes on in the next process asks again under the same number, and is told what came of it.

use std::{cell::RefCell, collections::BTreeSet, sync::Arc, time::Instant};

use handover::{Estate, Scope};
use parking_lot::{Condvar, Mutex};
use proto::{Head, Method, SessionId};
use types::Errno;

use crate::written::{self, Note};

thread_local! {
    /// Numbers that are open until the request of this thread is answered.
    static OPEN: RefCell<Vec<Operation>> = const { RefCell::new(Vec::new()) };
}

/// The request of this thread is answered.
pub(crate) fn answered() {
    let open = OPEN.take();
    open.into_iter().for_each(|mut operation| operation.kept = false);
}

pub(crate) struct Session {
    pub id: SessionId,
    /// Among those of this mount.
    pub serial: u64,
    /// As which it came, for the heads of its requests.
    pub joined: u64,
    /// Of the server that made it.
    pub incarnation: u64,
    /// Operations whose answers the server keeps.
    operations_max: u64,
    /// One for all servers, and for all times that it came back to one.
    numbers: Arc<(Mutex<Numbers>, Condvar)>,
    /// Of a guarded mount.
    estate: Option<Arc<Estate>>,
}

#[derive(Default)]
struct Numbers {
    last: u64,
    open: BTreeSet<u64>,
}

/// A number that is open.
pub(crate) struct Operation {
    session: Arc<Session>,
    number: u64,
    /// It stays open when this is dropped, until the request of this thread is answered.
    kept: bool,
}

impl Session {
    pub(crate) fn new(
        (id, serial): (SessionId, u64),
        joined: u64,
        incarnation: u64,
        operations_max: u64,
    ) -> Session {
        let operations_max = operations_max.max(1);
        Session { id, serial, joined, incarnation, operations_max, numbers: Arc::default(), estate: None }
    }

    /// Numbers are written down, and go on behind those that are and those of the session before, so that one says which operation it is whatever the
    /// session.
    pub(crate) fn guarded(self, estate: Option<&Arc<Estate>>, before: &Session) -> Session {
        let Some(estate) = estate else { return self };
        let numbers = before.numbers.clone();
        {
            let mut numbers = numbers.0.lock();
            numbers.last = numbers.last.max(written::last_number(estate));
        }
        Session { estate: Some(estate.clone()), numbers, ..self }
    }

    /// Another process was given this number, and may not know what came of it.
    pub(crate) fn left_open(&self, number: u64) {
        self.numbers.0.lock().open.insert(number);
    }

    pub(crate) fn close(&self, number: u64) {
        self.numbers.0.lock().open.remove(&number);
        self.numbers.1.notify_all();
    }

    /// The same, at a server that was started again.
    pub(crate) fn again(&self, joined: u64, incarnation: u64) -> Session {
        let Session { id, serial, operations_max, .. } = *self;
        let (numbers, estate) = (self.numbers.clone(), self.estate.clone());
        Session { id, serial, joined, incarnation, operations_max, numbers, estate }
    }

    /// Of a request that may be carried out twice.
    pub(crate) fn head(&self) -> Head {
        Head { joined: self.joined, ..Head::of(self.id) }
    }

    /// The next number, or the one under which the request of this thread was asked before. Waits while the oldest open one is so old that the
    /// server would keep no answer for this. `EIO`: it was asked in a session that is lost, and may not be asked `anew`.
    pub(crate) fn begin(
        self: &Arc<Session>,
        (method, anew): (Method, bool),
        end: Instant,
    ) -> Result<Operation, Errno> {
        let kept = self.estate.is_some() && Scope::unique_now() != 0;
        let before = if kept { Note::take(method) } else { None };
        let mut numbers = self.numbers.0.lock();
        match before {
            Some(Note { number, serial, .. }) if serial == self.serial as u8 => {
                numbers.open.insert(number);
                return Ok(Operation { session: self.clone(), number, kept });
            }
            Some(Note { number, .. }) if !anew => {
                tracing::warn!(
                    number,
                    method = method.name(),
                    "not known whether it was carried out in the session before"
                );
                return Err(Errno::EIO);
            }
            Some(_) | None => {}
        }
        loop {
            let oldest = numbers.open.first().copied().unwrap_or(numbers.last + 1);
            if numbers.last + 1 - oldest < self.operations_max {
                numbers.last += 1;
                let number = numbers.last;
                numbers.open.insert(number);
                if let Some(estate) = &self.estate {
                    written::set_last_number(estate, number);
                    Note { number, serial: self.serial as u8, method }.leave();
                }
                return Ok(Operation { session: self.clone(), number, kept });
            }
            if self.numbers.1.wait_until(&mut numbers, end).timed_out() {
                return Err(Errno::ETIMEDOUT);
            }
        }
    }
}

impl Operation {
    pub(crate) fn head(&self) -> Head {
        let numbers = self.session.numbers.0.lock();
        let acknowledged = numbers.open.first().copied().unwrap_or(self.number);
        Head { number: self.number, acknowledged, ..self.session.head() }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.kept {
            let (session, number) = (self.session.clone(), self.number);
            return OPEN.with_borrow_mut(|open| open.push(Operation { session, number, kept: true }));
        }
        self.session.close(self.number);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: numbers rise, and what is acknowledged is what has ended. Method: operations that end in another order.
    use std::time::Duration;

    use super::*;

    const METHOD: (Method, bool) = (Method::Unlink, false);

    #[test]
    fn only_what_has_ended_is_acknowledged() {
        let session = Arc::new(Session::new((SessionId(7), 1), 9, 1, 3));
        let now = Instant::now();
        let (one, two) = (session.begin(METHOD, now).unwrap(), session.begin(METHOD, now).unwrap());
        assert_eq!((one.head().number, one.head().acknowledged), (1, 1));
        let three = session.begin(METHOD, now).unwrap();
        drop(two);
        assert_eq!((three.head().number, three.head().acknowledged), (3, 1));
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(session.begin(METHOD, soon).err(), Some(Errno::ETIMEDOUT), "no answer would be kept");
        drop(one);
        assert_eq!(three.head().acknowledged, 3);
        let four = session.begin(METHOD, now).unwrap();
        assert_eq!((four.head().number, four.head().acknowledged), (4, 3));
        assert_eq!((session.head().number, session.head().joined, four.head().joined), (0, 9, 9));
    }
}
