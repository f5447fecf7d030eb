//! The other metadata servers of a cluster that has several: lines to each, and the session there. Who is asked what: [`crate::routing`].

use std::{collections::BTreeMap, sync::Arc, time::Duration};

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

/// One of the other servers.
pub(crate) struct Home {
    addresses: Vec<String>,
    pub control: Line,
    pub metadata: Line,
    /// As which the session came there.
    pub joined: Mutex<Option<(SessionId, u64)>>,
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
        let home = Arc::new(Home {
            addresses: owner.addresses.clone(),
            control: line(Lane::Control),
            metadata: line(Lane::Metadata),
            joined: Mutex::default(),
        });
        known.insert(owner.node, home.clone());
        home
    }

    /// Those that were asked something, by their nodes.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<Home>)> {
        self.known.lock().iter().map(|(node, home)| (*node, home.clone())).collect()
    }
}
