//! What a listing of a directory is answered with: the answer says whether there is more, the body has the entries.

use prost::Message;

use crate::attr::Attr;

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Listed {
    /// There are no more.
    #[prost(bool, tag = "1")]
    pub end: bool,
    /// Of what is kept, as [`crate::leases::Looked`] has it.
    #[prost(uint32, tag = "10")]
    pub term_ms: u32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Entries {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<DirEntry>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct DirEntry {
    #[prost(bytes = "vec", tag = "1")]
    pub name: Vec<u8>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    /// The number of [`types::FileKind`].
    #[prost(uint32, tag = "3")]
    pub kind: u32,
    #[prost(uint64, tag = "4")]
    pub cookie: u64,
    /// Missing also when it went away meanwhile.
    #[prost(message, optional, tag = "5")]
    pub attr: Option<Attr>,
    /// What may be kept of it: see [`crate::leases::keeps`].
    #[prost(uint32, tag = "10")]
    pub keeps: u32,
}
