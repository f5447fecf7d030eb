//! Goal: how many messages an operation of a client takes is known, and stays. Method: clients without a kernel at real services; what
//! they asked is counted.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use proto::{Method, attr::Caller};
use remote::{Access, Place, Remote, RemoteOptions, WriteHow};
use site::{cluster::Site, credentials, until};
use types::Ino;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const WRITE: Access = Access { read: false, write: true, exclusive: false, no_atime: true };
const READ: Access = Access { read: true, write: false, exclusive: false, no_atime: true };
const BYTES: &[u8] = &[7; 4096];

fn client(site: &Site, node: u64) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], credentials(node));
    options.patience = Duration::from_secs(5);
    options.longest = Duration::from_secs(20);
    Remote::start(options).unwrap()
}

fn root(name: &str) -> Place<'_> {
    Place { dir: Ino::ROOT, name: name.as_bytes() }
}

/// But for those that go by the clock.
fn asked(client: &Remote) -> BTreeMap<Method, u64> {
    let counts = client.meter().counts();
    let mut asked: BTreeMap<Method, u64> = counts.iter().map(|one| (one.method, one.requests)).collect();
    for clock in [Method::Hello, Method::Mount, Method::Renew, Method::MapSince, Method::Forget] {
        asked.remove(&clock);
    }
    asked
}

fn write(client: &Remote, name: &str) -> Ino {
    let (attr, file) = client.create(CALLER, root(name), 0o644, WRITE).unwrap();
    assert_eq!(client.write(&file, 0, BYTES, WriteHow::default()).unwrap(), BYTES.len());
    client.close(file.number);
    attr.ino
}

#[test]
fn a_small_new_file_takes_three_messages_and_many_less() {
    let site = Site::new(3);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let ino = write(&a, "f");
    // At once, whatever the server has heard of the close.
    assert_eq!(b.lookup(root("f")).unwrap().size, BYTES.len() as u64);
    until("it is closed", || asked(&a).contains_key(&Method::CloseMany));
    assert_eq!(asked(&a), BTreeMap::from([(Method::Create, 1), (Method::Write, 1), (Method::CloseMany, 1)]));

    let before = asked(&b);
    let file = b.open(ino, READ).unwrap();
    let mut buf = vec![0; BYTES.len()];
    assert_eq!(b.read(&file, 0, &mut buf).unwrap(), BYTES.len());
    b.close(file.number);
    until("it is closed", || asked(&b).contains_key(&Method::CloseMany));
    let mut after = asked(&b);
    before.iter().for_each(|(method, n)| *after.get_mut(method).unwrap() -= n);
    after.retain(|_, n| *n > 0);
    assert_eq!(after, BTreeMap::from([(Method::Open, 1), (Method::Read, 1), (Method::CloseMany, 1)]));

    const MANY: u64 = 300;
    for n in 0..MANY {
        write(&a, &format!("many{n}"));
    }
    a.shutdown();
    let after = asked(&a);
    assert_eq!((after[&Method::Create], after[&Method::Write]), (MANY + 1, MANY + 1));
    assert!(after[&Method::CloseMany] <= MANY + 1, "{after:?}");
    assert!(!after.contains_key(&Method::BeginWrite) && !after.contains_key(&Method::Close));
    until("what was closed is settled", || site.service().in_use() == (1, 0));
    b.shutdown();
}

/// What was begun with the making of a file is begun again in the session after the one that was lost.
#[test]
fn writing_begins_again_after_a_restart_of_the_metadata_server() {
    let mut site = Site::new(3);
    let (a, b) = (client(&site, 900), client(&site, 901));
    let (attr, file) = a.create(CALLER, root("f"), 0o644, WRITE).unwrap();
    a.write(&file, 0, BYTES, WriteHow::default()).unwrap();
    site.kill();
    site.start();
    site.wait_for(3);
    a.write(&file, 4096, BYTES, WriteHow::default()).unwrap();
    // It finds that its session is gone at the latest here, and has the file open in the new one.
    a.getattr(attr.ino).unwrap();
    a.write(&file, 8192, BYTES, WriteHow::default()).unwrap();
    assert_eq!(asked(&a).get(&Method::BeginWrite), Some(&1));
    a.close(file.number);
    assert_eq!(b.lookup(root("f")).unwrap().size, 12288);
    a.shutdown();
    b.shutdown();
}
