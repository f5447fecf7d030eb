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

/// A session at one of them.
#[derive(Clone, Copy)]
pub(crate) struct Came {
    pub id: SessionId,
    /// For the heads of its requests.
    pub joined: u64,
    /// Of the server.
    pub incarnation: u64,
}

/// One of the servers.
pub(crate) struct Home {
    addresses: Vec<String>,
    pub control: Line,
    pub metadata: Line,
    /// As which the session came there.
    pub joined: Mutex<Option<Came>>,
    /// In slots up to this number the session said there what it has.
    pub brought: Mutex<Option<(SessionId, u64)>>,
}

pub(crate) struct Homes {
    common: Common,
    known: Mutex<BTreeMap<u64, Arc<Home>>>,
}

impl Home {
    pub(crate) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// It did not answer for so long, and why. The session is renewed there, also when no program asks for anything.
    pub(crate) fn away(&self) -> Option<(Duration, String)> {
        self.metadata.away().or_else(|| self.control.away())
    }
}

impl Homes {
    pub(crate) fn new(common: Common) -> Homes {
        Homes { common, known: Mutex::default() }
    }

    /// The one metadata server, where it may be reached.
    pub(crate) fn alone(&self, addresses: &[Address]) -> Arc<Home> {
        self.home(addresses.iter().map(ToString::to_string).collect(), addresses, None)
    }

    fn home(&self, addresses: Vec<String>, parsed: &[Address], node: Option<u64>) -> Arc<Home> {
        let line = |lane| Line::new(parsed, Wish { lane, node }, &self.common);
        Arc::new(Home {
            addresses,
            control: line(Lane::Control),
            metadata: line(Lane::Metadata),
            joined: Mutex::default(),
            brought: Mutex::default(),
        })
    }

    pub(crate) fn of(&self, owner: &Owner) -> Arc<Home> {
        let mut known = self.known.lock();
        if let Some(home) = known.get(&owner.node).filter(|home| home.addresses == owner.addresses) {
            return home.clone();
        }
        let parsed: Vec<Address> = owner.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        let home = self.home(owner.addresses.clone(), &parsed, Some(owner.node));
        known.insert(owner.node, home.clone());
        home
    }

    /// Those that were asked something, by their nodes.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<Home>)> {
        self.known.lock().iter().map(|(node, home)| (*node, home.clone())).collect()
    }
}
