//! What processes ask each other and answer. A frame carries the number of a message in the run's list of them; the forms of the
//! product's messages have their own tests (`proto`).

use std::{collections::BTreeMap, rc::Rc};

use cluster::{
    ClusterMap, Difference, Epoch, NodeId, SlotEpoch,
    membership::{Answer, Saying},
    tail::row::{Change, Refused, Row},
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

use crate::records::{Changes, Records};

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

/// What operations were answered that changed something, and in which slot.
pub type Known = BTreeMap<Number, (Slot, Answered)>;

/// A record of a journal: a commit with its operation's answer, or answers that came from another server.
#[derive(Debug)]
pub struct Record {
    /// In the whole run.
    pub id: u64,
    pub slot: Slot,
    pub commit: Option<Commit>,
    pub known: Known,
}

pub type JournalRecords = BTreeMap<u64, Rc<Record>>;

/// A slot that was taken over: whose life there ended, and whether he had all answers of it.
#[derive(Clone, Debug)]
pub struct Taken {
    pub slot: Slot,
    pub life: Life,
    pub knows: bool,
}

/// Between metadata servers.
#[derive(Clone, Debug)]
pub enum Said {
    Begin { copy: u64, beat: u64, base: u64, known: Known },
    Send { copy: u64, beat: u64, from: u64, up_to: u64, applied: u64, records: JournalRecords },
    Stored { copy: u64, beat: u64, up_to: u64 },
    Refused { copy: u64 },
}

/// What a server asks of the database, under its session there.
#[derive(Clone, Debug)]
pub enum Ask {
    /// By a process that begins.
    Open,
    Claim,
    Renew,
    Write {
        change: Change<NodeId>,
    },
    Apply {
        up_to: u64,
        records: JournalRecords,
    },
    Look {
        of: NodeId,
    },
    Take {
        from: NodeId,
        copy: u64,
        up_to: u64,
        records: JournalRecords,
    },
    /// The slot is anybody's that the map gives it to.
    Free {
        slot: Slot,
        life: Life,
    },
}

#[derive(Clone, Debug)]
pub enum WriterTold {
    Opened {
        session: u64,
        copy: u64,
        applied: u64,
        /// How often another one has gone on.
        taken: u64,
    },
    Claimed(u64),
    Done,
    /// What is ours by the rows, and not free.
    Renewed(Vec<(Slot, SlotEpoch, Life)>),
    /// The session is not the last one, or the row is not so.
    NotDone,
    /// The process is not the one that the row is of.
    Fenced,
    Seen {
        row: Row<NodeId>,
        ended: bool,
    },
    Took(Result<Vec<Taken>, Refused>),
}

/// Of a server's process.
#[derive(Clone, Debug)]
pub struct Writer {
    pub by: NodeId,
    pub life: u64,
    pub session: u64,
}

/// What a coordinator sees of a slot.
#[derive(Clone, Copy, Debug)]
pub struct RowSeen {
    pub slot: Slot,
    pub owner: Option<NodeId>,
    pub epoch: SlotEpoch,
    pub free: bool,
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
    /// Of files with two copies.
    Copies(Box<crate::copies::said::Said>),
}
