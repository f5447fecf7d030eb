//! Goal: clients of one cluster see each other's changes at once, lose nothing by a server that was started again, and get errors in
//! time from one that is away. Method: the real services behind real sockets, and clients without a kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fuse::SetattrArgs;
use proto::attr::Caller;
use remote::{Access, AllocateArgs, OpenFile, Place, Remote, RemoteOptions, WriteHow};
use serve::metadata::MetadataOptions;
use site::{cluster::Site, credentials, until};
use types::{Errno, Ino, SAU_BYTES};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };
const APPEND: WriteHow = WriteHow { append: true, sync: false, kill_suidgid: false };

fn client(site: &Site, node: u64) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], credentials(node));
    options.patience = Duration::from_secs(5);
    options.longest = Duration::from_secs(20);
    Remote::start(options).unwrap()
}

fn root(name: &str) -> Place<'_> {
    Place { dir: Ino::ROOT, name: name.as_bytes() }
}

fn create(client: &Remote, name: &str) -> Arc<OpenFile> {
    client.create(CALLER, root(name), 0o644, BOTH).unwrap().1
}

fn write_all(client: &Remote, file: &OpenFile, offset: u64, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done as u64;
        done += client.write(file, at, &bytes[done..], WriteHow::default()).unwrap();
    }
}

fn read_all(client: &Remote, file: &OpenFile, len: usize) -> Vec<u8> {
    let (mut bytes, mut done) = (vec![0xee; len + 1], 0);
    loop {
        match client.read(file, done as u64, &mut bytes[done..]).unwrap() {
            0 => return bytes[..done].to_vec(),
            n => done += n,
        }
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| ((i / 512) * 7 + i + seed) as u8).collect()
}

#[test]
fn both_see_what_either_did() {
    let site = Site::new(3);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let len = 3 * SAU_BYTES as usize + 12345;
    let bytes = pattern(len, 1);
    let of_a = create(&a, "f");
    write_all(&a, &of_a, 0, &bytes);
    let attr = b.lookup(root("f")).unwrap();
    assert_eq!(attr.size, len as u64);
    let of_b = b.open(attr.ino, BOTH).unwrap();
    assert!(read_all(&b, &of_b, len) == bytes, "a striped file is read by another client");
    write_all(&b, &of_b, SAU_BYTES - 3, b"across");
    let mut six = [0; 6];
    assert_eq!(a.read(&of_a, SAU_BYTES - 3, &mut six).unwrap(), 6);
    assert_eq!(&six, b"across");

    b.setattr(attr.ino, &SetattrArgs { size: Some(10), ..SetattrArgs::default() }).unwrap();
    assert_eq!(read_all(&a, &of_a, 20), bytes[..10]);
    write_all(&a, &of_a, 2 * SAU_BYTES, b"z");
    let mut want = vec![0; 2 * SAU_BYTES as usize + 1];
    want[..10].copy_from_slice(&bytes[..10]);
    want[2 * SAU_BYTES as usize] = b'z';
    assert!(read_all(&b, &of_b, want.len()) == want, "what was cut is zeros");
    assert_eq!(b.seek(&of_b, 0, 3).unwrap(), 0);
    assert_eq!(b.seek(&of_b, 2 * SAU_BYTES + 1, 3), Err(Errno::ENXIO));

    b.unlink(root("f")).unwrap();
    assert_eq!(a.lookup(root("f")), Err(Errno::ENOENT));
    assert!(read_all(&a, &of_a, want.len()) == want, "an open file lives on");
    a.shutdown();
    b.shutdown();
}

#[test]
fn appends_of_two_clients_are_all_there() {
    let site = Site::new(2);
    let clients = [client(&site, 900), client(&site, 901)];
    create(&clients[0], "log");
    std::thread::scope(|scope| {
        for (n, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                let ino = client.lookup(root("log")).unwrap().ino;
                let file = client.open(ino, BOTH).unwrap();
                for i in 0..100 {
                    let line = format!("{n} {i:05}\n");
                    assert_eq!(client.write(&file, 0, line.as_bytes(), APPEND).unwrap(), line.len());
                }
                client.close(file.number);
            });
        }
    });
    let ino = clients[0].lookup(root("log")).unwrap().ino;
    let file = clients[0].open(ino, BOTH).unwrap();
    let text = String::from_utf8(read_all(&clients[0], &file, 1600)).unwrap();
    for n in 0..2 {
        let mine: Vec<&str> = text.lines().filter(|line| line.starts_with(&n.to_string())).collect();
        let want: Vec<String> = (0..100).map(|i| format!("{n} {i:05}")).collect();
        assert_eq!(mine, want);
    }
    clients.iter().for_each(|client| client.shutdown());
}

#[test]
fn allocated_and_punched_space_is_zeros() {
    let site = Site::new(2);
    let a = client(&site, 900);
    let file = create(&a, "f");
    let len = 2 * SAU_BYTES as usize;
    write_all(&a, &file, 0, &vec![7; len]);
    a.allocate(&file, AllocateArgs { offset: SAU_BYTES - 4096, length: 8192, mode: 3 }).unwrap();
    let bytes = read_all(&a, &file, len);
    let hole = SAU_BYTES as usize - 4096..SAU_BYTES as usize + 4096;
    assert!(bytes[hole.clone()].iter().all(|b| *b == 0) && bytes[hole.end..].iter().all(|b| *b == 7));
    a.allocate(&file, AllocateArgs { offset: 0, length: 3 * SAU_BYTES, mode: 0 }).unwrap();
    assert_eq!(a.getattr(file.ino).unwrap().size, 3 * SAU_BYTES);
    a.shutdown();
}

/// The keeper held a lock while it asked, which making a session takes: nothing went on after a restart.
#[test]
fn regression_a_session_is_made_in_place_of_a_lost_one() {
    let mut site = Site::new(2);
    let a = client(&site, 900);
    let (file, bytes) = (create(&a, "f"), pattern(100_000, 5));
    write_all(&a, &file, 0, &bytes);
    let gone = create(&a, "gone");
    write_all(&a, &gone, 0, b"kept by its opening");
    a.unlink(root("gone")).unwrap();
    site.kill();
    site.start();
    // By itself, since it renews.
    until("a new session", || a.status().sessions_lost == 1);
    site.wait_for(2);
    assert!(read_all(&a, &file, bytes.len()) == bytes);
    assert_eq!(read_all(&a, &gone, 30), b"kept by its opening");
    write_all(&a, &file, 0, b"again");
    assert_eq!(read_all(&a, &file, bytes.len())[..5], *b"again");
    a.mkdir(CALLER, root("d"), 0o755).unwrap();
    a.shutdown();
}

/// A request of a program found the metadata server that was started again, and the session was to come back on the other connection. That had been
/// tried in vain for renewals, so it waited for its next attempt, up to 5 s, and the program for 2 s: `EIO`.
#[test]
fn regression_a_connection_that_is_tried_later_is_no_error() {
    // It is renewed every 2 s, and each renewal waits that long.
    let renew = Duration::from_secs(2);
    let mut site = Site::with(1, MetadataOptions { renew, ..site::cluster::options() });
    let a = Remote::start(RemoteOptions::new(vec![site.address()], credentials(900))).unwrap();
    let file = create(&a, "f");
    let path = site.address().to_string().split_once(':').unwrap().1.to_owned();
    site.kill();
    // Who listens there now sees when the connection for renewals is tried.
    let _ = std::fs::remove_file(&path);
    let nobody = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut tried = 0;
    while tried < 8 || a.status().metadata[0].away.is_none() {
        drop(nobody.accept().unwrap());
        tried += 1;
    }
    // The next attempt is due 2.5 s from now at the soonest.
    drop(nobody);
    std::fs::remove_file(&path).unwrap();
    site.start();
    a.mkdir(CALLER, root("d"), 0o755).unwrap();
    a.fsync(&file).unwrap();
    a.shutdown();
}

#[test]
fn a_data_server_that_is_away_gives_errors_in_time_and_comes_back() {
    let mut site = Site::new(1);
    let a = client(&site, 900);
    let file = create(&a, "f");
    write_all(&a, &file, 0, b"some bytes");
    a.fsync(&file).unwrap();
    site.kill_data(0);
    let begun = Instant::now();
    let mut buf = [0; 10];
    assert_eq!(a.read(&file, 0, &mut buf), Err(Errno::EIO), "an error, and no zeros");
    assert!(begun.elapsed() < Duration::from_secs(15));
    assert!(a.status().data[0].away.is_some());
    a.mkdir(CALLER, root("d"), 0o755).unwrap();
    site.start_data(0);
    until("it is read again", || a.read(&file, 0, &mut buf).is_ok());
    assert_eq!(&buf, b"some bytes");
    assert_eq!(a.status().data[0].away, None);
    a.shutdown();
}

#[test]
fn listings_and_references_add_up() {
    let site = Site::new(1);
    let (a, b) = (client(&site, 900), client(&site, 901));
    for n in 0..50 {
        let file = create(&a, &format!("f{n}"));
        a.close(file.number);
    }
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let page = b.list(Ino::ROOT, cookie, 7, true).unwrap();
        for entry in &page.entries {
            names.push(String::from_utf8(entry.name.clone()).unwrap());
            cookie = entry.cookie;
            if entry.attr.is_some() && !entry.name.starts_with(b".") {
                b.untold(entry.ino);
            }
        }
        if page.end {
            break;
        }
    }
    names.retain(|name| name.starts_with('f'));
    names.sort();
    let mut want: Vec<String> = (0..50).map(|n| format!("f{n}")).collect();
    want.sort();
    assert_eq!(names, want);
    assert_eq!((a.status().references, b.status().references), (50, 0));
    a.shutdown();
    b.shutdown();
}

/// A file whose data server is away when the session is made anew kept the whole mount from a session.
#[test]
fn regression_a_file_out_of_reach_does_not_keep_a_session_from_being_made() {
    let mut site = Site::new(2);
    let a = client(&site, 900);
    let file = create(&a, "f");
    write_all(&a, &file, 0, &pattern(SAU_BYTES as usize + 9, 3));
    a.fsync(&file).unwrap();
    site.kill_data(0);
    site.kill();
    site.start();
    until("a new session", || a.status().sessions_lost == 1);
    a.mkdir(CALLER, root("d"), 0o755).unwrap();
    site.start_data(0);
    site.wait_for(2);
    until("the file is open again", || a.file(file.number).is_ok());
    assert!(read_all(&a, &file, SAU_BYTES as usize + 9) == pattern(SAU_BYTES as usize + 9, 3));
    a.shutdown();
}

/// A metadata server that was just started knows no data server until that reports: reads ended with EIO meanwhile.
#[test]
fn regression_a_data_server_that_has_not_reported_yet_is_waited_for() {
    let mut site = Site::new(1);
    let a = client(&site, 900);
    let file = create(&a, "f");
    write_all(&a, &file, 0, b"text");
    a.close(file.number);
    a.shutdown();
    site.kill_data(0);
    site.kill();
    site.start();
    let b = client(&site, 901);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let ino = b.lookup(root("f")).unwrap().ino;
            let file = b.open(ino, Access { write: false, ..BOTH }).unwrap();
            read_all(&b, &file, 4)
        });
        std::thread::sleep(Duration::from_millis(300));
        site.start_data(0);
        assert_eq!(read.join().unwrap(), b"text");
    });
    b.shutdown();
}

/// Who looks at a file that is being written while its data server is started again had EIO, though the metadata server said that it would be
/// back soon; and writes had it as long as the metadata server paused before its next connection.
#[test]
fn regression_a_short_restart_of_a_data_server_is_no_error() {
    let mut site = Site::new(1);
    let a = client(&site, 900);
    let file = create(&a, "f");
    write_all(&a, &file, 0, b"text");
    site.kill_data(0);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| a.getattr(file.ino).map(|attr| attr.size));
        std::thread::sleep(Duration::from_millis(700));
        site.start_data(0);
        assert_eq!(looks.join().unwrap(), Ok(4));
    });
    let next = create(&a, "next");
    write_all(&a, &next, 0, b"more");
    a.shutdown();
}

/// A data server is drained, removed and switched off while two clients have files open: they find what they had, and what they write and append
/// meanwhile (S-221).
#[test]
fn open_files_follow_what_moves_off_a_data_server() {
    use proto::moving::{DrainNode, RemoveNode};

    let mut site = Site::new(3);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let len = 5 * SAU_BYTES as usize + 4321;
    let mut bytes = pattern(len, 5);
    let of_a = create(&a, "f");
    write_all(&a, &of_a, 0, &bytes);
    let of_b = b.open(of_a.ino, BOTH).unwrap();
    assert!(read_all(&b, &of_b, len) == bytes);
    let log = create(&a, "log");
    let idle = create(&b, "idle");
    write_all(&b, &idle, 0, &bytes);

    let control = site::client_to(&site.address(), site::cluster::META, wire::schema::Lane::Control);
    let node = site.data[1].node;
    site::ask(&control, &DrainNode { node, undo: false }, &[], 0).unwrap();
    let mut lines = Vec::new();
    let end = site::deadline() + Duration::from_secs(60);
    for n in 0_usize.. {
        let at = (n * 1_111_111) % (len - 5000);
        let piece = pattern(5000, n as u64);
        write_all(&a, &of_a, at as u64, &piece);
        bytes[at..at + 5000].copy_from_slice(&piece);
        let mut there = [0; 5000];
        assert_eq!(b.read(&of_b, at as u64, &mut there).unwrap(), 5000);
        assert!(there[..] == piece[..], "what one client was answered the other one sees");
        let line = format!("{n:07}\n");
        assert_eq!(a.write(&log, 0, line.as_bytes(), APPEND).unwrap(), line.len());
        lines.extend(line.into_bytes());
        if n % 16 == 15 {
            b.fsync(&of_b).unwrap();
        }
        match site::ask(&control, &RemoveNode { node }, &[], 0) {
            Ok(_) => break,
            Err(fault) => assert_eq!(Errno::from_raw(fault.errno), Errno::EBUSY, "{fault:?}"),
        }
        assert!(Instant::now() < end, "it is not drained");
    }
    site.kill_data(1);
    assert!(read_all(&b, &of_b, len) == bytes);
    assert!(read_all(&a, &of_a, len) == bytes);
    assert!(read_all(&a, &log, lines.len()) == lines);
    assert!(read_all(&b, &idle, len) == pattern(len, 5), "a file that nobody asked for meanwhile");
    assert_eq!(b.getattr(of_a.ino).unwrap().size, len as u64);
    a.shutdown();
    b.shutdown();
}
