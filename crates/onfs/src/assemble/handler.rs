//! Answers the requests of commands.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use ::link::RootId;
use client::FileInUse;
use ds::RequestError;
use mds::Found;
use parking_lot::Mutex;
use types::{ByteSize, Errno, FileKind, Ino, TierId};

use super::{
    below::checked,
    conflicts::Conflicts,
    drain::{self, drain},
    gate::Gate,
    link,
    listing::Listing,
    mounted::Mounted,
    parts::{Parts, failed},
    permission::{Permission, Want},
    policy,
    quota::Quotas,
    report, scrub,
};
use crate::{
    config::Host,
    control::{
        ControlError, ControlHandler, ErrorCode, FileOutcome, FileRef, MoveReport, Peer, Progress,
        ProgressSink, Request, Response, StatusReport,
    },
    policy::PolicyChange,
};

/// How long a shrinking of memory, or a move, may take when the command sets no deadline.
const PATIENCE: Duration = Duration::from_secs(3600);

/// How often a command that waits looks how far it is.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) struct Handler {
    fs: Arc<Mounted>,
    /// Held by a command that moves a tree into or out of a quota.
    walking: Mutex<()>,
}

impl Handler {
    pub fn new(fs: Arc<Mounted>) -> Handler {
        Handler { fs, walking: Mutex::default() }
    }
}

impl ControlHandler for Handler {
    fn handle(
        &self,
        peer: &Peer,
        request: Request,
        progress: &mut dyn ProgressSink,
    ) -> Result<Response, ControlError> {
        let parts = self.fs.parts()?;
        let permission = Permission::new(&parts, peer);
        let ask = Ask { parts: &parts, peer, permission, walking: &self.walking };
        match request {
            Request::Status {} => Ok(Response::Status(Box::new(ask.status()))),
            Request::File { file } => ask.file(&file),
            Request::Migrate { files, to, wait } => {
                ask.each(&files, progress, |one, progress| one.migrate(to, wait, progress))
            }
            Request::Flush { files, wait } => {
                ask.each(&files, progress, |one, progress| one.flush(wait, progress))
            }
            Request::FlushAll { wait: true } => ask.flush_all(&self.fs, progress).map(Response::Moved),
            Request::FlushAll { wait: false } => ask.flush_all_later(progress).map(Response::Moved),
            Request::Prefetch { files, wait } => ask.prefetch(&files, wait, progress),
            Request::Run { run, files, groups, joined, more } => {
                ask.run(run, &files, &groups, (joined, more), progress)
            }
            Request::RunShow { run } => ask.run_show(run).map(Response::Run),
            Request::RunWait { run } => ask.run_wait(run, progress),
            Request::RunCancel { run } => ask.run_cancel(run),
            Request::RunList {} => Ok(ask.run_list()),
            Request::PlanList {} => Ok(ask.plan_list()),
            Request::PlanShow { name, uid } => ask.plan_show(&name, uid),
            Request::PlanForget { name, uid } => ask.plan_forget(&name, uid),
            Request::Pin { files, to } => ask.each(&files, progress, |one, progress| one.pin(to, progress)),
            Request::Unpin { files } => ask.each(&files, progress, |one, _| one.unpin()),
            Request::PolicyShow { dir } => ask.policy_show(&dir),
            Request::PolicySet { dir, changes } => ask.policy_set(&dir, &changes),
            Request::QuotaSet { dir, bytes, inodes } => {
                ask.quotas().set(&dir, &ask.find(&dir)?, bytes, inodes, progress)
            }
            Request::QuotaShow { dir } => {
                ask.find(&dir)?;
                ask.quotas().show(&dir).map(Response::Quota)
            }
            Request::QuotaList {} => ask.quotas().list(&|dir| ask.permission.reaches(dir)),
            Request::QuotaRemove { dir } => ask.quotas().remove(&dir, &ask.find(&dir)?, progress),
            Request::States { files } => ask.listing().states(&files).map(Response::States),
            Request::List { dir, after } => ask.listing().list(&dir, after).map(Response::List),
            Request::Gate { places, wait_ms } => {
                let gate = Gate { parts: &parts, permission: &ask.permission };
                gate.report(&places, Duration::from_millis(wait_ms), progress).map(Response::Gate)
            }
            Request::Drain { places } => ask.drain(&places, progress).map(Response::Moved),
            Request::Conflicts { place, after } => {
                ask.conflicts().list(&place, after).map(Response::Conflicts)
            }
            Request::ForgetConflicts { place, numbers } => {
                ask.conflicts().forget(&place, &numbers).map(Response::Conflicts)
            }
            Request::LinkShow {} => link::show(&parts).map(Response::Link),
            Request::LinkAccept { device, number, empty_too } => {
                link::accept(&parts, RootId { device, fileid: number }, empty_too).map(Response::Link)
            }
            Request::Scrub { action } => scrub::scrub(&parts.ds, action, progress),
            Request::MemoryShow {} => Ok(Response::Memory(report::memory(&parts, None))),
            Request::MemorySet { bytes } => ask.memory_set(bytes, progress),
            Request::Unmount { .. } | Request::Upgrade { .. } => {
                Err(ControlError::new(ErrorCode::BadRequest, "the daemon does that itself"))
            }
        }
    }
}

/// One request and who asks.
pub(super) struct Ask<'a> {
    pub parts: &'a Parts,
    pub peer: &'a Peer,
    pub permission: Permission<'a>,
    walking: &'a Mutex<()>,
}

/// One file of a request.
pub(super) struct One<'a> {
    parts: &'a Parts,
    pub ino: Ino,
    file: FileInUse,
}

impl Ask<'_> {
    fn find(&self, file: &FileRef) -> Result<Found, ControlError> {
        let ino = Ino::from_raw(file.ino).ok_or_else(|| failed(&file.path, Errno::EINVAL))?;
        let found = self.parts.mds.find(ino).map_err(|errno| failed(&file.path, errno))?;
        self.permission.reach(&found).map_err(|errno| failed(&file.path, errno))?;
        Ok(found)
    }

    fn status(&self) -> StatusReport {
        report::status(self.parts, &|ino| self.permission.reaches(ino))
    }

    fn file(&self, file: &FileRef) -> Result<Response, ControlError> {
        let found = self.find(file)?;
        report::file(self.parts, file, &found)
            .map(|r| Response::File(Box::new(r)))
            .map_err(|e| failed(&file.path, e))
    }

    /// A regular file that the peer may read or write.
    pub fn one(&self, file: &FileRef, want: Want) -> Result<One<'_>, Errno> {
        let ino = Ino::from_raw(file.ino).ok_or(Errno::EINVAL)?;
        let found = self.parts.mds.find(ino)?;
        self.permission.reach(&found)?;
        if !self.permission.may(&found, want)? {
            return Err(Errno::EACCES);
        }
        match found.attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            FileKind::Symlink
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => return Err(Errno::EINVAL),
        }
        let file = self.parts.client.use_file(ino)?;
        // It may have been removed before it was attached; from now on the data server tells its users.
        if self.parts.mds.find(ino)?.attr.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        Ok(One { parts: self.parts, ino, file })
    }

    /// Does one thing with each file; failures are listed and do not stop the others.
    fn each(
        &self,
        files: &[FileRef],
        progress: &mut dyn ProgressSink,
        act: impl Fn(&One<'_>, &mut Beat<'_>) -> Result<Step, Stop>,
    ) -> Result<Response, ControlError> {
        let mut sum = MoveReport::default();
        let sizes: Vec<u64> = files.iter().map(|file| self.find(file).map_or(0, |f| f.attr.size)).collect();
        let (mut before, total) = (0, sizes.iter().sum());
        for (file, size) in files.iter().zip(sizes) {
            let mut beat = |bytes: u64| {
                progress.report(Progress {
                    done: before + bytes.min(size),
                    total,
                    what: file.path.clone(),
                    ..Progress::default()
                })
            };
            beat(0)?;
            let result = self.one(file, Want::Write).map_err(Stop::Errno).and_then(|one| {
                let step = act(&one, &mut beat)?;
                let now = self.parts.ds.report(one.file.object());
                Ok((step, now))
            });
            before += size;
            match result {
                Ok((Step::Done { bytes }, now)) => {
                    sum.files_done += 1;
                    sum.bytes += bytes;
                    sum.at_risk_bytes += now.at_risk;
                    sum.transient_bytes += if now.transient { now.at_risk } else { 0 };
                }
                Ok((Step::Queued, _)) => sum.files_queued += 1,
                Err(Stop::Command(error)) => return Err(error),
                Err(Stop::Errno(errno)) => sum.failed.push(unusable(file, errno)),
                Err(Stop::Refused(errno, why)) => sum.failed.push(outcome(file, errno, why.to_owned())),
            }
        }
        Ok(Response::Moved(sum))
    }

    fn prefetch(
        &self,
        files: &[FileRef],
        wait: bool,
        progress: &mut dyn ProgressSink,
    ) -> Result<Response, ControlError> {
        let mut sum = MoveReport::default();
        let mut list = Vec::new();
        for file in files {
            match self.one(file, Want::Read) {
                Ok(one) => list.push((one, file)),
                Err(errno) => sum.failed.push(unusable(file, errno)),
            }
        }
        let inos: Vec<Ino> = list.iter().map(|(one, _)| one.ino).collect();
        if !wait {
            let mut beat = |_| progress.report(Progress { what: IN_LINE.into(), ..Progress::default() });
            in_line(self.parts, &mut beat, || self.parts.ds.prefetch_later(&inos))?
                .map_err(|error| failed("prefetch", request_error(error).0))?;
            sum.files_queued = inos.len() as u64;
            return Ok(Response::Moved(sum));
        }
        let total = list.iter().map(|(one, _)| one.file.object().size()).sum();
        let patience = progress.remaining().unwrap_or(PATIENCE);
        let result = watched(
            self.parts,
            &inos,
            &mut |done| progress.report(Progress { done, total, ..Progress::default() }),
            || self.parts.ds.prefetch(inos.clone(), Some(patience)),
        )?;
        match result {
            Ok(done) => {
                sum.files_skipped = done.files_skipped.min(list.len() as u64);
                sum.files_done = list.len() as u64 - sum.files_skipped;
                sum.bytes = done.bytes_moved;
                Ok(Response::Moved(sum))
            }
            Err(error) => {
                let (errno, why) = request_error(error);
                Err(ControlError { message: format!("prefetch: {why}"), ..failed("prefetch", errno) })
            }
        }
    }

    /// Begins to make safe what is only in memory.
    fn flush_all_later(&self, progress: &mut dyn ProgressSink) -> Result<MoveReport, ControlError> {
        let ds = &self.parts.ds;
        let mut sum = MoveReport::default();
        let mut beat = |_| progress.report(Progress { what: IN_LINE.into(), ..Progress::default() });
        for ino in ds.unsaved() {
            in_line(self.parts, &mut beat, || ds.flush_unsaved_later(ino))?
                .map_err(|error| failed("flush", request_error(error).0))?;
            sum.files_queued += 1;
        }
        if sum.files_queued == 0 {
            sum.at_risk_bytes = ds.dirty().1;
        }
        Ok(sum)
    }

    fn listing(&self) -> Listing<'_> {
        Listing { parts: self.parts, permission: &self.permission }
    }

    fn conflicts(&self) -> Conflicts<'_> {
        Conflicts { parts: self.parts, permission: &self.permission }
    }

    fn drain(&self, places: &[FileRef], progress: &mut dyn ProgressSink) -> Result<MoveReport, ControlError> {
        checked(places)?;
        places.iter().try_for_each(|place| self.find(place).map(drop))?;
        drain(self.parts, places, &|ino| self.permission.reaches(ino), progress)
    }

    /// Everything in a tier of ours, and in the linked directory.
    fn flush_all(&self, fs: &Mounted, progress: &mut dyn ProgressSink) -> Result<MoveReport, ControlError> {
        drain::begin(self.parts);
        let mut sum = fs.save_all(progress)?;
        let top = FileRef { ino: Ino::ROOT.get(), path: String::new() };
        sum.add(self.drain(&[top], progress)?);
        Ok(sum)
    }

    fn policy_show(&self, dir: &FileRef) -> Result<Response, ControlError> {
        let found = self.find(dir)?;
        report::policy(self.parts, &dir.path, &found).map(Response::Policy).map_err(|e| failed(&dir.path, e))
    }

    fn policy_set(&self, dir: &FileRef, changes: &[PolicyChange]) -> Result<Response, ControlError> {
        let found = self.find(dir)?;
        if found.attr.kind != FileKind::Directory {
            return Err(failed(&dir.path, Errno::ENOTDIR));
        }
        if !self.permission.owns(&found) {
            return Err(failed(&dir.path, Errno::EPERM));
        }
        let change = |stored: &mut mds::DirPolicy| {
            let mut policy = policy::of_stored(*stored);
            changes.iter().for_each(|change| policy.apply(*change));
            *stored = policy::to_stored(policy);
        };
        self.parts
            .client
            .set_dir_policy(found.attr.ino, change)
            .map_err(|e| policy::not_set(&dir.path, e))?;
        self.policy_show(dir)
    }

    fn quotas(&self) -> Quotas<'_> {
        Quotas { parts: self.parts, walking: self.walking }
    }

    fn memory_set(&self, bytes: u64, progress: &mut dyn ProgressSink) -> Result<Response, ControlError> {
        Host::detect()
            .check_memory_tier(ByteSize(bytes))
            .map_err(|why| ControlError::new(ErrorCode::BadRequest, format!("the memory tier: {why}")))?;
        let begun_with =
            self.parts.ds.tiers().iter().find(|t| t.tier == TierId::Memory).map_or(0, |t| t.report.used);
        let total = begun_with.saturating_sub(bytes);
        let deadline = progress.remaining().unwrap_or(PATIENCE);
        let result = self.parts.ds.set_memory_limit(bytes, deadline, &mut |used| {
            let done = begun_with.saturating_sub(used).min(total);
            match progress.report(Progress {
                done,
                total,
                what: "moving out of memory".into(),
                ..Progress::default()
            }) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        match result {
            Ok(()) => {
                self.parts.client.set_passthrough_budget(TierId::Memory, bytes / 2);
                Ok(Response::Memory(report::memory(self.parts, None)))
            }
            Err(Errno::ETIMEDOUT) => Err(ControlError::new(
                ErrorCode::TimedOut,
                "the memory tier still holds more: files that are open or pinned in memory stay there; the new limit holds for new data",
            )),
            Err(errno) => Err(failed("memory", errno)),
        }
    }
}

/// Hears how many bytes of a file have been moved; its error ends the command.
type Beat<'a> = dyn FnMut(u64) -> Result<(), ControlError> + 'a;

enum Step {
    Done { bytes: u64 },
    Queued,
}

enum Stop {
    Errno(Errno),
    Refused(Errno, &'static str),
    /// The command is gone, or its deadline passed.
    Command(ControlError),
}

impl One<'_> {
    fn migrate(&self, to: TierId, wait: bool, beat: &mut Beat<'_>) -> Result<Step, Stop> {
        if !self.parts.ds.present().contains(to) {
            return Err(Stop::Refused(Errno::ENODEV, "there is no such tier in this mount"));
        }
        if !wait {
            return in_line(self.parts, beat, || self.parts.ds.migrate_later(self.ino, to))
                .map_err(Stop::Command)?
                .map(|()| Step::Queued)
                .map_err(refused);
        }
        let ask = || self.parts.ds.migrate(self.ino, to, Some(PATIENCE));
        match watched(self.parts, &[self.ino], beat, ask).map_err(Stop::Command)? {
            Ok(done) => Ok(Step::Done { bytes: done.bytes_moved }),
            Err(error) => Err(refused(error)),
        }
    }

    fn flush(&self, wait: bool, beat: &mut Beat<'_>) -> Result<Step, Stop> {
        if !wait {
            let queued = in_line(self.parts, beat, || self.parts.ds.flush_later(self.file.object()))
                .map_err(Stop::Command)?
                .map_err(refused)?;
            return Ok(if queued { Step::Queued } else { Step::Done { bytes: 0 } });
        }
        let (mut gone, mut copied) = (None, 0);
        let flushed = self.parts.ds.flush(self.file.object(), &mut |bytes| {
            copied += bytes;
            if let Err(error) = beat(copied) {
                gone = Some(error);
            }
        });
        if let Some(error) = gone {
            return Err(Stop::Command(error));
        }
        self.parts.client.settle_closed();
        flushed.and_then(|()| self.parts.mds.sync()).map_err(Stop::Errno)?;
        Ok(Step::Done { bytes: copied })
    }

    fn pin(&self, to: Option<TierId>, beat: &mut Beat<'_>) -> Result<Step, Stop> {
        let now = self.parts.ds.report(self.file.object());
        let tier = to
            .or_else(|| TierId::ALL.into_iter().find(|t| now.saus[t.index()] > 0))
            .unwrap_or(TierId::Memory);
        let whole = now.bytes[tier.index()] >= now.size;
        let step = if whole { Step::Done { bytes: 0 } } else { self.migrate(tier, true, beat)? };
        self.parts.ds.pin(self.file.object(), tier).map_err(Stop::Errno)?;
        Ok(step)
    }

    fn unpin(&self) -> Result<Step, Stop> {
        self.parts.ds.unpin(self.file.object()).map_err(Stop::Errno)?;
        Ok(Step::Done { bytes: 0 })
    }
}

/// Shown while the line of what nobody waits for is full.
const IN_LINE: &str = "many files are queued already";

/// Queues something, however long the line is; ends with an error of `beat`, such as a command that has gone.
fn in_line<T>(
    parts: &Parts,
    beat: &mut Beat<'_>,
    queue: impl Fn() -> Result<T, RequestError>,
) -> Result<Result<T, RequestError>, ControlError> {
    loop {
        match queue() {
            Err(RequestError::TooMany) => {
                beat(0)?;
                parts.ds.wait_in_line(LOOK);
            }
            other => return Ok(other),
        }
    }
}

fn refused(error: RequestError) -> Stop {
    let (errno, why) = request_error(error);
    Stop::Refused(errno, why)
}

/// Runs a request for movements, and tells `beat` now and then how many bytes of these files have come; an error of it,
/// such as a deadline that passed, is returned once the request has ended.
fn watched<T: Send>(
    parts: &Parts,
    inos: &[Ino],
    beat: &mut Beat<'_>,
    request: impl FnOnce() -> T + Send,
) -> Result<T, ControlError> {
    let mut came: HashMap<Ino, u64> = inos.iter().map(|ino| (*ino, 0)).collect();
    std::thread::scope(|scope| {
        let request = scope.spawn(request);
        let (mut looked, mut done) = (Instant::now(), 0);
        while !request.is_finished() {
            std::thread::park_timeout(Duration::from_millis(2));
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                for step in parts.ds.moves().iter().filter(|step| step.from != step.to) {
                    came.entry(step.ino)
                        .and_modify(|n| *n = (*n).max(step.bytes - step.left.min(step.bytes)));
                }
                done = came.values().sum();
            }
            beat(done)?;
        }
        request.join().map_err(|_| failed("the request", Errno::EIO))
    })
}

fn outcome(file: &FileRef, errno: Errno, message: String) -> FileOutcome {
    FileOutcome { path: file.path.clone(), ino: file.ino, errno: errno.raw(), message }
}

pub(super) fn unusable(file: &FileRef, errno: Errno) -> FileOutcome {
    let why = if errno == Errno::EINVAL {
        "it is not a regular file: it has no data".to_owned()
    } else {
        errno.to_string()
    };
    outcome(file, errno, why)
}

fn request_error(error: RequestError) -> (Errno, &'static str) {
    match error {
        RequestError::NoSuchObject => (Errno::ENOENT, "it has no data in any tier"),
        RequestError::NoSuchTier => (Errno::ENODEV, "there is no such tier in this mount"),
        RequestError::Pinned => {
            (Errno::EBUSY, "it is pinned in the tier that it would have to leave: onfs unpin it")
        }
        RequestError::NoSpace => (Errno::ENOSPC, "the tier has no room for it"),
        RequestError::Busy => (
            Errno::EBUSY,
            "it stayed in use: a program has it open or mapped such that the kernel reads it from its tier directly \
             (passthrough), or other movements held it up; onfs file shows which",
        ),
        RequestError::Io => (Errno::EIO, "a device failed: see the log"),
        RequestError::Cancelled => (Errno::EINTR, "it was cancelled"),
        RequestError::TooMany => (Errno::EAGAIN, "too many requests are waiting: try again later"),
    }
}
