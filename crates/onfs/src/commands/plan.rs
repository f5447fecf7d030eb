//! Commands on what comes up before it is read: lists of groups, runs, plans of jobs.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use super::{
    ask::{ask, call, the_mount, unexpected},
    tree::{BatchLimits, batches, group},
};
use crate::{
    args::{JobArgs, Output, PlanCommand, Wait},
    control::{Client, FileOutcome, FileRef, Request, Response, RunReport},
    exit::{Exit, Failure, Outcome},
    locate,
    render::{self, Meter},
};

/// Files of one request: their groups are values of the request, too.
const BATCH: BatchLimits = BatchLimits { files: 512, path_bytes: Request::PATH_BYTES_SUM };

pub fn plan(command: PlanCommand) -> Outcome {
    match command {
        PlanCommand::List { mountpoint, output } => {
            let answer = asked(mountpoint.as_deref(), Request::PlanList {})?;
            let Response::Plans(reports) = answer else { return Err(unexpected("plan list")) };
            if output.json { render::json(&reports) } else { render::print(&render::plans(&reports)) }
        }
        PlanCommand::Show { job: JobArgs { name, mountpoint, user }, output } => {
            let answer = asked(mountpoint.as_deref(), Request::PlanShow { name, uid: user })?;
            let Response::Plan(report) = answer else { return Err(unexpected("plan show")) };
            if output.json { render::json(&report) } else { render::print(&render::plan(&report)) }
        }
        PlanCommand::Forget { job: JobArgs { name, mountpoint, user } } => {
            asked(mountpoint.as_deref(), Request::PlanForget { name, uid: user }).map(drop)
        }
        PlanCommand::Runs { mountpoint, output } => {
            let answer = asked(mountpoint.as_deref(), Request::RunList {})?;
            let Response::Runs(reports) = answer else { return Err(unexpected("plan runs")) };
            if output.json { render::json(&reports) } else { render::print(&render::runs(&reports)) }
        }
        PlanCommand::Cancel { run, mountpoint } => {
            asked(mountpoint.as_deref(), Request::RunCancel { run }).map(drop)
        }
    }
}

fn asked(mountpoint: Option<&Path>, request: Request) -> Outcome<Response> {
    ask(&the_mount(mountpoint)?, request)
}

/// Has the daemon follow a list of groups, and waits for its end if that is wanted.
pub fn follow(groups: &[Vec<PathBuf>], wait: Wait, output: Output) -> Outcome {
    let mut sender = None;
    for paths in groups {
        let mounts = group(paths)?;
        let [mount] = mounts.as_slice() else { return Err(two_mounts()) };
        let sender: &mut Sender = match &mut sender {
            None => sender.insert(Sender::new(&mount.socket)?),
            Some(sender) if sender.socket == mount.socket => sender,
            Some(_) => return Err(two_mounts()),
        };
        sender.begins = true;
        let failed = batches(&mount.places, BATCH, &mut |files| sender.take(files))?;
        sender.failed.extend(failed);
    }
    let Some(mut sender) = sender else { return Err(Failure::usage("the list is empty")) };
    let mut report = sender.send(false)?;
    if wait.waits() {
        let mut meter = Meter::new("following the list");
        let left = wait.deadline.map(|d| d.0.saturating_sub(sender.begun.elapsed()));
        let request = Request::RunWait { run: report.run };
        let answer = call(&mut sender.client, request, left, &mut |step| meter.show(step));
        meter.finish();
        let Response::Run(ended) = answer? else { return Err(unexpected("run wait")) };
        report = ended;
    }
    report.failed = sender.failed;
    if output.json { render::json(&report) } else { render::print(&render::run(&report)) }?;
    match report.failed.len() {
        0 => Ok(()),
        n => Err(Failure::new(Exit::Failure, format!("{} left out", render::units::files(n as u64)))),
    }
}

fn two_mounts() -> Failure {
    Failure::usage("the paths of a list with groups must be on one mount")
}

/// Puts groups together to requests.
struct Sender {
    socket: PathBuf,
    client: Client,
    begun: Instant,
    run: Option<u64>,
    files: Vec<FileRef>,
    groups: Vec<u32>,
    path_bytes: usize,
    /// The next files are of another group than those before.
    begins: bool,
    joined: bool,
    failed: Vec<FileOutcome>,
}

impl Sender {
    fn new(socket: &Path) -> Outcome<Sender> {
        Ok(Sender {
            socket: socket.to_owned(),
            client: locate::connect(socket)?,
            begun: Instant::now(),
            run: None,
            files: Vec::new(),
            groups: Vec::new(),
            path_bytes: 0,
            begins: true,
            joined: false,
            failed: Vec::new(),
        })
    }

    fn take(&mut self, files: Vec<FileRef>) -> Outcome {
        let bytes: usize = files.iter().map(|file| file.path.len()).sum();
        if self.files.len() + files.len() > BATCH.files || self.path_bytes + bytes > BATCH.path_bytes {
            self.send(true)?;
        }
        let count = files.len() as u32;
        let begins = std::mem::take(&mut self.begins);
        match self.groups.last_mut() {
            Some(last) if !begins => *last += count,
            Some(_) => self.groups.push(count),
            None => {
                self.joined = !begins;
                self.groups.push(count);
            }
        }
        self.path_bytes += bytes;
        self.files.extend(files);
        Ok(())
    }

    fn send(&mut self, more: bool) -> Outcome<RunReport> {
        let request = Request::Run {
            run: self.run,
            files: std::mem::take(&mut self.files),
            groups: std::mem::take(&mut self.groups),
            joined: std::mem::take(&mut self.joined),
            more,
        };
        self.path_bytes = 0;
        let Response::Run(mut report) = call(&mut self.client, request, None, &mut |_| {})? else {
            return Err(unexpected("a run"));
        };
        self.run = Some(report.run);
        self.failed.append(&mut report.failed);
        Ok(report)
    }
}
