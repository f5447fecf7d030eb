//! What a server that only keeps copies has taken goes to the others, and the duty, too.
//!
//! It serves what it took for as long as there is nobody else: its slots are moved as any others, once clients have said what they have in them.

use std::time::{Duration, Instant};

use cluster::{NodeId, assignment::vacate, load::Loads, map::ClusterMap, node::Node, plan::Plan};
use types::UgsdId;

use super::{Owners, turn::Turn};
use crate::metadata::MetadataService;

/// Between attempts. Within 30 s after a take-over nothing can go.
const AGAIN: Duration = Duration::from_secs(5);

impl MetadataService {
    /// At most one server's at a time.
    pub(super) fn hand_back(&self, owners: &Owners, turn: &mut Turn) {
        if turn.handed_back.is_some_and(|at| at.elapsed() < AGAIN) {
            return;
        }
        let map = self.nodes.map();
        let mut standbys = map.nodes().filter(|node| node.is_standby_only() && self.is_heard(node.id));
        let Some(from) = standbys.find(|node| map.slots_of(node.id).next().is_some()) else { return };
        let hearable = self.hearable(&map);
        if !hearable.nodes().any(Node::takes_slots) {
            return;
        }
        turn.handed_back = Some(Instant::now());
        self.give_away(owners, turn, &hearable, from.id);
        if from.id == owners.me.id {
            self.give_up_duty(owners, turn);
        }
    }

    fn give_away(&self, owners: &Owners, turn: &mut Turn, map: &ClusterMap, from: NodeId) {
        // What was brought to it for an operation goes home by itself; what it lent does not come back.
        turn.lent.retain(|_, (home, _)| *home != from);
        let Ok(Plan { mut moves }) = vacate(map, from, &Loads::none()) else { return };
        moves.retain(|slot, _| *slot != UgsdId::ROOT.slot() && !turn.lent.contains_key(slot));
        if !moves.is_empty() {
            tracing::info!(%from, slots = moves.len(), "what was taken goes to servers that are not only standbys");
            self.move_slots(owners, turn, &Plan { moves });
        }
    }

    /// The root's slot goes last.
    fn give_up_duty(&self, owners: &Owners, turn: &mut Turn) {
        let map = self.nodes.map();
        let is_last = map.slots_of(owners.me.id).count() == 1;
        if !is_last || !turn.doubtful.is_empty() || !turn.adrift.is_empty() {
            return;
        }
        let others = map.nodes().filter(|node| node.takes_slots() && self.is_heard(node.id));
        let Some(to) = others.min_by_key(|node| map.slots_of(node.id).count()) else { return };
        match self.hand_duty(owners, to) {
            // Another orders what happens to slots from now on.
            Ok(()) => *turn = Turn { tickets: turn.tickets, ..Turn::new(owners.relief()) },
            Err(no) => tracing::debug!(detail = no.0.detail, "the duty stays here for a while"),
        }
    }
}
