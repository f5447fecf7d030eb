//! Goal: no client ever sees anything but what was written last, no two locks conflict, every request is answered, and when the faults
//! stop nothing is left behind. Method: one server and four clients with kernels that keep what they may, over messages that are lost,
//! late or repeated; pauses, restarts of both, writing back that hangs, clocks that differ in time and rate. One seed is one run:
//!
//!     COHERENCE_SEED=N cargo test -p lease --test coherence
//!
//! `COHERENCE_SEEDS` runs that many in place of the usual ones.
#![allow(clippy::expect_used, clippy::wildcard_enum_match_arm)]

mod world;

use world::{Broken, Seen, World};

const SEEDS: u64 = 300;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn everybody_sees_what_was_written_last() {
    let only = setting("COHERENCE_SEED");
    let seeds = only.map_or(0..setting("COHERENCE_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let count = seeds.end - seeds.start;
    let mut all: Vec<Seen> = Vec::new();
    for seed in seeds {
        match World::new(seed, Broken::No).run() {
            Ok(world) => all.push(world.seen),
            Err(why) => panic!("{why}\nagain: COHERENCE_SEED={seed} cargo test -p lease --test coherence"),
        }
    }
    let sum = |of: fn(&Seen) -> u64| all.iter().map(of).sum::<u64>();
    let seen = [
        ("cached reads", sum(|s| s.cached_reads), 100),
        ("written back", sum(|s| s.written_back), 3),
        ("recalls", sum(|s| s.recalls), 20),
        ("fenced", sum(|s| s.fenced), 1),
        ("resumed", sum(|s| s.resumed), 1),
        ("came back", sum(|s| s.came_back), 1),
        ("locks", sum(|s| s.locks), 30),
        ("waited", sum(|s| s.waited), 30),
    ];
    println!(
        "{seen:?}, {} lost, {} deadlocks, {} interrupted",
        sum(|s| s.lost),
        sum(|s| s.deadlocks),
        sum(|s| s.interrupted)
    );
    // Fair weather shows nothing.
    if only.is_none() {
        for (what, times, least) in seen {
            assert!(times >= least * count, "{what}: {times} times in {count} runs");
        }
        assert!(sum(|s| s.lost) > 0 && sum(|s| s.deadlocks) > 0 && sum(|s| s.interrupted) > 0);
    }
}

/// Goal: a simulation that finds nothing must not be one that sees nothing. Method: each of the things that it all hangs on is left out.
#[test]
fn what_is_broken_is_seen() {
    for broken in [Broken::LongTerms, Broken::NoFence, Broken::StalePages, Broken::NoGrace] {
        let wrong = (0..150).find_map(|seed| World::new(seed, broken).run().err());
        assert!(wrong.as_ref().is_some_and(|why| !why.contains("settled")), "{broken:?}: {wrong:?}");
    }
}

#[test]
fn a_seed_is_one_run() {
    for seed in 0..3 {
        let runs = [0, 1].map(|_| World::new(seed, Broken::No).run().map(|world| (world.log, world.seen)));
        assert!(runs[0] == runs[1], "{seed}");
    }
}
