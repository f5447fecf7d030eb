//! Directories that are spread: where there are several metadata servers, a client asks each of its parts' owners itself.
//!
//! Who asks for a name in such a directory, its attributes or its listing is told that it is spread ([`crate::Reason::Spread`]), learns over which
//! parts ([`FindSpread`]), and then asks for the name in its part, as in a directory by itself.

pub use namespace::parts::complete_attr;
use namespace::{NameHasher, Spread, readdir};
use prost::Message;
use types::Ino;

use crate::{
    Bad, Head,
    metadata::{Entry, Listed},
};

/// Over which parts a directory is spread.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct FindSpread {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub dir: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct SpreadOver {
    /// The number of the first part's UGSD.
    #[prost(uint32, tag = "1")]
    pub first: u32,
    /// There are `2^bits`; 0: it is not spread.
    #[prost(uint32, tag = "2")]
    pub bits: u32,
    /// Of the hash of names, 16 bytes. Nobody outside of the cluster is told.
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
}

/// What a directory's own record says: its parts know more, and are asked by themselves ([`crate::metadata::GetAttr`]). The answer's `ino` is the first
/// part, if there are some; servers from before say 0.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct GetAlone {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
}

/// "." and ".." of a directory that is spread, after a cookie, as [`crate::metadata::ReadDir`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ReadDots {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub dir: u64,
    #[prost(uint64, tag = "3")]
    pub cookie: u64,
}

requests_of_an_inode! {
    FindSpread -> SpreadOver, dir;
    GetAlone -> Entry, ino;
    ReadDots -> Listed, dir;
}

/// As a client knows it.
#[derive(Clone, Copy, Debug)]
pub struct Over {
    spread: Spread,
    names: NameHasher,
}

impl Over {
    /// `Ok(None)`: the directory is not spread.
    pub fn new(told: &SpreadOver) -> Result<Option<Over>, Bad> {
        if told.bits == 0 {
            return Ok(None);
        }
        let spread = Spread::new(told.first, told.bits).ok_or(Bad::Range("spread"))?;
        let key: &[u8; 16] = told.key[..].try_into().map_err(|_| Bad::Range("key of names"))?;
        Ok(Some(Over { spread, names: NameHasher::new(key) }))
    }

    pub fn part_of(&self, name: &[u8]) -> Ino {
        self.spread.part_of(&self.names, name)
    }

    pub fn parts(&self) -> impl Iterator<Item = Ino> + use<> {
        self.spread.parts()
    }

    /// Those in which the entries after a cookie are.
    pub fn parts_after(&self, cookie: u64) -> impl Iterator<Item = Ino> + use<> {
        readdir::parts_after(self.spread, cookie)
    }
}
