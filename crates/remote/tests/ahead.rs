//! Goal: what is asked for ahead of large reads saves waiting, is bounded, and is never read when it is not true any more, whoever changes the file and
//! however; what does not come is asked for again and nobody's error. Method: the real services behind real sockets, and clients without a kernel.
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
use proto::attr::Caller;
use remote::{Access, AheadCounts, AllocateArgs, OpenFile, Place, Remote, RemoteOptions, WriteHow};
use site::{cluster::Site, credentials, until};
use types::Ino;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const READ: Access = Access { read: true, write: false, exclusive: false, no_atime: true };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };
const MIB: usize = 1 << 20;

fn client_with(site: &Site, node: u64, read_ahead: u64) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], credentials(node));
    options.patience = Duration::from_secs(20);
    options.longest = Duration::from_secs(40);
    options.read_ahead = read_ahead;
    Remote::start(options).unwrap()
}

fn client(site: &Site, node: u64) -> Arc<Remote> {
    client_with(site, node, 64 << 20)
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
    let place = Place { dir: Ino::ROOT, name: name.as_bytes() };
    let (attr, file) = client.create(CALLER, place, 0o644, BOTH).unwrap();
    write_all(client, &file, 0, bytes);
    client.close(file.number);
    attr.ino
}

fn read(client: &Remote, file: &OpenFile, offset: usize, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let n = client.read(file, offset as u64, &mut buf).unwrap();
    buf.truncate(n);
    buf
}

/// What is wrong in a few words.
fn same_bytes(got: &[u8], want: &[u8]) {
    let first = got.iter().zip(want).position(|(a, b)| a != b);
    assert!(got == want, "{} bytes instead of {}, the first other one at {first:?}", got.len(), want.len());
}

fn counts(client: &Remote) -> AheadCounts {
    client.status().ahead
}

/// An opening of which bytes may be kept.
fn leased(client: &Remote, ino: Ino, access: Access) -> Arc<OpenFile> {
    let file = client.open(ino, access).unwrap();
    until("its bytes may be kept", || {
        read(client, &file, usize::MAX >> 2, 1);
        client.status().kept.files > 0
    });
    file
}

/// From the beginning to the end, as a program does. How many reads were answered with what was asked for ahead.
fn read_through(client: &Remote, file: &OpenFile, want: &[u8], len: usize) -> u64 {
    let before = counts(client).found;
    let mut at = 0;
    while at < want.len() {
        let got = read(client, file, at, len);
        same_bytes(&got, &want[at..want.len().min(at + len)]);
        at += got.len();
    }
    assert!(read(client, file, at, len).is_empty());
    counts(client).found - before
}

fn size(size: u64) -> SetattrArgs {
    SetattrArgs { size: Some(size), ..SetattrArgs::default() }
}

#[test]
fn large_reads_in_a_row_find_what_they_want() {
    let site = Site::new(3);
    let (a, plain) = (client(&site, 900), client_with(&site, 901, 0));
    let want = bytes(24 * MIB + 12_345, 1);
    let ino = make(&a, "f", &want);
    let file = leased(&a, ino, READ);
    // The first two, those without a connection yet, and the last one do not.
    assert!(read_through(&a, &file, &want, MIB) >= 16);
    // From the beginning again, and with lengths that are no block's.
    assert!(read_through(&a, &file, &want, MIB) >= 20);
    assert!(read_through(&a, &file, &want, 700_001) >= 25);
    assert!(read_through(&a, &file, &want, 3 * MIB) >= 4);
    let AheadCounts { asked, unread, .. } = counts(&a);
    assert!(unread * 4 < asked, "{unread} of {asked} were asked for in vain");
    a.close(file.number);
    until("nothing is on its way", || counts(&a).bytes == 0);
    let file = leased(&plain, ino, READ);
    assert_eq!(read_through(&plain, &file, &want, MIB), 0);
    assert_eq!(counts(&plain), AheadCounts::default());
    a.shutdown();
    plain.shutdown();
}

#[test]
fn holes_and_the_end_are_read_as_they_are() {
    let site = Site::new(2);
    let a = client(&site, 900);
    let mut want = bytes(3 * MIB, 2);
    let ino = make(&a, "f", &want);
    let file = leased(&a, ino, BOTH);
    // Holes at the beginning and the middle of blocks, a part that was never written, and an end that is only a size.
    want.resize(14 * MIB + 5, 0);
    for (at, len) in [(5 * MIB + 77, 100), (9 * MIB, 2 * MIB + 1)] {
        let piece = bytes(len, 3);
        write_all(&a, &file, at as u64, &piece);
        want[at..at + len].copy_from_slice(&piece);
    }
    a.allocate(&file, AllocateArgs { offset: MIB as u64, length: MIB as u64, mode: 3 }).unwrap();
    want[MIB..2 * MIB].fill(0);
    a.setattr(ino, &size(want.len() as u64)).unwrap();
    for len in [MIB, MIB - 4096, 2 * MIB + 3] {
        read_through(&a, &file, &want, len);
    }
    a.shutdown();
}

#[test]
fn several_openings_have_a_bound_together() {
    let site = Site::new(1);
    let limit = 6 * MIB as u64;
    let a = client_with(&site, 900, limit);
    let want = bytes(12 * MIB, 4);
    let ino = make(&a, "f", &want);
    let files: Vec<_> = (0..5).map(|_| leased(&a, ino, READ)).collect();
    for at in (0..want.len()).step_by(MIB) {
        for file in &files {
            same_bytes(&read(&a, file, at, MIB), &want[at..at + MIB]);
            assert!(counts(&a).bytes <= limit, "{:?}", counts(&a));
        }
    }
    assert!(counts(&a).found > 5, "{:?}", counts(&a));
    // Threads of one opening at once.
    std::thread::scope(|scope| {
        for file in &files {
            for _ in 0..2 {
                scope.spawn(|| {
                    for at in (0..want.len()).step_by(MIB) {
                        same_bytes(&read(&a, file, at, MIB), &want[at..at + MIB]);
                    }
                });
            }
        }
    });
    files.iter().for_each(|file| a.close(file.number));
    until("nothing is on its way", || counts(&a).bytes == 0);
    a.shutdown();
}

#[test]
fn what_another_changes_in_the_middle_is_read_at_once() {
    let site = Site::new(2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let mut want = bytes(10 * MIB, 5);
    let ino = make(&a, "f", &want);
    for round in 0..3u8 {
        // Without the holes that the last round left.
        want = bytes(10 * MIB, round);
        let writer = a.open(ino, BOTH).unwrap();
        write_all(&a, &writer, 0, &want);
        a.close(writer.number);
        let file = leased(&b, ino, READ);
        // The first read at each of two data servers makes the connection.
        for n in 0..6 {
            same_bytes(&read(&b, &file, n * MIB, MIB), &want[n * MIB..(n + 1) * MIB]);
        }
        assert!(counts(&b).bytes > 0, "some of what follows is there");
        let other = a.open(ino, BOTH).unwrap();
        for n in 6..9 {
            let piece = vec![round ^ n as u8; 3000];
            write_all(&a, &other, (n * MIB + 50) as u64, &piece);
            want[n * MIB + 50..n * MIB + 3050].copy_from_slice(&piece);
            same_bytes(&read(&b, &file, n * MIB, MIB), &want[n * MIB..(n + 1) * MIB]);
        }
        a.close(other.number);
        // Cut by another, while it is read.
        let file = leased(&b, ino, READ);
        for n in 0..3 {
            same_bytes(&read(&b, &file, n * MIB, MIB), &want[n * MIB..(n + 1) * MIB]);
        }
        let cut = 3 * MIB + 1000;
        a.setattr(ino, &size(cut as u64)).unwrap();
        same_bytes(&read(&b, &file, 3 * MIB, MIB), &want[3 * MIB..cut]);
        a.setattr(ino, &size(want.len() as u64)).unwrap();
        want[cut..].fill(0);
        same_bytes(&read(&b, &file, 4 * MIB, MIB), &want[4 * MIB..5 * MIB]);
        b.close(file.number);
    }
    a.shutdown();
    b.shutdown();
}

#[test]
fn who_reads_reads_what_it_changed_itself() {
    let site = Site::new(2);
    let a = client(&site, 900);
    let mut want = bytes(12 * MIB, 6);
    let ino = make(&a, "f", &want);
    let file = leased(&a, ino, BOTH);
    let before = counts(&a).found;
    // What follows is changed while it may be on its way.
    for n in 0..12 {
        same_bytes(&read(&a, &file, n * MIB, MIB), &want[n * MIB..(n + 1) * MIB]);
        let at = ((n + 2) * MIB).min(11 * MIB) + n;
        write_all(&a, &file, at as u64, &[n as u8; 9000]);
        want[at..at + 9000].fill(n as u8);
    }
    same_bytes(&read(&a, &file, 0, 4 * MIB), &want[..4 * MIB]);
    // Read, changed and written back, piece by piece: what is ahead stays.
    for n in 0..12 {
        let mut piece = read(&a, &file, n * MIB, MIB);
        same_bytes(&piece, &want[n * MIB..(n + 1) * MIB]);
        piece.iter_mut().for_each(|byte| *byte ^= 0x55);
        write_all(&a, &file, (n * MIB) as u64, &piece);
        want[n * MIB..(n + 1) * MIB].copy_from_slice(&piece);
    }
    assert!(counts(&a).found - before >= 6, "{:?}", counts(&a));
    for n in 0..4 {
        same_bytes(&read(&a, &file, n * MIB, MIB), &want[n * MIB..(n + 1) * MIB]);
    }
    a.setattr(ino, &size(4 * MIB as u64 + 9)).unwrap();
    same_bytes(&read(&a, &file, 4 * MIB, MIB), &want[4 * MIB..4 * MIB + 9]);
    assert!(read(&a, &file, 5 * MIB, MIB).is_empty());
    a.shutdown();
}

/// Every so many records one, from one of them on. How many were answered with what was asked for ahead.
fn read_records(
    client: &Remote,
    file: &OpenFile,
    want: &[u8],
    (len, first, of): (usize, usize, usize),
) -> u64 {
    let before = counts(client).found;
    for at in (first * len..want.len()).step_by(of * len) {
        same_bytes(&read(client, file, at, len), &want[at..want.len().min(at + len)]);
    }
    counts(client).found - before
}

#[test]
fn records_at_a_constant_distance_find_what_they_want() {
    let site = Site::new(3);
    let a = client(&site, 900);
    let len = 47_008;
    let want = bytes(12 * MIB + 12_345, 1);
    let ino = make(&a, "f", &want);
    let all = (want.len() / len) as u64;
    // The first two do not find it, those without a connection yet, and those at the end. With what lies between them, and without.
    for (first, of) in [(0, 2), (1, 2), (2, 3), (5, 9)] {
        let file = leased(&a, ino, READ);
        let before = counts(&a).asked;
        let (found, records) = (read_records(&a, &file, &want, (len, first, of)), all / of as u64);
        assert!(found * 10 >= records * 7, "{found} of {records}");
        let asked = counts(&a).asked - before;
        assert!(
            if of == 2 { asked < records / 3 } else { asked <= 2 * records + 40 },
            "{asked} for {records}"
        );
        a.close(file.number);
    }
    // Here and there, and short ones, nothing is.
    let (file, before) = (leased(&a, ino, READ), counts(&a));
    for n in [3, 90, 17, 200, 44, 171, 5, 230] {
        same_bytes(&read(&a, &file, n * len, len), &want[n * len..(n + 1) * len]);
    }
    assert_eq!(counts(&a).asked, before.asked);
    a.close(file.number);
    until("nothing is on its way", || counts(&a).bytes == 0);
    a.shutdown();
}

#[test]
fn records_that_are_changed_meanwhile_are_read_as_they_are() {
    let site = Site::new(2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let len = 47_008;
    let mut want = bytes(8 * MIB, 3);
    let ino = make(&a, "f", &want);
    let file = leased(&a, ino, BOTH);
    // Each is changed after it was read, and the one after the next before.
    for n in (0..want.len() / len - 4).step_by(2) {
        let at = n * len;
        same_bytes(&read(&a, &file, at, len), &want[at..at + len]);
        for at in [at, at + 4 * len] {
            let new = bytes(len, n as u8 | 1);
            write_all(&a, &file, at as u64, &new);
            want[at..at + len].copy_from_slice(&new);
        }
    }
    a.close(file.number);
    // Another one changes what this one has asked for.
    let file = leased(&a, ino, READ);
    read_records(&a, &file, &want[..40 * len], (len, 0, 2));
    let other = b.open(ino, BOTH).unwrap();
    for n in [40, 42, 46, 60] {
        let new = bytes(len, n as u8);
        write_all(&b, &other, (n * len) as u64, &new);
        want[n * len..(n + 1) * len].copy_from_slice(&new);
        same_bytes(&read(&a, &file, n * len, len), &want[n * len..(n + 1) * len]);
    }
    b.close(other.number);
    read_records(&a, &file, &want, (len, 0, 2));
    a.shutdown();
    b.shutdown();
}

/// The number that a block of them says everywhere.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|eight| u64::from_le_bytes(eight.try_into().unwrap()))
}

#[test]
fn no_large_read_gives_what_was_there_before_a_write_that_was_answered() {
    let site = Site::new(2);
    let clients = [client(&site, 900), client(&site, 901), client(&site, 902)];
    let ino = make(&clients[0], "f", &vec![0; 8 * MIB]);
    let (written, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for client in &clients[1..] {
            for _ in 0..2 {
                let (written, over) = (&written, &over);
                scope.spawn(move || {
                    while !over.load(Ordering::Acquire) {
                        let file = client.open(ino, READ).unwrap();
                        for n in 0..8 {
                            let least = written.load(Ordering::Acquire);
                            let got = read(client, &file, n * MIB, MIB);
                            assert_eq!(got.len(), MIB);
                            let oldest = numbers(&got).min().unwrap();
                            assert!(oldest >= least, "{oldest} after {least}");
                        }
                        client.close(file.number);
                    }
                });
            }
        }
        for n in 1..25u64 {
            let file = clients[0].open(ino, BOTH).unwrap();
            write_all(&clients[0], &file, 0, &n.to_le_bytes().repeat(MIB));
            written.store(n, Ordering::Release);
            clients[0].close(file.number);
            if n % 4 == 0 {
                let found = || clients[1..].iter().map(|client| counts(client).found).sum::<u64>();
                let before = found();
                until("something is asked for ahead again", || found() > before);
            }
        }
        over.store(true, Ordering::Release);
    });
    clients.iter().for_each(|client| client.shutdown());
}

#[test]
fn a_data_server_that_goes_is_no_error_of_what_was_asked_for_ahead() {
    let mut site = Site::new(2);
    let a = client(&site, 900);
    let want = bytes(16 * MIB, 7);
    let ino = make(&a, "f", &want);
    let file = leased(&a, ino, READ);
    for round in 0..2 {
        for n in 0..16 {
            if n == 6 {
                (0..2).for_each(|server| site.kill_data(server));
                (0..2).for_each(|server| site.start_data(server));
            }
            same_bytes(&read(&a, &file, n * MIB, MIB), &want[n * MIB..(n + 1) * MIB]);
        }
        assert!(counts(&a).found > 0, "round {round}");
    }
    a.shutdown();
}
