//! Goal: S-355: with several metadata servers files with two copies are what they are with one, while their slot goes from one server to another and servers of both kinds
//! die. Method: as `replicas`, with blocks that say which write they are of, and each read checked against all that was answered before.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "replicas/blocks.rs"]
mod blocks;
#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{sync::Arc, time::Duration};

use blocks::Blocks;
use fuse::SetxattrArgs;
use proto::attr::Caller;
use remote::{Access, OpenFile, Place, Remote, RemoteOptions, Xattr};
use site::{cluster::options, credentials, several::Several, until};
use types::{Ino, SAU_BYTES};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };
const LAYOUT: &[u8] = b"user.onfs.layout";

type User = (Arc<Remote>, Arc<OpenFile>);

fn client(site: &Several, node: u64, cache: u64) -> Arc<Remote> {
    let servers: Vec<_> = (0..site.servers()).map(|n| site.address(n)).collect();
    let mut options = RemoteOptions::new(servers, credentials(node));
    options.patience = Duration::from_secs(100);
    options.longest = Duration::from_secs(110);
    options.cache = cache;
    Remote::start(options).unwrap()
}

/// A file with two copies in a slot that is not the root's, at two clients.
fn two_users(site: &Several) -> [User; 2] {
    let (a, b) = (client(site, 900, 64 << 20), client(site, 901, 0));
    let dirs: Vec<Ino> = (0..8)
        .map(|n| {
            let name = format!("two-{n}");
            a.mkdir(CALLER, Place { dir: Ino::ROOT, name: name.as_bytes() }, 0o755).unwrap().ino
        })
        .collect();
    let root = site.owner(Ino::ROOT.get());
    let mut dir = None;
    until("a directory is another server's than the root", || {
        dir = dirs.iter().copied().find(|dir| site.owner(dir.get()) != root);
        dir.is_some()
    });
    let dir = dir.unwrap();
    let args = SetxattrArgs { name: LAYOUT, value: b"copies=2 stripes=1", flags: 0, acl_kill_sgid: false };
    a.setxattr(dir, &args).unwrap();
    let (attr, of_a) = a.create(CALLER, Place { dir, name: b"f" }, 0o644, BOTH).unwrap();
    let of_b = b.open(attr.ino, BOTH).unwrap();
    [(a, of_a), (b, of_b)]
}

/// What its layout says, as places of `site.data`; none: there is no answer, or no such one.
fn said((client, file): &User, key: &str) -> Option<usize> {
    let Ok(Xattr::Bytes(value)) = client.getxattr(file.ino, LAYOUT, 4096) else { return None };
    let text = String::from_utf8(value).unwrap();
    let word = text.split(' ').find_map(|word| word.strip_prefix(key))?;
    Some(word.split(':').next()?.parse::<usize>().ok()? - 1)
}

fn primary(user: &User) -> Option<usize> {
    said(user, "nodes=")
}

/// Who has the file, as soon as there are two who count.
fn two(user: &User) -> (usize, usize) {
    let mut two = (0, 0);
    until("there are two copies", || {
        let (Some(first), Some(second)) = (primary(user), said(user, "seconds=")) else { return false };
        two = (first, second);
        first != second
    });
    two
}

/// To the other one, where it stays.
fn bring_it(site: &Several, ino: u64) {
    let to = 1 - site.owner(ino);
    until("the slot is brought", || site.try_bring(ino, to).is_ok());
    assert_eq!(site.owner(ino), to);
}

fn end(site: Several, users: [User; 2]) {
    users.iter().for_each(|(client, _)| client.shutdown());
    drop(site);
}

#[test]
fn data_servers_die_while_the_slot_goes_from_one_to_another() {
    site::say::begin();
    let mut site = Several::with(2, 3, options());
    let users = two_users(&site);
    let ino = users[0].1.ino.get();
    let blocks = Blocks::new(12, SAU_BYTES / 4);
    blocks.while_used([&users[0], &users[1]], || {
        for turn in 0..4 {
            let (first, second) = two(&users[0]);
            blocks.go_on();
            let n = if turn % 2 == 0 { first } else { second };
            if turn < 2 {
                site.kill_data(n);
                bring_it(&site, ino);
            } else {
                bring_it(&site, ino);
                site.kill_data(n);
            }
            blocks.go_on();
            two(&users[1]);
            site.start_data(n);
        }
        two(&users[0]);
        blocks.go_on();
    });
    end(site, users);
}

/// Before it says who goes on, or when it has, and there is no other one yet: then nobody complains any more, and who takes its place has to see by itself
/// what is lacking: also where it has seen all slots before, when no file had two copies.
fn dies_with_a_member(has_said: bool) {
    site::say::begin();
    let mut site = Several::with(2, if has_said { 2 } else { 3 }, options());
    let users = two_users(&site);
    let ino = users[0].1.ino.get();
    let blocks = Blocks::new(12, SAU_BYTES / 4);
    blocks.while_used([&users[0], &users[1]], || {
        let (first, _) = two(&users[0]);
        blocks.go_on();
        let owner = site.owner(ino);
        site.kill_data(first);
        if has_said {
            until("another one goes on", || primary(&users[0]).is_some_and(|now| now != first));
        }
        site.kill_for_good(owner);
        blocks.go_on();
        assert_ne!(site.owner(ino), owner);
        if !has_said {
            two(&users[0]);
        }
        site.start_data(first);
        two(&users[1]);
        blocks.go_on();
    });
    end(site, users);
}

#[test]
fn the_metadata_server_of_the_slot_dies_with_a_member() {
    dies_with_a_member(false);
}

#[test]
fn the_metadata_server_of_the_slot_dies_when_it_has_said_who_goes_on() {
    dies_with_a_member(true);
}
