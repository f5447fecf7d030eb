//! Goal: what fails loses nothing that was safe or answered, and concerns its own file alone. Method: the shortest way to
//! each fault that was found, with devices and a store of maps that fail on demand.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{AllocateMode, Object, ObjectHint, OpenKind};
use harness::{Site, hint, ino, read};
use kv::WriteSet;
use std::sync::Arc;
use std::{os::unix::fs::FileExt, path::PathBuf};
use store::{Fault, FaultSpan, Faults, IoKind};
use types::{Errno, TierId};

const WRITER: OpenKind = OpenKind { read: false, write: true };
const MIB: usize = 1 << 20;

/// A new object, open for writing.
fn create(site: &Site, n: u64) -> Arc<Object> {
    let object = site.server().attach(ino(n), &ObjectHint { written: false, ..hint(site, 0) }).unwrap();
    site.server().open(&object, WRITER);
    object
}

fn attach(site: &Site, n: u64, size: usize) -> Arc<Object> {
    site.server().attach(ino(n), &hint(site, size)).unwrap()
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

fn path_of(site: &Site, tier: TierId, n: u64) -> PathBuf {
    let status = site.server().tiers().into_iter().find(|t| t.tier == tier).unwrap();
    let name = format!("{:016x}", ino(n).get());
    status.dir.join(&name[14..]).join(&name)
}

/// S-45. Method: what a flush copied to the SSD does not count, because the device fails in the middle; the first SAU is
/// punched, the second moves to the SSD: there the kernel reads the file by itself.
#[test]
fn regression_a_copy_that_came_to_nothing_does_not_show_in_a_hole() {
    let mut site = Site::new(64 << 20);
    site.faults = Faults::armed();
    site.start();
    let object = create(&site, 2);
    site.server().write(&object, 0, &[7; 8 * MIB]).unwrap();
    site.faults.plan(Fault { nth: 2, ..once(IoKind::Write, Errno::EIO) });
    assert_eq!(flush(&site, &object), Err(Errno::EIO));
    site.server().allocate(&object, AllocateMode::Zero, 0, 4 << 20).unwrap();
    site.server().migrate(ino(2), TierId::Ssd, None).unwrap();
    assert_eq!(read(&site, &object, 0, 4 * MIB).unwrap(), [0; 4 * MIB]);
    read(&site, &object, 4 * MIB, 4 * MIB).unwrap();
    site.maps().sync().unwrap();
    let (tier, file) = loop {
        match site.server().passthrough_file(&object) {
            Some(found) => break found,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(tier, TierId::Ssd);
    let mut bytes = vec![1; 4 * MIB];
    file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [0; 4 * MIB]);
}

/// As above, after a kill that came before what was given up was freed; other tiers hold other parts of the file.
#[test]
fn regression_what_a_kill_left_in_a_hole_is_cleared_though_other_tiers_hold_much() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site, 2);
    site.server().write(&object, 4 << 20, &[7; 4 * MIB]).unwrap();
    site.server().migrate(ino(2), TierId::Ssd, None).unwrap();
    site.server().write(&object, 8 << 20, &[8; 8 * MIB]).unwrap();
    drop(object);
    let path = path_of(&site, TierId::Ssd, 2);
    site.stop();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    file.write_all_at(b"given up", 1000).unwrap();
    site.start();
    let object = attach(&site, 2, 16 * MIB);
    let mut found = [1; 8];
    file.read_exact_at(&mut found, 1000).unwrap();
    assert_eq!(found, [0; 8]);
    assert_eq!(read(&site, &object, 1000, 8).unwrap(), [0; 8]);
}

/// A device fails in the middle of a write behind the end; then the file is made longer.
#[test]
fn regression_the_part_of_a_failed_write_does_not_come_to_light() {
    let mut site = Site::new(64 << 20);
    site.faults = Faults::armed();
    site.start();
    let object = create(&site, 2);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    site.server().migrate(ino(2), TierId::Ssd, None).unwrap();
    // The first overwrite waits for its record; the second finds everything ready.
    site.server().write(&object, 0, b"x").unwrap();
    site.faults.plan(Fault { torn: true, ..once(IoKind::Write, Errno::EIO) });
    assert_eq!(site.server().write(&object, MIB as u64, &[8; 8192]), Err(Errno::EIO));
    assert_eq!(object.size(), MIB as u64);
    site.server().grow(&object, 2 << 20).unwrap();
    assert_eq!(read(&site, &object, MIB, MIB).unwrap(), [0; MIB]);
}

/// Method: the last of many sealed SAUs is overwritten while the first are being copied.
#[test]
fn regression_what_is_overwritten_during_its_move_is_not_taken_for_damaged() {
    let mut site = Site::new(256 << 20);
    site.start();
    let object = create(&site, 2);
    for n in 0..16 {
        site.server().write(&object, n * 4 * MIB as u64, &[7; 4 * MIB]).unwrap();
    }
    site.server().migrate(ino(2), TierId::Ssd, None).unwrap();
    site.server().migrate_later(ino(2), TierId::Nearline).unwrap();
    while !site.server().report(&object).moving && !site.server().moves().is_empty() {
        std::thread::yield_now();
    }
    site.server().write(&object, 15 * 4 * MIB as u64, b"new").unwrap();
    while !site.server().moves().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(site.server().counters().damaged_saus, 0);
    assert_eq!(read(&site, &object, 15 * 4 * MIB, 4).unwrap(), b"new\x07");
}

#[test]
fn regression_an_fsync_without_descriptors_settles_what_waits() {
    let mut site = Site::new(64 << 20);
    site.ssd_faults = Some(Faults::armed());
    site.start();
    let object = create(&site, 2);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    site.ssd_faults.as_ref().unwrap().plan(once(IoKind::Open, Errno::EMFILE));
    site.server().sync(&object).unwrap();
    assert_eq!(site.server().report(&object).at_risk, 0);
}

/// A write over the border of two SAUs finds room for the first alone: so much is written, and that is what it says.
#[test]
fn regression_a_write_that_fails_half_way_says_how_much_is_written() {
    let mut site = Site::new(64 << 20);
    (site.faults, site.ssd_limit, site.nearline_limit) = (Faults::armed(), Some(0), Some(0));
    site.start();
    let object = create(&site, 2);
    let border = 4 * MIB as u64;
    let second = Fault { nth: 2, ..onwards(IoKind::Write, Errno::ENOSPC) };
    site.faults.plan(second);
    assert_eq!(site.server().write(&object, border - 10, &[7; 30]), Ok(10));
    site.faults.clear();
    assert_eq!(object.size(), border);
    assert_eq!(read(&site, &object, 4 * MIB - 10, 30).unwrap(), [7; 10]);
}

/// S-26: a record that gives bytes of memory to a device does not become durable before them. Method: an fsync that fails
/// leaves the file in sync mode and its bytes in memory, the next write moves them; syncs are counted at the save.
#[test]
fn regression_what_moves_from_memory_is_durable_before_its_record() {
    let mut site = Site::new(64 << 20);
    site.ssd_faults = Some(Faults::armed());
    site.start();
    let object = create(&site, 2);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    let faults = site.ssd_faults.clone().unwrap();
    faults.plan(once(IoKind::Write, Errno::EIO));
    assert_eq!(site.server().sync(&object), Err(Errno::EIO));
    let before = faults.count(IoKind::Sync);
    let (moved, seen) = std::sync::mpsc::channel();
    site.on_save(move |record| {
        let valid = record.map.get(layout::SauIndex::ZERO).valid;
        if !valid.contains(TierId::Memory) {
            moved.send(faults.count(IoKind::Sync)).unwrap();
        }
        Ok(())
    });
    site.server().write(&object, 5, b"new").unwrap();
    assert!(seen.try_iter().all(|syncs| syncs > before));
    assert_eq!(site.server().report(&object).bytes, [0, MIB as u64, 0]);
}

/// I-DS-4: what follows the first write behind a seal. Method: the append needs no wait, since the seal says nothing of its
/// place; the bytes before it are changed only when the record without the seal is durable.
#[test]
fn regression_a_seal_that_an_append_ended_holds_until_that_is_durable() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = create(&site, 2);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    site.server().sync(&object).unwrap();
    assert_eq!(site.server().report(&object).sealed_saus, 1);
    site.maps().sync().unwrap();
    assert_eq!(site.server().try_write(&object, MIB as u64, b"more").unwrap(), ds::Attempt::Done(4));
    assert_eq!(site.server().report(&object).sealed_saus, 0);
    let without_seal = site.maps().last_lsn();
    site.server().write(&object, 0, b"new").unwrap();
    assert!(site.maps().synced_lsn() >= without_seal);
}

/// A seal vouches for the copy that it was computed from, too. Method: bytes written over a copy on the SSD, which is then
/// copied up: syncs are counted at the save of the seal.
#[test]
fn regression_what_a_seal_is_computed_from_is_durable_before_it() {
    let mut site = Site::new(64 << 20);
    site.ssd_faults = Some(Faults::armed());
    site.start();
    let object = create(&site, 2);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    site.server().migrate(ino(2), TierId::Ssd, None).unwrap();
    site.server().write(&object, 0, b"new").unwrap();
    let faults = site.ssd_faults.clone().unwrap();
    let before = faults.count(IoKind::Sync);
    let (sealed, seen) = std::sync::mpsc::channel();
    site.on_save(move |record| {
        if record.map.get(layout::SauIndex::ZERO).seal.is_some() {
            sealed.send(faults.count(IoKind::Sync)).unwrap();
        }
        Ok(())
    });
    site.server().migrate(ino(2), TierId::Memory, None).unwrap();
    let seen: Vec<u64> = seen.try_iter().collect();
    assert!(!seen.is_empty() && seen.iter().all(|syncs| *syncs > before));
}

/// Zeros that an fsync promised: the file on the device is durable before the record that says that it has them.
#[test]
fn regression_a_promised_hole_is_not_lost_with_a_file_that_did_not_come() {
    let mut site = Site::new(64 << 20);
    site.ssd_faults = Some(Faults::armed());
    site.start();
    let object = create(&site, 2);
    site.server().grow(&object, 6 << 20).unwrap();
    flush(&site, &object).unwrap();
    let faults = site.ssd_faults.clone().unwrap();
    let before = faults.count(IoKind::Sync);
    let (saved, seen) = std::sync::mpsc::channel();
    site.on_save(move |_| {
        saved.send(faults.count(IoKind::Sync)).unwrap();
        Ok(())
    });
    assert_eq!(site.server().try_write(&object, 5 << 20, b"later").unwrap(), ds::Attempt::WouldWait);
    site.server().write(&object, 5 << 20, b"later").unwrap();
    let seen: Vec<u64> = seen.try_iter().collect();
    assert!(!seen.is_empty() && seen.iter().all(|syncs| *syncs > before));
    assert_eq!(site.server().report(&object).at_risk, 0);
}

/// A file in both device tiers, whose copy on the SSD was compared and then cannot be read: near-line's is used, and compared
/// first. Method: the second copy by hand, whole or with a byte changed.
#[test]
fn regression_a_copy_that_is_read_after_a_device_failed_is_compared() {
    for damaged in [false, true] {
        let mut site = Site::new(64 << 20);
        site.ssd_faults = Some(Faults::armed());
        site.start();
        let object = create(&site, 2);
        site.server().write(&object, 0, &[7; MIB]).unwrap();
        site.server().migrate(ino(2), TierId::Ssd, None).unwrap();
        drop(object);
        let mut record = ds::load_record(site.maps(), ino(2)).unwrap().unwrap().unwrap();
        let mut sau = record.map.get(layout::SauIndex::ZERO);
        sau.valid = sau.valid.with(TierId::Nearline);
        assert!(record.map.set(layout::SauIndex::ZERO, sau));
        let mut writes = WriteSet::new();
        writes.put(&[&ino(2).get().to_be_bytes()[..], b"O"].concat(), record.encode().into());
        site.maps().commit(writes).unwrap();
        let copy = path_of(&site, TierId::Nearline, 2);
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(path_of(&site, TierId::Ssd, 2), &copy).unwrap();
        site.restart();
        let object = attach(&site, 2, MIB);
        assert_eq!(read(&site, &object, 0, MIB).unwrap(), [7; MIB]);
        if damaged {
            std::fs::OpenOptions::new().write(true).open(copy).unwrap().write_all_at(b"x", 1000).unwrap();
        }
        site.ssd_faults.as_ref().unwrap().plan(onwards(IoKind::Read, Errno::EIO));
        let expected = if damaged { Err(Errno::EIO) } else { Ok(vec![7; MIB]) };
        assert_eq!(read(&site, &object, 0, MIB), expected, "damaged: {damaged}");
        assert_eq!(site.server().counters().damaged_saus, u64::from(damaged));
    }
}

/// A device whose quota is used up, or that takes no more files, has free space still. Method: all that it is asked for fails;
/// then near-line too.
#[test]
fn regression_a_flush_goes_on_to_the_next_tier_when_a_device_with_space_takes_no_more() {
    for (kind, errno) in [(IoKind::Open, Errno::ENOSPC), (IoKind::Write, Errno::EDQUOT)] {
        let mut site = Site::new(64 << 20);
        (site.faults, site.ssd_faults) = (Faults::armed(), Some(Faults::armed()));
        site.start();
        let (object, other) = (create(&site, 2), create(&site, 3));
        site.server().write(&object, 0, &[7; MIB]).unwrap();
        site.server().write(&other, 0, &[7; MIB]).unwrap();
        site.ssd_faults.as_ref().unwrap().plan(onwards(kind, errno));
        flush(&site, &object).unwrap();
        assert_eq!(site.server().report(&object).bytes, [MIB as u64, 0, MIB as u64]);
        site.faults.plan(onwards(kind, errno));
        assert_eq!(flush(&site, &other), Err(Errno::ENOSPC));
    }
}

/// S-26: a write ends the checksum of a copy, and the copy in memory; the one that stays is durable before that is recorded.
/// Method: a copy that nobody asked for, which waits for a sync; syncs are counted at both saves.
#[test]
fn regression_memory_is_given_up_when_the_copy_on_the_device_is_durable() {
    let mut site = Site::new(64 << 20);
    site.ssd_faults = Some(Faults::armed());
    site.start();
    let object = create(&site, 2);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    let faults = site.ssd_faults.clone().unwrap();
    let (saved, seen) = std::sync::mpsc::channel();
    site.on_save(move |record| {
        let valid = record.map.get(layout::SauIndex::ZERO).valid;
        saved.send((valid.contains(TierId::Memory), faults.count(IoKind::Sync))).unwrap();
        Ok(())
    });
    site.server().flush_later(&object).unwrap();
    while site.server().report(&object).at_risk > 0 {
        std::thread::yield_now();
    }
    site.server().write(&object, 0, b"new").unwrap();
    let seen: Vec<(bool, u64)> = seen.try_iter().collect();
    let [(true, copied), .., (false, given_up)] = seen[..] else { panic!("{seen:?}") };
    assert!(given_up > copied, "{seen:?}");
}

/// Both devices and memory hold the file.
fn in_all_tiers(site: &Site) -> Arc<Object> {
    let object = create(site, 2);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    for tier in [TierId::Nearline, TierId::Ssd, TierId::Memory] {
        site.server().migrate(ino(2), tier, None).unwrap();
    }
    assert_eq!(site.server().report(&object).saus, [1; 3]);
    object
}

/// Readers have the file in memory in place, so a write goes to memory and to what is safe. Method: near-line fails in the
/// middle; copies that count are the same.
#[test]
fn regression_a_write_beside_readers_in_place_does_not_make_device_copies_differ() {
    let mut site = Site::new(64 << 20);
    (site.faults, site.ssd_faults) = (Faults::armed(), Some(Faults::armed()));
    site.start();
    let object = in_all_tiers(&site);
    assert!(site.server().begin_passthrough(&object));
    site.faults.plan(once(IoKind::Write, Errno::EIO));
    let _ = site.server().write(&object, 0, b"new");
    let saus = site.server().report(&object).saus;
    let on = |tier: TierId| site.tier_file(tier, 2)[..3].to_vec();
    assert!(saus[2] == 0 || on(TierId::Ssd) == on(TierId::Nearline), "{saus:?}");
    site.faults.clear();
    site.server().write(&object, 0, b"new").unwrap();
    assert_eq!(site.server().report(&object).saus, [1, 1, 0]);
    assert_eq!(read(&site, &object, 0, 4).unwrap(), b"new\x07");
}

/// The kernel reads the SSD's file by itself, and goes on doing so. Method: the SSD fails to read once, as another reader sees;
/// then the file is written.
#[test]
fn regression_readers_in_place_see_what_is_written_after_their_device_failed() {
    let mut site = Site::new(64 << 20);
    site.ssd_faults = Some(Faults::armed());
    site.start();
    let object = create(&site, 2);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    site.server().migrate(ino(2), TierId::Nearline, None).unwrap();
    site.server().migrate(ino(2), TierId::Ssd, None).unwrap();
    read(&site, &object, 0, MIB).unwrap();
    assert!(site.server().begin_passthrough(&object));
    let (tier, file) = site.server().passthrough_file(&object).unwrap();
    assert_eq!(tier, TierId::Ssd);
    site.ssd_faults.as_ref().unwrap().plan(once(IoKind::Read, Errno::EIO));
    let seen = read(&site, &object, 0, MIB).map(|bytes| bytes.len());
    assert_eq!(seen, Err(Errno::EIO), "as those in place would see");
    site.server().write(&object, 0, b"new").unwrap();
    let mut found = [0; 4];
    file.read_at(&mut found, 0).unwrap();
    assert_eq!(found, *b"new\x07");
}

/// The part of it that is there may be of the half that an fsync answers for.
#[test]
fn regression_what_a_failed_write_left_within_the_file_is_synced() {
    let mut site = Site::new(64 << 20);
    site.ssd_faults = Some(Faults::armed());
    site.start();
    let object = create(&site, 2);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    site.server().sync(&object).unwrap();
    site.server().write(&object, 0, b"over the checksum").unwrap();
    site.server().sync(&object).unwrap();
    let faults = site.ssd_faults.clone().unwrap();
    faults.plan(Fault { torn: true, ..once(IoKind::Write, Errno::EIO) });
    assert_eq!(site.server().write(&object, 0, &[8; 8192]), Err(Errno::EIO));
    assert_eq!(read(&site, &object, 0, 1).unwrap(), [8]);
    let before = faults.count(IoKind::Sync);
    site.server().sync(&object).unwrap();
    assert!(faults.count(IoKind::Sync) > before);
}
