//! What can go wrong with one file, and what that means for the others.

use std::{fmt, io};

use crate::exit::system_text;

#[derive(Debug)]
pub enum Trouble {
    Source(io::Error),
    Destination(io::Error),
    /// The journal cannot be written, so that nothing could be gone on with.
    Journal(io::Error),
    /// It was changed, or cut, while it was read.
    Changed,
    /// What was read back is not what was written.
    Differs {
        at: u64,
    },
    Refused(&'static str),
    /// The whole stage ends; nothing is wrong with this file.
    Stopped,
}

impl Trouble {
    /// The positive error number.
    pub fn errno(&self) -> i32 {
        match self {
            Trouble::Source(error) | Trouble::Destination(error) | Trouble::Journal(error) => {
                error.raw_os_error().unwrap_or(libc::EIO)
            }
            Trouble::Changed => libc::EBUSY,
            Trouble::Differs { .. } => libc::EIO,
            Trouble::Refused(_) => libc::EEXIST,
            Trouble::Stopped => libc::EINTR,
        }
    }

    /// No other file would fare better: what is missing is room, or one of the two sides.
    pub fn ends_all(&self) -> bool {
        let gone = |raw| matches!(raw, libc::ENOTCONN | libc::ECONNABORTED);
        let shut = |raw| matches!(raw, libc::ENOSPC | libc::EDQUOT | libc::EROFS | libc::ESTALE);
        match self {
            Trouble::Journal(_) => true,
            Trouble::Destination(error) => error.raw_os_error().is_some_and(|raw| gone(raw) || shut(raw)),
            Trouble::Source(error) => error.raw_os_error().is_some_and(gone),
            Trouble::Changed | Trouble::Differs { .. } | Trouble::Refused(_) | Trouble::Stopped => false,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Source(error) => write!(f, "source: {}", system_text(error)),
            Trouble::Destination(error) => write!(f, "destination: {}", system_text(error)),
            Trouble::Journal(error) => write!(f, "the journal of this stage: {}", system_text(error)),
            Trouble::Changed => write!(f, "it changes while it is copied"),
            Trouble::Differs { at } => {
                write!(f, "what was read back from the destination differs, at byte {at} or behind it")
            }
            Trouble::Refused(why) => write!(f, "{why}"),
            Trouble::Stopped => write!(f, "not copied: the stage was ended"),
        }
    }
}
