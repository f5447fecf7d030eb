//! Goal: whoever goes on in a dead metadata server's place has all that it answered, and carries nothing out twice; what it did not answer
//! does not come later; no two answer at a time; and when the faults stop everything is answered. Method: three servers, clients that
//! ask again until they are answered, a database whose answers are lost, files that a kill leaves as they are. Messages are lost, late, repeated
//! or stopped one way; servers are killed, paused, and started again; clocks differ in time and rate. One seed is one run:
//!
//!     TAIL_SEED=N cargo test -p cluster --test tail
//!
//! TAIL_SEEDS=N runs the first N.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "a test")]

#[path = "../chance/mod.rs"]
mod chance;
mod database;
mod message;
mod node;
mod shell;
mod world;

use std::time::Duration;

use cluster::{NodeId, tail::Terms, tenure};
use world::World;

const SEEDS: u64 = 400;
const STEP: Duration = Duration::from_millis(10);
const FAULTS_UNTIL: Duration = Duration::from_secs(25);
const END: Duration = Duration::from_secs(60);
/// In the database.
const LEASE: Duration = Duration::from_millis(1500);
const ANSWER_WAIT: Duration = Duration::from_millis(400);
const CLIENTS: u64 = 3;
const NODES: u64 = 3;
const TERMS: Terms = Terms {
    tenure: tenure::Terms {
        lease: Duration::from_millis(800),
        beat_every: Duration::from_millis(100),
        suspect_after: Duration::from_millis(800),
        drift_one_in: 20,
    },
    patience: Duration::from_millis(500),
    again: Duration::from_millis(200),
    pause: Duration::from_millis(300),
    window: 8,
    kept_max: 200,
};

/// A client's operation of this number.
type Op = (u64, u64);
type Records = Vec<(u64, Op)>;

#[test]
fn nothing_answered_is_lost_and_nothing_is_done_twice() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds: Vec<u64> = match number("TAIL_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("TAIL_SEEDS").unwrap_or(SEEDS)).collect(),
    };
    let (mut takes, mut complete) = (0, 0);
    for seed in &seeds {
        let mut world = World::new(*seed);
        world.weather.complete = seed % 2 * 4;
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        if let Err(panic) = run {
            eprintln!("seed {seed} at {:?}", world.now);
            std::panic::resume_unwind(panic);
        }
        (takes, complete) = (takes + world.db.takes, complete + world.complete);
    }
    println!("{} runs: {complete} complete copies, {takes} taken over", seeds.len());
    let runs = seeds.len() as u64;
    if runs > 100 {
        assert!(takes > runs / 4 && complete > runs, "{takes} {complete}");
    }
}

/// The answer to a take-over was lost, the dead owner came back and was told, and then the taker was refused: the slots were its own by the
/// rows, and it served them not.
#[test]
fn regression_a_lost_answer_to_a_take_over_is_found_out_later() {
    World::new(126).run();
}

/// Goal: a dead server's slots are served again when its lease has ended, and little later. Method: it is killed and stays so.
#[test]
fn a_dead_owner_is_replaced_when_its_lease_has_ended() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.calm();
        let died = Duration::from_secs(8);
        while world.now < died {
            world.step();
        }
        assert!(world.nodes[&NodeId(1)].serving.as_ref().unwrap().machine.is_complete());
        world.nodes.get_mut(&NodeId(1)).unwrap().kill(END);
        // The last renewal, a look, the take-over, the new owner's own row: each of the last three is two ways to the database.
        let limit = died + LEASE + TERMS.again + 6 * Duration::from_millis(60);
        while world.nodes.values().all(|node| {
            node.serving.as_ref().is_none_or(|serving| !serving.machine.may_answer(node.clock(world.now)))
        }) {
            assert!(world.now < limit, "seed {seed}: nobody serves at {:?}", world.now);
            world.step();
        }
        assert_eq!(world.db.takes, 1);
    }
}

#[test]
fn without_faults_a_copy_is_complete_and_stays() {
    let mut world = World::new(7);
    world.calm();
    world.run();
    assert_eq!((world.db.takes, world.complete), (0, 1));
}
