//! What a client and the server of leases say to each other. Any of it may be lost, late, repeated or in another order.

use proto::SessionId;

use super::{
    locks::HadLock,
    rights::{Claim, Key, Rights},
};

/// A session since it came to a server. A server that begins anew gives other numbers, and so does one that a session comes to for
/// the second time; what is said under another number is about somebody else. 0: it never came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Joined(pub u64);

/// Lives of one server, counted in a durable place, from 1. All its numbers begin with it, so they rise for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Life(pub u32);

impl Life {
    /// A million million numbers for each of 16 million lives.
    const BITS: u32 = 40;

    /// All numbers of this life are above it.
    pub const fn first_number(self) -> u64 {
        (self.0 as u64) << Life::BITS
    }

    /// Whose number it is.
    pub const fn of(number: u64) -> Life {
        Life((number >> Life::BITS) as u32)
    }
}

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Party {
    pub session: SessionId,
    pub joined: Joined,
}

impl Party {
    /// The server itself, for what concerns all sessions alike. It is no session's number.
    pub const SERVER: Party = Party { session: SessionId(0), joined: Joined(0) };
}

/// What a session has when its server begins anew.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Had {
    pub leases: Vec<(Key, Rights)>,
    /// By the number of the operation or opening.
    pub claims: Vec<(u64, Vec<(Key, Claim)>)>,
    pub locks: Vec<HadLock>,
}

impl Had {
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.claims.is_empty() && self.locks.is_empty()
    }
}

/// What a client says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Saying {
    /// It comes to this life of the server, for the first time or with what it had from the one before.
    Join { number: u64, life: Life, had: Had },
    /// It is there, and wants to go on.
    Renew { number: u64 },
    /// It would like to have these.
    Want { request: u64, key: Key, rights: Rights },
    /// Of all that was granted up to `number` it has at most `keeps`; what goes beyond is written back and forgotten.
    Returned { key: Key, number: u64, keeps: Rights },
}

/// What it is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Telling {
    /// It is in: counted from when it sent the joining with that number. What it has of leases, by the numbers of this life.
    Joined { before: Joined, joined: Joined, number: u64, leases: Vec<(Key, Rights, u64)> },
    /// It may go on, counted from when it sent that number.
    Renewed { joined: Joined, number: u64 },
    /// The server is another one: it must join that life.
    Rejoin { joined: Joined, life: Life },
    /// It was given up: nothing of what it had is its own.
    Gone { joined: Joined },
    /// It has these rights since `number`, whether it got what it wanted or not.
    Granted { joined: Joined, request: u64, key: Key, rights: Rights, number: u64 },
    /// Of all that was granted up to `number` it may keep no more than `keeps`.
    Recall { joined: Joined, key: Key, keeps: Rights, number: u64 },
}
