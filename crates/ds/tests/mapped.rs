//! Goal: what programs store through a mapping of an object's file is neither lost nor taken for damage. Method: stores as the
//! kernel makes them, by another descriptor of the file in place, with kills and reboots in between.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{Object, ObjectHint, OpenKind};
use harness::{Site, hint, ino, read};
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

/// The device whose file is mapped fails a sync, and a slower tier holds the bytes too. Method: a store that no copy has yet,
/// then a write that would have the device's copy made anew from the slower one.
#[test]
fn regression_a_copy_that_programs_store_to_is_not_made_anew_from_another() {
    let mut site = Site::new(64 << 20);
    site.ssd_faults = Some(Faults::armed());
    site.start();
    let object = create(&site);
    site.server().migrate(ino(2), TierId::Nearline, PATIENCE).unwrap();
    site.server().migrate(ino(2), TierId::Ssd, PATIENCE).unwrap();
    assert_eq!(site.server().report(&object).bytes, [0, 6 << 20, 6 << 20]);
    site.server().open(&object, WRITER);
    map(&site, &object);
    store(&site, &object, 0, b"first");
    let fault =
        Fault { kind: Some(IoKind::Sync), nth: 1, errno: Errno::EIO, span: FaultSpan::Once, torn: false };
    site.ssd_faults.as_ref().unwrap().plan(fault);
    assert_eq!(site.server().sync(&object), Err(Errno::EIO));
    store(&site, &object, 5 * MIB, b"second");
    let written = site.server().write(&object, 100, b"written");
    assert_eq!(read(&site, &object, 5 * MIB, 6).unwrap(), b"second");
    assert_eq!(written, Err(Errno::EIO));
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

/// The usual way to make a file longer before it is mapped: one byte at its new end.
#[test]
fn regression_stores_into_the_gap_before_a_write_are_kept() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    map(&site, &object);
    site.server().write(&object, 21 << 20, b"e").unwrap();
    for at in [6 << 20, 10 << 20, 20 << 20] {
        store(&site, &object, at, b"mapped");
        assert_eq!(read(&site, &object, at - 1, 8).unwrap()[1..], *b"mapped\0", "at {at}");
    }
    drop(object);
    site.restart();
    let object = attach(&site, (21 << 20) + 1);
    assert_eq!(read(&site, &object, 10 << 20, 6).unwrap(), b"mapped");
    assert_eq!(read(&site, &object, 21 << 20, 1).unwrap(), b"e");
}

#[test]
fn regression_a_mapping_that_outlived_the_daemon_does_not_hide_a_new_one() {
    // Goal: stores of the new one are kept where there were holes, and become safe by themselves.
    let mut site = Site::new(64 << 20);
    site.safe_within = Duration::ZERO;
    site.start();
    let object = create(&site);
    site.server().flush(&object, &mut |_| {}).unwrap();
    map(&site, &object);
    let held = OpenOptions::new().write(true).open(site.tier_path(TierId::Memory, 2)).unwrap();
    drop(object);
    site.restart();
    let object = attach(&site, 6 * MIB);
    site.server().grow(&object, 15 << 20).unwrap();
    map(&site, &object);
    store(&site, &object, 13 * MIB, b"into a hole");
    assert_eq!(read(&site, &object, 13 * MIB, 11).unwrap(), b"into a hole");
    store(&site, &object, 5 * MIB, b"stored");
    let begun = std::time::Instant::now();
    while site.tier_file(TierId::Ssd, 2)[5 * MIB..][..6] != *b"stored" {
        assert!(begun.elapsed().as_secs() < 60, "the copy stays old");
        std::thread::yield_now();
    }
    drop(held);
}

/// A file of 10 MiB with bytes in the last one only, and an fsync that promised the zeros before it; in passthrough.
fn promised(site: &Site) -> Arc<Object> {
    let object = site.server().attach(ino(2), &ObjectHint { written: false, ..hint(site, 0) }).unwrap();
    site.server().write(&object, 9 << 20, &[7; MIB]).unwrap();
    site.server().flush(&object, &mut |_| {}).unwrap();
    assert!(site.server().begin_passthrough(&object));
    object
}

#[test]
fn regression_a_write_after_an_opening_that_failed_is_recorded() {
    // The opening gives the first hole a place, and fails at the second.
    let mut site = Site::new(64 << 20);
    site.ssd_faults = Some(Faults::armed());
    site.start();
    let object = promised(&site);
    let (kind, span) = (Some(IoKind::Allocate), FaultSpan::Once);
    let fault = Fault { kind, nth: 2, errno: Errno::EIO, span, torn: false };
    site.ssd_faults.as_ref().unwrap().plan(fault);
    assert_eq!(site.server().begin_mapped_writes(&object), Err(Errno::EIO));
    site.server().write(&object, 100, b"written").unwrap();
    drop(object);
    site.restart();
    assert_eq!(read(&site, &attach(&site, 10 * MIB), 100, 7).unwrap(), b"written");
}

#[test]
fn regression_an_extension_that_failed_leaves_no_room_for_stores() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    map(&site, &object);
    let (_, file) = site.server().passthrough_file(&object).unwrap();
    site.fail_saves(Errno::ENOSPC, 0);
    assert_eq!(site.server().grow(&object, 15 << 20), Err(Errno::ENOSPC));
    assert_eq!((object.size(), file.stat().unwrap().size), (6 << 20, 6 << 20));
    site.mend_saves();
    site.server().grow(&object, 15 << 20).unwrap();
    store(&site, &object, 13 * MIB, b"mapped");
    assert_eq!(read(&site, &object, 13 * MIB, 6).unwrap(), b"mapped");
}

/// I-DS-4. Method: what an fsync made safe is punched, then the file is opened for mapping; at its save the punch is durable.
#[test]
fn regression_a_hole_gets_its_place_when_what_was_there_is_durably_given_up() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().truncate(&object, 8 << 20).unwrap();
    site.server().flush(&object, &mut |_| {}).unwrap();
    site.maps().sync().unwrap();
    site.server().allocate(&object, ds::AllocateMode::Zero, 4 << 20, 4 << 20).unwrap();
    let punched = site.maps().last_lsn();
    assert!(site.server().begin_passthrough(&object));
    let maps = site.maps().clone();
    let (saved, seen) = std::sync::mpsc::channel();
    site.on_save(move |_| {
        saved.send(maps.synced_lsn()).unwrap();
        Ok(())
    });
    site.server().begin_mapped_writes(&object).unwrap();
    site.mend_saves();
    assert!(seen.try_iter().all(|synced| synced >= punched));
    assert_eq!(read(&site, &object, 4 * MIB, 4 * MIB).unwrap(), vec![0; 4 * MIB]);
}

#[test]
fn regression_a_hole_that_is_mapped_is_not_lost_with_a_file_that_did_not_come() {
    // As for a write to it. Method: the bytes are safe on near-line, the SSD has no file yet; syncs are counted at the save.
    let mut site = Site::new(64 << 20);
    (site.ssd_limit, site.ssd_faults) = (Some(0), Some(Faults::armed()));
    site.start();
    let object = promised(&site);
    let faults = site.ssd_faults.clone().unwrap();
    let before = faults.count(IoKind::Sync);
    let (saved, seen) = std::sync::mpsc::channel();
    site.on_save(move |record| {
        if record.map.count_in(TierId::Ssd) > 0 {
            saved.send(faults.count(IoKind::Sync)).unwrap();
        }
        Ok(())
    });
    site.server().begin_mapped_writes(&object).unwrap();
    site.mend_saves();
    assert!(seen.try_iter().all(|syncs| syncs > before));
}

/// S-26: a copy without a checksum is durable before the record that names it.
#[test]
fn regression_a_copy_of_what_is_mapped_is_durable_before_its_record() {
    let mut site = Site::new(64 << 20);
    site.ssd_faults = Some(Faults::armed());
    site.start();
    let object = create(&site);
    map(&site, &object);
    let faults = site.ssd_faults.clone().unwrap();
    let before = faults.count(IoKind::Sync);
    let (saved, seen) = std::sync::mpsc::channel();
    site.on_save(move |record| {
        if record.map.count_in(TierId::Ssd) > 0 {
            saved.send(faults.count(IoKind::Sync)).unwrap();
        }
        Ok(())
    });
    site.server().flush(&object, &mut |_| {}).unwrap();
    site.mend_saves();
    let seen: Vec<u64> = seen.try_iter().collect();
    assert!(!seen.is_empty() && seen.iter().all(|syncs| *syncs > before));
}

#[test]
fn regression_a_copy_that_is_known_to_be_old_is_not_used_though_that_could_not_be_recorded() {
    let mut site = Site::new(64 << 20);
    site.ssd_faults = Some(Faults::armed());
    site.start();
    let object = create(&site);
    site.server().flush(&object, &mut |_| {}).unwrap();
    map(&site, &object);
    store(&site, &object, 5 * MIB, b"stored");
    let (kind, span) = (Some(IoKind::Write), FaultSpan::Onwards);
    let faults = site.ssd_faults.clone().unwrap();
    faults.plan(Fault { kind, nth: 1, errno: Errno::EIO, span, torn: false });
    site.fail_saves(Errno::ENOSPC, 0);
    site.server().end_mapped_writes(&object).unwrap_err();
    site.server().end_passthrough(&object);
    faults.clear();
    site.mend_saves();
    site.server().migrate(ino(2), TierId::Ssd, PATIENCE).unwrap();
    assert_eq!(read(&site, &object, 5 * MIB, 6).unwrap(), b"stored");
}

/// A store in the same tick of the clock as the last write leaves the file's time as it was. Method: the time is set back.
#[test]
fn regression_stores_that_do_not_change_the_time_of_a_file_reach_its_other_copies() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().migrate(ino(2), TierId::Nearline, PATIENCE).unwrap();
    site.server().migrate(ino(2), TierId::Ssd, PATIENCE).unwrap();
    read(&site, &object, 0, 6 * MIB).unwrap();
    assert!(site.server().begin_passthrough(&object));
    let (_, file) = site.server().passthrough_file(&object).unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap();
    let time = types::Timestamp { sec: now.as_secs() as i64, nsec: now.subsec_nanos() };
    file.set_mtime(time).unwrap();
    site.server().begin_mapped_writes(&object).unwrap();
    store(&site, &object, 5 * MIB, b"mapped");
    file.set_mtime(time).unwrap();
    site.server().end_mapped_writes(&object).unwrap();
    assert_eq!(site.server().report(&object).saus, [0, 2, 2]);
    assert_eq!(site.tier_file(TierId::Nearline, 2)[5 * MIB..][..6], *b"mapped");
}
