//! Commands on files: migrate, flush, prefetch, pin, unpin.

use std::{path::PathBuf, time::Instant};

use super::{
    ask::{call, unexpected},
    tree::{BatchLimits, Group, batches, group, read_groups},
};
use crate::{
    args::{FlushArgs, MigrateArgs, Output, PinArgs, PrefetchArgs, UnpinArgs, Wait},
    control::{Client, FileRef, MoveReport, Progress, Request, Response},
    exit::{Exit, Failure, Outcome},
    locate,
    render::{self, Meter},
};
use types::{Ino, TierId};

pub fn migrate(args: &MigrateArgs) -> Outcome {
    let (to, wait): (TierId, bool) = (args.to.id(), args.wait.waits());
    let report = each(&args.path, args.wait, "moving", &|files| Request::Migrate { files, to, wait })?;
    finish("moved", &report, args.output, Exit::Failure)
}

pub fn flush(args: &FlushArgs) -> Outcome {
    let wait = args.wait.waits();
    let flushed = flush_groups(&group(&args.path)?, wait, args.wait.end())?;
    let report = flushed.report;
    // What the user may not use, or has no data, is no danger that this flush leaves.
    let asked = |errno| !matches!(errno, libc::EACCES | libc::EPERM | libc::EINVAL | libc::ENOENT);
    let in_danger = flushed.undrained > 0 || report.failed.iter().any(|file| asked(file.errno));
    finish("safe", &report, args.output, if in_danger { Exit::DataAtRisk } else { Exit::Failure })?;
    // Transient data are where they are promised.
    let unkept = report.at_risk_bytes.saturating_sub(report.transient_bytes);
    if wait && unkept > 0 {
        let at_risk = render::units::bytes(unkept);
        return Err(Failure::new(Exit::DataAtRisk, format!("{at_risk} are still only in memory"))
            .hint("without --ssd or --nearline there is no place for them"));
    }
    Ok(())
}

/// Asks for it, and waits if that is wanted.
pub(super) fn flushed(paths: &[PathBuf], how: Wait) -> Outcome<MoveReport> {
    Ok(flush_groups(&group(paths)?, how.waits(), how.end())?.report)
}

/// What a flush did.
pub struct Flushed {
    pub report: MoveReport,
    /// Of the failures: what could not be applied in a linked directory.
    pub undrained: usize,
}

/// Makes safe what is at and below the places: in a tier of ours, and then, if it waits, in the linked directory.
pub fn flush_groups(groups: &[Group], wait: bool, end: Option<Instant>) -> Outcome<Flushed> {
    let mut flushed = Flushed { report: MoveReport::default(), undrained: 0 };
    for group in groups {
        let whole = group.places.iter().any(|p| p.file.ino == Ino::ROOT.get());
        let mut job = Job::new(group, end, "making data safe")?;
        if whole {
            job.send(Request::FlushAll { wait })?;
            let report = job.end();
            flushed.undrained += report.failed.len();
            flushed.report.add(report);
            continue;
        }
        job.files(group, &|files| Request::Flush { files, wait })?;
        flushed.report.add(job.end());
        if wait {
            let mut job = Job::new(group, end, "applying")?;
            for places in group.places.chunks(Request::FILES_MAX) {
                let places = places.iter().map(|place| place.file.clone()).collect();
                job.send(Request::Drain { places })?;
            }
            let report = job.end();
            flushed.undrained += report.failed.len();
            flushed.report.add(report);
        }
    }
    Ok(flushed)
}

pub fn prefetch(args: &PrefetchArgs) -> Outcome {
    let listed = args.list.as_deref().map(|list| read_groups(list, args.group_size)).transpose()?;
    let paths = match listed {
        None => &args.path,
        // Groups are read one after the other, by somebody else: the daemon follows him.
        Some(groups) if groups.len() > 1 => return super::plan::follow(&groups, args.wait, args.output),
        Some(groups) => &groups.into_iter().next().unwrap_or_default(),
    };
    let wait = args.wait.waits();
    let report = each(paths, args.wait, "fetching", &|files| Request::Prefetch { files, wait })?;
    finish("fetched", &report, args.output, Exit::Failure)
}

pub fn pin(args: &PinArgs) -> Outcome {
    let to = args.to.map(|tier| tier.id());
    let report = each(&args.path, Wait::no_end(), "pinning", &|files| Request::Pin { files, to })?;
    finish("pinned", &report, args.output, Exit::Failure)
}

pub fn unpin(args: &UnpinArgs) -> Outcome {
    let report = each(&args.path, Wait::no_end(), "unpinning", &|files| Request::Unpin { files })?;
    finish("unpinned", &report, args.output, Exit::Failure)
}

impl Wait {
    const fn no_end() -> Wait {
        Wait { wait: true, deadline: None }
    }
    pub fn waits(self) -> bool {
        self.wait || self.deadline.is_some()
    }
    fn end(self) -> Option<Instant> {
        self.deadline.map(|deadline| Instant::now() + deadline.0)
    }
}

fn each(
    paths: &[PathBuf],
    wait: Wait,
    doing: &str,
    request: &dyn Fn(Vec<FileRef>) -> Request,
) -> Outcome<MoveReport> {
    let mut report = MoveReport::default();
    for group in group(paths)? {
        let mut job = Job::new(&group, wait.end(), doing)?;
        job.files(&group, request)?;
        report.add(job.end());
    }
    Ok(report)
}

/// One command on one mount: requests over one connection, one meter, one report.
struct Job {
    client: Client,
    meter: Meter,
    end: Option<Instant>,
    report: MoveReport,
    /// Progress of the batches that are done.
    before: Progress,
}

impl Job {
    fn new(group: &Group, end: Option<Instant>, doing: &str) -> Outcome<Job> {
        Ok(Job {
            client: locate::connect(&group.socket)?,
            meter: Meter::new(doing),
            end,
            report: MoveReport::default(),
            before: Progress::default(),
        })
    }

    fn files(&mut self, group: &Group, request: &dyn Fn(Vec<FileRef>) -> Request) -> Outcome {
        let failed = batches(&group.places, BatchLimits::REQUEST, &mut |files| self.send(request(files)))?;
        self.report.failed.extend(failed);
        Ok(())
    }

    fn send(&mut self, request: Request) -> Outcome {
        let name = request.name();
        let left = self.end.map(|end| end.saturating_duration_since(Instant::now()));
        let mut last = Progress::default();
        let (before, meter) = (&self.before, &mut self.meter);
        let answer = call(&mut self.client, request, left, &mut |step| {
            last = step.clone();
            let (done, total) = (before.done + step.done, before.total + step.total);
            meter.show(&Progress { done, total, ..step.clone() });
        })?;
        self.before.done += last.done.max(last.total);
        self.before.total += last.total;
        let Response::Moved(report) = answer else { return Err(unexpected(name)) };
        self.report.add(report);
        Ok(())
    }

    fn end(self) -> MoveReport {
        self.meter.finish();
        self.report
    }
}

/// Prints the report; files that failed make the command fail.
fn finish(verb: &str, report: &MoveReport, output: Output, exit: Exit) -> Outcome {
    if output.json {
        render::json(report)?;
    } else {
        render::print(&render::moved(verb, report))?;
    }
    match report.failed.len() {
        0 => Ok(()),
        n => Err(Failure::new(exit, format!("{} failed", render::units::files(n as u64)))),
    }
}
