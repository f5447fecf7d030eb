//! The control protocol between the commands and a running daemon: requests over a Unix socket.
//!
//! A frame is a length (4 bytes, little-endian) and that many bytes of JSON. The client sends requests, one at a
//! time; the daemon answers each with any number of progress frames and then one result or error. Every frame
//! carries the protocol's version. Invariants: a malformed frame gets an error answer and ends the connection;
//! a frame that has begun is whole by a deadline, both ways; connections and the bytes of their requests are bounded, in all
//! and for each user, and some are kept for root and the user who mounted; the peer's identity comes from the kernel
//! (`SO_PEERCRED`, `SO_PEERGROUPS`), never from the message; no request waits for a client that does not read.
//! Refuses to know how a request is carried out.

mod access;
mod ahead;
mod client;
mod cluster;
mod frame;
mod held;
mod ledger;
mod limits;
mod message;
mod peer;
mod report;
mod seldom;
mod server;
mod session;
mod socket;
mod timed;
mod weigh;

pub use access::{Owner, Peer};
pub use ahead::{GroupReport, PlanReport, RunReport, RunState, ScoreReport};
pub use client::{CallError, Client};
pub use cluster::{
    ClientReport, ClusterMountReport, ClusterReport, DataServerReport, DrainReport, LostFileReport,
    MdsReport, MetadataServerReport, NodeReport, OwnReport, PressureReport, ServerReport, ServerTierReport,
    StandbyReport,
};
pub use frame::{Answer, AnswerBody, Envelope, FrameError, REQUEST_BYTES_MAX, read_frame, write_frame};
pub use ledger::{
    ConflictReport, DataState, EntryReport, Finding, GateReport, LinkReport, LinkState, ListReport, Reason,
    RootReport, RootsReport,
};
pub use limits::Limits;
pub use message::{
    ControlError, ControlHandler, ErrorCode, FileRef, Progress, ProgressSink, Request, Response, ScrubAction,
    Unit, VERSION,
};
pub use report::{
    BudgetReport, Coolness, DatabaseReport, DirPolicyReport, FileOutcome, FileReport, GuardReport,
    MemoryReport, MetadataReport, MoveReport, Movement, QuotaReport, ScrubReport, StatusReport, TierReport,
    TierResidency,
};
pub use server::{Server, ServerOptions};
pub use socket::SOCKET_NAME;
