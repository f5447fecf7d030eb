//! Goal: what a mount keeps saves requests and never shows what is not true any more, whoever changes it and however: another mount, itself, a server
//! that is started again, a client that died. Method: the real services behind real sockets, and clients without a kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{sync::Arc, time::Duration};

use fuse::SetattrArgs;
use proto::{Method, attr::Caller};
use remote::{Access, OpenFile, Place, Remote, RemoteOptions, WriteHow};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    cluster::{Site, options},
    credentials, until,
};
use types::{Attr, Errno, Ino};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const READ: Access = Access { read: true, write: false, exclusive: false, no_atime: true };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };

fn client_with(site: &Site, node: u64, leases: bool) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], credentials(node));
    options.patience = Duration::from_secs(20);
    options.longest = Duration::from_secs(40);
    options.leases = leases;
    Remote::start(options).unwrap()
}

fn client(site: &Site, node: u64) -> Arc<Remote> {
    client_with(site, node, true)
}

fn root(name: &str) -> Place<'_> {
    Place { dir: Ino::ROOT, name: name.as_bytes() }
}

fn make(client: &Remote, name: &str, bytes: &[u8]) -> Ino {
    let (attr, file) = client.create(CALLER, root(name), 0o644, BOTH).unwrap();
    write(client, &file, bytes);
    client.close(file.number);
    attr.ino
}

fn write(client: &Remote, file: &OpenFile, bytes: &[u8]) {
    assert_eq!(client.write(file, 0, bytes, WriteHow::default()).unwrap(), bytes.len());
}

fn mode(mode: u32) -> SetattrArgs {
    SetattrArgs { mode: Some(mode), ..SetattrArgs::default() }
}

/// Requests about names and attributes that were made over the network.
fn asked(client: &Remote) -> u64 {
    let looks = [Method::Look, Method::Lookup, Method::GetAttr, Method::ReadDir];
    let counts = client.meter().counts();
    counts.iter().filter(|one| looks.contains(&one.method)).map(|one| one.requests).sum()
}

/// Until it is answered without a request.
fn kept(client: &Remote, name: &str) -> Attr {
    let mut attr = None;
    until("it is kept", || {
        client.lookup(root(name)).unwrap();
        attr = client.kept_lookup(root(name));
        attr.is_some()
    });
    attr.unwrap().unwrap()
}

#[test]
fn what_is_kept_needs_no_request() {
    let site = Site::new(1);
    let (a, b) = (client(&site, 900), client_with(&site, 901, false));
    let ino = make(&b, "f", b"12345");
    assert_eq!(kept(&a, "f").size, 5);
    until("that nothing is there is kept, too", || {
        assert_eq!(a.lookup(root("g")), Err(Errno::ENOENT));
        a.kept_lookup(root("g")).is_some()
    });
    let (of_a, of_b) = (asked(&a), asked(&b));
    for _ in 0..100 {
        for client in [&a, &b] {
            assert_eq!(client.lookup(root("f")).unwrap().size, 5);
            assert_eq!(client.getattr(ino).unwrap().size, 5);
            assert_eq!(client.lookup(root("g")), Err(Errno::ENOENT));
        }
    }
    assert_eq!((asked(&a) - of_a, asked(&b) - of_b), (0, 300), "with and without");
    assert!(a.kept().answered >= 300 && b.kept().answered == 0);
    a.shutdown();
    b.shutdown();
}

#[test]
fn what_another_changes_is_seen_at_once() {
    let site = Site::new(1);
    let (a, b) = (client(&site, 900), client(&site, 901));
    make(&a, "f", b"1");
    for n in 2..7u32 {
        let ino = kept(&b, "f").ino;
        a.setattr(ino, &mode(0o600 + n % 8)).unwrap();
        assert_eq!(b.getattr(ino).unwrap().mode, 0o600 + n % 8);
        kept(&b, "f");
        let file = a.open(ino, BOTH).unwrap();
        write(&a, &file, &vec![1; n as usize]);
        assert_eq!(b.lookup(root("f")).unwrap().size, u64::from(n), "while it is being written");
        a.close(file.number);
        assert_eq!(b.getattr(ino).unwrap().size, u64::from(n));
        // Each name by either, and what it takes away.
        kept(&b, "f");
        assert_eq!(b.lookup(root("g")), Err(Errno::ENOENT));
        a.link(ino, root("g")).unwrap();
        assert_eq!(b.lookup(root("g")).unwrap().nlink, 2);
        kept(&b, "g");
        kept(&a, "g");
        let by = if n % 2 == 0 { &a } else { &b };
        by.unlink(root("f")).unwrap();
        for client in [&a, &b] {
            assert_eq!(client.lookup(root("f")), Err(Errno::ENOENT));
            assert_eq!(client.getattr(ino).unwrap().nlink, 1);
            kept(client, "g");
        }
        by.rename(root("g"), root("f"), 0).unwrap();
        for client in [&a, &b] {
            assert_eq!(client.lookup(root("g")), Err(Errno::ENOENT));
            assert_eq!(client.lookup(root("f")).unwrap().ino, ino);
        }
        make(by, "h", b"");
        for client in [&a, &b] {
            kept(client, "h");
        }
        by.rename(root("f"), root("h"), 2).unwrap();
        for client in [&a, &b] {
            assert_eq!(client.lookup(root("h")).unwrap().ino, ino);
        }
        by.rename(root("h"), root("f"), 0).unwrap();
        assert_eq!(a.lookup(root("f")).unwrap().ino, ino);
    }
    a.shutdown();
    b.shutdown();
}

#[test]
fn two_that_change_the_same_directory_at_once_do_not_wait_for_each_other() {
    let site = Site::new(1);
    let clients = [client(&site, 900), client(&site, 901)];
    std::thread::scope(|scope| {
        for (n, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                for i in 0..60 {
                    let (mine, his) = (format!("{n}-{i}"), format!("{}-{i}", 1 - n));
                    make(client, &mine, b"x");
                    let _ = client.lookup(root(&his));
                    client.getattr(Ino::ROOT).unwrap();
                    client.rename(root(&mine), root(&format!("{n}-")), 0).unwrap();
                    assert_eq!(client.lookup(root(&mine)), Err(Errno::ENOENT));
                }
            });
        }
    });
    let mut names: Vec<Vec<u8>> =
        clients[0].list(Ino::ROOT, 0, 100, true).unwrap().entries.into_iter().map(|one| one.name).collect();
    names.sort();
    assert_eq!(names, [&b"."[..], b"..", b"0-", b"1-"]);
    clients.iter().for_each(|client| client.shutdown());
}

#[test]
fn a_listing_is_kept_with_its_attributes() {
    let site = Site::new(1);
    let (a, b) = (client(&site, 900), client(&site, 901));
    for n in 0..20 {
        make(&a, &format!("f{n}"), b"x");
    }
    until("a listing is all that it takes", || {
        let page = b.list(Ino::ROOT, 0, 100, true).unwrap();
        // As a kernel does, which is told of each.
        for entry in page.entries.iter().filter(|entry| entry.attr.is_some() && !entry.name.starts_with(b"."))
        {
            let _ = b.lookup(Place { dir: Ino::ROOT, name: &entry.name });
        }
        (0..20).all(|n| b.kept_lookup(root(&format!("f{n}"))).is_some())
    });
    let before = asked(&b);
    (0..20).for_each(|n| assert_eq!(b.lookup(root(&format!("f{n}"))).unwrap().size, 1));
    assert_eq!(asked(&b), before);
    a.unlink(root("f7")).unwrap();
    assert_eq!(b.lookup(root("f7")), Err(Errno::ENOENT));
    a.shutdown();
    b.shutdown();
}

#[test]
fn a_server_that_is_started_again_is_told_of_what_was_kept() {
    let mut site = Site::new(1);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let ino = make(&a, "f", b"1");
    for n in 0..3 {
        kept(&a, "f");
        kept(&b, "f");
        site.kill();
        site.start();
        site.wait_for(1);
        a.setattr(ino, &mode(0o600 + n)).unwrap();
        assert_eq!(b.getattr(ino).unwrap().mode, 0o600 + n);
        assert_eq!(b.lookup(root("f")).unwrap().mode, 0o600 + n);
    }
    a.shutdown();
    b.shutdown();
}

#[test]
fn a_client_that_does_not_answer_is_waited_for_as_long_as_it_may_keep_something() {
    let sessions = SessionLimits { silence: Duration::from_secs(10), ..SessionLimits::default() };
    let site = Site::with(1, MetadataOptions { sessions, ..options() });
    let a = client(&site, 900);
    let ino = make(&a, "f", b"1");
    let silent = site.session();
    let look = || {
        let (head, name) = (silent.head(), b"f".to_vec());
        silent.try_ask(&proto::leases::Look { head, ino: 1, name, referring: false }).unwrap().keeps
    };
    until("it may be kept", || look() == 3);
    a.setattr(ino, &mode(0o600)).unwrap();
    assert_eq!(a.getattr(ino).unwrap().mode, 0o600);
    assert_eq!(site.service().lease_counts().lapsed, 1);
    a.shutdown();
}

#[test]
fn references_outlive_answers_that_gave_none() {
    let site = Site::new(1);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let ino = make(&b, "f", b"1");
    kept(&a, "f");
    for _ in 0..5 {
        a.lookup(root("f")).unwrap();
    }
    // The kernel gives up some, and then opens what nobody else has.
    a.forget(ino.get(), 3);
    b.forget(ino.get(), 100);
    b.unlink(root("f")).unwrap();
    until("what was given back is gone", || b.status().references == 0);
    let file = a.open(ino, READ).unwrap();
    let mut one = [0; 1];
    assert_eq!(a.read(&file, 0, &mut one).unwrap(), 1);
    a.close(file.number);
    a.shutdown();
    b.shutdown();
}
