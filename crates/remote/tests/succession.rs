//! Goal: who goes on with the session of an ended process is not held up by what that one left. Method: the real services behind a socket, two clients without a
//! kernel one after the other, with the memory that a guardian keeps.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{
    os::fd::AsFd,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use fuse::Filesystem;
use handover::Estate;
use proto::attr::Caller;
use remote::{Place, Remote, RemoteOptions};
use site::{cluster::Site, credentials};
use types::{Errno, Ino};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
/// More than a server keeps answers of.
const MANY: u32 = 1600;

fn client(site: &Site, memory: &impl AsFd, resumes: bool) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], credentials(900));
    options.estate = Some(Estate::open(memory.as_fd()).unwrap());
    options.longest = Duration::from_secs(20);
    options.resumes = resumes;
    Remote::start(options).unwrap()
}

fn mkdir(client: &Remote, name: &str) -> Result<Ino, Errno> {
    let at = Place { dir: Ino::ROOT, name: name.as_bytes() };
    client.mkdir(CALLER, at, 0o755).map(|attr| attr.ino)
}

/// The number of a request that is not known to be answered is open for a while. Whoever closes it must not wait for it: for references to be given back, for
/// instance.
#[test]
fn regression_an_open_number_of_the_process_before_holds_nobody_up_for_long() {
    let site = Site::new(1);
    let memory = Estate::create().unwrap();
    let first = client(&site, &memory, false);
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let estate = Estate::open(memory.as_fd()).unwrap();
        let _scope = estate.calls.enter(8, &mut |_| ());
        mkdir(&first, "left").unwrap();
        send.send(memory).unwrap();
        // As by kill -9: the request is not answered, the session is not ended.
        loop {
            thread::park();
        }
    });
    let memory = receive.recv().unwrap();
    let second = client(&site, &memory, true);
    second.resume().unwrap();
    thread::scope(|scope| {
        for program in 0..4 {
            let second = &second;
            scope.spawn(move || {
                for n in 0..MANY / 4 {
                    let made = mkdir(second, &format!("{program}-{n}")).unwrap();
                    second.forget(made.get(), 1);
                }
            });
        }
    });
    second.shutdown();
}
