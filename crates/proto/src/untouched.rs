//! A file that its maker has open and has not written yet: only he knows that its data servers need not be asked.

use prost::Message;

use crate::{Head, metadata::Entry};

/// As [`crate::metadata::GetAttr`], by who made the file and has begun no write through the opening that came with that. If nobody else has
/// had it open for writing since, no data server is asked.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct GetUntouched {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(uint64, tag = "3")]
    pub opening: u64,
}

requests_of_an_inode! {
    GetUntouched -> Entry, ino;
}
