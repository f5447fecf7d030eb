//! Goal: a step that was begun, and is not known to be made or not, meets whatever was changed since, on either side: both sides
//! come to agree all the same, and what was written last is kept.
//!
//! Method: one step of each kind, of which the n-th call fails before its effect or after it, or is the last of its process; and
//! before it is tried again one change of each kind, here or there. `FAULTS=all` has each n with each change, otherwise a sample.

#![allow(clippy::unwrap_used, reason = "tests")]

mod fixture;

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use fixture::{Site, compare, faulty::Effect};
use types::Errno;

#[derive(Clone, Copy)]
struct Step {
    name: &'static str,
    before: fn(&Site),
    ours: fn(&Site),
}

#[derive(Clone, Copy)]
struct Meanwhile {
    name: &'static str,
    /// What must be found under some name in the end, on both sides.
    change: fn(&Site) -> Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Before(Errno),
    After(Errno),
    KillBefore,
    KillAfter,
}

const ALL: [How; 4] =
    [How::Before(Errno::EIO), How::After(Errno::ETIMEDOUT), How::KillBefore, How::KillAfter];

impl How {
    fn effect(self) -> Effect {
        match self {
            How::Before(errno) => Effect::Before(errno),
            How::After(errno) => Effect::After(errno),
            How::KillBefore => Effect::DeathBefore,
            How::KillAfter => Effect::DeathAfter,
        }
    }
}

/// What is known not to hold: of a file with several names there a version is written in place, and other changes of the file or
/// its names meanwhile are overwritten, or do not come to rest (S-127); who replaces one of the names there replaces them all here, and a link of ours that is to be
/// made of a file of which they remove all names waits for ever (S-121).
fn is_excepted(step: &Step, meanwhile: &Meanwhile) -> bool {
    let links = step.name.starts_with("link") || step.name == "unlink one of two";
    let replace = meanwhile.name.starts_with("they replace");
    let in_place = step.name == "publish in place" && !matches!(meanwhile.name, "nothing" | "we write");
    let source = meanwhile.name == "they remove the source" || meanwhile.name == "they move the source";
    in_place || (links && (replace || source))
}

/// Until all is applied, or `stop`, which is looked at more often than a drain does.
fn drain(site: &Site, stop: &dyn Fn() -> bool) -> Result<(), Errno> {
    let until = Instant::now() + fixture::PATIENCE;
    loop {
        match site.linked().drain(Some(Instant::now()), stop) {
            Err(Errno::ETIMEDOUT) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            drained => return drained,
        }
    }
}

/// `false`: the step has not so many calls.
fn run(step: &Step, how: How, nth: u64, meanwhile: &Meanwhile) -> bool {
    let mut site = Site::new();
    site.links_apart = true;
    site.start();
    site.they_mkdir("d");
    site.they_mkdir("e");
    (step.before)(&site);
    site.settle();
    site.plan.hold_steps(true);
    (step.ours)(&site);
    site.now().mds.sync().unwrap();
    site.plan.hold_when_met();
    let on_death = site.on_death();
    site.plan.at(nth, how.effect(), Some(on_death));
    site.plan.hold_steps(false);
    let is_met = || site.plan.met().is_some();
    let drained = drain(&site, &is_met);
    if !is_met() {
        site.plan.over();
        assert_eq!(drained, Ok(()), "{}, call {nth}", step.name);
        return false;
    }
    let called = site.plan.met().unwrap_or_default();
    let label = format!("{}, call {nth} ({called}), {how:?}, {}", step.name, meanwhile.name);
    if matches!(how, How::KillBefore | How::KillAfter) {
        let until = Instant::now() + fixture::PATIENCE;
        while !site.plan.is_dead() {
            assert!(Instant::now() < until, "{label}: it lives");
            std::thread::sleep(Duration::from_millis(1));
        }
        site.kill_and_hold();
    }
    let kept = (meanwhile.change)(&site);
    site.plan.hold_steps(false);
    let settled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| site.settle()));
    assert!(settled.is_ok(), "{label}: it does not settle");
    let theirs = compare::theirs(&site.theirs());
    assert!(!theirs.keys().any(|name| name.contains(".onfs-way-")), "{label}: left behind: {theirs:?}");
    let contents: BTreeSet<&[u8]> = theirs.values().filter_map(|one| one.content.as_deref().ok()).collect();
    assert!(kept.is_none_or(|kept| contents.contains(kept.as_bytes())), "{label}: lost: {theirs:#?}");
    true
}

const F: &str = "d/f";

const STEPS: &[Step] = &[
    Step { name: "create", before: |_| (), ours: |site| site.write(F, b"ours") },
    Step {
        name: "create over",
        before: |site| site.they_write(F, b"one"),
        ours: |site| {
            site.write("e/n", b"ours");
            site.rename("e/n", F);
        },
    },
    Step { name: "publish", before: |site| site.they_write(F, b"one"), ours: |site| site.write(F, b"ours") },
    Step {
        name: "publish in place",
        before: |site| {
            site.they_write(F, b"one");
            site.link(F, "d/l");
        },
        ours: |site| site.write(F, b"ours"),
    },
    Step {
        name: "rename",
        before: |site| site.they_write("e/g", b"one"),
        ours: |site| site.rename("e/g", F),
    },
    Step {
        name: "rename over",
        before: |site| {
            site.they_write(F, b"one");
            site.they_write("e/g", b"two");
        },
        ours: |site| site.rename("e/g", F),
    },
    Step {
        name: "exchange",
        before: |site| {
            site.they_write(F, b"one");
            site.they_write("e/g", b"two");
        },
        ours: |site| site.exchange("e/g", F),
    },
    Step {
        name: "rename a directory",
        before: |site| {
            site.they_mkdir("e/g");
            site.they_write("e/g/x", b"one");
        },
        ours: |site| site.rename("e/g", F),
    },
    Step { name: "link", before: |site| site.they_write("e/g", b"one"), ours: |site| site.link("e/g", F) },
    Step {
        name: "link over",
        before: |site| {
            site.they_write(F, b"one");
            site.they_write("e/g", b"two");
        },
        ours: |site| {
            site.unlink(F);
            site.link("e/g", F);
        },
    },
    Step { name: "unlink", before: |site| site.they_write(F, b"one"), ours: |site| site.unlink(F) },
    Step {
        name: "unlink one of two",
        before: |site| {
            site.they_write(F, b"one");
            site.link(F, "e/g");
        },
        ours: |site| site.unlink(F),
    },
    Step { name: "rmdir", before: |site| site.they_mkdir(F), ours: |site| site.rmdir(F) },
    Step { name: "mkdir", before: |_| (), ours: |site| site.mkdir(F) },
    Step { name: "symlink", before: |_| (), ours: |site| site.symlink("nowhere", F) },
    Step { name: "mode", before: |site| site.they_write(F, b"one"), ours: |site| site.chmod(F, 0o600) },
    Step {
        name: "xattr",
        before: |site| site.they_write(F, b"one"),
        ours: |site| site.setxattr(F, "user.a", "value"),
    },
];

fn they_write(site: &Site, path: &str) -> Option<&'static str> {
    let there = fs::symlink_metadata(site.theirs().join(path));
    let usable = site.theirs().join(path).parent().is_some_and(Path::is_dir)
        && there.as_ref().map_or(true, fs::Metadata::is_file);
    usable.then(|| {
        site.they_write(path, b"theirs");
        "theirs"
    })
}

fn they_replace(site: &Site, path: &str) -> Option<&'static str> {
    let there = fs::symlink_metadata(site.theirs().join(path)).is_ok_and(|found| found.is_dir());
    let usable = site.theirs().join(path).parent().is_some_and(Path::is_dir) && !there;
    usable.then(|| {
        site.they_replace(path, b"theirs");
        "theirs"
    })
}

fn they_rename(site: &Site, from: &str, to: &str) -> Option<&'static str> {
    let _ = fs::rename(site.theirs().join(from), site.theirs().join(to));
    None
}

fn they_remove(site: &Site, path: &str) -> Option<&'static str> {
    let at = site.theirs().join(path);
    let _ = fs::remove_file(&at).or_else(|_| fs::remove_dir_all(&at));
    None
}

fn is_file(site: &Site, path: &str) -> bool {
    site.ino(path).is_ok_and(|ino| site.attr(ino).kind == types::FileKind::Regular)
}

fn we_remove(site: &Site, path: &str) -> Option<&'static str> {
    let below: Vec<_> = site.walk().into_iter().filter(|(at, ..)| Path::new(at).starts_with(path)).collect();
    for (at, _, kind) in below.into_iter().rev() {
        if kind == types::FileKind::Directory { site.rmdir(&at) } else { site.unlink(&at) }
    }
    None
}

fn we_rename(site: &Site, from: &str, to: &str) -> Option<&'static str> {
    if site.ino(from).is_ok() {
        site.rename(from, to);
    }
    None
}

fn we_write(site: &Site, path: &str) -> Option<&'static str> {
    let may = site.ino(path).is_err() || is_file(site, path);
    may.then(|| {
        site.write(path, b"ours again");
        "ours again"
    })
}

const MEANWHILE: &[Meanwhile] = &[
    Meanwhile { name: "nothing", change: |_| None },
    Meanwhile { name: "they write", change: |site| they_write(site, F) },
    Meanwhile { name: "they replace", change: |site| they_replace(site, F) },
    Meanwhile { name: "they remove", change: |site| they_remove(site, F) },
    Meanwhile { name: "they rename", change: |site| they_rename(site, F, "d/x") },
    Meanwhile { name: "they move", change: |site| they_rename(site, F, "e/x") },
    Meanwhile { name: "they write the source", change: |site| they_write(site, "e/g") },
    Meanwhile { name: "they replace the source", change: |site| they_replace(site, "e/g") },
    Meanwhile { name: "they remove the source", change: |site| they_remove(site, "e/g") },
    Meanwhile { name: "they move the source", change: |site| they_rename(site, "e/g", "y") },
    Meanwhile { name: "they rename the directory", change: |site| they_rename(site, "d", "dd") },
    Meanwhile { name: "they remove the directory", change: |site| they_remove(site, "d") },
    Meanwhile {
        name: "they make a directory",
        change: |site| {
            they_remove(site, F);
            site.they_mkdir(F);
            site.they_write("d/f/theirs", b"theirs");
            Some("theirs")
        },
    },
    Meanwhile { name: "we remove", change: |site| we_remove(site, F) },
    Meanwhile { name: "we rename", change: |site| we_rename(site, F, "e/x") },
    Meanwhile { name: "we write", change: |site| we_write(site, F) },
    Meanwhile {
        name: "we replace",
        change: |site| {
            let may = site.ino(F).is_err() || is_file(site, F);
            may.then(|| {
                site.write("m", b"ours again");
                site.rename("m", F);
                "ours again"
            })
        },
    },
    Meanwhile {
        name: "we make it anew",
        change: |site| {
            we_remove(site, F);
            we_write(site, F)
        },
    },
    Meanwhile { name: "we rename the directory", change: |site| we_rename(site, "d", "dd") },
    Meanwhile { name: "we remove the directory", change: |site| we_remove(site, "d") },
    Meanwhile {
        name: "we link",
        change: |site| {
            if is_file(site, F) {
                site.link(F, "e/z");
            }
            None
        },
    },
    Meanwhile { name: "we remove the source", change: |site| we_remove(site, "e/g") },
];

fn all(step: &Step) {
    if let Some(one) = std::env::var("FAULTS").ok().filter(|value| value.contains(':')) {
        let parts: Vec<usize> = one.split(':').map(|part| part.parse().unwrap()).collect();
        run(step, ALL[parts[0]], parts[1] as u64, &MEANWHILE[parts[2]]);
        return;
    }
    let all = std::env::var_os("FAULTS").is_some_and(|value| value == "all");
    std::thread::scope(|scope| {
        for (at, how) in ALL.into_iter().enumerate() {
            scope.spawn(move || {
                let changes = MEANWHILE.iter().enumerate();
                for (number, meanwhile) in changes.filter(|(_, one)| !is_excepted(step, one)) {
                    let mut nth = if all { 1 } else { 1 + ((at + number) % 5) as u64 };
                    while run(step, how, nth, meanwhile) {
                        nth += if all { 1 } else { 5 };
                    }
                }
            });
        }
    });
}

macro_rules! steps {
    ($($name:ident $number:literal)*) => {$(
        #[test]
        fn $name() {
            all(&STEPS[$number]);
        }
    )*};
}

/// A version got its name, and that was not told; it was taken while somebody wrote, and passed for what was written after it.
#[test]
fn regression_what_is_written_after_a_version_is_published() {
    let mut site = Site::new();
    site.they_write("f", b"one");
    site.start();
    site.settle();
    let ino = site.ino("f").unwrap();
    let object = site.open_and_write(ino, b"two");
    site.plan.hold_when_met();
    site.plan.after("rename", Errno::ETIMEDOUT);
    let is_met = || site.plan.met().is_some();
    let _ = drain(&site, &is_met);
    assert!(is_met() && site.they_have("f") == b"two");
    site.write_on(&object, b"end");
    site.plan.hold_steps(false);
    // It ends with the step, or not at all: another version follows, and nobody asks for it.
    let _ = site.linked().drain(Some(Instant::now() + Duration::from_millis(500)), &|| false);
    site.close(ino, &object);
    drop(object);
    site.settle();
    assert_eq!(site.they_have("f"), b"end");
}

/// Whatever was to be taken was not where it had been, which passed for its being gone.
#[test]
fn regression_what_moves_with_its_directory_before_it_is_taken_is_seen() {
    for step in STEPS.iter().filter(|step| matches!(step.name, "unlink" | "rmdir")) {
        let mut site = Site::new();
        site.they_mkdir("d");
        (step.before)(&site);
        site.start();
        site.settle();
        site.plan.hold_steps(true);
        (step.ours)(&site);
        they_rename(&site, "d", "dd");
        site.plan.hold_steps(false);
        assert_eq!(drain(&site, &|| false), Ok(()), "{}", step.name);
        site.settle();
    }
}

steps! {
    create 0
    create_over 1
    publish 2
    publish_in_place 3
    rename 4
    rename_over 5
    exchange 6
    rename_a_directory 7
    link 8
    link_over 9
    unlink 10
    unlink_one_of_two 11
    rmdir 12
    mkdir 13
    symlink 14
    mode 15
    xattr 16
}
