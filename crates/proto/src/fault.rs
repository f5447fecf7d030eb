//! Answers that say no, and messages that are refused.

use prost::{Enumeration, Message};
use thiserror::Error;
use types::Errno;
use wire::schema::{Fault, Retry, WrongOwner};

use crate::Method;

/// What a fault says beside its error number ([`Fault::reason`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Reason {
    /// The error number says all.
    None = 0,
    /// The server knows no such session, or has given it up: what it had is lost. With `ESTALE`.
    SessionGone = 1,
    /// The number of the operation is below what the session has acknowledged, or its answer is not kept any more. With `EIO`.
    AnswerGone = 2,
    /// A data server that has part of the file does not answer. With `EIO`.
    DataServerAway = 3,
    /// The session has as much open, or as many references, as it may. With `EMFILE`.
    TooMuch = 4,
    /// Another metadata server has the inode's slot. With `EREMOTE`, and the epoch of the map that says so.
    WrongOwner = 5,
    /// The server took the inode's slot without what the session has in it: it is to be told first ([`crate::owners::Bare`]). With `EIO`, and
    /// [`Retry::Unknown`] if it does not know either what was answered there.
    Bare = 6,
    /// The object is at another data server now: the file's layout says where. With `ESTALE`.
    Moved = 30,
    /// The directory is spread: who asks learns over which parts, and asks those. With `EREMOTE`; nothing was done.
    Spread = 36,
    /// By the view that was named whoever is asked does not answer: [`crate::copies::FindView`] says the newest. With `ESTALE`, and
    /// [`Retry::Elsewhere`]; of a change it is not known whether it was carried out, and it is asked for again.
    OtherView = 70,
    /// It is the second of that view and cannot answer this read, or not this request at all: the primary is to be asked by the same view. With
    /// `EAGAIN`, and [`Retry::Elsewhere`].
    AskPrimary = 71,
    /// The object is about to go to another data server, which takes as long as it takes; this one sees to it that it ends. With `EAGAIN`.
    Leaving = 220,
    /// The number of this data server stands for another state directory: it is not the one that it says. With `EEXIST`.
    OtherState = 346,
}

impl Reason {
    pub fn of(fault: &Fault) -> Reason {
        Reason::try_from(fault.reason as i32).unwrap_or(Reason::None)
    }
}

/// Makes a fault. `detail` is for logs.
pub fn fault(errno: Errno, retry: Retry, reason: Reason, detail: impl Into<String>) -> Fault {
    Fault {
        errno: errno.raw(),
        retry: retry.into(),
        reason: reason as u32,
        detail: detail.into(),
        ..Fault::default()
    }
}

pub fn session_gone() -> Fault {
    fault(Errno::ESTALE, Retry::Never, Reason::SessionGone, "no such session")
}

/// The slot is another's, as the map with this epoch says, or a later one.
pub fn wrong_owner(epoch: u64) -> Fault {
    Fault {
        wrong_owner: Some(WrongOwner { epoch }),
        ..fault(Errno::EREMOTE, Retry::Elsewhere, Reason::WrongOwner, "")
    }
}

/// The session is to say what it has in the slot.
pub fn bare(answers_known: bool) -> Fault {
    let retry = if answers_known { Retry::Never } else { Retry::Unknown };
    fault(Errno::EIO, retry, Reason::Bare, "what the session has in the slot is not known here")
}

/// The object is elsewhere: whoever wants it asks for the file's layout.
pub fn moved() -> Fault {
    fault(Errno::ESTALE, Retry::Elsewhere, Reason::Moved, "the object is on another data server")
}

/// The one asked does not answer by the view that was named.
pub fn other_view() -> Fault {
    fault(Errno::ESTALE, Retry::Elsewhere, Reason::OtherView, "another view of the object is the newest")
}

/// Of two that have an object the primary is to be asked.
pub fn ask_primary() -> Fault {
    fault(Errno::EAGAIN, Retry::Elsewhere, Reason::AskPrimary, "the primary is to be asked")
}

/// The directory is spread: whoever is asked about is a part of it.
pub fn spread() -> Fault {
    fault(Errno::EREMOTE, Retry::Elsewhere, Reason::Spread, "the directory is spread")
}

/// The fault in the meta of an answer; what cannot be read is `EIO`, and may have been carried out.
pub fn read(meta: &[u8]) -> Fault {
    Fault::decode(meta)
        .unwrap_or_else(|_| fault(Errno::EIO, Retry::Unknown, Reason::None, "no readable fault"))
}

/// Why a message is not taken.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Bad {
    #[error("not a request of {0:?}")]
    Undecodable(Method),
    #[error("no {0}")]
    Missing(&'static str),
    #[error("{0} is out of its range")]
    Range(&'static str),
    #[error("{what}: {len} is more than {max}")]
    TooLong { what: &'static str, len: usize, max: usize },
}

impl Bad {
    pub fn errno(&self) -> Errno {
        match self {
            Bad::Undecodable(_) | Bad::Missing(_) | Bad::Range(_) => Errno::EINVAL,
            Bad::TooLong { what: "name", .. } => Errno::ENAMETOOLONG,
            Bad::TooLong { .. } => Errno::EINVAL,
        }
    }
}

impl From<Bad> for Fault {
    fn from(bad: Bad) -> Fault {
        fault(bad.errno(), Retry::Never, Reason::None, bad.to_string())
    }
}
