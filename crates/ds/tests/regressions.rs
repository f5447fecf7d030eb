//! Goal: faults that were found once stay mended. Method: the shortest way to each, on temporary tiers.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{Attempt, Object, ObjectHint, OpenKind};
use harness::{Site, hint, ino};
use kv::WriteSet;
use std::{os::unix::fs::FileExt, sync::Arc, time::Duration};
use store::{Fault, FaultSpan, Faults, IoKind};
use types::{Errno, TierId};

const WRITER: OpenKind = OpenKind { read: false, write: true };
const READER: OpenKind = OpenKind { read: true, write: false };
const MIB: usize = 1 << 20;

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

/// Who has nothing above the slowest tier is forgotten with its last user, and its pin was with it.
#[test]
fn regression_a_pin_in_the_slowest_tier_outlives_who_uses_the_object() {
    let mut site = Site::new(64 << 20);
    site.fills = true;
    site.start();
    let object = write_file(&site, 2, &[7; MIB]);
    site.server().migrate(ino(2), TierId::Nearline, Some(Duration::from_secs(60))).unwrap();
    site.server().pin(&object, TierId::Nearline).unwrap();
    let last = Arc::downgrade(&object);
    drop(object);
    while last.strong_count() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Does it come up within that time?
    let opened = |within: Duration| {
        let object = site.server().attach(ino(2), &hint(&site, MIB)).unwrap();
        site.server().open(&object, READER);
        let end = std::time::Instant::now() + within;
        while site.server().report(&object).saus[0] == 0 && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let came = site.server().report(&object).saus[0] > 0;
        site.server().close(&object, READER);
        came
    };
    assert!(!opened(Duration::from_millis(200)));
    site.server().unpin(&site.server().attach(ino(2), &hint(&site, MIB)).unwrap()).unwrap();
    assert!(opened(Duration::from_secs(60)));
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
    writes.put(&record_key(2), vec![1, 2, 3].into());
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
    site.server().end_mapped_writes(&object).unwrap();
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

#[test]
fn regression_a_copy_under_way_does_not_keep_readers_from_reading_in_place() {
    // The question is asked again and again while another thread copies the file to the SSD.
    let mut site = Site::new(256 << 20);
    site.start();
    let object = write_file(&site, 2, &[7; 80 * MIB]);
    let refused = std::thread::scope(|scope| {
        let copier = scope.spawn(|| site.server().flush(&object, &mut |_| {}).unwrap());
        let mut refused = 0;
        while !copier.is_finished() {
            refused += u32::from(site.server().passthrough_file(&object).is_none());
        }
        refused
    });
    assert_eq!(refused, 0);
}

#[test]
fn regression_a_hole_at_the_end_survives_a_move_and_a_kill() {
    // A file that ends in a hole moves down, is opened for writing again, and the daemon is killed: no tier's file is as
    // long as the file is. Whether a mover or the file's user loads it first makes no difference.
    for mover_first in [false, true] {
        let mut site = Site::new(64 << 20);
        site.start();
        let object = write_file(&site, 2, &[7; MIB]);
        site.server().truncate(&object, 9 << 20).unwrap();
        site.server().migrate(ino(2), TierId::Ssd, None).unwrap();
        drop(object);
        site.restart();
        if mover_first {
            site.server().migrate(ino(2), TierId::Nearline, None).unwrap();
        }
        let live = ObjectHint { stale_live: true, ..hint(&site, 9 * MIB) };
        let object = site.server().attach(ino(2), &live).unwrap();
        assert_eq!(object.size(), 9 << 20, "mover first: {mover_first}");
        let mut bytes = vec![7; MIB];
        bytes.resize(9 * MIB, 0);
        assert!(content(&site, &object).unwrap() == bytes);
    }
}

#[test]
fn regression_a_sparse_file_needs_the_room_of_its_bytes_when_it_is_made_safe() {
    // A page in each of 32 SAUs: 128 MiB of SAUs, of which the SSD has 32 and near-line 64.
    let mut site = Site::new(64 << 20);
    (site.ssd_limit, site.nearline_limit) = (Some(32 << 20), Some(64 << 20));
    site.start();
    let object = write_file(&site, 2, &[7; 4096]);
    for n in 1..32 {
        site.server().write(&object, n * 4 * MIB as u64, &[n as u8; 4096]).unwrap();
    }
    site.server().flush(&object, &mut |_| {}).unwrap();
    assert_eq!(site.server().report(&object).at_risk, 0);
}

#[test]
fn regression_a_movement_does_not_bring_back_what_was_removed() {
    // Files are removed while movements of them are about to begin: neither a record nor a tier's file may come after. The
    // record is deleted as the purger does, once the object is gone.
    let mut site = Site::new(256 << 20);
    site.start();
    let removed = 2..1000_u64;
    for n in removed.clone() {
        drop(write_file(&site, n, &[n as u8; 70_000]));
        site.server().migrate_later(ino(n), TierId::Ssd).unwrap();
        // Each time at another moment of the movement.
        (0..n % 100 * 100).for_each(|_| std::hint::spin_loop());
        site.server().remove(ino(n)).unwrap();
        let mut writes = WriteSet::new();
        writes.delete(&record_key(n));
        site.maps().commit(writes).unwrap();
    }
    // A restart waits for the movers.
    site.restart();
    for n in removed {
        assert_eq!(site.maps().get(&record_key(n)).unwrap(), None, "a record of {n}");
        let unused = ObjectHint { stale_live: true, ..hint(&site, 0) };
        let object = site.server().attach(ino(n), &unused).unwrap();
        assert_eq!(site.server().report(&object).size, 0, "a file of {n}");
    }
}

#[test]
fn regression_what_nobody_uses_frees_its_room_when_it_is_removed() {
    // The core keeps no record of a closed object that is in the slowest tier alone. Removed, it still counted there until a restart.
    let mut site = Site::new(64 << 20);
    site.start();
    let used = |site: &Site| site.server().tiers().last().unwrap().report.used;
    let before = used(&site);
    for n in 2..6 {
        drop(write_file(&site, n, &vec![n as u8; 2 * MIB]));
        site.server().migrate(ino(n), TierId::Nearline, None).unwrap();
    }
    let all = used(&site) - before;
    assert!(all >= 8 * MIB as u64, "{all}");
    for n in 2..6 {
        site.server().remove(ino(n)).unwrap();
        assert_eq!((used(&site) - before) * 4, all * (5 - n), "after {n}");
    }
    // Asked for twice it is said once.
    site.server().remove(ino(2)).unwrap();
    assert_eq!(used(&site), before);
}

#[test]
fn regression_flushing_what_is_gone_leaves_no_record() {
    // An unmount flushes what the memory tier held a moment ago; some of it is removed by now, its record too.
    let mut site = Site::new(64 << 20);
    site.start();
    let object = site.server().attach(ino(2), &hint(&site, 0)).unwrap();
    site.server().flush(&object, &mut |_| {}).unwrap();
    assert_eq!(site.maps().get(&record_key(2)).unwrap(), None);
}

#[test]
fn regression_who_attaches_what_a_mover_uses_makes_it_known() {
    // A file that just goes down is asked to come up again. The core forgot it with the end of the first movement, although
    // it was attached, and the request failed with "no such object".
    let mut site = Site::new(256 << 20);
    site.start();
    for n in 2..400 {
        drop(write_file(&site, n, &[n as u8; 70_000]));
        site.server().migrate_later(ino(n), TierId::Nearline).unwrap();
        (0..n % 100 * 4000).for_each(|_| std::hint::spin_loop());
        let object = site.server().attach(ino(n), &hint(&site, 70_000)).unwrap();
        while !site.server().moves().is_empty() {
            std::thread::yield_now();
        }
        site.server().migrate(ino(n), TierId::Ssd, None).unwrap();
        drop(object);
    }
}

fn record_key(n: u64) -> Vec<u8> {
    [&ino(n).get().to_be_bytes()[..], b"O"].concat()
}

#[test]
fn regression_a_write_that_a_worker_does_is_charged_once() {
    // Long writes to a device are begun on the transport's thread, which finds that it would wait, and done by a worker.
    let mut site = Site::new(8 << 20);
    site.start();
    let new = ObjectHint { written: false, ..hint(&site, 0) };
    let object = site.server().attach(ino(2), &new).unwrap();
    site.server().open(&object, WRITER);
    let (used, mut written) = (|site: &Site| site.server().tiers()[1].report.used, 0);
    for n in 0..64 {
        let (offset, bytes) = (n * MIB as u64, [n as u8; MIB]);
        if site.server().try_write(&object, offset, &bytes).unwrap() == Attempt::WouldWait {
            site.server().write(&object, offset, &bytes).unwrap();
            written += MIB as u64;
        }
    }
    assert!(written > 32 << 20, "{written}");
    assert!(used(&site) <= written + (8 << 20), "{} for {written}", used(&site));
    site.server().close(&object, WRITER);
}

/// Changes a byte of the object's file in a tier, as a device might.
fn damage(site: &Site, tier: TierId, n: u64) {
    let status = site.server().tiers().into_iter().find(|t| t.tier == tier).unwrap();
    let name = format!("{:016x}", ino(n).get());
    let path = status.dir.join(&name[14..]).join(&name);
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(b"x", 1000).unwrap();
}

#[test]
fn regression_a_copy_is_compared_though_the_one_above_it_was() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = write_file(&site, 2, &[7; MIB]);
    let to = |tier| site.server().migrate(ino(2), tier, Some(Duration::from_secs(60))).unwrap();
    to(TierId::Ssd);
    assert_eq!(content(&site, &object).unwrap(), [7; MIB]);
    to(TierId::Nearline);
    damage(&site, TierId::Nearline, 2);
    assert_eq!(content(&site, &object), Err(Errno::EIO));
}

#[test]
fn a_file_that_was_read_from_a_device_is_read_in_place_when_it_is_opened_again() {
    let mut site = Site::new(64 << 20);
    site.start();
    drop(write_file(&site, 2, &[7; MIB]));
    site.server().migrate(ino(2), TierId::Ssd, Some(Duration::from_secs(60))).unwrap();
    let attach = |site: &Site| site.server().attach(ino(2), &hint(site, MIB)).unwrap();
    let object = attach(&site);
    assert!(site.server().passthrough_file(&object).is_none(), "not compared yet");
    content(&site, &object).unwrap();
    drop(object);
    let object = attach(&site);
    assert!(site.server().passthrough_file(&object).is_some());
    drop(object);
    // In the next mount nothing is known of it.
    site.restart();
    let object = attach(&site);
    assert!(site.server().passthrough_file(&object).is_none());
}

#[test]
fn regression_what_takes_no_space_can_be_moved_and_counts_its_openings() {
    // Goal: the core hears of an object before it is asked about it, and of all its openings. Method: move an empty object,
    // then write one that was opened twice before its first byte.
    let mut site = Site::new(64 << 20);
    site.start();
    let new = ObjectHint { written: false, ..hint(&site, 0) };
    let empty = site.server().attach(ino(2), &new).unwrap();
    site.server().migrate(ino(2), TierId::Ssd, Some(Duration::from_secs(60))).unwrap();
    drop(empty);
    let object = site.server().attach(ino(3), &new).unwrap();
    site.server().open(&object, WRITER);
    site.server().open(&object, WRITER);
    site.server().write(&object, 0, &[7; MIB]).unwrap();
    site.server().close(&object, WRITER);
    assert!(site.server().report(&object).coolness.unwrap().open);
    site.server().close(&object, WRITER);
    assert!(!site.server().report(&object).coolness.unwrap().open);
}

/// The journal's sync makes device bytes durable first; whoever has an object's lock may be waiting for that very sync to
/// give the journal room. Hangs without the fix.
#[test]
fn regression_a_sync_of_devices_does_not_wait_for_who_waits_for_the_journal() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = write_file(&site, 2, &[7; MIB]);
    site.server().open(&object, WRITER);
    site.server().sync(&object).unwrap();
    // Over the copy on the device: from now on it has bytes that wait for a sync.
    site.server().write(&object, 0, b"unsynced").unwrap();
    let gate = site.gate.clone();
    let shut = gate.lock().unwrap();
    let (server, writer) = (site.server().clone(), object.clone());
    let waiting = std::thread::spawn(move || server.write(&writer, 5 << 20, b"a new SAU").unwrap());
    // Until the writer holds the object's lock it can be read.
    while site.server().try_read(&object, 0, &mut [0]) != Ok(ds::Attempt::WouldWait) {
        std::thread::yield_now();
    }
    site.server().sync_devices();
    drop(shut);
    assert_eq!(waiting.join().unwrap(), 9);
}

/// Between the end of an object and that of its record whoever lists objects may still come upon it.
#[test]
fn regression_what_is_being_removed_is_not_taken_for_lost() {
    let mut site = Site::new(64 << 20);
    site.start();
    drop(write_file(&site, 2, &[7; MIB]));
    site.server().remove(ino(2)).unwrap();
    assert_eq!(site.server().attach(ino(2), &hint(&site, MIB)).err(), Some(Errno::ENOENT));
    assert_eq!(site.server().counters().lost_saus, 0);
    site.server().forget_removed(&[ino(2)]);
}

/// Memory is not given up for a copy that the device failed to make durable. Method: a sync that fails, a close, a request to
/// leave memory; then the device works again, and a flush copies anew.
#[test]
fn regression_memory_stays_while_the_device_has_not_taken_the_bytes() {
    let mut site = Site::new(64 << 20);
    site.faults = Faults::armed();
    site.start();
    let object = write_file(&site, 2, &[7; MIB]);
    let fault =
        Fault { kind: Some(IoKind::Sync), nth: 1, errno: Errno::EIO, span: FaultSpan::Onwards, torn: false };
    site.faults.plan(fault);
    assert_eq!(site.server().flush(&object, &mut |_| {}), Err(Errno::EIO));
    site.server().open(&object, READER);
    site.server().close(&object, READER);
    let _ = site.server().migrate(ino(2), TierId::Ssd, Some(Duration::from_secs(2)));
    assert_eq!(site.server().report(&object).bytes[0], MIB as u64, "the good copy is there");
    site.faults.clear();
    site.server().flush(&object, &mut |_| {}).unwrap();
    site.server().migrate(ino(2), TierId::Ssd, Some(Duration::from_secs(60))).unwrap();
    assert_eq!(content(&site, &object).unwrap(), [7; MIB]);
}

#[test]
fn those_who_make_one_object_safe_at_once_wait_for_each_other() {
    // Goal: no fsync fails because others run beside it. Method: several at once for what was just written, many times.
    let mut site = Site::new(64 << 20);
    site.start();
    for n in 2..60 {
        let object = write_file(&site, n, &[n as u8; 600 << 10]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| site.server().flush(&object, &mut |_| {}).unwrap());
            }
        });
        assert_eq!(site.server().report(&object).at_risk, 0);
        site.server().remove(ino(n)).unwrap();
    }
}

#[test]
fn regression_a_device_that_fails_to_read_is_not_asked_where_another_has_the_bytes() {
    // The first read of a mount compares the checksum, and what failed there was not looked for elsewhere.
    let mut site = Site::new(64 << 20);
    site.faults = Faults::armed();
    site.start();
    let bytes: Vec<u8> = (0..MIB).map(|n| n as u8).collect();
    drop(write_file(&site, 2, &bytes));
    site.server().migrate(ino(2), TierId::Nearline, None).unwrap();
    // In both tiers: a file that came up keeps its slower copy.
    site.server().migrate(ino(2), TierId::Ssd, None).unwrap();
    site.restart();
    let object = site.server().attach(ino(2), &hint(&site, MIB)).unwrap();
    assert_eq!(site.server().report(&object).saus, [0, 1, 1]);
    let (kind, span) = (Some(IoKind::Read), FaultSpan::Once);
    site.faults.plan(Fault { kind, nth: 1, errno: Errno::EIO, span, torn: false });
    assert_eq!(content(&site, &object).unwrap(), bytes);
    assert_eq!(site.faults.fired(), 1);
    assert_eq!(site.server().report(&object).saus, [0, 0, 1], "the SSD is not asked again");
    assert_eq!(site.server().counters().damaged_saus, 0, "no checksum was wrong");
    // The last copy stays on record: the device may be well again.
    site.faults.clear();
    drop(object);
    site.restart();
    let object = site.server().attach(ino(2), &hint(&site, MIB)).unwrap();
    let span = FaultSpan::Onwards;
    site.faults.plan(Fault { kind, nth: 1, errno: Errno::EIO, span, torn: false });
    assert_eq!(content(&site, &object), Err(Errno::EIO));
    site.faults.clear();
    assert_eq!(content(&site, &object).unwrap(), bytes);
}

/// A mount may open every file that there is below a directory with a policy. Method: files with one, safe and not.
#[test]
fn regression_policies_of_files_that_nobody_uses_are_not_kept() {
    let mut site = Site::new(64 << 20);
    site.start();
    let policy =
        tier::ObjectPolicy { write_behind_delay: Some(Duration::from_secs(3600)), ..Default::default() };
    for n in 2..10 {
        let object = write_file(&site, n, &[7; 100]);
        site.server().set_policy(&object, policy);
        drop(object);
        assert!(site.server().keeps(ino(n)), "a mover asks for it");
        let object = site.server().attach(ino(n), &hint(&site, 100)).unwrap();
        site.server().flush(&object, &mut |_| {}).unwrap();
        drop(object);
        // It is in use until what the flush wrote is known to be durable.
        site.server().sync_devices();
        assert!(!site.server().keeps(ino(n)));
    }
}

#[test]
fn regression_parts_of_a_file_that_are_written_out_of_order_flow_on_when_memory_is_full() {
    // Each SAU is begun by one request, and further ones fill it, below what is the file's length by then.
    let mut site = Site::new(64 << 20);
    site.start();
    let new = ObjectHint { written: false, ..hint(&site, 0) };
    let large = site.server().attach(ino(2), &new).unwrap();
    let small = site.server().attach(ino(3), &new).unwrap();
    for object in [&large, &small] {
        site.server().open(object, WRITER);
    }
    for mib in 0..40 {
        for part in [120, 80, 40, 0] {
            let bytes = vec![(part + mib) as u8; MIB];
            let written = site.server().write(&large, ((part + mib) * MIB) as u64, &bytes);
            assert_eq!(written, Ok(MIB), "MiB {}", part + mib);
        }
        assert_eq!(site.server().write(&small, mib as u64 * 5000, b"small"), Ok(5));
    }
    for mib in 0..160 {
        let mut buf = vec![0; MIB];
        assert_eq!(site.server().read(&large, (mib * MIB) as u64, &mut buf), Ok(MIB));
        assert!(buf.iter().all(|b| *b == mib as u8), "MiB {mib}");
    }
}
