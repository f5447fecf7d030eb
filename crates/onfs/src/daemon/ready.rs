//! How a starting daemon tells the command that started it how it goes: JSON lines on a pipe, which is the daemon's
//! standard output until it is ready.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::supervisor;
use crate::exit::{Exit, Failure};

/// One line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// Something the user should read.
    Note(String),
    /// The mount is usable.
    Ready { pid: u32 },
    /// The real error; the daemon ends.
    Failed { exit: u8, message: String, hint: Option<String> },
}

impl Message {
    pub fn of_failure(failure: &Failure) -> Message {
        Message::Failed {
            exit: failure.exit.code(),
            message: failure.message.clone(),
            hint: failure.hint.clone(),
        }
    }
    /// The failure of a `Failed` line.
    pub fn into_failure(exit: u8, message: String, hint: Option<String>) -> Failure {
        Failure { exit: Exit::from_code(exit).unwrap_or(Exit::Failure), message, hint }
    }
}

/// Who waits for the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ready {
    /// `onfs mount`, at the other end of standard output.
    Parent,
    /// The user, at the terminal.
    Foreground,
}

impl Ready {
    pub fn note(self, text: &str) {
        match self {
            Ready::Parent => send(&Message::Note(text.to_owned())),
            Ready::Foreground => drop(writeln!(io::stderr(), "onfs: {text}")),
        }
    }

    /// Says that the mount is usable, and lets go of the pipe.
    pub fn ready(self) {
        match self {
            Ready::Parent => {
                send(&Message::Ready { pid: std::process::id() });
                release();
            }
            Ready::Foreground => supervisor::tell(supervisor::READY),
        }
    }

    /// Passes a failure on: to the parent and the log, after which there is nothing left to say here.
    pub fn failed(self, failure: Failure) -> Failure {
        match self {
            Ready::Parent => {
                tracing::error!(%failure, "ended");
                send(&Message::of_failure(&failure));
                Failure::told(failure.exit)
            }
            Ready::Foreground => failure,
        }
    }
}

/// A parent that is gone does not stop the daemon.
fn send(message: &Message) {
    if let Ok(line) = serde_json::to_string(message) {
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}

fn release() {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null");
    let released = null.and_then(|null| Ok(rustix::stdio::dup2_stdout(&null)?));
    if let Err(error) = released {
        tracing::warn!(%error, "standard output stays open; the command that mounted may wait");
    }
}
