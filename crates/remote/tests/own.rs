//! Goal: the data server of a mount's own machine is found whenever it comes, is asked over its Unix socket as long as that works, and nothing
//! is lost or done twice where the way changes. Method: clients without a kernel at real services; what they wrote is read by another client.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{os::unix::fs::PermissionsExt, sync::Arc, time::Duration};

use net::Credentials;
use proto::{attr::Caller, moving::DrainNode};
use remote::{Access, OwnNode, OwnStatus, Place, Remote, RemoteOptions, Sockets, WriteHow, Xattr};
use site::{
    DataSite, ask, client_to,
    cluster::{META, Site, options},
    credentials, until,
};
use types::Ino;
use wire::{
    handshake::{Identity, Roles},
    schema::Lane,
};

const NONE: OwnStatus = OwnStatus { node: 0, takes: false, near: false, files: 0, files_ever: 0 };
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };

/// Only clients come in at the socket.
fn as_client(node: u64) -> Credentials {
    let credentials = credentials(node);
    Credentials { me: Identity { roles: Roles::CLIENT, ..credentials.me }, ..credentials }
}

fn client(site: &Site, node: u64, own_node: OwnNode, sockets: Sockets) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], as_client(node));
    options.patience = Duration::from_secs(5);
    options.longest = Duration::from_secs(20);
    options.own_node = own_node;
    options.sockets = sockets;
    // Each read is to go somewhere.
    options.cache = 0;
    Remote::start(options).unwrap()
}

fn root(name: &str) -> Place<'_> {
    Place { dir: Ino::ROOT, name: name.as_bytes() }
}

fn write(client: &Remote, name: &str, bytes: &[u8]) -> Ino {
    let (attr, file) = client.create(CALLER, root(name), 0o644, BOTH).unwrap();
    assert_eq!(client.write(&file, 0, bytes, WriteHow::default()).unwrap(), bytes.len());
    client.close(file.number);
    attr.ino
}

fn read(client: &Remote, ino: Ino, len: usize) -> Vec<u8> {
    let file = client.open(ino, Access { write: false, ..BOTH }).unwrap();
    let mut bytes = vec![0; len];
    let read = client.read(&file, 0, &mut bytes).unwrap();
    client.close(file.number);
    bytes.truncate(read);
    bytes
}

/// Where the file's data are.
fn nodes(client: &Remote, ino: Ino) -> String {
    let value = client.getxattr(ino, b"user.onfs.layout", 4096).unwrap();
    let Xattr::Bytes(text) = value else { panic!("a value") };
    String::from_utf8(text).unwrap().rsplit_once("nodes=").unwrap().1.to_owned()
}

fn own(client: &Remote) -> Option<OwnStatus> {
    client.status().own
}

/// Reached at this machine's address, and at its socket.
fn data_here(node: u64) -> DataSite {
    let mut data = DataSite::new(node);
    data.address = Some("127.0.0.1:0".parse().unwrap());
    data.near = true;
    data.start();
    data
}

/// Sessions are renewed often: what changes is heard of soon.
fn site() -> Site {
    Site::with(0, serve::metadata::MetadataOptions { renew: Duration::from_millis(200), ..options() })
}

#[test]
fn a_data_server_that_comes_later_is_the_own_one_until_it_is_drained() {
    let mut site = site();
    let a = client(&site, 900, OwnNode::Detect, Sockets::Off);
    assert_eq!(own(&a), None);
    site.add_data(data_here(1));
    until("it is found", || own(&a) == Some(OwnStatus { node: 1, takes: true, near: false, ..NONE }));
    // On another machine, as far as anybody knows.
    let mut far = DataSite::new(2);
    far.address = Some("[::1]:0".parse().unwrap());
    far.start();
    let other = far.node;
    site.add_data(far);
    let b = client(&site, 901, OwnNode::Is(other), Sockets::Off);
    // `::1` is here, too: with two at addresses of this machine none is its own.
    until("there are two", || own(&a).is_none());
    until("one has two to choose from", || {
        nodes(&a, write(&a, "neither", b"x")).contains(',') || {
            a.unlink(root("neither")).unwrap();
            false
        }
    });
    assert_eq!(nodes(&b, write(&b, "b", b"x")), "2:data-2");
    let control = client_to(&site.address(), META, Lane::Control);
    ask(&control, &DrainNode { node: other, undo: false }, &[], 0).unwrap();
    // Of two one that is drained gets nothing: the other is the own one again.
    until("one is drained", || own(&a) == Some(OwnStatus { node: 1, takes: true, near: false, ..NONE }));
    until("the mount has none that takes", || own(&b).is_some_and(|own| own.node == other && !own.takes));
    let name = |n: u32| format!("mine-{n}");
    let mut n = 0;
    until("the server was told", || {
        n += 1;
        nodes(&a, write(&a, &name(n), b"x")) == "1:data-1"
    });
    a.shutdown();
    b.shutdown();
}

#[test]
fn the_own_one_is_asked_over_its_socket_and_over_the_network_without_it() {
    let mut site = site();
    site.add_data(data_here(1));
    let socket = site.data[0].near_socket();
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let a = client(&site, 900, OwnNode::Detect, Sockets::At(socket.clone()));
    let b = client(&site, 901, OwnNode::None, Sockets::At(socket.clone()));
    let ino = write(&a, "f", b"first");
    assert_eq!(own(&a), Some(OwnStatus { node: 1, takes: true, near: true, ..NONE }));
    assert_eq!(read(&b, ino, 9), b"first");
    assert_eq!(own(&b), None);
    // Without the socket, and with a connection that is lost.
    let hidden = socket.with_extension("hidden");
    std::fs::rename(&socket, &hidden).unwrap();
    site.kill_data(0);
    std::fs::remove_file(&hidden).unwrap();
    site.data[0].near = false;
    site.start_data(0);
    assert_eq!(read(&a, ino, 9), b"first");
    assert_eq!(own(&a), Some(OwnStatus { node: 1, takes: true, near: false, ..NONE }));
    let second = write(&a, "g", b"second");
    // And back again.
    site.kill_data(0);
    site.data[0].near = true;
    site.start_data(0);
    until("the socket is used again", || {
        assert_eq!(read(&a, second, 9), b"second");
        own(&a).is_some_and(|own| own.near)
    });
    assert_eq!(read(&b, second, 9), b"second");
    a.shutdown();
    b.shutdown();
}

/// Who connects there and is not a data server has no key: he is not believed, and not waited for.
#[test]
fn somebody_else_at_the_socket_is_not_believed() {
    let mut site = site();
    site.add_data(data_here(1));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let a = client(&site, 900, OwnNode::Detect, Sockets::At(path));
    let ino = write(&a, "f", b"bytes");
    assert_eq!(read(&a, ino, 9), b"bytes");
    assert_eq!(own(&a), Some(OwnStatus { node: 1, takes: true, near: false, ..NONE }));
    drop(listener);
    a.shutdown();
}
