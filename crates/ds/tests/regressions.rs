//! Goal: faults that were found once stay mended. Method: the shortest way to each, on temporary tiers.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{Object, ObjectHint, OpenKind};
use harness::{Site, ino};
use kv::WriteSet;
use std::{os::unix::fs::FileExt, sync::Arc, time::Duration};
use store::{Fault, FaultSpan, Faults, IoKind};
use types::{Errno, TierId};

const WRITER: OpenKind = OpenKind { read: false, write: true };
const READER: OpenKind = OpenKind { read: true, write: false };
const MIB: usize = 1 << 20;

fn hint(site: &Site, size: usize) -> ObjectHint {
    ObjectHint { size: size as u64, written: true, stale_live: false, memory_generation: site.generation() }
}

fn write_file(site: &Site, n: u64, bytes: &[u8]) -> Arc<Object> {
    let new = ObjectHint { written: false, ..hint(site, 0) };
    let object = site.server().attach(ino(n), &new).unwrap();
    site.server().open(&object, WRITER);
    site.server().write(&object, 0, bytes).unwrap();
    site.server().close(&object, WRITER);
    object
}

fn content(site: &Site, object: &Object) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; object.size() as usize];
    site.server().read(object, 0, &mut buf).map(|n| buf[..n].to_vec())
}

#[test]
fn regression_lost_bytes_stay_lost_when_the_file_is_opened_for_writing() {
    let mut site = Site::new(64 << 20);
    site.start();
    let before = site.generation();
    drop(write_file(&site, 2, &[7; MIB]));
    site.reboot();
    let old = ObjectHint { memory_generation: before, ..hint(&site, MIB) };
    let object = site.server().attach(ino(2), &old).unwrap();
    assert_eq!(content(&site, &object), Err(Errno::EIO));
    drop(object);
    // Whoever opens it for writing renews the generation in the inode; the loss must be on record by now.
    let object = site.server().attach(ino(2), &hint(&site, MIB)).unwrap();
    assert_eq!(content(&site, &object), Err(Errno::EIO));
}

#[test]
fn regression_a_damaged_map_concerns_its_own_file_alone() {
    let mut site = Site::new(64 << 20);
    site.start();
    for n in [2, 3] {
        let object = write_file(&site, n, &[n as u8; MIB]);
        site.server().flush(&object, &mut |_| {}).unwrap();
    }
    let mut writes = WriteSet::new();
    let mut key = ino(2).get().to_be_bytes().to_vec();
    key.push(b'O');
    writes.put(&key, vec![1, 2, 3].into());
    site.maps().commit(writes).unwrap();
    site.restart();
    assert_eq!(site.server().attach(ino(2), &hint(&site, MIB)).err(), Some(Errno::EIO));
    let other = site.server().attach(ino(3), &hint(&site, MIB)).unwrap();
    assert_eq!(content(&site, &other).unwrap(), [3; MIB]);
}

#[test]
fn regression_a_flush_that_fails_gives_back_what_it_asked_for() {
    let mut site = Site::new(64 << 20);
    site.faults = Faults::armed();
    site.start();
    let object = write_file(&site, 2, &[7; 8 * MIB]);
    let used = |site: &Site| site.server().tiers().iter().map(|t| t.report.used).collect::<Vec<_>>();
    let before = used(&site);
    let fault =
        Fault { kind: Some(IoKind::Write), nth: 1, errno: Errno::EIO, span: FaultSpan::Onwards, torn: false };
    site.faults.plan(fault);
    assert_eq!(site.server().flush(&object, &mut |_| {}), Err(Errno::EIO));
    site.faults.clear();
    assert_eq!(used(&site)[0], before[0]);
    assert!(used(&site)[1] < before[1] + 8 * MIB as u64, "{:?} after {before:?}", used(&site));
}

#[test]
fn regression_a_writer_beside_passthrough_readers_leaves_safe_copies_safe() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = write_file(&site, 2, &[7; MIB]);
    site.server().flush(&object, &mut |_| {}).unwrap();
    site.server().open(&object, READER);
    assert!(site.server().begin_passthrough(&object));
    site.server().begin_mapped_writes(&object).unwrap();
    assert_eq!(site.server().report(&object).at_risk, 0);
    site.server().absorb_mapped_writes(&object, true).unwrap();
    site.server().end_passthrough(&object);
    site.server().close(&object, READER);
    assert_eq!(site.server().report(&object).at_risk, 0);
    drop(object);
    site.reboot();
    let object = site.server().attach(ino(2), &hint(&site, MIB)).unwrap();
    assert_eq!(content(&site, &object).unwrap(), [7; MIB]);
}

#[test]
fn regression_bytes_written_through_a_mapping_reach_the_other_copies() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = write_file(&site, 2, &[7; MIB]);
    site.server().flush(&object, &mut |_| {}).unwrap();
    assert!(site.server().begin_passthrough(&object));
    site.server().begin_mapped_writes(&object).unwrap();
    let (_, file) = site.server().passthrough_file(&object).unwrap();
    let path =
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&*file)));
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(b"mapped", 100).unwrap();
    // A crash now: the mapped copy is the one that counts.
    drop((object, file));
    site.restart();
    let object = site.server().attach(ino(2), &hint(&site, MIB)).unwrap();
    assert_eq!(&content(&site, &object).unwrap()[100..106], b"mapped");
    site.server().flush(&object, &mut |_| {}).unwrap();
    drop(object);
    site.reboot();
    let object = site.server().attach(ino(2), &hint(&site, MIB)).unwrap();
    assert_eq!(&content(&site, &object).unwrap()[100..106], b"mapped");
}

#[test]
fn regression_what_moved_to_a_device_is_not_counted_as_only_in_memory() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = write_file(&site, 2, &[7; 8 * MIB]);
    assert_eq!(site.server().dirty().0, 1);
    site.server().migrate(ino(2), TierId::Ssd, Some(Duration::from_secs(60))).unwrap();
    assert_eq!(site.server().dirty(), (0, 0));
    drop(object);
}
