//! The checker of histories itself. Goal: it says of a history what trying every order says, and its bound is one. Method: histories
//! that are known, made ones, changed ones, and small random ones beside a search of all permutations.

use suites::{
    coherence::linear::{Model, Timed, Verdict, check, shorten},
    random::Random,
};

/// A register; a read says what was there.
struct Register;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Write(u32),
    Read(u32),
}
use Access::{Read, Write};

impl Model for Register {
    type State = u32;
    type Step = Access;
    fn begin(&self) -> u32 {
        0
    }
    fn next(&self, state: &u32, step: &Access) -> Vec<u32> {
        match step {
            Write(value) => vec![*value],
            Read(value) if value == state => vec![*state],
            Read(_) => vec![],
        }
    }
    fn looks(&self, step: &Access) -> bool {
        matches!(step, Read(_))
    }
}

const TRIES: usize = 1_000_000;

fn at(called: u64, returned: u64, step: Access) -> Timed<Access> {
    Timed { called, returned: Some(returned), step }
}
fn unanswered(called: u64, step: Access) -> Timed<Access> {
    Timed { called, returned: None, step }
}
fn verdict(history: &[Timed<Access>]) -> Verdict {
    check(&Register, history, TRIES)
}

#[test]
fn known_histories_get_their_verdicts() {
    let good: [&[Timed<Access>]; 6] = [
        &[],
        &[at(0, 1, Write(1)), at(2, 3, Read(1))],
        // Side by side: either order.
        &[at(0, 9, Write(1)), at(1, 8, Write(2)), at(10, 11, Read(1))],
        // Seen while it is under way, and seen again.
        &[at(0, 9, Write(1)), at(1, 2, Read(1)), at(3, 4, Read(1))],
        // Never answered, and seen late; or never seen.
        &[unanswered(0, Write(1)), at(5, 6, Read(0)), at(7, 8, Read(1))],
        &[unanswered(0, Write(1)), at(5, 6, Read(0))],
    ];
    let bad: [&[Timed<Access>]; 6] = [
        &[at(0, 1, Read(1))],
        // Stale.
        &[at(0, 1, Write(1)), at(2, 3, Read(0))],
        // New, then old again.
        &[at(0, 9, Write(1)), at(1, 2, Read(1)), at(3, 4, Read(0))],
        // Two readers do not agree on the order.
        &[at(0, 9, Write(1)), at(0, 9, Write(2)), at(10, 11, Read(1)), at(12, 13, Read(2))],
        // Seen before it was called.
        &[at(0, 1, Read(1)), at(2, 3, Write(1))],
        // Not answered, and back after it was overwritten.
        &[unanswered(0, Write(1)), at(1, 2, Read(1)), at(3, 4, Write(2)), at(5, 6, Read(1))],
    ];
    for history in good {
        assert_eq!(verdict(history), Verdict::Linearizable, "{history:?}");
    }
    for history in bad {
        assert_eq!(verdict(history), Verdict::NotLinearizable, "{history:?}");
    }
}

/// What a real register answers: each step happens at one moment of its time.
fn made(random: &mut Random, steps: u64, threads: u64) -> Vec<Timed<Access>> {
    let mut drawn = Vec::new();
    for thread in 0..threads {
        let mut now = random.below(5);
        for n in 0..steps {
            let called = now;
            let happens = called + random.below(20);
            let returned = happens + random.below(20);
            now = returned + 1 + random.below(5);
            let value = (thread * steps + n + 1) as u32;
            let step = if random.chance(40) { Write(value) } else { Read(0) };
            // A step that nobody was told of may have happened.
            let returned = (!random.chance(3)).then_some(returned);
            drawn.push((happens, Timed { called, returned, step }));
        }
    }
    drawn.sort_by_key(|(happens, _)| *happens);
    let mut value = 0;
    for (_, timed) in &mut drawn {
        match &mut timed.step {
            Write(new) => value = *new,
            Read(seen) => *seen = value,
        }
    }
    drawn.into_iter().map(|(_, timed)| timed).collect()
}

#[test]
fn what_a_register_answers_is_linearizable_and_a_changed_answer_is_not() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut history = made(&mut random, 30, 5);
        assert_eq!(verdict(&history), Verdict::Linearizable, "seed {seed}");
        let reads: Vec<usize> = (0..history.len())
            .filter(|i| matches!(history[*i].step, Read(_)) && history[*i].returned.is_some())
            .collect();
        let at = *random.pick(&reads).unwrap();
        // A value from before the last write that was answered before this read began is stale; one that nobody wrote, too.
        let called = history[at].called;
        let overwritten = history.iter().filter_map(|w| match w.step {
            Write(value) if w.returned.is_some_and(|end| end < called) => Some((w.called, w.returned, value)),
            Write(_) | Read(_) => None,
        });
        let (newest, _, _) = overwritten.clone().max().unwrap_or((0, None, 0));
        let stale = overwritten.clone().find(|(_, end, _)| end.is_some_and(|end| end < newest));
        history[at].step = Read(stale.map_or(9999, |(_, _, value)| value));
        assert_eq!(verdict(&history), Verdict::NotLinearizable, "seed {seed}");
        let short = shorten(&Register, &history, TRIES);
        assert!(short.len() <= history.len(), "seed {seed}");
        assert_eq!(verdict(&short), Verdict::NotLinearizable, "seed {seed}");
    }
}

/// Every subset of what was not answered, in every order.
fn by_all_orders(history: &[Timed<Access>], state: u32, done: u32) -> bool {
    let left = |i: usize| done & (1 << i) == 0;
    if (0..history.len()).all(|i| !left(i) || history[i].returned.is_none()) {
        return true;
    }
    (0..history.len()).filter(|i| left(*i)).any(|i| {
        let first = (0..history.len())
            .filter(|j| left(*j) && *j != i)
            .all(|j| history[j].returned.is_none_or(|end| end >= history[i].called));
        first
            && Register
                .next(&state, &history[i].step)
                .into_iter()
                .any(|after| by_all_orders(history, after, done | 1 << i))
    })
}

#[test]
fn small_histories_get_the_verdict_of_all_orders() {
    let mut counts = [0, 0];
    for seed in 0..4000 {
        let mut random = Random::new(seed);
        let mut history = made(&mut random, 2, 3);
        for _ in 0..random.below(3) {
            let at = random.below(history.len() as u64) as usize;
            match &mut history[at].step {
                Read(value) | Write(value) => *value = random.below(7) as u32,
            }
        }
        let wanted = by_all_orders(&history, 0, 0);
        counts[usize::from(wanted)] += 1;
        let wanted = if wanted { Verdict::Linearizable } else { Verdict::NotLinearizable };
        assert_eq!(verdict(&history), wanted, "seed {seed}: {history:?}");
    }
    assert!(counts.iter().all(|n| *n > 500), "{counts:?}");
}

#[test]
fn the_search_ends_at_its_bound() {
    // All at once: too many orders to try each.
    let history: Vec<_> = (0..40).map(|n| at(0, 9, Write(n))).chain([at(10, 11, Read(99))]).collect();
    assert_eq!(check(&Register, &history, 1000), Verdict::Unknown);
}
