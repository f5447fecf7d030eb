//! Goal: what was safe stays safe over a reboot, whatever was done to the file since, and what is lost is known to be
//! lost. Method: the shortest way to each fault that the reboot suite found, on temporary tiers.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{Object, ObjectHint, OpenKind};
use harness::{Site, hint, ino, read};
use std::sync::Arc;
use types::{Errno, TierId};

const WRITER: OpenKind = OpenKind { read: false, write: true };
const READER: OpenKind = OpenKind { read: true, write: false };
const MIB: usize = 1 << 20;

/// Object 2, open for writing.
fn create(site: &Site) -> Arc<Object> {
    let object = site.server().attach(ino(2), &ObjectHint { written: false, ..hint(site, 0) }).unwrap();
    site.server().open(&object, WRITER);
    object
}

#[test]
fn regression_a_hole_that_was_fsynced_is_not_lost_with_what_is_written_in_it_later() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().truncate(&object, 6 << 20).unwrap();
    site.server().sync(&object).unwrap();
    site.server().close(&object, WRITER);
    drop(object);
    // The promise outlives the object's time in memory.
    let object = site.server().attach(ino(2), &hint(&site, 6 * MIB)).unwrap();
    site.server().open(&object, WRITER);
    site.server().write(&object, 10, b"later").unwrap();
    site.server().close(&object, WRITER);
    assert_eq!(site.server().report(&object).at_risk, 0);
    drop(object);
    site.reboot();
    let object = site.server().attach(ino(2), &hint(&site, 6 * MIB)).unwrap();
    assert_eq!(read(&site, &object, 4096, 4096).unwrap(), [0; 4096]);
}

#[test]
fn regression_nor_while_readers_have_the_file_in_memory_open_in_place() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    site.server().grow(&object, 6 << 20).unwrap();
    site.server().open(&object, READER);
    assert!(site.server().begin_passthrough(&object));
    site.server().sync(&object).unwrap();
    site.server().write(&object, 5 << 20, b"later").unwrap();
    assert_eq!(read(&site, &object, 5 * MIB, 6).unwrap(), b"later\0");
    site.server().end_passthrough(&object);
    drop(object);
    site.reboot();
    let object = site.server().attach(ino(2), &hint(&site, 6 * MIB)).unwrap();
    assert_eq!(read(&site, &object, 0, MIB).unwrap(), [7; MIB]);
    assert_eq!(read(&site, &object, 5 * MIB + 4096, 4096).unwrap(), [0; 4096]);
}

#[test]
fn regression_a_full_device_does_not_send_safe_bytes_back_to_memory() {
    let mut site = Site::new(64 << 20);
    (site.ssd_limit, site.nearline_limit) = (Some(2 << 20), Some(0));
    site.start();
    let object = create(&site);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    site.server().flush(&object, &mut |_| {}).unwrap();
    assert_eq!(site.server().write(&object, MIB as u64, &[8; 2 * MIB]), Err(Errno::ENOSPC));
    drop(object);
    site.reboot();
    let object = site.server().attach(ino(2), &hint(&site, MIB)).unwrap();
    assert_eq!(read(&site, &object, 0, MIB).unwrap(), [7; MIB]);
}

#[test]
fn regression_a_copy_is_as_long_as_the_file_though_its_source_ends_in_a_hole() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().write(&object, 0, b"short").unwrap();
    site.server().flush(&object, &mut |_| {}).unwrap();
    // In memory only: the size is in the metadata too, the file on the device stays short.
    site.server().truncate(&object, 3 << 20).unwrap();
    site.server().close(&object, WRITER);
    drop(object);
    site.reboot();
    let object = site.server().attach(ino(2), &hint(&site, 3 * MIB)).unwrap();
    site.server().migrate(ino(2), TierId::Memory, Some(std::time::Duration::from_secs(60))).unwrap();
    let (_, file) = site.server().passthrough_file(&object).unwrap();
    assert_eq!(file.stat().unwrap().size, 3 << 20, "the kernel would read a shorter file");
    assert_eq!(read(&site, &object, 0, 3 * MIB).unwrap().len(), 3 * MIB);
}

#[test]
fn regression_a_cut_to_the_known_size_ends_what_is_lost_behind_it() {
    let mut site = Site::new(64 << 20);
    site.start();
    let before = site.generation();
    let object = create(&site);
    site.server().write(&object, 0, &[7; 8 * MIB]).unwrap();
    drop(object);
    site.reboot();
    let open = ObjectHint { stale_live: true, memory_generation: before, ..hint(&site, 0) };
    let object = site.server().attach(ino(2), &open).unwrap();
    assert_eq!(read(&site, &object, 0, 1), Err(Errno::EIO));
    site.server().truncate(&object, 0).unwrap();
    assert_eq!(read(&site, &object, 0, 1).unwrap(), b"");
    site.server().write(&object, 5 << 20, b"new").unwrap();
    assert_eq!(read(&site, &object, 5 * MIB, 3).unwrap(), b"new");
}

#[test]
fn regression_a_file_that_was_emptied_and_written_anew_has_its_new_size_after_a_kill() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    site.server().flush(&object, &mut |_| {}).unwrap();
    // Over the copy on the device: the one in memory is given up, and not freed yet.
    site.server().write(&object, 0, &[8; 100]).unwrap();
    site.server().truncate(&object, 0).unwrap();
    site.server().write(&object, 0, b"new").unwrap();
    drop(object);
    site.restart();
    let object = site.server().attach(ino(2), &ObjectHint { stale_live: true, ..hint(&site, 0) }).unwrap();
    assert_eq!(object.size(), 3);
    assert_eq!(read(&site, &object, 0, 10).unwrap(), b"new");
}

/// After a kill, the time of the last write as the object knows it.
fn found_mtime(site: &Site) -> types::Timestamp {
    let object = site.server().attach(ino(2), &ObjectHint { stale_live: true, ..hint(site, 0) }).unwrap();
    site.server().live(&object).mtime.unwrap()
}

#[test]
fn regression_a_copy_from_an_older_file_does_not_take_back_the_time_of_the_last_write() {
    // Goal: after a kill the time is that of the last write. Method: the last write goes to the SSD, then something older
    // comes to the same file out of memory.
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site);
    site.server().write(&object, 0, &[7; 8 * MIB]).unwrap();
    site.server().flush(&object, &mut |_| {}).unwrap();
    site.server().write(&object, 8 << 20, &[8; MIB]).unwrap();
    let before = site.server().live(&object).mtime.unwrap();
    // Until the clock of the kernel for files has gone on.
    let since = |now: types::Timestamp| now.since(before).as_millis();
    while since(site.server().live(&object).mtime.unwrap()) < 50 {
        site.server().write(&object, 5, b"over the safe copy").unwrap();
    }
    site.server().flush(&object, &mut |_| {}).unwrap();
    drop(object);
    site.restart();
    assert!(since(found_mtime(&site)) >= 25);
}

#[test]
fn regression_an_empty_object_of_a_file_that_is_gone_is_removed_at_the_start() {
    // Goal: a kill between an object's file and its record leaves nothing for ever. Method: such a file by hand.
    let mut site = Site::new(64 << 20);
    site.start();
    let status = site.server().tiers();
    let dirs = status.iter().filter(|t| t.tier != TierId::Nearline).map(|t| &t.dir);
    let paths = |n| {
        let name = format!("{:016x}", ino(n).get());
        dirs.clone().map(move |dir| dir.join(&name[14..]).join(&name))
    };
    paths(2).chain(paths(3)).for_each(|path| drop(std::fs::File::create_new(path).unwrap()));
    site.restart();
    site.server().remove_strays(&|wanted| wanted == ino(2));
    assert!(paths(2).all(|path| !path.exists()));
    assert!(paths(3).all(|path| path.exists()));
}
