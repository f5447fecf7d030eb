//! The jobs that run now: what they have opened, what is remembered of them, and what their plan would be worth.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

use client::Purpose;
use plan::{Access, History, Shadow, Verdict};
use types::Ino;

use super::{
    listen::GroupId,
    process,
    shelf::{JobKey, Shelf},
};

/// Jobs at the same time; those that come then are not learned.
const LIVE_MAX: usize = 64;
/// Process groups that are known, jobs or not; beyond, the dead ones are looked for first.
const GROUPS_MAX: usize = 4096;
/// Files that all jobs together have opened, some 100 bytes each.
const FILES_MAX: usize = 1 << 18;
/// A job that opens nothing for so long has ended, for us.
const IDLE: Duration = Duration::from_secs(2 * 3600);
/// Fewer files are no pattern.
const FILES_MIN: usize = 2;

/// A job that runs.
pub struct Live {
    pub key: JobKey,
    groups: HashSet<GroupId>,
    began: Instant,
    heard: Instant,
    accesses: Vec<Access>,
    seen: HashSet<Ino>,
    /// What it made itself is no input.
    made: HashSet<Ino>,
    history: History,
    shadow: Option<Shadow>,
    /// The run that brings up what its plan says, if it acts.
    pub run: Option<u64>,
    /// What that run has not been told of yet.
    pub to_come: VecDeque<Vec<Ino>>,
}

/// What an opening begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begun {
    Nothing,
    /// The job's plan acts: a run over these groups.
    Plan(JobKey, Vec<Vec<Ino>>),
    /// One more process group of a job whose plan acts.
    Reader(u64),
}

pub struct Jobs {
    pub shelf: Shelf,
    variables: Vec<String>,
    threshold: f64,
    groups: HashMap<GroupId, Option<JobKey>>,
    pub live: BTreeMap<JobKey, Live>,
    files: usize,
}

impl Jobs {
    pub fn new(shelf: Shelf, variables: Vec<String>, threshold: f64) -> Jobs {
        Jobs { shelf, variables, threshold, groups: HashMap::new(), live: BTreeMap::new(), files: 0 }
    }

    /// The job of a process group, which may begin with this.
    pub fn meet(&mut self, group: GroupId, uid: u32) -> Begun {
        if group.0 == 0 || self.groups.contains_key(&group) {
            return Begun::Nothing;
        }
        if self.groups.len() >= GROUPS_MAX {
            self.groups.retain(|group, _| process::lives(*group));
            if self.groups.len() >= GROUPS_MAX {
                return Begun::Nothing;
            }
        }
        let name = process::name_of(group, uid, &self.variables);
        let key = name.map(|name| JobKey { uid, name });
        self.groups.insert(group, key.clone());
        let Some(key) = key else { return Begun::Nothing };
        if let Some(live) = self.live.get_mut(&key) {
            live.groups.insert(group);
            return live.run.map_or(Begun::Nothing, Begun::Reader);
        }
        if self.live.len() >= LIVE_MAX {
            self.groups.insert(group, None);
            return Begun::Nothing;
        }
        self.begin(group, key)
    }

    fn begin(&mut self, group: GroupId, key: JobKey) -> Begun {
        let known = self.shelf.load(&key);
        let history = known.unwrap_or_else(|| History::new(key.uid, key.name.clone()));
        let groups: Vec<Vec<Ino>> =
            history.groups().iter().map(|group| group.iter().map(|known| known.ino).collect()).collect();
        let acts = matches!(history.verdict(self.threshold), Verdict::Acts { .. });
        let now = Instant::now();
        let live = Live {
            key: key.clone(),
            groups: HashSet::from([group]),
            began: now,
            heard: now,
            accesses: Vec::new(),
            seen: HashSet::new(),
            made: HashSet::new(),
            shadow: (history.runs > 0).then(|| Shadow::new(&groups)),
            history,
            run: None,
            to_come: VecDeque::new(),
        };
        self.live.insert(key.clone(), live);
        if acts { Begun::Plan(key, groups) } else { Begun::Nothing }
    }

    pub fn opened(&mut self, ino: Ino, purpose: Purpose, group: GroupId) {
        let Some(key) = self.groups.get(&group).and_then(Option::as_ref) else { return };
        let Some(live) = self.live.get_mut(key) else { return };
        live.heard = Instant::now();
        let room = self.files < FILES_MAX && live.seen.len() + live.made.len() < History::FILES_MAX;
        let fresh = match purpose {
            Purpose::Make => room && !live.seen.contains(&ino) && live.made.insert(ino),
            Purpose::Read if live.made.contains(&ino) || !room => false,
            Purpose::Read => live.seen.insert(ino),
        };
        self.files += usize::from(fresh);
        if fresh && purpose == Purpose::Read {
            let at_ms = live.began.elapsed().as_millis() as u64;
            live.accesses.push(Access { ino, at_ms, bytes: 0 });
            live.shadow.iter_mut().for_each(|shadow| shadow.opened(ino));
        }
    }

    /// Learns the jobs that have ended; returns the runs of their plans. `size` is of a file now.
    pub fn settle(&mut self, size: &dyn Fn(Ino) -> Option<u64>, now_s: u64) -> Vec<u64> {
        let ended = |live: &Live| {
            live.heard.elapsed() >= IDLE || !live.groups.iter().any(|group| process::lives(*group))
        };
        let over: Vec<JobKey> = self.live.values().filter(|l| ended(l)).map(|l| l.key.clone()).collect();
        let mut runs = Vec::new();
        for key in over {
            let Some(live) = self.live.remove(&key) else { continue };
            self.groups.retain(|_, job| job.as_ref() != Some(&key));
            self.files = self.files.saturating_sub(live.seen.len() + live.made.len());
            runs.extend(live.run);
            self.learn(live, size, now_s);
        }
        self.groups.retain(|group, job| job.is_some() || process::lives(*group));
        runs
    }

    fn learn(&mut self, live: Live, size: &dyn Fn(Ino) -> Option<u64>, now_s: u64) {
        let Live { accesses, mut history, shadow, run, .. } = live;
        if accesses.len() < FILES_MIN && history.runs == 0 {
            return;
        }
        let there = |access: Access| Some(Access { bytes: size(access.ino)?, ..access });
        let accesses: Vec<Access> = accesses.into_iter().filter_map(there).collect();
        let score = shadow.map(|shadow| shadow.score(run.is_some()));
        history.learn(&accesses, score, now_s);
        let (name, uid, runs) = (&history.name, history.uid, history.runs);
        tracing::debug!(name, uid, runs, files = accesses.len(), ?score, "a job has ended");
        if let Err(error) = self.shelf.save(&history) {
            tracing::warn!(%error, name, "a job's history was not saved");
        }
    }

    pub fn forget(&mut self, key: &JobKey) -> bool {
        let known = self.shelf.keys().any(|k| k == key);
        self.shelf.forget(key);
        if let Some(live) = self.live.get_mut(key) {
            live.history = History::new(key.uid, key.name.clone());
            live.shadow = None;
        }
        known
    }
}
