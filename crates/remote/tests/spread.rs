//! Goal: a directory that is spread over several metadata servers is one directory to clients, and each server has its share of it. Method: the real
//! services behind real sockets, and clients without a kernel.
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
    time::{Duration, Instant},
};

use fuse::{SetattrArgs, SetxattrArgs, TimeOrNow};
use proto::{Method, attr::Caller};
use remote::{Access, Place, Remote, RemoteOptions, Xattr};
use site::{cluster::Site, credentials, several::Several, until};
use types::{Errno, Ino, Timestamp};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const BOTH: Access = Access { read: true, write: true, exclusive: true, no_atime: true };
const SPREAD: &[u8] = b"trusted.onfs.spread";

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

fn create(client: &Remote, dir: Ino, name: &str) -> Result<Ino, Errno> {
    let (attr, file) = client.create(CALLER, at(dir, name), 0o644, BOTH)?;
    client.close(file.number);
    Ok(attr.ino)
}

fn set_spread(client: &Remote, dir: Ino, text: &str) -> Result<(), Errno> {
    let args = SetxattrArgs { name: SPREAD, value: text.as_bytes(), flags: 0, acl_kill_sgid: false };
    client.setxattr(dir, &args)
}

fn spread_of(client: &Remote, dir: Ino) -> Result<String, Errno> {
    match client.getxattr(dir, SPREAD, 100)? {
        Xattr::Bytes(text) => Ok(String::from_utf8(text).unwrap()),
        Xattr::Size(_) => Err(Errno::EINVAL),
    }
}

/// In the directory's order, so many at once. With attributes, whose references go back.
fn listed(client: &Remote, dir: Ino, step: usize) -> Vec<(String, Ino)> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let page = client.list(dir, cookie, step, true).unwrap();
        // The kernel is not told of them.
        let named = page.entries.iter().filter(|entry| !entry.name.starts_with(b"."));
        named.filter(|entry| entry.attr.is_some()).for_each(|entry| client.untold(entry.ino));
        cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
        all.extend(
            page.entries.iter().map(|entry| (String::from_utf8(entry.name.clone()).unwrap(), entry.ino)),
        );
        assert!(page.end || !page.entries.is_empty(), "who gets nothing takes it for the end");
        if page.end {
            return all;
        }
    }
}

fn names(client: &Remote, dir: Ino) -> BTreeSet<String> {
    listed(client, dir, 1000).into_iter().map(|one| one.0).filter(|name| !name.starts_with('.')).collect()
}

/// Its parts, when both servers have some.
fn parts(site: &Several, client: &Remote, dir: Ino) -> Vec<u64> {
    let text = spread_of(client, dir).unwrap();
    let number = |key: &str| -> u64 {
        text.split(' ').find_map(|word| word.strip_prefix(key)).unwrap().parse().unwrap()
    };
    let parts: Vec<u64> = (0..number("parts=")).map(|n| (number("first=") + n) << 40 | 1).collect();
    until("parts are where their slots belong", || {
        parts.iter().map(|part| site.owner(*part)).collect::<BTreeSet<_>>().len() == 2
    });
    parts
}

#[test]
fn a_spread_directory_is_one_directory() {
    let site = Several::new(2, 2);
    let (a, b) = (client(&site, 900, 0), client(&site, 901, 1));
    let dir = a.mkdir(CALLER, at(Ino::ROOT, "hot"), 0o755).unwrap().ino;
    for n in 0..20 {
        create(&a, dir, &format!("before{n}")).unwrap();
    }
    let before = listed(&b, dir, 7);
    assert_eq!(spread_of(&a, dir), Err(Errno::ENODATA));
    for bad in ["parts=3", "parts=1", "parts=128", "parts=x", "4"] {
        assert_eq!(set_spread(&a, dir, bad), Err(Errno::EINVAL), "{bad}");
    }
    assert_eq!(set_spread(&a, Ino::ROOT, "parts=4"), Err(Errno::EINVAL));
    set_spread(&a, dir, "parts=4").unwrap();
    set_spread(&b, dir, "parts=4").unwrap();
    assert_eq!(set_spread(&b, dir, "parts=8"), Err(Errno::EEXIST));
    let parts = parts(&site, &a, dir);
    // Neither client knows yet, and both find all as it was.
    for client in [&a, &b] {
        assert_eq!(listed(client, dir, 7), before);
        assert_eq!(listed(client, dir, 1), before);
    }

    // What is made is its part's, and each server has its share.
    let mut shares = [0_usize; 2];
    for n in 0..400 {
        let name = format!("rank-{n:04}");
        let ino = create(if n % 2 == 0 { &a } else { &b }, dir, &name).unwrap();
        assert!(parts.contains(&(ino.get() >> 40 << 40 | 1)), "{ino}");
        shares[site.owner(ino.get())] += 1;
    }
    // As many parts as it has.
    for (n, share) in shares.into_iter().enumerate() {
        let wanted = 100 * parts.iter().filter(|part| site.owner(**part) == n).count();
        assert!(share > 0 && share.abs_diff(wanted) < 80, "{shares:?}");
    }
    assert_eq!(names(&b, dir).len(), 420);
    assert_eq!(create(&b, dir, "rank-0001"), Err(Errno::EEXIST));

    // Attributes are those of all parts.
    let now = b.getattr(dir).unwrap();
    let below = a.mkdir(CALLER, at(dir, "below"), 0o700).unwrap().ino;
    for client in [&a, &b] {
        // What the other one changed a moment later (S-395).
        until("it has three links", || client.getattr(dir).unwrap().nlink == 3);
        let attr = client.getattr(dir).unwrap();
        assert_eq!((attr.ino, attr.nlink, attr.rdev), (dir, 3, 0));
        assert!(attr.mtime > now.mtime && attr.ctime > now.ctime);
        assert_eq!(client.lookup(at(below, "..")).unwrap().ino, dir);
        assert_eq!(client.lookup(at(dir, "..")).unwrap().ino, Ino::ROOT);
        assert_eq!(client.lookup(at(dir, ".")).unwrap().ino, dir);
        assert_eq!(client.lookup(at(dir, "none")), Err(Errno::ENOENT));
    }
    let old = Timestamp { sec: 1_000_000, nsec: 5 };
    let back = SetattrArgs {
        mtime: Some(TimeOrNow::At(old)),
        mode: Some(0o2775),
        gid: Some(77),
        ..SetattrArgs::default()
    };
    assert_eq!(a.setattr(dir, &back).unwrap().mtime, old);
    assert_eq!(a.getattr(dir).unwrap().mtime, old);
    until("its time is set", || b.getattr(dir).unwrap().mtime == old);
    let inherits = b.mkdir(CALLER, at(dir, "inherits"), 0o755).unwrap();
    assert_eq!((inherits.gid, inherits.mode), (77, 0o2755));
    assert!(b.getattr(dir).unwrap().mtime > old);
    until("its time goes on", || a.getattr(dir).unwrap().mtime > old);

    // Renames within it, into it and out of it, and links.
    for n in 0..12 {
        let (from, to) = (format!("rank-{n:04}"), format!("moved{n}"));
        a.rename(at(dir, &from), at(dir, &to), 0).unwrap();
        assert_eq!(b.lookup(at(dir, &from)), Err(Errno::ENOENT));
        let ino = b.lookup(at(dir, &to)).unwrap().ino;
        assert_eq!(b.link(ino, at(dir, &from)).unwrap().nlink, 2);
        a.unlink(at(dir, &to)).unwrap();
        b.rename(at(dir, &from), at(Ino::ROOT, &to), 0).unwrap();
        a.rename(at(Ino::ROOT, &to), at(below, &to), 0).unwrap();
        assert_eq!(b.lookup(at(below, &to)).unwrap().nlink, 1);
    }
    assert_eq!(a.rename(at(Ino::ROOT, "hot"), at(below, "within"), 0), Err(Errno::EINVAL));
    assert_eq!(b.rmdir(at(Ino::ROOT, "hot")), Err(Errno::ENOTEMPTY));

    // Gathered again; who was not told finds out.
    let all = listed(&a, dir, 50);
    b.removexattr(dir, SPREAD).unwrap();
    assert_eq!(b.removexattr(dir, SPREAD), Err(Errno::ENODATA));
    for client in [&a, &b] {
        assert_eq!(listed(client, dir, 50), all);
        assert_eq!(client.getattr(dir).unwrap().nlink, 4);
    }
    assert_eq!(create(&a, dir, "rank-0100"), Err(Errno::EEXIST));
    create(&a, dir, "after").unwrap();
    b.unlink(at(dir, "after")).unwrap();
    set_spread(&a, dir, "parts=auto").unwrap();
    assert!(spread_of(&b, dir).unwrap().starts_with("parts=2 "));
    for (name, _) in
        all.iter().filter(|one| !one.0.starts_with('.') && one.0 != "below" && one.0 != "inherits")
    {
        b.unlink(at(dir, name)).unwrap();
    }
    for name in names(&b, below) {
        a.unlink(at(below, &name)).unwrap();
    }
    a.rmdir(at(dir, "below")).unwrap();
    b.rmdir(at(dir, "inherits")).unwrap();
    a.rmdir(at(Ino::ROOT, "hot")).unwrap();
    assert_eq!(create(&b, dir, "late"), Err(Errno::ENOENT));
    a.shutdown();
    b.shutdown();
}

/// Requests about the directory's own record, and about its parts.
fn looks(client: &Remote) -> (u64, u64) {
    let counts = client.meter().counts();
    let of = |method| counts.iter().filter(|one| one.method == method).map(|one| one.requests).sum::<u64>();
    (of(Method::GetAlone), of(Method::GetAttr))
}

/// Goal: attributes of a spread directory cost a request about it, and not one about each part; what this client changed is in them at once, and what another
/// changed after a second (S-395). Method: two clients that make and remove, with the requests counted; a bound on requests goes by the time that it took.
#[test]
fn attributes_of_a_spread_directory_cost_few_requests() {
    const EACH: u64 = 40;
    let site = Several::new(2, 2);
    let (a, b) = (client(&site, 900, 0), client(&site, 901, 1));
    let dir = a.mkdir(CALLER, at(Ino::ROOT, "hot"), 0o755).unwrap().ino;
    set_spread(&a, dir, "parts=8").unwrap();
    parts(&site, &a, dir);
    let mut last = a.getattr(dir).unwrap();
    b.getattr(dir).unwrap();

    let (before, began) = (looks(&a), Instant::now());
    for n in 0..EACH {
        create(&a, dir, &format!("n{n}")).unwrap();
        let attr = a.getattr(dir).unwrap();
        assert!(attr.mtime > last.mtime && attr.ctime > last.ctime, "what it made itself is seen at once");
        assert_eq!(a.getattr(dir), Ok(attr));
        last = attr;
    }
    let (alone, of_parts) = looks(&a);
    assert!(alone - before.0 >= 2 * EACH, "its own record is looked at each time");
    let seconds = began.elapsed().as_secs() + 1;
    assert!(of_parts - before.1 <= EACH + 8 * seconds, "{of_parts} looks at parts in {seconds} s");

    for n in 0..6 {
        let name = format!("below{n}");
        a.mkdir(CALLER, at(dir, &name), 0o755).unwrap();
        assert_eq!(a.getattr(dir).unwrap().nlink, 3);
        let made = Instant::now();
        until("it is seen", || {
            let asked = Instant::now();
            let is_seen = b.getattr(dir).unwrap().nlink == 3;
            assert!(is_seen || asked < made + Duration::from_secs(1), "others see it after a second");
            is_seen
        });
        if n % 2 == 0 {
            a.rename(at(dir, &name), at(dir, "moved"), 0).unwrap();
            assert_eq!(a.getattr(dir).unwrap().nlink, 3);
            a.rmdir(at(dir, "moved")).unwrap();
        } else {
            a.rmdir(at(dir, &name)).unwrap();
        }
        assert_eq!(a.getattr(dir).unwrap().nlink, 2);
        until("it is seen", || b.getattr(dir).unwrap().nlink == 2);
    }
    let seen = b.getattr(dir).unwrap();
    a.setattr(dir, &SetattrArgs { mode: Some(0o700), uid: Some(7), ..SetattrArgs::default() }).unwrap();
    let now = b.getattr(dir).unwrap();
    assert_eq!((now.mode, now.uid), (0o700, 7), "who may do what there is seen at once");
    assert_eq!(now.nlink, seen.nlink);

    // Nothing is counted twice of what was gathered meanwhile.
    for n in 0..4 {
        let made = format!("more{n}");
        b.mkdir(CALLER, at(dir, &made), 0o755).unwrap();
        let links = b.getattr(dir).unwrap().nlink;
        assert_eq!(links, 3 + n);
        a.removexattr(dir, SPREAD).unwrap();
        assert_eq!(b.getattr(dir).unwrap().nlink, links);
        set_spread(&a, dir, "parts=8").unwrap();
        b.getattr(dir).unwrap();
    }
    a.shutdown();
    b.shutdown();
}

/// What one client does in the directory. Returns what is there.
fn work(client: &Remote, dir: Ino, who: usize, ended: &AtomicBool) -> BTreeMap<String, Ino> {
    let mut there = BTreeMap::new();
    for n in 0.. {
        if n >= 60 && ended.load(Ordering::Acquire) {
            break;
        }
        let name = format!("w{who}-{n}");
        let ino = create(client, dir, &name).unwrap();
        assert_eq!(client.lookup(at(dir, &name)).unwrap().ino, ino);
        there.insert(name.clone(), ino);
        if n % 3 == 0 {
            let to = format!("r{who}-{n}");
            client.rename(at(dir, &name), at(dir, &to), 0).unwrap();
            there.remove(&name);
            there.insert(to, ino);
        } else if n % 5 == 0 {
            client.unlink(at(dir, &name)).unwrap();
            assert_eq!(client.lookup(at(dir, &name)), Err(Errno::ENOENT));
            there.remove(&name);
        }
        if n % 16 == 0 {
            let seen: BTreeMap<String, Ino> = listed(client, dir, 10).into_iter().collect();
            assert!(there.iter().all(|(name, ino)| seen.get(name) == Some(ino)), "what is there is listed");
            assert_eq!(client.getattr(dir).unwrap().nlink, 2);
        }
    }
    there
}

/// Goal: a directory is spread, gathered, and its parts go from server to server while clients use it, and each operation is carried out once. Method: two
/// clients that make, rename, remove and list; what is there in the end is what was answered.
#[test]
fn spreading_goes_on_under_clients() {
    let site = Several::new(2, 2);
    let clients = [client(&site, 900, 0), client(&site, 901, 1)];
    let dir = clients[0].mkdir(CALLER, at(Ino::ROOT, "hot"), 0o755).unwrap().ino;
    let ended = AtomicBool::new(false);
    let done: Vec<BTreeMap<String, Ino>> = thread::scope(|scope| {
        let workers: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(who, client)| {
                scope.spawn({
                    let ended = &ended;
                    move || work(client, dir, who, ended)
                })
            })
            .collect();
        for n in 0..6 {
            let admin = &clients[n % 2];
            set_spread(admin, dir, ["parts=2", "parts=8"][n % 2]).unwrap();
            for part in parts(&site, admin, dir) {
                site.bring(part, n % 2);
            }
            admin.removexattr(dir, SPREAD).unwrap();
            site.bring(dir.get(), n % 2);
        }
        set_spread(&clients[0], dir, "parts=4").unwrap();
        ended.store(true, Ordering::Release);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let all: BTreeMap<String, Ino> = done.into_iter().flatten().collect();
    for client in &clients {
        let seen: BTreeMap<String, Ino> =
            listed(client, dir, 100).into_iter().filter(|one| !one.0.starts_with('.')).collect();
        assert_eq!(seen, all);
    }
    clients.iter().for_each(|client| client.shutdown());
}

/// Goal: also a directory of a server that is not on duty is spread, though the numbers of parts are the root's. Method: one that is the other server's
/// for good, several times.
#[test]
fn regression_a_directory_of_any_server_is_spread() {
    let site = Several::new(2, 2);
    let (a, b) = (client(&site, 900, 0), client(&site, 901, 1));
    let dir = a.mkdir(CALLER, at(Ino::ROOT, "hot"), 0o755).unwrap().ino;
    let other = 1 - site.owner(Ino::ROOT.get());
    until("it has gone", || site.try_bring(dir.get(), other).is_ok() && site.owner(dir.get()) == other);
    for n in 0..5 {
        create(&a, dir, &format!("n{n}")).unwrap();
        until("it is the other's again", || site.owner(dir.get()) == other);
        set_spread(&a, dir, "parts=4").unwrap();
        assert_eq!(names(&b, dir).len(), n + 1);
        until("it is the other's again", || site.owner(dir.get()) == other);
        b.removexattr(dir, SPREAD).unwrap();
    }
    a.shutdown();
    b.shutdown();
}

/// Goal: where there is one metadata server, it does all of it, and what clients keep stays true. Method: two clients with leases, one that keeps names and
/// attributes of before, while the other spreads, changes, and gathers.
#[test]
fn one_server_needs_nobody_to_know() {
    let site = Site::new(1);
    let start = |node| {
        let options =
            RemoteOptions { leases: true, ..RemoteOptions::new(vec![site.address()], credentials(node)) };
        Remote::start(options).unwrap()
    };
    let (a, b) = (start(900), start(901));
    let dir = a.mkdir(CALLER, at(Ino::ROOT, "hot"), 0o755).unwrap().ino;
    let first = create(&a, dir, "first").unwrap();
    let keeps = |n: usize| {
        assert_eq!(b.lookup(at(dir, "first")).map(|attr| attr.ino), Ok(first));
        assert_eq!(b.lookup(at(dir, &format!("made{n}"))), Err(Errno::ENOENT));
        b.getattr(dir).unwrap()
    };
    for n in 0..3 {
        let before = keeps(n);
        set_spread(&a, dir, "parts=8").unwrap();
        assert!(b.getattr(dir).unwrap().ctime > before.ctime, "it was asked back");
        let before = keeps(n);
        let made = a.mkdir(CALLER, at(dir, &format!("made{n}")), 0o755).unwrap();
        assert_ne!(made.ino.ugsd(), dir.ugsd(), "its number is its part's");
        let now = b.getattr(dir).unwrap();
        assert!(now.nlink == before.nlink + 1 && now.mtime > before.mtime);
        assert_eq!(b.lookup(at(dir, &format!("made{n}"))).unwrap().ino, made.ino);
        assert_eq!(b.lookup(at(made.ino, "..")).unwrap().ino, dir);
        assert_eq!(listed(&b, dir, 2), listed(&a, dir, 100));
        a.removexattr(dir, SPREAD).unwrap();
        assert_eq!(b.getattr(dir).unwrap().nlink, now.nlink);
        b.rename(at(dir, "first"), at(dir, "second"), 0).unwrap();
        assert_eq!(a.lookup(at(dir, "first")), Err(Errno::ENOENT));
        a.rename(at(dir, "second"), at(dir, "first"), 0).unwrap();
    }
    a.shutdown();
    b.shutdown();
}
