//! What the background threads wait for: requests, periods, the end.
//!
//! Refuses to know what the work is.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// What the background threads wait for.
#[derive(Default)]
pub(crate) struct Work {
    state: Mutex<WorkState>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct WorkState {
    stop: bool,
    pub checkpoint: bool,
    /// What made the last one fail may be over: no pause.
    pub at_once: bool,
}

impl Work {
    pub(crate) fn request_checkpoint(&self) {
        let mut state = self.state.lock();
        if !state.checkpoint {
            state.checkpoint = true;
            self.changed.notify_all();
        }
    }

    /// Also in the pause after one that failed.
    pub(crate) fn request_checkpoint_at_once(&self) {
        let mut state = self.state.lock();
        (state.checkpoint, state.at_once) = (true, true);
        self.changed.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Waits for `period`, or less if `early` says so. False: stop.
    pub(crate) fn wait(&self, period: Duration, early: impl Fn(&mut WorkState) -> bool) -> bool {
        let deadline = Instant::now() + period;
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return false;
            }
            if early(&mut state) || self.changed.wait_until(&mut state, deadline).timed_out() {
                return !state.stop;
            }
        }
    }
}
