//! The runs of a mount: whose they are, what they hear, and what they ask for.

use std::collections::{BTreeMap, HashSet, VecDeque};

use plan::{Effect, End, Input, Report, Run, Settings, Time};
use types::{Errno, Ino};

use super::listen::GroupId;

/// Runs at the same time: each has two files under way at most, and a device is busy with a few.
const RUNS_MAX: usize = 16;
const RUNS_PER_USER: usize = 4;
/// Files of all lists together, some 200 bytes each; of one user a half.
const FILES_MAX: usize = 1 << 18;
/// Ended ones that can still be asked about.
const ENDED_MAX: usize = 32;

/// Who made the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A program, or who commands it.
    List,
    /// What earlier runs of this job have read.
    History(String),
}

/// One run, as it is reported.
#[derive(Clone, PartialEq, Debug)]
pub struct RunView {
    pub id: u64,
    pub uid: u32,
    pub source: Source,
    pub report: Report,
}

/// What the movers are to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Promote { run: u64, ino: Ino },
    Release { ino: Ino },
}

struct Active {
    run: Run,
    uid: u32,
    source: Source,
    /// Who reads from the list: of these every file counts that they open.
    readers: HashSet<GroupId>,
}

#[derive(Default)]
pub struct Runs {
    last: u64,
    active: BTreeMap<u64, Active>,
    ended: VecDeque<RunView>,
    asked: Vec<Asked>,
}

impl Runs {
    pub fn start(&mut self, uid: u32, source: Source, settings: Settings, now: Time) -> Result<u64, Errno> {
        let of_user = self.active.values().filter(|active| active.uid == uid).count();
        if self.active.len() >= RUNS_MAX || of_user >= RUNS_PER_USER {
            return Err(Errno::EBUSY);
        }
        self.last += 1;
        let readers = HashSet::new();
        self.active.insert(self.last, Active { run: Run::new(settings, now), uid, source, readers });
        Ok(self.last)
    }

    /// May so many files be added to the list?
    pub fn has_room(&self, id: u64, more: usize) -> Result<(), Errno> {
        let run = self.active.get(&id).ok_or(Errno::ENOENT)?;
        let sum = |of: &dyn Fn(&Active) -> bool| -> usize {
            self.active.values().filter(|a| of(a)).map(|a| a.run.len()).sum()
        };
        let fits = sum(&|_| true) + more <= FILES_MAX && sum(&|a| a.uid == run.uid) + more <= FILES_MAX / 2;
        if fits { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    pub fn is_running(&self, id: u64) -> bool {
        self.active.contains_key(&id)
    }

    pub fn view(&self, id: u64) -> Option<RunView> {
        let active = self.active.get(&id).map(|active| active.view(id));
        active.or_else(|| self.ended.iter().find(|view| view.id == id).cloned())
    }

    /// In the order in which they began.
    pub fn views(&self) -> Vec<RunView> {
        let active = self.active.iter().map(|(id, active)| active.view(*id));
        let mut views: Vec<RunView> = self.ended.iter().cloned().chain(active).collect();
        views.sort_by_key(|view| view.id);
        views
    }

    pub fn add_reader(&mut self, id: u64, group: GroupId) {
        if let Some(active) = self.active.get_mut(&id) {
            active.readers.insert(group);
        }
    }

    pub fn opened(&mut self, ino: Ino, group: GroupId, uid: u32, now: Time) {
        for id in self.ids() {
            let Some(active) = self.active.get_mut(&id) else { continue };
            let reads = if active.run.lists(ino) {
                match &active.source {
                    // Whoever may command files may make a list for others.
                    Source::List if uid == active.uid || active.uid == 0 => {
                        active.readers.insert(group);
                        true
                    }
                    Source::List => false,
                    Source::History(_) => active.readers.contains(&group),
                }
            } else {
                active.readers.contains(&group)
            };
            if reads {
                self.feed(id, Input::Opened { ino }, now);
            }
        }
    }

    pub fn closed(&mut self, ino: Ino, now: Time) {
        for id in self.ids() {
            if self.active.get(&id).is_some_and(|active| active.run.lists(ino)) {
                self.feed(id, Input::Closed { ino }, now);
            }
        }
    }

    /// `free`: bytes above C_n-m beside all that is under way; `moving` tells how much of it is reserved for a file.
    pub fn room(&mut self, free: u64, most: u64, moving: &dyn Fn(Ino) -> u64, now: Time) {
        for id in self.ids() {
            let Some(active) = self.active.get(&id) else { continue };
            let own: u64 = active.run.coming().map(|(ino, _)| moving(ino)).sum();
            self.feed(id, Input::Room { free: free + own, most }, now);
        }
    }

    pub fn deadlines(&mut self, now: Time) {
        for id in self.ids() {
            let Some(active) = self.active.get_mut(&id) else { continue };
            if active.run.next_deadline().is_some_and(|(at, _)| at <= now) {
                active.run.handle_deadline(now);
                self.drain(id);
            }
        }
    }

    pub fn feed(&mut self, id: u64, input: Input, now: Time) {
        if let Some(active) = self.active.get_mut(&id) {
            active.run.handle(now, input);
            self.drain(id);
        }
    }

    /// What is to be done since this was asked last.
    pub fn take_asked(&mut self) -> Vec<Asked> {
        std::mem::take(&mut self.asked)
    }

    fn ids(&self) -> Vec<u64> {
        self.active.keys().copied().collect()
    }

    fn drain(&mut self, id: u64) {
        let mut ended = None;
        while let Some(effect) = self.active.get_mut(&id).and_then(|active| active.run.poll_effect()) {
            match effect {
                Effect::Promote { ino } => self.asked.push(Asked::Promote { run: id, ino }),
                Effect::Release { ino } => {
                    if !self.active.iter().any(|(other, active)| *other != id && active.run.wants(ino)) {
                        self.asked.push(Asked::Release { ino });
                    }
                }
                Effect::Ended(end) => ended = Some(end),
            }
        }
        if let Some(end) = ended
            && let Some(active) = self.active.remove(&id)
        {
            let view = active.view(id);
            note_end(&view, end);
            self.ended.push_back(view);
            if self.ended.len() > ENDED_MAX {
                self.ended.pop_front();
            }
        }
    }
}

impl Active {
    fn view(&self, id: u64) -> RunView {
        RunView { id, uid: self.uid, source: self.source.clone(), report: self.run.report() }
    }
}

fn note_end(view: &RunView, end: End) {
    let RunView { id, uid, source, report } = view;
    let (up, of, hits) = (report.files_up, report.files, report.files_hit);
    match end {
        End::Wrong { wrong, seen } => tracing::warn!(
            run = id,
            uid,
            ?source,
            wrong,
            seen,
            up,
            of,
            hits,
            "a list is given up: too many of the last files that its program opened are not in it, or in another order"
        ),
        End::Done | End::Cancelled | End::Idle => {
            tracing::info!(run = id, uid, ?source, ?end, up, of, hits, "a list has ended");
        }
    }
}
