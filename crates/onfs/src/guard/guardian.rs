//! The guardian: keeps the connection and the memory, starts daemons, and ends with the last of them.

use std::{
    io::{self, BufRead, BufReader, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{self, ChildStdout, ExitStatus, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use handover::Estate;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{
    attempts::{Attempts, ENDS_MAX, WINDOW},
    channel::{Begin, Channel, Order, Word},
    program::Program,
    ward::now_ns,
};
use crate::{
    config::{LogConfig, MountConfig, Origin, Settings},
    daemon::{Log, Message, Ready, prepare_state},
    exit::{Exit, Failure, Outcome},
};

/// A line of a daemon's is no longer than this.
const LINE_MAX: u64 = 64 << 10;
/// How often it is looked whether a daemon has ended.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long what it said last may take to be heard.
const GATHER: Duration = Duration::from_millis(5);
/// Threads of a killed daemon that the kernel may keep until a request is answered: they have nothing that the next one needs.
const MAY_STAY: [&str; 2] = ["onfs-invalidate", "onfs-known"];
const EVENTS_QUEUED: usize = 64;

/// What is guarded.
pub struct Guarded<'a> {
    pub settings: &'a Settings,
    pub mount: &'a MountConfig,
    pub log: &'a LogConfig,
}

enum Event {
    Said(u32, Message),
    Word(u32, Word, Vec<OwnedFd>),
    /// `None`: of how it ended the kernel says nothing yet.
    Ended(u32, Option<ExitStatus>),
    Signal(i32),
}

/// The daemon of now.
struct Daemon {
    number: u32,
    pid: u32,
    channel: Channel,
    ready: bool,
    /// In order: the mount is gone.
    ended: bool,
    leaving: Option<u64>,
    failed: Option<Failure>,
    /// Until when it must be ready.
    deadline: Option<Instant>,
}

struct Guardian<'a> {
    of: &'a Guarded<'a>,
    ready: Ready,
    log: Log,
    memory: OwnedFd,
    device: Option<OwnedFd>,
    program: Program,
    /// Asked for, and not proved yet.
    candidate: Option<Program>,
    begin: Begin,
    attempts: Attempts,
    /// A signal asked for the end.
    stopping: Option<i32>,
    send: mpsc::SyncSender<Event>,
}

/// Runs until the mount is gone, or given up.
pub fn guard(of: &Guarded<'_>, ready: Ready) -> Outcome {
    let failed = |error: io::Error| Failure::failed(format!("the guardian cannot begin: {error}"));
    let shared = of.mount.allow_other;
    prepare_state(&of.mount.state, shared)?;
    if ready == Ready::Parent {
        // Fails only for a group's leader.
        let _ = rustix::process::setsid();
    }
    let log = Log::start(of.log, Some(of.mount.state.join("onfs.log")))?;
    let (send, events) = mpsc::sync_channel(EVENTS_QUEUED);
    let begin = Begin { guardian: process::id(), ..Begin::default() };
    let memory = Estate::create().map_err(failed)?;
    let program = Program::own().map_err(failed)?;
    std::env::set_current_dir("/").map_err(failed)?;
    watch_signals(send.clone()).map_err(failed)?;
    let mut guardian = Guardian {
        of,
        ready,
        log,
        memory,
        device: None,
        program,
        candidate: None,
        begin,
        attempts: Attempts::default(),
        stopping: None,
        send,
    };
    guardian.run(&events)
}

impl Guardian<'_> {
    fn run(&mut self, events: &mpsc::Receiver<Event>) -> Outcome {
        let mut daemon = self.start()?;
        loop {
            let Some(event) = self.next(events, &mut daemon) else { continue };
            match event {
                Event::Signal(signal) => self.pass_on(signal, &daemon),
                Event::Said(number, message) if number == daemon.number => self.hear(message, &mut daemon),
                Event::Word(number, word, fds) if number == daemon.number => {
                    self.obey(word, fds, &mut daemon);
                }
                Event::Said(..) | Event::Word(..) => {}
                Event::Ended(number, status) if number == daemon.number => {
                    match self.after(&mut daemon, status) {
                        After::Over(outcome) => return outcome,
                        After::Next(wait) => {
                            std::thread::sleep(wait);
                            daemon = self.start_again()?;
                        }
                    }
                }
                Event::Ended(..) => {}
            }
        }
    }

    fn next(&self, events: &mpsc::Receiver<Event>, daemon: &mut Daemon) -> Option<Event> {
        let Some(deadline) = daemon.deadline else { return events.recv().ok() };
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => Some(event),
            Err(_) => {
                tracing::error!(pid = daemon.pid, "the daemon was not ready in time and is ended");
                daemon.deadline = None;
                kill(daemon.pid, Signal::KILL);
                None
            }
        }
    }

    fn start_again(&mut self) -> Outcome<Daemon> {
        loop {
            match self.start() {
                Ok(daemon) => return Ok(daemon),
                // It may have ended before it was told to begin.
                Err(failure) if self.candidate.take().is_some() => {
                    self.begin.upgrades = self.begin.upgrades.saturating_sub(1);
                    self.begin.failed_upgrade = Some(failure.message);
                }
                Err(failure) => {
                    tracing::error!(%failure, "no daemon can be started: the mount ends");
                    return Err(failure);
                }
            }
        }
    }

    fn start(&mut self) -> Outcome<Daemon> {
        let failed = |error: io::Error| Failure::failed(format!("the daemon cannot be started: {error}"));
        self.begin.number += 1;
        let number = self.begin.number;
        let (channel, theirs) = Channel::pair().map_err(failed)?;
        let mut command = self.candidate.as_ref().unwrap_or(&self.program).command();
        command.args(["mount", "--daemon-child", "--guarded", "--config", "none"]);
        for entry in self.of.settings.entries().iter().filter(|e| e.origin != Origin::Default) {
            command.arg("--set").arg(format!("{}={}", entry.setting.name(), entry.value));
        }
        command.arg("--").arg(&self.of.mount.mountpoint);
        // In no group of ours: a terminal's signals come to it through the guardian alone.
        command.stdin(theirs).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        drop(command);
        let mut fds = vec![self.memory.as_fd()];
        fds.extend(self.device.as_ref().map(AsFd::as_fd));
        if let Err(error) = channel.send(&Order::Begin(self.begin.clone()), &fds) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed(error));
        }
        let pid = child.id();
        tracing::info!(pid, number, "a daemon is started");
        let (out, own) = (child.stdout.take(), channel.another().map_err(failed)?);
        let (lines, words, ends) = (self.send.clone(), self.send.clone(), self.send.clone());
        spawn("lines", move || out.into_iter().for_each(|out| read_lines(out, number, &lines)))
            .map_err(failed)?;
        spawn("words", move || read_words(&own, number, &words)).map_err(failed)?;
        spawn("end", move || wait_for_end(child, number, &ends)).map_err(failed)?;
        let deadline = self.device.as_ref().map(|_| Instant::now() + self.of.mount.start_deadline);
        let (ready, ended, leaving, failed) = (false, false, None, None);
        Ok(Daemon { number, pid, channel, ready, ended, leaving, failed, deadline })
    }

    fn hear(&mut self, message: Message, daemon: &mut Daemon) {
        match message {
            Message::Note(text) => self.ready.note(&text),
            Message::Ready { .. } => {
                daemon.ready = true;
                daemon.deadline = None;
                self.program = self.candidate.take().unwrap_or_else(|| self.program.clone());
                self.begin.failed_upgrade = None;
                if daemon.number == 1 {
                    self.ready.ready();
                    if self.ready == Ready::Parent {
                        self.log.take_standard_error();
                    }
                }
                if let Some(signal) = self.stopping {
                    self.pass_on(signal, daemon);
                }
            }
            Message::Failed { exit, message, hint } => {
                daemon.failed = Some(Message::into_failure(exit, message, hint));
            }
        }
    }

    fn obey(&mut self, word: Word, mut fds: Vec<OwnedFd>, daemon: &mut Daemon) {
        match word {
            Word::Mounted {} => self.device = fds.pop(),
            Word::Leaving { since_ns } => daemon.leaving = Some(since_ns),
            Word::Ended {} => daemon.ended = true,
            Word::Prepare { program } => {
                let order = match Program::other(&program) {
                    Ok((program, version)) => {
                        self.candidate = Some(program);
                        Order::Prepared { version }
                    }
                    Err(why) => Order::Refused { why },
                };
                if let Err(error) = daemon.channel.send(&order, &[]) {
                    tracing::warn!(%error, "the daemon was not answered");
                }
            }
        }
    }

    fn pass_on(&mut self, signal: i32, daemon: &Daemon) {
        match signal {
            SIGHUP => {
                self.log.reopen();
                kill(daemon.pid, Signal::HUP);
            }
            other => {
                self.stopping = Some(other);
                kill(daemon.pid, Signal::TERM);
            }
        }
    }

    /// What follows on the end of a daemon.
    fn after(&mut self, daemon: &mut Daemon, status: Option<ExitStatus>) -> After {
        let how = status.map_or_else(|| "it was killed".to_owned(), told);
        // The first one tells whether it can be mounted at all.
        let never = daemon.number == 1 && !daemon.ready;
        if daemon.ended || never || self.device.is_none() {
            return After::Over(self.last(daemon, status, &how));
        }
        if daemon.leaving.is_some() || !daemon.ready {
            if let Some(since) = daemon.leaving {
                self.begin.since_ns = since;
                self.begin.why = Some("upgrade".to_owned());
                self.begin.upgrades += 1;
                return After::Next(Duration::ZERO);
            }
            let why = daemon.failed.take().map_or_else(|| how.clone(), |failure| failure.to_string());
            if self.candidate.take().is_some() {
                tracing::error!(why, "the new program did not start: the one before goes on");
                self.begin.upgrades -= 1;
                self.begin.failed_upgrade = Some(why);
                return After::Next(Duration::ZERO);
            }
            tracing::error!(why, pid = daemon.pid, "a daemon did not start");
        } else {
            self.begin.since_ns = now_ns();
            self.begin.why = Some(how.clone());
            self.candidate = None;
            tracing::error!(how, pid = daemon.pid, "the daemon ended unexpectedly");
        }
        self.begin.restarts += 1;
        if let Some(wait) = self.attempts.after_end(Instant::now()) {
            return After::Next(wait);
        }
        let seconds = WINDOW.as_secs();
        let message = format!(
            "given up: the daemon ended {ENDS_MAX} times in {seconds} s, the last time so: {how}; programs get ENOTCONN, and \
             what was acknowledged is kept: onfs umount, and mount again"
        );
        tracing::error!("{message}");
        After::Over(Err(Failure::failed(message)))
    }

    /// The mount is gone, or never was.
    fn last(&self, daemon: &mut Daemon, status: Option<ExitStatus>, how: &str) -> Outcome {
        if let Some(failure) = daemon.failed.take() {
            return Err(failure);
        }
        if !daemon.ended {
            return Err(Failure::failed(format!("the daemon ended while it started ({how})"))
                .hint("onfs.log in the state directory has its last words"));
        }
        match status.and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok()) {
            Some(0) | None => Ok(()),
            Some(code) => Err(Failure::told(Exit::from_code(code).unwrap_or(Exit::Failure))),
        }
    }
}

enum After {
    Over(Outcome),
    Next(Duration),
}

fn told(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("it was ended by signal {signal}"),
        None => format!("it ended by itself ({status})"),
    }
}

fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended.
        let _ = kill_process(pid, signal);
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

fn read_lines(out: ChildStdout, number: u32, events: &mpsc::SyncSender<Event>) {
    let mut out = BufReader::new(out);
    let mut line = String::new();
    while matches!((&mut out).take(LINE_MAX).read_line(&mut line), Ok(n) if n > 0) {
        if let Ok(message) = serde_json::from_str(&line)
            && events.send(Event::Said(number, message)).is_err()
        {
            return;
        }
        line.clear();
    }
}

fn read_words(channel: &Channel, number: u32, events: &mpsc::SyncSender<Event>) {
    while let Ok((word, fds)) = channel.receive::<Word>() {
        if events.send(Event::Word(number, word, fds)).is_err() {
            return;
        }
    }
}

/// A process is gone for us when its descriptors are closed; a thread that waits in the kernel for an answer to a request, which only
/// the next daemon can give, keeps none of them.
fn wait_for_end(mut child: process::Child, number: u32, events: &mpsc::SyncSender<Event>) {
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if is_all_but_gone(child.id()) => break None,
            Ok(None) => wait_a_moment(&child),
            Err(_) => break None,
        }
    };
    // Its lines and words come before its end.
    std::thread::sleep(GATHER);
    let _ = events.send(Event::Ended(number, status));
    if status.is_none() {
        let _ = child.wait();
    }
}

/// Until it has ended, or it is time to look whether the kernel keeps one of its threads.
fn wait_a_moment(child: &process::Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let Some(Ok(end)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return std::thread::sleep(GATHER);
    };
    let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.as_nanos() as i64 };
    let _ = poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&timeout));
}

/// Has its first thread ended, and are all others some that may stay?
fn is_all_but_gone(pid: u32) -> bool {
    let place = format!("/proc/{pid}");
    let is_zombie = |task: &Path| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z') || rest.starts_with('X'))
    };
    if !is_zombie(Path::new(&place)) {
        return false;
    }
    let Ok(tasks) = std::fs::read_dir(format!("{place}/task")) else { return false };
    tasks.flatten().all(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        MAY_STAY.contains(&name.trim_end()) || is_zombie(&task.path())
    })
}

fn watch_signals(events: mpsc::SyncSender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    spawn("signals", move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    })
}
