//! Goal: whatever call to the back end goes wrong, and however, both sides come to agree and no bytes are lost.
//!
//! Method: scenarios of changes here and there, each run once for each of its calls to the back end: the n-th call fails
//! before its effect, fails after it, or is the last that the process makes (a kill, or a power cut of this machine, which
//! also takes the memory tier and what the metadata had not synced). Then the trouble is over, all is looked at and applied, and both
//! sides are compared; and once more after a restart. `FAULTS=all` runs each n, otherwise a sample of the later ones.

#![allow(clippy::unwrap_used, reason = "tests")]

mod fixture;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use fixture::{Site, compare, faulty::Effect};
use types::Errno;

struct Scenario {
    name: &'static str,
    /// What both sides agree on at the beginning.
    before: fn(&Site),
    ours: fn(&Site),
    theirs: fn(&Site),
    /// Contents that must be found under some name in the end, on both sides.
    kept: &'static [&'static str],
    /// All paths at the end, if there is only one outcome.
    paths: Option<&'static [&'static str]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Before(Errno),
    After(Errno),
    KillBefore,
    KillAfter,
    CutBefore,
    CutAfter,
}

impl How {
    fn effect(self) -> Effect {
        match self {
            How::Before(errno) => Effect::Before(errno),
            How::After(errno) => Effect::After(errno),
            How::KillBefore | How::CutBefore => Effect::DeathBefore,
            How::KillAfter | How::CutAfter => Effect::DeathAfter,
        }
    }
    fn is_cut(self) -> bool {
        matches!(self, How::CutBefore | How::CutAfter)
    }
}

const ALL: [How; 8] = [
    How::Before(Errno::EIO),
    How::Before(Errno::ENOSPC),
    How::Before(Errno::ESTALE),
    How::After(Errno::ETIMEDOUT),
    How::KillBefore,
    How::KillAfter,
    How::CutBefore,
    How::CutAfter,
];

/// `false`: there were not so many calls.
fn run(scenario: &Scenario, how: How, nth: u64) -> bool {
    let mut site = Site::new();
    site.start();
    (scenario.before)(&site);
    site.settle();
    site.plan.hold_steps(true);
    (scenario.ours)(&site);
    site.now().mds.sync().unwrap();
    (scenario.theirs)(&site);
    let on_death = site.on_death();
    site.plan.at(nth, how.effect(), Some(on_death));
    site.plan.hold_steps(false);
    let label = format!("{}, call {nth}, {how:?}", scenario.name);
    // As much as it takes for the calls to be made; what fails is not of interest now.
    let until = Instant::now() + fixture::PATIENCE;
    let mut rounds = 0u32;
    while site.plan.met().is_none() && !site.plan.is_dead() && rounds < 3 {
        let _ = site.visit_all();
        let soon = Instant::now() + Duration::from_millis(500);
        let drained = site.linked().drain(Some(soon), &|| site.plan.is_dead());
        // A machine that has no time has made no call yet.
        rounds += u32::from(drained != Err(Errno::ETIMEDOUT));
        assert!(Instant::now() < until, "{label}");
    }
    let met = site.plan.met();
    if met.is_none() {
        site.plan.over();
        check(&site, scenario, &label);
        return false;
    }
    let label = format!("{label} ({})", met.unwrap_or_default());
    if site.plan.is_dead() {
        site.revive(how.is_cut().then_some(nth));
    }
    check(&site, scenario, &label);
    site.restart();
    check(&site, scenario, &format!("{label}, after a restart"));
    true
}

fn check(site: &Site, scenario: &Scenario, label: &str) {
    let settled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| site.settle()));
    assert!(settled.is_ok(), "{label}: it does not settle");
    let theirs = compare::theirs(&site.theirs());
    let names: Vec<&str> = theirs.keys().map(String::as_str).collect();
    assert!(!names.iter().any(|name| name.contains(".onfs-way-")), "{label}: left behind: {names:?}");
    let contents: BTreeSet<&[u8]> = theirs.values().filter_map(|one| one.content.as_deref().ok()).collect();
    for kept in scenario.kept {
        assert!(contents.contains(kept.as_bytes()), "{label}: lost: {kept}; {theirs:#?}");
    }
    if let Some(paths) = scenario.paths {
        assert_eq!(names, paths, "{label}");
        assert_eq!(site.linked().conflicts().unwrap(), [], "{label}");
    }
    assert_eq!(site.linked().status().pending, 0, "{label}");
}

/// Calls that all troubles meet; of the later ones each meets some, unless all are wanted.
const FIRST: u64 = 4;

fn all(scenario: &Scenario) {
    // One alone: `FAULTS=4:17` is the seventeenth call with the fifth trouble.
    if let Some((how, nth)) = std::env::var("FAULTS").ok().as_deref().and_then(|value| value.split_once(':'))
    {
        run(scenario, ALL[how.parse::<usize>().unwrap()], nth.parse().unwrap());
        return;
    }
    let step = if std::env::var_os("FAULTS").is_some_and(|value| value == "all") { 1 } else { 5 };
    std::thread::scope(|scope| {
        for (at, how) in ALL.into_iter().enumerate() {
            scope.spawn(move || {
                let mut nth = 1;
                while run(scenario, how, nth) {
                    nth += if nth < FIRST { 1 } else { step };
                    if nth == FIRST + step {
                        nth = FIRST + 1 + at as u64 % step;
                    }
                }
                assert!(nth > FIRST, "{}: only {nth} calls", scenario.name);
            });
        }
    });
}

fn nothing(_: &Site) {}

macro_rules! scenarios {
    ($($name:ident { $($field:ident: $value:expr),* $(,)? })*) => {$(
        #[test]
        fn $name() {
            all(&Scenario { name: stringify!($name), $($field: $value),* });
        }
    )*};
}

scenarios! {
    a_file_is_made_and_written {
        before: nothing,
        ours: |site| {
            site.mkdir("d");
            site.write("d/f", b"one");
            site.fsync("d/f");
        },
        theirs: nothing,
        kept: &["one"],
        paths: Some(&["d", "d/f"]),
    }
    a_file_is_overwritten {
        before: |site| site.they_write("f", b"one"),
        ours: |site| {
            site.write("f", b"two, longer");
            site.fsync("f");
        },
        theirs: nothing,
        kept: &["two, longer"],
        paths: Some(&["f"]),
    }
    a_file_is_renamed_over_another {
        before: |site| {
            site.they_write("f", b"one");
            site.they_write("g", b"other");
        },
        ours: |site| {
            site.write("new", b"two");
            site.fsync("new");
            site.rename("new", "f");
            site.rename("g", "h");
        },
        theirs: nothing,
        kept: &["two", "other"],
        paths: Some(&["f", "h"]),
    }
    a_directory_with_pending_content_is_renamed {
        before: |site| {
            site.they_mkdir("d/below");
            site.they_write("d/f", b"one");
        },
        ours: |site| {
            site.write("d/f", b"two");
            site.write("d/below/new", b"three");
            site.fsync("d/f");
            site.fsync("d/below/new");
            site.rename("d", "e");
            site.mkdir("d");
            site.write("d/again", b"four");
            site.fsync("d/again");
        },
        theirs: nothing,
        kept: &["two", "three", "four"],
        paths: Some(&["d", "d/again", "e", "e/below", "e/below/new", "e/f"]),
    }
    things_are_removed {
        before: |site| {
            site.they_mkdir("d/below");
            site.they_write("d/below/f", b"one");
            site.they_write("g", b"two");
        },
        ours: |site| {
            site.unlink("d/below/f");
            site.rmdir("d/below");
            site.unlink("g");
            site.write("g", b"three");
            site.fsync("g");
        },
        theirs: nothing,
        kept: &["three"],
        paths: Some(&["d", "g"]),
    }
    names_are_linked {
        before: |site| site.they_write("f", b"one"),
        ours: |site| {
            site.link("f", "g");
            site.write("h", b"two");
            site.fsync("h");
            site.link("h", "i");
            site.rename("h", "k");
        },
        theirs: nothing,
        kept: &["one", "two"],
        paths: Some(&["f", "g", "i", "k"]),
    }
    a_file_with_two_names_is_written {
        before: |site| {
            site.they_write("f", b"one");
            site.link("f", "g");
        },
        ours: |site| {
            site.write("g", b"two");
            site.fsync("g");
            site.unlink("f");
        },
        theirs: nothing,
        kept: &["two"],
        paths: Some(&["g"]),
    }
    attributes_change {
        before: |site| {
            site.they_mkdir("d");
            site.they_write("f", b"one");
        },
        ours: |site| {
            site.chmod("f", 0o600);
            site.chown("f", 1000);
            site.setxattr("f", "user.a", "value");
            site.chmod("d", 0o700);
            site.setxattr("d", "user.b", "other");
        },
        theirs: nothing,
        kept: &["one"],
        paths: Some(&["d", "f"]),
    }
    links_and_special_files_are_made {
        before: |site| site.they_write("f", b"one"),
        ours: |site| {
            site.symlink("f", "s");
            site.fifo("p");
            site.unlink("f");
            site.symlink("nowhere", "f");
        },
        theirs: nothing,
        kept: &["nowhere"],
        paths: Some(&["f", "p", "s"]),
    }
    two_names_are_exchanged {
        before: |site| {
            site.they_mkdir("d");
            site.they_write("d/f", b"one");
            site.they_write("g", b"two");
            site.they_mkdir("e");
        },
        ours: |site| {
            site.exchange("d/f", "g");
            site.exchange("d", "e");
            site.write("g", b"three");
            site.fsync("g");
        },
        theirs: nothing,
        kept: &["two", "three"],
        paths: Some(&["d", "e", "e/f", "g"]),
    }
    theirs_are_imported {
        before: |site| {
            site.they_mkdir("d");
            site.they_write("d/changed", b"1");
            site.they_write("d/replaced", b"2");
            site.they_write("d/removed", b"3");
            site.they_write("d/renamed", b"4");
        },
        ours: nothing,
        theirs: |site| {
            site.they_write("d/changed", b"1, changed");
            site.they_replace("d/replaced", b"2, replaced");
            site.they_remove("d/removed");
            site.they_rename("d/renamed", "d/moved");
            site.they_write("d/new", b"5");
            site.they_mkdir("e");
            site.they_write("e/f", b"6");
        },
        kept: &["1, changed", "2, replaced", "4", "5", "6"],
        paths: Some(&["d", "d/changed", "d/moved", "d/new", "d/replaced", "e", "e/f"]),
    }
    both_change_apart {
        before: |site| {
            site.they_write("f", b"1");
            site.they_write("g", b"2");
        },
        ours: |site| {
            site.write("f", b"1, ours");
            site.fsync("f");
            site.write("h", b"3");
            site.fsync("h");
        },
        theirs: |site| {
            site.they_replace("g", b"2, theirs");
            site.they_write("i", b"4");
        },
        kept: &["1, ours", "2, theirs", "3", "4"],
        paths: Some(&["f", "g", "h", "i"]),
    }
    both_change_one_file {
        before: |site| {
            site.they_write("f", b"1");
            site.they_write("g", b"2");
        },
        ours: |site| {
            site.write("f", b"1, ours");
            site.fsync("f");
            site.write("g", b"2, ours");
            site.fsync("g");
            site.write("h", b"3, ours");
            site.fsync("h");
        },
        theirs: |site| {
            site.they_write("f", b"1, theirs");
            site.they_replace("g", b"2, theirs");
            site.they_write("h", b"3, theirs");
        },
        kept: &["1, ours", "1, theirs", "2, ours", "2, theirs", "3, ours", "3, theirs"],
        paths: None,
    }
    deleted_against_changed {
        before: |site| {
            site.they_write("f", b"1");
            site.they_write("g", b"2");
            site.they_mkdir("d");
            site.they_write("d/h", b"3");
            site.they_write("d/i", b"4");
        },
        ours: |site| {
            site.unlink("f");
            site.write("g", b"2, ours");
            site.fsync("g");
            site.write("d/h", b"3, ours");
            site.fsync("d/h");
        },
        theirs: |site| {
            site.they_write("f", b"1, theirs");
            site.they_remove("g");
            site.they_remove("d/h");
            site.they_remove("d/i");
            std::fs::remove_dir(site.theirs().join("d")).unwrap();
        },
        kept: &["1, theirs", "2, ours", "3, ours"],
        paths: None,
    }
    renamed_over_what_they_changed {
        before: |site| {
            site.they_write("f", b"1");
            site.they_write("g", b"2");
        },
        ours: |site| {
            site.rename("g", "f");
        },
        theirs: |site| site.they_write("f", b"1, theirs"),
        kept: &["1, theirs", "2"],
        paths: None,
    }
}
