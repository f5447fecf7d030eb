//! How a mounted file system comes to its end: by command, by signal, or unmounted by somebody else.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    control::{
        ControlError, ControlHandler, ErrorCode, MoveReport, Peer, Progress, ProgressSink, Request, Response,
    },
    guard::Ward,
    holders::{HolderList, copies, holders, mounts_below},
    mounts::{self, MountEntry},
    running::{Running, UnmountError},
};

/// How long the answer to a lazy unmount waits for the daemon's end, which open files may keep off for ever.
const LAZY_PATIENCE: Duration = Duration::from_secs(1);

/// A mount that is gone ends its session at once, unless another mount name space has a copy of it.
const COPY_PATIENCE: Duration = Duration::from_secs(1);

/// How long requests that were begun may take before another daemon takes over.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);

/// Stands before the file system's own handler and does what concerns the whole daemon.
pub struct Lifecycle {
    running: Running,
    /// As it was mounted: its path may be another's after it was detached.
    mount: Option<MountEntry>,
    stop_deadline: Duration,
    ward: Option<Arc<Ward>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// One unmount at a time.
    stopping: bool,
    /// The session is over, and what is left is being written down.
    ended: bool,
    finished: Option<Result<(), String>>,
}

impl Lifecycle {
    /// To be called when it has just been mounted, if it has a mount point.
    pub fn new(
        running: Running,
        mountpoint: Option<&Path>,
        stop_deadline: Duration,
        ward: Option<Arc<Ward>>,
    ) -> Arc<Lifecycle> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let mount = mountpoint.and_then(|place| mounts::onfs_at(place).ok().flatten());
        Arc::new(Lifecycle { running, mount, stop_deadline, ward, state, changed })
    }

    /// Waits until the session has ended, then writes down what is left. The answer to an unmount command waits for
    /// this.
    pub fn run(&self) -> Result<(), String> {
        self.running.fs.wait();
        tracing::info!("unmounted; writing down what is left");
        self.state.lock().ended = true;
        self.changed.notify_all();
        let result = self.running.fs.finish();
        self.state.lock().finished = Some(result.clone());
        self.changed.notify_all();
        result
    }

    /// What SIGTERM and SIGINT do: flush, unmount; a busy mount is detached with a warning that names its holders, and
    /// the daemon serves them until the last one has gone.
    pub fn stop_by_signal(&self) {
        if self.state.lock().stopping {
            tracing::info!("it is being unmounted already");
            return;
        }
        let mut sink = Until(Instant::now() + self.stop_deadline);
        let busy = match self.unmount(false, &mut sink) {
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(%error, "the mount cannot be taken away at once");
                error.code == ErrorCode::Busy
            }
        };
        if busy {
            tracing::warn!("still in use; it is detached and served until they end:{}", self.holders());
        }
        if let Err(error) = self.running.fs.unmount(true) {
            tracing::error!(%error, "detaching the mount failed");
        }
    }

    /// What a second signal does: users of open files get errors; what was acknowledged is kept.
    pub fn abort(&self) {
        tracing::warn!("ended by a second signal; open files get ENOTCONN:{}", self.holders());
        self.running.fs.abort();
    }

    /// Flush, unmount, and wait for the end.
    fn unmount(&self, lazy: bool, progress: &mut dyn ProgressSink) -> Result<MoveReport, ControlError> {
        if std::mem::replace(&mut self.state.lock().stopping, true) {
            return Err(ControlError::new(ErrorCode::Busy, "it is being unmounted already"));
        }
        let result = self.flush_and_unmount(lazy, progress);
        if result.is_err() {
            self.state.lock().stopping = false;
        }
        let report = result?;
        let patience = if lazy { LAZY_PATIENCE } else { self.stop_deadline };
        let end = progress.deadline().unwrap_or_else(|| Instant::now() + patience);
        if !lazy {
            self.gone_everywhere()?;
        }
        let mut state = self.state.lock();
        while state.finished.is_none() {
            if self.changed.wait_until(&mut state, end).timed_out() {
                break;
            }
        }
        match &state.finished {
            Some(Ok(())) => Ok(report),
            Some(Err(message)) => Err(ControlError::new(ErrorCode::DataAtRisk, message.clone())),
            None if lazy => Ok(report),
            None => Err(ControlError::new(
                ErrorCode::TimedOut,
                "it is unmounted, but the daemon still writes down what is left",
            )),
        }
    }

    /// The mount is gone here. An error if it goes on in other mount name spaces: nothing tells when those end.
    fn gone_everywhere(&self) -> Result<(), ControlError> {
        let Some(mount) = &self.mount else { return Ok(()) };
        let end = Instant::now() + COPY_PATIENCE;
        let mut state = self.state.lock();
        while !state.ended {
            if self.changed.wait_until(&mut state, end).timed_out() {
                break;
            }
        }
        if state.ended || copies((mount.major, mount.minor)).is_empty() {
            return Ok(());
        }
        state.stopping = false;
        tracing::warn!("unmounted here, and served on in other mount namespaces:{}", self.holders());
        Err(ControlError::new(ErrorCode::Busy, "it is unmounted here, and in use in other mount namespaces"))
    }

    fn flush_and_unmount(
        &self,
        lazy: bool,
        progress: &mut dyn ProgressSink,
    ) -> Result<MoveReport, ControlError> {
        let report = self.running.fs.flush_all(lazy, progress)?;
        if let Some(first) = report.failed.first().filter(|_| !lazy) {
            let message = format!(
                "{} files could not be made safe, the first is {}: {}; it stays mounted",
                report.failed.len(),
                first.path,
                first.message
            );
            return Err(ControlError::new(ErrorCode::DataAtRisk, message));
        }
        self.running.fs.unmount(lazy).map_err(|error| match error {
            UnmountError::Busy => ControlError::new(ErrorCode::Busy, "it is in use"),
            UnmountError::Failed(message) => ControlError::new(ErrorCode::Failed, message),
        })?;
        Ok(report)
    }

    /// Makes room for another daemon under the same mount. Returns only if nothing came of it.
    fn hand_over(&self, program: &str) -> ControlError {
        let Some(ward) = &self.ward else {
            let why = "this mount has no guardian: unmount, and mount again with --guard";
            return ControlError::new(ErrorCode::BadRequest, why);
        };
        if std::mem::replace(&mut self.state.lock().stopping, true) {
            return ControlError::new(ErrorCode::Busy, "it is being unmounted, or upgraded, already");
        }
        let refused = match ward.prepare(program) {
            Ok(version) => {
                tracing::info!(program, version, "the mount is handed over");
                let since = Ward::now_ns();
                if !self.running.fs.leave(LEAVE_PATIENCE) {
                    tracing::warn!("some requests take long: the next daemon begins them again");
                }
                if let Err(error) = ward.leaves(since) {
                    tracing::error!(%error, "the guardian was not told of the hand-over");
                }
                // All that was answered is in the journal; the rest is the next daemon's.
                std::process::exit(0);
            }
            Err(why) => ControlError::new(ErrorCode::Failed, why),
        };
        self.state.lock().stopping = false;
        refused
    }

    fn holders(&self) -> String {
        let Some(mount) = &self.mount else { return String::new() };
        let all = mounts::mounts().unwrap_or_default();
        let mut found = copies((mount.major, mount.minor));
        if all.iter().any(|m| m.id == mount.id) {
            found.extend(holders(mount, &[std::process::id()]));
        }
        HolderList(&found, &mounts_below(mount, &all)).to_string()
    }
}

impl ControlHandler for Lifecycle {
    fn handle(
        &self,
        peer: &Peer,
        request: Request,
        progress: &mut dyn ProgressSink,
    ) -> Result<Response, ControlError> {
        if let Request::Unmount { lazy } = request {
            tracing::info!(pid = peer.pid, uid = peer.uid, lazy, "unmounting by command");
            return self.unmount(lazy, progress).map(Response::Moved);
        }
        if let Request::Upgrade { program } = request {
            tracing::info!(pid = peer.pid, uid = peer.uid, "an upgrade by command");
            return Err(self.hand_over(&program));
        }
        self.running.handler.handle(peer, request, progress)
    }
}

/// Progress that nobody watches, with a deadline.
struct Until(Instant);

impl ProgressSink for Until {
    fn report(&mut self, _: Progress) -> Result<(), ControlError> {
        if Instant::now() < self.0 {
            return Ok(());
        }
        Err(ControlError::new(ErrorCode::TimedOut, "the stop deadline passed"))
    }
    fn deadline(&self) -> Option<Instant> {
        Some(self.0)
    }
}
