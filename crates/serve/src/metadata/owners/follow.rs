//! A server that is not on duty: it says that it is there, and is told the map.

use std::time::{Duration, Instant};

use cluster::ClusterMap;
use parking_lot::Mutex;
use proto::owners::{Bring, runs};
use types::{Slot, UgsdId};

use super::{Joining, Owners, peers::Peer, start::about};
use crate::{answer::No, metadata::MetadataService};

/// How often it is said.
const EVERY: Duration = Duration::from_millis(500);
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// For slots of an operation: as long as its asker may wait.
const BRING_WAIT: Duration = Duration::from_secs(25);

pub(crate) struct Following {
    joining: Joining,
    /// By their addresses, while no map says who is on duty.
    servers: Vec<Peer>,
    told: Mutex<Told>,
}

struct Told {
    at: Option<Instant>,
    /// The life of who is on duty.
    life: u64,
    failing: bool,
}

impl Following {
    pub(crate) fn new(joining: Joining) -> Following {
        let peer = |address: &net::Address| Peer::new(vec![address.clone()], None, &joining.credentials);
        let servers = joining.servers.iter().map(peer).collect();
        Following { servers, joining, told: Mutex::new(Told { at: None, life: 0, failing: false }) }
    }

    /// Since when nobody on duty is heard, if that is long.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let told = self.told.lock();
        told.at.map(|at| at.elapsed()).filter(|since| *since > 4 * EVERY)
    }
}

impl MetadataService {
    /// Says who we are, and takes the map.
    pub(in crate::metadata) fn follow(&self) {
        let Ok(owners) = self.shared() else { return };
        if owners.is_on_duty() {
            return;
        }
        let following = &owners.following;
        if following.told.lock().at.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        let map = self.nodes.map();
        let asked = about(&following.joining, (self.incarnation, map.epoch().0), false);
        let on_duty = map.slot(UgsdId::ROOT.slot()).owner;
        let known = on_duty.and_then(|node| owners.peers.of(&map, node).ok());
        let peers = known.iter().map(|peer| &**peer).chain(&following.servers);
        for peer in peers {
            let Ok((joined, body)) = peer.ask(&asked, Vec::new(), ANSWER_WAIT) else { continue };
            if !body.is_empty() {
                let Ok(map) = ClusterMap::decode(&body) else {
                    tracing::error!("the cluster map of the server on duty cannot be read");
                    continue;
                };
                self.nodes.adopt(map);
            }
            let mut told = following.told.lock();
            if told.failing || told.life != joined.incarnation {
                tracing::info!(life = joined.incarnation, "a metadata server on duty is followed");
            }
            *told = Told { at: Some(Instant::now()), life: joined.incarnation, failing: false };
            return;
        }
        let mut told = following.told.lock();
        if !told.failing {
            tracing::warn!("no metadata server on duty answers: slots stay where they are");
        }
        told.failing = true;
    }

    /// Slots that an operation needs beside its home.
    pub(super) fn get_slots(&self, owners: &Owners, slots: &[Slot]) -> Result<(), No> {
        let numbers: Vec<u16> = slots.iter().map(|slot| slot.get()).collect();
        if owners.is_on_duty() {
            return self.bring(&numbers, (owners.me.id, false));
        }
        let map = self.nodes.map();
        let on_duty = map.slot(UgsdId::ROOT.slot()).owner;
        let on_duty = on_duty.ok_or_else(|| No::later("nobody on duty is known"))?;
        let bring = Bring { node: owners.me.id.0, slots: runs(numbers), stay: false };
        owners.peers.of(&map, on_duty)?.ask(&bring, Vec::new(), BRING_WAIT).map(|_| ())
    }
}
