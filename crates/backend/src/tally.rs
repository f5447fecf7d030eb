//! How the back end has been doing: for a status line, and for whoever decides whether it is in trouble.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use link::Trouble;
use parking_lot::Mutex;
use types::{Errno, Timestamp};

use crate::call::Call;

/// Since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    pub calls: u64,
    /// That the back end answered with trouble. What is not there, is there already, or is of another kind is none.
    pub errors: u64,
    /// Calls that were given up at their deadline, those too that no thread was free for.
    pub timeouts: u64,
    /// Calls that were given up and have not come back, now: each has a thread.
    pub hanging: u64,
    /// A call's time in the back end, a listing's with what its visitor held it up; of one that hangs still, the deadline.
    pub longest: Duration,
    pub last_error: Option<LastError>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastError {
    pub call: Call,
    pub errno: Errno,
    /// By the clock of this machine.
    pub at: Timestamp,
}

#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Counters>);

impl Tally {
    pub(crate) fn counters(&self) -> Counters {
        *self.0.lock()
    }

    pub(crate) fn began(&self) {
        self.0.lock().calls += 1;
    }

    /// A call returned after so long.
    pub(crate) fn took(&self, time: Duration) {
        let mut counters = self.0.lock();
        counters.longest = counters.longest.max(time);
    }

    pub(crate) fn failed(&self, call: Call, errno: Errno) {
        if is_trouble(errno) {
            let mut counters = self.0.lock();
            counters.errors += 1;
            counters.last_error = Some(last(call, errno));
        }
    }

    pub(crate) fn given_up(&self, call: Call) {
        let mut counters = self.0.lock();
        counters.timeouts += 1;
        counters.last_error = Some(last(call, Errno::ETIMEDOUT));
    }

    pub(crate) fn hangs(&self) {
        self.0.lock().hanging += 1;
    }

    pub(crate) fn came_back(&self) {
        self.0.lock().hanging -= 1;
    }
}

fn last(call: Call, errno: Errno) -> LastError {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    LastError { call, errno, at: Timestamp::EPOCH.plus(now) }
}

fn is_trouble(errno: Errno) -> bool {
    match Trouble::of(errno) {
        Trouble::Later | Trouble::Refused(_) => errno != Errno::ENODATA,
        Trouble::Conflict(_) | Trouble::Gone => false,
    }
}
