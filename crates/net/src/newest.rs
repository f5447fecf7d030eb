//! The newest connection of each instance, at a server: it takes the place of those before it.
//!
//! Who lost a connection without an answer asks again over the next one. Its first request may still lie in the old connection, or wait for a
//! thread; carried out after the second one, and after what was asked later, it would undo that. So the older connections are marked, before
//! the peer hears that it may ask over the new one: a connection over which anything was ever asked has its mark before the next one is made.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use parking_lot::Mutex;
use wire::{handshake::Session, schema::Lane};

static LAST: AtomicU64 = AtomicU64::new(0);

/// What a connection is known by, as long as anybody speaks of it.
pub(crate) struct Mark {
    /// Rises, in this process, in the order in which connections are accepted.
    pub(crate) number: u64,
    superseded: AtomicBool,
    /// It came in at the Unix socket for clients on this machine.
    pub(crate) near: bool,
}

impl Mark {
    pub(crate) fn new(near: bool) -> Arc<Mark> {
        Arc::new(Mark { number: LAST.fetch_add(1, SeqCst), superseded: AtomicBool::new(false), near })
    }

    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.load(SeqCst)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    node: u64,
    instance: u64,
    lane: Lane,
}

#[derive(Default)]
pub(crate) struct Newest(Mutex<HashMap<Key, Arc<Mark>>>);

/// A connection's place among those of its instance, until it is dropped.
pub(crate) struct Turn {
    newest: Arc<Newest>,
    key: Option<Key>,
    near: bool,
    /// From when it was taken.
    pub(crate) mark: Option<Arc<Mark>>,
}

impl Turn {
    pub(crate) fn new(newest: &Arc<Newest>, near: bool) -> Turn {
        Turn { newest: newest.clone(), key: None, near, mark: None }
    }

    /// To be called before the peer is told that it may ask. The number of the connection that has to be cut.
    pub(crate) fn take(&mut self, session: &Session) -> Option<u64> {
        let (node, instance) = (session.peer.node, session.peer.instance);
        // Under the lock, for its number.
        let mut newest = self.newest.0.lock();
        let mark = self.mark.insert(Mark::new(self.near)).clone();
        if instance == 0 {
            return None;
        }
        let key = Key { node, instance, lane: session.lane };
        self.key = Some(key);
        let before = newest.insert(key, mark)?;
        before.superseded.store(true, SeqCst);
        Some(before.number)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (Some(key), Some(own)) = (self.key, &self.mark) else { return };
        let mut newest = self.newest.0.lock();
        if newest.get(&key).is_some_and(|mark| Arc::ptr_eq(mark, own)) {
            newest.remove(&key);
        }
    }
}
