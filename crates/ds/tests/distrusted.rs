//! Goal: a copy that a device perhaps did not take is relied upon by nobody, and is made anew where that can be done. Method:
//! syncs that fail; what such a device has in truth is written to its file behind the server's back.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{AllocateMode, Object, ObjectHint, OpenKind};
use harness::{Site, ino};
use std::{ops::ControlFlow, os::unix::fs::FileExt, sync::Arc, time::Duration};
use store::{Fault, FaultSpan, Faults, IoKind};
use types::{Errno, TierId};

const WRITER: OpenKind = OpenKind { read: false, write: true };
const MIB: usize = 1 << 20;

/// The SSD alone can fail.
fn site() -> (Site, Faults) {
    let mut site = Site::new(64 << 20);
    let faults = Faults::armed();
    site.ssd_faults = Some(faults.clone());
    site.start();
    (site, faults)
}

/// Object 2, open for writing.
fn create(site: &Site, bytes: &[u8]) -> Arc<Object> {
    let memory_generation = site.generation();
    let new = ObjectHint { size: 0, written: false, stale_live: false, memory_generation, linked: None };
    let object = site.server().attach(ino(2), &new).unwrap();
    site.server().open(&object, WRITER);
    site.server().write(&object, 0, bytes).unwrap();
    object
}

fn content(site: &Site, object: &Object) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; object.size() as usize];
    site.server().read(object, 0, &mut buf).map(|n| buf[..n].to_vec())
}

fn flush(site: &Site, object: &Object) -> Result<(), Errno> {
    site.server().flush(object, &mut |_| {})
}

fn fails(kind: IoKind, span: FaultSpan) -> Fault {
    Fault { kind: Some(kind), nth: 1, errno: Errno::EIO, span, torn: false }
}

/// The SSD has zeros where it was to have the object.
fn forget_on_device(site: &Site, bytes: usize) {
    let file = std::fs::OpenOptions::new().write(true).open(site.tier_path(TierId::Ssd, 2)).unwrap();
    file.write_all_at(&vec![0; bytes], 0).unwrap();
}

#[test]
fn regression_a_change_does_not_give_memory_up_for_a_copy_that_the_device_did_not_take() {
    for (closed, punch) in [(true, false), (false, false), (true, true)] {
        let (site, faults) = site();
        let object = create(&site, &[7; MIB]);
        faults.plan(fails(IoKind::Sync, FaultSpan::Once));
        assert_eq!(flush(&site, &object), Err(Errno::EIO));
        forget_on_device(&site, MIB);
        if closed {
            site.server().close(&object, WRITER);
            site.server().open(&object, WRITER);
        }
        let mut expected = vec![7; MIB];
        if punch {
            site.server().allocate(&object, AllocateMode::Zero, 0, 1000).unwrap();
            expected[..1000].fill(0);
        } else {
            site.server().write(&object, 0, b"new").unwrap();
            expected[..3].copy_from_slice(b"new");
        }
        assert!(content(&site, &object).unwrap() == expected, "closed: {closed}, punch: {punch}");
        assert_eq!(site.server().sync(&object).is_ok(), closed, "S-32");
    }
}

/// I-DS-4: what was safe before a sync failed stays so while it is made anew.
#[test]
fn regression_what_was_safe_stays_so_while_copies_are_made_anew() {
    let (site, faults) = site();
    let object = create(&site, &[7; 8 * MIB]);
    flush(&site, &object).unwrap();
    site.maps().sync().unwrap();
    site.server().write(&object, 0, b"new").unwrap();
    faults.plan(fails(IoKind::Sync, FaultSpan::Once));
    assert_eq!(flush(&site, &object), Err(Errno::EIO));
    site.server().close(&object, WRITER);
    faults.plan(fails(IoKind::Write, FaultSpan::Onwards));
    assert_eq!(flush(&site, &object), Err(Errno::EIO));
    assert!(site.tier_file(TierId::Ssd, 2)[4 * MIB..] == vec![7; 4 * MIB]);
    faults.clear();
    flush(&site, &object).unwrap();
}

#[test]
fn regression_a_file_that_nobody_had_open_when_its_sync_failed_is_made_safe_when_the_device_works() {
    let (site, faults) = site();
    let object = create(&site, &[7; MIB]);
    site.server().close(&object, WRITER);
    faults.plan(fails(IoKind::Sync, FaultSpan::Onwards));
    site.server().flush_later(&object).unwrap();
    while site.server().report(&object).at_risk > 0 {
        std::thread::yield_now();
    }
    site.server().sync_devices();
    let flush_all = || site.server().flush_all(&mut |_| ControlFlow::Continue(())).map(|left| left.bytes);
    assert_eq!(flush_all(), Err(Errno::EIO));
    forget_on_device(&site, MIB);
    faults.clear();
    assert_eq!(flush_all(), Ok(0));
    assert!(site.tier_file(TierId::Ssd, 2) == vec![7; MIB]);
    site.server().migrate(ino(2), TierId::Ssd, Some(Duration::from_secs(60))).unwrap();
}

#[test]
fn a_device_alone_that_failed_is_not_trusted_before_somebody_closes_the_file() {
    let (site, faults) = site();
    let object = create(&site, &[7; MIB]);
    site.server().sync(&object).unwrap();
    site.server().write(&object, 0, b"new").unwrap();
    faults.plan(fails(IoKind::Sync, FaultSpan::Onwards));
    site.server().close(&object, WRITER);
    site.server().sync_devices();
    faults.clear();
    assert_eq!(flush(&site, &object), Err(Errno::EIO));
    site.server().open(&object, WRITER);
    site.server().close(&object, WRITER);
    flush(&site, &object).unwrap();
}

/// The kernel tells of a failure once. Method: the journal's sync and an fsync at the same time, many times.
#[test]
fn regression_a_failure_that_another_sync_was_told_of_fails_an_fsync_too() {
    let (site, faults) = site();
    let object = create(&site, &[7; 4096]);
    site.server().sync(&object).unwrap();
    site.server().write(&object, 0, b"over the checksum").unwrap();
    site.server().sync(&object).unwrap();
    for n in 0..3000 {
        faults.clear();
        faults.plan(fails(IoKind::Sync, FaultSpan::Once));
        site.server().write(&object, 0, &[n as u8; 100]).unwrap();
        let begin = std::sync::Barrier::new(2);
        let synced = std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                site.server().sync_devices();
            });
            begin.wait();
            site.server().sync(&object)
        });
        assert_eq!(synced, Err(Errno::EIO), "round {n}");
        site.server().close(&object, WRITER);
        site.server().open(&object, WRITER);
        site.server().sync(&object).unwrap();
    }
}
