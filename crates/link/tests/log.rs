//! Goal: I-LINK-4 to 8. Method: random work on a small file system, fed to the log; its steps are done in a back end in any order,
//! told late, fail before or after they had effect, and the process dies at any moment; the model checks each name of the
//! back end after each step. A seed reproduces a run.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod model;
mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use link::*;
use model::*;
use types::{Errno, FileKind, Ino, Timestamp};

fn place(world: &mut World) -> Place {
    let dirs = world.dirs();
    let dir = world.random.pick(&dirs).unwrap();
    Place { dir, name: vec![b'a' + world.random.below(4) as u8] }
}

fn some_file(world: &mut World) -> Option<Ino> {
    let files = world.inodes.iter().filter(|(_, i)| i.kind == FileKind::Regular).map(|(ino, _)| *ino);
    let files: Vec<Ino> = files.collect();
    world.random.pick(&files)
}

fn change(world: &mut World) {
    let (a, b) = (place(world), place(world));
    match world.random.below(22) {
        0..4 => {
            let writing = world.random.chance(50);
            world.create(a, FileKind::Regular, writing);
        }
        4..6 => world.create(a, FileKind::Directory, false),
        6 => world.create(a, FileKind::Symlink, false),
        7..10 => drop(some_file(world).map(|ino| world.write(ino))),
        10..13 => drop(some_file(world).map(|ino| world.publish(ino))),
        13 => drop(some_file(world).map(|ino| world.set_attr(ino))),
        14 => drop(some_file(world).map(|ino| world.set_xattr(ino))),
        15 => drop(some_file(world).map(|ino| world.link(ino, a))),
        16..18 => drop(world.remove(&a)),
        18..21 => world.rename(a, b),
        _ => world.exchange(a, b),
    }
    world.commit();
    if world.flights.is_empty() && world.done.is_empty() {
        world.check_size();
    }
}

fn turn(world: &mut World) {
    match world.random.below(10) {
        0..3 => {
            let entries = world.ready(4);
            world.flights.extend(entries);
        }
        3..6 if !world.flights.is_empty() => {
            let n = world.random.below(world.flights.len());
            let entry = world.flights.swap_remove(n);
            match world.random.below(10) {
                0 => world.log.failed(world.now, entry.ino, Trouble::Later),
                1 if !entry.again => {
                    world.log.failed(world.now, entry.ino, Trouble::Refused(Errno::ENOSPC));
                }
                2 => {
                    let done = world.execute(&entry);
                    world.log.failed(world.now, entry.ino, done.err().unwrap_or(Trouble::Later));
                }
                _ => match world.execute(&entry) {
                    Ok(()) => world.done.push(entry.ino),
                    Err(trouble) => world.log.failed(world.now, entry.ino, trouble),
                },
            }
        }
        6..9 if !world.done.is_empty() => {
            let n = world.random.below(world.done.len());
            let ino = world.done.swap_remove(n);
            world.tell(ino);
        }
        _ => world.now.sec += 1,
    }
    if world.random.chance(2) {
        world.crash();
    }
}

fn finish(world: &mut World) {
    while let Some(ino) = world.done.pop() {
        world.tell(ino);
    }
    world.doomed.clear();
    publish_all(world);
    world.now.sec += 1000;
    world.drain();
    world.check_size();
    world.check_equal();
}

fn publish_all(world: &mut World) {
    for ino in world.inodes.keys().copied().collect::<Vec<_>>() {
        if world.inodes[&ino].kind == FileKind::Regular && world.log.get(ino).is_some() {
            world.publish(ino);
        }
    }
    world.commit();
}

fn run(seed: u64) -> World {
    let mut world = World::new(seed);
    let (changes, turns) = (1 + world.random.below(60), world.random.below(100));
    for _ in 0..changes {
        change(&mut world);
        while world.random.chance(turns) {
            turn(&mut world);
        }
    }
    finish(&mut world);
    world
}

/// As many seeds as `LINK_SEEDS` says, from `LINK_FIRST`.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let setting = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let first = setting("LINK_FIRST", 0);
    first..first + setting("LINK_SEEDS", default)
}

struct Telling(u64);

impl Drop for Telling {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again: LINK_FIRST={} LINK_SEEDS=1 cargo test -p link --test log", self.0);
        }
    }
}

#[test]
fn any_order_any_failure_and_any_crash_end_in_our_namespace() {
    let mut again = 0;
    for seed in seeds(4000) {
        let telling = Telling(seed);
        again += run(seed).again;
        drop(telling);
    }
    assert!(again > 0 || seeds(4000).count() < 100, "no step was ever begun twice");
}

/// What a held inode may hold up: those with a name in common, or in it, and directories that have to pass it; and so on.
fn held_up(world: &World) -> BTreeSet<Ino> {
    let works: BTreeMap<Ino, Work> =
        world.all().into_iter().filter_map(|ino| Some((ino, world.log.get(ino)?.clone()))).collect();
    let places = |work: &Work| work.minus.union(&work.plus).cloned().collect::<BTreeSet<Place>>();
    let passes = |work: &Work, dir: Ino| {
        let renamed = work.kind == FileKind::Directory && !work.minus.is_empty();
        renamed && work.plus.iter().any(|at| world.their_way(at.dir).contains(&dir))
    };
    let mut held: BTreeSet<Ino> =
        world.doomed.iter().copied().filter(|ino| works.contains_key(ino)).collect();
    loop {
        let before = held.len();
        for (ino, work) in &works {
            let places = places(work);
            let by = |held: &Ino| {
                let other = &works[held];
                let name = places.iter().any(|at| other.minus.contains(at) || other.plus.contains(at));
                name || places.iter().any(|at| at.dir == *held)
                    || other.minus.iter().any(|at| at.dir == *ino)
                    || passes(work, *held)
            };
            if held.iter().any(by) {
                held.insert(*ino);
            }
        }
        if held.len() == before {
            return held;
        }
    }
}

#[test]
fn what_is_held_holds_up_only_what_depends_on_it() {
    let mut independent = 0;
    for seed in seeds(2000) {
        let telling = Telling(seed);
        let mut world = World::new(!seed);
        for _ in 0..40 {
            change(&mut world);
            if world.random.chance(10) {
                turn(&mut world);
            }
        }
        while let Some(ino) = world.done.pop() {
            world.tell(ino);
        }
        world.crash();
        publish_all(&mut world);
        for ino in world.all().into_iter().filter(|ino| world.log.get(*ino).is_some()).collect::<Vec<_>>() {
            // Not what is to be told again: it may have been done.
            if world.log.get(ino).unwrap().begun.is_none() && world.random.chance(15) {
                world.doomed.insert(ino);
            }
        }
        world.drain();
        let held = held_up(&world);
        for ino in world.all() {
            assert!(world.log.get(ino).is_none() || held.contains(&ino), "{ino:?}: {:?}", world.log.get(ino));
        }
        independent += usize::from(!world.doomed.is_empty() && held.len() < world.all().len());
        let told: BTreeSet<Ino> = world.log.held().map(|(ino, _)| ino).collect();
        assert!(told.is_subset(&world.doomed));
        finish(&mut world);
        drop(telling);
    }
    assert!(independent > 0 || seeds(2000).count() < 100);
}

fn at(name: &[u8]) -> Place {
    Place::new(ROOT, name)
}

fn number(n: u64) -> Ino {
    Ino::from_raw(n).unwrap()
}

fn steps(log: &mut Log, now: Timestamp) -> Vec<Step> {
    let entries = log.ready(now, 10, &|_| Some(ROOT));
    entries.into_iter().map(|e| e.step).collect()
}

const T0: Timestamp = Timestamp { sec: 1000, nsec: 0 };

fn later(sec: i64) -> Timestamp {
    Timestamp { sec: T0.sec + sec, nsec: 0 }
}

#[test]
fn what_undoes_itself_leaves_nothing() {
    let mut log = Log::new(settings());
    let (file, other) = (number(5), number(6));
    for n in 1..1000 {
        log.push(T0, file, FileKind::Regular, Op::Create { at: at(b"a"), writing: true });
        log.push(T0, file, FileKind::Regular, Op::SetAttr { what: Attrs::MODE });
        log.push(T0, file, FileKind::Regular, Op::Publish { version: n });
        log.push(T0, file, FileKind::Regular, Op::Rename { from: at(b"a"), to: at(b"b") });
        log.push(T0, file, FileKind::Regular, Op::Unlink { at: at(b"b"), last: true });
        log.push(T0, other, FileKind::Regular, Op::Rename { from: at(b"x"), to: at(b"y") });
        log.push(T0, other, FileKind::Regular, Op::Rename { from: at(b"y"), to: at(b"x") });
    }
    assert_eq!(log.lag(), Lag { entries: 0, oldest: None });
    assert!(log.changed().iter().all(|(_, work)| work.is_none()));
    for _ in 0..1000 {
        log.push(T0, other, FileKind::Regular, Op::SetAttr { what: Attrs::MODE });
        log.push(T0, other, FileKind::Regular, Op::SetAttr { what: Attrs::OWNER });
    }
    assert_eq!(steps(&mut log, T0), [Step::SetAttr { what: Attrs::MODE.with(Attrs::OWNER) }]);
}

/// A new file with its data is one step; written aside and renamed over an old one it takes the name with them at once.
#[test]
fn a_new_version_takes_a_name_whole() {
    let mut log = Log::new(settings());
    let (old, new) = (number(5), number(6));
    log.push(T0, new, FileKind::Regular, Op::Create { at: at(b"tmp"), writing: true });
    assert_eq!(steps(&mut log, T0), []);
    log.push(T0, old, FileKind::Regular, Op::Unlink { at: at(b"a"), last: true });
    log.push(T0, new, FileKind::Regular, Op::Rename { from: at(b"tmp"), to: at(b"a") });
    assert_eq!(steps(&mut log, T0), [], "the old one stays until the new one is there");
    log.push(T0, new, FileKind::Regular, Op::Publish { version: 1 });
    assert_eq!(steps(&mut log, T0), [Step::Create { at: at(b"a"), over: Some(old), data: Some(1) }]);
    log.applied(new);
    assert_eq!(log.lag().entries, 0);

    // Known there, and rewritten before it is renamed.
    let third = number(7);
    log.push(T0, third, FileKind::Regular, Op::Written { version: 9 });
    log.push(T0, new, FileKind::Regular, Op::Unlink { at: at(b"a"), last: true });
    log.push(T0, third, FileKind::Regular, Op::Rename { from: at(b"c"), to: at(b"a") });
    assert_eq!(steps(&mut log, T0), []);
    log.push(T0, third, FileKind::Regular, Op::Publish { version: 9 });
    assert_eq!(steps(&mut log, T0), [Step::Publish { version: 9 }]);
    log.applied(third);
    assert_eq!(steps(&mut log, T0), [Step::Rename { from: at(b"c"), to: at(b"a"), over: Some(new) }]);
}

#[test]
fn failures_are_tried_again_at_their_time() {
    let mut log = Log::new(settings());
    let (file, other) = (number(5), number(6));
    log.push(T0, file, FileKind::Regular, Op::SetAttr { what: Attrs::MODE });
    let step = [Step::SetAttr { what: Attrs::MODE }];
    let mut now = T0;
    for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(steps(&mut log, now), step);
        log.failed(now, file, Trouble::of(Errno::EIO));
        assert_eq!(log.next_deadline(), Some(now.plus(Duration::from_secs(pause))));
        now = now.plus(Duration::from_secs(pause - 1));
        assert_eq!(steps(&mut log, now), []);
        now = now.plus(Duration::from_secs(1));
    }
    assert_eq!(steps(&mut log, now), step);
    log.failed(now, file, Trouble::of(Errno::EACCES));
    assert_eq!(log.held().collect::<Vec<_>>(), [(file, Trouble::Refused(Errno::EACCES))]);
    log.push(now, other, FileKind::Regular, Op::SetAttr { what: Attrs::MODE });
    assert_eq!(steps(&mut log, now), step, "the other one");
    assert_eq!(steps(&mut log, now.plus(Duration::from_secs(299))), []);
    log.push(now, file, FileKind::Regular, Op::SetAttr { what: Attrs::MODE });
    assert_eq!(steps(&mut log, now), step, "its inode changed");
    log.failed(now, file, Trouble::Conflict(Why::BothChanged));
    assert_eq!(log.next_deadline(), None);
    assert_eq!(steps(&mut log, later(1_000_000)), []);
    assert_eq!(steps(&mut log, later(2_000_000)), []);
    log.moved(file, at(b"a"), at(b"b"));
    assert_eq!(log.lag().entries, 2);
}

/// Goal: a file whose unlink would make the room that its heir needs is not kept for it.
#[test]
fn a_refused_heir_does_not_keep_what_it_replaces() {
    let mut log = Log::new(settings());
    let (old, new) = (number(5), number(6));
    log.push(T0, old, FileKind::Regular, Op::Unlink { at: at(b"a"), last: true });
    log.push(T0, new, FileKind::Regular, Op::Create { at: at(b"a"), writing: false });
    assert_eq!(steps(&mut log, T0), [Step::Create { at: at(b"a"), over: Some(old), data: None }]);
    log.failed(T0, new, Trouble::of(Errno::ENOSPC));
    assert_eq!(steps(&mut log, T0), [Step::Unlink { at: at(b"a") }]);
    log.applied(old);
    assert_eq!(steps(&mut log, later(300)), [Step::Create { at: at(b"a"), over: None, data: None }]);
}

#[test]
fn the_bound_stops_new_entries_only() {
    let mut log = Log::new(Settings { entries_max: 2, ..settings() });
    for n in [5, 6] {
        assert!(!log.must_wait(number(n)));
        log.push(later(n as i64), number(n), FileKind::Regular, Op::Written { version: 1 });
    }
    assert!(log.must_wait(number(7)));
    assert!(!log.must_wait(number(5)));
    assert_eq!(log.lag(), Lag { entries: 2, oldest: Some(later(5)) });
    log.forget(number(5));
    assert!(!log.must_wait(number(7)));
    assert_eq!(log.lag(), Lag { entries: 1, oldest: Some(later(6)) });
}

/// Put back after it was deleted there: made anew with its data, in a directory that is made anew.
#[test]
fn what_lost_its_place_is_made_anew() {
    let mut log = Log::new(settings());
    let (dir, file) = (number(5), number(6));
    let inside = Place::new(dir, b"f");
    log.push(T0, file, FileKind::Regular, Op::Written { version: 3 });
    log.displaced(T0, (file, FileKind::Regular), BTreeSet::from([inside.clone()]), Some(3));
    log.displaced(T0, (dir, FileKind::Directory), BTreeSet::from([at(b"d")]), None);
    assert_eq!(steps(&mut log, T0), [Step::Create { at: at(b"d"), over: None, data: None }]);
    log.applied(dir);
    assert_eq!(steps(&mut log, T0), [Step::Create { at: inside, over: None, data: Some(3) }]);
    log.applied(file);
    assert_eq!(log.lag().entries, 0);
}

#[test]
fn stored_work_that_cannot_be_is_refused() {
    let mut log = Log::new(settings());
    log.push(T0, number(5), FileKind::Regular, Op::Create { at: at(b"a"), writing: false });
    let (_, work) = log.changed().remove(0);
    let work = work.unwrap();
    let twice = [(number(5), work.clone()), (number(6), work)];
    assert_eq!(Log::rebuild(settings(), twice).err(), Some(Clash(at(b"a"))));
}

/// While a name of a file is being taken by another, our side gives it back: what they have of it is not known until the step ends.
#[test]
fn regression_a_name_that_is_being_taken_is_no_way_to_its_file() {
    let mut log = Log::new(settings());
    let (file, other) = (number(5), number(6));
    let kind = FileKind::Regular;
    log.push(T0, file, kind, Op::Unlink { at: at(b"a"), last: false });
    log.push(T0, other, FileKind::Symlink, Op::Create { at: at(b"a"), writing: false });
    assert_eq!(steps(&mut log, T0), [Step::Create { at: at(b"a"), over: Some(file), data: None }]);
    log.push(T0, other, FileKind::Symlink, Op::Unlink { at: at(b"a"), last: true });
    log.push(T0, file, kind, Op::Link { at: at(b"a") });
    log.push(T0, file, kind, Op::Publish { version: 3 });
    assert_eq!(steps(&mut log, T0), []);
    log.applied(other);
    assert_eq!(steps(&mut log, T0), [Step::Publish { version: 3 }]);
    log.applied(file);
    assert_eq!(steps(&mut log, T0), [Step::Link { at: at(b"a"), over: Some(other) }]);
    log.applied(file);
    assert_eq!(log.lag().entries, 0);
}

/// A directory and one in it: `inner` leaves `outer`, which goes into it.
fn turned_inside_out(log: &mut Log, out: &[u8]) -> (Ino, Ino) {
    let (outer, inner) = (number(5), number(6));
    let dir = FileKind::Directory;
    // The work of `outer` is the older, so it is looked at first.
    log.push(T0, outer, dir, Op::SetAttr { what: Attrs::MODE });
    log.push(T0, outer, dir, Op::Rename { from: at(b"outer"), to: Place::new(inner, b"outer") });
    log.push(T0, inner, dir, Op::Rename { from: Place::new(outer, b"inner"), to: at(out) });
    (outer, inner)
}

fn ready_in(log: &mut Log, inner: Ino) -> Vec<(Ino, Step)> {
    // As our side has it: `outer` is in `inner`, and that is in the root.
    let parent = |ino: Ino| Some(if ino == inner { ROOT } else { inner });
    log.ready(T0, 10, &parent).into_iter().map(|e| (e.ino, e.step)).collect()
}

#[test]
fn a_directory_is_not_moved_into_its_own_inside() {
    let mut log = Log::new(settings());
    let (outer, inner) = turned_inside_out(&mut log, b"x");
    let out = Step::Rename { from: Place::new(outer, b"inner"), to: at(b"x"), over: None };
    assert_eq!(ready_in(&mut log, inner), [(inner, out)]);
    log.applied(inner);
    let to = Place::new(inner, b"outer");
    assert_eq!(ready_in(&mut log, inner), [(outer, Step::Rename { from: at(b"outer"), to, over: None })]);
}

#[test]
fn a_circle_is_broken_by_one_that_goes_out_of_the_way() {
    let mut log = Log::new(settings());
    let (outer, inner) = turned_inside_out(&mut log, b"outer");
    let way = Place::on_the_way(ROOT, outer);
    let aside = Step::Rename { from: at(b"outer"), to: way.clone(), over: None };
    assert_eq!(ready_in(&mut log, inner), [(outer, aside)]);
    log.applied(outer);
    let out = Step::Rename { from: Place::new(outer, b"inner"), to: at(b"outer"), over: None };
    assert_eq!(ready_in(&mut log, inner), [(inner, out)]);
    log.applied(inner);
    let to = Place::new(inner, b"outer");
    assert_eq!(ready_in(&mut log, inner), [(outer, Step::Rename { from: way, to, over: None })]);
}

/// Of two directories that have to leave, one is held: when the other has left, the way is free all the same.
#[test]
fn a_held_directory_is_not_waited_for_when_another_way_opens() {
    let mut log = Log::new(settings());
    let (top, middle, low) = (number(5), number(6), number(7));
    let dir = FileKind::Directory;
    log.push(T0, top, dir, Op::SetAttr { what: Attrs::MODE });
    for (ino, from, to) in [
        (low, Place::new(middle, b"low"), at(b"low")),
        (middle, Place::new(top, b"middle"), at(b"middle")),
        (top, at(b"top"), Place::new(low, b"top")),
    ] {
        log.push(T0, ino, dir, Op::Rename { from, to });
    }
    let mut ready = || -> Vec<Entry> { log.ready(T0, 1, &|ino| Some(if ino == top { low } else { ROOT })) };
    assert_eq!(ready()[0].ino, low);
    assert_eq!(ready().len(), 0, "nothing passes through what is being renamed");
    log.failed(T0, low, Trouble::Refused(Errno::EACCES));
    let mut ready = || -> Vec<Entry> { log.ready(T0, 9, &|ino| Some(if ino == top { low } else { ROOT })) };
    assert_eq!(ready().iter().map(|e| e.ino).collect::<Vec<_>>(), [middle]);
    log.applied(middle);
    let mut ready = || -> Vec<Entry> { log.ready(T0, 9, &|ino| Some(if ino == top { low } else { ROOT })) };
    assert_eq!(ready().iter().map(|e| e.ino).collect::<Vec<_>>(), [top]);
}

/// One file with two names, both to be taken by others: one after the other.
#[test]
fn a_file_loses_one_name_at_a_time() {
    let mut log = Log::new(settings());
    let old = number(5);
    for (n, name, last) in [(6, b"a", false), (7, b"b", true)] {
        log.push(T0, old, FileKind::Regular, Op::Unlink { at: at(name), last });
        log.push(T0, number(n), FileKind::Regular, Op::Create { at: at(name), writing: false });
    }
    let create = |name| Step::Create { at: at(name), over: Some(old), data: None };
    assert_eq!(steps(&mut log, T0), [create(b"a")]);
    log.applied(number(6));
    assert_eq!(steps(&mut log, T0), [create(b"b")]);
    log.applied(number(7));
    assert_eq!(log.lag().entries, 0);
}

/// Goal: what [`reconcile`] finds leaves the log with what is still to be done. Method: its cases, with a file of two names whose
/// other name and data stay.
#[test]
fn what_they_deleted_is_not_applied_and_the_rest_is() {
    let file = number(5);
    let kind = FileKind::Regular;
    let held = |op: Option<Op>| {
        let mut log = Log::new(settings());
        log.push(T0, file, kind, Op::Publish { version: 3 });
        op.into_iter().for_each(|op| log.push(T0, file, kind, op));
        assert_eq!(steps(&mut log, T0), [Step::Publish { version: 3 }]);
        log.failed(T0, file, Trouble::Gone);
        assert_eq!(steps(&mut log, later(1_000_000)), []);
        log
    };
    let publish = [Step::Publish { version: 3 }];
    // The name that was deleted here is theirs now; or a renamed one is deleted there; or both have it, and one deletes it.
    let mut log = held(Some(Op::Unlink { at: at(b"a"), last: false }));
    log.gone(file, at(b"a"), None, false);
    assert_eq!(steps(&mut log, T0), publish);
    let mut log = held(Some(Op::Rename { from: at(b"a"), to: at(b"b") }));
    log.gone(file, at(b"a"), Some(at(b"b")), false);
    assert_eq!(steps(&mut log, T0), publish);
    log.applied(file);
    assert_eq!(log.lag().entries, 0);
    let mut log = held(None);
    log.gone(file, at(b"a"), Some(at(b"a")), true);
    assert_eq!(log.lag().entries, 0);
    assert_eq!(log.held().count(), 0);
    // Renamed there, ours too: from its new place.
    let mut log = held(Some(Op::Rename { from: at(b"a"), to: at(b"b") }));
    log.moved(file, at(b"a"), at(b"c"));
    assert_eq!(steps(&mut log, T0), publish);
    log.applied(file);
    assert_eq!(steps(&mut log, T0), [Step::Rename { from: at(b"c"), to: at(b"b"), over: None }]);
    // Renamed there, and followed: nothing changes but that it is tried again.
    let mut log = held(None);
    log.release(file);
    assert_eq!(steps(&mut log, T0), publish);
}
