//! Messages among metadata servers about processes that wait for each other over the locks of several of them. They are of the control lane and need no
//! session.

use prost::Message;

use crate::{Bad, Head, Method, Nothing, Request, SessionId, metadata::inode};

/// Pairs of a request and a process that it waits for, of one server: at 100 bytes each they fit into a body.
pub const PAIRS_MAX: usize = 1 << 15;

/// Which processes wait for which at your locks?
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LockWaits {}

/// They are in the body, as [`Waits`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WaitsTold {
    /// A random number of each start of the server: in another one the numbers of pairs begin anew.
    #[prost(fixed64, tag = "1")]
    pub incarnation: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Waits {
    /// With at most [`PAIRS_MAX`] pairs in all.
    #[prost(message, repeated, tag = "1")]
    pub waits: Vec<LockWait>,
}

/// A process: its lock's owner has the class [`crate::locks::LockClass::Process`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Process {
    #[prost(fixed64, tag = "1")]
    pub session_high: u64,
    #[prost(fixed64, tag = "2")]
    pub session_low: u64,
    /// As the client's kernel names it.
    #[prost(fixed64, tag = "3")]
    pub owner: u64,
}

impl Process {
    pub fn new(session: SessionId, owner: u64) -> Process {
        Process { session_high: (session.0 >> 64) as u64, session_low: session.0 as u64, owner }
    }

    pub fn session(&self) -> SessionId {
        SessionId(u128::from(self.session_high) << 64 | u128::from(self.session_low))
    }
}

/// A request that waits.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LockWait {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(message, optional, tag = "2")]
    pub process: Option<Process>,
    /// Of its operation.
    #[prost(uint64, tag = "3")]
    pub number: u64,
    #[prost(message, repeated, tag = "4")]
    pub behind: Vec<WaitsFor>,
}

/// Whose lock is in its way.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WaitsFor {
    #[prost(message, optional, tag = "1")]
    pub process: Option<Process>,
    /// The pair's number, for as long as it is there without a break.
    #[prost(uint64, tag = "2")]
    pub since: u64,
}

impl Waits {
    /// Out of a body.
    pub fn read(body: &[u8]) -> Result<Waits, Bad> {
        let told = Waits::decode(body).map_err(|_| Bad::Undecodable(Method::LockWaits))?;
        let mut pairs = 0;
        for wait in &told.waits {
            inode(wait.ino)?;
            pairs += wait.behind.len();
        }
        if pairs > PAIRS_MAX {
            return Err(Bad::TooLong { what: "pairs", len: pairs, max: PAIRS_MAX });
        }
        Ok(told)
    }
}

/// The request with that number was in a circle while it waited: its program is told `EDEADLK`, if it still waits.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RefuseLock {
    #[prost(fixed64, tag = "1")]
    pub session_high: u64,
    #[prost(fixed64, tag = "2")]
    pub session_low: u64,
    #[prost(uint64, tag = "3")]
    pub number: u64,
    /// Of the life of the server in which it waits.
    #[prost(fixed64, tag = "4")]
    pub incarnation: u64,
}

impl RefuseLock {
    pub fn session(&self) -> SessionId {
        Process { session_high: self.session_high, session_low: self.session_low, owner: 0 }.session()
    }
}

impl Request for LockWaits {
    const METHOD: Method = Method::LockWaits;
    type Answer = WaitsTold;

    fn head(&self) -> Option<&Head> {
        None
    }

    fn check(&self) -> Result<(), Bad> {
        Ok(())
    }
}

impl Request for RefuseLock {
    const METHOD: Method = Method::RefuseLock;
    type Answer = Nothing;

    fn head(&self) -> Option<&Head> {
        None
    }

    fn check(&self) -> Result<(), Bad> {
        if self.number == 0 { Err(Bad::Missing("operation's number")) } else { Ok(()) }
    }
}
