//! What a guarded mount's process knows of the one before, and writes down for the next. What is done with it: [`crate::succession`].

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::atomic::AtomicBool,
    time::Instant,
};

use handover::Place;
use parking_lot::Mutex;
use types::Ino;

use crate::held::Holder;

/// Who took a lock through which opening.
pub(crate) type User = (Ino, Holder, u64);

#[derive(Default)]
pub(crate) struct Succession {
    /// Servers that were asked what the session has there.
    pub(crate) asked: Mutex<BTreeSet<u64>>,
    /// Where users of locks are written down.
    pub(crate) users: Mutex<HashMap<User, Written>>,
    /// Of whom servers said that they have locks.
    pub(crate) have: Mutex<HashSet<(Ino, Holder)>>,
    /// What was lost was looked for, at all servers that answered.
    pub(crate) looked: AtomicBool,
    pub(crate) left: Mutex<Left>,
}

#[derive(Clone, Copy)]
pub(crate) struct Written {
    pub(crate) place: Place,
    /// He has a lock.
    pub(crate) has: bool,
}

/// Requests that the process before did not answer.
#[derive(Default)]
pub(crate) struct Left {
    /// The numbers of their operations, which are open.
    pub(crate) numbers: BTreeMap<u64, u64>,
    /// Until when they may come again.
    pub(crate) until: Option<Instant>,
}
