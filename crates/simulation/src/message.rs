//! What processes ask each other and answer. A frame carries the number of a message in the run's list of them; the forms of the
//! product's messages have their own tests (`proto`).

use std::collections::BTreeMap;

use cluster::{
    ClusterMap, Difference, Epoch, NodeId, SlotEpoch,
    membership::{Answer, Saying},
    tenure::Time,
};
use lease::coherence::{
    locks::{HadLock, LockRequest, Outcome, Owner},
    message::{self, Life, Party, Telling},
    ranges::Range,
    rights::Claim,
    server::Past,
};
use namespace::RenameMode;
use proto::SessionId;
use types::{Errno, Ino, Slot};

use crate::{
    records::{Changes, Records},
    tail::{Ask, RowSeen, Said, Told as WriterTold, Writer},
};

/// One life of a process.
pub type Process = (usize, u64);

/// A call of a program, counted over the whole run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId(pub u64);

/// What a program asks of the namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameOp {
    Lookup { dir: Ino, name: &'static str },
    GetAttr { ino: Ino },
    List { dir: Ino },
    Create { dir: Ino, name: &'static str, mode: u32 },
    Unlink { dir: Ino, name: &'static str },
    Rename { dir: Ino, from: &'static str, to: &'static str, mode: RenameMode },
    Link { ino: Ino, dir: Ino, name: &'static str },
    Chmod { ino: Ino, mode: u32 },
}

impl NameOp {
    pub fn changes(&self) -> bool {
        match self {
            NameOp::Lookup { .. } | NameOp::GetAttr { .. } | NameOp::List { .. } => false,
            NameOp::Create { .. }
            | NameOp::Unlink { .. }
            | NameOp::Rename { .. }
            | NameOp::Link { .. }
            | NameOp::Chmod { .. } => true,
        }
    }
}

/// What is told of an inode: the mode says who changed it last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    pub mode: u32,
    pub links: u32,
}

pub type Listing = BTreeMap<Vec<u8>, Ino>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameAnswer {
    Done,
    Found(Option<Ino>),
    Attributes(Option<Told>),
    Names(Listing),
    Refused(Errno),
}

/// What a client's shell asks of a slot's owner, under a number of its session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// `holds`: its claims stay until [`Op::End`].
    Names {
        op: NameOp,
        holds: bool,
    },
    /// An opening, which is a claim that lasts.
    Open {
        ino: Ino,
        claim: Claim,
    },
    End {
        number: u64,
    },
    Lock(LockRequest),
    Unlock {
        owner: Owner,
        ino: Ino,
        range: Range,
    },
    Cancel {
        number: u64,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpAnswer {
    Done,
    Names(NameAnswer),
    Lock(Outcome),
}

/// What a key is worth to a cache, read after the grant was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    Entry(Option<Ino>),
    Attributes { told: Option<Told>, listing: Option<Listing> },
}

/// What a commit is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    pub call: CallId,
    pub by: Number,
    pub life: Life,
    pub op: NameOp,
    pub answer: NameAnswer,
}

/// The commits of one owner of a slot: they are taken in their order, each once.
#[derive(Clone, Debug)]
pub struct Commit {
    pub stream: u64,
    pub number: u64,
    pub incarnation: u64,
    pub slot: Slot,
    pub owner: NodeId,
    pub epoch: SlotEpoch,
    pub changes: Changes,
    pub done: Option<Done>,
    /// Answered when a power cut takes it away no more.
    pub durable: bool,
}

#[derive(Clone, Debug)]
pub struct DataWrite {
    pub slot: Slot,
    pub by: Party,
    pub ino: Ino,
    pub cell: u64,
    pub value: u64,
    /// What was kept until now.
    pub kept: bool,
}

/// By session and its number.
pub type Number = (SessionId, u64);

#[derive(Clone, Debug)]
pub struct Answered {
    pub answer: OpAnswer,
    /// It changed something: it is not to be done again, wherever the slot goes. What of claims and locks stands is said by other means.
    pub goes_along: bool,
}

/// What belongs to a slot that was let go.
#[derive(Clone, Debug)]
pub struct State {
    pub slot: Slot,
    pub life: Life,
    /// Of the database: what was answered may be gone in another one.
    pub incarnation: u64,
    pub sessions: Vec<SessionId>,
    pub locks: Vec<HadLock>,
    pub answers: BTreeMap<Number, Answered>,
}

#[derive(Clone, Debug)]
pub enum Message {
    // To the database.
    Claim {
        by: Process,
        asked: Time,
    },
    Store {
        by: Process,
        map: Box<ClusterMap>,
    },
    FetchMap,
    Incarnation,
    TakeOn {
        slot: Slot,
        owner: NodeId,
        epoch: SlotEpoch,
        incarnation: u64,
        /// With journals: the process's life as a writer.
        writer: u64,
    },
    Commit(Box<Commit>),
    Writer(Writer, Box<Ask>),
    Verdict {
        slot: Slot,
        epoch: SlotEpoch,
        session: SessionId,
    },
    EndGrace {
        slot: Slot,
        epoch: SlotEpoch,
        life: Life,
    },
    // Of hand-overs.
    LetGo {
        slot: Slot,
    },
    LetGone(Box<State>),
    Bring(Box<State>),
    // Its answers.
    Claimed {
        asked: Time,
        map: Option<Box<ClusterMap>>,
        rows: Vec<RowSeen>,
    },
    Told(WriterTold),
    Stored {
        epoch: Epoch,
        is: bool,
    },
    Map(Option<Box<ClusterMap>>),
    IncarnationIs(u64),
    TakenOn {
        past: Past,
        view: Box<Records>,
    },
    /// Not the owner, or of another incarnation.
    Fenced,
    OutOfTurn,
    Yes,
    /// Between metadata servers, about the ends of their journals.
    Tail {
        from: NodeId,
        said: Box<Said>,
    },
    // Of members.
    Said(Saying),
    Grant(Answer),
    Publish(Box<Difference>),
    // Clients and metadata servers.
    WhichMap,
    Lease {
        slot: Slot,
        by: Party,
        saying: message::Saying,
    },
    Tell {
        slot: Slot,
        session: SessionId,
        telling: Telling,
        seen: Option<Seen>,
    },
    Ask {
        slot: Slot,
        by: Party,
        number: u64,
        acknowledged: u64,
        call: CallId,
        op: Op,
    },
    Answer(OpAnswer),
    WrongOwner,
    Later,
    Gone,
    // To data servers.
    Read {
        slot: Slot,
        by: Party,
        ino: Ino,
        cell: u64,
    },
    Write(DataWrite),
    Sync {
        ino: Ino,
    },
    /// To nothing.
    Cut {
        slot: Slot,
        by: Party,
        ino: Ino,
        call: CallId,
    },
    Refuse {
        slot: Slot,
        life: Life,
        session: SessionId,
    },
    LifeFrom {
        slot: Slot,
        life: Life,
    },
    // Their answers.
    Value(Option<u64>),
    Refused,
}
