//! The other metadata servers of a cluster that has several: lines to each, and the session there. Who is asked what: [`crate::routing`].

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use net::Address;
use parking_lot::Mutex;
use proto::SessionId;
use wire::{handshake::Wish, schema::Lane};

use crate::{
    line::{Common, Line},
    nodes::Owner,
};

/// Before whoever should have a slot is asked again, at first.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(5);

#[derive(Clone, Copy)]
pub(crate) struct Came {
    pub id: SessionId,
    pub serial: u64,
    pub joined: u64,
}

/// One of the other servers.
pub(crate) struct Home {
    addresses: Vec<String>,
    pub node: u64,
    pub control: Line,
    pub metadata: Line,
    /// As which the session came there, and its number among those of the mount.
    pub joined: Mutex<Option<Came>>,
    /// A thread hears there of locks that wait.
    pub listening: AtomicBool,
}

impl Home {
    /// Of the session, if it came.
    pub(crate) fn joined_as(&self, id: SessionId) -> Option<u64> {
        self.joined.lock().filter(|came| came.id == id).map(|came| came.joined)
    }
}

pub(crate) struct Homes {
    common: Common,
    known: Mutex<BTreeMap<u64, Arc<Home>>>,
}

impl Homes {
    pub(crate) fn new(common: Common) -> Homes {
        Homes { common, known: Mutex::default() }
    }

    pub(crate) fn of(&self, owner: &Owner) -> Arc<Home> {
        let mut known = self.known.lock();
        if let Some(home) = known.get(&owner.node).filter(|home| home.addresses == owner.addresses) {
            return home.clone();
        }
        let parsed: Vec<Address> = owner.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        let line = |lane| Line::new(&parsed, Wish { lane, node: Some(owner.node) }, &self.common);
        // Elsewhere it is the same server, or the session is lost there.
        let before = known.get(&owner.node);
        let joined = before.and_then(|home| *home.joined.lock());
        let listening = before.is_some_and(|home| home.listening.load(Ordering::Acquire));
        let home = Arc::new(Home {
            addresses: owner.addresses.clone(),
            node: owner.node,
            control: line(Lane::Control),
            metadata: line(Lane::Metadata),
            joined: Mutex::new(joined),
            listening: AtomicBool::new(listening),
        });
        known.insert(owner.node, home.clone());
        home
    }

    /// Those that were asked something.
    pub(crate) fn all(&self) -> Vec<Arc<Home>> {
        self.known.lock().values().cloned().collect()
    }

    pub(crate) fn at(&self, node: u64) -> Option<Arc<Home>> {
        self.known.lock().get(&node).cloned()
    }
}
