//! The messages that are already certain. These structures are the schema: a field has its tag here and nowhere else,
//! and golden bytes in the tests say that it stays.
//!
//! Rules: a tag is never used again for something else; a reader passes over fields that it does not know; a field that a
//! version adds has a meaning when it is missing.

use prost::{Enumeration, Message};

/// What a connection is for. Each lane is a connection of its own, so that a heartbeat does not wait behind a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Lane {
    Control = 1,
    Metadata = 2,
    Data = 3,
    Movement = 4,
}

/// From who begins the connection.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Hello {
    /// The versions of the wire that it speaks, both included.
    #[prost(uint32, tag = "1")]
    pub version_min: u32,
    #[prost(uint32, tag = "2")]
    pub version_max: u32,
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "3")]
    pub cluster: Vec<u8>,
    #[prost(uint64, tag = "4")]
    pub node: u64,
    /// Bits, see [`Roles`](crate::handshake::Roles).
    #[prost(uint32, tag = "5")]
    pub roles: u32,
    #[prost(enumeration = "Lane", tag = "6")]
    pub lane: i32,
    /// The program's version, for people.
    #[prost(string, tag = "7")]
    pub build: String,
    /// 32 random bytes.
    #[prost(bytes = "vec", tag = "8")]
    pub nonce: Vec<u8>,
    /// What it takes of requests that it has not answered.
    #[prost(uint32, tag = "9")]
    pub requests_max: u32,
    #[prost(uint64, tag = "10")]
    pub bytes_max: u64,
    /// Of what connection this one takes the place: of those before with the same number, on the same lane. 0, and missing: of none.
    #[prost(fixed64, tag = "11")]
    pub instance: u64,
}

/// The other side's answer, with its proof in the body.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Welcome {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(bytes = "vec", tag = "3")]
    pub cluster: Vec<u8>,
    #[prost(uint64, tag = "4")]
    pub node: u64,
    #[prost(uint32, tag = "5")]
    pub roles: u32,
    #[prost(string, tag = "7")]
    pub build: String,
    #[prost(bytes = "vec", tag = "8")]
    pub nonce: Vec<u8>,
    #[prost(uint32, tag = "9")]
    pub requests_max: u32,
    #[prost(uint64, tag = "10")]
    pub bytes_max: u64,
}

/// Why a handshake ends without a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Reason {
    /// The message breaks the rules of the handshake.
    Malformed = 1,
    Version = 2,
    Cluster = 3,
    Key = 4,
    /// Another node answered than was wanted.
    Node = 5,
    /// As many connections as it takes.
    Busy = 6,
    /// One of us speaks in TLS, the other in clear.
    Tls = 7,
}

/// From either side, in place of its next message.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Refusal {
    #[prost(enumeration = "Reason", tag = "1")]
    pub reason: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// Whether and how a request that failed may be made again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Retry {
    /// It would fail again.
    Never = 1,
    /// The same place, after a while.
    After = 2,
    /// Another node owns it.
    Elsewhere = 3,
    /// It may have been carried out.
    Unknown = 4,
}

/// The meta of an answer that says no.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Fault {
    /// The number of Linux.
    #[prost(int32, tag = "1")]
    pub errno: i32,
    #[prost(enumeration = "Retry", tag = "2")]
    pub retry: i32,
    /// With [`Retry::After`]: not sooner than in so many milliseconds.
    #[prost(uint32, tag = "3")]
    pub after_ms: u32,
    /// For logs.
    #[prost(string, tag = "4")]
    pub detail: String,
    /// With [`Retry::Elsewhere`].
    #[prost(message, optional, tag = "5")]
    pub wrong_owner: Option<WrongOwner>,
    /// Why, in the role's own numbers; 0: the error number says all.
    #[prost(uint32, tag = "6")]
    pub reason: u32,
}

/// The sender's map is older than the owner's.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WrongOwner {
    /// Of the map that the one asked has.
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
}
