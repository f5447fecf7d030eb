//! The writes that a mount keeps back, for all its threads: the lock, and how they wait for who sends. What comes and goes, [`crate::keeping_back`] says.

use std::{
    sync::atomic::AtomicBool,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use types::Ino;

use crate::back::{Back, BackCounts};

/// Whoever wrote is answered with it.
pub(crate) type Answer = Box<dyn FnOnce() + Send>;

/// A write that is answered when there is room, or then.
struct Waiting {
    ino: Ino,
    until: Instant,
    answer: Answer,
}

/// The table for all threads.
pub(crate) struct Backlog {
    /// `None`: nothing is kept back.
    pub(crate) back: Option<Mutex<Back>>,
    /// Somebody has sent what he had to.
    pub(crate) sent: Condvar,
    /// Nobody's thread waits for room. As many as programs that write at once.
    waiting: Mutex<Vec<Waiting>>,
    /// The server knows nothing of it.
    pub(crate) unknown: AtomicBool,
    /// Of several metadata servers one could not be told then that writes may be kept back.
    pub(crate) untold: Mutex<Option<Instant>>,
    pub(crate) ended: Mutex<bool>,
    pub(crate) end: Condvar,
    pub(crate) sender: Mutex<Option<JoinHandle<()>>>,
}

impl Backlog {
    pub(crate) fn new(bytes: u64) -> Backlog {
        Backlog {
            back: (bytes > 0).then(|| Mutex::new(Back::new(bytes))),
            sent: Condvar::new(),
            waiting: Mutex::default(),
            unknown: AtomicBool::new(false),
            untold: Mutex::default(),
            ended: Mutex::new(false),
            end: Condvar::new(),
            sender: Mutex::default(),
        }
    }

    pub(crate) fn counts(&self) -> BackCounts {
        self.back.as_ref().map(|back| back.lock().counts()).unwrap_or_default()
    }

    pub(crate) fn has_rights(&self) -> bool {
        self.back.as_ref().is_some_and(|back| back.lock().has_rights())
    }

    pub(crate) fn has_number(&self, node: u64) -> bool {
        Ino::from_raw(node).is_some_and(|ino| self.has(ino))
    }

    /// Is something of the file kept back?
    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.back.as_ref().is_some_and(|back| back.lock().has(ino))
    }

    /// When the file has room again, and in that time at the latest; or now.
    pub(crate) fn when_there_is_room(&self, ino: Ino, at_most: Duration, answer: Answer) {
        self.waiting.lock().push(Waiting { ino, until: Instant::now() + at_most, answer });
        self.go_on();
    }

    /// There may be room: those are answered who waited for it.
    pub(crate) fn go_on(&self) {
        let now = Instant::now();
        let answers: Vec<Answer> = {
            let mut waiting = self.waiting.lock();
            if waiting.is_empty() {
                return;
            }
            let Some(back) = self.back.as_ref().map(Mutex::lock) else { return };
            let waits = |one: &mut Waiting| now < one.until && back.is_full(one.ino);
            waiting.extract_if(.., |one| !waits(one)).map(|one| one.answer).collect()
        };
        answers.into_iter().for_each(|answer| answer());
    }
}
