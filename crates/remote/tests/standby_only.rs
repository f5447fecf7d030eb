//! Goal: programs go on when the one metadata server that their mount and the data servers were told of dies, with one that only kept copies, of
//! which the cluster map alone speaks. Method: the real services behind real sockets, a client without a kernel, a kill.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::time::Duration;

use proto::attr::Caller;
use remote::{Access, Place, Remote, RemoteOptions, WriteHow};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    DataSite,
    cluster::options,
    credentials,
    several::{Begin, Several},
    until,
};
use types::Ino;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };

fn at(dir: Ino, name: &str) -> Place<'_> {
    Place { dir, name: name.as_bytes() }
}

/// A file is written, and read back by its name.
fn works(client: &Remote, dir: Ino, name: &str) {
    let file = client.create(CALLER, at(dir, name), 0o644, BOTH).unwrap().1;
    assert_eq!(client.write(&file, 0, name.as_bytes(), WriteHow::default()).unwrap(), name.len());
    client.close(file.number);
    reads(client, dir, name);
}

fn reads(client: &Remote, dir: Ino, name: &str) {
    let ino = client.lookup(at(dir, name)).unwrap().ino;
    let file = client.open(ino, BOTH).unwrap();
    let mut read = vec![0; name.len()];
    assert_eq!(client.read(&file, 0, &mut read).unwrap(), name.len());
    assert_eq!(read, name.as_bytes());
    client.close(file.number);
}

#[test]
fn a_mount_finds_the_standby_that_nobody_told_it_of() {
    let sessions = SessionLimits { silence: Duration::from_secs(2), ..SessionLimits::default() };
    let options = MetadataOptions { sessions, ..options() };
    let mut site = Several::begun(Begin {
        servers: 2,
        first: 1,
        standbys: [1].into(),
        data: vec![DataSite::started(1)],
        options,
    });
    site.start(1);
    until("the server has a standby", || site.is_copied(0));
    until("the data server reports to it", || site.service(1).nodes().measures().len() == 1);
    let client = Remote::start(RemoteOptions::new(vec![site.address(0)], credentials(900))).unwrap();
    let dir = client.mkdir(CALLER, at(Ino::ROOT, "d"), 0o755).unwrap().ino;
    works(&client, dir, "before");
    // A mount hears of what is new when it renews itself.
    let standby = Several::node(1);
    until("the mount knows of it", || client.status().metadata.iter().any(|server| server.node == standby));
    let dead = site.owner(dir.get());
    assert_eq!(dead, 0);
    site.kill_copied(0);
    until("the standby goes on", || site.owner(1) == 1);
    until("it begins anew", || site.service(1).has_to_begin_anew());
    site.begin_anew();
    reads(&client, dir, "before");
    works(&client, dir, "after");
    client.shutdown();
}
