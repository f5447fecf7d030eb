//! Goal: no request waits unseen. Method: the real stack behind a real mount, with a clock that can be stopped, so that
//! the metadata server stays in an operation.

#![allow(clippy::unwrap_used, reason = "tests")]

mod harness;

use std::{
    fs,
    fs::OpenOptions,
    io::Write,
    os::unix::fs::MetadataExt,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use harness::Site;
use mds::{Clock, SystemClock};
use parking_lot::Mutex;
use types::{Ino, TierId, Timestamp};

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

/// Method: a small file on a device is cut in the middle, which waits for the journal and the device; a large one, of which
/// the metadata do not know yet how large it is, is cut by an opening.
#[test]
fn regression_cuts_that_need_a_device_are_left_to_workers() {
    let Some(site) = Site::mounted() else { return };
    let deferred = || site.client().stats().deferred;
    let path = site.path("small");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    site.settle_closed();
    let ino = Ino::from_raw(fs::metadata(&path).unwrap().ino()).unwrap();
    site.ds().migrate(ino, TierId::Ssd, Some(Duration::from_secs(20))).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let before = deferred();
    file.set_len(1000).unwrap();
    assert!(deferred() > before, "a cut waited on the transport's thread");
    assert_eq!(fs::read(&path).unwrap(), [7; 1000]);

    let path = site.path("large");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(&vec![8; 9 << 20]).unwrap();
    let before = deferred();
    drop(fs::File::create(&path).unwrap());
    assert!(deferred() > before, "an opening cut a large file on the transport's thread");
    assert_eq!(file.metadata().unwrap().len(), 0);
}
