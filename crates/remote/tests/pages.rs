//! Goal: bytes that a mount keeps save requests, and are never read when they are not true any more, whoever changes them and however: another mount, this
//! one, a server that is started again, a mount that is silent. Method: the real services behind real sockets, and clients without a kernel; the kernel's
//! pages are in `tests/cluster` and `tests/coherence`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use fuse::SetattrArgs;
use proto::{
    Method,
    attr::Caller,
    leases::{Keep, keeps},
};
use remote::{Access, AllocateArgs, OpenFile, Place, Remote, RemoteOptions, WriteHow};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    cluster::{Site, options},
    credentials, until,
};
use types::Ino;
use wire::schema::Lane;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const READ: Access = Access { read: true, write: false, exclusive: false, no_atime: true };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };
const APPEND: WriteHow = WriteHow { append: true, sync: false, kill_suidgid: false };

fn client_with(site: &Site, node: u64, cache: u64) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], credentials(node));
    options.patience = Duration::from_secs(20);
    options.longest = Duration::from_secs(40);
    options.cache = cache;
    Remote::start(options).unwrap()
}

fn client(site: &Site, node: u64) -> Arc<Remote> {
    client_with(site, node, 64 << 20)
}

fn root(name: &str) -> Place<'_> {
    Place { dir: Ino::ROOT, name: name.as_bytes() }
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n / 7 + n % 251) as u8 ^ seed).collect()
}

fn write_all(client: &Remote, file: &OpenFile, offset: u64, bytes: &[u8]) {
    let mut at = 0;
    while at < bytes.len() {
        at += client.write(file, offset + at as u64, &bytes[at..], WriteHow::default()).unwrap();
    }
}

fn make(client: &Remote, name: &str, bytes: &[u8]) -> Ino {
    let (attr, file) = client.create(CALLER, root(name), 0o644, BOTH).unwrap();
    write_all(client, &file, 0, bytes);
    client.close(file.number);
    attr.ino
}

fn read(client: &Remote, file: &OpenFile, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let n = client.read(file, offset, &mut buf).unwrap();
    buf.truncate(n);
    buf
}

/// What is wrong in a few words.
fn same_bytes(got: &[u8], want: &[u8]) {
    let first = got.iter().zip(want).position(|(a, b)| a != b);
    assert!(got == want, "{} bytes instead of {}, the first other one at {first:?}", got.len(), want.len());
}

fn asked(client: &Remote, methods: &[Method]) -> u64 {
    let counts = client.meter().counts();
    counts.iter().filter(|one| methods.contains(&one.method)).map(|one| one.requests).sum()
}

fn of_data(client: &Remote) -> u64 {
    asked(client, &[Method::Read, Method::Attrs])
}

/// Without what a mount asks from time to time by itself, however long it takes.
fn for_programs(client: &Remote) -> u64 {
    let counts = client.meter().counts();
    counts.iter().filter(|one| one.method.lane() != Lane::Control).map(|one| one.requests).sum()
}

/// An opening of which bytes are kept: what is read again costs no request.
fn kept(client: &Remote, ino: Ino, access: Access) -> Arc<OpenFile> {
    let file = client.open(ino, access).unwrap();
    until("its bytes are kept", || {
        read(client, &file, 0, 1);
        let before = of_data(client);
        read(client, &file, 0, 1);
        of_data(client) == before
    });
    file
}

fn size(size: u64) -> SetattrArgs {
    SetattrArgs { size: Some(size), ..SetattrArgs::default() }
}

#[test]
fn small_reads_in_a_row_need_few_requests() {
    let site = Site::new(3);
    let (a, plain) = (client(&site, 900), client_with(&site, 901, 0));
    let want = bytes(300 * 4096, 1);
    let ino = make(&a, "f", &want);
    let mut requests = Vec::new();
    for client in [&plain, &a] {
        let file = if client.status().kept.files == 0 { client.open(ino, READ).unwrap() } else { panic!() };
        if Arc::ptr_eq(client, &a) {
            until("its bytes may be kept", || {
                read(client, &file, u64::MAX >> 2, 1);
                client.status().kept.files == 1
            });
        }
        let before = for_programs(client);
        for n in 0..300 {
            same_bytes(&read(client, &file, n * 4096, 4096), &want[n as usize * 4096..][..4096]);
        }
        assert!(read(client, &file, 300 * 4096, 4096).is_empty());
        requests.push(for_programs(client) - before);
        client.close(file.number);
    }
    println!("requests without and with: {requests:?}");
    // 19 chunks; a lease that is late on a busy machine has some asked for again.
    assert!(requests[0] >= 300 && requests[1] <= 60, "{requests:?}");
    // Again, and in any order: none, unless a lease is late.
    let file = kept(&a, ino, READ);
    let mut before = 0;
    let none_is_needed = (0..5).any(|_| {
        before = of_data(&a);
        for n in (0..300).rev() {
            same_bytes(&read(&a, &file, n * 4096 + 5, 1000), &want[n as usize * 4096 + 5..][..1000]);
        }
        of_data(&a) == before
    });
    assert!(none_is_needed && a.status().cache.found >= 300);
    // Large ones go past it.
    same_bytes(&read(&a, &file, 0, 1 << 20), &want[..1 << 20]);
    assert!(of_data(&a) > before);
    a.shutdown();
    plain.shutdown();
}

#[test]
fn no_more_bytes_are_kept_than_may_be() {
    let site = Site::new(1);
    let a = client_with(&site, 900, 1 << 20);
    let want = bytes(6 << 20, 2);
    let file = kept(&a, make(&a, "f", &want), READ);
    for n in (0..want.len() as u64 - 100).step_by(9973) {
        assert_eq!(read(&a, &file, n, 100), want[n as usize..][..100]);
        assert!(a.status().cache.bytes <= 1 << 20);
    }
    a.shutdown();
}

#[test]
fn what_another_changes_is_read_at_once() {
    let site = Site::new(2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let mut want = bytes(300_000, 3);
    let ino = make(&a, "f", &want);
    for n in 0..4u8 {
        let file = kept(&b, ino, READ);
        same_bytes(&read(&b, &file, 0, 300_000), &want);
        let other = a.open(ino, BOTH).unwrap();
        assert_eq!(b.status().kept.files, 0, "the opening alone asks it back");
        for m in 0..3 {
            let at = 70_000 * u64::from(n) + m;
            write_all(&a, &other, at, &[n, 77, n]);
            want[at as usize..at as usize + 3].copy_from_slice(&[n, 77, n]);
            same_bytes(&read(&b, &file, 0, 300_000), &want);
        }
        a.close(other.number);
        b.close(file.number);
        // By its name, without an opening.
        let file = kept(&b, ino, READ);
        a.setattr(ino, &size(want.len() as u64 - 10)).unwrap();
        want.truncate(want.len() - 10);
        same_bytes(&read(&b, &file, 0, 400_000), &want);
        // An attribute that is no bytes' leaves them.
        drop(kept(&b, ino, READ));
        let before = of_data(&b);
        a.setattr(ino, &SetattrArgs { mode: Some(0o600 + u32::from(n)), ..SetattrArgs::default() }).unwrap();
        assert_eq!(read(&b, &file, 0, 10), want[..10]);
        assert_eq!(of_data(&b), before);
    }
    a.shutdown();
    b.shutdown();
}

#[test]
fn who_alone_writes_a_file_reads_what_it_wrote() {
    let site = Site::new(2);
    let a = client(&site, 900);
    let mut want = bytes(200_000, 4);
    let ino = make(&a, "f", &want);
    let file = kept(&a, ino, BOTH);
    let same = |want: &[u8]| {
        same_bytes(&read(&a, &file, 0, 500_000), want);
        let before = of_data(&a);
        same_bytes(&read(&a, &file, 0, 500_000), want);
        assert_eq!(of_data(&a), before, "and keeps it");
    };
    for n in 0..6u64 {
        let at = (n * 37_000) as usize;
        want.resize(want.len().max(at + 5000), 0);
        want[at..at + 5000].fill(n as u8 + 1);
        write_all(&a, &file, at as u64, &vec![n as u8 + 1; 5000]);
        same(&want);
        assert_eq!(a.write(&file, 0, &[9; 3], APPEND).unwrap(), 3);
        want.extend([9; 3]);
        same(&want);
        let cut = want.len() - 1234;
        a.setattr(ino, &size(cut as u64)).unwrap();
        want.truncate(cut);
        same(&want);
        a.setattr(ino, &size(cut as u64 + 10_000)).unwrap();
        want.resize(cut + 10_000, 0);
        same(&want);
        a.allocate(&file, AllocateArgs { offset: 100, length: 66_000, mode: 3 }).unwrap();
        want[100..66_100].fill(0);
        same(&want);
    }
    a.shutdown();
}

/// The number that a file of them says everywhere.
fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

#[test]
fn no_read_gives_what_was_there_before_a_write_that_was_answered() {
    let site = Site::new(2);
    let clients = [client(&site, 900), client(&site, 901), client(&site, 902)];
    let ino = make(&clients[0], "f", &[0; 200_000]);
    let (written, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for client in &clients[1..] {
            for thread in 0..2u64 {
                let (written, over) = (&written, &over);
                scope.spawn(move || {
                    let mut last = 0;
                    while !over.load(Ordering::Acquire) {
                        let file = client.open(ino, READ).unwrap();
                        for n in 0..40 {
                            let least = written.load(Ordering::Acquire).max(last);
                            let got = number(&read(client, &file, (n * 7 + thread) % 24 * 8192, 8));
                            assert!(got >= least, "{got} after {least}");
                            // Another cell may have been written later.
                            last = least;
                        }
                        client.close(file.number);
                    }
                });
            }
        }
        for n in 1..60u64 {
            let file = clients[0].open(ino, BOTH).unwrap();
            write_all(&clients[0], &file, 0, &n.to_le_bytes().repeat(25_000));
            written.store(n, Ordering::Release);
            clients[0].close(file.number);
            if n % 6 == 0 {
                // It is kept again.
                let before: u64 = clients[1..].iter().map(|client| client.status().cache.found).sum();
                until("bytes are kept again", || {
                    clients[1..].iter().map(|client| client.status().cache.found).sum::<u64>() > before
                });
            }
        }
        over.store(true, Ordering::Release);
    });
    assert!(clients[1..].iter().all(|client| client.kept().recalled >= 5));
    clients.iter().for_each(|client| client.shutdown());
}

#[test]
fn who_keeps_bytes_and_is_silent_holds_no_writer_up_for_long() {
    let sessions = SessionLimits { silence: Duration::from_secs(10), ..SessionLimits::default() };
    let site = Site::with(1, MetadataOptions { sessions, ..options() });
    let a = client(&site, 900);
    let ino = make(&a, "f", b"1");
    let silent = site.session();
    let keep = || silent.try_ask(&Keep { head: silent.head(), ino: ino.get() }).unwrap();
    until("it may be kept", || keep().keeps == keeps::BYTES);
    assert_eq!(keep().term_ms, 2000);
    let file = a.open(ino, BOTH).unwrap();
    write_all(&a, &file, 0, b"2");
    assert_eq!(site.service().lease_counts().lapsed, 1);
    assert_eq!(keep().keeps, 0, "while somebody has it open for writing");
    a.close(file.number);
    a.shutdown();
}

#[test]
fn after_a_restart_of_the_metadata_server_bytes_are_true() {
    let sessions = SessionLimits { silence: Duration::from_secs(3), ..SessionLimits::default() };
    let mut site = Site::with(1, MetadataOptions { sessions, ..options() });
    let (a, b) = (client(&site, 900), client(&site, 901));
    let ino = make(&a, "f", b"1");
    let writer = a.open(ino, BOTH).unwrap();
    write_all(&a, &writer, 0, b"2");
    let reader = b.open(ino, READ).unwrap();
    for n in b'3'..b'6' {
        site.kill();
        site.start();
        site.wait_for(1);
        // Whoever asks first: the writer may not know yet.
        let other = b.open(ino, READ).unwrap();
        assert_eq!(b.status().kept.files, 0, "nothing is granted before all are back");
        write_all(&a, &writer, 0, &[n]);
        assert_eq!(read(&b, &reader, 0, 9), [n]);
        assert_eq!(read(&b, &other, 0, 9), [n]);
        b.close(other.number);
    }
    a.close(writer.number);
    drop(kept(&b, ino, READ));
    assert_eq!(read(&b, &reader, 0, 9), b"5");
    a.shutdown();
    b.shutdown();
}
