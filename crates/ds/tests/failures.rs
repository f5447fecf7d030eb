//! Goal: what fails loses nothing that was safe or answered, and concerns its own file alone. Method: the shortest way to
//! each fault that was found, with devices and a store of maps that fail on demand.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{Object, ObjectHint, OpenKind};
use harness::{Site, ino};
use std::sync::Arc;
use store::{Fault, FaultSpan, Faults, IoKind};
use types::{Errno, TierId};

const WRITER: OpenKind = OpenKind { read: false, write: true };
const MIB: usize = 1 << 20;

fn hint(site: &Site, size: usize) -> ObjectHint {
    ObjectHint { size: size as u64, written: true, stale_live: false, memory_generation: site.generation() }
}

/// A new object, open for writing.
fn create(site: &Site, n: u64) -> Arc<Object> {
    let object = site.server().attach(ino(n), &ObjectHint { written: false, ..hint(site, 0) }).unwrap();
    site.server().open(&object, WRITER);
    object
}

fn attach(site: &Site, n: u64, size: usize) -> Arc<Object> {
    site.server().attach(ino(n), &hint(site, size)).unwrap()
}

fn read(site: &Site, object: &Object, offset: usize, len: usize) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; len];
    site.server().read(object, offset as u64, &mut buf).map(|n| buf[..n].to_vec())
}

fn flush(site: &Site, object: &Object) -> Result<(), Errno> {
    site.server().flush(object, &mut |_| {})
}

fn onwards(kind: IoKind, errno: Errno) -> Fault {
    Fault { kind: Some(kind), nth: 1, errno, span: FaultSpan::Onwards, torn: false }
}

/// Safe bytes are in memory and near-line, and the SSD has no room. Method: overwrite them while near-line cannot be written,
/// then lose the memory: near-line has the old bytes still.
#[test]
fn regression_an_overwrite_does_not_wipe_the_slow_copy_that_it_goes_to() {
    let mut site = Site::new(64 << 20);
    (site.ssd_limit, site.faults) = (Some(0), Faults::armed());
    site.start();
    let object = create(&site, 2);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    flush(&site, &object).unwrap();
    assert_eq!(site.server().report(&object).bytes, [MIB as u64, 0, MIB as u64]);
    site.faults.plan(onwards(IoKind::Write, Errno::EIO));
    assert_eq!(site.server().write(&object, 0, b"new"), Err(Errno::EIO));
    site.faults.clear();
    drop(object);
    site.reboot();
    let object = attach(&site, 2, MIB);
    assert_eq!(read(&site, &object, 0, MIB).unwrap(), [7; MIB]);
    site.server().open(&object, WRITER);
    site.server().write(&object, 0, b"new").unwrap();
    assert_eq!(site.server().report(&object).bytes[TierId::Nearline.index()], MIB as u64);
    assert_eq!(read(&site, &object, 0, 4).unwrap(), b"new\x07");
}
