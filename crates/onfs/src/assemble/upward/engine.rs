//! The threads: one hears and decides, a few move.

use std::{
    collections::HashMap,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use client::Purpose;
use parking_lot::Mutex;
use plan::{Closing, History, Input, Item, Join, Settings, Time, Verdict, Wrongness};
use types::{Errno, Ino, TierId};

use super::{
    jobs::{Begun, Jobs},
    listen::{Ears, Heard},
    movers::{self, Work},
    parts::UpwardParts,
    runs::{Asked, RunView, Runs, Source},
    shelf::{JobKey, Shelf},
};
use crate::config::PlanConfig;

/// Files that come up or go at the same time, of all runs.
const MOVERS: usize = 4;
/// While there are runs, the room is looked at this often.
const LOOK: Duration = Duration::from_millis(100);
/// Whether a job still has processes is asked this often.
const ASK_JOBS: Duration = Duration::from_secs(1);
/// Between two looks at the line while files are opened.
const GATHER: Duration = Duration::from_millis(5);
/// Openings that are taken from the line before the rest is looked after: all that it holds.
const AT_ONCE: usize = 1 << 14;
/// Groups that a run from history is told of before they are reached.
const GROUPS_AHEAD: u32 = 3;
const HISTORY_DIR: &str = "history";

/// See the module. [`Upward::shutdown`] ends it.
pub struct Upward {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    parts: UpwardParts,
    ears: Arc<Ears>,
    config: PlanConfig,
    /// Taken before `runs` where both are needed. `None` where nothing is remembered.
    jobs: Mutex<Option<Jobs>>,
    runs: Mutex<Runs>,
    work: Work,
    stopping: AtomicBool,
    origin: Instant,
}

impl Upward {
    pub fn start(
        parts: UpwardParts,
        config: &PlanConfig,
        state: &Path,
        (ears, heard): (Arc<Ears>, Receiver<Heard>),
    ) -> io::Result<Upward> {
        let shared = Arc::new(Shared {
            parts,
            ears,
            config: config.clone(),
            jobs: Mutex::default(),
            runs: Mutex::default(),
            work: Work::default(),
            stopping: AtomicBool::new(false),
            origin: Instant::now(),
        });
        let upward = Upward { shared: shared.clone(), threads: Mutex::default() };
        let history = state.join(HISTORY_DIR);
        upward.spawn("upward", move || {
            shared.open_history(&history);
            shared.hear(&heard);
        })?;
        for _ in 0..MOVERS {
            let shared = upward.shared.clone();
            upward.spawn("upward-move", move || shared.work())?;
        }
        Ok(upward)
    }

    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread =
            std::thread::Builder::new().name(name.into()).spawn(run).inspect_err(|_| self.shutdown())?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Ends the threads; what comes up is left where it is. The jobs that have ended are learned.
    pub fn shutdown(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        let threads: Vec<JoinHandle<()>> = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of upward movement ended with a panic");
            }
        }
    }

    /// A run over a list that follows with [`Upward::add`].
    pub fn begin(&self, uid: u32) -> Result<u64, Errno> {
        let shared = &self.shared;
        let id = shared.runs.lock().start(uid, Source::List, Settings::default(), shared.now())?;
        shared.ears.listen(shared.config.history, true);
        Ok(id)
    }

    /// Adds groups of files, which the caller holds in use.
    pub fn add(&self, run: u64, groups: Vec<Vec<Item>>, join: Join, closing: Closing) -> Result<(), Errno> {
        let more = groups.iter().map(Vec::len).sum();
        let shared = &self.shared;
        {
            let mut runs = shared.runs.lock();
            runs.has_room(run, more)?;
            runs.feed(run, Input::Added { groups, join, closing }, shared.now());
        }
        shared.look_at_room();
        Ok(())
    }

    pub fn cancel(&self, run: u64) {
        self.shared.runs.lock().feed(run, Input::Cancelled, self.shared.now());
    }

    pub fn view(&self, run: u64) -> Option<RunView> {
        self.shared.runs.lock().view(run)
    }

    pub fn views(&self) -> Vec<RunView> {
        self.shared.runs.lock().views()
    }

    /// How a file of a list stands.
    pub fn item(&self, ino: Ino) -> Result<Item, Errno> {
        self.shared.parts.item(ino)
    }

    /// Whose plans there are.
    pub fn jobs(&self) -> Vec<(u32, String)> {
        let jobs = self.shared.jobs.lock();
        jobs.iter().flat_map(|jobs| jobs.shelf.keys()).map(|key| (key.uid, key.name.clone())).collect()
    }

    pub fn history(&self, uid: u32, name: &str) -> Option<(History, Verdict)> {
        let key = JobKey { uid, name: name.to_owned() };
        let history = self.shared.jobs.lock().as_ref()?.shelf.load(&key)?;
        let verdict = history.verdict(self.shared.config.threshold);
        Some((history, verdict))
    }

    pub fn forget(&self, uid: u32, name: &str) -> bool {
        let key = JobKey { uid, name: name.to_owned() };
        self.shared.jobs.lock().as_mut().is_some_and(|jobs| jobs.forget(&key))
    }
}

impl Shared {
    fn now(&self) -> Time {
        self.origin.elapsed()
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn open_history(&self, dir: &Path) {
        if !self.config.history {
            return;
        }
        match Shelf::open(dir, seconds()) {
            Ok(shelf) => {
                let jobs = Jobs::new(shelf, self.config.job_variables.clone(), self.config.threshold);
                *self.jobs.lock() = Some(jobs);
            }
            Err(error) => tracing::warn!(%error, dir = %dir.display(), "no history of jobs is kept"),
        }
    }

    fn hear(&self, line: &Receiver<Heard>) {
        let mut asked_jobs = Instant::now();
        while !self.stopping() {
            match line.recv_timeout(LOOK) {
                Ok(first) => {
                    self.heard(first);
                    // Whoever opens files then has nobody to wake.
                    std::thread::sleep(GATHER);
                    line.try_iter().take(AT_ONCE).for_each(|heard| self.heard(heard));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.tend();
            if asked_jobs.elapsed() >= ASK_JOBS {
                asked_jobs = Instant::now();
                self.settle_jobs();
                self.note_dropped();
            }
        }
        line.try_iter().for_each(|heard| self.heard(heard));
        self.settle_jobs();
    }

    fn heard(&self, heard: Heard) {
        let now = self.now();
        match heard {
            Heard::Closed { ino } => self.runs.lock().closed(ino, now),
            Heard::Opened { ino, purpose, group, uid } => {
                let begun = self.jobs.lock().as_mut().map_or(Begun::Nothing, |jobs| {
                    let begun = if purpose == Purpose::Read { jobs.meet(group, uid) } else { Begun::Nothing };
                    jobs.opened(ino, purpose, group);
                    begun
                });
                match begun {
                    Begun::Nothing => {}
                    Begun::Reader(run) => self.runs.lock().add_reader(run, group),
                    Begun::Plan(key, groups) => {
                        if let Some(run) = self.act(&key, groups) {
                            self.runs.lock().add_reader(run, group);
                        }
                    }
                }
                if purpose == Purpose::Read {
                    self.runs.lock().opened(ino, group, uid, now);
                }
            }
        }
    }

    /// Begins the run of a job's plan.
    fn act(&self, key: &JobKey, groups: Vec<Vec<Ino>>) -> Option<u64> {
        let settings = Settings { wrongness: Wrongness::HISTORY, ..Settings::default() };
        let source = Source::History(key.name.clone());
        let run = self.runs.lock().start(key.uid, source, settings, self.now()).ok()?;
        self.ears.listen(true, true);
        if let Some(live) = self.jobs.lock().as_mut().and_then(|jobs| jobs.live.get_mut(key)) {
            live.run = Some(run);
            live.to_come = groups.into();
        }
        self.go_on_with_plans();
        Some(run)
    }

    /// Tells the runs of plans of the groups that they come to next.
    fn go_on_with_plans(&self) {
        let mut jobs = self.jobs.lock();
        let acting = jobs.iter_mut().flat_map(|jobs| jobs.live.values_mut());
        for live in acting.filter(|live| !live.to_come.is_empty()) {
            let Some(run) = live.run else { continue };
            let Some(view) = self.runs.lock().view(run).filter(|view| view.report.end.is_none()) else {
                live.to_come.clear();
                continue;
            };
            let mut known = view.report.groups;
            while known < view.report.groups_begun + GROUPS_AHEAD
                && let Some(group) = live.to_come.pop_front()
            {
                let items: Vec<Item> = group.iter().filter_map(|ino| self.parts.item(*ino).ok()).collect();
                known += u32::from(!items.is_empty());
                let closing = if live.to_come.is_empty() { Closing::Complete } else { Closing::More };
                let added = Input::Added { groups: vec![items], join: Join::Begin, closing };
                let mut runs = self.runs.lock();
                if runs.has_room(run, group.len()).is_ok() {
                    runs.feed(run, added, self.now());
                }
            }
        }
    }

    /// What is due by time: room, deadlines, groups that plans come to.
    fn tend(&self) {
        if !self.runs.lock().is_empty() {
            self.go_on_with_plans();
            self.look_at_room();
        }
        self.pass_work();
        let runs = self.runs.lock();
        self.ears.listen(self.config.history, !runs.is_empty());
    }

    fn look_at_room(&self) {
        let (free, most) = self.parts.room();
        let reserved: HashMap<Ino, u64> = (self.parts.ds.moves().iter())
            .filter(|step| step.to == TierId::Memory && step.from != step.to)
            .map(|step| (step.ino, step.bytes))
            .collect();
        {
            let mut runs = self.runs.lock();
            let now = self.now();
            runs.room(free, most, &|ino| reserved.get(&ino).copied().unwrap_or(0), now);
            runs.deadlines(now);
        }
        self.pass_work();
    }

    fn pass_work(&self) {
        let asked = self.runs.lock().take_asked();
        self.work.push(asked);
    }

    fn settle_jobs(&self) {
        let size = |ino| self.parts.mds.find(ino).ok().map(|found| found.attr.size);
        let runs = self.jobs.lock().as_mut().map_or(Vec::new(), |jobs| jobs.settle(&size, seconds()));
        let now = self.now();
        runs.into_iter().for_each(|run| self.runs.lock().feed(run, Input::Cancelled, now));
    }

    fn note_dropped(&self) {
        let dropped = self.ears.take_dropped();
        if dropped > 0 {
            tracing::warn!(dropped, "files were opened faster than their pattern can be followed");
        }
    }

    fn work(&self) {
        while !self.stopping() {
            match self.work.next() {
                None => {}
                Some(Asked::Release { ino }) => {
                    movers::release(&self.parts, ino);
                    self.look_at_room();
                }
                Some(Asked::Promote { run, ino }) => {
                    let wanted = || !self.stopping() && self.runs.lock().is_running(run);
                    let end = movers::promote(&self.parts, ino, &wanted);
                    self.runs.lock().feed(run, Input::PromotionEnded { ino, end }, self.now());
                    self.look_at_room();
                }
            }
        }
    }
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
