//! The metadata servers of a cluster: lines to each, and the session there. Who is asked what: [`crate::routing`].

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use net::Address;
use parking_lot::Mutex;
use proto::SessionId;
use wire::{handshake::Wish, schema::Lane};

use crate::{
    heard::Heard,
    line::{Common, Line},
    nodes::Owner,
};

/// Before whoever should have a slot is asked again, at first.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// A change of the own node is told so soon.
pub(crate) const TELL: Duration = Duration::from_millis(500);

/// A session at one of them.
#[derive(Clone, Copy)]
pub(crate) struct Came {
    pub id: SessionId,
    /// Among those of the mount.
    pub serial: u64,
    /// For the heads of its requests.
    pub joined: u64,
    /// Of the server.
    pub incarnation: u64,
}

/// One of the servers.
pub(crate) struct Home {
    addresses: Vec<String>,
    pub node: u64,
    pub control: Line,
    pub metadata: Line,
    /// As which the session came there.
    pub joined: Mutex<Option<Came>>,
    /// The same, while it comes back.
    pub coming: Mutex<Option<Came>>,
    /// One at a time has it come back there.
    pub recovering: Mutex<()>,
    /// One at a time says there what it has in slots that came without that.
    pub bringing: Mutex<()>,
    /// In slots up to this number the session, as it came there, said there what it has.
    pub brought: Mutex<Option<(SessionId, u64, u64)>>,
    /// That it may keep writes back the session, as it came there, said there then.
    pub writes: Mutex<Option<(SessionId, u64, Instant)>>,
    /// How often it was started again and did not know any more what it had answered.
    pub losses: AtomicU64,
    /// A thread hears there of locks that wait.
    pub listening: AtomicBool,
}

pub(crate) struct Homes {
    common: Common,
    known: Mutex<BTreeMap<u64, Arc<Home>>>,
}

/// The session comes back there, until this is dropped.
pub(crate) struct Comes<'a>(&'a Home);

impl Drop for Comes<'_> {
    fn drop(&mut self) {
        *self.0.coming.lock() = None;
    }
}

impl Home {
    pub(crate) fn comes(&self, came: Came) -> Comes<'_> {
        *self.coming.lock() = Some(came);
        Comes(self)
    }

    /// Of the session, if it came.
    pub(crate) fn joined_as(&self, id: SessionId) -> Option<u64> {
        self.joined.lock().filter(|came| came.id == id).map(|came| came.joined)
    }

    /// Up to which number the session said there what it has, since it came there as that.
    pub(crate) fn brought(&self, id: SessionId, joined: u64) -> u64 {
        let brought = *self.brought.lock();
        brought.filter(|(of, at, _)| (*of, *at) == (id, joined)).map_or(0, |(.., number)| number)
    }

    /// Since when does it know that the session, as it came there as that, may keep writes back?
    pub(crate) fn knows_of_writes(&self, id: SessionId, joined: u64) -> Option<Instant> {
        let said = *self.writes.lock();
        said.filter(|(of, at, _)| (*of, *at) == (id, joined)).map(|(.., since)| since)
    }

    /// It answered on one of the lines: neither has to wait until its next attempt is due.
    pub(crate) fn is_there(&self) {
        self.control.answered();
        self.metadata.answered();
    }

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
        let heard = Heard::default();
        let line = |lane| Line::beside(&heard, parsed, Wish { lane, node }, &self.common);
        Arc::new(Home {
            addresses,
            node: node.unwrap_or(0),
            control: line(Lane::Control),
            metadata: line(Lane::Metadata),
            joined: Mutex::default(),
            coming: Mutex::default(),
            recovering: Mutex::default(),
            bringing: Mutex::default(),
            brought: Mutex::default(),
            writes: Mutex::default(),
            losses: AtomicU64::new(0),
            listening: AtomicBool::new(false),
        })
    }

    pub(crate) fn of(&self, owner: &Owner) -> Arc<Home> {
        let mut known = self.known.lock();
        if let Some(home) = known.get(&owner.node).filter(|home| home.addresses == owner.addresses) {
            return home.clone();
        }
        let parsed: Vec<Address> = owner.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        let home = self.home(owner.addresses.clone(), &parsed, Some(owner.node));
        // Elsewhere it is the same server, or the session is lost there.
        if let Some(before) = known.get(&owner.node) {
            *home.joined.lock() = *before.joined.lock();
            *home.brought.lock() = *before.brought.lock();
            *home.writes.lock() = *before.writes.lock();
            home.losses.store(before.losses.load(Ordering::Acquire), Ordering::Release);
            home.listening.store(before.listening.load(Ordering::Acquire), Ordering::Release);
        }
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
