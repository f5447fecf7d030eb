//! Messages about writes that clients keep back.

use prost::Message;

use crate::Head;

/// Asks whether writes through an opening may be kept back. What may be is asked back as all that is kept ([`crate::leases::Recalled`]), and given back
/// when it is written.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct KeepWrites {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    /// Of the session, for writing.
    #[prost(uint64, tag = "3")]
    pub opening: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WritesKept {
    #[prost(bool, tag = "1")]
    pub granted: bool,
    /// As of [`crate::leases::Looked`]: when it is over nothing more is kept back. What was is written as long as the session is there.
    #[prost(uint32, tag = "2")]
    pub term_ms: u32,
}

requests_of_an_inode! {
    KeepWrites -> WritesKept, ino;
}
