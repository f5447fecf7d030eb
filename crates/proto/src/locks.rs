//! Messages about the locks of programs, and what a server tells a session by itself.
//!
//! A lock that has to wait is answered at once with [`LockOutcome::Waits`]; what comes of it is told to who listens, under the
//! number of its request. So nobody's thread and no connection waits with it.

use prost::{Enumeration, Message};

use crate::{
    Bad, Head, Method, Nothing, Request,
    leases::{Recalled, RecalledSlots},
    metadata::{inode, known},
};

/// Locks that a session may have, and so in the body of one [`crate::control::Mount`].
pub const LOCKS_MAX: usize = 1 << 15;

/// Who a lock belongs to, and by whose rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum LockClass {
    /// `F_SETLK`: a process.
    Process = 0,
    /// `F_OFD_SETLK`: an open file description.
    Description = 1,
    /// flock(2): an open file description, all of the file.
    Flock = 2,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum LockKind {
    Read = 0,
    Write = 1,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum LockOutcome {
    /// It is there, or gone as was asked.
    Granted = 0,
    /// `EAGAIN`: somebody has it.
    Conflict = 1,
    /// `EDEADLK`.
    Deadlock = 2,
    /// `EINTR`: it was cancelled.
    Interrupted = 3,
    /// `ENOLCK`.
    TooMany = 4,
    /// The outcome is told later.
    Waits = 5,
    /// The slot went to another metadata server, and nobody waits for this any more: it is to be asked again there.
    Moved = 6,
}

/// A lock that is there, or wished.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct HeldLock {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(enumeration = "LockClass", tag = "2")]
    pub class: i32,
    /// As the client's kernel names it.
    #[prost(fixed64, tag = "3")]
    pub owner: u64,
    /// Bytes, both ends included; the last of all is `i64::MAX`.
    #[prost(uint64, tag = "4")]
    pub start: u64,
    #[prost(uint64, tag = "5")]
    pub end: u64,
    #[prost(enumeration = "LockKind", tag = "6")]
    pub kind: i32,
    /// On the client's node.
    #[prost(uint32, tag = "7")]
    pub pid: u32,
}

impl HeldLock {
    pub fn check(&self) -> Result<(), Bad> {
        inode(self.ino)?;
        if self.start > self.end || self.end > i64::MAX as u64 {
            return Err(Bad::Range("lock's range"));
        }
        LockClass::try_from(self.class).map_err(|_| Bad::Range("lock's class"))?;
        LockKind::try_from(self.kind).map_err(|_| Bad::Range("lock's kind"))?;
        Ok(())
    }
}

/// What a session had of an earlier life of the server: the body of its [`crate::control::Mount`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HadLocks {
    /// At most [`LOCKS_MAX`].
    #[prost(message, repeated, tag = "1")]
    pub locks: Vec<HeldLock>,
}

impl HadLocks {
    /// Out of a body.
    pub fn read(body: &[u8]) -> Result<HadLocks, Bad> {
        let had = HadLocks::decode(body).map_err(|_| Bad::Undecodable(Method::Mount))?;
        let len = had.locks.len();
        if len > LOCKS_MAX {
            return Err(Bad::TooLong { what: "locks", len, max: LOCKS_MAX });
        }
        had.locks.iter().try_for_each(HeldLock::check)?;
        Ok(had)
    }
}

/// Takes a lock; an operation with a number, by which it can be cancelled and its outcome is told.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Lock {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(message, optional, tag = "2")]
    pub lock: Option<HeldLock>,
    /// Until it is free.
    #[prost(bool, tag = "3")]
    pub wait: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Locked {
    #[prost(enumeration = "LockOutcome", tag = "1")]
    pub outcome: i32,
    /// Changes of locks in the order in which the servers made them, whatever order they are heard of in. Of a file it rises for ever, also when its slot
    /// goes to another server.
    #[prost(uint64, tag = "2")]
    pub stamp: u64,
}

/// Gives up what its owner has in the range; of the lock kind and process mean nothing. An operation with a number.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Unlock {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(message, optional, tag = "2")]
    pub lock: Option<HeldLock>,
}

/// Who is in the way of such a lock? (`F_GETLK`)
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct FindLock {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(message, optional, tag = "2")]
    pub lock: Option<HeldLock>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct FoundLock {
    /// Missing: nobody.
    #[prost(message, optional, tag = "1")]
    pub lock: Option<HeldLock>,
    /// It is of the session that asks, so its process is of this node.
    #[prost(bool, tag = "2")]
    pub own: bool,
}

/// The program wants to wait no longer. Its outcome is told in any case, be it that it was there first.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CancelLock {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    /// Of the operation that waits.
    #[prost(uint64, tag = "2")]
    pub number: u64,
}

/// What is there to be told? Answered when there is something, or after a while with nothing. One listens for a session: who asks
/// later takes the place of who asked before.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Listen {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    /// All up to this number was heard, and need not be told again.
    #[prost(uint64, tag = "2")]
    pub heard: u64,
}

/// In the order of their numbers.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Told {
    /// At most [`crate::BATCH_MAX`]; the rest is told at the next listening.
    #[prost(message, repeated, tag = "1")]
    pub tellings: Vec<Telling>,
    /// At most [`crate::leases::LEASES_MAX`]. Their numbers are among those of the tellings.
    #[prost(message, repeated, tag = "10")]
    pub recalls: Vec<Recalled>,
    /// The same for all in some slots.
    #[prost(message, optional, tag = "11")]
    pub slots: Option<RecalledSlots>,
}

/// What became of a lock that waited.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Telling {
    /// One more for each of a session.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// The number of the operation.
    #[prost(uint64, tag = "2")]
    pub operation: u64,
    #[prost(message, optional, tag = "3")]
    pub locked: Option<Locked>,
}

fn wished(lock: Option<&HeldLock>) -> Result<(), Bad> {
    lock.ok_or(Bad::Missing("lock"))?.check()
}

fn numbered(head: Option<&Head>) -> Result<(), Bad> {
    if head.is_some_and(|head| head.number == 0) { Err(Bad::Missing("operation's number")) } else { Ok(()) }
}

macro_rules! requests {
    ($($request:ident -> $answer:ty, |$it:ident| $home:expr, $check:expr;)*) => {
        $(impl Request for $request {
            const METHOD: Method = Method::$request;
            type Answer = $answer;

            fn head(&self) -> Option<&Head> {
                self.head.as_ref()
            }

            fn check(&self) -> Result<(), Bad> {
                known(self.head())?;
                let $it = self;
                $check
            }

            fn homes(&self, visit: &mut dyn FnMut(u64)) {
                let $it = self;
                $home.map(|lock| lock.ino).into_iter().for_each(visit);
            }
        })*
    };
}

requests! {
    Lock -> Locked, |it| it.lock, numbered(it.head()).and_then(|()| wished(it.lock.as_ref()));
    Unlock -> Locked, |it| it.lock, numbered(it.head()).and_then(|()| wished(it.lock.as_ref()));
    FindLock -> FoundLock, |it| it.lock, wished(it.lock.as_ref());
    CancelLock -> Nothing, |_it| None::<HeldLock>, Ok(());
    Listen -> Told, |_it| None::<HeldLock>, Ok(());
}
