//! How a command ends: one table of exit codes, and the failure that carries one.
//!
//! Invariant: every way out of the program is a row of [`Exit::ALL`]; the man page and docs/cli.md print
//! that table, so a script can rely on it.

use std::{fmt, io};

use types::Errno;

/// What the process tells its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    Ok = 0,
    Failure = 1,
    Usage = 2,
    NotOnfs = 3,
    Busy = 4,
    TimedOut = 5,
    DataAtRisk = 6,
}

impl Exit {
    pub const ALL: [Exit; 7] =
        [Exit::Ok, Exit::Failure, Exit::Usage, Exit::NotOnfs, Exit::Busy, Exit::TimedOut, Exit::DataAtRisk];

    pub const fn code(self) -> u8 {
        self as u8
    }

    pub fn from_code(code: u8) -> Option<Exit> {
        Exit::ALL.into_iter().find(|e| e.code() == code)
    }

    pub const fn meaning(self) -> &'static str {
        match self {
            Exit::Ok => "Done.",
            Exit::Failure => "It could not be done; the message says why.",
            Exit::Usage => {
                "Wrong arguments or configuration, or a mount point that is not there; nothing was changed."
            }
            Exit::NotOnfs => {
                "The path is not on ONFS, its daemon does not run, or there is nothing to unmount."
            }
            Exit::Busy => "In use: the mount has open files, or the state belongs to a running daemon.",
            Exit::TimedOut => {
                "The deadline passed first; what was begun goes on or is undone, as the message says."
            }
            Exit::DataAtRisk => {
                "Data is at risk or damaged, or needs a look: a flush or a gate that found data that is not safe, a stage that \
                 did not copy everything, conflicts, a linked directory in trouble, damage found by fsck."
            }
        }
    }
}

/// A command's failure: the code, what happened, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
    pub hint: Option<String>,
}

pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into(), hint: None }
    }
    pub fn failed(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Failure, message)
    }
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }
    /// The user has been told already.
    pub fn told(exit: Exit) -> Failure {
        Failure::new(exit, "")
    }
    pub fn is_told(&self) -> bool {
        self.message.is_empty()
    }
    /// Adds what the user can do.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }
}

/// What the system said, in the words that the daemon uses too.
pub fn system_text(error: &io::Error) -> String {
    let known = error.raw_os_error().map(|raw| (raw, Errno::from_raw(raw)));
    match known {
        Some((raw, errno)) if errno.raw() == raw => errno.to_string(),
        Some(_) | None => error.to_string(),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    //! Goal: the codes are the documented ones. Method: compare with the numbers scripts rely on.
    use super::*;

    #[test]
    fn errors_of_the_system_have_the_daemons_words() {
        let text = |raw| system_text(&io::Error::from_raw_os_error(raw));
        assert_eq!(text(libc::ENOENT), Errno::ENOENT.to_string());
        assert!(text(libc::EPROTO).contains("rotocol"), "not taken for EIO");
        assert_eq!(system_text(&io::Error::other("odd")), "odd");
    }

    #[test]
    fn codes_are_fixed() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|e| e.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6]);
        for exit in Exit::ALL {
            assert_eq!(Exit::from_code(exit.code()), Some(exit));
        }
        assert_eq!(Exit::from_code(7), None);
    }
}
