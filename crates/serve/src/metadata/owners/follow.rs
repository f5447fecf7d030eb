//! A server that is not on duty: it says that it is there, and is told the map.

use std::time::{Duration, Instant};

use cluster::ClusterMap;
use mds::Gather;
use proto::{
    control::{Hello, MapSince},
    owners::{Bring, runs},
};
use types::{Errno, Slot, UgsdId};
use wire::handshake::Roles;

use super::{
    Owners,
    following::{EVERY, Told},
    peers::Peer,
    start::about,
};
use crate::{
    answer::No,
    metadata::{MetadataService, needing},
};

const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// Who is on duty may be handing that over.
const DUTY_AFTER: Duration = Duration::from_secs(3);
/// Each look is a transaction of the database.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// For slots of an operation: as long as its asker may wait.
const BRING_WAIT: Duration = Duration::from_secs(25);

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
        let peer = |node| owners.peers.of(&map, node).ok();
        let known = on_duty.and_then(peer);
        // Who came later is in no configuration of ours.
        let others = map.nodes().filter(|node| node.roles.has(Roles::MDS) && node.id != owners.me.id);
        let others = others.filter(|node| Some(node.id) != on_duty).filter_map(|node| peer(node.id));
        for peer in known.into_iter().chain(following.servers.iter().cloned()).chain(others) {
            if owners.is_leaving() {
                // For clients that ask; whoever joins gets slots.
                let since = MapSince { epoch: map.epoch().0 };
                let Ok((_, body)) = peer.ask(&since, Vec::new(), ANSWER_WAIT) else { continue };
                ClusterMap::decode(&body).into_iter().for_each(|map| self.nodes.adopt(map));
                following.told.lock().at = Some(Instant::now());
                return;
            }
            let (joined, body) = match peer.ask(&asked, Vec::new(), ANSWER_WAIT) {
                Ok(joined) => joined,
                Err(no) => {
                    if no.errno() == Errno::EREMOTE {
                        self.learn_from(&peer);
                    }
                    continue;
                }
            };
            // First: with the map places are chosen.
            if let Some(standings) = &joined.standings
                && let Err(no) = self.take_standings(standings)
            {
                tracing::error!(detail = no.0.detail, "which data servers are taken out is not known");
                continue;
            }
            if !body.is_empty() {
                let Ok(map) = ClusterMap::decode(&body) else {
                    tracing::error!("the cluster map of the server on duty cannot be read");
                    continue;
                };
                self.nodes.adopt(map);
            }
            let mut told = following.told.lock();
            if told.failing.is_some() || told.life != joined.incarnation {
                tracing::info!(life = joined.incarnation, "a metadata server on duty is followed");
            }
            *told = Told { at: Some(Instant::now()), life: joined.incarnation, failing: None, looked: None };
            return;
        }
        let mut told = following.told.lock();
        let now = Instant::now();
        let since = *told.failing.get_or_insert_with(|| {
            tracing::warn!("no metadata server on duty answers: slots stay where they are");
            now
        });
        let looked = told.looked.is_some_and(|looked| looked.elapsed() < LOOK_AGAIN);
        if since.elapsed() >= DUTY_AFTER && !looked {
            told.looked = Some(now);
            drop(told);
            self.try_duty(owners);
        }
    }

    /// Another that is not on duty may know who is.
    fn learn_from(&self, peer: &Peer) {
        let Ok((_, body)) = peer.ask(&Hello {}, Vec::new(), ANSWER_WAIT) else { return };
        ClusterMap::decode(&body).into_iter().for_each(|map| self.nodes.adopt(map));
    }

    /// Slots that an operation needs beside its home. The root's stays with whoever is on duty: the others go there, and the operation after them.
    pub(super) fn get_slots(&self, owners: &Owners, slots: &[Slot]) -> Result<(), No> {
        let numbers: Vec<u16> = slots.iter().map(|slot| slot.get()).collect();
        if owners.is_on_duty() {
            return self.bring(&numbers, (owners.me.id, false));
        }
        let map = self.nodes.map();
        let on_duty = map.slot(UgsdId::ROOT.slot()).owner;
        let on_duty = on_duty.ok_or_else(|| No::later("nobody on duty is known"))?;
        let root = UgsdId::ROOT.slot().get();
        let to = if numbers.contains(&root) { on_duty } else { owners.me.id };
        let brought = numbers.into_iter().filter(|slot| *slot != root);
        let bring = Bring { node: to.0, slots: runs(brought), stay: false };
        owners.peers.of(&map, on_duty)?.ask(&bring, Vec::new(), BRING_WAIT).map(|_| ())
    }
}

/// What the metadata server gathers with.
impl Gather for MetadataService {
    fn gather(&self, slots: &[Slot]) -> Result<(), Errno> {
        let owners = self.shared().map_err(|no| no.errno())?;
        if needing::note(slots) {
            return Err(Errno::EAGAIN);
        }
        self.bring_needed(owners, slots)
    }
}

impl MetadataService {
    pub(in crate::metadata) fn bring_needed(&self, owners: &Owners, slots: &[Slot]) -> Result<(), Errno> {
        // Whoever waits for slots does not keep others from getting his.
        let brought = owners.gates.outside(|| self.get_slots(owners, slots));
        match brought {
            Some(Ok(())) => Ok(()),
            Some(Err(No(fault))) => {
                tracing::debug!(detail = fault.detail, "slots for an operation were not brought");
                Err(Errno::EAGAIN)
            }
            // It went meanwhile: the operation is for another.
            None => Err(Errno::EAGAIN),
        }
    }
}
