//! The ends of journals on standbys, in the runs that have them: the machines of `cluster::tail`, and the shells around them.
//!
//! In these runs a server's commits go into its journal, and from there to the database some time later. An operation counts as done when its
//! record may be answered, or when the database has it, whichever is first. Rows of writers rule whose the slots are; a machine that is
//! lost for good leaves nothing but what its standby has.
//!
//! - [`journal`] the owner's side; [`copies`] the standby's; [`writers`] the database's; [`truth`] what is answered and has to stay.
//!
//! The shells keep the rules of `serve::metadata::tail`: a commit and its operation's answer are one record, answers wait by where the journal
//! was when they were made, answers that came from another server are in a record before their slot is served.

mod copies;
mod disk;
mod effects;
mod journal;
mod truth;
mod writers;

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use cluster::{
    NodeId, SlotEpoch,
    tail::{
        Terms,
        row::{Change, Refused, Row},
    },
    tenure,
};
use lease::coherence::message::Life;
use types::Slot;

pub use self::{
    disk::Disk,
    journal::{Inherited, Journal},
    truth::TailTruth,
    writers::{RowSeen, Writers},
};
use crate::message::{Answered, Commit, Number};

pub const TERMS: Terms = Terms {
    tenure: tenure::Terms {
        lease: Duration::from_millis(600),
        beat_every: Duration::from_millis(100),
        suspect_after: Duration::from_millis(600),
        drift_one_in: 20,
    },
    patience: Duration::from_millis(400),
    again: Duration::from_millis(150),
    pause: Duration::from_millis(250),
    window: 8,
    kept_max: 150,
};

/// Of a server, in the database.
pub const LEASE: Duration = Duration::from_millis(1000);
/// What is in the journal goes to the database so often.
const CARRY_EVERY: Duration = Duration::from_millis(400);

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

pub type Records = BTreeMap<u64, Rc<Record>>;

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
    Send { copy: u64, beat: u64, from: u64, up_to: u64, applied: u64, records: Records },
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
        records: Records,
    },
    Look {
        of: NodeId,
    },
    Take {
        from: NodeId,
        copy: u64,
        up_to: u64,
        records: Records,
    },
    /// The slot is anybody's that the map gives it to.
    Free {
        slot: Slot,
        life: Life,
    },
}

#[derive(Clone, Debug)]
pub enum Told {
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
