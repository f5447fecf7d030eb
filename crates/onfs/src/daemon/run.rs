//! The daemon itself, from start to end.

use std::{path::Path, sync::Arc, time::Duration};

use rustix::{
    fs::Mode,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::{Handle, Signals},
};

use super::{
    lifecycle::Lifecycle,
    log::Log,
    ready::Ready,
    state::{StateLock, prepare},
};
use crate::{
    assemble::StartContext,
    config::{LogConfig, MonitorConfig, MountConfig},
    control::{Limits, SOCKET_NAME, Server, ServerOptions},
    exit::{Exit, Failure, Outcome},
    guard::Ward,
    locate::{self, Health},
    monitor::Monitor,
    mounts,
    running::{Running, StartError},
};

/// How long the end waits for commands that still get their answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// Open files the daemon wants to be able to have: objects in three tiers, and passthrough.
const OPEN_FILES: u64 = 1 << 20;
/// Dead mounts that may lie on top of each other.
const DEAD_MOUNTS_MAX: usize = 16;

/// Starts what a daemon is there for.
pub type Start<'a> = &'a dyn Fn(StartContext<'_>) -> Result<Running, StartError>;

/// What the daemon is there for.
pub struct Duty<'a> {
    pub mount: &'a MountConfig,
    pub monitor: &'a MonitorConfig,
    pub log: &'a LogConfig,
    /// It has a mount point; a server has none.
    pub mounts: bool,
    /// For messages about whose the state is.
    pub purpose: String,
    /// What an ordinary user does without.
    pub unprivileged: Vec<String>,
    pub start: Start<'a>,
    /// Of a guarded mount.
    pub ward: Option<Arc<Ward>>,
}

impl Duty<'_> {
    fn mountpoint(&self) -> Option<&Path> {
        self.mounts.then_some(self.mount.mountpoint.as_path())
    }

    /// Where something is about to be mounted.
    fn new_mountpoint(&self) -> Option<&Path> {
        self.mountpoint().filter(|_| !self.ward.as_ref().is_some_and(|ward| ward.resumes()))
    }
}

/// Starts, serves, and returns after the end. `ready` hears of the start; the caller passes a failure on.
pub fn run(duty: &Duty<'_>, ready: Ready) -> Outcome {
    let state = &duty.mount.state;
    // Before anything is created.
    if let Some(mountpoint) = duty.new_mountpoint()
        && locate::health(mountpoint) == Health::Alive
    {
        living_mountpoint(mountpoint)?;
    }
    if ready == Ready::Parent {
        // A session of its own: the terminal's signals are not for the daemon. Fails only for a group's leader.
        let _ = rustix::process::setsid();
    }
    prepare(state, duty.mount.allow_other)?;
    // What the daemon creates from here on holds the files of all users.
    rustix::process::umask(Mode::from_raw_mode(0o077));
    let lock = StateLock::acquire(state, &duty.purpose)?;
    let default_log = (ready == Ready::Parent).then(|| state.join("onfs.log"));
    let log = Log::start(duty.log, default_log)?;
    let note = |text: &str| {
        tracing::warn!("{text}");
        ready.note(text);
    };
    duty.new_mountpoint().map_or(Ok(()), |mountpoint| clear_mountpoint(mountpoint, &note))?;
    raise_open_files();
    if !rustix::process::geteuid().is_root() {
        duty.unprivileged.iter().for_each(|text| note(text));
    }
    // Below the mount point's own file system the daemon would keep it busy.
    std::env::set_current_dir("/").map_err(|e| Failure::failed(format!("/: {e}")))?;

    let Started { running, server, monitor, life } = start_all(duty, &note)?;
    let signals = watch_signals(&life, &log)?;
    tracing::info!(purpose = duty.purpose, version = env!("CARGO_PKG_VERSION"), "started");
    if let Some(monitor) = &monitor {
        tracing::info!(address = %monitor.address(), "metrics and health are served");
    }
    if ready == Ready::Parent {
        log.take_standard_error();
    }
    duty.ward.iter().for_each(|ward| ward.serves());
    ready.ready();

    let result = life.run();
    duty.ward.iter().for_each(|ward| ward.ended());
    signals.close();
    drop(monitor);
    server.stop(ANSWER_PATIENCE);
    drop((running, lock));
    result.map_err(|message| Failure::new(Exit::DataAtRisk, message))?;
    tracing::info!("ended");
    Ok(())
}

struct Started {
    running: Running,
    server: Server,
    monitor: Option<Monitor>,
    life: Arc<Lifecycle>,
}

/// The file system, and the sockets where it is asked about it; when one of them fails, the file system is taken away again.
fn start_all(duty: &Duty<'_>, note: &dyn Fn(&str)) -> Outcome<Started> {
    let socket = duty.mount.state.join(SOCKET_NAME);
    let owner_uid = rustix::process::getuid().as_raw();
    let ward = duty.ward.clone();
    let context = StartContext { control_socket: &socket, owner_uid, note: &mut |text| note(text), ward };
    let running = (duty.start)(context).map_err(of_start)?;
    let ward = duty.ward.clone();
    let life = Lifecycle::new(running.clone(), duty.mountpoint(), duty.mount.stop_deadline, ward);
    let options =
        ServerOptions { socket, open_to_all: duty.mount.allow_other, owner_uid, limits: Limits::default() };
    let server = Server::start(options, life.clone())
        .map_err(|error| format!("the control socket cannot be opened: {error}"));
    let monitor = duty.monitor.listen.as_ref().map(|address| {
        Monitor::start(address, running.fs.clone())
            .map_err(|error| format!("{address}: metrics cannot be served there: {error}"))
    });
    match (server, monitor.transpose()) {
        (Ok(server), Ok(monitor)) => Ok(Started { running, server, monitor, life }),
        (Err(why), _) | (_, Err(why)) => {
            let _ = running.fs.unmount(true);
            running.fs.abort();
            running.fs.wait();
            let finished = running.fs.finish();
            let also = finished.err().map_or(String::new(), |e| format!("; {e}"));
            Err(Failure::failed(format!("{why}{also}")))
        }
    }
}

fn of_start(error: StartError) -> Failure {
    let exit = match &error {
        StartError::Config(_) => Exit::Usage,
        StartError::Busy(_) => Exit::Busy,
        StartError::Damaged(_) => Exit::DataAtRisk,
        StartError::Failed(_) => Exit::Failure,
    };
    Failure::new(exit, error.to_string())
}

/// Makes sure that the mount point is a directory with a living file system and no ONFS on it.
fn clear_mountpoint(mountpoint: &Path, note: &dyn Fn(&str)) -> Outcome {
    let place = mountpoint.display();
    for _ in 0..DEAD_MOUNTS_MAX {
        match locate::health(mountpoint) {
            Health::Dead => {
                mounts::detach(mountpoint, true).map_err(|e| {
                    Failure::failed(format!("{place}: the mount of a dead daemon cannot be removed: {e}"))
                })?;
                note(&format!("{place}: the mount of a daemon that died was removed"));
            }
            Health::Hung => {
                return Err(Failure::new(
                    Exit::TimedOut,
                    format!("{place}: the file system there does not answer"),
                )
                .hint(format!("onfs umount --lazy {place}")));
            }
            Health::Missing => {
                return Err(Failure::usage(format!("{place}: there is no such directory"))
                    .hint(format!("mkdir -p {place}")));
            }
            Health::Alive => return living_mountpoint(mountpoint),
        }
    }
    Err(Failure::failed(format!("{place}: dead mounts that cannot be removed lie on it")))
}

fn living_mountpoint(mountpoint: &Path) -> Outcome {
    let place = mountpoint.display();
    // First: a mount of another user's may not even be looked at.
    if mounts::onfs_at(mountpoint).is_ok_and(|mount| mount.is_some()) {
        return Err(Failure::new(Exit::Busy, format!("{place}: ONFS is mounted there already"))
            .hint(format!("onfs umount {place}")));
    }
    if mountpoint.is_dir() { Ok(()) } else { Err(Failure::usage(format!("{place}: not a directory"))) }
}

/// As many open files as the system allows; fewer only cost speed.
fn raise_open_files() {
    let now = getrlimit(Resource::Nofile);
    let hard = now.maximum.unwrap_or(u64::MAX);
    let wanted = hard.max(OPEN_FILES);
    let limit = |n| Rlimit { current: Some(n), maximum: Some(n) };
    if setrlimit(Resource::Nofile, limit(wanted)).is_err()
        && setrlimit(Resource::Nofile, limit(hard)).is_err()
    {
        tracing::warn!(limit = now.current, "the limit of open files could not be raised");
    }
}

/// Handles signals on a thread of its own until the handle is closed.
fn watch_signals(life: &Arc<Lifecycle>, log: &Log) -> Outcome<Handle> {
    let failed = |error: std::io::Error| Failure::failed(format!("signals cannot be watched: {error}"));
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    let handle = signals.handle();
    let (life, log) = (life.clone(), log.clone());
    let watch = move || {
        let mut stopping = false;
        for signal in signals.forever() {
            if signal == SIGHUP {
                log.reopen();
                continue;
            }
            tracing::info!(signal, "a signal asks for the end");
            if std::mem::replace(&mut stopping, true) {
                life.abort();
                continue;
            }
            // On its own thread, so that a second signal is heard.
            let stop = life.clone();
            let thread = std::thread::Builder::new().name("stop".into()).spawn(move || stop.stop_by_signal());
            if let Err(error) = thread {
                tracing::error!(%error, "no thread to unmount with");
                stopping = false;
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(failed)?;
    Ok(handle)
}
