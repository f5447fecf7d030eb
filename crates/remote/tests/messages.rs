//! Goal: how many messages an operation of a client takes is known, and stays. Method: clients without a kernel at real services; what
//! they asked is counted.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use proto::{Method, attr::Caller};
use remote::{Access, OwnNode, Place, Remote, RemoteOptions, WriteHow, Xattr};
use site::{cluster::Site, credentials, until};
use types::Ino;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const WRITE: Access = Access { read: false, write: true, exclusive: false, no_atime: true };
const READ: Access = Access { read: true, write: false, exclusive: false, no_atime: true };
const BYTES: &[u8] = &[7; 4096];

fn client(site: &Site, node: u64) -> Arc<Remote> {
    client_on(site, node, OwnNode::None)
}

fn client_on(site: &Site, node: u64, own_node: OwnNode) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], credentials(node));
    options.patience = Duration::from_secs(5);
    options.longest = Duration::from_secs(20);
    options.own_node = own_node;
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
    // More is read than is asked for, and where a short file ends its other stripes are asked, as a program's own long read would.
    assert!(after.remove(&Method::Attrs).is_none_or(|asked| asked <= 2));
    assert_eq!(after, BTreeMap::from([(Method::Open, 1), (Method::Read, 1), (Method::CloseMany, 1)]));

    // Its maker's look at a file that he has not written asks no data server, one after that does.
    let (attr, file) = a.create(CALLER, root("new"), 0o644, WRITE).unwrap();
    assert_eq!(a.getattr(attr.ino).unwrap().size, 0);
    assert_eq!(asked(&a)[&Method::GetUntouched], 1);
    a.write(&file, 0, BYTES, WriteHow::default()).unwrap();
    assert_eq!(a.getattr(attr.ino).unwrap().size, BYTES.len() as u64);
    assert_eq!((asked(&a)[&Method::GetUntouched], asked(&a)[&Method::Look]), (1, 1));
    a.close(file.number);

    const MANY: u64 = 300;
    for n in 0..MANY {
        write(&a, &format!("many{n}"));
    }
    a.shutdown();
    let after = asked(&a);
    assert_eq!((after[&Method::Create], after[&Method::Write]), (MANY + 2, MANY + 2));
    assert!(after[&Method::CloseMany] <= MANY + 2, "{after:?}");
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

/// Where a file's data are, or what a directory says.
fn layout(client: &Remote, ino: Ino) -> String {
    let value = client.getxattr(ino, b"user.onfs.layout", 4096).unwrap();
    let Xattr::Bytes(text) = value else { panic!("a value") };
    String::from_utf8(text).unwrap()
}

#[test]
fn what_one_mount_writes_is_at_its_own_node() {
    let site = Site::new(3);
    let (a, b) = (client_on(&site, 900, OwnNode::Is(2)), client_on(&site, 901, OwnNode::Detect));
    assert_eq!(layout(&a, write(&a, "f")), "stripes=1 unit=4194304 nodes=2:data-2");
    until("it is closed", || asked(&a).contains_key(&Method::CloseMany));
    // Who else opens it is seen at the first write.
    assert_eq!(asked(&a)[&Method::BeginWrite], 1);
    // All three are on this machine: none of them is its own.
    assert!(layout(&b, write(&b, "g")).starts_with("stripes=3 "));
    assert!(!asked(&b).contains_key(&Method::BeginWrite));
    // Where that is not waited for the first write needs no message of its own.
    let dir = a.mkdir(CALLER, root("d"), 0o755).unwrap().ino;
    let said =
        fuse::SetxattrArgs { name: b"user.onfs.layout", value: b"local=yes", flags: 0, acl_kill_sgid: false };
    a.setxattr(dir, &said).unwrap();
    assert_eq!(layout(&b, dir), "stripes=auto unit=auto local=yes");
    let (attr, file) = a.create(CALLER, Place { dir, name: b"h" }, 0o644, WRITE).unwrap();
    a.write(&file, 0, BYTES, WriteHow::default()).unwrap();
    assert_eq!(layout(&b, attr.ino), "stripes=1 unit=4194304 nodes=2:data-2");
    assert_eq!(asked(&a)[&Method::BeginWrite], 1);
    assert_eq!(b.listxattr(0, dir, 4096).unwrap(), Xattr::Bytes(Vec::new()));
    a.shutdown();
    b.shutdown();
}

#[test]
fn the_one_data_server_on_this_machine_is_found() {
    let site = Site::new(1);
    let a = client_on(&site, 900, OwnNode::Detect);
    write(&a, "f");
    assert_eq!(asked(&a)[&Method::BeginWrite], 1, "only who has a node waits for others");
    a.shutdown();
}
