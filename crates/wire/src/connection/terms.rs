//! What is said to a connection and what it says: requests, answers, events, and why things fail.

use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use crate::{
    PageBuffer,
    frame::{Body, Header, Kind, Limits, Verdict},
};

/// How much may be unanswered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    pub requests: u32,
    /// Headers, metas, bodies, and what bodies their answers may have.
    pub bytes: u64,
}

/// Since the start of the process's own clock, which never goes back.
pub type Time = Duration;

/// An unanswered request of ours, counted from 1 on each connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// A side's own choices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// What we take unanswered from the peer, as the handshake told it.
    pub takes: Window,
    /// What the peer takes.
    pub peer_takes: Window,
    pub limits: Limits,
    /// Requests of ours that wait for credit.
    pub queued_max: usize,
    /// A ping after so long without a byte from the peer.
    pub ping_after: Duration,
    /// Without a byte for so long the connection is lost.
    pub silence_max: Duration,
    /// From a farewell to the end.
    pub leave_max: Duration,
}

/// What to ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub method: u16,
    pub meta: Bytes,
    pub body: Body,
    /// Bytes of body that the answer may have.
    pub answer_bytes_max: u32,
    pub deadline: Time,
    pub epoch: u64,
    pub trace: u64,
    pub job: u64,
}

/// What to answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    pub verdict: Verdict,
    pub meta: Bytes,
    pub body: Body,
    pub epoch: u64,
}

/// A frame for the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    pub header: Header,
    pub meta: Bytes,
    pub body: Body,
}

impl Outgoing {
    pub(super) fn bare(header: Header) -> Outgoing {
        Outgoing { header, meta: Bytes::new(), body: Body::default() }
    }
}

/// Why a request has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Failure {
    /// The peer has not begun it: it may be made again anywhere.
    #[error("not carried out: {0}")]
    NotSent(Cause),
    /// It may have been carried out, or may still be.
    #[error("not known whether carried out: {0}")]
    Unknown(Cause),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Cause {
    #[error("its time was over")]
    Deadline,
    #[error("the connection was lost")]
    Lost,
    #[error("it was cancelled")]
    Cancelled,
    #[error("the peer is leaving or had no time for it")]
    Refused,
}

/// Why a request was not taken; it was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NotTaken {
    #[error("the connection is ending")]
    Ending,
    #[error("too many requests wait for the peer")]
    Full,
    #[error("a part of {bytes} bytes is more than the {limit} that fit")]
    TooLong { bytes: u64, limit: u64 },
}

/// A frame that the peer should not have sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Violation {
    #[error("a frame of the handshake ({0:?}) after it")]
    Handshake(Kind),
    #[error("request {0} after one with that number or a higher one")]
    Repeated(u64),
    #[error("request {0} is beyond the credit")]
    Credit(u64),
    #[error("request {0} after the farewell")]
    AfterGoodbye(u64),
    #[error("an answer to {0}, which is no open request")]
    NoRequest(u64),
    #[error("an answer to {id} with {bytes} bytes, more than the {limit} asked for")]
    LongAnswer { id: u64, bytes: u32, limit: u32 },
    #[error("a {0:?} with a body")]
    Body(Kind),
}

/// What the body that now comes is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyFor {
    /// A request of the peer's.
    Request,
    /// The answer that somebody waits for.
    Answer(RequestId),
    /// Nobody: it is read and dropped.
    Nobody,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The peer asks; [`Connection::answer`] is owed. `deadline` is by our clock.
    Asked {
        header: Header,
        meta: Vec<u8>,
        body: PageBuffer,
        deadline: Time,
    },
    /// The peer waits for this answer no longer, or is gone. The answer is owed nevertheless, unless the connection is over.
    Unasked {
        id: u64,
    },
    Answered {
        id: RequestId,
        header: Header,
        meta: Vec<u8>,
        body: PageBuffer,
    },
    Failed {
        id: RequestId,
        failure: Failure,
    },
    /// All is answered on both sides, and the transport can be closed once what was polled is written.
    Ended,
    /// The connection is over before that.
    Lost(Loss),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Loss {
    #[error("the transport failed or was closed")]
    Transport,
    #[error("nothing came from the peer for too long")]
    Silence,
    #[error("the peer did not finish in time after a farewell")]
    SlowEnd,
    #[error("the peer broke the protocol: {0}")]
    Violation(Violation),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    Request(RequestId),
    Ping,
    Silence,
    SlowEnd,
}
