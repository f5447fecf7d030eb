//! Goal: writes that a mount keeps back save requests, and nobody sees that it does, but for who dies with them: what was answered is what another mount
//! reads, stats and appends to; nothing that was kept back lands late; what cannot be sent is an error. Method: the real services behind real sockets,
//! and clients without a kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use fuse::{SetattrArgs, TimeOrNow};
use proto::{Method, attr::Caller, writes::KeepWrites};
use remote::{Access, AllocateArgs, OpenFile, Place, Remote, RemoteOptions, WriteHow};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    DataSite,
    cluster::{Site, options},
    credentials, until,
};
use types::{Errno, Ino, Timestamp};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const READ: Access = Access { read: true, write: false, exclusive: false, no_atime: true };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };
const APPEND: WriteHow = WriteHow { append: true, sync: false, kill_suidgid: false };
const SYNC: WriteHow = WriteHow { append: false, sync: true, kill_suidgid: false };

fn client_with(site: &Site, node: u64, write_back: u64, patience: Duration) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], credentials(node));
    options.patience = patience;
    options.longest = Duration::from_secs(40);
    options.write_back = write_back;
    Remote::start(options).unwrap()
}

fn client(site: &Site, node: u64) -> Arc<Remote> {
    client_with(site, node, 64 << 20, Duration::from_secs(20))
}

fn root(name: &str) -> Place<'_> {
    Place { dir: Ino::ROOT, name: name.as_bytes() }
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n / 7 + n % 251) as u8 ^ seed).collect()
}

fn write(client: &Remote, file: &OpenFile, offset: u64, bytes: &[u8]) {
    assert_eq!(client.write(file, offset, bytes, WriteHow::default()), Ok(bytes.len()));
}

fn read(client: &Remote, ino: Ino) -> Vec<u8> {
    let file = client.open(ino, READ).unwrap();
    let mut buf = vec![0; 1 << 20];
    let n = client.read(&file, 0, &mut buf).unwrap();
    client.close(file.number);
    buf.truncate(n);
    buf
}

fn asked(client: &Remote, method: Method) -> u64 {
    client.meter().counts().iter().filter(|one| one.method == method).map(|one| one.requests).sum()
}

/// A new file of which writes are kept back from now on: its first byte is there.
fn keeping(client: &Remote, name: &str) -> (Ino, Arc<OpenFile>) {
    let (attr, file) = client.create(CALLER, root(name), 0o644, BOTH).unwrap();
    keep(client, &file);
    (attr.ino, file)
}

/// The last of some writes of its first byte is kept back.
fn keep(client: &Remote, file: &OpenFile) {
    until("its writes are kept back", || {
        let before = client.status().back.writes;
        write(client, file, 0, b"0");
        client.status().back.writes > before
    });
}

/// Kept back, and not at its data servers.
fn write_back(client: &Remote, file: &OpenFile, offset: u64, bytes: &[u8]) {
    let before = client.status().back.writes;
    write(client, file, offset, bytes);
    assert_eq!(client.status().back.writes, before + 1, "it is kept back");
}

#[test]
fn small_writes_in_a_row_need_few_requests() {
    let site = Site::new(2);
    let mut requests = Vec::new();
    let want = bytes(1 << 20, 1);
    for (node, back) in [(900, 0), (901, 64 << 20)] {
        let a = client_with(&site, node, back, Duration::from_secs(20));
        let (attr, file) = a.create(CALLER, root(&node.to_string()), 0o644, BOTH).unwrap();
        if back > 0 {
            keep(&a, &file);
        }
        let total = || a.meter().counts().iter().map(|one| one.requests).sum::<u64>();
        let (before, began) = (total(), Instant::now());
        for (n, part) in want.chunks(4096).enumerate() {
            write(&a, &file, n as u64 * 4096, part);
        }
        a.fsync(&file).unwrap();
        requests.push(total() - before);
        println!("{} requests, {:?}", total() - before, began.elapsed());
        a.close(file.number);
        assert_eq!(read(&a, attr.ino), want);
        a.shutdown();
    }
    assert!(requests[0] >= 256 && requests[1] < 40, "{requests:?}");
}

#[test]
fn what_was_answered_is_what_others_see() {
    let site = Site::new(2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    for round in 0..4u8 {
        let name = format!("f{round}");
        let (ino, file) = keeping(&a, &name);
        let want = bytes(5000, round);
        for (n, part) in want.chunks(1000).enumerate() {
            write_back(&a, &file, n as u64 * 1000, part);
        }
        // Whatever the first look is.
        match round {
            0 => assert_eq!(b.getattr(ino).unwrap().size, 5000),
            1 => assert_eq!(b.lookup(root(&name)).unwrap().size, 5000),
            2 => {
                let page = b.list(Ino::ROOT, 0, 100, true).unwrap();
                let entry = page.entries.iter().find(|entry| entry.name == name.as_bytes()).unwrap();
                assert!(entry.attr.is_none_or(|attr| attr.size == 5000));
            }
            _ => {
                let other = b.open(ino, BOTH).unwrap();
                assert_eq!(b.write(&other, 0, b"end", APPEND), Ok(3));
                b.close(other.number);
                assert_eq!(a.getattr(ino).unwrap().size, 5003);
            }
        }
        assert_eq!(read(&b, ino)[..5000], want);
        // Beside somebody who reads nothing is kept back.
        let other = b.open(ino, READ).unwrap();
        let before = a.status().back.writes;
        for n in 0..20 {
            write(&a, &file, n, &[n as u8]);
            let mut buf = [0; 1];
            assert_eq!((b.read(&other, n, &mut buf), buf), (Ok(1), [n as u8]));
        }
        assert_eq!(a.status().back.writes, before);
        b.close(other.number);
        a.close(file.number);
    }
    a.shutdown();
    b.shutdown();
}

#[test]
fn this_mount_sees_what_it_wrote() {
    let site = Site::new(2);
    let a = client(&site, 900);
    let (ino, file) = keeping(&a, "f");
    write_back(&a, &file, 0, &bytes(3000, 2));
    let mut buf = [0; 100];
    assert_eq!(a.read(&file, 200, &mut buf), Ok(100));
    assert_eq!(buf[..], bytes(3000, 2)[200..300]);
    assert!(a.status().back.bytes > 0, "that needed no server");
    assert_eq!(a.read(&file, 2950, &mut buf), Ok(50), "it ends there");
    keep(&a, &file);
    write_back(&a, &file, 3000, b"more");
    assert_eq!(a.getattr(ino).unwrap().size, 3004);
    write_back(&a, &file, 3004, b"more");
    assert_eq!(a.lookup(root("f")).unwrap().size, 3008);
    write_back(&a, &file, 3008, b"more");
    let page = a.list(Ino::ROOT, 0, 100, true).unwrap();
    assert!(page.entries.iter().any(|entry| entry.attr.is_some_and(|attr| attr.size == 3012)));
    write_back(&a, &file, 3012, b"more");
    assert_eq!(a.seek(&file, 0, 4), Ok(3016));
    // A change of size and of times goes on from what was written.
    write_back(&a, &file, 5000, b"more");
    a.setattr(ino, &SetattrArgs { size: Some(5002), ..SetattrArgs::default() }).unwrap();
    assert_eq!(read(&a, ino)[4999..], *b"\0mo");
    keep(&a, &file);
    write_back(&a, &file, 1, b"x");
    let at = Timestamp { sec: 77, nsec: 5 };
    a.setattr(ino, &SetattrArgs { mtime: Some(TimeOrNow::At(at)), ..SetattrArgs::default() }).unwrap();
    a.close(file.number);
    until("it is closed", || a.getattr(ino).unwrap().mtime == at);
    let file = a.open(ino, BOTH).unwrap();
    keep(&a, &file);
    write_back(&a, &file, 6000, b"x");
    a.allocate(&file, AllocateArgs { offset: 6000, length: 1, mode: 3 }).unwrap();
    assert_eq!(read(&a, ino)[5999..], [0, 0]);
    // One that is to be safe goes past it, and is behind what came before.
    keep(&a, &file);
    write_back(&a, &file, 0, &[1; 1000]);
    write_back(&a, &file, 500, &vec![2; 200 << 10]);
    write_back(&a, &file, 600, &[3; 10]);
    assert_eq!(a.write(&file, 605, &[4; 10], SYNC), Ok(10));
    assert_eq!(a.status().back.bytes, 0);
    let got = read(&a, ino);
    assert_eq!((got[499], got[500], got[604], got[605], got[614], got[615]), (1, 2, 3, 4, 4, 2));
    a.close(file.number);
    a.shutdown();
}

/// Goal: large writes are answered when the client has them, too, and are seen by all as small ones are (S-402). Method: large and small ones over each
/// other, beside plain bytes; this mount's reads, and another's.
#[test]
fn large_writes_are_kept_back_in_their_order() {
    const SIZE: usize = 3 << 20;
    let site = Site::new(2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    for seed in 0..6u8 {
        let (ino, file) = keeping(&a, &format!("f{seed}"));
        let mut want = vec![0; SIZE];
        want[0] = b'0';
        let lengths = [1 << 20, 4096, 128 << 10, 300_001, 700_000, 9, 1 << 20, 200_000];
        for (n, len) in lengths.into_iter().enumerate() {
            let at = (n * 1_234_567 + usize::from(seed) * 777_777) % (SIZE - len);
            let part = bytes(len, seed ^ n as u8);
            write_back(&a, &file, at as u64, &part);
            want[at..at + len].copy_from_slice(&part);
            let mut buf = vec![0; len];
            assert_eq!(a.read(&file, at as u64, &mut buf), Ok(len));
            assert!(buf == part, "{seed}, {n}");
        }
        write_back(&a, &file, SIZE as u64 - 1, b"e");
        want[SIZE - 1] = b'e';
        let other = b.open(ino, READ).unwrap();
        let mut got = vec![1; SIZE];
        for (n, part) in got.chunks_mut(1 << 20).enumerate() {
            assert_eq!(b.read(&other, (n << 20) as u64, part), Ok(part.len()));
        }
        assert!(got == want, "{seed}");
        b.close(other.number);
        a.close(file.number);
    }
    assert_eq!(a.status().back.lost, 0);
    a.shutdown();
    b.shutdown();
}

/// Goal: what is kept back has the bound of the setting, however fast a program writes (S-403), and all of it comes. Method: a stream of large writes, with little room;
/// somebody looks meanwhile.
#[test]
fn a_stream_of_large_writes_keeps_to_its_bound() {
    const MAX: u64 = 6 << 20;
    let site = Site::new(2);
    let (a, b) = (client_with(&site, 900, MAX, Duration::from_secs(20)), client(&site, 901));
    let (ino, file) = keeping(&a, "f");
    let (before, done) = (a.status().back.writes, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let now = a.status().back.bytes;
                assert!(now <= MAX, "{now} bytes");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        for n in 0..40u64 {
            write(&a, &file, n << 20, &bytes(1 << 20, n as u8));
        }
        done.store(true, Ordering::Release);
    });
    assert!(a.status().back.writes > before + 10, "they were kept back");
    let other = b.open(ino, READ).unwrap();
    for n in 0..40u64 {
        let mut buf = vec![0; 1 << 20];
        assert_eq!(b.read(&other, n << 20, &mut buf), Ok(1 << 20));
        assert!(buf == bytes(1 << 20, n as u8), "{n}");
    }
    b.close(other.number);
    a.close(file.number);
    a.shutdown();
    b.shutdown();
}

/// Goal: once some are lost no more are answered before they are there, until the program has heard of it (S-404). Method: a data server without room, and a program
/// that does not sync.
#[test]
fn after_a_loss_each_write_says_itself_what_became_of_it() {
    let mut data = DataSite::new(1);
    (data.memory, data.ssd) = (8 << 20, Some(8 << 20));
    data.start();
    let site = Site::of(vec![data], options());
    let a = client(&site, 900);
    let (_, file) = keeping(&a, "f");
    let part = vec![7; 512 << 10];
    let mut end = 0;
    until("something is lost", || {
        end += part.len() as u64;
        let _ = a.write(&file, end, &part, WriteHow::default());
        a.status().back.lost > 0
    });
    let before = a.status().back.writes;
    for n in 1..4 {
        let at = end + n * part.len() as u64;
        // A tier may have got room meanwhile.
        let said = a.write(&file, at, &part, WriteHow::default());
        assert!(matches!(said, Err(Errno::ENOSPC) | Ok(524_288)), "{said:?}");
    }
    assert_eq!(a.status().back.writes, before, "none was kept back");
    assert_eq!(a.fsync(&file), Err(Errno::ENOSPC));
    a.setattr(file.ino, &SetattrArgs { size: Some(0), ..SetattrArgs::default() }).unwrap();
    keep(&a, &file);
    a.close(file.number);
    a.shutdown();
}

#[test]
fn appends_are_kept_back_and_go_on_after_those_of_others() {
    let site = Site::new(2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let (ino, file) = keeping(&a, "log");
    let mut want = b"0".to_vec();
    for n in 0..200u8 {
        assert_eq!(a.write(&file, 0, &[n; 7], APPEND), Ok(7));
        want.extend([n; 7]);
    }
    assert!(asked(&a, Method::Append) < 20, "{}", asked(&a, Method::Append));
    let other = b.open(ino, BOTH).unwrap();
    for n in 0..20u8 {
        let (of, file) = if n % 3 == 0 { (&b, &other) } else { (&a, &file) };
        assert_eq!(of.write(file, 0, &[n; 5], APPEND), Ok(5));
        want.extend([n; 5]);
    }
    assert_eq!(read(&a, ino), want);
    b.close(other.number);
    a.close(file.number);
    assert_eq!(read(&b, ino), want);
    a.shutdown();
    b.shutdown();
}

#[test]
fn what_is_kept_back_is_sent_soon_and_when_the_mount_ends() {
    let site = Site::new(2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let (_, file) = keeping(&a, "f");
    write_back(&a, &file, 0, b"soon");
    until("it is sent without a cause", || a.status().back.bytes == 0);
    keep(&a, &file);
    write_back(&a, &file, 4, b"last");
    let ino = file.ino;
    a.shutdown();
    assert_eq!(read(&b, ino), b"0oonlast");
    b.shutdown();
}

#[test]
fn a_reader_beside_a_writer_never_sees_less_than_was_answered() {
    let site = Site::new(2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let (ino, file) = keeping(&a, "f");
    write(&a, &file, 0, &0u64.to_le_bytes());
    let (answered, done) = (std::sync::atomic::AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=3000u64 {
                write(&a, &file, 0, &n.to_le_bytes());
                answered.store(n, Ordering::Release);
            }
            done.store(true, Ordering::Release);
        });
        let mut last = 0;
        while !done.load(Ordering::Acquire) {
            let least = answered.load(Ordering::Acquire);
            let now = u64::from_le_bytes(read(&b, ino).try_into().unwrap());
            assert!(now >= least.max(last), "{now} after {least} and {last}");
            last = now;
        }
    });
    a.close(file.number);
    a.shutdown();
    b.shutdown();
}

#[test]
fn what_cannot_be_sent_is_an_error_of_the_next_fsync() {
    let mut site = Site::new(1);
    let a = client_with(&site, 900, 64 << 20, Duration::from_secs(2));
    let (ino, file) = keeping(&a, "f");
    write_back(&a, &file, 0, b"lost");
    site.kill_data(0);
    assert_eq!(a.fsync(&file), Err(Errno::EIO));
    until("it is given up", || a.status().back.lost == 4);
    assert_eq!(a.status().back.bytes, 0);
    site.start_data(0);
    assert_eq!(a.fsync(&file), Err(Errno::EIO), "it says what was lost since it was asked last");
    until("the server is asked again", || a.fsync(&file).is_ok());
    write(&a, &file, 0, b"here");
    assert_eq!(read(&a, ino)[..4], *b"here");
    a.shutdown();
}

#[test]
fn a_data_server_that_comes_again_gets_what_was_kept_back() {
    let mut site = Site::new(1);
    let a = client(&site, 900);
    let (ino, file) = keeping(&a, "f");
    write_back(&a, &file, 0, b"kept");
    site.kill_data(0);
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| a.fsync(&file));
        site.start_data(0);
        assert_eq!(synced.join().unwrap(), Ok(()));
    });
    assert_eq!((read(&a, ino), a.status().back.lost), (b"kept".to_vec(), 0));
    a.shutdown();
}

#[test]
fn who_may_keep_back_and_is_silent_is_given_up_before_others_get_the_file() {
    let sessions = SessionLimits { silence: Duration::from_secs(4), ..SessionLimits::default() };
    let site = Site::with(1, MetadataOptions { sessions, ..options() });
    let a = client(&site, 900);
    let silent = site.session();
    let ino = silent.create("f", 1).unwrap().ino;
    silent.begin(ino, 1).unwrap();
    let wish = KeepWrites { head: silent.head(), ino, opening: 1 };
    until("it may keep back", || silent.try_ask(&wish).unwrap().granted);
    let file = a.open(Ino::from_raw(ino).unwrap(), READ).unwrap();
    assert_eq!(site.service().lease_counts().lapsed, 0, "it was not passed over");
    assert!(silent.try_ask(&wish).is_err(), "it was given up");
    a.close(file.number);
    a.shutdown();
}

#[test]
fn only_who_is_alone_may_keep_back() {
    let site = Site::new(1);
    let (one, other) = (site.session(), site.session());
    let ino = one.create("f", 1).unwrap().ino;
    let wish = KeepWrites { head: one.head(), ino, opening: 1 };
    one.begin(ino, 1).unwrap();
    assert_eq!(other.try_ask(&KeepWrites { head: other.head(), ..wish }), Err(Errno::EBADF));
    other.open(ino, 1, false).unwrap();
    assert!(!one.try_ask(&wish).unwrap().granted);
    assert_eq!(other.try_ask(&KeepWrites { head: other.head(), ..wish }), Err(Errno::EBADF));
    other.close(1);
    until("it is alone", || one.try_ask(&wish).unwrap().granted);
    // With its opening the right ends: nobody who looks later has to wait for it.
    one.close(1);
    assert_eq!(other.attr(ino).unwrap().size, 0);
    assert_eq!(site.service().lease_counts().recalled, 0);
}

#[test]
fn after_a_restart_of_the_metadata_server_what_was_answered_is_seen() {
    let sessions = SessionLimits { silence: Duration::from_secs(3), ..SessionLimits::default() };
    let mut site = Site::with(1, MetadataOptions { sessions, ..options() });
    let (a, b) = (client(&site, 900), client(&site, 901));
    for n in 0..3 {
        let (ino, file) = keeping(&a, &format!("f{n}"));
        let want = bytes(3000, n);
        write_back(&a, &file, 0, &want);
        site.kill();
        site.start();
        site.wait_for(1);
        assert_eq!(b.getattr(ino).unwrap().size, 3000);
        assert_eq!(read(&b, ino), want);
        a.close(file.number);
    }
    a.shutdown();
    b.shutdown();
}

/// Goal: a data server that fills up while writes are kept back says so at the next `fsync` where what was answered is lost; what is there is a part of what was
/// answered and nothing else (S-336). Method: real data servers without room.
#[test]
fn a_data_server_that_fills_up_is_an_error_of_the_next_fsync() {
    let mut data = DataSite::new(1);
    (data.memory, data.ssd) = (8 << 20, Some(8 << 20));
    data.start();
    let site = Site::of(vec![data], options());
    let a = client(&site, 900);
    let (ino, file) = keeping(&a, "f");
    let mut end = 1u64;
    // As a program that does not look at what each write says.
    while a.status().back.lost == 0 && end < 64 << 20 {
        let _ = a.write(&file, end, &[7; 64 << 10], WriteHow::default());
        end += 64 << 10;
    }
    assert!(a.status().back.lost > 0, "there was room when they were answered, and none when they were sent");
    assert_eq!(a.fsync(&file), Err(Errno::ENOSPC), "what was answered and is lost is said");
    assert_eq!(a.status().back.bytes, 0);
    // What is there is what was written, or a hole.
    let got = read(&a, ino);
    assert!(got[1..].iter().all(|byte| [0, 7].contains(byte)));
    a.setattr(ino, &SetattrArgs { size: Some(0), ..SetattrArgs::default() }).unwrap();
    until("with room again it goes on", || a.fsync(&file).is_ok());
    write(&a, &file, 0, b"here");
    assert_eq!((a.fsync(&file), read(&a, ino)), (Ok(()), b"here".to_vec()));
    a.close(file.number);
    a.shutdown();
}
