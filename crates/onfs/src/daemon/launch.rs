//! `onfs mount` in the background: starts this program again as the daemon and waits until it says how it went.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{self, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use super::ready::Message;
use crate::{
    config::{Entry, Origin, Settings},
    exit::{Exit, Failure, Outcome},
    mounts,
};

/// A line of the daemon's is no longer than this.
const LINE_MAX: u64 = 64 << 10;
/// Notes that may wait to be printed; they are few.
const LINES_QUEUED: usize = 16;

/// What is started in the background.
pub struct Child<'a> {
    /// The command that it is.
    pub command: &'static str,
    pub settings: &'a Settings,
    /// Which settings concern it.
    pub concerns: &'a dyn Fn(&Entry) -> bool,
    pub mountpoint: Option<&'a Path>,
    pub deadline: Duration,
}

/// Starts the daemon and returns its process number when it is usable. `note` gets what the user should read. When the deadline
/// passes first, the daemon is ended and its mount removed.
pub fn launch(of: &Child<'_>, note: &mut dyn FnMut(&str)) -> Outcome<u32> {
    let deadline = of.deadline;
    let mut child = spawn(of)?;
    let lines = listen(&mut child)?;
    let end = Instant::now() + deadline;
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Message::Note(text)) => note(&text),
            Ok(Message::Ready { pid }) => return Ok(pid),
            Ok(Message::Failed { exit, message, hint }) => {
                let _ = child.wait();
                return Err(Message::into_failure(exit, message, hint));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(died(&mut child)),
            Err(mpsc::RecvTimeoutError::Timeout) => return Err(too_slow(&mut child, of)),
        }
    }
}

fn spawn(of: &Child<'_>) -> Outcome<process::Child> {
    let failed = |error| Failure::failed(format!("the daemon cannot be started: {error}"));
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args([of.command, "--daemon-child", "--config", "none"]);
    // The daemon gets the values themselves, so that a file that changes meanwhile is not read twice.
    let given = of.settings.entries().iter().filter(|e| e.origin != Origin::Default && (of.concerns)(e));
    for entry in given {
        command.arg("--set").arg(format!("{}={}", entry.setting.name(), entry.value));
    }
    command.arg("--").args(of.mountpoint);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().map_err(failed)
}

fn listen(child: &mut process::Child) -> Outcome<mpsc::Receiver<Message>> {
    let out = child.stdout.take().ok_or_else(|| Failure::failed("the daemon has no standard output"))?;
    let (send, lines) = mpsc::sync_channel(LINES_QUEUED);
    let read = move || {
        let mut out = BufReader::new(out);
        let mut line = String::new();
        while matches!((&mut out).take(LINE_MAX).read_line(&mut line), Ok(n) if n > 0) {
            if let Ok(message) = serde_json::from_str(&line)
                && send.send(message).is_err()
            {
                return;
            }
            line.clear();
        }
    };
    let thread = std::thread::Builder::new().name("start".into()).spawn(read);
    thread.map_err(|e| Failure::failed(format!("no thread to wait for the daemon: {e}")))?;
    Ok(lines)
}

fn died(child: &mut process::Child) -> Failure {
    let how = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
    Failure::failed(format!("the daemon ended while it started ({how})"))
        .hint("onfs.log in the state directory has its last words; --foreground shows them here")
}

fn too_slow(child: &mut process::Child, of: &Child<'_>) -> Failure {
    // Every state is safe against this: an acknowledged change is in the journal, and nothing is acknowledged yet.
    let _ = child.kill();
    let _ = child.wait();
    if let Some(mountpoint) = of.mountpoint
        && mounts::onfs_at(mountpoint).is_ok_and(|m| m.is_some())
    {
        let _ = mounts::detach(mountpoint, true);
    }
    let seconds = of.deadline.as_secs();
    Failure::new(
        Exit::TimedOut,
        format!("the {} was not ready after {seconds} s and was given up", of.command),
    )
    .hint("recovery of a large state can take longer: raise mount.start_deadline")
}
