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

use cluster::NodeId;
use proto::{Method, attr::Caller};
use remote::{Access, OpenFile, Place, Remote, RemoteOptions, WriteHow};
use serve::metadata::MetadataOptions;
use site::{
    cluster::options,
    credentials,
    several::{Several, slot_of},
    until,
};
use types::{Errno, Ino};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };
const APPEND: WriteHow = WriteHow { append: true, sync: false, kill_suidgid: false };

/// Whichever of the servers it hears of first.
fn client(site: &Several, node: u64, first: usize) -> Arc<Remote> {
    let mut servers: Vec<_> = (0..site.servers()).map(|n| site.address(n)).collect();
    servers.rotate_left(first);
    let mut options = RemoteOptions::new(servers, credentials(node));
    options.patience = Duration::from_secs(20);
    options.longest = Duration::from_secs(30);
    Remote::start(options).unwrap()
}

/// No data server is taken to be away because the machine is busy, or because it has to find a metadata server again that is back: what is being
/// written there would give errors (S-166).
fn unhurried() -> MetadataOptions {
    MetadataOptions { patience: Duration::from_secs(15), node_silence: Duration::from_secs(15), ..options() }
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
    dirs_of(site, client, 4, 2)
}

/// So many, of so many servers at least.
fn dirs_of(site: &Several, client: &Remote, count: usize, servers: usize) -> Vec<Ino> {
    let make = |n| client.mkdir(CALLER, at(Ino::ROOT, &format!("d{n}")), 0o755).unwrap().ino;
    let dirs: Vec<Ino> = (0..count).map(make).collect();
    until("directories are where their slots belong", || {
        dirs.iter().map(|dir| site.owner(dir.get())).collect::<BTreeSet<_>>().len() >= servers
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
    let site = Several::with(2, 2, unhurried());
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

/// What one client does until it is told to stop: nothing of it may fail. Returns what it made, and how many lines it wrote to each log.
fn go_on(client: &Remote, dirs: &[Ino], ended: &AtomicBool) -> (Vec<(usize, String)>, Vec<usize>) {
    let (mut made, mut lines) = (Vec::new(), vec![0; dirs.len()]);
    let logs: Vec<_> = dirs.iter().map(|dir| create(client, *dir, "log")).collect();
    for n in 0.. {
        if ended.load(Ordering::Acquire) {
            break;
        }
        let at_dir = n % dirs.len();
        let name = format!("n{n}");
        let file = create(client, dirs[at_dir], &name);
        assert_eq!(client.write(&file, 0, name.as_bytes(), WriteHow::default()).unwrap(), name.len());
        client.close(file.number);
        if n % 3 == 0 {
            client.rename(at(dirs[at_dir], &name), at(dirs[(n + 1) % dirs.len()], &name), 0).unwrap();
            made.push(((n + 1) % dirs.len(), name));
        } else {
            made.push((at_dir, name));
        }
        if n % 7 == 0 {
            // In the root: of whoever is on duty.
            let name = format!("dir-{n}");
            client.mkdir(CALLER, at(Ino::ROOT, &name), 0o755).unwrap();
            client.rmdir(at(Ino::ROOT, &name)).unwrap();
        }
        let line = format!("{n:07}\n");
        assert_eq!(client.write(&logs[at_dir], 0, line.as_bytes(), APPEND).unwrap(), line.len());
        lines[at_dir] += 1;
    }
    logs.iter().for_each(|log| client.close(log.number));
    (made, lines)
}

/// Goal: what needs the root's slot, which stays with the server on duty, is also done in directories of others. Method: names go into the
/// root, are exchanged with names there and come back, from a directory that is the other server's for good; each time it is that again.
#[test]
fn regression_names_go_to_the_root_from_any_server() {
    let site = Several::new(2, 2);
    let (a, b) = (client(&site, 900, 0), client(&site, 901, 1));
    let dir = a.mkdir(CALLER, at(Ino::ROOT, "dir"), 0o755).unwrap().ino;
    let other = 1 - site.owner(Ino::ROOT.get());
    until("it has gone", || site.try_bring(dir.get(), other).is_ok() && site.owner(dir.get()) == other);
    for n in 0..2 {
        let (here, there) = (format!("here{n}"), format!("there{n}"));
        let file = create(&a, dir, &here);
        a.close(file.number);
        let below = b.mkdir(CALLER, at(Ino::ROOT, &there), 0o755).unwrap();
        a.rename(at(dir, &here), at(Ino::ROOT, &here), 0).unwrap();
        assert_eq!(b.lookup(at(Ino::ROOT, &here)).unwrap().ino, file.ino);
        assert_eq!(b.lookup(at(dir, &here)), Err(Errno::ENOENT));
        until("it is the other's again", || site.owner(dir.get()) == other);
        b.rename(at(Ino::ROOT, &here), at(dir, &here), 0).unwrap();
        until("it is the other's again", || site.owner(dir.get()) == other);
        a.rename(at(dir, &here), at(Ino::ROOT, &there), 2).unwrap();
        assert_eq!(b.lookup(at(dir, &here)).unwrap().ino, below.ino);
        assert_eq!(b.lookup(at(Ino::ROOT, &there)).unwrap().ino, file.ino);
        until("it is the other's again", || site.owner(dir.get()) == other);
    }
    assert_eq!(names(&b, dir).len(), 2);
    a.shutdown();
    b.shutdown();
}

/// Also when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn on_duty(client: &Remote) -> Option<u64> {
    client.status().metadata.into_iter().find(|server| server.on_duty).map(|server| server.node)
}

/// Goal: metadata servers are stopped in order and started again one after the other, the one on duty among them, and a client that works meanwhile
/// only waits. Method: a client that makes, writes, renames and appends all the time; then all is there once, and it is the session of the beginning.
#[test]
fn metadata_servers_are_stopped_in_turn_under_a_client() {
    let mut site = Several::with(3, 2, unhurried());
    let a = client(&site, 900, 0);
    let dirs = dirs_of(&site, &a, 6, 2);
    let gone = create(&a, Ino::ROOT, "gone");
    assert_eq!(a.write(&gone, 0, b"still there", WriteHow::default()).unwrap(), 11);
    a.unlink(at(Ino::ROOT, "gone")).unwrap();
    let session = a.status().session;
    let ended = AtomicBool::new(false);
    let mut duties = BTreeSet::new();
    let (made, lines) = thread::scope(|scope| {
        let worker = scope.spawn(|| go_on(&a, &dirs, &ended));
        let ends = Ends(&ended);
        for n in [0, 1, 2] {
            duties.insert(site.owner(1));
            site.leave(n);
            site.start(n);
            site.shared();
        }
        drop(ends);
        worker.join().unwrap()
    });
    assert!(duties.len() > 1, "the duty went");
    site.settled();
    until("the client knows who is on duty", || on_duty(&a) == Some(Several::node(site.owner(1))));
    assert_eq!(a.status().session, session, "nothing was lost");
    let mut text = [0; 11];
    assert_eq!(a.read(&gone, 0, &mut text).unwrap(), 11);
    assert_eq!(&text, b"still there");
    a.close(gone.number);
    for (n, dir) in dirs.iter().enumerate() {
        let expected = made.iter().filter(|(at, _)| *at == n).map(|(_, name)| name.clone());
        assert_eq!(names(&a, *dir), expected.chain(["log".to_owned()]).collect());
        assert_eq!(a.lookup(at(*dir, "log")).unwrap().size, 8 * lines[n] as u64);
    }
    a.shutdown();
}

/// Goal: slots that a server gave up without a word of what is open there are another's, and a client brings what it has there by itself, in the
/// same session. Method: the server on duty ends and its rows are free; files that are open in its slots, with and without names.
#[test]
fn what_is_open_is_brought_to_whoever_takes_slots_that_were_given_up() {
    let mut site = Several::new(2, 2);
    let a = client(&site, 900, 0);
    let dirs = dirs(&site, &a);
    let mine: Vec<Ino> = dirs.iter().copied().filter(|dir| site.owner(dir.get()) == 0).collect();
    let file = create(&a, mine[0], "file");
    let gone = create(&a, Ino::ROOT, "gone");
    assert_eq!(a.write(&gone, 0, b"still there", WriteHow::default()).unwrap(), 11);
    assert_eq!(a.write(&file, 0, b"first", APPEND).unwrap(), 5);
    a.unlink(at(Ino::ROOT, "gone")).unwrap();
    let session = a.status().session;
    site.stop(0);
    site.give_up(0);
    // Whoever asks only waits.
    a.mkdir(CALLER, at(mine[0], "after"), 0o755).unwrap();
    a.mkdir(CALLER, at(Ino::ROOT, "after"), 0o755).unwrap();
    assert_eq!(site.owner(1), 1);
    assert_eq!(a.write(&file, 0, b"second", APPEND).unwrap(), 6);
    let mut text = [0; 11];
    assert_eq!(a.read(&gone, 0, &mut text).unwrap(), 11);
    assert_eq!(&text, b"still there");
    assert_eq!(a.getattr(gone.ino).unwrap().nlink, 0);
    assert_eq!(a.status().session, session);
    let status = a.status().metadata;
    let of = |node| status.iter().find(|server| server.node == node).unwrap();
    assert!(of(Several::node(0)).away.is_some() && !of(Several::node(0)).on_duty, "{status:?}");
    assert!(of(Several::node(1)).away.is_none() && of(Several::node(1)).on_duty, "{status:?}");
    // Another mount sees the same, and is started with the address of the dead one first.
    let b = client(&site, 901, 0);
    assert_eq!(b.lookup(at(mine[0], "file")).unwrap().size, 11);
    b.shutdown();
    let before = site.service(1).in_use();
    a.close(file.number);
    a.close(gone.number);
    until("the file without a name is closed at its new server", || site.service(1).in_use().1 < before.1);
    a.shutdown();
}

/// Goal: a session that comes back to a server which has slots by then of which nobody said what is open there says it on its way. Method: both servers
/// end; one is started where nobody finds it, takes what the other gave up, and is found then.
#[test]
fn regression_a_session_comes_back_where_slots_came_bare_meanwhile() {
    let mut site = Several::new(2, 2);
    let a = client(&site, 900, 0);
    let dirs = dirs(&site, &a);
    let of = |n| *dirs.iter().find(|dir| site.owner(dir.get()) == n).unwrap();
    let (ours, theirs) = (of(0), of(1));
    let gone = [ours, theirs].map(|dir| create(&a, dir, "gone"));
    let log = create(&a, theirs, "log");
    for (dir, file) in [ours, theirs].into_iter().zip(&gone) {
        assert_eq!(a.write(file, 0, b"still there", WriteHow::default()).unwrap(), 11);
        a.unlink(at(dir, "gone")).unwrap();
    }
    assert_eq!(a.write(&log, 0, b"first", APPEND).unwrap(), 5);
    let session = a.status().session;
    site.stop(1);
    site.stop(0);
    site.give_up(1);
    site.hide(0);
    site.start(0);
    let owner = |site: &Several| site.map(0).slot(slot_of(theirs.get())).owner;
    until("it has the other's slots", || owner(&site) == Some(NodeId(Several::node(0))));
    site.reveal();
    for file in &gone {
        let mut text = [0; 11];
        assert_eq!(a.read(file, 0, &mut text).unwrap(), 11);
        assert_eq!(&text, b"still there");
        assert_eq!(a.getattr(file.ino).unwrap().nlink, 0);
    }
    assert_eq!(a.write(&log, 0, b"second", APPEND).unwrap(), 6);
    assert_eq!(a.getattr(log.ino).unwrap().size, 11);
    assert_eq!(a.status().session, session, "nothing was lost");
    a.shutdown();
}

/// Goal: a mount that is started while nobody is on duty waits for who will be. Method: the server on duty ends, and is there again a moment later.
#[test]
fn a_mount_is_started_while_the_server_on_duty_is_away() {
    let mut site = Several::new(2, 1);
    site.stop(0);
    thread::scope(|scope| {
        let options = RemoteOptions::new(vec![site.address(0), site.address(1)], credentials(900));
        let waits = scope.spawn(|| Remote::start(options).map(|remote| remote.shutdown()));
        thread::sleep(Duration::from_millis(300));
        site.start(0);
        waits.join().unwrap().unwrap();
    });
}

/// Goal: references to several inodes whose slot has gone are given back to who has it now, though nothing else is asked for that would say so.
/// Method: the session is not renewed meanwhile, which would; one that is refused is enough to learn it.
#[test]
fn regression_what_is_given_back_finds_a_slot_that_has_gone() {
    let options = MetadataOptions { renew: Duration::from_secs(60), ..unhurried() };
    let site = Several::with(2, 1, options);
    let (other, client) = (client(&site, 900, 0), client(&site, 901, 0));
    let dir = *dirs(&site, &other).iter().find(|dir| site.owner(dir.get()) == 1).unwrap();
    let named: Vec<String> = (0..20).map(|n| format!("f{n}")).collect();
    named.iter().for_each(|name| other.close(create(&other, dir, name).number));
    other.shutdown();
    let files: Vec<Ino> = named.iter().map(|name| client.lookup(at(dir, name)).unwrap().ino).collect();
    let forgets = || {
        let counts = client.meter().counts().into_iter().find(|counts| counts.method == Method::Forget);
        counts.map_or((0, 0), |counts| (counts.requests, counts.errors.iter().sum::<u64>()))
    };
    let (requests, errors) = forgets();
    until("the slot has gone", || site.try_bring(dir.get(), 0).is_ok());
    files.iter().for_each(|ino| client.forget(ino.get(), 1 << 20));
    let given = || {
        let now = forgets();
        (now.0 - requests, now.1 - errors)
    };
    until("they are given back", || given().0 > given().1);
    assert!(given().1 <= 2, "{:?}: messages, and those that were refused", given());
    client.shutdown();
}
