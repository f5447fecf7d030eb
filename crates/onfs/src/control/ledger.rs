//! What the daemon reports of where data is safe: states of files, what a gate found, linked near-line, conflicts.

use serde::{Deserialize, Serialize};

/// Where a file's data is, in one word, with what is wrong before what is well.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum DataState {
    /// Some of it was only in memory, and the memory is gone: reads of that give EIO.
    Lost,
    /// A device failed to make it durable.
    Unsure,
    /// Refused by the linked directory; why is in `why`.
    Refused,
    /// Changed here and there; both are kept, and somebody should look.
    Conflict,
    /// Some of it is only here, in memory.
    Memory,
    /// Safe in a tier of ours, and changed since the linked directory got it, if it did.
    Unpublished,
    /// Its names or attributes are not applied in the linked directory.
    Pending,
    /// Only in memory, as its directory's policy has it.
    Transient,
    /// In a tier that outlives the machine.
    Safe,
    /// In the linked directory, and here.
    Published,
    /// In the linked directory alone.
    Stub,
    /// Not a regular file: it has no data.
    Other,
}

impl DataState {
    pub const fn name(self) -> &'static str {
        match self {
            DataState::Lost => "lost",
            DataState::Unsure => "unsure",
            DataState::Refused => "refused",
            DataState::Conflict => "conflict",
            DataState::Memory => "memory",
            DataState::Unpublished => "unpublished",
            DataState::Pending => "pending",
            DataState::Transient => "transient",
            DataState::Safe => "safe",
            DataState::Published => "published",
            DataState::Stub => "stub",
            DataState::Other => "other",
        }
    }

    /// Is it where its directory's policy and the mount promise that it will be?
    pub const fn is_promised(self) -> bool {
        match self {
            DataState::Transient
            | DataState::Safe
            | DataState::Published
            | DataState::Stub
            | DataState::Other => true,
            DataState::Lost
            | DataState::Unsure
            | DataState::Refused
            | DataState::Conflict
            | DataState::Memory
            | DataState::Unpublished
            | DataState::Pending => false,
        }
    }
}

/// A line of `onfs ls`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EntryReport {
    /// The name in its directory, or the path that was asked for.
    pub name: String,
    pub ino: u64,
    /// `file`, `directory`, `symlink` or `special`.
    pub kind: String,
    pub size_bytes: u64,
    /// Bytes of the file that each tier holds.
    pub memory_bytes: u64,
    pub ssd_bytes: u64,
    pub nearline_bytes: u64,
    pub state: DataState,
    pub open_for_writing: bool,
    /// More about the state, where there is more to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// A part of a directory's names.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ListReport {
    pub entries: Vec<EntryReport>,
    /// Where to go on; `None`: these were the last.
    pub next: Option<u64>,
}

/// Why a gate does not open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    Lost,
    /// A device failed to make it durable.
    Unsure,
    Refused,
    Conflict,
    Memory,
    Unpublished,
    Pending,
    /// A program has it open for writing, or mapped.
    OpenForWriting,
    /// The linked directory is not there, or another one is in its place.
    Link,
    /// Who asks may not look there, or it cannot be read.
    Unreadable,
}

/// `onfs gate`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GateReport {
    /// Is everything in its promised tier?
    pub open: bool,
    /// Names that were looked at.
    pub looked_at: u64,
    /// What is not; at most [`GateReport::FINDINGS_MAX`] of them.
    pub findings: Vec<Finding>,
    pub findings_total: u64,
}

impl GateReport {
    pub const FINDINGS_MAX: usize = 1000;
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    pub path: String,
    /// 0 where there is none.
    pub ino: u64,
    pub reason: Reason,
    pub message: String,
}

/// Is the linked directory there, and the one that was linked?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    Ok,
    /// It is the one, and something of it gives errors.
    Trouble,
    /// It does not answer, or is not there.
    Unreachable,
    /// An empty directory is in its place.
    Unmounted,
    /// Another directory is in its place.
    Stranger,
}

impl LinkState {
    pub const fn name(self) -> &'static str {
        match self {
            LinkState::Ok => "ok",
            LinkState::Trouble => "trouble",
            LinkState::Unreachable => "unreachable",
            LinkState::Unmounted => "unmounted",
            LinkState::Stranger => "stranger",
        }
    }
}

/// Linked near-line, in `onfs status`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkReport {
    pub dir: String,
    pub state: LinkState,
    /// What is wrong, and for how long.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trouble: String,
    pub trouble_ms: Option<u64>,
    /// Files and directories with something that is not applied there, and the age of the oldest.
    pub pending: u64,
    pub oldest_ms: Option<u64>,
    /// Of these, what the linked directory refuses, and what waits for another try or a look.
    pub pending_refused: u64,
    pub pending_held: u64,
    pub conflicts: u64,
    /// Since the mount: steps that were applied, put off or refused there, directories that were listed, and copies that were
    /// renewed since theirs changed.
    pub applied: u64,
    pub put_off: u64,
    pub refused: u64,
    pub listed: u64,
    pub renewed: u64,
}

/// Which directory it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RootReport {
    /// A number of its file system.
    pub device: u64,
    /// Its inode number.
    pub number: u64,
    pub empty: bool,
}

/// `onfs link show`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RootsReport {
    pub mountpoint: String,
    pub dir: String,
    pub state: LinkState,
    /// The one that was linked, and the one that is there.
    pub known: Option<RootReport>,
    pub now: Option<RootReport>,
    /// Names in its top directory that we remember, and how many of them are there now.
    pub names: u64,
    pub names_there: u64,
    pub pending: u64,
    pub conflicts: u64,
}

/// A line of `onfs conflicts`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConflictReport {
    pub number: u64,
    /// `both-changed`, `name-taken`, `deleted-here` or `bytes-lost`.
    pub why: String,
    /// Theirs, as it is found now; empty if it is not there any more.
    pub theirs: String,
    /// Ours, likewise.
    pub ours: String,
    /// Milliseconds since 1970.
    pub when_ms: u64,
    /// Bytes of ours that are in no file any more, as offset and length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<(u64, u64)>,
}
