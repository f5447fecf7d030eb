//! One session, and the numbers of its operations.
//!
//! A number is open from when it is given out until its operation has ended, however it ended. All below the lowest open one are
//! acknowledged.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use parking_lot::{Condvar, Mutex};
use proto::{Head, SessionId};
use types::Errno;

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
}

impl Session {
    pub(crate) fn new(
        (id, serial): (SessionId, u64),
        joined: u64,
        incarnation: u64,
        operations_max: u64,
    ) -> Session {
        let operations_max = operations_max.max(1);
        Session { id, serial, joined, incarnation, operations_max, numbers: Arc::default() }
    }

    /// The same, at a server that was started again.
    pub(crate) fn again(&self, joined: u64, incarnation: u64) -> Session {
        let Session { id, serial, operations_max, .. } = *self;
        Session { id, serial, joined, incarnation, operations_max, numbers: self.numbers.clone() }
    }

    /// Of a request that may be carried out twice.
    pub(crate) fn head(&self) -> Head {
        Head { joined: self.joined, ..Head::of(self.id) }
    }

    /// The next number. Waits while the oldest open one is so old that the server would keep no answer for this.
    pub(crate) fn begin(self: &Arc<Session>, end: Instant) -> Result<Operation, Errno> {
        let mut numbers = self.numbers.0.lock();
        loop {
            let oldest = numbers.open.first().copied().unwrap_or(numbers.last + 1);
            if numbers.last + 1 - oldest < self.operations_max {
                numbers.last += 1;
                let number = numbers.last;
                numbers.open.insert(number);
                return Ok(Operation { session: self.clone(), number });
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
        self.session.numbers.0.lock().open.remove(&self.number);
        self.session.numbers.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    //! Goal: numbers rise, and what is acknowledged is what has ended. Method: operations that end in another order.
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_what_has_ended_is_acknowledged() {
        let session = Arc::new(Session::new((SessionId(7), 1), 9, 1, 3));
        let now = Instant::now();
        let (one, two) = (session.begin(now).unwrap(), session.begin(now).unwrap());
        assert_eq!((one.head().number, one.head().acknowledged), (1, 1));
        let three = session.begin(now).unwrap();
        drop(two);
        assert_eq!((three.head().number, three.head().acknowledged), (3, 1));
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(session.begin(soon).err(), Some(Errno::ETIMEDOUT), "no answer would be kept");
        drop(one);
        assert_eq!(three.head().acknowledged, 3);
        let four = session.begin(now).unwrap();
        assert_eq!((four.head().number, four.head().acknowledged), (4, 3));
        assert_eq!((session.head().number, session.head().joined, four.head().joined), (0, 9, 9));
    }
}
