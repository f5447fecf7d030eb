//! Goal: a back end in trouble costs nothing that we have. What is cached is read on, the rest fails, what is changed is kept,
//! nothing is taken for deleted, `status` says what is wrong, and when the trouble is over all is applied.
//!
//! Method: each trouble made in the linked directory itself, or at every call to it, under files of which one is cached, one was
//! never read, and others are changed meanwhile.

#![allow(clippy::unwrap_used, reason = "tests")]

mod fixture;

use std::fs;

use fixture::{PATIENCE, Site};
use types::Errno;

fn site() -> Site {
    let mut site = Site::new();
    site.they_mkdir("d");
    site.they_write("cached", b"cached");
    site.they_write("unread", b"unread");
    site.they_write("doomed", b"doomed");
    site.they_write("d/f", b"one");
    site.start();
    site.settle();
    // Comparing read everything; a change of theirs makes it unread again.
    site.they_write("unread", b"unread, and changed");
    site.visit_all().unwrap();
    site.write("cached", b"cached, and ours");
    site.fsync("cached");
    site
}

fn in_trouble(site: &Site) {
    let _ = site.visit_all();
    assert_eq!(site.read("cached"), b"cached, and ours");
    assert_eq!(site.try_read("unread"), Err(Errno::EIO));
    site.write("d/f", b"two");
    site.write("new", b"new");
    site.rename("new", "d/new");
    site.unlink("doomed");
    let _ = site.visit_all();
    let mut names: Vec<String> = site.walk().into_iter().map(|(path, ..)| path).collect();
    names.sort();
    assert_eq!(names, ["", "cached", "d", "d/f", "d/new", "unread"]);
    assert!(site.linked().drain(Some(std::time::Instant::now()), &|| false).is_err());
    assert!(site.linked().status().pending >= 4);
}

fn over(site: &Site) {
    site.settle();
    assert_eq!(site.their_names(), ["cached", "d", "d/f", "d/new", "unread"]);
    assert_eq!(site.they_have("cached"), b"cached, and ours");
    assert_eq!(site.they_have("d/f"), b"two");
    assert_eq!(site.read("unread"), b"unread, and changed");
    assert_eq!(site.linked().status().trouble, None);
    assert_eq!(site.linked().conflicts().unwrap(), []);
}

fn trouble(site: &Site) -> String {
    let _ = site.linked().look_at_root();
    site.linked().status().trouble.unwrap().what
}

#[test]
fn every_call_fails_for_a_while() {
    for errno in [Errno::EIO, Errno::ESTALE, Errno::EACCES, Errno::ETIMEDOUT] {
        let site = site();
        site.plan.always(Some(errno));
        in_trouble(&site);
        assert!(trouble(&site).contains("cannot be reached"));
        site.plan.always(None);
        over(&site);
    }
}

#[test]
fn the_directory_is_gone_for_a_while() {
    let mut site = site();
    fs::rename(site.theirs(), site.beside("moved")).unwrap();
    in_trouble(&site);
    assert!(trouble(&site).contains("cannot be reached"));
    fs::rename(site.beside("moved"), site.theirs()).unwrap();
    over(&site);
    site.restart();
    over(&site);
}

#[test]
fn an_empty_directory_is_in_its_place() {
    let site = site();
    fs::rename(site.theirs(), site.beside("moved")).unwrap();
    fs::create_dir(site.theirs()).unwrap();
    in_trouble(&site);
    assert!(trouble(&site).contains("an empty directory is in its place"));
    assert_eq!(site.their_names(), [""; 0], "nothing is written there");
    fs::remove_dir(site.theirs()).unwrap();
    fs::rename(site.beside("moved"), site.theirs()).unwrap();
    over(&site);
}

#[test]
fn another_directory_is_in_its_place_over_a_kill() {
    let mut site = site();
    fs::rename(site.theirs(), site.beside("moved")).unwrap();
    site.they_mkdir("d");
    site.they_write("cached", b"somebody else's");
    in_trouble(&site);
    site.revive(None);
    assert_eq!(site.read("cached"), b"cached, and ours");
    assert!(trouble(&site).contains("another directory is in its place"));
    assert_eq!(site.their_names(), ["cached", "d"]);
    assert_eq!(site.they_have("cached"), b"somebody else's");
    fs::remove_dir_all(site.theirs()).unwrap();
    fs::rename(site.beside("moved"), site.theirs()).unwrap();
    over(&site);
}

/// A directory of which a listing above found that its names changed is to be listed again. Until it can be, what we have of it
/// is shown: it was as if nobody had ever listed it, and all below was EIO.
#[test]
fn regression_a_directory_to_be_listed_again_is_shown_in_trouble() {
    let mut site = Site::new();
    site.they_mkdir("d/below");
    site.they_write("d/below/f", b"one");
    site.start();
    site.settle();
    site.they_write("d/below/g", b"two");
    // The listing of what is above sees it; nobody comes to it before the trouble.
    site.they_write("d/h", b"three");
    let d = site.ino("d").unwrap();
    site.linked().visit_dir(d).unwrap();
    site.plan.always(Some(Errno::EIO));
    assert_eq!(site.ino("d/below/f").map(drop), Ok(()));
    site.plan.always(None);
    site.settle();
    assert_eq!(site.read("d/below/g"), b"two");
}

/// A drain does not wait for what does not come: it ends when nothing was done for the deadline of a call.
#[test]
fn a_drain_ends_without_the_back_end() {
    let mut site = Site::new();
    site.settings.deadline = std::time::Duration::from_millis(300);
    site.start();
    site.write("f", b"one");
    site.plan.always(Some(Errno::EIO));
    let begun = std::time::Instant::now();
    assert_eq!(site.linked().drain(None, &|| false), Err(Errno::EIO));
    assert!(begun.elapsed() < PATIENCE);
    site.plan.always(None);
    site.settle();
    assert_eq!(site.they_have("f"), b"one");
}

/// It ended at the first refusal, with all that had not been applied by then.
#[test]
fn regression_a_drain_goes_on_beside_what_is_refused() {
    let mut site = Site::new();
    site.settings.held_retry = std::time::Duration::from_secs(3600);
    site.they_mkdir("d");
    site.start();
    site.settle();
    let names: Vec<String> = (0..20).map(|n| format!("d/f{n:02}")).collect();
    site.plan.hold_steps(true);
    names.iter().for_each(|name| site.write(name, name.as_bytes()));
    // The first step of all: nothing else was applied when it is refused.
    site.plan.fail("begin", Some(Errno::EACCES), 1);
    site.plan.hold_steps(false);
    assert_eq!(site.linked().drain(None, &|| false), Err(Errno::EACCES));
    assert_eq!(site.linked().status().pending, 1, "the rest is there");
    site.settle();
    assert!(names.iter().all(|name| site.they_have(name) == name.as_bytes()));
}

/// A look at the version that just got its name failed, and nothing of the file counted as published until the next mount.
#[test]
fn regression_a_version_counts_though_it_cannot_be_looked_at() {
    let mut site = Site::new();
    site.start();
    site.write("f", b"one");
    site.plan.fail("look at source", Some(Errno::EIO), u64::MAX);
    assert_eq!(site.linked().drain(None, &|| false), Ok(()));
    let ino = site.ino("f").unwrap();
    let until = std::time::Instant::now() + PATIENCE;
    while !site.is_published(ino) {
        assert!(std::time::Instant::now() < until, "it never counts as published");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    site.plan.fail("look at source", None, 0);
    site.settle();
}

/// What was made there, and could not be made durable there, was found made by the next try, and counted: a loss of power at the
/// site took it back.
#[test]
fn regression_a_step_counts_when_it_is_durable() {
    let site = site();
    site.mkdir("g");
    site.write("gone", b"gone");
    site.settle();
    site.plan.fail("sync", Some(Errno::EIO), u64::MAX);
    site.write("d/f", b"two");
    site.write("d/new", b"new");
    site.unlink("doomed");
    site.rename("gone", "g/here");
    site.chmod("cached", 0o600);
    site.setxattr("unread", "user.a", "b");
    let until = std::time::Instant::now() + PATIENCE;
    let here = site.theirs().join("g/here");
    // It is only not durable.
    while !here.exists() {
        assert!(std::time::Instant::now() < until, "it is not made");
        let soon = std::time::Instant::now() + std::time::Duration::from_millis(500);
        assert_eq!(site.linked().drain(Some(soon), &|| false), Err(Errno::ETIMEDOUT));
    }
    assert_eq!(site.linked().status().pending, 6);
    assert_eq!(site.they_have("g/here"), b"gone");
    site.plan.fail("sync", None, 0);
    site.settle();
    assert_eq!(site.linked().status().pending, 0);
    assert_eq!(site.read("d/f"), b"two");
    assert_eq!(site.linked().conflicts().unwrap(), []);
}
