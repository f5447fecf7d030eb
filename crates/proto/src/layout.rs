//! Where a file's data are, as messages have it. What it means for an offset is `cluster::striping`.

use prost::Message;
use types::SAU_BYTES;

use crate::Bad;

/// Data servers of one file at most.
pub const STRIPES_MAX: usize = 64;

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Layout {
    /// One more whenever the file's data are put elsewhere; from 1.
    #[prost(uint32, tag = "1")]
    pub generation: u32,
    /// Bytes on one data server before the next: whole storage allocation units.
    #[prost(uint64, tag = "2")]
    pub unit: u64,
    /// The node of each stripe; no two are the same.
    #[prost(uint64, repeated, tag = "3")]
    pub stripes: Vec<u64>,
}

impl Layout {
    pub fn check(&self) -> Result<(), Bad> {
        if self.stripes.len() > STRIPES_MAX {
            return Err(Bad::TooLong { what: "stripes", len: self.stripes.len(), max: STRIPES_MAX });
        }
        if self.stripes.is_empty() || self.stripes.contains(&0) {
            return Err(Bad::Missing("stripe's node"));
        }
        let twice = |(at, node)| self.stripes[..at].contains(node);
        if self.stripes.iter().enumerate().any(twice) {
            return Err(Bad::Range("a node that has two stripes"));
        }
        if self.generation == 0 || self.unit == 0 || !self.unit.is_multiple_of(SAU_BYTES) {
            return Err(Bad::Range("generation or unit"));
        }
        Ok(())
    }
}
