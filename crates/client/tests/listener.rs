//! Goal: who listens hears of each opening once, with its file, purpose and process, before the program goes on, and of each
//! close. Method: a listener that writes down what it hears, behind a real mount.

#![allow(clippy::unwrap_used, reason = "tests")]

mod harness;

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::MetadataExt,
    sync::Arc,
    time::{Duration, Instant},
};

use client::{Listener, Opening, Purpose};
use harness::Site;
use parking_lot::Mutex;
use types::Ino;

#[derive(Default, Debug)]
struct Ears {
    opened: Mutex<Vec<Opening>>,
    closed: Mutex<Vec<Ino>>,
}

impl Listener for Ears {
    fn opened(&self, opening: Opening) {
        self.opened.lock().push(opening);
    }
    fn closed(&self, ino: Ino) {
        self.closed.lock().push(ino);
    }
}

#[test]
fn openings_and_closings_are_told() {
    let Some(mut site) = Site::new() else { return };
    let ears = Arc::new(Ears::default());
    site.listener = Some(ears.clone());
    site.mount();
    let path = site.path("f");
    fs::write(&path, vec![1; 300_000]).unwrap();
    let ino = Ino::from_raw(fs::metadata(&path).unwrap().ino()).unwrap();
    // The kernel says which thread it was.
    let pid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let uid = rustix::process::getuid().as_raw();
    let heard = || std::mem::take(&mut *ears.opened.lock());
    let one = |purpose| vec![Opening { ino, purpose, pid, uid }];
    assert_eq!(heard(), one(Purpose::Make), "created");
    // Through passthrough, where it can be had, too.
    let file = File::open(&path).unwrap();
    assert_eq!(heard(), one(Purpose::Read));
    drop(file);
    drop(OpenOptions::new().read(true).write(true).open(&path).unwrap());
    assert_eq!(heard(), one(Purpose::Read));
    drop(OpenOptions::new().append(true).open(&path).unwrap());
    assert_eq!(heard(), one(Purpose::Make));
    drop(OpenOptions::new().read(true).write(true).truncate(true).open(&path).unwrap());
    assert_eq!(heard(), one(Purpose::Make), "what was in it is gone");
    File::open(site.path("missing")).unwrap_err();
    fs::metadata(&path).unwrap();
    assert_eq!(heard(), vec![]);
    // The kernel tells of a close when it likes.
    let end = Instant::now() + Duration::from_secs(30);
    while ears.closed.lock().len() < 5 {
        assert!(Instant::now() < end, "{:?}", ears.closed);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(*ears.closed.lock(), vec![ino; 5]);
}
