//! Goal: what is asked for and not waited for is done for every file, however many there are. Method: more files than the
//! tiering core takes requests, asked for while no movement can end, then looked at when the line is empty.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{Object, ObjectHint, OpenKind};
use harness::{Site, ino};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tier::ObjectPolicy;
use types::TierId;

const WRITER: OpenKind = OpenKind { read: false, write: true };
const PATIENCE: Duration = Duration::from_secs(120);
/// More than `tier::Settings::requests_max`.
const MANY: u64 = 1100;

fn hint(site: &Site, size: u64, written: bool) -> ObjectHint {
    ObjectHint { size, written, stale_live: false, memory_generation: site.generation(), linked: None }
}

fn write_file(site: &Site, n: u64) -> Arc<Object> {
    let object = site.server().attach(ino(n), &hint(site, 0, false)).unwrap();
    site.server().open(&object, WRITER);
    site.server().write(&object, 0, &[n as u8; 4096]).unwrap();
    site.server().close(&object, WRITER);
    object
}

fn until_the_line_is_empty(site: &Site) {
    let end = Instant::now() + PATIENCE;
    while site.server().in_line() > 0 {
        assert!(Instant::now() < end, "{} are left", site.server().in_line());
        std::thread::yield_now();
    }
}

fn held_in(site: &Site, n: u64, tier: TierId) -> bool {
    let object = site.server().attach(ino(n), &hint(site, 4096, true)).unwrap();
    site.server().report(&object).saus[tier.index()] == 1
}

#[test]
fn regression_more_moves_than_the_core_takes_are_all_done() {
    let mut site = Site::new(256 << 20);
    site.start();
    (2..MANY + 2).for_each(|n| drop(write_file(&site, n)));
    let gate = site.gate.clone();
    {
        let _no_movement_ends = gate.lock().unwrap();
        for n in 2..MANY + 2 {
            site.server().migrate_later(ino(n), TierId::Nearline).unwrap();
        }
        assert_eq!(site.server().in_line(), MANY);
    }
    until_the_line_is_empty(&site);
    let left: Vec<u64> = (2..MANY + 2).filter(|n| !held_in(&site, *n, TierId::Nearline)).collect();
    assert_eq!(left, Vec::<u64>::new());
}

#[test]
fn regression_a_list_to_fetch_is_not_forgotten_when_its_files_are_in_the_slowest_tier_alone() {
    // The core does not remember such files unless somebody uses them, and skipped all but the first.
    let mut site = Site::new(256 << 20);
    site.start();
    let files = 2..102_u64;
    for n in files.clone() {
        drop(write_file(&site, n));
        site.server().migrate(ino(n), TierId::Nearline, None).unwrap();
    }
    // What waits for a sync is in use until then.
    site.restart();
    let list: Vec<_> = files.clone().map(ino).collect();
    site.server().prefetch_later(&list).unwrap();
    until_the_line_is_empty(&site);
    let left: Vec<u64> = files.filter(|n| !held_in(&site, *n, TierId::Memory)).collect();
    assert_eq!(left, Vec::<u64>::new());
}

#[test]
fn a_flush_that_nobody_waits_for_begins_and_leaves_what_is_transient() {
    let mut site = Site::new(64 << 20);
    site.start();
    let objects: Vec<_> = (2..6).map(|n| write_file(&site, n)).collect();
    let transient = write_file(&site, 6);
    let policy = ObjectPolicy { transient: true, ..ObjectPolicy::default() };
    site.server().set_policy(&transient, policy);
    let risk = |object: &Object| site.server().report(object).at_risk;
    let gate = site.gate.clone();
    {
        let _no_copy_ends = gate.lock().unwrap();
        let mut unsaved = site.server().unsaved();
        unsaved.sort_unstable();
        assert_eq!(unsaved, (2..6).map(ino).collect::<Vec<_>>());
        assert!(objects.iter().all(|object| site.server().flush_later(object).unwrap()));
        assert!(!site.server().flush_later(&transient).unwrap());
        assert_eq!(site.server().in_line(), 4);
    }
    until_the_line_is_empty(&site);
    assert!(objects.iter().all(|object| risk(object) == 0));
    assert_eq!(risk(&transient), 4096);
    assert!(!site.server().flush_later(&objects[0]).unwrap(), "nothing is left to do");
}
