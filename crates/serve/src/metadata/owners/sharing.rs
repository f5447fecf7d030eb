//! Servers that come get their share of the slots. What cannot go yet goes later.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use cluster::{
    NodeId,
    assignment::grow,
    load::Loads,
    map::ClusterMap,
    plan::{Move, Plan},
};
use types::{Ino, Slot};

use super::{Owners, turn::Turn};
use crate::metadata::MetadataService;

/// Between attempts. Within 30 s after a take-over slots that are used cannot go.
const AGAIN: Duration = Duration::from_secs(5);
/// For so long after it came.
const OWED_FOR: Duration = Duration::from_secs(120);

impl MetadataService {
    /// Who has no slots gets some of the others', and goes on getting them until he has his share; and so does who had left, and kept what could not go.
    pub(super) fn share_with_newcomers(&self, owners: &Owners, turn: &mut Turn) {
        let map = self.nodes.map();
        let Some(duty) = owners.duty() else { return };
        let came_again = duty.came_again.lock().clone();
        let lacks = |node: NodeId| came_again.contains(&node) || map.slots_of(node).next().is_none();
        let newcomers: BTreeSet<NodeId> = map
            .nodes()
            .filter(|node| node.takes_slots() && lacks(node.id) && self.is_heard(node.id))
            .map(|node| node.id)
            .collect();
        duty.came_again.lock().retain(|node| !newcomers.contains(node));
        let plan = if newcomers.is_empty() {
            self.owed(turn, &map)
        } else {
            turn.came = Instant::now();
            turn.owed.retain(|_, (_, to)| !newcomers.contains(to));
            grow(&map, &newcomers, &Loads::none())
        };
        if plan.is_empty() {
            return;
        }
        self.move_slots(owners, turn, &plan);
        turn.tried = Instant::now();
        // Who has got some is no newcomer any more. One that is nobody's now comes back to who let it go.
        let map = self.nodes.map();
        let ways = plan.moves.iter().filter_map(|(slot, one)| Some((*slot, (one.from?, one.to))));
        let stayed =
            |slot: Slot, to: NodeId| slot != Ino::ROOT.ugsd().slot() && map.slot(slot).owner != Some(to);
        turn.owed.extend(ways.filter(|(slot, (_, to))| stayed(*slot, *to)));
    }

    /// What could not go to servers that came, if it is time to try it again.
    fn owed(&self, turn: &mut Turn, map: &ClusterMap) -> Plan {
        if turn.tried.elapsed() < AGAIN {
            return Plan::default();
        }
        if turn.came.elapsed() > OWED_FOR {
            turn.owed.clear();
        }
        turn.owed.retain(|slot, (_, to)| map.slot(*slot).owner != Some(*to));
        // A server that is silent for a moment has it later.
        let can_go = |slot: Slot, (from, to): (NodeId, NodeId)| {
            map.slot(slot).owner == Some(from) && self.is_heard(from) && self.is_heard(to)
        };
        let moves = turn.owed.iter().filter(|(slot, way)| can_go(**slot, **way));
        let moves = moves.map(|(slot, (from, to))| (*slot, Move { from: Some(*from), to: *to }));
        Plan { moves: moves.collect() }
    }
}
