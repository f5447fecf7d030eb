//! Closes, which nobody waits for: several of them are one message. Who sends them: [`crate::closing`].
//!
//! - The first one after a pause goes at once; while others follow, one message goes every [`PAUSE`] at the most.
//! - Until the server has heard of a close the file counts as open: whoever looks at it is told what its data servers say.

use std::time::{Duration, Instant};

use handover::Place;
use parking_lot::{Condvar, Mutex};
use proto::closing::Closing;

/// Between two messages.
const PAUSE: Duration = Duration::from_millis(10);
/// A look at whether the mount is still there.
const LOOK: Duration = Duration::from_secs(1);
/// So many do not wait.
const MANY: usize = 128;
/// With so many the server is behind: whoever closes waits for his own.
const MOST: usize = 4096;

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ToClose {
    pub closing: Closing,
    /// It was open for writing.
    pub write: bool,
    /// Where the opening is written down.
    pub place: Option<Place>,
}

/// Those that wait, and when the last ones went.
#[derive(Default)]
struct Queue {
    waiting: Vec<ToClose>,
    sent: Option<Instant>,
    /// There will be no more, and what is left then goes no more.
    ends: Option<Instant>,
}

impl Queue {
    /// When some are to go; `None`: there are none.
    fn due(&self, now: Instant) -> Option<Instant> {
        match self.waiting.len() {
            0 => None,
            MANY.. => Some(now),
            _ if self.ends.is_some() => Some(now),
            _ => Some(self.sent.map_or(now, |sent| sent + PAUSE)),
        }
    }

    /// Those of one message.
    fn take(&mut self, now: Instant) -> Vec<ToClose> {
        self.sent = Some(now);
        let first = self.waiting.len().min(MANY);
        self.waiting.drain(..first).collect()
    }
}

#[derive(Default)]
pub(crate) struct Closes {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Closes {
    /// Gives it back if there are too many already.
    pub(crate) fn add(&self, closing: ToClose) -> Option<ToClose> {
        let mut queue = self.queue.lock();
        if queue.ends.is_some() || queue.waiting.len() >= MOST {
            return Some(closing);
        }
        queue.waiting.push(closing);
        self.changed.notify_one();
        None
    }

    /// The next ones, when they are due; none after a while. `None`: there will be no more.
    pub(crate) fn next(&self) -> Option<Vec<ToClose>> {
        let mut queue = self.queue.lock();
        loop {
            let now = Instant::now();
            if queue.ends.is_some_and(|ends| now >= ends) {
                return None;
            }
            match queue.due(now) {
                Some(due) if due <= now => return Some(queue.take(now)),
                Some(due) => drop(self.changed.wait_until(&mut queue, due)),
                None if queue.ends.is_some() => return None,
                None if self.changed.wait_for(&mut queue, LOOK).timed_out() => return Some(Vec::new()),
                None => {}
            }
        }
    }

    /// What waits goes now, as far as it does within `patience`; what comes later does not wait.
    pub(crate) fn end(&self, patience: Duration) {
        self.queue.lock().ends = Some(Instant::now() + patience);
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a close alone goes at once, many go together. Method: a queue and times that are given.
    use super::*;

    #[test]
    fn those_that_follow_each_other_go_together() {
        let closing = |opening| ToClose {
            closing: Closing { opening, ino: 2, atime: None },
            write: false,
            place: None,
        };
        let (mut queue, start) = (Queue::default(), Instant::now());
        assert_eq!(queue.due(start), None);
        queue.waiting.push(closing(1));
        assert_eq!(queue.due(start), Some(start), "nobody else closes");
        assert_eq!(queue.take(start), [closing(1)]);
        queue.waiting.extend([closing(2), closing(3)]);
        let soon = start + PAUSE / 2;
        assert_eq!(queue.due(soon), Some(start + PAUSE));
        assert_eq!(queue.take(start + PAUSE), [closing(2), closing(3)]);
        assert_eq!(queue.due(soon), None);
        queue.waiting.extend((0..MANY as u64 + 1).map(closing));
        assert_eq!(queue.due(soon), Some(soon), "no more go into one message");
        assert_eq!(queue.take(soon).len(), MANY);
        queue.ends = Some(soon + PAUSE);
        assert_eq!(queue.due(soon), Some(soon), "nothing is left when it ends");
    }
}
