//! Goal: a change whose record could not be saved has not happened, and what is answered after it is recorded. Method: the
//! store of maps refuses, as when the metadata are full; the call is repeated when it does not; then a kill.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{AllocateMode, Object, ObjectHint, OpenKind};
use harness::{Site, hint, ino};
use std::sync::Arc;
use types::{Errno, TierId};

const WRITER: OpenKind = OpenKind { read: false, write: true };
const MIB: usize = 1 << 20;

/// Object 2, open for writing.
fn create(site: &Site) -> Arc<Object> {
    let object = site.server().attach(ino(2), &ObjectHint { written: false, ..hint(site, 0) }).unwrap();
    site.server().open(&object, WRITER);
    object
}

/// The object after a kill, as it knows itself, and its bytes.
fn after_a_kill(site: &mut Site, object: Arc<Object>) -> Vec<u8> {
    drop(object);
    site.restart();
    let object = site.server().attach(ino(2), &ObjectHint { stale_live: true, ..hint(site, 0) }).unwrap();
    read(site, &object).unwrap()
}

fn read(site: &Site, object: &Object) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; object.size().max(1) as usize];
    site.server().read(object, 0, &mut buf).map(|n| buf[..n].to_vec())
}

fn flush(site: &Site, object: &Object) -> Result<(), Errno> {
    site.server().flush(object, &mut |_| {})
}

#[test]
fn regression_a_first_write_is_recorded_when_it_is_repeated() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.fail_saves(Errno::ENOSPC, 0);
    for _ in 0..2 {
        assert_eq!(site.server().write(&object, 0, &[7; MIB]), Err(Errno::ENOSPC));
    }
    site.mend_saves();
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    assert_eq!(after_a_kill(&mut site, object), [7; MIB]);
}

#[test]
fn regression_an_overwrite_that_strikes_a_copy_is_recorded_when_it_is_repeated() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    flush(&site, &object).unwrap();
    site.fail_saves(Errno::EROFS, 0);
    for _ in 0..2 {
        assert_eq!(site.server().write(&object, 0, &[8; MIB]), Err(Errno::EROFS));
        assert_eq!(read(&site, &object).unwrap(), [7; MIB]);
    }
    site.mend_saves();
    site.server().write(&object, 0, &[8; MIB]).unwrap();
    assert_eq!(after_a_kill(&mut site, object), [8; MIB]);
}

#[test]
fn regression_a_punched_hole_is_recorded_when_it_is_punched_again() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().write(&object, 0, &[7; 8 * MIB]).unwrap();
    flush(&site, &object).unwrap();
    let punch = |site: &Site| site.server().allocate(&object, AllocateMode::Zero, MIB as u64, 7 << 20);
    site.fail_saves(Errno::ENOSPC, 0);
    assert_eq!(punch(&site), Err(Errno::ENOSPC));
    assert_eq!(read(&site, &object).unwrap(), [7; 8 * MIB]);
    site.mend_saves();
    punch(&site).unwrap();
    let mut expected = vec![7; MIB];
    expected.resize(8 * MIB, 0);
    let found = after_a_kill(&mut site, object);
    // The size of a hole at the end is in the metadata alone.
    assert_eq!(found, expected[..found.len()]);
}

#[test]
fn regression_an_fsync_that_could_not_record_its_promise_does_it_when_it_is_repeated() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().grow(&object, 6 << 20).unwrap();
    site.fail_saves(Errno::ENOSPC, 0);
    for _ in 0..2 {
        assert_eq!(flush(&site, &object), Err(Errno::ENOSPC));
    }
    site.mend_saves();
    flush(&site, &object).unwrap();
    drop(object);
    site.restart();
    let object = site.server().attach(ino(2), &hint(&site, 6 * MIB)).unwrap();
    site.server().open(&object, WRITER);
    site.server().write(&object, 10, b"later").unwrap();
    assert_eq!(site.server().report(&object).at_risk, 0);
}

#[test]
fn regression_a_flush_that_could_not_be_recorded_does_not_succeed_when_it_is_repeated() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    site.fail_saves(Errno::ENOSPC, 0);
    for _ in 0..2 {
        assert_eq!(flush(&site, &object), Err(Errno::ENOSPC));
        assert_eq!(site.server().report(&object).at_risk, MIB as u64);
    }
    site.mend_saves();
    flush(&site, &object).unwrap();
    drop(object);
    site.reboot();
    let object = site.server().attach(ino(2), &hint(&site, MIB)).unwrap();
    assert_eq!(read(&site, &object).unwrap(), [7; MIB]);
}

#[test]
fn regression_a_cut_between_saus_is_recorded_when_it_is_repeated() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().write(&object, 0, &[7; 8 * MIB]).unwrap();
    site.fail_saves(Errno::ENOSPC, 0);
    for _ in 0..2 {
        assert_eq!(site.server().truncate(&object, 4 << 20), Err(Errno::ENOSPC));
    }
    assert_eq!(read(&site, &object).unwrap(), [7; 8 * MIB]);
    site.mend_saves();
    site.server().truncate(&object, 4 << 20).unwrap();
    assert_eq!(after_a_kill(&mut site, object), [7; 4 * MIB]);
}

/// The record says that a cut was begun, and no more could be saved: a crash finishes it, so nothing that is written later
/// may be answered before there is a record that does not say it.
#[test]
fn regression_what_is_written_after_a_cut_is_not_cut_off_by_a_kill() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    site.fail_saves(Errno::ENOSPC, 1);
    site.server().truncate(&object, 1000).unwrap();
    assert_eq!(read(&site, &object).unwrap(), [7; 1000]);
    assert_eq!(site.server().write(&object, 0, &[8; 2000]), Err(Errno::ENOSPC));
    assert_eq!(site.server().write(&object, 0, &[8; 10]), Err(Errno::ENOSPC));
    site.mend_saves();
    site.server().write(&object, 0, &[8; 2000]).unwrap();
    assert_eq!(after_a_kill(&mut site, object), [8; 2000]);
}

/// Hung for ever: the object went in the lock of the table that it was to be taken from.
#[test]
fn regression_a_loss_that_cannot_be_recorded_can_be_read_about() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    drop(object);
    site.reboot();
    site.fail_saves(Errno::EROFS, 0);
    let object = site.server().attach(ino(2), &hint(&site, MIB)).unwrap();
    assert_eq!(read(&site, &object), Err(Errno::EIO));
    assert_eq!(site.server().write(&object, 0, &[8; MIB]), Err(Errno::EROFS));
    site.mend_saves();
    site.server().write(&object, 0, &[8; MIB]).unwrap();
    assert_eq!(site.server().report(&object).saus[TierId::Memory.index()], 1);
    assert_eq!(after_a_kill(&mut site, object), [8; MIB]);
}
