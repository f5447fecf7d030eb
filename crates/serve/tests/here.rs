//! Goal: a large write that comes alone is carried out on the thread that received it where that asks no device, with the answer that a worker gives;
//! a device that hangs holds up nothing else that comes over the connection. Method: a data server behind a real socket whose SSD has faults of its
//! own. That no worker was asked is seen where all of them hang.
#![allow(clippy::unwrap_used, reason = "tests")]

mod site;

use net::{Call, Client, Pending};
use proto::{
    Request,
    data::{Object, Read, Sync, Truncate, Write},
};
use serve::{data::DataOptions, workers::Bounds};
use site::{DataSite, ask, ask_once, deadline, ino};
use store::{Fault, FaultSpan, Faults, IoKind};
use types::Errno;
use wire::frame::Body;

/// As many bytes as go this way, and fewer than go to a device's page cache at once.
const LARGE: usize = 100 << 10;

fn object(n: u64) -> Option<Object> {
    Some(Object { ino: ino(n).get(), generation: 1, view: None })
}

fn a_write(n: u64, offset: u64) -> Write {
    Write { object: object(n), offset, sync: false, joined: 0, server: 0 }
}

fn write(client: &Client, n: u64, offset: u64, bytes: &[u8]) -> Result<u32, Errno> {
    let answered = ask(client, &a_write(n, offset), bytes, 0);
    answered.map(|(written, _)| written.bytes).map_err(|fault| Errno::from_raw(fault.errno))
}

fn read(client: &Client, n: u64, offset: u64, length: u32) -> Vec<u8> {
    ask(client, &Read { object: object(n), offset, length }, &[], length).unwrap().1
}

fn begin(client: &Client, n: u64, bytes: Vec<u8>) -> Pending {
    let request = a_write(n, 0);
    let call = Call {
        body: Body::new(bytes),
        ..Call::new(Write::METHOD.number(), prost::Message::encode_to_vec(&request), deadline())
    };
    client.channel(deadline()).unwrap().begin(call).unwrap()
}

fn site_with(memory: u64, threads: usize) -> (DataSite, Faults) {
    let (mut site, ssd) = (DataSite::new(1), Faults::armed());
    let bounds = Bounds { threads, spare: 0, ..Bounds::default() };
    site.options = DataOptions { bounds, ..site.options };
    (site.memory, site.ssd_faults) = (memory, Some(ssd.clone()));
    site.start();
    (site, ssd)
}

/// All of the object is on the device alone, and so is what is written to it from now on: its program makes it durable again and again.
fn durable(client: &Client, n: u64) {
    for _ in 0..2 {
        assert_eq!(write(client, n, 0, &[1; LARGE]), Ok(LARGE as u32));
        ask(client, &Sync { object: object(n) }, &[], 0).unwrap();
    }
}

/// A large write to object `n` meets an operation of the device that hangs; what comes behind it over the connection is answered.
fn holds_nobody_up(site: &DataSite, ssd: &Faults, kind: IoKind, n: u64) {
    let client = site.client();
    assert_eq!(write(&client, 9, 0, b"other"), Ok(5));
    let hangs = ssd.hold(kind);
    let hung = begin(&client, n, vec![7; LARGE]);
    assert!(hangs.has_come(deadline()), "the write asks the device");
    assert_eq!(read(&client, 9, 0, 100), b"other");
    drop(hangs);
    hung.wait().unwrap();
    assert_eq!(read(&client, n, 0, LARGE as u32), vec![7; LARGE]);
}

#[test]
fn a_device_that_hangs_under_a_large_write_holds_nothing_else_up() {
    let (site, ssd) = site_with(64 << 20, 2);
    durable(&site.client(), 2);
    holds_nobody_up(&site, &ssd, IoKind::Write, 2);
}

/// Goal: nor does one that an object comes to with this write.
#[test]
fn regression_a_device_that_a_large_write_goes_to_holds_nothing_else_up() {
    let (site, ssd) = site_with(64 << 20, 2);
    let client = site.client();
    // Its program makes it durable, so what it writes goes to the device at once; and nothing of it is anywhere yet.
    ask(&client, &Truncate { object: object(2), size: 10, grow_only: true }, &[], 0).unwrap();
    ask(&client, &Sync { object: object(2) }, &[], 0).unwrap();
    holds_nobody_up(&site, &ssd, IoKind::Open, 2);
}

#[test]
fn a_large_write_that_comes_alone_needs_no_worker() {
    let (site, ssd) = site_with(64 << 20, 1);
    let (client, other) = (site.client(), site.client());
    assert_eq!(write(&client, 2, 0, b"begun"), Ok(5));
    durable(&client, 3);
    // The only worker.
    let hangs = ssd.hold(IoKind::Write);
    let hung = begin(&other, 3, vec![2; LARGE]);
    assert!(hangs.has_come(deadline()));
    let bytes: Vec<u8> = (0..5 * LARGE).map(|at| (at % 251) as u8).collect();
    for (at, piece) in bytes.chunks(LARGE).enumerate() {
        assert_eq!(write(&client, 2, (at * LARGE) as u64 + 3, piece), Ok(LARGE as u32));
    }
    drop(hangs);
    hung.wait().unwrap();
    assert_eq!(read(&client, 2, 0, 3), b"beg");
    assert!(read(&client, 2, 3, 6 * LARGE as u32) == bytes);
}

#[test]
fn a_large_write_is_answered_as_by_a_worker() {
    let mut site = DataSite::new(1);
    // Memory alone: nothing goes elsewhere when it fails.
    site.ssd = None;
    site.start();
    let client = site.client();
    assert_eq!(write(&client, 2, 0, b"begun"), Ok(5));
    // It ends behind the last byte that a file may have, and behind the last that there are numbers for.
    assert_eq!(write(&client, 2, layout::FILE_BYTES_MAX - 10, &[1; LARGE]), Err(Errno::EFBIG));
    assert_eq!(write(&client, 2, u64::MAX - 10, &[1; LARGE]), Err(Errno::EFBIG));
    // Of another file.
    let gone = Object { generation: 2, ..object(2).unwrap() };
    let request = Write { object: Some(gone), ..a_write(2, 0) };
    let refused = ask_once(&client, &request, &[1; LARGE], 0).unwrap_err();
    assert_eq!(refused.errno, Errno::ESTALE.raw());
    assert_eq!(read(&client, 2, 0, 100), b"begun");
    // An error that passes is nobody's; half of the bytes were there when it came.
    let fault =
        Fault { kind: Some(IoKind::Write), nth: 1, errno: Errno::EIO, span: FaultSpan::Once, torn: true };
    site.faults.plan(fault);
    assert_eq!(write(&client, 2, 0, &[2; LARGE]), Ok(LARGE as u32));
    assert_eq!(site.faults.fired(), 1);
    assert!(read(&client, 2, 0, 2 * LARGE as u32) == [2; LARGE]);
    // One that stays is answered, and what was behind the end stays nothing.
    site.faults.plan(Fault { span: FaultSpan::Onwards, torn: false, ..fault });
    assert_eq!(write(&client, 2, LARGE as u64, &[3; LARGE]), Err(Errno::EIO));
    site.faults.clear();
    assert!(read(&client, 2, 0, 2 * LARGE as u32) == [2; LARGE]);
}
