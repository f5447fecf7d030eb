//! Messages among metadata servers: who comes, and slots that go from one to another with what sessions have in them.
//!
//! One of them, who has the root's slot, makes the map and orders every hand-over: [`LetGo`] to the giver, [`StatePart`] and [`PutState`] for what
//! sessions have, [`TakeOn`] to the taker. They are of the control lane and need no session.

use prost::Message;

pub use crate::slots::{Run, runs, slots};
use crate::{
    Bad, Head, Method, Nothing, Request, SessionId,
    control::{ADDRESS_MAX, ADDRESSES_MAX, NAME_MAX, RACK_MAX},
    locks::HeldLock,
    metadata::{Reference, text},
    slots::in_order,
    taking_out::KnowStandings,
};

/// Bytes of one part of a state.
pub const PART_BYTES: u32 = 2 << 20;
/// Bytes of a state: references and openings of all sessions in the slots that go.
pub const STATE_BYTES_MAX: u64 = 1 << 30;

/// A metadata server comes, or is still there, with the slots that are its own.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct JoinMetadata {
    #[prost(uint64, tag = "1")]
    pub node: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub rack: String,
    #[prost(string, repeated, tag = "4")]
    pub addresses: Vec<String>,
    /// A random number of each start.
    #[prost(uint64, tag = "5")]
    pub incarnation: u64,
    #[prost(message, repeated, tag = "6")]
    pub slots: Vec<Run>,
    /// Their epochs, in the same order.
    #[prost(uint64, repeated, tag = "7")]
    pub epochs: Vec<u64>,
    /// It needs a [`JoinedMetadata::superblock`] with an epoch of its own.
    #[prost(bool, tag = "8")]
    pub fresh: bool,
    /// Of the map that it has.
    #[prost(uint64, tag = "9")]
    pub epoch: u64,
    /// It keeps copies, and is to be given no slots.
    #[prost(bool, tag = "10")]
    pub standby_only: bool,
}

/// The map is in the body, if it is another one than the asker's.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct JoinedMetadata {
    /// As it is stored.
    #[prost(bytes = "vec", tag = "1")]
    pub superblock: Vec<u8>,
    /// Of the one that makes the map: another number says that one has to join again.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// Data servers that are taken out.
    #[prost(message, optional, tag = "25")]
    pub standings: Option<KnowStandings>,
}

/// To be let go: nothing more is answered in them, and all that was is in the engine, which has no owner for them then.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LetGo {
    #[prost(message, repeated, tag = "1")]
    pub slots: Vec<Run>,
}

/// What sessions have in the slots waits to be fetched.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Gone {
    #[prost(uint64, tag = "1")]
    pub ticket: u64,
    /// Bytes.
    #[prost(uint64, tag = "2")]
    pub length: u64,
}

/// A part of it, in the answer's body.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct StatePart {
    #[prost(uint64, tag = "1")]
    pub ticket: u64,
    #[prost(uint64, tag = "2")]
    pub offset: u64,
}

/// A part of it, in the body, before [`TakeOn`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct PutState {
    #[prost(uint64, tag = "1")]
    pub ticket: u64,
    /// 0: from the beginning.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
}

/// To be taken, with the state that was put under this ticket (0: none), and served from now on.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TakeOn {
    #[prost(message, repeated, tag = "1")]
    pub slots: Vec<Run>,
    #[prost(uint64, tag = "2")]
    pub ticket: u64,
    #[prost(uint64, tag = "3")]
    pub length: u64,
    /// Numbers of UGSDs are below it.
    #[prost(uint32, tag = "4")]
    pub next_ugsd: u32,
    /// Data servers that are taken out.
    #[prost(message, optional, tag = "25")]
    pub standings: Option<KnowStandings>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TakenOn {
    /// Of the slots, in their order.
    #[prost(uint64, repeated, tag = "1")]
    pub epochs: Vec<u64>,
}

/// All of these are to be the node's: for an operation of which it serves the home, or by an operator's word.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Bring {
    #[prost(uint64, tag = "1")]
    pub node: u64,
    #[prost(message, repeated, tag = "2")]
    pub slots: Vec<Run>,
    /// They stay there. Otherwise they go back after a while.
    #[prost(bool, tag = "3")]
    pub stay: bool,
}

/// How many requests came for each slot since the last time.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SlotLoads {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Loads {
    #[prost(uint32, repeated, tag = "1")]
    pub slots: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub requests: Vec<u32>,
}

/// A metadata server is about to end in order: the one on duty has its slots brought to others, with what sessions have in them.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Leaving {
    #[prost(uint64, tag = "1")]
    pub node: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Left {
    /// Slots that it has still.
    #[prost(uint32, tag = "1")]
    pub slots: u32,
}

/// The root's slot, to be taken as with [`TakeOn`], and with it the duty: who takes it makes the map, which goes on from the one in the body.
/// Its own is in the answer's body.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct TakeDuty {
    #[prost(uint64, tag = "1")]
    pub ticket: u64,
    #[prost(uint64, tag = "2")]
    pub length: u64,
    #[prost(uint32, tag = "3")]
    pub next_ugsd: u32,
}

/// Which slots did the server take without what sessions had in them?
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Bare {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    /// In those up to this number the session has said what it has; its locks in the last of them are in the body. 0: in none.
    #[prost(uint64, tag = "2")]
    pub brought: u64,
    /// The highest of a lock that it has heard of.
    #[prost(uint64, tag = "3")]
    pub stamp: u64,
}

/// Those in which the session has not.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BareSlots {
    /// Of the last of them.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(message, repeated, tag = "2")]
    pub slots: Vec<Run>,
}

/// What sessions have in some slots.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SlotState {
    #[prost(message, repeated, tag = "1")]
    pub sessions: Vec<SessionState>,
    #[prost(message, repeated, tag = "2")]
    pub files: Vec<FileState>,
    /// Sessions that the giver gave up: what they had there is free, so nobody may believe that they are whole.
    #[prost(message, repeated, tag = "3")]
    pub given_up: Vec<Head>,
    /// Of the last change of a lock.
    #[prost(uint64, tag = "4")]
    pub stamp: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct SessionState {
    /// As in a mount.
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(string, tag = "2")]
    pub host: String,
    #[prost(uint64, tag = "3")]
    pub node: u64,
    #[prost(message, repeated, tag = "4")]
    pub references: Vec<Reference>,
    #[prost(message, repeated, tag = "5")]
    pub openings: Vec<OpeningState>,
    /// Of operations that are not acknowledged.
    #[prost(message, repeated, tag = "6")]
    pub answers: Vec<AnswerState>,
    /// What the client calls itself on its connections.
    #[prost(uint64, tag = "7")]
    pub client: u64,
    #[prost(message, repeated, tag = "8")]
    pub locks: Vec<HeldLock>,
    /// For how long the giver heard nothing of it.
    #[prost(uint32, tag = "9")]
    pub silent_ms: u32,
}

impl SessionState {
    pub fn id(&self) -> SessionId {
        self.head.as_ref().map_or(SessionId(0), Head::session)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct OpeningState {
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(bool, tag = "3")]
    pub write: bool,
}

/// What an operation was answered.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AnswerState {
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// The answer, or the fault.
    #[prost(bytes = "vec", tag = "2")]
    pub meta: Vec<u8>,
    #[prost(bool, tag = "3")]
    pub refused: bool,
}

/// A file that is being written.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct FileState {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// Up to here appends have been given ranges.
    #[prost(uint64, tag = "2")]
    pub append_end: u64,
}

requests_of_anybody! {
    JoinMetadata -> JoinedMetadata, |it| joining(it);
    LetGo -> Gone, |it| in_order(&it.slots);
    StatePart -> Nothing, |_it| Ok(());
    PutState -> Nothing, |it| length(it.offset);
    TakeOn -> TakenOn, |it| in_order(&it.slots).and_then(|()| length(it.length));
    Bring -> Nothing, |it| in_order(&it.slots).and_then(|()| node(it.node));
    SlotLoads -> Loads, |_it| Ok(());
    Leaving -> Left, |it| node(it.node);
    TakeDuty -> Nothing, |it| length(it.length);
}

impl Request for Bare {
    const METHOD: Method = Method::Bare;
    type Answer = BareSlots;

    fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    fn check(&self) -> Result<(), Bad> {
        Ok(())
    }
}

fn length(length: u64) -> Result<(), Bad> {
    if length > STATE_BYTES_MAX { Err(Bad::Range("length of a state")) } else { Ok(()) }
}

fn node(node: u64) -> Result<(), Bad> {
    if node == 0 { Err(Bad::Missing("node")) } else { Ok(()) }
}

fn joining(it: &JoinMetadata) -> Result<(), Bad> {
    node(it.node)?;
    text("node's name", &it.name, NAME_MAX)?;
    text("rack", &it.rack, RACK_MAX)?;
    if it.addresses.len() > ADDRESSES_MAX {
        return Err(Bad::TooLong { what: "addresses", len: it.addresses.len(), max: ADDRESSES_MAX });
    }
    it.addresses.iter().try_for_each(|address| text("address", address, ADDRESS_MAX))?;
    in_order(&it.slots)?;
    if it.epochs.len() == slots(&it.slots).len() { Ok(()) } else { Err(Bad::Range("epochs of slots")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_go_as_runs() {
        for list in [vec![], vec![0], vec![0, 1, 2, 4095], vec![7, 9, 10]] {
            let runs = runs(list.iter().copied());
            assert_eq!(in_order(&runs), Ok(()));
            assert_eq!(slots(&runs), list);
        }
        for bad in [(0, 0), (4095, 2), (4096, 1), (u32::MAX, 2)] {
            assert!(in_order(&[Run { first: bad.0, count: bad.1 }]).is_err(), "{bad:?}");
        }
        let twice = [Run { first: 3, count: 2 }, Run { first: 4, count: 1 }];
        assert!(in_order(&twice).is_err());
    }
}
