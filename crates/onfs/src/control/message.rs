//! What is asked and answered.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use types::{Errno, TierId};

use super::{
    access::Peer,
    ahead::{PlanReport, RunReport},
    cluster::{ClusterMountReport, ServerReport},
    ledger::{ConflictReport, EntryReport, GateReport, ListReport, RootsReport},
    report::{DirPolicyReport, FileReport, MemoryReport, MoveReport, QuotaReport, ScrubReport, StatusReport},
};
use crate::policy::PolicyChange;

/// Version of the protocol; a peer of another version is refused with a message that names both.
pub const VERSION: u32 = 1;

/// A file or directory on the mount. The inode number says which; the path is only for messages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRef {
    pub ino: u64,
    pub path: String,
}

/// Everything that can be asked. Lists of files hold at most [`Request::FILES_MAX`]; the command sends more in
/// several requests.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    Status {},
    File {
        file: FileRef,
    },
    /// Move all data of the files to a tier. Without `wait`, here and below, the answer comes when the files are queued.
    Migrate {
        files: Vec<FileRef>,
        to: TierId,
        wait: bool,
    },
    /// Make the data of the files safe in a persistent tier.
    Flush {
        files: Vec<FileRef>,
        wait: bool,
    },
    /// The same for all files of the mount.
    FlushAll {
        wait: bool,
    },
    /// Bring data up, in the order of the list.
    Prefetch {
        files: Vec<FileRef>,
        wait: bool,
    },
    /// Begin a run over an ordered list of groups of files, or add to the run of that number. Group k+1 comes up while
    /// group k is read.
    Run {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<u64>,
        files: Vec<FileRef>,
        /// How many of the files each group has; together all of them.
        groups: Vec<u32>,
        /// The first of these groups goes on with the last one of the request before.
        #[serde(default)]
        joined: bool,
        /// More of the list will follow.
        #[serde(default)]
        more: bool,
    },
    RunShow {
        run: u64,
    },
    /// Answered when the run has ended.
    RunWait {
        run: u64,
    },
    RunCancel {
        run: u64,
    },
    RunList {},
    /// What is remembered of jobs: of all users' for the privileged, else of one's own.
    PlanList {},
    PlanShow {
        name: String,
        /// Whose; the asker's without it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uid: Option<u32>,
    },
    PlanForget {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uid: Option<u32>,
    },
    /// Keep the files in a tier (where they are, when `to` is not given) until `Unpin`.
    Pin {
        files: Vec<FileRef>,
        to: Option<TierId>,
    },
    Unpin {
        files: Vec<FileRef>,
    },
    PolicyShow {
        dir: FileRef,
    },
    PolicySet {
        dir: FileRef,
        changes: Vec<PolicyChange>,
    },
    /// A limit of 0 means none.
    QuotaSet {
        dir: FileRef,
        bytes: Option<u64>,
        inodes: Option<u64>,
    },
    QuotaShow {
        dir: FileRef,
    },
    QuotaList {},
    QuotaRemove {
        dir: FileRef,
    },
    /// Where the data of these files is.
    States {
        files: Vec<FileRef>,
    },
    /// Names of a directory with where their data is, from `after` on (0: from the first), so many that an answer holds them.
    List {
        dir: FileRef,
        after: u64,
    },
    /// Is everything at and below these paths in its promised tier? Looked at again until it is, or the time is over.
    Gate {
        places: Vec<FileRef>,
        wait_ms: u64,
    },
    /// Has what is pending at and below these paths applied in the linked directory, and waits for it. Without one there is
    /// nothing to do.
    Drain {
        places: Vec<FileRef>,
    },
    /// Conflicts at and below a path, with numbers above `after`, so many that an answer holds them.
    Conflicts {
        place: FileRef,
        after: u64,
    },
    /// Takes conflicts off the list; without numbers all that are at and below the path.
    ForgetConflicts {
        place: FileRef,
        numbers: Vec<u64>,
    },
    LinkShow {},
    /// The directory with this number is the one that was linked, from now on.
    LinkAccept {
        device: u64,
        number: u64,
        empty_too: bool,
    },
    Scrub {
        action: ScrubAction,
    },
    MemoryShow {},
    /// Answered when the tier is within the new limit; progress is in bytes moved out.
    MemorySet {
        bytes: u64,
    },
    /// Flush, then unmount, then end the daemon. `lazy` detaches a busy mount. The daemon carries it out itself.
    Unmount {
        lazy: bool,
    },
    /// Hand the mount over to this program. There is no answer but a refusal: the daemon ends, and the next one is asked how it went.
    Upgrade {
        program: String,
    },
}

/// Of the pass over all checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubAction {
    Show,
    Start,
    /// And answer when it has ended.
    StartAndWait,
    Stop,
}

impl Request {
    pub const FILES_MAX: usize = 1024;
    /// The most bytes of one path: `PATH_MAX`, where each that is not text has become three.
    pub const PATH_BYTES_MAX: usize = 3 * 4096;
    /// With this many bytes of paths the command sends a request off: with all of them escaped, and one path more, a
    /// frame still takes it.
    pub const PATH_BYTES_SUM: usize = 512 << 10;

    /// The word in messages and logs.
    pub const fn name(&self) -> &'static str {
        match self {
            Request::Status {} => "status",
            Request::File { .. } => "file",
            Request::Migrate { .. } => "migrate",
            Request::Flush { .. } => "flush",
            Request::FlushAll { .. } => "a flush of the whole mount",
            Request::Prefetch { .. } => "prefetch",
            Request::Run { .. } => "a run",
            Request::RunShow { .. } => "run show",
            Request::RunWait { .. } => "run wait",
            Request::RunCancel { .. } => "run cancel",
            Request::RunList {} => "run list",
            Request::PlanList {} => "plan list",
            Request::PlanShow { .. } => "plan show",
            Request::PlanForget { .. } => "plan forget",
            Request::Pin { .. } => "pin",
            Request::Unpin { .. } => "unpin",
            Request::PolicyShow { .. } => "policy show",
            Request::PolicySet { .. } => "policy set",
            Request::QuotaSet { .. } => "quota set",
            Request::QuotaShow { .. } => "quota show",
            Request::QuotaList {} => "quota list",
            Request::QuotaRemove { .. } => "quota remove",
            Request::States { .. } | Request::List { .. } => "ls",
            Request::Gate { .. } => "gate",
            Request::Drain { .. } => "a flush to the linked directory",
            Request::Conflicts { .. } => "conflicts",
            Request::ForgetConflicts { .. } => "conflicts forget",
            Request::LinkShow {} => "link show",
            Request::LinkAccept { .. } => "link accept",
            Request::Scrub { .. } => "scrub",
            Request::MemoryShow {} => "memory show",
            Request::MemorySet { .. } => "memory set",
            Request::Unmount { .. } => "unmount",
            Request::Upgrade { .. } => "upgrade",
        }
    }

    /// For root and the user who mounted alone; the other requests depend on the file that they name.
    pub const fn needs_privilege(&self) -> bool {
        match self {
            Request::QuotaSet { .. }
            | Request::QuotaRemove { .. }
            | Request::MemorySet { .. }
            | Request::FlushAll { .. }
            | Request::LinkAccept { .. }
            | Request::Unmount { .. }
            | Request::Upgrade { .. } => true,
            Request::Scrub { action } => !matches!(action, ScrubAction::Show),
            Request::Status {}
            | Request::File { .. }
            | Request::Migrate { .. }
            | Request::Flush { .. }
            | Request::Prefetch { .. }
            | Request::Run { .. }
            | Request::RunShow { .. }
            | Request::RunWait { .. }
            | Request::RunCancel { .. }
            | Request::RunList {}
            | Request::PlanList {}
            | Request::PlanShow { .. }
            | Request::PlanForget { .. }
            | Request::Pin { .. }
            | Request::Unpin { .. }
            | Request::PolicyShow { .. }
            | Request::PolicySet { .. }
            | Request::QuotaShow { .. }
            | Request::QuotaList {}
            | Request::States { .. }
            | Request::List { .. }
            | Request::Gate { .. }
            | Request::Drain { .. }
            | Request::Conflicts { .. }
            | Request::ForgetConflicts { .. }
            | Request::LinkShow {}
            | Request::MemoryShow {} => false,
        }
    }

    /// The files that it names.
    pub fn files(&self) -> &[FileRef] {
        match self {
            Request::Migrate { files, .. }
            | Request::Flush { files, .. }
            | Request::Prefetch { files, .. }
            | Request::Run { files, .. }
            | Request::Pin { files, .. }
            | Request::Unpin { files }
            | Request::States { files }
            | Request::Gate { places: files, .. }
            | Request::Drain { places: files } => files,
            Request::File { file }
            | Request::List { dir: file, .. }
            | Request::Conflicts { place: file, .. }
            | Request::ForgetConflicts { place: file, .. }
            | Request::PolicyShow { dir: file }
            | Request::PolicySet { dir: file, .. }
            | Request::QuotaSet { dir: file, .. }
            | Request::QuotaShow { dir: file }
            | Request::QuotaRemove { dir: file } => std::slice::from_ref(file),
            Request::Status {}
            | Request::FlushAll { .. }
            | Request::RunShow { .. }
            | Request::RunWait { .. }
            | Request::RunCancel { .. }
            | Request::RunList {}
            | Request::PlanList {}
            | Request::PlanShow { .. }
            | Request::PlanForget { .. }
            | Request::QuotaList {}
            | Request::LinkShow {}
            | Request::LinkAccept { .. }
            | Request::Scrub { .. }
            | Request::MemoryShow {}
            | Request::MemorySet { .. }
            | Request::Unmount { .. }
            | Request::Upgrade { .. } => &[],
        }
    }
}

/// The result of a request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "is", content = "report", rename_all = "kebab-case")]
pub enum Response {
    Status(Box<StatusReport>),
    /// Of status, on a mount of a cluster, and of a server.
    ClusterMount(Box<ClusterMountReport>),
    Server(Box<ServerReport>),
    File(Box<FileReport>),
    /// Of migrate, flush, prefetch, pin and unpin.
    Moved(MoveReport),
    Policy(DirPolicyReport),
    Quota(QuotaReport),
    Quotas(Vec<QuotaReport>),
    Memory(MemoryReport),
    Scrub(ScrubReport),
    Run(RunReport),
    Runs(Vec<RunReport>),
    Plan(PlanReport),
    Plans(Vec<PlanReport>),
    States(Vec<EntryReport>),
    List(ListReport),
    Gate(GateReport),
    Conflicts(Vec<ConflictReport>),
    Link(RootsReport),
    Done,
}

/// What [`Progress`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    #[default]
    Bytes,
    /// Files, directory entries, whatever `what` says.
    Items,
}

/// How far a long request has come.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    pub done: u64,
    /// 0 when not known.
    pub total: u64,
    #[serde(default)]
    pub unit: Unit,
    /// What is being worked on now, such as a path.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
}

/// What kind of failure; each becomes one exit code of the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorCode {
    /// The request makes no sense, or is of another version.
    BadRequest,
    /// The peer may not do that.
    NotAllowed,
    NotFound,
    Busy,
    /// The deadline passed.
    TimedOut,
    /// It was done in part, and data is not safe.
    DataAtRisk,
    /// An error number of the file system, in `errno`.
    Failed,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ControlError {
    pub code: ErrorCode,
    pub message: String,
    /// The positive error number, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
}

impl ControlError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> ControlError {
        ControlError { code, message: message.into(), errno: None }
    }
    pub fn not_allowed(what: &str) -> ControlError {
        ControlError::new(ErrorCode::NotAllowed, format!("{what}: only root or the user who mounted may"))
    }
    /// An error of the file system while doing `what`.
    pub fn errno(what: &str, errno: Errno) -> ControlError {
        let code = match errno.raw() {
            libc::ENOENT => ErrorCode::NotFound,
            libc::EBUSY => ErrorCode::Busy,
            libc::ETIMEDOUT => ErrorCode::TimedOut,
            libc::EACCES | libc::EPERM => ErrorCode::NotAllowed,
            _ => ErrorCode::Failed,
        };
        ControlError { code, message: format!("{what}: {errno}"), errno: Some(errno.raw()) }
    }
}

/// Takes progress while a request runs, and says when it must end.
pub trait ProgressSink {
    /// `Err` when the client is gone or the deadline has passed: stop, undo or leave what is queued, return it.
    fn report(&mut self, progress: Progress) -> Result<(), ControlError>;
    /// The request must be answered by then.
    fn deadline(&self) -> Option<Instant>;

    /// What is left of the time; `None` without a deadline.
    fn remaining(&self) -> Option<Duration> {
        self.deadline().map(|at| at.saturating_duration_since(Instant::now()))
    }
}

/// Carries out requests. Called on a connection's own thread, so it may wait. A request that `needs_privilege`
/// only comes from a privileged peer; for the others the handler compares the file, and the way to it, with the peer.
pub trait ControlHandler: Send + Sync {
    fn handle(
        &self,
        peer: &Peer,
        request: Request,
        progress: &mut dyn ProgressSink,
    ) -> Result<Response, ControlError>;
}
