//! Goal: I-PLAN-1 to 4 hold whatever happens, a right list overlaps reading and moving up, a wrong one is given up at its
//! stated numbers. Method: scenarios step by step; random inputs with every effect checked; a simulation of two simple
//! tiers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use plan::{Closing, Effect, End, Input, Item, Join, Promotion, Run, Settings};
use proptest::prelude::*;
use types::{Ino, LocalId, UgsdId};

const MIB: u64 = 1 << 20;

fn ino(n: u64) -> Ino {
    Ino::new(UgsdId::ROOT, LocalId::new(n + 1).unwrap())
}

fn item(n: u64, missing: u64) -> Item {
    Item { ino: ino(n), missing, was_up: false }
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Groups of `size` files of 1 MiB, numbered through.
fn list(groups: u64, size: u64) -> Vec<Vec<Item>> {
    (0..groups).map(|g| (0..size).map(|n| item(g * size + n, MIB)).collect()).collect()
}

fn started(groups: Vec<Vec<Item>>, free: u64) -> Run {
    let mut run = Run::new(Settings::default(), at(0));
    run.handle(at(0), Input::Added { groups, join: Join::Begin, closing: Closing::Complete });
    run.handle(at(0), Input::Room { free, most: free.max(64 * MIB) });
    run
}

fn effects(run: &mut Run) -> Vec<Effect> {
    std::iter::from_fn(|| run.poll_effect()).collect()
}

/// Ends what comes up as it is asked for, until nothing is.
fn settle(run: &mut Run, now: u64) -> Vec<Effect> {
    let mut all = Vec::new();
    while let Some(effect) = run.poll_effect() {
        all.push(effect);
        if let Effect::Promote { ino } = effect {
            run.handle(at(now), Input::PromotionEnded { ino, end: Promotion::Up { bytes: MIB } });
        }
    }
    all
}

fn promoted(effects: &[Effect]) -> Vec<u64> {
    let number = |effect: &Effect| match effect {
        Effect::Promote { ino } => Some(ino.local().get() - 1),
        Effect::Release { .. } | Effect::Ended(_) => None,
    };
    effects.iter().filter_map(number).collect()
}

#[test]
fn the_next_group_comes_up_while_one_is_read() {
    let mut run = started(list(4, 2), 100 * MIB);
    assert_eq!(promoted(&settle(&mut run, 0)), [0, 1], "the first at once");
    run.handle(at(1), Input::Opened { ino: ino(1) });
    assert_eq!(promoted(&settle(&mut run, 1)), [2, 3], "any file of it begins a group");
    run.handle(at(2), Input::Opened { ino: ino(0) });
    assert_eq!(effects(&mut run), []);
    run.handle(at(3), Input::Opened { ino: ino(3) });
    assert_eq!(promoted(&settle(&mut run, 3)), [4, 5]);
    run.handle(at(4), Input::Opened { ino: ino(4) });
    let last = settle(&mut run, 4);
    assert_eq!((promoted(&last), last.last()), (vec![6, 7], Some(&Effect::Ended(End::Done))));
    let report = run.report();
    assert_eq!((report.files_up, report.files_hit, report.wrong, report.bytes_up), (8, 4, 0, 8 * MIB));
}

#[test]
fn what_its_program_opens_first_is_left_to_it() {
    let mut run = started(list(2, 8), 100 * MIB);
    // Two come up at a time, in the order of the list.
    assert_eq!(promoted(&effects(&mut run)), [0, 1]);
    run.handle(at(1), Input::Opened { ino: ino(2) });
    assert_eq!(promoted(&effects(&mut run)), []);
    run.handle(at(2), Input::PromotionEnded { ino: ino(0), end: Promotion::Up { bytes: MIB } });
    assert_eq!(promoted(&effects(&mut run)), [3]);
    assert_eq!(run.report().files_skipped, 1);
}

#[test]
fn room_is_made_of_what_was_read_and_of_nothing_else() {
    let mut groups = list(3, 2);
    // Somebody had this one in memory before.
    groups[0][0].was_up = true;
    let mut run = started(groups, 4 * MIB);
    for n in 0..2 {
        assert!(promoted(&settle(&mut run, 0)).len() <= 2);
        run.handle(at(1), Input::Opened { ino: ino(n) });
    }
    assert_eq!(promoted(&settle(&mut run, 1)), []);
    run.handle(at(2), Input::Room { free: 0, most: 4 * MIB });
    run.handle(at(2), Input::Opened { ino: ino(2) });
    assert_eq!(effects(&mut run), [], "all that was read is still open");
    assert!(run.report().short_of_room);
    run.handle(at(3), Input::Closed { ino: ino(0) });
    assert_eq!(effects(&mut run), []);
    run.handle(at(3), Input::Closed { ino: ino(1) });
    assert_eq!(effects(&mut run), [Effect::Release { ino: ino(1) }]);
    run.handle(at(4), Input::Room { free: MIB, most: 4 * MIB });
    assert_eq!(promoted(&effects(&mut run)), [4]);
}

#[test]
fn a_file_that_the_list_has_again_is_kept() {
    let groups = vec![vec![item(0, MIB)], vec![item(1, MIB)], vec![item(0, MIB)], vec![item(2, MIB)]];
    let mut run = started(groups, 2 * MIB);
    settle(&mut run, 0);
    run.handle(at(1), Input::Opened { ino: ino(0) });
    run.handle(at(1), Input::Closed { ino: ino(0) });
    settle(&mut run, 1);
    run.handle(at(2), Input::Opened { ino: ino(1) });
    assert_eq!(promoted(&settle(&mut run, 2)), [], "it is up");
    run.handle(at(3), Input::Room { free: 0, most: 64 * MIB });
    run.handle(at(3), Input::Opened { ino: ino(0) });
    assert_eq!(effects(&mut run), [], "both are open");
    run.handle(at(4), Input::Closed { ino: ino(0) });
    assert_eq!(effects(&mut run), [Effect::Release { ino: ino(0) }]);
}

#[test]
fn a_list_that_is_wrong_is_given_up_and_says_so() {
    // Other files: the sixteenth is too much. Half of them, for ever, is not.
    let outside = |run: &mut Run, n: u64| run.handle(at(n), Input::Opened { ino: ino(1000 + n) });
    let mut run = started(list(40, 4), 1000 * MIB);
    settle(&mut run, 0);
    (0..15).for_each(|n| outside(&mut run, n));
    assert_eq!(effects(&mut run), []);
    outside(&mut run, 15);
    assert_eq!(effects(&mut run), [Effect::Ended(End::Wrong { wrong: 16, seen: 16 })]);
    run.handle(at(20), Input::Opened { ino: ino(0) });
    run.handle(at(21), Input::Room { free: 1000 * MIB, most: 1000 * MIB });
    assert_eq!(effects(&mut run), [], "I-PLAN-4");

    let mut run = started(list(40, 4), 1000 * MIB);
    for n in 0..150 {
        settle(&mut run, n);
        run.handle(at(n), Input::Opened { ino: ino(n) });
        outside(&mut run, n);
    }
    assert!(run.report().files_up > 140, "{:?}", run.report());

    // The list from its end: it goes ahead, and then to what was left behind.
    let mut run = started(list(40, 4), 1000 * MIB);
    for n in (0..160).rev() {
        settle(&mut run, 160 - n);
        run.handle(at(160 - n), Input::Opened { ino: ino(n) });
    }
    let Some(End::Wrong { wrong, seen }) = run.report().end else { panic!("{:?}", run.report()) };
    assert!(wrong > seen / 2 && seen <= 32, "{wrong} of {seen}");

    // Shuffled within a group, or begun in the middle, is right.
    let mut run = started(list(40, 4), 1000 * MIB);
    for n in 80..160 {
        settle(&mut run, n);
        run.handle(at(n), Input::Opened { ino: ino(n ^ 3) });
    }
    settle(&mut run, 200);
    assert_eq!((run.report().end, run.report().wrong), (Some(End::Done), 2));
}

#[test]
fn regression_one_look_at_the_end_of_the_list_passes_nothing_over() {
    let mut run = started(list(10, 2), 100 * MIB);
    settle(&mut run, 0);
    run.handle(at(1), Input::Opened { ino: ino(19) });
    assert_eq!(effects(&mut run), []);
    for n in 0..18 {
        run.handle(at(2), Input::Opened { ino: ino(n) });
        settle(&mut run, 2);
    }
    let report = run.report();
    assert_eq!((report.end, report.wrong, report.files_hit), (Some(End::Done), 1, 17));
}

#[test]
fn failures_are_tried_again_and_then_left() {
    let mut run = started(vec![vec![item(0, MIB), item(1, 1 << 40), item(2, MIB)]], 10 * MIB);
    let failed = Input::PromotionEnded { ino: ino(0), end: Promotion::Failed };
    assert_eq!(promoted(&effects(&mut run)), [0, 2], "what is larger than memory is left out");
    run.handle(at(0), Input::PromotionEnded { ino: ino(2), end: Promotion::Up { bytes: MIB } });
    for attempt in 1..=2 {
        run.handle(at(attempt * 10_000), failed.clone());
        assert_eq!(effects(&mut run), [], "it rests");
        let (deadline, _) = run.next_deadline().unwrap();
        assert_eq!(deadline, at(attempt * 10_000 + 2000));
        run.handle_deadline(deadline);
        assert_eq!(promoted(&effects(&mut run)), [0]);
    }
    run.handle(at(50_000), failed);
    assert_eq!(effects(&mut run), [Effect::Ended(End::Done)]);
    assert_eq!(run.report().files_skipped, 2);

    let mut run = started(list(1, 1), 10 * MIB);
    run.handle(at(1), Input::PromotionEnded { ino: ino(0), end: Promotion::NoRoom });
    assert_eq!(promoted(&effects(&mut run)), [0]);
    assert_eq!(effects(&mut run), []);
    run.handle(at(2), Input::Room { free: 2 * MIB, most: 10 * MIB });
    assert_eq!(promoted(&settle(&mut run, 2)), [0]);
}

#[test]
fn a_run_that_nobody_reads_from_ends() {
    let mut run = started(list(3, 1), 10 * MIB);
    settle(&mut run, 0);
    let (deadline, why) = run.next_deadline().unwrap();
    assert_eq!((deadline, why), (Settings::default().idle, "nobody reads from the list"));
    run.handle_deadline(deadline);
    assert_eq!((effects(&mut run), run.next_deadline()), (vec![Effect::Ended(End::Idle)], None));
}

#[test]
fn a_list_may_come_in_pieces() {
    let mut run = Run::new(Settings::default(), at(0));
    run.handle(at(0), Input::Room { free: 10 * MIB, most: 10 * MIB });
    let add = |run: &mut Run, n, join, closing| {
        run.handle(at(0), Input::Added { groups: vec![vec![item(n, MIB)]], join, closing });
    };
    add(&mut run, 0, Join::Begin, Closing::More);
    add(&mut run, 1, Join::Continue, Closing::More);
    add(&mut run, 2, Join::Begin, Closing::More);
    assert_eq!(promoted(&settle(&mut run, 0)), [0, 1]);
    run.handle(at(1), Input::Opened { ino: ino(0) });
    assert_eq!(promoted(&settle(&mut run, 1)), [2]);
    assert!(!run.has_ended(), "more may come");
    run.handle(at(2), Input::Added { groups: vec![], join: Join::Begin, closing: Closing::Complete });
    assert_eq!(effects(&mut run), [Effect::Ended(End::Done)]);
}

#[derive(Clone, Debug)]
enum Step {
    Open(u64),
    Close(u64),
    End(usize, u8),
    Room(u64),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u64..40).prop_map(Step::Open),
        3 => (0u64..40).prop_map(Step::Close),
        4 => (any::<usize>(), 0u8..8).prop_map(|(n, how)| Step::End(n, how)),
        3 => (0u64..24).prop_map(Step::Room),
        1 => (0u64..5000).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 0..200)
}

fn lists() -> impl Strategy<Value = Vec<Vec<(u64, u64, bool)>>> {
    let file = (0u64..30, 0u64..6, proptest::bool::weighted(0.2));
    proptest::collection::vec(proptest::collection::vec(file, 1..5), 1..8)
}

/// What the invariants speak of, kept beside the run.
#[derive(Default)]
struct Watch {
    opened: BTreeMap<Ino, u32>,
    open: BTreeMap<Ino, u32>,
    coming: BTreeMap<Ino, u64>,
    room: u64,
    ended: bool,
}

impl Watch {
    fn check(&mut self, groups: &[Vec<Item>], effect: Effect, in_order: bool) {
        let settings = Settings::default();
        assert!(!self.ended, "I-PLAN-4: {effect:?}");
        match effect {
            Effect::Promote { ino } => {
                let of = |g: &Vec<Item>| g.iter().any(|i| i.ino == ino);
                let first = groups.iter().position(of).unwrap();
                let opened_in = |g: usize| groups[g].iter().any(|i| self.opened.contains_key(&i.ino));
                assert!(
                    first == 0 || !in_order || (first - 1..groups.len()).any(opened_in),
                    "I-PLAN-1: {ino:?} of group {first}"
                );
                let missing = groups.iter().flatten().find(|i| i.ino == ino).unwrap().missing;
                assert_eq!(self.coming.insert(ino, missing), None);
                let sum: u64 = self.coming.values().sum();
                assert!(self.coming.len() <= settings.files_max && sum <= self.room, "I-PLAN-2: {sum}");
            }
            Effect::Release { ino } => {
                let item = groups.iter().flatten().find(|i| i.ino == ino).unwrap();
                assert!(!item.was_up && self.opened.contains_key(&ino), "I-PLAN-3");
                assert!(self.open.get(&ino).is_none_or(|n| *n == 0), "I-PLAN-3: open");
                assert!(!self.coming.contains_key(&ino), "I-PLAN-3: coming");
            }
            Effect::Ended(_) => self.ended = true,
        }
    }
}

proptest! {
    #[test]
    fn the_invariants_hold(files in lists(), steps in steps()) {
        // A file has the same bytes wherever it stands.
        let mut sizes = BTreeMap::new();
        let groups: Vec<Vec<Item>> = files.iter().map(|group| group.iter().map(|(n, mib, was_up)| {
            let (mib, was_up) = *sizes.entry(*n).or_insert((*mib, *was_up));
            Item { ino: ino(*n), missing: mib * MIB, was_up }
        }).collect()).collect();
        let listed: BTreeSet<Ino> = groups.iter().flatten().map(|i| i.ino).collect();
        let mut run = Run::new(Settings::default(), at(0));
        let (mut watch, mut now) = (Watch::default(), 0);
        run.handle(at(0), Input::Added { groups: groups.clone(), join: Join::Begin, closing: Closing::Complete });
        for step in steps {
            match step {
                Step::Open(n) => {
                    if listed.contains(&ino(n)) {
                        *watch.opened.entry(ino(n)).or_default() += 1;
                        *watch.open.entry(ino(n)).or_default() += 1;
                    }
                    run.handle(at(now), Input::Opened { ino: ino(n) });
                }
                Step::Close(n) => {
                    if let Some(count) = watch.open.get_mut(&ino(n)).filter(|n| **n > 0) {
                        *count -= 1;
                        run.handle(at(now), Input::Closed { ino: ino(n) });
                    }
                }
                Step::End(n, how) => {
                    let Some(ino) = watch.coming.keys().nth(n % watch.coming.len().max(1)).copied() else { continue };
                    let bytes = watch.coming.remove(&ino).unwrap();
                    let end = match how {
                        0 => Promotion::Failed,
                        1 => Promotion::Never,
                        2 => Promotion::NoRoom,
                        _ => Promotion::Up { bytes },
                    };
                    if how > 2 {
                        watch.room -= bytes.min(watch.room);
                    }
                    run.handle(at(now), Input::PromotionEnded { ino, end });
                }
                Step::Room(mib) => {
                    // Never less than what was promised before.
                    watch.room = (mib * MIB).max(watch.coming.values().sum());
                    run.handle(at(now), Input::Room { free: watch.room, most: 24 * MIB });
                }
                Step::Wait(ms) => {
                    now += ms;
                    run.handle_deadline(at(now));
                }
            }
            while let Some(effect) = run.poll_effect() {
                watch.check(&groups, effect, true);
            }
            let report = run.report();
            prop_assert_eq!(report.files_coming, watch.coming.len() as u64);
            prop_assert!(report.files_up + report.files_skipped + report.files_coming <= report.files);
        }
    }
}

/// Two tiers with one stream each: near-line moves up what was asked for, one after the other; the program reads a file from
/// memory at the ratio's speed if it is up, and from near-line otherwise, then works on it. Times are in milliseconds.
struct Tiers {
    ratio: u64,
    near_ms: u64,
    memory: u64,
}

#[derive(Debug)]
struct Outcome {
    reading_ms: u64,
    total_ms: u64,
    from_memory: u64,
    /// Time in which a file was read or worked on while another came up.
    overlap_ms: u64,
}

impl Tiers {
    /// After `lead_ms` reads all files in order, each for its time and then `work_ms`.
    fn read(&self, run: &mut Run, files: u64, (lead_ms, work_ms): (u64, u64)) -> Outcome {
        let (mut up, mut queue): (BTreeSet<Ino>, Vec<Ino>) = Default::default();
        let (mut now, mut moving): (u64, Option<(Ino, u64)>) = (0, None);
        let mut out = Outcome { reading_ms: 0, total_ms: 0, from_memory: 0, overlap_ms: 0 };
        for n in 0..=files {
            // The time before the first one is the lead.
            let file = n.checked_sub(1).map(ino);
            file.into_iter().for_each(|ino| run.handle(at(now), Input::Opened { ino }));
            let is_up = file.is_none_or(|ino| up.contains(&ino));
            out.from_memory += u64::from(is_up && file.is_some());
            let reading = match file {
                None => 0,
                Some(_) if is_up => self.near_ms / self.ratio,
                Some(_) => self.near_ms,
            };
            let work_ms = if file.is_some() { work_ms } else { lead_ms };
            let end = now + reading + work_ms;
            while now < end {
                while let Some(effect) = run.poll_effect() {
                    match effect {
                        Effect::Promote { ino } => queue.push(ino),
                        // What its program read from near-line is not up.
                        Effect::Release { ino } => {
                            up.remove(&ino);
                        }
                        Effect::Ended(_) => {}
                    }
                    let free = (self.memory - up.len() as u64) * MIB;
                    run.handle(at(now), Input::Room { free, most: self.memory * MIB });
                }
                // A program that reads from near-line itself takes its stream.
                let direct = !is_up && now < end - work_ms;
                if moving.is_none() && !queue.is_empty() {
                    moving = Some((queue.remove(0), self.near_ms));
                }
                if let Some((ino, left)) = moving.as_mut().filter(|_| !direct) {
                    *left -= 1;
                    out.overlap_ms += 1;
                    if *left == 0 {
                        up.insert(*ino);
                        assert!(up.len() as u64 <= self.memory, "memory overflowed");
                        let ino = *ino;
                        moving = None;
                        run.handle(at(now), Input::PromotionEnded { ino, end: Promotion::Up { bytes: MIB } });
                    }
                }
                now += 1;
            }
            out.reading_ms += reading;
            file.into_iter().for_each(|ino| run.handle(at(now), Input::Closed { ino }));
            let free = (self.memory - up.len() as u64) * MIB;
            run.handle(at(now), Input::Room { free, most: self.memory * MIB });
        }
        out.total_ms = now;
        out
    }
}

/// The paper's experiment (8.7): memory is 16 times as fast as near-line, and working on a file takes at least as long as moving
/// one up.
#[test]
fn reading_overlaps_with_moving_up() {
    let tiers = Tiers { ratio: 16, near_ms: 160, memory: 6 };
    // The list comes early enough for its first group.
    let (files, times) = (60, (330, 170));
    let without = tiers.read(&mut Run::new(Settings::default(), at(0)), files, times);
    assert_eq!((without.reading_ms, without.from_memory), (60 * 160, 0));
    let mut run = started(list(30, 2), 6 * MIB);
    let with = tiers.read(&mut run, files, times);
    assert_eq!((run.report().end, run.report().wrong), (Some(End::Done), 0));
    assert_eq!(with.from_memory, files, "{with:?}");
    assert_eq!(with.reading_ms * 16, without.reading_ms, "the ratio of the tiers is reached");
    assert_eq!(with.overlap_ms, 60 * 160, "moving up takes its time all the same, beside the program");

    // Without the lead it reads the first ones as they are, and catches up.
    let late = tiers.read(&mut started(list(30, 2), 6 * MIB), files, (0, 250));
    assert!(late.from_memory >= files - 5, "{late:?}");

    // Memory for two groups of two is enough; for less than the next group it is a bound, and nothing breaks.
    for memory in 1..6 {
        let with = Tiers { memory, ..tiers }.read(&mut started(list(30, 2), memory * MIB), files, times);
        assert!(with.total_ms <= without.total_ms, "{memory}: {with:?}");
        assert!(memory < 4 || with.from_memory == files, "{memory}: {with:?}");
    }
    // A program that does not work on what it reads is as fast as near-line, and no slower.
    let hasty = tiers.read(&mut started(list(30, 2), 6 * MIB), files, (330, 0));
    assert!(hasty.total_ms <= 330 + 60 * 160, "{hasty:?}");
}
