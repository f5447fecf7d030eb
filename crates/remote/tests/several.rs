//! Goal: clients see one file system whichever metadata servers have its parts, while slots go from one to another and servers are
//! started again. Method: the real services behind real sockets, and clients without a kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use proto::attr::Caller;
use remote::{Access, OpenFile, Place, Remote, RemoteOptions, WriteHow};
use site::{credentials, several::Several, until};
use types::{Errno, Ino};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };
const APPEND: WriteHow = WriteHow { append: true, sync: false, kill_suidgid: false };

/// Whichever of the servers it hears of first.
fn client(site: &Several, node: u64, first: usize) -> Arc<Remote> {
    let mut servers = vec![site.address(0), site.address(1)];
    servers.rotate_left(first);
    let mut options = RemoteOptions::new(servers, credentials(node));
    options.patience = Duration::from_secs(20);
    options.longest = Duration::from_secs(30);
    Remote::start(options).unwrap()
}

fn at(dir: Ino, name: &str) -> Place<'_> {
    Place { dir, name: name.as_bytes() }
}

fn create(client: &Remote, dir: Ino, name: &str) -> Arc<OpenFile> {
    client.create(CALLER, at(dir, name), 0o644, BOTH).unwrap().1
}

fn names(client: &Remote, dir: Ino) -> BTreeSet<String> {
    let (mut names, mut cookie) = (BTreeSet::new(), 0);
    loop {
        let page = client.list(dir, cookie, 1000, false).unwrap();
        cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
        names.extend(page.entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
        if page.end {
            return names.into_iter().filter(|name| !name.starts_with('.')).collect();
        }
    }
}

/// Directories of both servers.
fn dirs(site: &Several, client: &Remote) -> Vec<Ino> {
    let made = (0..4).map(|n| client.mkdir(CALLER, at(Ino::ROOT, &format!("d{n}")), 0o755).unwrap().ino);
    let dirs: Vec<Ino> = made.collect();
    until("directories are where their slots belong", || {
        dirs.iter().map(|dir| site.owner(dir.get())).collect::<BTreeSet<_>>().len() == 2
    });
    dirs
}

#[test]
fn two_clients_see_one_file_system() {
    let site = Several::new(2, 2);
    let (a, b) = (client(&site, 900, 0), client(&site, 901, 1));
    let dirs = dirs(&site, &a);
    for (n, dir) in dirs.iter().enumerate() {
        let file = create(&a, *dir, "file");
        let bytes = vec![n as u8 + 1; 100_000];
        assert_eq!(a.write(&file, 0, &bytes, WriteHow::default()).unwrap(), bytes.len());
        let found = b.lookup(at(Ino::ROOT, &format!("d{n}"))).unwrap();
        assert_eq!(found.ino, *dir);
        let attr = b.lookup(at(*dir, "file")).unwrap();
        assert_eq!((attr.ino, attr.size), (file.ino, 100_000));
        let opened = b.open(attr.ino, BOTH).unwrap();
        let mut read = vec![0; 100_000];
        assert_eq!(b.read(&opened, 0, &mut read).unwrap(), read.len());
        assert!(read == bytes);
        b.close(opened.number);
        a.close(file.number);
    }
    assert_eq!(names(&b, Ino::ROOT).len(), 4);
    b.rename(at(dirs[0], "file"), at(dirs[1], "moved"), 0).unwrap();
    assert_eq!(a.lookup(at(dirs[0], "file")), Err(Errno::ENOENT));
    assert_eq!(a.lookup(at(dirs[1], "moved")).unwrap().size, 100_000);
    a.unlink(at(dirs[0], "nothing")).unwrap_err();
    assert_eq!(b.rmdir(at(Ino::ROOT, "d1")), Err(Errno::ENOTEMPTY));
    a.rename(at(Ino::ROOT, "d0"), at(dirs[1], "below"), 0).unwrap();
    b.rmdir(at(dirs[1], "below")).unwrap();
    assert_eq!(names(&a, Ino::ROOT), ["d1", "d2", "d3"].map(str::to_owned).into());
    a.shutdown();
    b.shutdown();
}

/// What one client does to files of its own in all directories. Returns where they are, and how often each log was written to.
fn work(client: &Remote, dirs: &[Ino], who: usize, ended: &AtomicBool) -> (BTreeMap<String, usize>, usize) {
    let (mut there, mut appended) = (BTreeMap::new(), 0);
    let logs: Vec<_> = dirs.iter().map(|dir| client.lookup(at(*dir, "log")).unwrap().ino).collect();
    let logs: Vec<_> = logs.into_iter().map(|ino| client.open(ino, BOTH).unwrap()).collect();
    for n in 0.. {
        if n >= 40 && ended.load(Ordering::Acquire) {
            break;
        }
        let (from, to) = (n % dirs.len(), (n + 1 + n / 3 % 3) % dirs.len());
        let name = format!("w{who}-{n}");
        let file = create(client, dirs[from], &name);
        client.close(file.number);
        there.insert(name.clone(), from);
        if n % 3 == 0 {
            client.rename(at(dirs[from], &name), at(dirs[to], &name), 0).unwrap();
            there.insert(name, to);
        } else if n % 5 == 0 {
            client.unlink(at(dirs[from], &name)).unwrap();
            there.remove(&name);
        }
        let line = format!("{who} {n:06}\n");
        assert_eq!(client.write(&logs[from], 0, line.as_bytes(), APPEND).unwrap(), line.len());
        appended += 1;
    }
    logs.iter().for_each(|log| client.close(log.number));
    (there, appended)
}

/// Goal: a slot that goes while it is used costs a wait and nothing else. Method: two clients that make, rename, remove and append, each to its
/// own names and both to the same logs, while slots are moved about; then everything is where it was put, and each line is there once.
#[test]
fn slots_move_under_clients() {
    let site = Several::new(2, 2);
    let clients = [client(&site, 900, 0), client(&site, 901, 1)];
    let dirs = dirs(&site, &clients[0]);
    for dir in &dirs {
        let log = create(&clients[0], *dir, "log");
        clients[0].close(log.number);
    }
    let ended = AtomicBool::new(false);
    let done: Vec<(BTreeMap<String, usize>, usize)> = thread::scope(|scope| {
        let (dirs, ended) = (&dirs, &ended);
        let workers: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(who, client)| scope.spawn(move || work(client, dirs, who, ended)))
            .collect();
        for n in 0..30 {
            site.bring(dirs[n % 4].get(), n / 2 % 2);
            thread::sleep(Duration::from_millis(20));
        }
        ended.store(true, Ordering::Release);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let mut lines = 0;
    for (n, dir) in dirs.iter().enumerate() {
        let expected = done.iter().flat_map(|(there, _)| there.iter().filter(|(_, at)| **at == n));
        let expected: BTreeSet<String> =
            expected.map(|(name, _)| name.clone()).chain(["log".to_owned()]).collect();
        assert_eq!(names(&clients[1], *dir), expected);
        let attr = clients[1].lookup(at(*dir, "log")).unwrap();
        let log = clients[1].open(attr.ino, BOTH).unwrap();
        let mut text = vec![0; attr.size as usize];
        let mut read = 0;
        while read < text.len() {
            read += clients[1].read(&log, read as u64, &mut text[read..]).unwrap();
        }
        let text = String::from_utf8(text).unwrap();
        let all: Vec<&str> = text.lines().collect();
        assert!(all.iter().all(|line| line.len() == 8), "{text:?}");
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "a line is there twice");
        lines += all.len();
        clients[1].close(log.number);
    }
    assert_eq!(lines, done.iter().map(|(_, appended)| appended).sum::<usize>());
    clients.iter().for_each(|client| client.shutdown());
}

/// Goal: open files and what has no name any more outlive a restart of whichever server has them. Method: both servers in turn.
#[test]
fn each_server_is_started_again() {
    let mut site = Several::new(2, 2);
    let a = client(&site, 900, 0);
    let dirs = dirs(&site, &a);
    for n in [1, 0] {
        let mine: Vec<Ino> = dirs.iter().copied().filter(|dir| site.owner(dir.get()) == n).collect();
        let file = create(&a, mine[0], "open");
        let gone = create(&a, mine[0], "gone");
        assert_eq!(a.write(&gone, 0, b"still there", WriteHow::default()).unwrap(), 11);
        a.unlink(at(mine[0], "gone")).unwrap();
        site.stop(n);
        thread::scope(|scope| {
            let waits = scope.spawn(|| a.lookup(at(mine[0], "open")).map(|attr| attr.ino));
            thread::sleep(Duration::from_millis(300));
            site.start(n);
            assert_eq!(waits.join().unwrap(), Ok(file.ino));
        });
        site.settled();
        assert_eq!(a.write(&file, 0, b"goes on", WriteHow::default()).unwrap(), 7);
        let mut text = [0; 11];
        assert_eq!(a.read(&gone, 0, &mut text).unwrap(), 11);
        assert_eq!(&text, b"still there");
        for dir in &dirs {
            a.mkdir(CALLER, at(*dir, &format!("after-{n}")), 0o755).unwrap();
        }
        a.close(file.number);
        a.close(gone.number);
        a.unlink(at(mine[0], "open")).unwrap();
    }
    a.shutdown();
}
