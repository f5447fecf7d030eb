//! Messages about what clients keep: looks whose answers may be kept, and how they are asked back and given back.
//!
//! A look that may be kept is answered from then on by the client, until it is recalled ([`crate::locks::Told`]) or the client has heard nothing
//! of the server for [`Looked::term_ms`] since it asked. What comes back after a recall counts for the number of that recall.

use std::collections::BTreeSet;

use prost::Message;
use types::{NAME_MAX, SLOTS, Slot};

use crate::{
    Bad, Head, Method, Nothing, Request,
    attr::Attr,
    metadata::{inode, known},
};

/// Leases in one message: with the longest names they fit into one, beside as many outcomes of locks as there may be.
pub const LEASES_MAX: usize = 64;

const SLOT_BYTES: usize = SLOTS as usize / 8;

/// What of an answer may be kept: the bits of [`Looked::keeps`] and of an entry of a listing.
pub mod keeps {
    /// What the name names, or that it is not there.
    pub const NAME: u32 = 1;
    pub const ATTRIBUTES: u32 = 2;
    /// What is read of a file from now on: nobody else writes it.
    pub const BYTES: u32 = 4;
}

/// Looks a name up as [`crate::metadata::Lookup`] does, with a reference, or without a name at an inode, without one; the answer may be kept.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Look {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    /// The directory, or the inode.
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub name: Vec<u8>,
    /// With a reference without a name, too: the name was another server's ([`Looked::ino`]).
    #[prost(bool, tag = "4")]
    pub referring: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Looked {
    /// Missing: there is no such name.
    #[prost(message, optional, tag = "1")]
    pub attr: Option<Attr>,
    /// See [`keeps`].
    #[prost(uint32, tag = "2")]
    pub keeps: u32,
    /// What is kept ends so long after the client asked what was answered last.
    #[prost(uint32, tag = "3")]
    pub term_ms: u32,
    /// Not 0: the name names this inode, which is another metadata server's, who has the attributes and knows of no reference yet.
    #[prost(uint64, tag = "4")]
    pub ino: u64,
}

/// Asks whether bytes of a file may be kept that were not, or are no more.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Keep {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Kept {
    /// See [`keeps`].
    #[prost(uint32, tag = "1")]
    pub keeps: u32,
    /// As of [`Looked`].
    #[prost(uint32, tag = "2")]
    pub term_ms: u32,
}

/// Of all that was granted up to `grant` on the inode, or on the name in it, no more than `keeps` may be kept.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Recalled {
    /// As of [`crate::locks::Telling`], with which it is counted.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub name: Vec<u8>,
    /// Rights as of a lease: 1 what was told, 2 what was read.
    #[prost(uint32, tag = "4")]
    pub keeps: u32,
    #[prost(uint64, tag = "5")]
    pub grant: u64,
}

/// Of all names and attributes in these slots that were granted up to `grant` none may be kept. Bytes are asked back by themselves.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RecalledSlots {
    /// As of [`Recalled`].
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// See [`slot_bits`].
    #[prost(bytes = "vec", tag = "2")]
    pub slots: Vec<u8>,
    #[prost(uint64, tag = "3")]
    pub grant: u64,
}

/// A bit for each slot, the lowest first, up to the last that is there: short, whichever they are.
pub fn slot_bits(slots: &BTreeSet<Slot>) -> Vec<u8> {
    let bytes = slots.last().map_or(0, |last| usize::from(last.get()) / 8 + 1);
    let mut bits = vec![0; bytes];
    for slot in slots.iter().map(|slot| usize::from(slot.get())) {
        bits[slot / 8] |= 1 << (slot % 8);
    }
    bits
}

/// Those that there are.
pub fn slots_of(bits: &[u8]) -> BTreeSet<Slot> {
    let has = |slot: &Slot| {
        let at = usize::from(slot.get());
        bits.get(at / 8).is_some_and(|byte| byte & (1 << (at % 8)) != 0)
    };
    Slot::all().filter(has).collect()
}

/// No more than `keeps` is kept of all that was granted up to `number`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Returned {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub name: Vec<u8>,
    #[prost(uint32, tag = "3")]
    pub keeps: u32,
    #[prost(uint64, tag = "4")]
    pub number: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Return {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    /// At most [`LEASES_MAX`].
    #[prost(message, repeated, tag = "2")]
    pub returned: Vec<Returned>,
    /// What [`RecalledSlots`] asked for.
    #[prost(bytes = "vec", tag = "3")]
    pub slots: Vec<u8>,
    #[prost(uint64, tag = "4")]
    pub grant: u64,
}

fn key(ino: u64, name: &[u8]) -> Result<(), Bad> {
    inode(ino)?;
    let len = name.len();
    if len > NAME_MAX { Err(Bad::TooLong { what: "name", len, max: NAME_MAX }) } else { Ok(()) }
}

impl Request for Look {
    const METHOD: Method = Method::Look;
    type Answer = Looked;

    fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    fn check(&self) -> Result<(), Bad> {
        known(self.head())?;
        key(self.ino, &self.name)
    }

    fn homes(&self, visit: &mut dyn FnMut(u64)) {
        visit(self.ino);
    }

    fn directories(&mut self, visit: &mut dyn FnMut(&mut u64, Option<&[u8]>)) {
        let name = (!self.name.is_empty()).then_some(&self.name[..]);
        visit(&mut self.ino, name);
    }
}

requests_of_an_inode! {
    Keep -> Kept, ino;
}

impl Request for Return {
    const METHOD: Method = Method::Return;
    type Answer = Nothing;

    fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    fn check(&self) -> Result<(), Bad> {
        known(self.head())?;
        let len = self.returned.len();
        if len > LEASES_MAX {
            return Err(Bad::TooLong { what: "leases", len, max: LEASES_MAX });
        }
        if self.slots.len() > SLOT_BYTES {
            return Err(Bad::Range("slots"));
        }
        self.returned.iter().try_for_each(|one| key(one.ino, &one.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_go_as_bits() {
        for list in [vec![], vec![0], vec![7, 8], vec![0, 1, 4095]] {
            let slots: BTreeSet<Slot> = list.into_iter().filter_map(Slot::new).collect();
            assert_eq!(slots_of(&slot_bits(&slots)), slots);
        }
        assert_eq!(slots_of(&[0xff; 1000]).len(), SLOTS as usize, "what is beyond them is none");
    }
}
