//! What a server that is not on duty knows of the one that is.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{peers::Peer, start::Joining};

/// How often it says that it is there.
pub(crate) const EVERY: Duration = Duration::from_millis(500);

pub(crate) struct Following {
    pub joining: Joining,
    /// By their addresses, while no map says who is on duty.
    pub servers: Vec<Arc<Peer>>,
    pub told: Mutex<Told>,
}

pub(crate) struct Told {
    pub at: Option<Instant>,
    /// The life of who is on duty.
    pub life: u64,
    /// Since when nobody is.
    pub failing: Option<Instant>,
    /// Whether the root's slot is nobody's was looked at.
    pub looked: Option<Instant>,
}

impl Following {
    pub(crate) fn new(joining: Joining) -> Following {
        let peer =
            |address: &net::Address| Arc::new(Peer::new(vec![address.clone()], None, &joining.credentials));
        let servers = joining.servers.iter().map(peer).collect();
        Following {
            servers,
            joining,
            told: Mutex::new(Told { at: None, life: 0, failing: None, looked: None }),
        }
    }

    /// Since when nobody on duty is heard, if that is long.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let told = self.told.lock();
        told.at.map(|at| at.elapsed()).filter(|since| *since > 4 * EVERY)
    }
}
