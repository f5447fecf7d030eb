//! Goal: an fsync never says that bytes are durable which a data server answered and lost with its memory since; each opening for writing hears of it
//! once; nothing else is told as lost. Method: the real services behind real sockets, clients without a kernel, data servers that are killed, and
//! lose their memory tier, with the end of their journal and without.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{sync::Arc, time::Duration};

use fuse::SetattrArgs;
use proto::attr::Caller;
use remote::{Access, AllocateArgs, OpenFile, Place, Remote, RemoteOptions, WriteHow};
use site::{cluster::Site, credentials, until};
use types::{Errno, Ino};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const READ: Access = Access { read: true, write: false, exclusive: false, no_atime: true };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };
const SYNC: WriteHow = WriteHow { append: false, sync: true, kill_suidgid: false };
const PUNCH: u32 = 3;

fn client(site: &Site, node: u64) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], credentials(node));
    options.patience = Duration::from_secs(20);
    options.longest = Duration::from_secs(40);
    Remote::start(options).unwrap()
}

fn create(client: &Remote, name: &str) -> Arc<OpenFile> {
    let place = Place { dir: Ino::ROOT, name: name.as_bytes() };
    client.create(CALLER, place, 0o644, BOTH).unwrap().1
}

fn write(client: &Remote, file: &OpenFile, bytes: &[u8]) {
    assert_eq!(client.write(file, 0, bytes, WriteHow::default()), Ok(bytes.len()));
}

fn read(client: &Remote, file: &OpenFile) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; 100];
    let n = client.read(file, 0, &mut buf)?;
    buf.truncate(n);
    Ok(buf)
}

/// What was in memory is gone, with the end of the journal or without.
fn lose_memory(site: &mut Site, client: &Remote, with_journal: bool) {
    if with_journal {
        site.power_cut_data(0);
    } else {
        site.lose_memory_of_data(0);
    }
    until("the data server is heard again", || client.status().data.iter().all(|one| one.away.is_none()));
}

#[test]
fn regression_fsync_tells_that_answered_bytes_are_lost() {
    for with_journal in [false, true] {
        let mut site = Site::new(1);
        let a = client(&site, 900);
        let file = create(&a, "f");
        let other = a.open(file.ino, BOTH).unwrap();
        let reader = a.open(file.ino, READ).unwrap();
        write(&a, &file, b"answered, and not made durable");
        lose_memory(&mut site, &a, with_journal);
        assert_eq!(a.fsync(&file), Err(Errno::EIO), "journal lost: {with_journal}");
        assert_eq!(a.fsync(&other), Err(Errno::EIO), "each opening for writing hears of it");
        assert_eq!(a.fsync(&reader), Ok(()), "who cannot write does not");
        assert_eq!((a.fsync(&file), a.fsync(&other)), (Ok(()), Ok(())), "once");

        // Who closes it and opens it again means what he wrote before.
        let closed = create(&a, "g");
        write(&a, &closed, b"written, closed");
        a.close(closed.number);
        lose_memory(&mut site, &a, with_journal);
        let again = a.open(closed.ino, BOTH).unwrap();
        assert_eq!((a.fsync(&again), a.fsync(&again)), (Err(Errno::EIO), Ok(())));

        // Also through a descriptor that only reads, as sync(1) does it.
        let synced = create(&a, "h");
        write(&a, &synced, b"written, closed");
        a.close(synced.number);
        lose_memory(&mut site, &a, with_journal);
        let again = a.open(synced.ino, READ).unwrap();
        assert_eq!((a.fsync(&again), a.fsync(&again)), (Err(Errno::EIO), Ok(())));

        // What is whole again is durable again.
        a.setattr(file.ino, &SetattrArgs { size: Some(0), ..Default::default() }).unwrap();
        write(&a, &file, b"again");
        assert_eq!((a.fsync(&file), read(&a, &file)), (Ok(()), Ok(b"again".to_vec())));
        a.shutdown();
    }
}

#[test]
fn regression_a_later_write_does_not_hide_the_loss() {
    let mut site = Site::new(1);
    let a = client(&site, 900);
    let file = create(&a, "f");
    write(&a, &file, &[1; 50]);
    lose_memory(&mut site, &a, true);
    // Of the new life.
    write(&a, &file, &[2; 50]);
    assert_eq!(a.fsync(&file), Err(Errno::EIO));
    assert_eq!(a.fsync(&file), Ok(()));
    // By itself it is durable, and tells nobody that what came before is.
    write(&a, &file, &[3; 50]);
    lose_memory(&mut site, &a, true);
    assert_eq!(a.write(&file, 0, &[4; 50], SYNC), Ok(50));
    assert_eq!(a.fsync(&file), Err(Errno::EIO));
    a.shutdown();
}

#[test]
fn regression_what_was_freed_and_came_back_is_told() {
    let mut site = Site::new(1);
    let a = client(&site, 900);
    let file = create(&a, "f");
    write(&a, &file, &[1; 50]);
    a.fsync(&file).unwrap();
    a.allocate(&file, AllocateArgs { offset: 0, length: 50, mode: PUNCH }).unwrap();
    lose_memory(&mut site, &a, true);
    assert_eq!((a.fsync(&file), a.fsync(&file)), (Err(Errno::EIO), Ok(())));
    a.shutdown();
}

#[test]
fn what_is_durable_or_still_there_is_not_told() {
    let mut site = Site::new(1);
    let a = client(&site, 900);
    let file = create(&a, "f");
    write(&a, &file, b"durable");
    a.fsync(&file).unwrap();
    assert_eq!(a.write(&file, 0, b"too", SYNC), Ok(3));
    lose_memory(&mut site, &a, true);
    assert_eq!((a.fsync(&file), read(&a, &file)), (Ok(()), Ok(b"tooable".to_vec())));
    // A kill takes nothing.
    write(&a, &file, b"kept in memory");
    site.kill_data(0);
    site.start_data(0);
    assert_eq!((a.fsync(&file), read(&a, &file)), (Ok(()), Ok(b"kept in memory".to_vec())));
    a.shutdown();
}
