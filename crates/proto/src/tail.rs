//! Messages of a metadata server to its standby: the end of its journal, before it is answered. See `cluster::tail`.
//!
//! A [`TailRecord`] is what is stored of it, too: in the standby's file of the copy. They are of the control lane and need no session.

use prost::{Message, bytes::Bytes};

use crate::{Bad, Head, metadata::text, owners::AnswerState};

/// Bytes of the records of one message, but for a single one that is larger.
pub const RECORDS_BYTES: usize = 2 << 20;
/// Of the name of a writer in the database.
const WRITER_MAX: usize = 64;

/// As whom does the database know you?
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct TailWho {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TailIs {
    #[prost(string, tag = "1")]
    pub writer: String,
}

/// A copy begins after record `base`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TailBegin {
    /// Whose journal it is.
    #[prost(uint64, tag = "1")]
    pub node: u64,
    #[prost(string, tag = "2")]
    pub writer: String,
    #[prost(uint64, tag = "3")]
    pub copy: u64,
    #[prost(uint64, tag = "4")]
    pub beat: u64,
    #[prost(uint64, tag = "5")]
    pub base: u64,
}

/// Records `from..=up_to` of a copy are in the body, as [`TailStored`]; perhaps none.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TailMore {
    #[prost(uint64, tag = "1")]
    pub node: u64,
    #[prost(string, tag = "2")]
    pub writer: String,
    #[prost(uint64, tag = "3")]
    pub copy: u64,
    #[prost(uint64, tag = "4")]
    pub beat: u64,
    #[prost(uint64, tag = "5")]
    pub from: u64,
    #[prost(uint64, tag = "6")]
    pub up_to: u64,
    /// The engine has all up to this one.
    #[prost(uint64, tag = "7")]
    pub applied: u64,
}

/// What of the copy is stored, or that nothing is taken for it.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct TailHas {
    /// 0: there is nothing to say.
    #[prost(uint64, tag = "1")]
    pub copy: u64,
    #[prost(uint64, tag = "2")]
    pub beat: u64,
    #[prost(uint64, tag = "3")]
    pub up_to: u64,
    #[prost(bool, tag = "4")]
    pub refused: bool,
}

/// How is it with your standby?
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct TailNow {}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct TailStatus {
    /// By the map; 0: none.
    #[prost(uint64, tag = "1")]
    pub standby: u64,
    /// It may go on in this one's place: the database says so.
    #[prost(bool, tag = "2")]
    pub complete: bool,
    /// Records that are answered when it has them.
    #[prost(uint64, tag = "3")]
    pub waiting: u64,
    /// Since that was last otherwise.
    #[prost(uint64, tag = "4")]
    pub since_ms: u64,
    /// It is switched off here.
    #[prost(bool, tag = "5")]
    pub off: bool,
}

/// Each is a [`TailRecord`], in the bytes that are stored.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TailStored {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub records: Vec<Bytes>,
}

/// Commits that follow each other, with what the operations were answered that made them: all of it or nothing. Or what is said beside commits.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TailRecord {
    /// Each one more than the one before.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(message, repeated, tag = "2")]
    pub commits: Vec<TailCommit>,
    #[prost(message, repeated, tag = "3")]
    pub answers: Vec<TailAnswer>,
    /// Operations that made some of the commits and were not answered yet.
    #[prost(message, repeated, tag = "4")]
    pub begun: Vec<TailOperation>,
    /// Sessions that were given up: by whoever goes on, too. Servers from before do not say it, and keep it without knowing.
    #[prost(message, repeated, tag = "5")]
    pub given_up: Vec<Head>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TailCommit {
    #[prost(uint64, tag = "1")]
    pub lsn: u64,
    /// As in the journal.
    #[prost(bytes = "vec", tag = "2")]
    pub body: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Message)]
pub struct TailOperation {
    #[prost(fixed64, tag = "1")]
    pub session_high: u64,
    #[prost(fixed64, tag = "2")]
    pub session_low: u64,
    #[prost(uint64, tag = "3")]
    pub number: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TailAnswer {
    #[prost(message, required, tag = "1")]
    pub operation: TailOperation,
    /// Answers of the session below it need not be known any more.
    #[prost(uint64, tag = "2")]
    pub acknowledged: u64,
    /// `None`: it is to be asked again, as if it had not been.
    #[prost(message, optional, tag = "3")]
    pub answer: Option<AnswerState>,
}

impl TailOperation {
    pub fn of(head: &Head) -> TailOperation {
        let Head { session_high, session_low, number, .. } = *head;
        TailOperation { session_high, session_low, number }
    }
}

requests_of_anybody! {
    TailWho -> TailIs, |_it| Ok(());
    TailBegin -> TailHas, |it| writer(it.node, &it.writer);
    TailMore -> TailHas, |it| writer(it.node, &it.writer);
    TailNow -> TailStatus, |_it| Ok(());
}

/// It names a file.
fn writer(node: u64, writer: &str) -> Result<(), Bad> {
    text("writer", writer, WRITER_MAX)?;
    if node == 0 {
        Err(Bad::Missing("node"))
    } else if writer.is_empty() || !writer.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        Err(Bad::Range("writer"))
    } else {
        Ok(())
    }
}
