//! Goal: a file with several names there stays known by one that it has, whichever it loses and by whom.
//!
//! Method: a file with two names, in one directory or in two; one of them goes, here or there; then the file is changed and published
//! with no look at the directory of the other name.

#![allow(clippy::unwrap_used, reason = "tests")]

mod fixture;

use std::time::Instant;

use fixture::Site;
use types::Ino;

/// The file, by its second name.
fn site(second: &str) -> (Site, Ino) {
    let mut site = Site::new();
    site.links_apart = true;
    site.they_mkdir("d");
    site.they_mkdir("e");
    site.they_write("d/f", b"one");
    site.start();
    site.settle();
    site.link("d/f", second);
    site.settle();
    // Named last somewhere else than where it is known.
    let ino = site.ino(second).unwrap();
    (site, ino)
}

fn drain(site: &Site) {
    site.linked().drain(Some(Instant::now() + fixture::PATIENCE), &|| false).unwrap();
}

fn is_published_as(site: &Site, ino: Ino, name: &str) {
    let object = site.open_and_write(ino, b"two");
    site.close(ino, &object);
    drop(object);
    drain(site);
    assert_eq!(site.they_have(name), b"two");
    assert_eq!(site.read(name), b"two");
    assert_eq!(site.linked().conflicts().unwrap(), []);
}

/// Its record went with the name, as if it had been the last: what it had left there was imported beside it as a conflict.
#[test]
fn regression_who_replaces_one_name_leaves_the_other() {
    for second in ["d/l", "e/l"] {
        let (site, ino) = site(second);
        site.write("d/m", b"other");
        site.rename("d/m", "d/f");
        drain(&site);
        is_published_as(&site, ino, second);
        site.settle();
        assert_eq!(site.they_have("d/f"), b"other");
        assert_eq!(site.linked().conflicts().unwrap(), []);
    }
}

#[test]
fn who_removes_one_name_leaves_the_other() {
    for second in ["d/l", "e/l"] {
        let (site, ino) = site(second);
        site.unlink("d/f");
        drain(&site);
        is_published_as(&site, ino, second);
        site.settle();
    }
}

/// It was still known by the name that was gone, and what was changed of it waited.
#[test]
fn regression_they_remove_one_of_two_names() {
    for second in ["d/l", "e/l", "l"] {
        for named_last in [false, true] {
            let (site, ino) = site(second);
            if named_last {
                // Where it was last named says nothing of where it is.
                site.link("d/f", "e/x");
                drain(&site);
                site.unlink("e/x");
                drain(&site);
            }
            let d = site.ino("d").unwrap();
            site.they_remove("d/f");
            site.linked().visit_dir(d).unwrap();
            assert!(site.now().mds.lookup(d, b"f").is_err());
            is_published_as(&site, ino, second);
            site.settle();
        }
    }
}
