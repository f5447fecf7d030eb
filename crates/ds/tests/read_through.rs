//! Goal: what is read of a linked file comes to a tier of ours behind its reader and ahead of him, each byte once; no reader waits for
//! more than his bytes; nothing is kept of a file that changed; and what is read once takes nothing of what is read again.
//! Method: a real directory as the linked side, whose reads are written down, held up, failed or followed by a change.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{Attempt, Object, OpenKind};
use harness::{Site, ino, linked::LinkedDir, read};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use types::{Errno, TierId};

const RW: OpenKind = OpenKind { read: true, write: true };
const READER: OpenKind = OpenKind { read: true, write: false };
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const SAU: usize = types::SAU_BYTES as usize;
/// Only bounds a hang.
const PATIENCE: Duration = Duration::from_secs(120);

fn site(memory: usize, ssd: bool) -> (Site, Arc<LinkedDir>) {
    let dir = LinkedDir::new();
    dir.reads.far.store(true, Ordering::Relaxed);
    let mut site = Site::new(memory as u64);
    site.linked = Some(dir.clone());
    (site.has_ssd, site.fills) = (ssd, true);
    site.start();
    dir.serve(&site);
    (site, dir)
}

fn attach(site: &Site, dir: &LinkedDir, n: u64) -> Arc<Object> {
    site.server().attach(ino(n), &dir.hint(site, n)).unwrap()
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n / 4096) as u8 ^ (n % 251) as u8 ^ seed).collect()
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

/// As the client does: first without waiting, then with.
fn request(site: &Site, object: &Object, at: usize, len: usize) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; len];
    let got = match site.server().try_read(object, at as u64, &mut buf)? {
        Attempt::Done(got) => got,
        Attempt::WouldWait => site.server().read(object, at as u64, &mut buf)?,
    };
    buf.truncate(got);
    Ok(buf)
}

fn scan(site: &Site, object: &Object, bytes: &[u8], step: usize) {
    for at in (0..bytes.len()).step_by(step) {
        let end = (at + step).min(bytes.len());
        assert!(request(site, object, at, step).unwrap() == bytes[at..end], "at {at}");
    }
}

fn in_memory(site: &Site, object: &Object) -> u64 {
    u64::from(site.server().report(object).saus[0])
}

#[test]
fn a_file_that_is_read_from_front_to_back_is_asked_for_once_and_kept() {
    let (mut site, dir) = site(256 * MIB, true);
    let bytes = pattern(41 * MIB + 77, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    site.server().open(&object, READER);
    scan(&site, &object, &bytes, 128 * KIB);
    wait_until("all of it is in memory", || in_memory(&site, &object) == 11);
    assert_eq!(dir.reads.bytes(), bytes.len() as u64, "{:?}", dir.reads.log());
    assert!(dir.reads.log().iter().all(|(_, len)| *len <= MIB));
    assert!(dir.reads.log().len() < 60);
    scan(&site, &object, &bytes, MIB);
    assert_eq!(dir.reads.bytes(), bytes.len() as u64, "the second reading is of ours alone");
    let report = site.server().report(&object);
    assert_eq!((report.saus[2], report.at_risk), (11, 0), "near-line has it as before");
    assert_eq!(site.server().dirty(), (0, 0));
    assert!(site.server().passthrough_file(&object).is_some());
    site.server().close(&object, READER);
    drop(object);
    // And after a kill.
    site.restart();
    dir.serve(&site);
    let object = attach(&site, &dir, 2);
    assert_eq!(in_memory(&site, &object), 11);
    dir.reads.forget();
    assert!(read(&site, &object, 0, bytes.len()).unwrap() == bytes && dir.reads.log().is_empty());
}

#[test]
fn a_reader_waits_for_his_bytes_and_not_for_the_rest_of_the_sau() {
    let (site, dir) = site(64 * MIB, false);
    let bytes = pattern(16 * MIB, 2);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    site.server().open(&object, READER);
    dir.reads.hold_from(Some(MIB as u64));
    // The first piece of the first SAU is there, and nothing else comes.
    for at in [0, 128 * KIB] {
        assert!(request(&site, &object, at, 128 * KIB).unwrap() == bytes[at..at + 128 * KIB]);
    }
    let mut part = vec![0; 4096];
    assert_eq!(site.server().try_read(&object, 64 * KIB as u64, &mut part), Ok(Attempt::Done(4096)));
    assert_eq!(in_memory(&site, &object), 0);
    dir.reads.hold_from(None);
    scan(&site, &object, &bytes, 256 * KIB);
    wait_until("it is kept", || in_memory(&site, &object) == 4);
    assert_eq!(dir.reads.bytes(), bytes.len() as u64);
}

#[test]
fn who_begins_in_the_middle_gets_first_what_he_waits_for() {
    let (site, dir) = site(64 * MIB, false);
    let bytes = pattern(4 * MIB, 3);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    assert!(request(&site, &object, 3 * MIB, 4096).unwrap() == bytes[3 * MIB..3 * MIB + 4096]);
    wait_until("a file of one SAU comes whole", || in_memory(&site, &object) == 1);
    assert_eq!(dir.reads.log()[0], (3 * MIB as u64, 256 * KIB));
    assert_eq!(dir.reads.bytes(), 4 * MIB as u64);
    assert!(read(&site, &object, 0, 4 * MIB).unwrap() == bytes);
}

#[test]
fn a_small_file_is_one_read() {
    let (site, dir) = site(64 * MIB, false);
    let bytes = pattern(100_000, 4);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    assert!(request(&site, &object, 50_000, 100).unwrap() == bytes[50_000..50_100]);
    wait_until("it is kept", || in_memory(&site, &object) == 1);
    assert_eq!(dir.reads.log(), [(0, 100_000)]);
}

#[test]
fn reads_here_and_there_cost_what_they_ask_for() {
    let (site, dir) = site(64 * MIB, true);
    let bytes = pattern(64 * MIB, 5);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    for n in 0..200usize {
        let at = n * 7919 % 16384 * 4096;
        assert!(request(&site, &object, at, 4096).unwrap() == bytes[at..at + 4096]);
    }
    assert_eq!(dir.reads.bytes(), 200 * 4096);
    assert_eq!(in_memory(&site, &object), 0);
}

#[test]
fn nothing_is_kept_of_what_changed_while_it_was_fetched() {
    let (site, dir) = site(64 * MIB, true);
    let bytes = pattern(12 * MIB, 6);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    let path = dir.path(2);
    let mut changed = false;
    dir.reads.hook(move |offset| {
        // In place: what is open shows it.
        if offset > SAU as u64 && !std::mem::replace(&mut changed, true) {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, b"other", 9 * MIB as u64).unwrap();
        }
    });
    // Who gets his bytes before the change is found gets those of the file that is open.
    for at in (0..12 * MIB).step_by(MIB) {
        let _ = request(&site, &object, at, MIB);
    }
    // What was there before is of the file that was agreed on; of what came after nothing is here.
    wait_until("nothing is under way", || Arc::strong_count(&object) == 1);
    let report = site.server().report(&object);
    assert!(report.saus[0] <= 1, "{report:?}");
    let failed = request(&site, &object, 9 * MIB, MIB).is_err();
    assert!(failed, "this file is not the one that was agreed on");
    drop(object);
}

#[test]
fn a_write_while_a_sau_is_fetched_is_what_counts() {
    let (site, dir) = site(64 * MIB, true);
    let mut bytes = pattern(8 * MIB, 7);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    site.server().open(&object, RW);
    dir.reads.hold_from(Some(2 * MIB as u64));
    assert!(request(&site, &object, 0, 256 * KIB).unwrap() == bytes[..256 * KIB]);
    // All of the SAU, so that nothing of theirs is needed for it.
    let ours = pattern(SAU, 99);
    assert_eq!(site.server().write(&object, 0, &ours), Ok(SAU));
    bytes[..SAU].copy_from_slice(&ours);
    dir.reads.hold_from(None);
    scan(&site, &object, &bytes, MIB);
    wait_until("nothing is under way", || Arc::strong_count(&object) == 1);
    scan(&site, &object, &bytes, MIB);
    assert!(!site.server().is_published(&object));
}

#[test]
fn a_cut_while_a_sau_is_fetched_leaves_zeros_behind_it() {
    let (site, dir) = site(64 * MIB, true);
    let bytes = pattern(4 * MIB, 8);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    site.server().open(&object, RW);
    dir.reads.hold_from(Some(3 * MIB as u64));
    assert!(request(&site, &object, 0, 256 * KIB).unwrap() == bytes[..256 * KIB]);
    for size in [2 * MIB, 4 * MIB] {
        dir.note_size(2, size as u64);
        site.server().truncate(&object, size as u64).unwrap();
    }
    let middle = read(&site, &object, MIB, MIB + 100).unwrap();
    assert!(middle[..MIB] == bytes[MIB..2 * MIB] && middle[MIB..].iter().all(|byte| *byte == 0));
    dir.reads.hold_from(None);
    wait_until("nothing is under way", || Arc::strong_count(&object) == 1);
    let all = read(&site, &object, 0, 4 * MIB).unwrap();
    assert!(all[..2 * MIB] == bytes[..2 * MIB] && all[2 * MIB..].iter().all(|byte| *byte == 0));
}

#[test]
fn what_nobody_wants_any_more_is_not_fetched() {
    let (site, dir) = site(64 * MIB, true);
    dir.import(2, &pattern(40 * MIB, 9));
    let object = attach(&site, &dir, 2);
    site.server().open(&object, READER);
    dir.reads.hold_from(Some(MIB as u64));
    request(&site, &object, 0, 256 * KIB).unwrap();
    wait_until("it runs ahead", || dir.reads.log().iter().any(|(at, _)| *at >= SAU as u64));
    site.server().close(&object, READER);
    dir.reads.hold_from(None);
    wait_until("nobody has the object", || Arc::strong_count(&object) == 1);
    assert!(dir.reads.bytes() < 4 * MIB as u64, "{:?}", dir.reads.log());
}

#[test]
fn a_source_that_fails_is_an_error_of_who_waits_and_is_tried_again() {
    let (site, dir) = site(64 * MIB, true);
    let bytes = pattern(12 * MIB, 10);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    scan(&site, &object, &bytes[..2 * MIB], 256 * KIB);
    dir.fail(Some(Errno::EIO));
    let failed = (8..12).filter(|at| request(&site, &object, at * MIB, MIB).is_err()).count();
    assert!(failed > 0);
    dir.fail(None);
    wait_until("it is read again", || request(&site, &object, 11 * MIB, MIB).is_ok());
    scan(&site, &object, &bytes, MIB);
}

#[test]
fn a_scan_that_is_larger_than_memory_leaves_what_is_read_again_where_it_is() {
    let (site, dir) = site(64 * MIB, false);
    let hot = pattern(16 * MIB, 11);
    dir.import(2, &hot);
    for _ in 0..2 {
        let object = attach(&site, &dir, 2);
        site.server().open(&object, READER);
        scan(&site, &object, &hot, MIB);
        wait_until("it is kept", || in_memory(&site, &object) == 4);
        site.server().close(&object, READER);
    }
    let large = pattern(120 * MIB, 12);
    for n in 3..6 {
        dir.import(n, &large[..40 * MIB * (n as usize - 2)]);
        let object = attach(&site, &dir, n);
        site.server().open(&object, READER);
        scan(&site, &object, &large[..40 * MIB * (n as usize - 2)], MIB);
        site.server().close(&object, READER);
    }
    dir.reads.forget();
    let object = attach(&site, &dir, 2);
    scan(&site, &object, &hot, MIB);
    assert_eq!((in_memory(&site, &object), dir.reads.bytes()), (4, 0));
}

#[test]
fn without_a_tier_that_has_room_readers_are_run_ahead_of_all_the_same() {
    // A tier of less than its thresholds has room for nothing.
    let (site, dir) = site(4 * MIB, false);
    let bytes = pattern(40 * MIB, 13);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    site.server().open(&object, READER);
    scan(&site, &object, &bytes, 256 * KIB);
    assert!(dir.reads.bytes() < 48 * MIB as u64, "{} {:?}", dir.reads.bytes(), dir.reads.log());
    assert_eq!(in_memory(&site, &object), 0);
}

#[test]
fn a_movement_and_a_reader_fetch_no_sau_twice() {
    let (site, dir) = site(256 * MIB, true);
    let bytes = pattern(60 * MIB, 14);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    site.server().open(&object, READER);
    let server = site.server().clone();
    let asked = std::thread::spawn(move || server.migrate(ino(2), TierId::Memory, Some(PATIENCE)));
    scan(&site, &object, &bytes, MIB);
    asked.join().unwrap().unwrap();
    assert_eq!(in_memory(&site, &object), 15);
    assert!(dir.reads.bytes() <= (bytes.len() + 2 * SAU) as u64, "{}", dir.reads.bytes());
    assert_eq!(site.server().dirty(), (0, 0));
}

#[test]
fn several_readers_of_one_file_and_of_several_get_their_bytes() {
    let (site, dir) = site(256 * MIB, true);
    let bytes = pattern(48 * MIB, 15);
    (2..5).for_each(|n| dir.import(n, &bytes));
    let objects: Vec<_> = (2..5).map(|n| attach(&site, &dir, n)).collect();
    objects.iter().for_each(|object| site.server().open(object, READER));
    std::thread::scope(|scope| {
        for (n, object) in objects.iter().enumerate().flat_map(|(n, object)| [(n, object), (n + 3, object)]) {
            let (site, bytes) = (&site, &bytes);
            scope.spawn(move || {
                let half = if n < 3 { 0 } else { 24 * MIB };
                for at in (half..half + 24 * MIB).step_by(256 * KIB) {
                    assert!(request(site, object, at, 256 * KIB).unwrap() == bytes[at..at + 256 * KIB]);
                }
            });
        }
    });
    let read = dir.reads.bytes();
    // Who begins in the middle is found after 2 MiB, and those are fetched once more with their SAU.
    assert!(read <= 3 * (48 + 3) * MIB as u64, "{read}");
}

/// What a reader fetched and no tier had room for is found by who reads on; a movement found it, too, and took it for its own
/// again and again, for as long as the file was open.
#[test]
fn regression_a_movement_does_not_wait_for_what_a_reader_could_not_keep() {
    let (site, dir) = site(32 * MIB, false);
    let full = site.server().attach(ino(3), &harness::hint(&site, 0)).unwrap();
    site.server().open(&full, RW);
    site.server().write(&full, 0, &vec![1; 26 * MIB]).unwrap();
    // It makes no room by itself, however long this takes.
    site.server().pin(&full, TierId::Memory).unwrap();
    let bytes = pattern(2 * SAU, 1);
    dir.import(2, &bytes);
    let object = attach(&site, &dir, 2);
    site.server().open(&object, READER);
    // He goes on to neither end of a SAU.
    scan(&site, &object, &bytes[..MIB], 128 * KIB);
    wait_until("both came, and had no place", || dir.reads.bytes() == 2 * SAU as u64);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(in_memory(&site, &object), 0);
    site.server().truncate(&full, 0).unwrap();
    site.server().prefetch_later(&[ino(2)]).unwrap();
    wait_until("it is brought up", || in_memory(&site, &object) == 2);
    assert!(read(&site, &object, 0, bytes.len()).unwrap() == bytes);
}

/// Two movements, each waiting for the first of its fetches, held the memory of those that had ended behind it, which the first ones
/// waited for.
#[test]
fn regression_two_movements_do_not_wait_for_each_others_memory() {
    let (mut site, dir) = site(1024 * MIB, false);
    site.stop();
    // Four at once, for three of each movement.
    site.fill_bytes_max = 4 * SAU as u64;
    site.start();
    dir.serve(&site);
    let bytes = pattern(24 * SAU, 1);
    for n in [2, 3] {
        dir.import(n, &bytes);
    }
    let objects = [2, 3].map(|n| attach(&site, &dir, n));
    site.server().prefetch_later(&[ino(2)]).unwrap();
    site.server().prefetch_later(&[ino(3)]).unwrap();
    wait_until("both are brought up", || objects.iter().all(|object| in_memory(&site, object) == 24));
    assert_eq!(dir.reads.bytes(), 2 * bytes.len() as u64);
}
