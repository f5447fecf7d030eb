//! Commands on what comes up before it is read.

use std::time::{Duration, Instant};

use mds::Found;
use plan::{Closing, End, History, Item, Join, Score, Verdict};
use types::{Errno, Ino};

use super::{
    handler::{Ask, unusable},
    parts::failed,
    permission::Want,
    tree::Names,
    upward::{RunView, Source},
};
use crate::control::{
    ControlError, ErrorCode, FileRef, GroupReport, PlanReport, Progress, ProgressSink, Response, RunReport,
    RunState, ScoreReport,
};

/// How often a command that waits looks how far it is.
const LOOK: Duration = Duration::from_millis(100);
/// Files of a plan that are named: looking a name up reads the entries of its directory.
const NAMED_MAX: usize = 1000;
/// Entries of a directory that are looked at for the name of a file.
const ENTRIES_MAX: usize = 10_000;

impl Ask<'_> {
    /// `joined` and `more` are as in [`crate::control::Request::Run`].
    pub fn run(
        &self,
        run: Option<u64>,
        files: &[FileRef],
        sizes: &[u32],
        (joined, more): (bool, bool),
        progress: &mut dyn ProgressSink,
    ) -> Result<Response, ControlError> {
        if sizes.iter().map(|size| *size as usize).sum::<usize>() != files.len() {
            let message = "the groups do not have as many files as the list";
            return Err(ControlError::new(ErrorCode::BadRequest, message));
        }
        if let Some(run) = run {
            self.own_run(run)?;
        }
        let mut left_out = Vec::new();
        let mut rest = files.iter();
        let mut groups: Vec<Vec<Item>> = Vec::new();
        let mut done = 0;
        for size in sizes {
            let mut group = Vec::new();
            for file in rest.by_ref().take(*size as usize) {
                let item = self.one(file, Want::Read).and_then(|one| self.parts.upward.item(one.ino));
                match item {
                    Ok(item) => group.push(item),
                    Err(errno) => left_out.push(unusable(file, errno)),
                }
                done += 1;
                if done % 64 == 0 {
                    progress
                        .report(Progress { what: "looking at the list".into(), ..Progress::default() })?;
                }
            }
            groups.push(group);
        }
        let run = match run {
            Some(run) => run,
            None => self.parts.upward.begin(self.peer.uid).map_err(|_| {
                let message = "as many lists are being read as may be: onfs plan runs shows them";
                ControlError::new(ErrorCode::Busy, message)
            })?,
        };
        let join = if joined { Join::Continue } else { Join::Begin };
        let closing = if more { Closing::More } else { Closing::Complete };
        let added = self.parts.upward.add(run, groups, join, closing);
        match added {
            Ok(()) => {}
            // Ended meanwhile: the report says so.
            Err(Errno::ENOENT) => {}
            Err(Errno::ENOSPC) => {
                self.parts.upward.cancel(run);
                let message = "the lists that are being read have as many files as they may";
                return Err(ControlError::new(ErrorCode::Busy, message));
            }
            Err(errno) => return Err(failed("a run", errno)),
        }
        Ok(Response::Run(RunReport { failed: left_out, ..self.run_show(run)? }))
    }

    pub fn run_show(&self, run: u64) -> Result<RunReport, ControlError> {
        self.own_run(run).map(|view| run_report(&view))
    }

    pub fn run_wait(&self, run: u64, progress: &mut dyn ProgressSink) -> Result<Response, ControlError> {
        loop {
            let report = self.run_show(run)?;
            if report.state != RunState::Running {
                return Ok(Response::Run(report));
            }
            progress.report(Progress {
                done: report.bytes_up,
                total: report.bytes_up + report.bytes_left,
                what: format!("group {} of {}", report.groups_begun, report.groups),
                ..Progress::default()
            })?;
            let left = progress.deadline().map_or(LOOK, |at| at.saturating_duration_since(Instant::now()));
            std::thread::sleep(LOOK.min(left));
        }
    }

    pub fn run_cancel(&self, run: u64) -> Result<Response, ControlError> {
        self.own_run(run)?;
        self.parts.upward.cancel(run);
        self.run_show(run).map(Response::Run)
    }

    pub fn run_list(&self) -> Response {
        let views = self.parts.upward.views();
        Response::Runs(views.iter().filter(|view| self.is_mine(view.uid)).map(run_report).collect())
    }

    pub fn plan_list(&self) -> Response {
        let upward = &self.parts.upward;
        let mine = upward.jobs().into_iter().filter(|(uid, _)| self.is_mine(*uid));
        let known = mine.filter_map(|(uid, name)| upward.history(uid, &name));
        Response::Plans(known.map(|(history, verdict)| plan_report(&history, verdict)).collect())
    }

    pub fn plan_show(&self, name: &str, uid: Option<u32>) -> Result<Response, ControlError> {
        let uid = self.whose(uid)?;
        let (history, verdict) = self.parts.upward.history(uid, name).ok_or_else(|| unknown(name))?;
        let mut names = Names::new(&*self.parts.store, ENTRIES_MAX);
        let mut left = NAMED_MAX;
        let mut path = |ino: Ino| {
            left = left.checked_sub(1)?;
            let may = |found: Found| self.permission.reach(&found).is_ok();
            self.parts.mds.find(ino).is_ok_and(may).then(|| names.path(ino)).flatten()
        };
        let groups = history.groups().into_iter().map(|group| GroupReport {
            files: group.len() as u64,
            bytes: group.iter().map(|known| known.bytes).sum(),
            paths: group.iter().filter_map(|k| path(k.ino)).map(|p| p.display().to_string()).collect(),
        });
        let groups = groups.collect();
        Ok(Response::Plan(PlanReport { groups, ..plan_report(&history, verdict) }))
    }

    pub fn plan_forget(&self, name: &str, uid: Option<u32>) -> Result<Response, ControlError> {
        let uid = self.whose(uid)?;
        if self.parts.upward.forget(uid, name) { Ok(Response::Done) } else { Err(unknown(name)) }
    }

    fn is_mine(&self, uid: u32) -> bool {
        self.peer.privileged || self.peer.uid == uid
    }

    fn own_run(&self, run: u64) -> Result<RunView, ControlError> {
        let view = self.parts.upward.view(run).filter(|view| self.is_mine(view.uid));
        view.ok_or_else(|| ControlError::new(ErrorCode::NotFound, format!("there is no run {run}")))
    }

    fn whose(&self, uid: Option<u32>) -> Result<u32, ControlError> {
        let uid = uid.unwrap_or(self.peer.uid);
        if self.is_mine(uid) { Ok(uid) } else { Err(ControlError::not_allowed("plans of another user")) }
    }
}

fn unknown(name: &str) -> ControlError {
    let message = format!("nothing is remembered of a job {name:?}: onfs plan list shows the names");
    ControlError::new(ErrorCode::NotFound, message)
}

fn run_report(view: &RunView) -> RunReport {
    let report = &view.report;
    RunReport {
        run: view.id,
        uid: view.uid,
        job: match &view.source {
            Source::List => String::new(),
            Source::History(name) => name.clone(),
        },
        state: match report.end {
            None => RunState::Running,
            Some(End::Done) => RunState::Done,
            Some(End::Wrong { .. }) => RunState::Wrong,
            Some(End::Cancelled) => RunState::Cancelled,
            Some(End::Idle) => RunState::Idle,
        },
        groups: u64::from(report.groups),
        groups_begun: u64::from(report.groups_begun),
        files: report.files,
        files_up: report.files_up,
        files_coming: report.files_coming,
        files_skipped: report.files_skipped,
        files_opened: report.files_opened,
        files_hit: report.files_hit,
        files_released: report.files_released,
        bytes_up: report.bytes_up,
        bytes_left: report.bytes_left,
        seen: report.seen,
        wrong: report.wrong,
        short_of_room: report.short_of_room,
        failed: Vec::new(),
    }
}

fn plan_report(history: &History, verdict: Verdict) -> PlanReport {
    let score = |score: &Score| ScoreReport {
        hits: u64::from(score.hits),
        missed: u64::from(score.missed),
        in_vain: u64::from(score.in_vain),
        hit_rate: score.rate(),
        acted: score.acted,
    };
    let (acts, why) = match verdict {
        Verdict::Acts { rate } => (true, format!("{:.0} % of the last runs was foretold", rate * 100.0)),
        Verdict::TooFewRuns { runs } => (false, format!("{runs} of {} runs", History::RUNS_MIN)),
        Verdict::TooWrong { rate } => {
            (false, format!("only {:.0} % of the last runs was foretold", rate * 100.0))
        }
        Verdict::Empty => (false, "its runs have no file in common".to_owned()),
    };
    PlanReport {
        uid: history.uid,
        name: history.name.clone(),
        runs: u64::from(history.runs),
        last_end: history.last_end,
        files: history.files.len() as u64,
        bytes: history.files.iter().map(|known| known.bytes).sum(),
        hit_rate: history.hit_rate(),
        acts,
        why,
        scores: history.scores.iter().map(score).collect(),
        groups: Vec::new(),
    }
}
