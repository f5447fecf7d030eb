//! What is remembered of a job: which files its runs read, in which order, and how good a plan made of that was.

use std::collections::{BTreeMap, VecDeque};

use types::Ino;

/// The first time that a run opened a file to read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    pub ino: Ino,
    /// Since the run began.
    pub at_ms: u64,
    /// Its size then.
    pub bytes: u64,
}

/// A file that runs have read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    pub ino: Ino,
    pub bytes: u64,
    /// Between the file before it and this one, in the last run that read it.
    pub gap_ms: u32,
    /// Which of the last eight runs read it: bit 0 is the last one.
    pub seen: u8,
}

/// How good the plan was for one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Score {
    pub hits: u32,
    /// Opened, and not in what would have been up.
    pub missed: u32,
    /// In it, and not opened.
    pub in_vain: u32,
    /// It was not only measured.
    pub acted: bool,
}

/// Does the plan of a job act?
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Verdict {
    Acts {
        rate: f64,
    },
    TooFewRuns {
        runs: u32,
    },
    TooWrong {
        rate: f64,
    },
    /// Nothing is in it that runs have in common.
    Empty,
}

/// One job's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct History {
    /// Whose runs they are.
    pub uid: u32,
    pub name: String,
    pub runs: u32,
    /// When the last run ended, in seconds since 1970.
    pub last_end: u64,
    /// The oldest first.
    pub scores: VecDeque<Score>,
    /// In the order of a run.
    pub files: Vec<Known>,
}

impl History {
    /// Runs that are needed before a plan acts: one to learn from and one to measure it on.
    pub const RUNS_MIN: u32 = 2;
    /// Longer names are cut.
    pub const NAME_CHARS_MAX: usize = 120;
    /// Files that are remembered of a job, 24 bytes each.
    pub const FILES_MAX: usize = 1 << 16;
    /// Runs whose scores are kept.
    pub const SCORES_MAX: usize = 8;
    /// Of these the last ones make up the hit rate, so that a job whose input has changed soon earns it again, or no more.
    pub const SCORES_COUNT: usize = 4;
    /// A group is as much as may come up while the one before is read: not more than this, and it ends where the job paused.
    pub const GROUP_FILES: usize = 64;
    pub const GROUP_BYTES: u64 = 1 << 30;
    /// A pause is longer than this, and than so many times the usual gap between two files.
    const PAUSE_MS: u32 = 1000;
    const PAUSE_FACTOR: u32 = 8;

    pub fn new(uid: u32, name: String) -> History {
        History { uid, name, runs: 0, last_end: 0, scores: VecDeque::new(), files: Vec::new() }
    }

    /// Takes a run in. Its order goes before that of earlier runs; files that it did not read keep their place behind the
    /// file that they followed, and are forgotten when more than half of the runs since they were first read have not read them.
    pub fn learn(&mut self, accesses: &[Access], score: Option<Score>, ended: u64) {
        let mut follows: BTreeMap<Option<Ino>, Vec<Known>> = BTreeMap::new();
        let fresh: BTreeMap<Ino, ()> = accesses.iter().map(|a| (a.ino, ())).collect();
        let mut old_seen = BTreeMap::new();
        let mut before = None;
        for known in &self.files {
            old_seen.insert(known.ino, known.seen);
            if fresh.contains_key(&known.ino) {
                before = Some(known.ino);
            } else {
                follows.entry(before).or_default().push(Known { seen: known.seen << 1, ..*known });
            }
        }
        let (mut files, mut last_ms) = (follows.remove(&None).unwrap_or_default(), None);
        for access in accesses {
            let seen = old_seen.get(&access.ino).map_or(0, |seen| seen << 1) | 1;
            let gap = access.at_ms.saturating_sub(last_ms.unwrap_or(access.at_ms));
            last_ms = Some(access.at_ms);
            let gap_ms = u32::try_from(gap).unwrap_or(u32::MAX);
            files.push(Known { ino: access.ino, bytes: access.bytes, gap_ms, seen });
            files.extend(follows.remove(&Some(access.ino)).unwrap_or_default());
        }
        self.runs = self.runs.saturating_add(1);
        self.last_end = ended;
        files.retain(History::is_usual);
        files.truncate(History::FILES_MAX);
        self.files = files;
        self.scores.extend(score);
        while self.scores.len() > History::SCORES_MAX {
            self.scores.pop_front();
        }
    }

    /// Did the last run read it, or at least half of those since it was first read?
    fn is_usual(known: &Known) -> bool {
        let since = u8::BITS - known.seen.leading_zeros();
        known.seen & 1 == 1 || known.seen.count_ones() * 2 >= since.max(1)
    }

    /// What a run would read, in groups.
    pub fn groups(&self) -> Vec<Vec<Known>> {
        let mut gaps: Vec<u32> = self.files.iter().map(|known| known.gap_ms).collect();
        gaps.sort_unstable();
        let usual = gaps.get(gaps.len() / 2).copied().unwrap_or(0);
        let pause = usual.saturating_mul(History::PAUSE_FACTOR).max(History::PAUSE_MS);
        let mut groups: Vec<Vec<Known>> = Vec::new();
        let mut bytes = 0u64;
        for known in &self.files {
            match groups.last_mut() {
                Some(group)
                    if known.gap_ms <= pause
                        && group.len() < History::GROUP_FILES
                        && bytes.saturating_add(known.bytes) <= History::GROUP_BYTES =>
                {
                    group.push(*known);
                    bytes += known.bytes;
                }
                Some(_) | None => {
                    groups.push(vec![*known]);
                    bytes = known.bytes;
                }
            }
        }
        groups
    }

    /// Of the last measured runs, together; `None` when none was.
    pub fn hit_rate(&self) -> Option<f64> {
        let last = self.scores.iter().rev().take(History::SCORES_COUNT);
        let (hits, all) =
            last.fold((0u64, 0u64), |(hits, all), score| (hits + u64::from(score.hits), all + score.all()));
        (!self.scores.is_empty()).then(|| if all == 0 { 0.0 } else { hits as f64 / all as f64 })
    }

    /// I-PLAN-5.
    pub fn verdict(&self, threshold: f64) -> Verdict {
        match self.hit_rate() {
            _ if self.runs < History::RUNS_MIN => Verdict::TooFewRuns { runs: self.runs },
            None => Verdict::TooFewRuns { runs: self.runs },
            Some(_) if self.files.is_empty() => Verdict::Empty,
            Some(rate) if rate < threshold => Verdict::TooWrong { rate },
            Some(rate) => Verdict::Acts { rate },
        }
    }
}

impl Score {
    fn all(&self) -> u64 {
        u64::from(self.hits) + u64::from(self.missed) + u64::from(self.in_vain)
    }

    /// Share of the files that the plan and the run had in common, of those that either had.
    pub fn rate(&self) -> f64 {
        if self.all() == 0 { 0.0 } else { f64::from(self.hits) / self.all() as f64 }
    }
}
