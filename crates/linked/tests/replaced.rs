//! Goal: of a file of theirs that was changed here in part nothing is lost that could be kept, when they replace it, unlink it or
//! write to it before our version is there; also over a kill. What cannot be kept is an error, is listed, and is never mixed.
//!
//! Method: a file of several SAUs of which one is changed here and none was read, with the change of theirs made at once, and
//! what follows for each of the four ways in which a file goes.

#![allow(clippy::unwrap_used, reason = "tests")]

mod fixture;

use std::{
    fs::File,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use fixture::{PATIENCE, Site};
use link::Why;
use types::{Errno, SAU_BYTES};

const SAU: usize = SAU_BYTES as usize;
const LEN: usize = 3 * SAU + 4321;

fn bytes(seed: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at / 997) as u8 ^ (at % 251) as u8 ^ seed).collect()
}

/// Theirs with what we wrote.
fn mixed() -> Vec<u8> {
    let mut bytes = bytes(1);
    bytes[SAU + 100..SAU + 105].copy_from_slice(b"hello");
    bytes
}

/// A file of theirs of which we have nothing.
fn site() -> Site {
    let mut site = Site::new();
    site.they_mkdir("d");
    site.they_write("d/f", &bytes(1));
    site.start();
    site.visit_all().unwrap();
    site
}

/// `alone`: nothing but what is written comes here. Returns when their file is kept.
fn change(site: &Site, alone: bool) {
    site.plan.hold_fills(alone);
    site.plan.hold_steps(true);
    site.write_at("d/f", b"hello", (SAU + 100) as u64);
    site.now().mds.sync().unwrap();
    if !alone {
        let ino = site.ino("d/f").unwrap();
        wait("all of it is here", || site.bytes_here(ino) == LEN as u64);
        site.now().mds.sync().unwrap();
    }
}

/// Until `done`.
fn wait(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn kept_aside(site: &Site) {
    site.plan.hold_steps(false);
    site.plan.hold_fills(false);
    site.settle();
    assert_eq!(site.they_have("d/f.onfs-conflict-1"), mixed());
    assert_eq!(site.read("d/f.onfs-conflict-1"), mixed());
    let conflicts = site.linked().conflicts().unwrap();
    assert_eq!(conflicts.len(), 1, "{conflicts:?}");
    assert_eq!(conflicts[0].1.why, Why::BothChanged);
}

fn made_anew(site: &Site) {
    site.plan.hold_steps(false);
    site.plan.hold_fills(false);
    site.settle();
    assert_eq!(site.they_have("d/f"), mixed());
    assert_eq!(site.read("d/f"), mixed());
    assert_eq!(site.linked().conflicts().unwrap(), []);
}

#[test]
fn one_that_is_replaced_is_read_on() {
    let site = site();
    change(&site, true);
    site.they_replace("d/f", b"theirs");
    kept_aside(&site);
    assert_eq!(site.they_have("d/f"), b"theirs");
}

#[test]
fn one_that_is_unlinked_is_read_on() {
    let site = site();
    change(&site, true);
    site.they_remove("d/f");
    made_anew(&site);
}

/// Cut and grown again in place, with other bytes, and another time.
fn truncate(site: &Site) {
    site.they_write("d/f", &bytes(9)[..10]);
}

/// Other bytes of the same length.
fn rewrite(site: &Site) {
    let path = site.theirs().join("d/f");
    File::options().write(true).open(&path).unwrap().write_all_at(&bytes(9), 0).unwrap();
}

/// What was read by nobody is an error, and what we wrote is there; theirs is as they made it.
fn lost_but_for_ours(site: &Site, theirs: &[u8]) {
    site.plan.hold_steps(false);
    site.plan.hold_fills(false);
    wait("it has a name of its own", || {
        let _ = site.visit_all();
        site.ino("d/f.onfs-conflict-1").is_ok()
    });
    let ours = site.ino("d/f.onfs-conflict-1").unwrap();
    let lost = vec![(0, SAU as u64), (2 * SAU as u64, (LEN - 2 * SAU) as u64)];
    wait("its bytes are known for lost", || site.now().ds.lost_ranges(ours, LEN as u64).unwrap() == lost);
    assert_eq!(site.read_at(ours, SAU as u64, SAU).unwrap(), &mixed()[SAU..2 * SAU]);
    assert_eq!(site.read_at(ours, 0, 10), Err(Errno::EIO));
    assert_eq!(site.read_at(ours, 2 * SAU as u64, 10), Err(Errno::EIO));
    assert_eq!(site.read("d/f"), theirs);
    assert_eq!(site.they_have("d/f"), theirs);
    assert_eq!(site.linked().conflicts().unwrap().len(), 1);
}

#[test]
fn one_that_is_cut_in_place_is_lost_where_nobody_read_it() {
    let site = site();
    change(&site, true);
    truncate(&site);
    lost_but_for_ours(&site, &bytes(9)[..10]);
}

#[test]
fn one_that_is_rewritten_in_place_is_lost_where_nobody_read_it() {
    let site = site();
    change(&site, true);
    rewrite(&site);
    lost_but_for_ours(&site, &bytes(9));
}

/// What our tiers have room for is here soon after the change, whatever becomes of theirs.
#[test]
fn what_was_fetched_outlives_a_change_in_place() {
    for theirs in [truncate, rewrite] {
        let site = site();
        change(&site, false);
        theirs(&site);
        kept_aside(&site);
    }
}

/// And a kill, with the change of theirs while nothing runs here.
#[test]
fn what_was_fetched_outlives_a_kill() {
    let replace = |site: &Site| site.they_replace("d/f", b"theirs");
    let ways: [fn(&Site); 3] = [truncate, rewrite, replace];
    for theirs in ways {
        let mut site = site();
        change(&site, false);
        site.kill(theirs);
        kept_aside(&site);
    }
    let mut site = site();
    change(&site, false);
    site.kill(|site| site.they_remove("d/f"));
    made_anew(&site);
}

/// What was changed before a kill and not published is kept from the next start on.
#[test]
fn one_that_was_changed_before_a_kill_is_kept_after_it() {
    let mut site = site();
    change(&site, true);
    site.kill_and_hold();
    wait("it is kept", || site.now().ds.files_kept() == 1);
    site.they_replace("d/f", b"theirs");
    kept_aside(&site);
    let mut site = self::site();
    change(&site, true);
    site.kill_and_hold();
    wait("it is kept", || site.now().ds.files_kept() == 1);
    site.they_remove("d/f");
    made_anew(&site);
}

/// Over a kill nothing can be kept of what nobody read: it is an error and listed, also where no conflict is.
#[test]
fn what_was_not_fetched_before_a_kill_is_listed_as_lost() {
    let mut site = site();
    change(&site, true);
    site.kill(|site| site.they_replace("d/f", b"theirs"));
    lost_but_for_ours(&site, b"theirs");
    let mut site = self::site();
    change(&site, true);
    site.kill(|site| site.they_remove("d/f"));
    wait("it is listed", || {
        let _ = site.visit_all();
        !site.linked().conflicts().unwrap().is_empty()
    });
    let conflicts = site.linked().conflicts().unwrap();
    assert_eq!((conflicts.len(), conflicts[0].1.why), (1, Why::BytesLost));
    let ours = site.ino("d/f").unwrap();
    assert_eq!(site.read_at(ours, SAU as u64, SAU).unwrap(), &mixed()[SAU..2 * SAU]);
    assert_eq!(site.read_at(ours, 0, 10), Err(Errno::EIO));
}

/// Nothing is kept of what is published: a descriptor each is not for ever.
#[test]
fn what_is_published_is_kept_no_more() {
    let site = site();
    change(&site, true);
    assert_eq!(site.now().ds.files_kept(), 1);
    site.plan.hold_steps(false);
    site.plan.hold_fills(false);
    site.settle();
    assert_eq!(site.they_have("d/f"), mixed());
    assert_eq!(site.now().ds.files_kept(), 0);
}
