//! Goal: bytes that change on a device by themselves are found before somebody needs them, and made good from another tier's copy; where there is
//! none, nobody is shown them. Method: bytes changed behind the server's back, one pass after the other; kills in a pass; writers beside it.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{Object, OpenKind, ScrubFound, ScrubOptions};
use harness::{Site, hint, ino, read};
use std::{
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use types::{Errno, TierId};

const WRITER: OpenKind = OpenKind { read: true, write: true };
const MIB: usize = 1 << 20;
const SIZE: usize = 6 * MIB;

fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Object `n`, 6 MiB, in memory and on the SSD, with checksums.
fn both(site: &Site, n: u64) -> Arc<Object> {
    let object = site.server().attach(ino(n), &hint(site, 0)).unwrap();
    site.server().open(&object, WRITER);
    site.server().write(&object, 0, &vec![n as u8; SIZE]).unwrap();
    site.server().sync(&object).unwrap();
    site.server().close(&object, WRITER);
    assert_eq!(site.server().report(&object).sealed_saus, 2);
    object
}

fn damage(site: &Site, tier: TierId, n: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(site.tier_path(tier, n)).unwrap();
    file.write_all_at(b"\xff", 5 << 20).unwrap();
    file.sync_all().unwrap();
}

fn pass(site: &Site) -> ScrubFound {
    assert!(site.server().scrub().unwrap());
    until("the pass ends", || site.server().scrubbed().pass.is_none());
    site.server().scrubbed().found
}

fn started() -> Site {
    let mut site = Site::new(64 << 20);
    site.start();
    site
}

#[test]
fn what_a_device_changed_is_made_good_from_memory() {
    let site = started();
    let object = both(&site, 2);
    assert_eq!(pass(&site), ScrubFound { bytes: 2 * SIZE as u64, ..ScrubFound::default() });
    damage(&site, TierId::Ssd, 2);
    let found = pass(&site);
    assert_eq!((found.damaged, found.repaired, found.hopeless), (1, 1, 0));
    until("it is on the SSD again", || site.tier_file(TierId::Ssd, 2) == vec![2; SIZE]);
    until("and counts there", || site.server().dirty().1 == 0);
    assert_eq!(read(&site, &object, 0, SIZE), Ok(vec![2; SIZE]));
    assert_eq!(pass(&site).damaged, 0);
    let counters = site.server().counters();
    assert_eq!((counters.damaged_saus, counters.repaired_saus, counters.hopeless_saus), (1, 1, 0));
}

#[test]
fn damaged_bytes_in_memory_are_not_read() {
    let site = started();
    let object = both(&site, 2);
    damage(&site, TierId::Memory, 2);
    let found = pass(&site);
    assert_eq!((found.damaged, found.repaired), (1, 1));
    assert_eq!(read(&site, &object, 0, SIZE), Ok(vec![2; SIZE]));
    // And with no good copy.
    damage(&site, TierId::Memory, 2);
    let other = both(&site, 3);
    damage(&site, TierId::Memory, 3);
    damage(&site, TierId::Ssd, 3);
    let found = pass(&site);
    assert_eq!((found.damaged, found.repaired, found.hopeless), (2, 0, 2), "{found:?}");
    assert_eq!(read(&site, &other, 4 * MIB, MIB), Err(Errno::EIO));
    assert_eq!(read(&site, &other, 0, MIB), Ok(vec![3; MIB]), "the other piece of it");
    assert_eq!(read(&site, &object, 0, SIZE), Ok(vec![2; SIZE]));
}

#[test]
fn what_was_read_well_once_is_an_error_when_it_has_rotted() {
    let mut site = started();
    drop(both(&site, 2));
    site.reboot();
    let object = site.server().attach(ino(2), &hint(&site, SIZE)).unwrap();
    assert_eq!(read(&site, &object, 0, SIZE), Ok(vec![2; SIZE]));
    damage(&site, TierId::Ssd, 2);
    for _ in 0..2 {
        let found = pass(&site);
        assert_eq!((found.damaged, found.repaired, found.hopeless), (1, 0, 1));
        assert_eq!(read(&site, &object, 4 * MIB, MIB), Err(Errno::EIO));
        assert_eq!(read(&site, &object, 0, 4 * MIB), Ok(vec![2; 4 * MIB]));
    }
}

#[test]
fn a_pass_goes_on_after_a_kill_and_can_be_stopped() {
    let mut site = Site::new(64 << 20);
    site.scrub = ScrubOptions { every: None, round_bytes: 1 };
    site.start();
    const OBJECTS: u64 = 6;
    for n in 2..2 + OBJECTS {
        drop(both(&site, n));
    }
    let all = OBJECTS * 2 * SIZE as u64;
    assert!(site.server().scrub().unwrap());
    until("some of it is read", || site.server().scrubbed().found.bytes > all / 3);
    assert!(!site.server().scrub().unwrap(), "one is under way");
    site.restart();
    let kept = site.server().scrubbed();
    assert!(kept.pass.is_some_and(|pass| pass.part >= 2), "{kept:?}");
    until("the pass ends", || site.server().scrubbed().pass.is_none());
    assert_eq!(site.server().scrubbed().found.bytes, all, "each once: {:?}", site.server().scrubbed());
    assert!(site.server().scrub().unwrap());
    until("some of it is read", || site.server().scrubbed().found.bytes > 0);
    site.server().stop_scrub().unwrap();
    let stopped = site.server().scrubbed();
    assert!(stopped.pass.is_none() && stopped.found.bytes < all);
    site.restart();
    assert_eq!(site.server().scrubbed(), stopped);
}

/// Goal: restarts do not put the first pass off. Method: what is kept right after the first start.
#[test]
fn regression_the_time_to_the_first_pass_is_kept_from_the_beginning() {
    let mut site = started();
    until("it is kept", || site.maps().get(&namespace::key::global(b"scrub")).unwrap().is_some());
    let began = site.server().scrubbed().ended;
    std::thread::sleep(Duration::from_millis(1100));
    site.restart();
    assert_eq!(site.server().scrubbed().ended, began);
}

#[test]
fn passes_come_by_themselves() {
    let mut site = Site::new(64 << 20);
    site.scrub.every = Some(Duration::ZERO);
    site.start();
    drop(both(&site, 2));
    damage(&site, TierId::Ssd, 2);
    until("it is found and made good", || {
        site.server().counters().repaired_saus == 1 && site.tier_file(TierId::Ssd, 2) == vec![2; SIZE]
    });
}

/// What is written, cut and moved while it is compared is not taken for damaged.
#[test]
fn writers_beside_it() {
    let mut site = Site::new(64 << 20);
    site.scrub.every = Some(Duration::ZERO);
    site.seal_after = Duration::ZERO;
    site.safe_within = Duration::ZERO;
    site.start();
    let object = both(&site, 2);
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let server = site.server();
            server.open(&object, WRITER);
            let mut n = 0_usize;
            while !end.load(Ordering::Relaxed) {
                n += 1;
                let at = n * 4099 % SIZE;
                server.write(&object, at as u64, &[n as u8; 70_000]).unwrap();
                if n.is_multiple_of(3) {
                    server.sync(&object).unwrap();
                }
                if n.is_multiple_of(17) {
                    server.truncate(&object, (SIZE / 2) as u64).unwrap();
                    server.truncate(&object, SIZE as u64).unwrap();
                }
            }
            server.close(&object, WRITER);
        });
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(Duration::from_millis(5));
        }
        end.store(true, Ordering::Relaxed);
    });
    let counters = site.server().counters();
    assert_eq!((counters.damaged_saus, counters.hopeless_saus), (0, 0));
    until("it is compared in the end", || site.server().counters().scrubbed_bytes > counters.scrubbed_bytes);
}
