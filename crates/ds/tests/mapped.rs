//! Goal: what programs store through a mapping of an object's file is neither lost nor taken for damage. Method: stores as the
//! kernel makes them, by another descriptor of the file in place, with kills and reboots in between.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{Object, ObjectHint, OpenKind};
use harness::{Site, ino};
use std::{
    fs::OpenOptions,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::FileExt,
    },
    sync::Arc,
    time::Duration,
};
use store::{Fault, FaultSpan, Faults, IoKind};
use types::{Errno, TierId};

const WRITER: OpenKind = OpenKind { read: false, write: true };
const MIB: usize = 1 << 20;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

fn hint(site: &Site, size: usize) -> ObjectHint {
    ObjectHint { size: size as u64, written: true, stale_live: false, memory_generation: site.generation() }
}

fn attach(site: &Site, size: usize) -> Arc<Object> {
    site.server().attach(ino(2), &hint(site, size)).unwrap()
}

/// Object 2, 6 MiB of 7, closed.
fn create(site: &Site) -> Arc<Object> {
    let object = site.server().attach(ino(2), &ObjectHint { written: false, ..hint(site, 0) }).unwrap();
    site.server().open(&object, WRITER);
    site.server().write(&object, 0, &[7; 6 * MIB]).unwrap();
    site.server().close(&object, WRITER);
    object
}

fn read(site: &Site, object: &Object, offset: usize, len: usize) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; len];
    site.server().read(object, offset as u64, &mut buf).map(|n| buf[..n].to_vec())
}

/// In passthrough, and perhaps mapped for writing.
fn map(site: &Site, object: &Object) {
    read(site, object, 0, 6 * MIB).unwrap();
    assert!(site.server().begin_passthrough(object));
    site.server().begin_mapped_writes(object).unwrap();
}

fn store(site: &Site, object: &Object, offset: usize, bytes: &[u8]) {
    let (_, file) = site.server().passthrough_file(object).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset as u64).unwrap();
}

#[test]
fn regression_stores_to_a_sealed_device_copy_are_read_after_a_kill() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().migrate(ino(2), TierId::Ssd, PATIENCE).unwrap();
    map(&site, &object);
    store(&site, &object, 100, b"mapped");
    drop(object);
    site.restart();
    let object = attach(&site, 6 * MIB);
    assert_eq!(read(&site, &object, 98, 8).unwrap(), b"\x07\x07mapped");
    assert_eq!(site.server().counters().damaged_saus, 0);
}

#[test]
fn regression_nothing_vouches_for_bytes_that_a_mapping_may_change() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().migrate(ino(2), TierId::Ssd, PATIENCE).unwrap();
    assert_eq!(site.server().report(&object).sealed_saus, 2);
    map(&site, &object);
    assert_eq!(site.server().report(&object).sealed_saus, 0);
    // Not after a power cut either.
    let saved = site.maps().last_lsn();
    assert!(site.maps().synced_lsn() >= saved, "the record that says so is durable before the first store");
    // And what is moved afterwards is not compared with what it was.
    store(&site, &object, 5 * MIB, b"mapped");
    site.server().end_mapped_writes(&object).unwrap();
    site.server().end_passthrough(&object);
    site.server().migrate(ino(2), TierId::Nearline, PATIENCE).unwrap();
    assert_eq!(read(&site, &object, 5 * MIB, 6).unwrap(), b"mapped");
}

#[test]
fn regression_a_copy_made_while_a_mapping_changes_its_source_has_no_checksum() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    assert!(site.server().begin_passthrough(&object));
    site.server().begin_mapped_writes(&object).unwrap();
    site.server().flush(&object, &mut |_| {}).unwrap();
    assert_eq!(site.server().report(&object).bytes[1], 6 << 20);
    assert_eq!(site.server().report(&object).sealed_saus, 0);
    store(&site, &object, 4 * MIB, b"after the copy");
    site.server().end_mapped_writes(&object).unwrap();
    site.server().end_passthrough(&object);
    drop(object);
    site.reboot();
    let object = attach(&site, 6 * MIB);
    assert_eq!(read(&site, &object, 4 * MIB, 14).unwrap(), b"after the copy");
}

#[test]
fn regression_a_flush_makes_stores_safe_while_the_mapping_goes_on() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().flush(&object, &mut |_| {}).unwrap();
    map(&site, &object);
    store(&site, &object, 10, b"one file");
    site.server().flush(&object, &mut |_| {}).unwrap();
    store(&site, &object, 5 * MIB, b"everything");
    site.server().flush_all(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    drop(object);
    site.reboot();
    let object = attach(&site, 6 * MIB);
    assert_eq!(read(&site, &object, 10, 8).unwrap(), b"one file");
    assert_eq!(read(&site, &object, 5 * MIB, 10).unwrap(), b"everything");
}

#[test]
fn regression_readers_in_place_find_the_end_of_a_file_that_was_extended() {
    // Of an object in place on a device there is a file in a faster tier too, of what was moved down.
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().open(&object, WRITER);
    site.server().migrate(ino(2), TierId::Ssd, PATIENCE).unwrap();
    read(&site, &object, 0, 6 * MIB).unwrap();
    assert!(site.server().begin_passthrough(&object));
    let (tier, file) = site.server().passthrough_file(&object).unwrap();
    assert_eq!(tier, TierId::Ssd);
    site.server().truncate(&object, 7 << 20).unwrap();
    assert_eq!(file.stat().unwrap().size, 7 << 20);
    site.server().grow(&object, 9 << 20).unwrap();
    assert_eq!(file.stat().unwrap().size, 9 << 20);
}

#[test]
fn regression_stores_become_safe_while_a_mapping_is_held() {
    let mut site = Site::new(64 << 20);
    site.safe_within = Duration::ZERO;
    site.start();
    let object = create(&site);
    site.server().flush(&object, &mut |_| {}).unwrap();
    map(&site, &object);
    store(&site, &object, 5 * MIB, b"stored");
    // Nobody asks for it.
    let begun = std::time::Instant::now();
    while site.tier_file(TierId::Ssd, 2)[5 * MIB..][..6] != *b"stored" {
        assert!(begun.elapsed().as_secs() < 60, "the copy stays old");
        std::thread::yield_now();
    }
    drop(object);
    site.reboot();
    let object = attach(&site, 6 * MIB);
    assert_eq!(read(&site, &object, 5 * MIB, 6).unwrap(), b"stored");
}

#[test]
fn regression_copies_that_cannot_be_brought_up_are_given_up() {
    let mut site = Site::new(64 << 20);
    site.faults = Faults::armed();
    site.start();
    let object = create(&site);
    site.server().flush(&object, &mut |_| {}).unwrap();
    map(&site, &object);
    store(&site, &object, 5 * MIB, b"stored");
    let fault =
        Fault { kind: Some(IoKind::Write), nth: 1, errno: Errno::EIO, span: FaultSpan::Onwards, torn: false };
    site.faults.plan(fault);
    assert_eq!(site.server().end_mapped_writes(&object), Err(Errno::EIO));
    site.faults.clear();
    site.server().end_passthrough(&object);
    assert_eq!(site.server().report(&object).at_risk, 2 << 20, "of the second SAU only memory has the bytes");
    site.server().migrate(ino(2), TierId::Ssd, PATIENCE).unwrap();
    assert_eq!(read(&site, &object, 5 * MIB, 6).unwrap(), b"stored");
}

#[test]
fn regression_a_mapping_that_outlives_the_daemon_is_not_vouched_for() {
    // A program has the file mapped, here open, over a kill and a new mount, and goes on storing.
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().migrate(ino(2), TierId::Ssd, PATIENCE).unwrap();
    map(&site, &object);
    let held = OpenOptions::new().write(true).open(site.tier_path(TierId::Ssd, 2)).unwrap();
    drop(object);
    site.restart();
    drop(attach(&site, 6 * MIB));
    site.server().migrate(ino(2), TierId::Nearline, PATIENCE).unwrap();
    let object = attach(&site, 6 * MIB);
    assert_eq!(site.server().report(&object).sealed_saus, 0);
    drop((object, held));
}

#[test]
fn regression_stores_into_holes_are_kept() {
    // Goal: what a program stores where the file had a hole is read by everybody, also after a kill, and after a reboot if it
    // was made safe. Method: holes between bytes, at the end, and in what the file grew by; a promise of zeros for one.
    let mut site = Site::new(64 << 20);
    site.start();
    let object = site.server().attach(ino(2), &ObjectHint { written: false, ..hint(&site, 0) }).unwrap();
    site.server().open(&object, WRITER);
    site.server().write(&object, 9 << 20, &[7; MIB]).unwrap();
    site.server().flush(&object, &mut |_| {}).unwrap();
    site.server().grow(&object, 15 << 20).unwrap();
    site.server().close(&object, WRITER);
    map(&site, &object);
    site.server().grow(&object, 21 << 20).unwrap();
    let places = [100, (5 << 20) + 1, 13 << 20, 20 << 20];
    places.iter().for_each(|at| store(&site, &object, *at, b"mapped"));
    let check = |site: &Site, object: &Object| {
        for at in places {
            assert_eq!(read(site, object, at - 1, 8).unwrap(), b"\0mapped\0", "at {at}");
        }
        assert_eq!(read(site, object, 9 << 20, 2).unwrap(), [7; 2]);
        assert_eq!(read(site, object, (20 << 20) + 100, MIB).unwrap(), vec![0; MIB - 100]);
    };
    check(&site, &object);
    drop(object);
    site.restart();
    let object = attach(&site, 21 * MIB);
    check(&site, &object);
    map(&site, &object);
    places.iter().for_each(|at| store(&site, &object, *at, b"MAPPED"));
    places.iter().for_each(|at| store(&site, &object, *at, b"mapped"));
    site.server().end_mapped_writes(&object).unwrap();
    site.server().end_passthrough(&object);
    site.server().flush(&object, &mut |_| {}).unwrap();
    check(&site, &object);
    drop(object);
    site.reboot();
    check(&site, &attach(&site, 21 * MIB));
}
