//! Sessions that were given up, until all that they have is.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Instant,
};

use lease::coherence::message::{Joined, Life};
use parking_lot::Mutex;
use proto::SessionId;

use super::{session::Session, terms::Due};

/// Sessions on their way out.
pub(super) struct Leaving {
    /// They were given up, and what they have is theirs until no server carries out anything of them.
    pub condemned: Mutex<HashMap<SessionId, Arc<Session>>>,
    /// What could not be made durable yet.
    pub undone: Mutex<Due>,
    pub fencing: Mutex<Waiting>,
    /// Of the roster. It rises after somebody is not in it any more.
    pub version: AtomicU64,
    /// Sessions of earlier lives may come back.
    pub earlier: AtomicBool,
    /// but not these.
    pub given_up: Vec<Joined>,
    /// Sessions that may keep writes back, here or at another metadata server, until they are over: as recorded.
    pub writers: Mutex<BTreeSet<SessionId>>,
    /// When slots of another metadata server came last.
    pub came: Mutex<Option<Instant>>,
}

/// What waits for data servers.
#[derive(Default)]
pub(super) struct Waiting {
    /// Those whose verdicts are durable: 4096 sessions at most, those of whom something came later, and the end of coming back.
    pub all: Vec<Fencing>,
    /// Slots come, so often at this moment, with what may be of one of those: nothing is free meanwhile.
    pub coming: u32,
}

/// What is free as soon as all data servers keep to this roster.
#[derive(Clone, Copy)]
pub(super) struct Fencing {
    pub what: Fenced,
    pub version: u64,
    /// The standby's, which is to be stored before.
    pub record: u64,
    pub since: Instant,
    /// Slots had come not long before.
    pub of_others: bool,
    pub told: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Fenced {
    Session(SessionId),
    Earlier,
}

impl Leaving {
    pub(super) fn new(life: Life, given_up: Vec<Joined>, writers: BTreeSet<SessionId>) -> Leaving {
        Leaving {
            condemned: Mutex::default(),
            undone: Mutex::default(),
            fencing: Mutex::default(),
            version: AtomicU64::new(life.first_number() + 1),
            earlier: AtomicBool::new(true),
            given_up,
            writers: Mutex::new(writers),
            // What was found at the start was another's, or is not known to have been ours.
            came: Mutex::new(Some(Instant::now())),
        }
    }
}
