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
    /// Whose verdicts are durable, and wait for data servers: 4096 sessions at most, and the end of coming back.
    pub fencing: Mutex<Vec<Fencing>>,
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

/// What is free as soon as all data servers keep to this roster.
pub(super) struct Fencing {
    pub what: Fenced,
    pub version: u64,
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
