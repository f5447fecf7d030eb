//! Goal: the map of an object of many GiB, which is stored in parts, is the same after a restart, and none of its parts
//! is missed or left behind. Method: few bytes far apart, changes that touch the first and other parts, restarts.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{Object, ObjectHint, OpenKind};
use harness::{Site, ino};
use kv::WriteSet;
use std::{ops::ControlFlow, sync::Arc};
use types::Errno;

const WRITER: OpenKind = OpenKind { read: false, write: true };
const GIB: u64 = 1 << 30;

fn attach(site: &Site, size: u64, written: bool) -> Result<Arc<Object>, Errno> {
    let memory_generation = site.generation();
    site.server().attach(ino(2), &ObjectHint { size, written, stale_live: false, memory_generation })
}

fn byte_at(site: &Site, object: &Object, offset: u64) -> u8 {
    let mut byte = [99];
    site.server().read(object, offset, &mut byte).unwrap();
    byte[0]
}

/// The keys of the object's parts after the first.
fn parts(site: &Site) -> Vec<Vec<u8>> {
    let from = [&ino(2).get().to_be_bytes()[..], b"O\0"].concat();
    let to = [&ino(2).get().to_be_bytes()[..], b"P"].concat();
    let mut keys = Vec::new();
    let each = &mut |key: &[u8], _: &[u8]| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    };
    site.maps().scan(&from, &to, each).unwrap();
    keys
}

/// A file with a byte at 0 and at each of 1.5, 2.5, ... 5.5 GiB.
fn written() -> (Site, Arc<Object>) {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = attach(&site, 0, false).unwrap();
    site.server().open(&object, WRITER);
    for n in 0..6 {
        let offset = if n == 0 { 0 } else { n * GIB + GIB / 2 };
        site.server().write(&object, offset, &[n as u8 + 1]).unwrap();
    }
    (site, object)
}

#[test]
fn a_large_map_survives_restarts_and_cuts() {
    let (mut site, object) = written();
    let size = object.size();
    site.server().close(&object, WRITER);
    drop(object);
    assert_eq!(parts(&site).len(), 5);
    site.restart();
    let object = attach(&site, size, true).unwrap();
    for n in 1..6 {
        assert_eq!(byte_at(&site, &object, n * GIB + GIB / 2), n as u8 + 1);
    }
    // Sealed in all parts by the flush, then one part goes and one becomes another.
    site.server().flush(&object, &mut |_| {}).unwrap();
    site.server().write(&object, 2 * GIB + GIB / 2, &[77]).unwrap();
    site.server().truncate(&object, 4 * GIB).unwrap();
    drop(object);
    assert_eq!(parts(&site).len(), 3);
    site.reboot();
    let object = attach(&site, 4 * GIB, true).unwrap();
    let values: Vec<u8> = (1..4).map(|n| byte_at(&site, &object, n * GIB + GIB / 2)).collect();
    assert_eq!(values, [2, 77, 4]);
    assert_eq!(byte_at(&site, &object, 3 * GIB), 0);
}

#[test]
fn what_only_memory_held_is_lost_in_every_part() {
    let (mut site, object) = written();
    let size = object.size();
    drop(object);
    let before = site.generation();
    site.reboot();
    let hint = ObjectHint { size, written: true, stale_live: false, memory_generation: before };
    let object = site.server().attach(ino(2), &hint).unwrap();
    assert_eq!(site.server().report(&object).lost_saus, 6);
    drop(object);
    // The loss is on record now, in every part.
    site.restart();
    let object = attach(&site, size, true).unwrap();
    assert_eq!(site.server().report(&object).lost_saus, 6);
}

#[test]
fn a_part_that_is_gone_is_an_error_and_not_a_hole() {
    let (mut site, object) = written();
    let size = object.size();
    drop(object);
    let mut writes = WriteSet::new();
    writes.delete(&parts(&site)[2]);
    site.maps().commit(writes).unwrap();
    site.restart();
    assert_eq!(attach(&site, size, true).err(), Some(Errno::EIO));
}
