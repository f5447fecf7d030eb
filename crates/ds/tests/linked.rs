//! Goal: with a linked near-line reads give their bytes until ours change, ours are published whole, theirs are never written by
//! anything but a publication, and nothing is lost by trouble over there or by a death in between.
//! Method: a real directory of plain files as the linked side; each rule by itself.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{AllocateMode, Attempt, Object, OpenKind};
use harness::{
    Site, ino,
    linked::{At, LinkedDir, end_record},
    read,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use store::{Fault, FaultSpan, Faults, IoKind};
use types::{Errno, TierId};

const RW: OpenKind = OpenKind { read: true, write: true };
const READER: OpenKind = OpenKind { read: true, write: false };
const MIB: usize = 1 << 20;
const SAU: usize = types::SAU_BYTES as usize;
const PATIENCE: Duration = Duration::from_secs(20);

fn linked_site(memory: u64, ssd: bool) -> (Site, Arc<LinkedDir>) {
    let dir = LinkedDir::new();
    let mut site = Site::new(memory);
    site.linked = Some(dir.clone());
    site.has_ssd = ssd;
    site.start();
    dir.serve(&site);
    (site, dir)
}

fn restart(site: &mut Site, dir: &LinkedDir) {
    site.restart();
    dir.recover();
    dir.serve(site);
}

fn reboot(site: &mut Site, dir: &LinkedDir) {
    site.maps().sync().unwrap();
    site.reboot();
    dir.recover();
    dir.serve(site);
}

fn attach(site: &Site, dir: &LinkedDir, n: u64) -> Arc<Object> {
    site.server().attach(ino(n), &dir.hint(site, n)).unwrap()
}

fn write(site: &Site, dir: &LinkedDir, object: &Object, at: usize, bytes: &[u8]) {
    assert_eq!(site.server().write(object, at as u64, bytes).unwrap(), bytes.len());
    dir.note_size(object.ino().local().get(), object.size());
}

fn truncate(site: &Site, dir: &LinkedDir, object: &Object, size: usize) {
    dir.note_size(object.ino().local().get(), size as u64);
    site.server().truncate(object, size as u64).unwrap();
}

fn content(site: &Site, object: &Object) -> Result<Vec<u8>, Errno> {
    read(site, object, 0, object.size() as usize + 10)
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let mut block: Vec<u8> = (0..MIB).map(|n| ((n / 7) as u8).wrapping_add(seed) | 1).collect();
    let mut bytes = Vec::with_capacity(len + MIB);
    while bytes.len() < len {
        bytes.extend_from_slice(&block);
        block.rotate_left(4099);
    }
    bytes.truncate(len);
    bytes
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_stub_is_read_from_their_file_and_leaves_nothing_here() {
    let (mut site, dir) = linked_site(64 << 20, true);
    let bytes = pattern(10 * MIB + 5, 1);
    dir.import(2, &bytes);
    for _ in 0..2 {
        let object = attach(&site, &dir, 2);
        let mut part = vec![0; 100];
        assert_eq!(
            site.server().try_read(&object, 4096, &mut part),
            Ok(Attempt::WouldWait),
            "it is not open yet"
        );
        assert_eq!(content(&site, &object).unwrap(), bytes);
        assert_eq!(site.server().try_read(&object, 4096, &mut part), Ok(Attempt::Done(100)));
        assert_eq!(part, bytes[4096..4196]);
        assert!(
            site.server().passthrough_file(&object).is_none() && !site.server().begin_passthrough(&object)
        );
        let report = site.server().report(&object);
        assert_eq!((report.saus, report.at_risk, report.stored), ([0, 0, 3], 0, [0; 3]));
        assert!(site.server().is_published(&object));
        assert!(site.server().tiers().iter().all(|tier| tier.report.used == 0));
        assert!(!dir.hint(&site, 2).written, "reading makes no record");
        drop(object);
        restart(&mut site, &dir);
    }
}

#[test]
fn a_file_of_theirs_that_is_shorter_or_longer_than_agreed_shows_zeros_and_no_more() {
    let (site, dir) = linked_site(64 << 20, true);
    let bytes = pattern(5 * MIB, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    assert_eq!(read(&site, &object, 0, 10).unwrap(), bytes[..10]);
    // In place: what is open shows it.
    let file = std::fs::File::options().write(true).open(dir.path(2)).unwrap();
    file.set_len(4 << 20).unwrap();
    let got = content(&site, &object).unwrap();
    assert_eq!((got.len(), &got[..4 * MIB]), (5 * MIB, &bytes[..4 * MIB]));
    assert!(got[4 * MIB..].iter().all(|byte| *byte == 0));
    std::fs::write(dir.path(2), pattern(9 * MIB, 7)).unwrap();
    assert_eq!(content(&site, &object).unwrap().len(), 5 * MIB);
    // Not what is longer than it was agreed, either.
    truncate(&site, &dir, &object, 8 * MIB);
    assert!(content(&site, &object).unwrap()[5 * MIB..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_write_in_part_lifts_its_sau_and_one_of_all_of_it_needs_no_byte_of_theirs() {
    let (mut site, dir) = linked_site(64 << 20, true);
    let theirs = pattern(11 * MIB, 1);
    dir.import(2, &theirs);
    let mut bytes = theirs.clone();
    let object = attach(&site, &dir, 2);
    site.server().open(&object, RW);
    assert_eq!(site.server().try_write(&object, 5 << 20, b"ours"), Ok(Attempt::WouldWait));
    write(&site, &dir, &object, 5 * MIB, b"ours");
    bytes[5 * MIB..5 * MIB + 4].copy_from_slice(b"ours");
    assert_eq!(dir.read.load(Ordering::Relaxed), 4 << 20, "one SAU was fetched");
    let report = site.server().report(&object);
    assert_eq!((report.saus, report.at_risk), ([1, 0, 2], 4 << 20));
    // All of the first SAU, and of the last to its end and beyond.
    dir.fail(Some(Errno::EIO));
    let new = pattern(SAU, 9);
    write(&site, &dir, &object, 0, &new);
    bytes[..SAU].copy_from_slice(&new);
    let new = pattern(3 * MIB + 77, 5);
    write(&site, &dir, &object, 8 * MIB, &new);
    bytes.truncate(8 * MIB);
    bytes.extend_from_slice(&new);
    assert_eq!(content(&site, &object).unwrap(), bytes);
    assert_eq!(site.server().report(&object).saus, [3, 0, 0]);
    dir.fail(None);
    drop(object);
    restart(&mut site, &dir);
    assert_eq!(content(&site, &attach(&site, &dir, 2)).unwrap(), bytes);
    assert_eq!(dir.bytes(2), theirs, "theirs is as it was");
}

#[test]
fn a_cut_and_a_growth_show_zeros_where_their_file_has_bytes_also_after_a_death() {
    for first in [9 * MIB + 5, 8 * MIB, 0] {
        for again in [false, true] {
            let (mut site, dir) = linked_site(64 << 20, true);
            let theirs = pattern(14 * MIB, 1);
            dir.import(2, &theirs);
            let mut bytes = theirs.clone();
            let mut object = attach(&site, &dir, 2);
            truncate(&site, &dir, &object, first);
            bytes.truncate(first);
            if again {
                drop(object);
                restart(&mut site, &dir);
                object = attach(&site, &dir, 2);
            }
            truncate(&site, &dir, &object, 11 * MIB);
            bytes.resize(11 * MIB, 0);
            assert_eq!(content(&site, &object).unwrap(), bytes, "{first} {again}");
            drop(object);
            restart(&mut site, &dir);
            let object = attach(&site, &dir, 2);
            assert_eq!(content(&site, &object).unwrap(), bytes, "{first} {again}");
            // A write behind the end makes it longer, too.
            write(&site, &dir, &object, 13 * MIB, b"end");
            bytes.resize(13 * MIB, 0);
            bytes.extend_from_slice(b"end");
            assert_eq!(content(&site, &object).unwrap(), bytes, "{first} {again}");
            assert_eq!(dir.bytes(2), theirs);
        }
    }
}

#[test]
fn a_cut_that_only_the_metadata_know_of_holds_after_a_death() {
    // The metadata have the new size first; the object is told after it. Then they have another one.
    let (mut site, dir) = linked_site(64 << 20, true);
    let bytes = pattern(6 * MIB, 1);
    dir.import(2, &bytes);
    dir.note_size(2, 5 << 20);
    restart(&mut site, &dir);
    let object = attach(&site, &dir, 2);
    assert_eq!(content(&site, &object).unwrap(), bytes[..5 * MIB]);
    dir.note_size(2, 6 << 20);
    drop(object);
    restart(&mut site, &dir);
    let got = content(&site, &attach(&site, &dir, 2)).unwrap();
    assert!(got[..5 * MIB] == bytes[..5 * MIB] && got[5 * MIB..].iter().all(|byte| *byte == 0));
}

#[test]
fn zeros_in_part_of_a_sau_lift_it_and_over_all_of_it_do_not() {
    let (mut site, dir) = linked_site(64 << 20, true);
    let mut bytes = pattern(12 * MIB, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    site.server().allocate(&object, AllocateMode::Zero, 3 << 20, 6 << 20).unwrap();
    bytes[3 * MIB..9 * MIB].fill(0);
    assert_eq!(site.server().report(&object).saus, [2, 0, 0]);
    assert_eq!(content(&site, &object).unwrap(), bytes);
    drop(object);
    restart(&mut site, &dir);
    assert_eq!(content(&site, &attach(&site, &dir, 2)).unwrap(), bytes);
}

#[test]
fn a_version_is_published_and_what_is_clean_then_is_dropped() {
    let (mut site, dir) = linked_site(64 << 20, true);
    let mut bytes = pattern(9 * MIB, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    site.server().open(&object, RW);
    write(&site, &dir, &object, 100, b"ours");
    bytes[100..104].copy_from_slice(b"ours");
    write(&site, &dir, &object, 20 * MIB, b"far");
    bytes.resize(20 * MIB, 0);
    bytes.extend_from_slice(b"far");
    site.server().close(&object, RW);
    assert!(!site.server().is_published(&object));
    site.server().migrate(ino(2), TierId::Nearline, Some(PATIENCE)).unwrap();
    assert_eq!(dir.bytes(2), bytes);
    let report = site.server().report(&object);
    assert_eq!((report.saus, report.at_risk, report.sealed_saus), ([0, 0, 4], 0, 4));
    assert_eq!(content(&site, &object).unwrap(), bytes);
    wait_until("memory is free again", || site.server().tiers()[0].report.used == 0);
    drop(object);
    reboot(&mut site, &dir);
    assert_eq!(content(&site, &attach(&site, &dir, 2)).unwrap(), bytes);
}

#[test]
fn a_published_file_is_the_object_as_it_was_at_one_moment_and_later_writes_are_kept() {
    // A writer goes over the file again and again, block by block: at each moment the blocks before some place are of one pass
    // and those behind it of the pass before.
    const BLOCK: usize = 16 << 10;
    const BLOCKS: usize = 24 * MIB / BLOCK;
    let (site, dir) = linked_site(128 << 20, true);
    dir.import(2, &vec![0; BLOCKS * BLOCK]);
    let object = attach(&site, &dir, 2);
    site.server().open(&object, RW);
    let (stop, server) = (Arc::new(AtomicBool::new(false)), site.server().clone());
    let writer = {
        let (object, stop) = (object.clone(), stop.clone());
        std::thread::spawn(move || {
            for pass in 1u32.. {
                for n in 0..BLOCKS {
                    if stop.load(Ordering::Acquire) {
                        return pass;
                    }
                    let block = pass.to_le_bytes().repeat(BLOCK / 4);
                    assert_eq!(server.write(&object, (n * BLOCK) as u64, &block).unwrap(), BLOCK);
                }
            }
            0
        })
    };
    for _ in 0..6 {
        let before = dir.published.load(Ordering::Relaxed);
        ds::Linked::publish(&*dir, ino(2), &|| false).unwrap();
        assert_eq!(dir.published.load(Ordering::Relaxed), before + 1);
        let passes: Vec<u32> = dir
            .bytes(2)
            .chunks(BLOCK)
            .map(|block| {
                let pass = u32::from_le_bytes(block[..4].try_into().unwrap());
                assert!(block[4..] == block[..BLOCK - 4], "a torn block");
                pass
            })
            .collect();
        assert!(passes.windows(2).all(|w| w[0] >= w[1]), "no moment of the object: {passes:?}");
        assert!(passes[0] - passes[BLOCKS - 1] <= 1, "no moment of the object: {passes:?}");
    }
    stop.store(true, Ordering::Release);
    assert!(writer.join().unwrap() > 1);
    let now = content(&site, &object).unwrap();
    site.server().close(&object, RW);
    ds::Linked::publish(&*dir, ino(2), &|| false).unwrap();
    assert!(dir.bytes(2) == now);
    site.server().migrate(ino(2), TierId::Nearline, Some(PATIENCE)).unwrap();
    assert_eq!(site.server().report(&object).saus, [0, 0, 6]);
    assert!(content(&site, &object).unwrap() == now);
}

#[test]
fn what_is_changed_between_the_snapshot_and_the_rename_is_not_in_near_line() {
    let (site, dir) = linked_site(64 << 20, true);
    let bytes = pattern(12 * MIB + 9, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    write(&site, &dir, &object, 0, &bytes[..5]);
    let (server, late) = (site.server().clone(), object.clone());
    dir.on_copied(move || {
        server.write(&late, 9 << 20, b"late").unwrap();
        server.allocate(&late, AllocateMode::Zero, 5 << 20, 7).unwrap();
        server.truncate(&late, (12 << 20) + 4).unwrap();
        server.truncate(&late, (12 << 20) + 9).unwrap();
    });
    ds::Linked::publish(&*dir, ino(2), &|| false).unwrap();
    assert_eq!(dir.bytes(2), bytes, "the snapshot");
    let mut now = bytes.clone();
    now[9 * MIB..9 * MIB + 4].copy_from_slice(b"late");
    now[5 * MIB..5 * MIB + 7].fill(0);
    now[12 * MIB + 4..].fill(0);
    assert_eq!(content(&site, &object).unwrap(), now);
    assert!(!site.server().is_published(&object));
    assert_eq!(site.server().report(&object).saus, [3, 0, 2]);
    ds::Linked::publish(&*dir, ino(2), &|| false).unwrap();
    assert!(site.server().is_published(&object) && dir.bytes(2) == now);
}

#[test]
fn a_death_at_each_step_of_a_publication_loses_nothing() {
    for step in [At::Copied, At::Renamed, At::Agreed] {
        for lost_memory in [false, true] {
            let (mut site, dir) = linked_site(64 << 20, true);
            let mut bytes = pattern(9 * MIB, 1);
            dir.import(2, &bytes);
            let object = attach(&site, &dir, 2);
            write(&site, &dir, &object, 5 * MIB, b"ours");
            bytes[5 * MIB..5 * MIB + 4].copy_from_slice(b"ours");
            site.server().flush(&object, &mut |_| {}).unwrap();
            dir.die_at(Some(step));
            assert_eq!(ds::Linked::publish(&*dir, ino(2), &|| false), Err(Errno::EIO));
            assert!(!site.server().is_published(&object), "{step:?}");
            drop(object);
            dir.die_at(None);
            if lost_memory {
                reboot(&mut site, &dir)
            } else {
                restart(&mut site, &dir)
            }
            let object = attach(&site, &dir, 2);
            assert_eq!(content(&site, &object).unwrap(), bytes, "{step:?} {lost_memory}");
            ds::Linked::publish(&*dir, ino(2), &|| false).unwrap();
            assert!(site.server().is_published(&object) && dir.bytes(2) == bytes, "{step:?}");
            drop(object);
            restart(&mut site, &dir);
            let object = attach(&site, &dir, 2);
            assert!(site.server().is_published(&object), "{step:?}");
            assert_eq!(content(&site, &object).unwrap(), bytes, "{step:?}");
        }
    }
}

#[test]
fn a_publication_that_fails_or_is_stopped_is_as_if_it_never_was() {
    let (site, dir) = linked_site(64 << 20, true);
    let theirs = pattern(9 * MIB, 1);
    dir.import(2, &theirs);
    let object = attach(&site, &dir, 2);
    write(&site, &dir, &object, 5 * MIB, b"ours");
    assert_eq!(ds::Linked::publish(&*dir, ino(2), &|| true), Err(Errno::EINTR));
    dir.fail(Some(Errno::ETIMEDOUT));
    assert_eq!(ds::Linked::publish(&*dir, ino(2), &|| false), Err(Errno::ETIMEDOUT));
    dir.fail(None);
    // They put another file in its place: two SAUs are nowhere but there, and are not published for ours.
    dir.replace(2, &pattern(9 * MIB, 3));
    drop(object);
    // As after a death: nobody has the file open that was theirs.
    site.server().let_theirs_go(ino(2));
    let object = attach(&site, &dir, 2);
    assert_eq!(ds::Linked::publish(&*dir, ino(2), &|| false), Err(Errno::ESTALE));
    assert!(!site.server().is_published(&object));
    assert_eq!(read(&site, &object, 5 * MIB, 4).unwrap(), b"ours");
    dir.replace(2, &theirs);
    dir.agree(2);
    wait_until("it is opened again", || ds::Linked::publish(&*dir, ino(2), &|| false).is_ok());
    assert!(site.server().is_published(&object));
}

struct Nowhere;
impl link::Version for Nowhere {
    fn write_at(&mut self, _: &[u8], _: u64) -> Result<(), Errno> {
        Ok(())
    }
    fn set_len(&mut self, _: u64) -> Result<(), Errno> {
        Ok(())
    }
    fn finish(self: Box<Self>, _: &link::Attributes<'_>) -> Result<link::Found, Errno> {
        Err(Errno::EIO)
    }
}

#[test]
fn an_fsync_waits_for_a_version_that_is_under_way() {
    let (site, dir) = linked_site(64 << 20, false);
    let object = attach(&site, &dir, 2);
    write(&site, &dir, &object, 0, b"ours");
    let under_way = site.server().copy_version(&object, &mut Nowhere, &|| false).unwrap();
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| site.server().sync(&object));
        wait_until("it asks again and again", || dir.asked.load(Ordering::Relaxed) > 3);
        site.server().give_up_version(under_way);
        assert_eq!(synced.join().unwrap(), Ok(()));
    });
    assert_eq!(dir.bytes(2), b"ours");
}

#[test]
fn two_versions_of_one_object_are_not_made_at_once() {
    let (site, dir) = linked_site(64 << 20, true);
    dir.import(2, &pattern(MIB, 1));
    let object = attach(&site, &dir, 2);
    let (server, same) = (site.server().clone(), object.clone());
    dir.on_copied(move || {
        let second = server.copy_version(&same, &mut Nowhere, &|| false);
        assert_eq!(second.err(), Some(Errno::EBUSY));
    });
    ds::Linked::publish(&*dir, ino(2), &|| false).unwrap();
    let first = site.server().copy_version(&object, &mut Nowhere, &|| false).unwrap();
    site.server().give_up_version(first);
    drop(site.server().copy_version(&object, &mut Nowhere, &|| false).unwrap());
}

#[test]
fn more_than_memory_has_is_written_without_an_ssd_by_publishing() {
    let (site, dir) = linked_site(24 << 20, false);
    for n in 2..8 {
        let object = attach(&site, &dir, n);
        site.server().open(&object, RW);
        for at in (0..8 * MIB).step_by(MIB) {
            write(&site, &dir, &object, at, &pattern(8 * MIB, n as u8)[at..at + MIB]);
        }
        site.server().close(&object, RW);
    }
    for n in 2..8 {
        let object = attach(&site, &dir, n);
        assert!(content(&site, &object).unwrap() == pattern(8 * MIB, n as u8), "file {n}");
        site.server().flush(&object, &mut |_| {}).unwrap();
        assert!(dir.bytes(n) == pattern(8 * MIB, n as u8), "file {n}");
    }
}

#[test]
fn a_file_larger_than_memory_is_written_without_an_ssd_while_it_stays_open() {
    let (site, dir) = linked_site(16 << 20, false);
    let object = attach(&site, &dir, 2);
    site.server().open(&object, RW);
    let bytes = pattern(56 * MIB, 3);
    for at in (0..bytes.len()).step_by(MIB) {
        write(&site, &dir, &object, at, &bytes[at..at + MIB]);
    }
    assert!(content(&site, &object).unwrap() == bytes);
    site.server().sync(&object).unwrap();
    assert!(dir.bytes(2) == bytes);
}

#[test]
fn all_full_and_nowhere_to_go_is_an_error_and_ends_with_the_trouble() {
    let (site, dir) = linked_site(16 << 20, false);
    dir.fail(Some(Errno::EIO));
    let object = attach(&site, &dir, 2);
    site.server().open(&object, RW);
    let mut at = 0;
    let errno = loop {
        match site.server().write(&object, at as u64, &pattern(MIB, 1)) {
            Ok(n) => at += n,
            Err(errno) => break errno,
        }
    };
    assert_eq!((errno, at > 8 * MIB), (Errno::ENOSPC, true), "{at}");
    site.server().close(&object, RW);
    assert_eq!(site.server().flush(&object, &mut |_| {}), Err(Errno::EIO));
    dir.fail(None);
    site.server().flush(&object, &mut |_| {}).unwrap();
    let more = attach(&site, &dir, 3);
    let new = pattern(12 * MIB, 4);
    // What failed to move is left alone for a while.
    wait_until("there is room", || site.server().write(&more, 0, &new) == Ok(new.len()));
    assert!(content(&site, &more).unwrap() == new);
    assert_eq!(content(&site, &object).unwrap().len(), at);
}

#[test]
fn an_fsync_publishes_without_an_ssd_and_not_with_one() {
    for ssd in [false, true] {
        let (mut site, dir) = linked_site(64 << 20, ssd);
        let mut bytes = pattern(6 * MIB, 1);
        dir.import(2, &bytes);
        let object = attach(&site, &dir, 2);
        site.server().open(&object, RW);
        site.server().sync(&object).unwrap();
        assert_eq!(dir.published.load(Ordering::Relaxed), 0, "all is there");
        write(&site, &dir, &object, 5 * MIB, b"ours");
        bytes[5 * MIB..5 * MIB + 4].copy_from_slice(b"ours");
        site.server().sync(&object).unwrap();
        assert_eq!(dir.published.load(Ordering::Relaxed), u64::from(!ssd));
        assert_eq!(site.server().report(&object).at_risk, 0);
        if ssd {
            // What was promised does not come to depend on memory: neither near-line's SAU nor one with a copy in memory.
            write(&site, &dir, &object, 9, b"more");
            bytes[9..13].copy_from_slice(b"more");
            assert_eq!(site.server().report(&object).at_risk, 0);
        } else {
            write(&site, &dir, &object, 9, &bytes[9..10]);
            dir.fail(Some(Errno::ENOSPC));
            assert_eq!(site.server().sync(&object), Err(Errno::ENOSPC));
            dir.fail(None);
            site.server().sync(&object).unwrap();
        }
        site.server().close(&object, RW);
        drop(object);
        reboot(&mut site, &dir);
        assert_eq!(content(&site, &attach(&site, &dir, 2)).unwrap(), bytes, "ssd: {ssd}");
    }
}

#[test]
fn a_promised_sau_with_a_copy_in_memory_goes_to_the_ssd_before_it_changes() {
    let (mut site, dir) = linked_site(64 << 20, true);
    let mut bytes = pattern(6 * MIB, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    site.server().sync(&object).unwrap();
    site.server().migrate(ino(2), TierId::Memory, Some(PATIENCE)).unwrap();
    assert_eq!(site.server().report(&object).saus, [2, 0, 2]);
    site.server().open(&object, READER);
    assert!(site.server().begin_passthrough(&object));
    write(&site, &dir, &object, 0, b"ours");
    bytes[..4].copy_from_slice(b"ours");
    assert_eq!(site.server().report(&object).saus, [2, 1, 1], "readers have memory's in place");
    site.server().end_passthrough(&object);
    site.server().allocate(&object, AllocateMode::Zero, 5 << 20, 9).unwrap();
    bytes[5 * MIB..5 * MIB + 9].fill(0);
    assert_eq!(site.server().report(&object).saus, [1, 2, 0]);
    drop(object);
    reboot(&mut site, &dir);
    assert_eq!(content(&site, &attach(&site, &dir, 2)).unwrap(), bytes);
}

#[test]
fn a_stub_comes_up_checked_also_if_nobody_has_it_open() {
    let (mut site, dir) = linked_site(64 << 20, true);
    let bytes = pattern(21 * MIB, 1);
    dir.import(2, &bytes);
    site.server().migrate_later(ino(2), TierId::Memory).unwrap();
    wait_until("it comes up", || {
        site.server().in_line() == 0 && site.server().report(&attach(&site, &dir, 2)).saus == [6, 0, 6]
    });
    let object = attach(&site, &dir, 2);
    let report = site.server().report(&object);
    assert_eq!((report.size, report.sealed_saus, report.at_risk), (21 << 20, 6, 0));
    dir.fail(Some(Errno::EIO));
    assert_eq!(content(&site, &object).unwrap(), bytes, "what is here needs nothing there");
    dir.fail(None);
    drop(object);
    restart(&mut site, &dir);
    let object = attach(&site, &dir, 2);
    assert_eq!(site.server().report(&object).saus, [6, 0, 6]);
    drop(object);
    reboot(&mut site, &dir);
    assert_eq!(content(&site, &attach(&site, &dir, 2)).unwrap(), bytes, "near-line has it");
}

#[test]
fn what_changes_while_it_is_copied_up_is_not_kept() {
    let (site, dir) = linked_site(64 << 20, true);
    let bytes = pattern(9 * MIB, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    assert_eq!(read(&site, &object, 0, 9).unwrap(), bytes[..9]);
    // In place, after it was opened: the look after the batch tells.
    std::fs::write(dir.path(2), pattern(9 * MIB, 2)).unwrap();
    let moved = site.server().migrate(ino(2), TierId::Memory, Some(PATIENCE));
    assert_eq!(moved.err(), Some(ds::RequestError::Io));
    assert_eq!(site.server().report(&object).saus, [0, 0, 3]);
}

#[test]
fn ours_are_not_mixed_with_what_they_changed_in_place() {
    let (site, dir) = linked_site(64 << 20, true);
    let bytes = pattern(9 * MIB, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    assert_eq!(read(&site, &object, 0, 9).unwrap(), bytes[..9]);
    std::fs::write(dir.path(2), pattern(9 * MIB, 2)).unwrap();
    assert_eq!(site.server().write(&object, 5, b"ours"), Err(Errno::EIO));
    assert_eq!(site.server().report(&object).saus, [0, 0, 3]);
    // A file that lost its name alone is as good as it was.
    dir.replace(2, &bytes);
    dir.agree(2);
    wait_until("it is opened again", || read(&site, &object, 0, 9).is_ok());
    std::fs::remove_file(dir.path(2)).unwrap();
    write(&site, &dir, &object, 5, b"ours");
}

#[test]
fn trouble_over_there_is_an_error_of_the_call_and_goes_by() {
    for errno in [Errno::EIO, Errno::ESTALE, Errno::ETIMEDOUT] {
        let (site, dir) = linked_site(64 << 20, true);
        let bytes = pattern(9 * MIB, 1);
        dir.import(2, &bytes);
        let object = attach(&site, &dir, 2);
        dir.fail(Some(errno));
        for _ in 0..50 {
            assert_eq!(content(&site, &object), Err(Errno::EIO));
            assert_eq!(site.server().write(&object, 5, b"ours"), Err(Errno::EIO));
        }
        let asked = dir.opened.load(Ordering::Relaxed);
        assert!(asked <= 2, "asked {asked} times within a second");
        dir.fail(None);
        wait_until("it is well again", || content(&site, &object).as_ref() == Ok(&bytes));
        let report = site.server().report(&object);
        assert_eq!((report.lost_saus, report.saus), (0, [0, 0, 3]));
        // An old descriptor that fails is opened again.
        dir.replace(2, &bytes);
        dir.agree(2);
        dir.fail(Some(errno));
        assert_eq!(content(&site, &object), Err(Errno::EIO));
        dir.fail(None);
        wait_until("it is well again", || content(&site, &object).as_ref() == Ok(&bytes));
    }
}

#[test]
fn a_linked_file_that_is_missing_at_a_start_is_not_lost() {
    let (mut site, dir) = linked_site(64 << 20, true);
    let bytes = pattern(9 * MIB, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    write(&site, &dir, &object, 0, &bytes[..9]);
    drop(object);
    std::fs::remove_file(dir.path(2)).unwrap();
    restart(&mut site, &dir);
    let object = attach(&site, &dir, 2);
    assert_eq!(read(&site, &object, 0, 9).unwrap(), bytes[..9]);
    assert_eq!(read(&site, &object, 5 * MIB, 9), Err(Errno::EIO));
    assert_eq!(site.server().report(&object).lost_saus, 0);
    dir.replace(2, &bytes);
    dir.agree(2);
    wait_until("it is back", || content(&site, &object).as_ref() == Ok(&bytes));
}

#[test]
fn an_object_becomes_a_stub_of_their_new_file() {
    let (mut site, dir) = linked_site(64 << 20, true);
    let old = pattern(9 * MIB, 1);
    dir.import(2, &old);
    let object = attach(&site, &dir, 2);
    site.server().migrate(ino(2), TierId::Memory, Some(PATIENCE)).unwrap();
    site.server().migrate(ino(2), TierId::Ssd, Some(PATIENCE)).unwrap();
    site.server().migrate(ino(2), TierId::Memory, Some(PATIENCE)).unwrap();
    assert_eq!(site.server().report(&object).saus, [3, 3, 3]);
    let new = pattern(5 * MIB, 3);
    dir.replace(2, &new);
    let stub = |site: &Site, object: &Arc<Object>| {
        site.server().become_stub(object, new.len() as u64, &mut || {
            dir.note_size(2, dir.agree(2));
            end_record(site, 2)
        })
    };
    site.server().open(&object, RW);
    assert_eq!(stub(&site, &object), Err(Errno::EBUSY), "somebody writes");
    site.server().close(&object, RW);
    site.server().open(&object, READER);
    assert_eq!(content(&site, &object).unwrap(), old);
    assert!(site.server().begin_passthrough(&object));
    assert_eq!(stub(&site, &object), Err(Errno::EBUSY), "it is in place");
    site.server().end_passthrough(&object);
    site.server().close(&object, READER);
    let refused = site.server().become_stub(&object, 1, &mut || Err(Errno::EROFS));
    assert_eq!(refused, Err(Errno::EROFS));
    assert_eq!(content(&site, &object).unwrap(), old, "as if nothing had been tried");
    stub(&site, &object).unwrap();
    assert_eq!(content(&site, &object).unwrap(), new);
    assert_eq!(site.server().report(&object).saus, [0, 0, 2]);
    wait_until("what was here is freed", || site.server().tiers().iter().all(|tier| tier.report.used == 0));
    write(&site, &dir, &object, 0, b"ours");
    assert_eq!(stub(&site, &object), Err(Errno::EBUSY), "ours changed");
    drop(object);
    restart(&mut site, &dir);
    let mut bytes = new.clone();
    bytes[..4].copy_from_slice(b"ours");
    assert_eq!(content(&site, &attach(&site, &dir, 2)).unwrap(), bytes);
}

#[test]
fn a_stub_again_is_one_after_a_death_too() {
    for power_cut in [false, true] {
        let (mut site, dir) = linked_site(64 << 20, true);
        dir.import(2, &pattern(9 * MIB, 1));
        let object = attach(&site, &dir, 2);
        site.server().migrate(ino(2), TierId::Memory, Some(PATIENCE)).unwrap();
        let new = pattern(12 * MIB, 3);
        dir.replace(2, &new);
        let commit = &mut || {
            dir.note_size(2, dir.agree(2));
            end_record(&site, 2)
        };
        site.server().become_stub(&object, new.len() as u64, commit).unwrap();
        drop(object);
        if power_cut {
            reboot(&mut site, &dir)
        } else {
            restart(&mut site, &dir)
        }
        let object = attach(&site, &dir, 2);
        assert_eq!(content(&site, &object).unwrap(), new);
        // What an earlier life left in memory's file does not show.
        write(&site, &dir, &object, 13 * MIB, b"far");
        write(&site, &dir, &object, 3, b"ours");
        let mut bytes = new.clone();
        bytes[3..7].copy_from_slice(b"ours");
        bytes.resize(13 * MIB, 0);
        bytes.extend_from_slice(b"far");
        assert_eq!(content(&site, &object).unwrap(), bytes);
    }
}

#[test]
fn regression_a_stub_that_is_shorter_than_before_has_its_size_after_a_death() {
    // How far memory's file reached before told how long the object was.
    let (mut site, dir) = linked_site(64 << 20, true);
    dir.import(2, &pattern(13 * MIB, 1));
    let object = attach(&site, &dir, 2);
    site.server().open(&object, READER);
    site.server().migrate(ino(2), TierId::Memory, Some(PATIENCE)).unwrap();
    site.server().migrate(ino(2), TierId::Nearline, Some(PATIENCE)).unwrap();
    let new = pattern(5 * MIB, 3);
    dir.replace(2, &new);
    let commit = &mut || {
        dir.note_size(2, dir.agree(2));
        end_record(&site, 2)
    };
    site.server().become_stub(&object, new.len() as u64, commit).unwrap();
    assert_eq!(site.server().write(&object, 9 << 20, b"far"), Ok(3));
    drop(object);
    restart(&mut site, &dir);
    let live = ds::ObjectHint { stale_live: true, ..dir.hint(&site, 2) };
    let object = site.server().attach(ino(2), &live).unwrap();
    assert_eq!(object.size(), (9 << 20) + 3);
    assert_eq!(read(&site, &object, 0, 5 * MIB).unwrap(), new);
}

#[test]
fn stores_through_a_mapping_are_published_and_leave_nothing_clean() {
    use std::os::unix::fs::FileExt;
    let (site, dir) = linked_site(64 << 20, false);
    let mut bytes = pattern(6 * MIB, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    site.server().migrate(ino(2), TierId::Memory, Some(PATIENCE)).unwrap();
    site.server().open(&object, RW);
    assert!(site.server().begin_passthrough(&object));
    site.server().begin_mapped_writes(&object).unwrap();
    assert_eq!(site.server().report(&object).saus, [2, 0, 0], "near-line would be old with the first store");
    // What a program stores is in the file of the tier.
    let file = std::fs::File::options().write(true).open(site.tier_path(TierId::Memory, 2)).unwrap();
    file.write_all_at(b"stored", 5 << 20).unwrap();
    bytes[5 * MIB..5 * MIB + 6].copy_from_slice(b"stored");
    site.server().sync(&object).unwrap();
    assert_eq!(dir.bytes(2), bytes);
    assert!(!site.server().is_published(&object));
    file.write_all_at(b"later", 9).unwrap();
    bytes[9..14].copy_from_slice(b"later");
    site.server().end_mapped_writes(&object).unwrap();
    site.server().end_passthrough(&object);
    site.server().close(&object, RW);
    site.server().migrate(ino(2), TierId::Nearline, Some(PATIENCE)).unwrap();
    assert!(site.server().is_published(&object) && dir.bytes(2) == bytes);
    assert_eq!(content(&site, &object).unwrap(), bytes);
}

#[test]
fn a_removed_object_leaves_their_file_alone() {
    let (site, dir) = linked_site(64 << 20, true);
    let bytes = pattern(6 * MIB, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    write(&site, &dir, &object, 0, b"ours");
    let (server, n) = (site.server().clone(), object.ino());
    dir.on_copied(move || server.remove(n).unwrap());
    assert_eq!(ds::Linked::publish(&*dir, ino(2), &|| false), Err(Errno::ENOENT));
    assert_eq!(dir.bytes(2).len(), bytes.len());
    assert!(site.server().tiers().iter().all(|tier| tier.report.used == 0));
}

#[test]
fn a_damaged_copy_on_the_ssd_is_replaced_by_near_lines() {
    use std::os::unix::fs::FileExt;
    let (mut site, dir) = linked_site(64 << 20, true);
    let bytes = pattern(9 * MIB, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    site.server().migrate(ino(2), TierId::Ssd, Some(PATIENCE)).unwrap();
    assert_eq!(site.server().report(&object).saus, [0, 3, 3]);
    let file = std::fs::File::options().write(true).open(site.tier_path(TierId::Ssd, 2)).unwrap();
    file.write_all_at(b"damage", 5 << 20).unwrap();
    drop(object);
    restart(&mut site, &dir);
    let object = attach(&site, &dir, 2);
    assert!(content(&site, &object).unwrap() == bytes);
    assert_eq!(site.server().report(&object).saus, [0, 2, 3]);
}

#[test]
fn a_copy_that_the_ssd_did_not_take_is_given_up_where_near_line_has_the_bytes() {
    let dir = LinkedDir::new();
    let mut site = Site::new(64 << 20);
    site.ssd_faults = Some(Faults::armed());
    site.linked = Some(dir.clone());
    site.start();
    dir.serve(&site);
    let bytes = pattern(9 * MIB, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    site.server().migrate(ino(2), TierId::Ssd, Some(PATIENCE)).unwrap();
    site.server().open(&object, RW);
    let faults = site.ssd_faults.clone().unwrap();
    faults.plan(Fault {
        kind: Some(IoKind::Sync),
        nth: 1,
        errno: Errno::EIO,
        span: FaultSpan::Onwards,
        torn: false,
    });
    // The SAU that is written leaves near-line; those of the others are there still.
    let _ = site.server().write(&object, 0, b"ours");
    let _ = site.server().sync(&object);
    faults.clear();
    site.server().close(&object, RW);
    let _ = site.server().sync(&object);
    let report = site.server().report(&object);
    assert!(report.saus[2] >= 2 && report.lost_saus == 0, "{report:?}");
    assert!(content(&site, &object).unwrap()[4..] == bytes[4..]);
}

#[test]
fn a_full_ssd_makes_an_fsync_publish() {
    let dir = LinkedDir::new();
    let mut site = Site::new(64 << 20);
    site.ssd_limit = Some(1 << 20);
    site.linked = Some(dir.clone());
    site.start();
    dir.serve(&site);
    let object = attach(&site, &dir, 2);
    site.server().open(&object, RW);
    let bytes = pattern(6 * MIB, 1);
    write(&site, &dir, &object, 0, &bytes);
    site.server().sync(&object).unwrap();
    assert!(dir.bytes(2) == bytes && site.server().report(&object).at_risk == 0);
}

#[test]
fn without_an_ssd_a_closed_file_is_published_by_write_behind() {
    let (site, dir) = linked_site(64 << 20, false);
    let object = attach(&site, &dir, 2);
    site.server().open(&object, RW);
    let bytes = pattern(6 * MIB, 1);
    write(&site, &dir, &object, 0, &bytes);
    site.server().close(&object, RW);
    wait_until("it is published", || site.server().is_published(&object));
    assert!(dir.bytes(2) == bytes);
    assert_eq!(site.server().report(&object).saus, [2, 0, 2], "memory keeps its copy");
    assert_eq!(site.server().dirty(), (0, 0));
    // What is written over a clean copy is dirty again, at once.
    site.server().open(&object, RW);
    write(&site, &dir, &object, 0, b"ours");
    site.server().close(&object, RW);
    wait_until("the core knows", || site.server().dirty().0 == 1);
    wait_until("it is published", || site.server().is_published(&object));
    assert!(dir.bytes(2)[..4] == *b"ours");
}
