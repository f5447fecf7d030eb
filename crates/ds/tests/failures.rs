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

fn once(kind: IoKind, errno: Errno) -> Fault {
    Fault { span: FaultSpan::Once, ..onwards(kind, errno) }
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

/// S-32: a device failed to make one file's bytes durable. Method: the file is written on; another is fsynced, and so is the
/// journal.
#[test]
fn regression_a_file_whose_sync_failed_does_not_fail_the_syncs_of_others() {
    let mut site = Site::new(64 << 20);
    site.faults = Faults::armed();
    site.start();
    let (failed, other) = (create(&site, 2), create(&site, 3));
    site.server().write(&failed, 0, &[7; MIB]).unwrap();
    site.faults.plan(once(IoKind::Sync, Errno::EIO));
    assert_eq!(site.server().sync(&failed), Err(Errno::EIO));
    site.server().write(&failed, MIB as u64, &[8; MIB]).unwrap();
    site.server().write(&other, 0, &[9; MIB]).unwrap();
    site.server().sync(&other).unwrap();
    site.maps().sync().unwrap();
    assert_eq!(site.server().sync(&failed), Err(Errno::EIO));
    // After the last close it is a file as others, and what waits of it is synced with the journal.
    site.server().close(&failed, WRITER);
    let before = site.faults.count(IoKind::Sync);
    site.server().sync_devices();
    assert!(site.faults.count(IoKind::Sync) > before);
}

/// Many objects wait, and the SSD fails to take them: those of the other tier are made durable all the same.
#[test]
fn regression_a_tier_that_fails_to_sync_does_not_make_the_others_forgotten() {
    let mut site = Site::new(64 << 20);
    (site.faults, site.ssd_faults) = (Faults::armed(), Some(Faults::armed()));
    site.start();
    let slow = create(&site, 2);
    site.server().write(&slow, 0, &[7; MIB]).unwrap();
    site.server().migrate(ino(2), TierId::Nearline, None).unwrap();
    let many: Vec<_> = (3..40).map(|n| create(&site, n)).collect();
    for object in &many {
        site.server().write(object, 0, &[7; 4096]).unwrap();
        flush(&site, object).unwrap();
    }
    site.maps().sync().unwrap();
    // Over the copies on devices. The first time each waits for its record, the second for nothing: then all wait for a sync.
    for _ in 0..2 {
        site.server().write(&slow, 0, b"new").unwrap();
        many.iter().for_each(|object| assert_eq!(site.server().write(object, 0, b"new"), Ok(3)));
    }
    let before = site.faults.count(IoKind::Sync);
    site.ssd_faults.as_ref().unwrap().plan(onwards(IoKind::Sync, Errno::EIO));
    site.server().sync_devices();
    assert!(site.faults.count(IoKind::Sync) > before, "near-line was synced");
    many.iter().for_each(|object| assert_eq!(site.server().sync(object), Err(Errno::EIO)));
    site.server().sync(&slow).unwrap();
}

/// Method: a cut syncs the device's file by itself, and that fails once.
#[test]
fn regression_an_fsync_hears_of_a_sync_that_failed_in_another_call() {
    let mut site = Site::new(64 << 20);
    site.faults = Faults::armed();
    site.start();
    let object = create(&site, 2);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    flush(&site, &object).unwrap();
    site.faults.plan(once(IoKind::Sync, Errno::EIO));
    assert_eq!(site.server().truncate(&object, 1000), Err(Errno::EIO));
    assert_eq!(site.server().sync(&object), Err(Errno::EIO));
}

/// The SSD perhaps did not take a SAU that memory has too; a move of the rest does not give memory up for it.
#[test]
fn regression_a_move_does_not_give_memory_up_for_a_copy_that_failed_to_sync() {
    let mut site = Site::new(64 << 20);
    site.faults = Faults::armed();
    site.start();
    let object = create(&site, 2);
    site.server().write(&object, 0, &[7; 4 * MIB]).unwrap();
    site.faults.plan(once(IoKind::Sync, Errno::EIO));
    assert_eq!(flush(&site, &object), Err(Errno::EIO));
    site.server().write(&object, 4 << 20, &[8; MIB]).unwrap();
    site.server().close(&object, WRITER);
    let two_seconds = Some(std::time::Duration::from_secs(2));
    assert!(site.server().migrate(ino(2), TierId::Ssd, two_seconds).is_err());
    assert_eq!(site.server().report(&object).bytes[0], 5 * MIB as u64);
    flush(&site, &object).unwrap();
    site.server().migrate(ino(2), TierId::Ssd, None).unwrap();
    assert_eq!(site.server().report(&object).bytes, [0, 5 * MIB as u64, 0]);
}
