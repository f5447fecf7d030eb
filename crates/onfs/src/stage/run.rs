//! The run of a stage: starts its threads, watches deadline and signals, shows progress, and says how it ended.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    ending,
    job::{Ended, Job, Options},
    journal::{self, Journal},
    pairs::{self, Pair},
    report::StageReport,
    walk,
    worker::{self, Work},
};
use crate::{
    control::Progress,
    exit::{Failure, Outcome},
};

/// How often progress is shown, and signals and the deadline are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A call to a file system that has not come back so long after the end was told is left to its fate.
const GRACE: Duration = Duration::from_secs(10);

/// What ends a run before its time.
pub struct Watch<'a> {
    pub deadline: Option<Instant>,
    pub interrupted: &'a AtomicBool,
    pub progress: &'a mut dyn FnMut(&Progress),
}

/// The journal of a job, if an earlier run left one in one of these places.
pub fn journal_of(pairs: &[Pair], out: bool, prefix: &str, places: &[&Path]) -> Option<PathBuf> {
    let name = journal_name(pairs, out, prefix);
    places.iter().map(|place| place.join(&name)).find(|path| path.symlink_metadata().is_ok())
}

pub fn journal_name(pairs: &[Pair], out: bool, prefix: &str) -> String {
    format!("{prefix}{:032x}.journal", pairs::job_id(pairs, out))
}

/// Copies all pairs. `journal`: where the journal is, or is to be made.
pub fn run(
    pairs: Vec<Pair>,
    options: Options,
    out: bool,
    journal: &Path,
    watch: Watch<'_>,
) -> Outcome<StageReport> {
    let begun = Instant::now();
    let id = pairs::job_id(&pairs, out);
    let journal = match options.dry_run {
        true => None,
        false => Some(Journal::open(journal, id, journal::boot())?),
    };
    let job = Arc::new(Job::new(id, pairs, options, journal));
    let (ended, ends) = mpsc::sync_channel::<()>(1);
    let worked = job.clone();
    let thread = thread::Builder::new().name("stage".into()).spawn(move || {
        all(&worked);
        drop(ended);
    });
    thread.map_err(|e| Failure::failed(format!("a thread: {e}")))?;
    watched(&job, &ends, watch);
    Ok(report(&job, begun))
}

/// Everything, in order. Its threads end when it does.
fn all(job: &Job) {
    let queue = Work::new();
    let later = thread::scope(|scope| {
        for _ in 0..job.options.jobs.max(1) {
            scope.spawn(|| worker::work(job, &queue));
        }
        walk::walk(job, &queue)
    });
    ending::end(job, &later);
}

fn watched(job: &Job, ends: &mpsc::Receiver<()>, watch: Watch<'_>) {
    let mut given_up: Option<Instant> = None;
    loop {
        match ends.recv_timeout(LOOK) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        (watch.progress)(&job.tally.progress());
        if watch.interrupted.load(Ordering::SeqCst) {
            job.stop(Ended::Interrupted);
        }
        if watch.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            job.stop(Ended::Deadline);
        }
        if job.is_stopping() && given_up.get_or_insert_with(Instant::now).elapsed() >= GRACE {
            job.tally.note("a call to a file system has not come back");
            return;
        }
    }
}

fn report(job: &Job, begun: Instant) -> StageReport {
    let mut report = job.tally.report(begun.elapsed());
    report.ended_by = job.ended().map(|why| why.to_string()).unwrap_or_default();
    report.complete = report.failed_count == 0 && report.ended_by.is_empty() && !job.options.dry_run;
    report.verified = report.complete && job.options.verify;
    report.durable = report.complete && job.options.durable;
    report
}
