//! Goal: no request waits unseen. Method: the real stack behind a real mount, with a clock that can be stopped, so that
//! the metadata server stays in an operation.

#![allow(clippy::unwrap_used, reason = "tests")]

mod harness;

use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use harness::Site;
use mds::{Clock, SystemClock};
use parking_lot::Mutex;
use types::Timestamp;

/// Nobody learns the time while its lock is held.
#[derive(Default)]
struct Gate(Mutex<()>);

impl Clock for Gate {
    fn now(&self) -> Timestamp {
        let _open = self.0.lock();
        SystemClock.now()
    }
}

/// Method: a mkdir, which is served on the thread that received it, waits at the gate until it was reported.
#[test]
fn regression_a_request_that_is_held_up_where_it_arrived_is_reported() {
    let Some(mut site) = Site::new() else { return };
    let gate = Arc::new(Gate::default());
    site.clock = gate.clone();
    site.deadline = Duration::from_millis(20);
    site.mount();
    let before = site.client().stats();
    let path = site.path("d");
    let closed = gate.0.lock();
    let making = thread::spawn(move || fs::create_dir(path));
    let begun = Instant::now();
    while site.client().stats().overdue == before.overdue {
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing was reported");
        thread::yield_now();
    }
    assert_eq!(site.client().stats().deferred, before.deferred);
    drop(closed);
    making.join().unwrap().unwrap();
    assert!(site.path("d").is_dir());
}
