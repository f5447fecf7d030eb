//! Goal: what clients keep of names, attributes and bytes saves requests and is never old where there are several metadata servers, whatever happens to
//! these and wherever slots go. Method: the real services behind real sockets, and clients without a kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use fuse::{SetattrArgs, SetxattrArgs};
use proto::{Head, Method, attr::Caller, leases::Look};
use remote::{Access, Place, Remote, RemoteOptions, WriteHow};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{cluster::options, credentials, several::Several, until};
use types::{Attr, Errno, Ino};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const READ: Access = Access { read: true, write: false, exclusive: false, no_atime: true };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };

fn client(site: &Several, node: u64) -> Arc<Remote> {
    let servers: Vec<_> = (0..site.servers()).map(|n| site.address(n)).collect();
    let mut options = RemoteOptions::new(servers, credentials(node));
    options.patience = Duration::from_secs(20);
    options.longest = Duration::from_secs(40);
    Remote::start(options).unwrap()
}

/// Whose leases last so long, and sessions five times as long.
fn with_term(term: Duration) -> MetadataOptions {
    let sessions = SessionLimits { silence: term * 5, ..SessionLimits::default() };
    MetadataOptions { sessions, ..options() }
}

fn at(dir: Ino, name: &str) -> Place<'_> {
    Place { dir, name: name.as_bytes() }
}

/// Directories, those of different servers first.
fn dirs(site: &Several, client: &Remote, count: usize) -> Vec<Ino> {
    let made = (0..8).map(|n| client.mkdir(CALLER, at(Ino::ROOT, &format!("d{n}")), 0o755).unwrap().ino);
    let made: Vec<Ino> = made.collect();
    let owners = || made.iter().map(|dir| site.owner(dir.get())).collect::<Vec<_>>();
    until("directories are where their slots belong", || {
        owners().into_iter().collect::<BTreeSet<_>>().len() >= 2
    });
    let (mut firsts, mut others) = (Vec::new(), Vec::new());
    let mut seen = BTreeSet::new();
    for (dir, owner) in made.iter().zip(owners()) {
        if seen.insert(owner) { firsts.push(*dir) } else { others.push(*dir) }
    }
    firsts.extend(others);
    firsts.truncate(count);
    firsts
}

fn make(client: &Remote, place: Place<'_>, bytes: &[u8]) -> Ino {
    let (attr, file) = client.create(CALLER, place, 0o644, BOTH).unwrap();
    if !bytes.is_empty() {
        assert_eq!(client.write(&file, 0, bytes, WriteHow::default()).unwrap(), bytes.len());
    }
    client.close(file.number);
    attr.ino
}

fn mode(mode: u32) -> SetattrArgs {
    SetattrArgs { mode: Some(mode), ..SetattrArgs::default() }
}

/// Requests about names, attributes and bytes that were made over the network.
fn asked(client: &Remote) -> u64 {
    let looks = [Method::Look, Method::Lookup, Method::GetAttr, Method::Find, Method::Read, Method::ReadDir];
    let counts = client.meter().counts();
    counts.iter().filter(|one| looks.contains(&one.method)).map(|one| one.requests).sum()
}

/// Until it is answered without a request.
fn kept(client: &Remote, place: Place<'_>) -> Attr {
    let mut attr = None;
    until("it is kept", || {
        client.lookup(place).unwrap();
        attr = client.kept_lookup(place);
        attr.is_some()
    });
    attr.unwrap().unwrap()
}

#[test]
fn what_is_kept_needs_no_request() {
    let site = Several::new(2, 2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let dirs = dirs(&site, &a, 2);
    for dir in &dirs {
        make(&a, at(*dir, "f"), b"12345");
        // Whose inode is another's than its name is.
        make(&a, at(*dir, "g"), b"123");
    }
    a.rename(at(dirs[0], "g"), at(dirs[1], "h"), 0).unwrap();
    until("what was lent has gone back", || site.owner(dirs[0].get()) != site.owner(dirs[1].get()));
    let places = [at(dirs[0], "f"), at(dirs[1], "f"), at(dirs[1], "g"), at(dirs[1], "h")];
    let inos = places.map(|place| kept(&b, place).ino);
    until("that nothing is there is kept, too", || {
        dirs.iter().all(|dir| {
            assert_eq!(b.lookup(at(*dir, "none")), Err(Errno::ENOENT));
            b.kept_lookup(at(*dir, "none")).is_some()
        })
    });
    let before = asked(&b);
    for _ in 0..50 {
        for (place, ino) in places.iter().zip(inos) {
            assert_eq!(b.lookup(*place).unwrap().ino, ino);
            b.getattr(ino).unwrap();
        }
        for dir in &dirs {
            assert_eq!(b.lookup(at(*dir, "none")), Err(Errno::ENOENT));
        }
    }
    assert_eq!(asked(&b) - before, 0);
    // Bytes, too, of files of each server.
    for ino in inos {
        let (mut buf, mut read) = (vec![0; 16], 0);
        until("bytes are kept", || {
            let file = b.open(ino, READ).unwrap();
            read = b.read(&file, 0, &mut buf).unwrap();
            let before = asked(&b);
            assert_eq!(b.read(&file, 0, &mut buf).unwrap(), read);
            b.close(file.number);
            asked(&b) == before
        });
        let file = b.open(ino, READ).unwrap();
        a.setattr(ino, &SetattrArgs { size: Some(1), ..SetattrArgs::default() }).unwrap();
        assert_eq!((b.read(&file, 0, &mut buf).unwrap(), buf[0]), (1, b'1'));
        b.close(file.number);
    }
    a.shutdown();
    b.shutdown();
}

/// Goal: who knows what a name names, and not what that looks like by now, asks for that alone, and only the server that has it. Method: files made in
/// directories of both servers, whose attributes change with each, counted.
#[test]
fn a_name_that_is_kept_is_not_asked_for_again() {
    let site = Several::new(2, 2);
    let a = client(&site, 900);
    let dirs = dirs(&site, &a, 2);
    let named: Vec<(String, Ino)> = (0..8)
        .map(|n| format!("d{n}"))
        .map(|name| (name.clone(), kept(&a, at(Ino::ROOT, &name)).ino))
        .filter(|(_, ino)| dirs.contains(ino))
        .collect();
    for n in 0..10 {
        for (name, dir) in &named {
            make(&a, at(*dir, &format!("f{n}")), b"");
            assert!(a.kept_lookup(at(Ino::ROOT, name)).is_none(), "it changed");
            let before = asked(&a);
            let attr = a.lookup(at(Ino::ROOT, name)).unwrap();
            assert_eq!((attr.ino, asked(&a) - before), (*dir, 1));
        }
    }
    a.shutdown();
}

/// Goal: what one client changes another sees at once, wherever the slots are. Method: one changes modes and names and says when it was answered, others
/// look all the time, while slots go from one server to the other.
#[test]
fn what_another_changes_is_seen_while_slots_move() {
    let site = Several::new(2, 2);
    let (a, b, c) = (client(&site, 900), client(&site, 901), client(&site, 902));
    let dirs = dirs(&site, &a, 4);
    let files: Vec<Ino> = dirs.iter().map(|dir| make(&a, at(*dir, "f"), b"1")).collect();
    let (ended, answered): (AtomicBool, Vec<AtomicU32>) =
        (AtomicBool::new(false), dirs.iter().map(|_| AtomicU32::new(0)).collect());
    thread::scope(|scope| {
        let (ended, answered, dirs, files) = (&ended, &answered, &dirs, &files);
        let changer = scope.spawn(move || {
            for n in 1..=0o777u32 {
                let which = n as usize % dirs.len();
                a.setattr(files[which], &mode(n)).unwrap();
                // There and away again, by way of the others' directories.
                let to = (which + 1 + n as usize % 3) % dirs.len();
                let name = format!("n{n}");
                make(&a, at(dirs[which], &name), b"");
                a.rename(at(dirs[which], &name), at(dirs[to], "moved"), 0).unwrap();
                answered[which].store(n, Ordering::Release);
                if ended.load(Ordering::Acquire) && n > 60 {
                    break;
                }
            }
            ended.store(true, Ordering::Release);
            a.shutdown();
        });
        for client in [&b, &c] {
            scope.spawn(move || {
                while !ended.load(Ordering::Acquire) {
                    for (which, dir) in dirs.iter().enumerate() {
                        let least = answered[which].load(Ordering::Acquire);
                        let attr = client.lookup(at(*dir, "f")).unwrap();
                        assert!(attr.mode & 0o777 >= least || least == 0, "{:o} after {least:o}", attr.mode);
                        let again = client.getattr(files[which]).unwrap();
                        assert!(
                            again.mode & 0o777 >= least || least == 0,
                            "{:o} after {least:o}",
                            again.mode
                        );
                        if least > 0 {
                            let gone = client.lookup(at(*dir, &format!("n{least}")));
                            assert_eq!(gone.map(|attr| attr.ino), Err(Errno::ENOENT), "n{least}");
                        }
                    }
                }
            });
        }
        for n in 0..60 {
            site.bring(dirs[n % 4].get(), n / 2 % 2);
            thread::sleep(Duration::from_millis(20));
        }
        ended.store(true, Ordering::Release);
        changer.join().unwrap();
    });
    let (of_b, of_c) = (b.kept(), c.kept());
    assert!(of_b.answered > 0 && of_c.answered > 0 && of_b.recalled > 0, "{of_b:?} {of_c:?}");
    b.shutdown();
    c.shutdown();
}

/// Goal: a name that is replaced takes what others keep of the replaced with it, wherever directories and inodes are. Method: renames over a file with
/// another name, of all pairs of directories.
#[test]
fn what_a_rename_replaces_is_not_kept() {
    let site = Several::new(2, 2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let dirs = dirs(&site, &a, 4);
    for (n, from) in dirs.iter().enumerate() {
        for (m, to) in dirs.iter().enumerate().filter(|(m, _)| *m != n) {
            let (new, over, other) =
                (format!("new-{n}-{m}"), format!("over-{n}-{m}"), format!("other-{n}-{m}"));
            // The replaced is of the directory that the new one comes from.
            let replaced = make(&a, at(*from, &over), b"12");
            a.link(replaced, at(*to, &over)).unwrap();
            a.rename(at(*from, &over), at(*from, &other), 0).unwrap();
            make(&a, at(*from, &new), b"1");
            assert_eq!(kept(&b, at(*from, &other)).nlink, 2);
            kept(&b, at(*to, &over));
            a.rename(at(*from, &new), at(*to, &over), 0).unwrap();
            assert_eq!(b.getattr(replaced).unwrap().nlink, 1);
            assert_eq!(b.lookup(at(*to, &over)).unwrap().size, 1);
            assert_eq!(b.lookup(at(*from, &new)), Err(Errno::ENOENT));
        }
    }
    a.shutdown();
    b.shutdown();
}

/// Goal: a client that is silent does not keep a slot for longer than its leases last. Method: a session that keeps a name and says nothing more, and a
/// slot that is to go.
#[test]
fn who_is_silent_lets_slots_go() {
    let site = Several::with(2, 1, with_term(Duration::from_secs(2)));
    let a = client(&site, 900);
    let dirs = dirs(&site, &a, 2);
    make(&a, at(dirs[0], "f"), b"");
    let owner = site.owner(dirs[0].get());
    let silent = site.session();
    let look = |name: &str| Look {
        head: Some(Head::of(silent.id)),
        ino: dirs[0].get(),
        name: name.as_bytes().to_vec(),
        referring: false,
    };
    until("it is kept", || silent.ask(&look("f")).unwrap().keeps != 0);
    assert!(site.service(owner).lease_counts().leases > 0);
    until("the slot goes", || site.try_bring(dirs[0].get(), 1 - owner).is_ok());
    assert_eq!(site.owner(dirs[0].get()), 1 - owner);
    assert!(site.service(owner).lease_counts().lapsed > 0);
    a.setattr(kept(&a, at(dirs[0], "f")).ino, &mode(0o600)).unwrap();
    a.shutdown();
}

/// Goal: nobody keeps bytes of a file that another has open for writing, also after its slot went to a server that never saw it opened. Method: a file that
/// stays open while its slot goes to and fro.
#[test]
fn openings_go_along() {
    let site = Several::new(2, 2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let dirs = dirs(&site, &a, 2);
    let ino = make(&a, at(dirs[0], "f"), b"0");
    let writes = a.open(ino, BOTH).unwrap();
    for n in 0..6u8 {
        site.bring(dirs[0].get(), usize::from(n % 2));
        let reads = b.open(ino, READ).unwrap();
        for byte in [2 * n + 1, 2 * n + 2] {
            let mut found = [0];
            b.read(&reads, 0, &mut found).unwrap();
            a.write(&writes, 0, &[byte], WriteHow::default()).unwrap();
            b.read(&reads, 0, &mut found).unwrap();
            assert_eq!(found, [byte]);
        }
        b.close(reads.number);
    }
    a.close(writes.number);
    kept(&b, at(dirs[0], "f"));
    a.shutdown();
    b.shutdown();
}

fn spread(client: &Remote, dir: Ino, parts: Option<u32>) {
    let name = b"trusted.onfs.spread";
    match parts {
        Some(parts) => {
            let value = format!("parts={parts}");
            let args = SetxattrArgs { name, value: value.as_bytes(), flags: 0, acl_kill_sgid: false };
            client.setxattr(dir, &args).unwrap();
        }
        None => client.removexattr(dir, name).unwrap(),
    }
}

#[test]
fn names_in_a_spread_directory_are_kept() {
    let site = Several::new(2, 2);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let dir = a.mkdir(CALLER, at(Ino::ROOT, "hot"), 0o755).unwrap().ino;
    let names: Vec<String> = (0..12).map(|n| format!("n{n}")).collect();
    for name in &names {
        make(&a, at(dir, name), b"1");
    }
    for parts in [None, Some(4), None, Some(2)] {
        match parts {
            None if a.getxattr(dir, b"trusted.onfs.spread", 100).is_err() => {}
            parts => spread(&a, dir, parts),
        }
        for name in &names {
            kept(&b, at(dir, name));
        }
        until("that nothing is there is kept, too", || {
            assert_eq!(b.lookup(at(dir, "none")), Err(Errno::ENOENT));
            b.kept_lookup(at(dir, "none")).is_some()
        });
        let before = asked(&b);
        for name in &names {
            b.lookup(at(dir, name)).unwrap();
        }
        assert_eq!((b.lookup(at(dir, "none")), asked(&b) - before), (Err(Errno::ENOENT), 0));
        // Each of them changes.
        make(&a, at(dir, "none"), b"");
        b.lookup(at(dir, "none")).unwrap();
        a.unlink(at(dir, "none")).unwrap();
        assert_eq!(b.lookup(at(dir, "none")), Err(Errno::ENOENT));
        for name in &names {
            a.rename(at(dir, name), at(dir, "other"), 0).unwrap();
            assert_eq!(b.lookup(at(dir, name)), Err(Errno::ENOENT));
            a.rename(at(dir, "other"), at(dir, name), 0).unwrap();
            b.lookup(at(dir, name)).unwrap();
        }
        // The same by who keeps them.
        for name in &names {
            kept(&b, at(dir, name));
            b.rename(at(dir, name), at(dir, "other"), 0).unwrap();
            assert_eq!(b.lookup(at(dir, name)), Err(Errno::ENOENT));
            b.rename(at(dir, "other"), at(dir, name), 0).unwrap();
            b.lookup(at(dir, name)).unwrap();
        }
    }
    a.shutdown();
    b.shutdown();
}

/// Goal: a name that was made is there for everybody at once, also while its directory is spread and gathered. Method: one makes names, others look for
/// the next one before it is there.
#[test]
fn names_that_are_made_while_a_directory_is_spread_are_seen() {
    let site = Several::new(2, 2);
    let (a, b, c) = (client(&site, 900), client(&site, 901), client(&site, 902));
    let dir = a.mkdir(CALLER, at(Ino::ROOT, "hot"), 0o755).unwrap().ino;
    let (ended, made) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        let (ended, made) = (&ended, &made);
        scope.spawn(move || {
            for n in 1.. {
                make(&a, at(dir, &format!("n{n}")), b"");
                made.store(n, Ordering::Release);
                if ended.load(Ordering::Acquire) {
                    break;
                }
            }
            a.shutdown();
        });
        scope.spawn(move || {
            while !ended.load(Ordering::Acquire) {
                let n = made.load(Ordering::Acquire);
                for ahead in 1..4 {
                    let _ = b.lookup(at(dir, &format!("n{}", n + ahead)));
                }
                let n = made.load(Ordering::Acquire);
                let found = b.lookup(at(dir, &format!("n{n}")));
                assert!(n == 0 || found.is_ok(), "n{n}: {found:?}");
            }
            b.shutdown();
        });
        for parts in [Some(2), None, Some(4), None, Some(2), None] {
            spread(&c, dir, parts);
            thread::sleep(Duration::from_millis(100));
        }
        ended.store(true, Ordering::Release);
    });
    let all = made.load(Ordering::Acquire);
    for n in 1..=all {
        c.lookup(at(dir, &format!("n{n}"))).unwrap();
    }
    c.shutdown();
}

/// Goal: whoever keeps something when a server ends, in order or not, sees what changes afterwards. Method: each server in turn is started again, ends
/// in order, or is killed and gone on for by its standby.
#[test]
fn what_changes_after_a_server_ended_is_seen() {
    let mut site = Several::with(3, 2, with_term(Duration::from_secs(2)));
    // As long as data servers need to find a server again that is back, also on a machine that is busy.
    site.options.node_silence = Duration::from_secs(15);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let dirs = dirs(&site, &a, 6);
    let files: Vec<Ino> = dirs.iter().map(|dir| make(&a, at(*dir, "f"), b"1")).collect();
    let mut bits = 0o400;
    let mut look = |why: &str| {
        for (dir, file) in dirs.iter().zip(&files) {
            kept(&b, at(*dir, "f"));
            bits += 1;
            a.setattr(*file, &mode(bits)).unwrap();
            let found = b.lookup(at(*dir, "f")).unwrap();
            assert_eq!((found.mode & 0o777, b.getattr(*file).unwrap().mode & 0o777), (bits, bits), "{why}");
            kept(&b, at(*dir, "f"));
        }
    };
    look("at first");
    for n in 0..3 {
        site.stop(n);
        site.start(n);
        look("started again");
    }
    for n in 0..3 {
        site.leave(n);
        look("ended in order");
        site.start(n);
        site.shared();
        look("back");
    }
    for n in 0..3 {
        until("it has a standby", || site.is_copied(n));
        site.kill_for_good(n);
        look("killed");
        site.start(n);
        site.shared();
    }
    a.shutdown();
    b.shutdown();
}
