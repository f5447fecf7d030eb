//! What a metadata server has that may have a standby, and be one.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
};

use cluster::NodeId;
use kv::{Follower, MetaStore};
use parking_lot::Mutex;
use proto::SessionId;

use super::{
    peers::{Peer, Peers},
    start::Shared,
};
use crate::metadata::tail::{Copies, Keeper, Known, StandbyOptions, TailRows};

/// Both sides, and what was answered, and who given up, by those in whose place this one goes on.
pub(crate) struct Tails {
    pub(crate) keeper: Arc<Keeper>,
    pub(super) copies: Copies,
    pub(super) rows: Arc<dyn TailRows>,
    /// Connections for what the standby is told, and nothing else.
    pub(super) peers: Peers,
    /// The standby that is told it.
    pub(super) line: Mutex<Option<(NodeId, Arc<Peer>)>>,
    pub(super) inherited: Mutex<Known>,
    /// There are answers in it.
    pub(super) inherits: AtomicBool,
    /// Whom the standby was told to give up, if it was told that since this process began. No more than [`GIVEN_UP_MAX`]; beyond, they are told again.
    pub(super) told_given_up: Mutex<BTreeSet<SessionId>>,
    /// An earlier life, not long ago.
    pub(crate) went_on: bool,
    /// How often it went on for others.
    pub(super) taken_over: AtomicU64,
    /// What is ours by now cannot be served before a start.
    pub(super) anew: AtomicBool,
}

impl Tails {
    /// Before the service's first commit.
    pub(crate) fn begin(store: &MetaStore, shared: &Shared) -> Result<Option<Tails>, String> {
        let Some(StandbyOptions { rows, dir, on, terms }) = shared.joining.standby.clone() else {
            return Ok(None);
        };
        let copies = Copies::open(&dir, shared.joining.me.id, terms);
        let copies = copies.and_then(|copies| Ok((copies.of_before()?, copies)));
        let went_on = copies.as_ref().is_ok_and(|(_, copies)| copies.went_on());
        let (inherited, copies) = copies.map_err(|error| format!("{}: {error}", dir.display()))?;
        let seen = rows.see(&rows.writer())?;
        let copy = seen.map_or(0, |view| view.row.copy);
        let stats = store.stats();
        let keeper = Arc::new(Keeper::new(terms, on, copy, (stats.applied_lsn, stats.lsn)));
        let follower: Arc<dyn Follower> = keeper.clone();
        if !store.set_follower(follower) {
            return Err("the journal is followed already".to_owned());
        }
        let inherits = AtomicBool::new(!inherited.is_empty());
        let inherited = Mutex::new(inherited);
        let peers = Peers::new(shared.joining.credentials.clone());
        let (taken_over, anew, line, told_given_up) = Default::default();
        Ok(Some(Tails {
            keeper,
            copies,
            rows,
            peers,
            line,
            inherited,
            inherits,
            told_given_up,
            went_on,
            taken_over,
            anew,
        }))
    }

    /// By servers in whose place this one goes on.
    pub(crate) fn given_up_before(&self) -> Vec<SessionId> {
        self.inherited.lock().given_up().iter().copied().collect()
    }
}
