//! Goal: what a client asked over a connection that it lost does not happen after what it asked over the next one: neither from the network, nor
//! from the queue of the workers, nor by a worker that is at it. Method: a data server behind a real socket, clients of one instance, and a
//! first write that is held: by a relay between both, by workers that are all at a device that hangs, by the device under itself.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod site;

use std::{
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use net::{Address, Answered, Call, Client, Instance, Pending, Target, Tuning};
use proto::{
    Request,
    data::{Attrs, Object, Read, Truncate, Write},
};
use serve::{data::DataOptions, workers::Bounds};
use site::{DataSite, Mute, ask, credentials, deadline, ino, until};
use store::IoKind;
use wire::{
    connection::{Cause, Failure},
    frame::Body,
    handshake::Wish,
    schema::Lane,
};

/// What becomes of a request whose connection was cut.
const LOST: Result<Answered, Failure> = Err(Failure::Unknown(Cause::Lost));

fn object(n: u64) -> Option<Object> {
    Some(Object { ino: ino(n).get(), generation: 1, view: None })
}

fn client_of(instance: Instance, address: &Address) -> Client {
    let target = Target {
        address: address.clone(),
        wish: Wish { lane: Lane::Data, node: Some(1) },
        credentials: credentials(99),
        handler: Arc::new(Mute),
        tuning: Tuning::default(),
    };
    Client::of(instance, target)
}

fn begin<R: Request>(client: &Client, request: &R, body: &[u8]) -> Pending {
    let call = Call {
        body: Body::new(body.to_vec()),
        ..Call::new(R::METHOD.number(), request.encode_to_vec(), deadline())
    };
    client.channel(deadline()).unwrap().begin(call).unwrap()
}

fn a_write(n: u64) -> Write {
    Write { object: object(n), offset: 0, sync: false, joined: 0, server: 0 }
}

fn write(client: &Client, n: u64, bytes: &[u8]) {
    let (written, _) = ask(client, &a_write(n), bytes, 0).unwrap();
    assert_eq!(written.bytes as usize, bytes.len());
}

fn read(client: &Client, n: u64) -> Vec<u8> {
    ask(client, &Read { object: object(n), offset: 0, length: 100 }, &[], 100).unwrap().1
}

/// Any answer over a client's connection.
fn is_there(client: &Client) {
    ask(client, &Attrs { objects: vec![object(9).unwrap()] }, &[], 0).unwrap();
}

/// A network between a client and a server, which holds back what the client says.
struct Relay {
    address: Address,
    holds: Arc<AtomicBool>,
    held: Arc<AtomicU64>,
    _dir: tempfile::TempDir,
}

impl Relay {
    /// For one connection.
    fn to(address: &Address) -> Relay {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let to = address.to_string().strip_prefix("unix:").unwrap().to_owned();
        let (holds, held) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (closed, counts) = (holds.clone(), held.clone());
        thread::spawn(move || {
            let mut client = listener.accept().unwrap().0;
            let mut server = UnixStream::connect(to).unwrap();
            let (mut back, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut back, &mut to_client));
            let mut bytes = [0; 4096];
            loop {
                let got = client.read(&mut bytes).unwrap_or(0);
                let end = deadline();
                while closed.load(SeqCst) && Instant::now() < end {
                    counts.store(got as u64, SeqCst);
                    thread::sleep(Duration::from_millis(1));
                }
                // A server that has cut the connection takes nothing.
                if got == 0 || server.write_all(&bytes[..got]).is_err() {
                    return;
                }
            }
        });
        Relay { address: format!("unix:{}", path.display()).parse().unwrap(), holds, held, _dir: dir }
    }
}

#[test]
fn regression_a_late_copy_of_a_write_changes_nothing() {
    let site = DataSite::started(1);
    let instance = Instance::random();
    for (n, late) in [(2, true), (3, false)] {
        let relay = Relay::to(site.address());
        let first = client_of(instance, &relay.address);
        is_there(&first);
        relay.holds.store(true, SeqCst);
        // A write, or a cut.
        let size = Truncate { object: object(n), size: 2, grow_only: false };
        let pending = if late { begin(&first, &a_write(n), b"old") } else { begin(&first, &size, &[]) };
        until("it is on its way", || relay.held.load(SeqCst) > 0);
        let second = client_of(instance, site.address());
        if late {
            write(&second, n, b"old");
        } else {
            ask(&second, &size, &[], 0).unwrap();
        }
        write(&second, n, b"newer");
        relay.holds.store(false, SeqCst);
        // Whatever comes of it.
        let ended = pending.wait();
        assert_eq!(read(&second, n), b"newer", "object {n}: {ended:?}");
        assert_eq!(ended, LOST);
    }
}

#[test]
fn regression_what_waits_for_a_worker_is_not_begun_after_its_connection() {
    let mut site = DataSite::new(1);
    let bounds = Bounds { threads: 1, ..Bounds::default() };
    site.options = DataOptions { bounds, ..site.options };
    site.start();
    let other = client_of(Instance::random(), site.address());
    let hangs = site.faults.hold(IoKind::Write);
    let hung = begin(&other, &a_write(7), b"x");
    assert!(hangs.has_come(deadline()));
    let instance = Instance::random();
    let first = client_of(instance, site.address());
    let pending = begin(&first, &a_write(2), b"old");
    until("it waits", || site.service().workers().meter().waiting() == 2);
    let second = client_of(instance, site.address());
    let read_back = begin(&second, &Read { object: object(2), offset: 0, length: 100 }, &[]);
    assert_eq!(pending.wait(), LOST);
    drop(hangs);
    read_back.wait().unwrap();
    hung.wait().unwrap();
    assert!(read(&second, 2).is_empty());
    assert_eq!(read(&second, 7), b"x");
}

#[test]
fn regression_a_write_that_is_under_way_ends_before_its_copy_begins() {
    let site = DataSite::started(1);
    let instance = Instance::random();
    let first = client_of(instance, site.address());
    for n in [2, 3] {
        write(&first, n, b"first");
    }
    let hangs = site.faults.hold(IoKind::Write);
    let pending = begin(&first, &a_write(2), b"old");
    assert!(hangs.has_come(deadline()));
    let second = client_of(instance, site.address());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let again = scope.spawn(|| {
            write(&second, 2, b"old");
            write(&second, 2, b"newer");
            over.store(true, SeqCst);
        });
        // Another object waits for nothing, and neither does another client.
        write(&second, 3, b"other");
        write(&client_of(Instance::random(), site.address()), 4, b"else");
        assert_eq!((read(&second, 3), read(&second, 4)), (b"other".to_vec(), b"else".to_vec()));
        // Time for what must not be.
        let end = Instant::now() + Duration::from_millis(200);
        while !over.load(SeqCst) && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!over.load(SeqCst), "it waits");
        drop(hangs);
        again.join().unwrap();
    });
    assert_eq!(pending.wait(), LOST);
    assert_eq!(read(&second, 2), b"newer");
}

/// Goal: requests that need no device are carried out while all threads wait for one. Method: one thread, which hangs in a write.
#[test]
fn who_waits_for_a_device_holds_nobody_else_up() {
    let mut site = DataSite::new(1);
    let bounds = Bounds { threads: 1, spare: 2, ..Bounds::default() };
    site.options = DataOptions { bounds, ..site.options };
    site.start();
    let client = client_of(Instance::random(), site.address());
    let hangs = site.faults.hold(IoKind::Write);
    let hung = begin(&client, &a_write(7), b"x");
    assert!(hangs.has_come(deadline()));
    for n in 20..28 {
        write(&client, n, b"others");
        assert_eq!(read(&client, n), b"others");
    }
    drop(hangs);
    hung.wait().unwrap();
    assert_eq!(read(&client, 7), b"x");
}
