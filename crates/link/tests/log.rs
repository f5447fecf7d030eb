//! Goal: I-LINK-4 to 8. Method: random work on a small file system, fed to the log; its steps are done in a back end in any order,
//! told late, fail before or after they had effect, and the process dies at any moment; the model checks each name of the
//! back end after each step. A seed reproduces a run.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod model;

use link::*;
use model::*;
use types::{FileKind, Ino};

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
                    world.log.failed(world.now, entry.ino, Trouble::Refused(types::Errno::ENOSPC));
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
    for ino in world.inodes.keys().copied().collect::<Vec<_>>() {
        if world.inodes[&ino].kind == FileKind::Regular && world.log.get(ino).is_some() {
            world.publish(ino);
        }
    }
    world.commit();
    world.now.sec += 1000;
    world.drain();
    world.check_size();
    world.check_equal();
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
