//! Messages about data servers that are taken out, and about stripes that move from one to another: who decides what, `cluster::moving` says.
//!
//! None of them needs a session; those of the data lane go between servers alone. An attempt has a number that is higher than those of all
//! earlier attempts at its file, by whichever metadata server: what comes late of an earlier one is not carried out.

use prost::{Enumeration, Message};

use crate::{
    BATCH_MAX, Bad, Nothing,
    attr::Time,
    control::{ADDRESS_MAX, ADDRESSES_MAX, Pressure},
    data::Object,
    metadata::text,
    slots::{Run, in_order},
};

/// Ranges in one message.
pub const RANGES_MAX: usize = 512;
/// Bytes of a reason for people.
pub const WHY_MAX: usize = 256;
/// The longest freeze that a source agrees to.
pub const FREEZE_MS_MAX: u32 = 10_000;

fn object(of: Option<&Object>) -> Result<(), Bad> {
    crate::attr::ino(of.ok_or(Bad::Missing("object"))?.ino).map(|_| ())
}

fn attempt(number: u64) -> Result<(), Bad> {
    if number == 0 { Err(Bad::Missing("attempt")) } else { Ok(()) }
}

fn node(number: u64) -> Result<(), Bad> {
    if number == 0 { Err(Bad::Missing("node")) } else { Ok(()) }
}

fn freeze(ms: u32) -> Result<(), Bad> {
    if ms > FREEZE_MS_MAX { Err(Bad::Range("freeze")) } else { Ok(()) }
}

impl Pull {
    fn within(&self) -> Result<(), Bad> {
        object(self.from.as_ref())?;
        object(self.to.as_ref())?;
        attempt(self.attempt)?;
        node(self.source)?;
        freeze(self.freeze_ms)?;
        let len = self.addresses.len();
        if len > ADDRESSES_MAX {
            return Err(Bad::TooLong { what: "addresses", len, max: ADDRESSES_MAX });
        }
        self.addresses.iter().try_for_each(|address| text("address", address, ADDRESS_MAX))
    }
}

fn judged(list: &[Judged]) -> Result<(), Bad> {
    let (len, max) = (list.len(), BATCH_MAX / 2);
    if len > max {
        return Err(Bad::TooLong { what: "copies", len, max });
    }
    list.iter().try_for_each(|one| object(one.object.as_ref()).and(attempt(one.attempt)))
}

requests_of_anybody! {
    DrainNode -> Standing, |it| node(it.node);
    RemoveNode -> Nothing, |it| node(it.node);
    Standings -> Nothing, |_it| Ok(());
    Pull -> Pulled, |it| it.within();
    Follow -> Followed, |it| object(it.object.as_ref()).and(attempt(it.attempt));
    Changed -> ChangedRanges, |it| object(it.object.as_ref()).and(attempt(it.attempt)).and(freeze(it.freeze_ms));
    HandOver -> HandedOver, |it| object(it.object.as_ref()).and(attempt(it.attempt));
    Copies -> CopyList, |_it| Ok(());
    Judge -> Nothing, |it| judged(&it.copies);
    Coolest -> CoolList, |it| in_order(&it.slots);
}

/// Move everything off a data server; it gets nothing new from now on. Of a server's operator.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct DrainNode {
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// Take it back instead, also one that was removed.
    #[prost(bool, tag = "2")]
    pub undo: bool,
}

/// It is not in the cluster any more. Only of one that is drained, and holds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RemoveNode {
    #[prost(uint64, tag = "1")]
    pub node: u64,
}

/// Which data servers are taken out? The body is a [`StandingList`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Standings {}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum StandingKind {
    /// As all others.
    In = 0,
    Draining = 1,
    Removed = 2,
}

/// How far a data server is taken out.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Standing {
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// Empty: it was not heard of.
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(enumeration = "StandingKind", tag = "3")]
    pub kind: i32,
    /// It was looked at since it is being drained: the numbers below are known.
    #[prost(bool, tag = "4")]
    pub known: bool,
    /// Files with a stripe there.
    #[prost(uint64, tag = "5")]
    pub files_left: u64,
    /// Of them, about.
    #[prost(uint64, tag = "6")]
    pub bytes_left: u64,
    #[prost(uint64, tag = "7")]
    pub files_moved: u64,
    #[prost(uint64, tag = "8")]
    pub bytes_moved: u64,
    /// Of those left: they were tried, and could not be moved yet.
    #[prost(uint64, tag = "9")]
    pub files_failed: u64,
    /// Why the last of them could not.
    #[prost(string, tag = "10")]
    pub why: String,
    /// It is full, and sends what is coolest to others.
    #[prost(bool, tag = "220")]
    pub full: bool,
    /// Sent away for want of room, or of safety, since the metadata server was started; and not yet, and why not.
    #[prost(uint64, tag = "221")]
    pub files_sent: u64,
    #[prost(uint64, tag = "222")]
    pub bytes_sent: u64,
    #[prost(string, tag = "223")]
    pub stuck: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct StandingList {
    #[prost(message, repeated, tag = "1")]
    pub standings: Vec<Standing>,
}

/// To the destination: begin to copy an object, or how far is it? To be asked again and again; who is not asked for long gives up.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Pull {
    #[prost(uint64, tag = "1")]
    pub attempt: u64,
    #[prost(message, optional, tag = "2")]
    pub from: Option<Object>,
    #[prost(message, optional, tag = "3")]
    pub to: Option<Object>,
    /// The node that has it, and where that is.
    #[prost(uint64, tag = "4")]
    pub source: u64,
    #[prost(string, repeated, tag = "5")]
    pub addresses: Vec<String>,
    /// Not 0: have the source frozen for so long, and complete the copy.
    #[prost(uint32, tag = "6")]
    pub freeze_ms: u32,
    /// Not 0: only if so many bytes are welcome now. The destination knows best.
    #[prost(uint64, tag = "220")]
    pub room: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum PullState {
    Copying = 0,
    /// Little is left, and what was copied is durable: it can be completed.
    Level = 1,
    /// It is complete and durable.
    Ready = 2,
    Failed = 3,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Pulled {
    #[prost(enumeration = "PullState", tag = "1")]
    pub state: i32,
    /// Bytes so far.
    #[prost(uint64, tag = "2")]
    pub copied: u64,
    /// Why it failed.
    #[prost(int32, tag = "3")]
    pub errno: i32,
    #[prost(string, tag = "4")]
    pub why: String,
}

/// To the source: note what is changed from now on. An attempt that was followed before is over.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Follow {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    #[prost(uint64, tag = "2")]
    pub attempt: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Followed {
    #[prost(uint64, tag = "1")]
    pub size: u64,
}

/// To the source: what was changed since this was asked last?
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Changed {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    #[prost(uint64, tag = "2")]
    pub attempt: u64,
    /// Not 0: nothing is to change for so long.
    #[prost(uint32, tag = "3")]
    pub freeze_ms: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Range {
    #[prost(uint64, tag = "1")]
    pub from: u64,
    /// Behind its last byte.
    #[prost(uint64, tag = "2")]
    pub to: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ChangedRanges {
    /// In order.
    #[prost(message, repeated, tag = "1")]
    pub ranges: Vec<Range>,
    #[prost(uint64, tag = "2")]
    pub size: u64,
    /// As in [`crate::data::ObjectAttr`].
    #[prost(message, optional, tag = "3")]
    pub mtime: Option<Time>,
}

/// To the source, from the metadata service: the copy is complete. The answer decides, and is durable if it says yes.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct HandOver {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    #[prost(uint64, tag = "2")]
    pub attempt: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct HandedOver {
    /// The object is the destination's. Otherwise it stays, whatever comes later of this attempt.
    #[prost(bool, tag = "1")]
    pub done: bool,
}

/// Which copies are there of which it is not known whether they count?
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Copies {
    /// Those with higher numbers: there may be more than one list takes.
    #[prost(uint64, tag = "25")]
    pub after: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CopyList {
    /// At most half of [`BATCH_MAX`].
    #[prost(message, repeated, tag = "1")]
    pub copies: Vec<Judged>,
}

/// A copy, and whether it counts.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Judged {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    #[prost(uint64, tag = "2")]
    pub attempt: u64,
    #[prost(bool, tag = "3")]
    pub counts: bool,
}

/// To the destination, from the metadata service: those that count are as any other object, the others go.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Judge {
    /// At most half of [`BATCH_MAX`].
    #[prost(message, repeated, tag = "1")]
    pub copies: Vec<Judged>,
}

/// To a data server, from the metadata service: what would you be rid of?
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Coolest {
    /// Of files in these; none: in all.
    #[prost(message, repeated, tag = "25")]
    pub slots: Vec<Run>,
}

/// Why an object is to leave.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum CoolWhy {
    /// The room is wanted.
    Room = 0,
    /// Somebody waits for it to be in a tier that outlives the machine.
    Safe = 1,
    /// It has been in memory alone for as long as it may.
    Aged = 2,
}

/// An object, as `cluster::pressure::Held`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Cool {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub object: u64,
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    #[prost(bool, tag = "3")]
    pub open: bool,
    #[prost(uint64, tag = "4")]
    pub cool: u64,
    #[prost(enumeration = "CoolWhy", tag = "5")]
    pub why: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CoolList {
    /// As it stands now.
    #[prost(message, optional, tag = "1")]
    pub pressure: Option<Pressure>,
    /// At most half of [`BATCH_MAX`].
    #[prost(message, repeated, tag = "2")]
    pub objects: Vec<Cool>,
}
