//! Goal: a job's order is learned from its runs, measured before it acts (I-PLAN-5), and stored as documented. Method: made-up
//! runs; the golden bytes of a record; damaged ones.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use plan::{Access, Damaged, History, Known, Score, Shadow, Verdict};
use types::{Ino, LocalId, UgsdId};

fn ino(n: u64) -> Ino {
    Ino::new(UgsdId::ROOT, LocalId::new(n + 1).unwrap())
}

fn numbers(history: &History) -> Vec<u64> {
    history.files.iter().map(|known| known.ino.local().get() - 1).collect()
}

fn accesses(files: &[u64], gap_ms: u64) -> Vec<Access> {
    let at = |(n, file): (usize, &u64)| Access { ino: ino(*file), at_ms: n as u64 * gap_ms, bytes: 100 };
    files.iter().enumerate().map(at).collect()
}

/// One more run, measured against what was known before it.
fn run(history: &mut History, files: &[u64]) -> Option<Score> {
    let groups: Vec<Vec<Ino>> =
        history.groups().iter().map(|group| group.iter().map(|known| known.ino).collect()).collect();
    let mut shadow = Shadow::new(&groups);
    files.iter().for_each(|file| shadow.opened(ino(*file)));
    let score = (history.runs > 0).then(|| shadow.score(false));
    history.learn(&accesses(files, 10), score, 1000);
    score
}

#[test]
fn a_plan_acts_when_its_hit_rate_has_earned_it() {
    let mut history = History::new(7, "job".into());
    assert_eq!(history.verdict(0.8), Verdict::TooFewRuns { runs: 0 });
    let same: Vec<u64> = (0..20).collect();
    assert_eq!(run(&mut history, &same), None);
    assert_eq!(history.verdict(0.8), Verdict::TooFewRuns { runs: 1 });
    let score = run(&mut history, &same).unwrap();
    assert_eq!(score, Score { hits: 19, missed: 0, in_vain: 0, acted: false });
    assert_eq!(history.verdict(0.8), Verdict::Acts { rate: 1.0 });

    // Other input from one run to the next: never.
    let mut history = History::new(7, "job".into());
    for n in 0..6 {
        let files: Vec<u64> = (n * 100..n * 100 + 20).collect();
        run(&mut history, &files);
        assert!(!matches!(history.verdict(0.8), Verdict::Acts { .. }), "{history:?}");
    }

    // A job that changes loses what it had earned with its next run, and earns it again.
    let mut history = History::new(7, "job".into());
    (0..4).for_each(|_| assert!(run(&mut history, &same).is_none_or(|score| score.rate() == 1.0)));
    let other: Vec<u64> = (50..70).collect();
    run(&mut history, &other);
    let Verdict::TooWrong { rate } = history.verdict(0.8) else { panic!("{history:?}") };
    assert!((0.5..0.8).contains(&rate), "{rate}");
    let back = (1..10).find(|_| {
        run(&mut history, &other);
        matches!(history.verdict(0.8), Verdict::Acts { .. })
    });
    assert!(back.is_some(), "{history:?}");
}

#[test]
fn what_would_come_up_in_vain_counts_against_it() {
    let mut history = History::new(7, "job".into());
    run(&mut history, &(0..40).collect::<Vec<_>>());
    let score = run(&mut history, &(0..11).collect::<Vec<_>>()).unwrap();
    assert_eq!(score, Score { hits: 10, missed: 0, in_vain: 29, acted: false });
    assert!(score.rate() < 0.3);
}

#[test]
fn runs_are_merged_in_order() {
    let mut history = History::new(7, "job".into());
    run(&mut history, &[1, 2, 3, 4]);
    assert_eq!(numbers(&history), [1, 2, 3, 4]);
    // One that was left out keeps its place, a fresh one has the place of the last run.
    run(&mut history, &[1, 3, 9, 4]);
    assert_eq!(numbers(&history), [1, 2, 3, 9, 4]);
    run(&mut history, &[1, 3, 4]);
    assert_eq!(numbers(&history), [1, 3, 9, 4], "one of two has read 9, one of three 2");
    run(&mut history, &[4, 3, 1]);
    assert_eq!(numbers(&history), [4, 3, 1], "the last order counts");
}

#[test]
fn groups_end_at_pauses_and_bounds() {
    let mut history = History::new(7, "job".into());
    let mut files = accesses(&(0..30).collect::<Vec<_>>(), 10);
    files.iter_mut().skip(10).for_each(|access| access.at_ms += 5000);
    history.learn(&files, None, 0);
    let sizes = |history: &History| history.groups().iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(sizes(&history), [10, 20]);
    history.learn(&accesses(&(0..150).collect::<Vec<_>>(), 10), None, 0);
    assert_eq!(sizes(&history), [64, 64, 22]);
    let mut large = accesses(&[1, 2, 3, 4], 10);
    large.iter_mut().for_each(|access| access.bytes = History::GROUP_BYTES / 2);
    let mut history = History::new(7, "job".into());
    history.learn(&large, None, 0);
    assert_eq!(sizes(&history), [2, 2]);
}

fn sample() -> History {
    let mut history = History::new(1000, "python train.py".into());
    history.runs = 3;
    history.last_end = 1_700_000_000;
    history.scores.push_back(Score { hits: 9, missed: 1, in_vain: 2, acted: true });
    history.files.push(Known { ino: ino(4), bytes: 4096, gap_ms: 17, seen: 0b101 });
    history
}

/// If this fails, histories of earlier versions can no longer be read: raise the version and keep reading this one.
#[test]
fn golden_record() {
    let expected = "4f4e4653504c414e0100e80300000300000000f15365000000000f00707974686f6e2074726169\
                    6e2e7079010900000001000000020000000101000000050000000000000000100000000000001100000005";
    let bytes = sample().encode();
    let (body, crc) = bytes.split_last_chunk::<4>().unwrap();
    let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected);
    assert_eq!(u32::from_le_bytes(*crc), crc32c::crc32c(body));
    assert_eq!(History::decode(&bytes), Ok(sample()));
}

#[test]
fn a_later_version_is_told_from_damage() {
    let mut bytes = sample().encode();
    bytes[8] = 2;
    assert_eq!(History::decode(&bytes), Err(Damaged::Version(2)));
    assert_eq!(History::decode(b""), Err(Damaged::Bytes));
}

#[test]
fn fuzz_history() {
    let mend = |bytes: &mut Vec<u8>| {
        if let Some(end) = bytes.len().checked_sub(4) {
            let crc = crc32c::crc32c(&bytes[..end]);
            bytes[end..].copy_from_slice(&crc.to_le_bytes());
        }
    };
    let good = [sample().encode(), History::new(0, String::new()).encode()];
    fuzzing::fuzz("history", &good, mend, |bytes| {
        if let Ok(history) = History::decode(bytes) {
            let again = history.encode();
            assert_eq!(History::decode(&again).unwrap().files, history.files);
            assert!(history.name.chars().count() > History::NAME_CHARS_MAX || again == bytes);
        }
    });
}
