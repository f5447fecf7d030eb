//! Who gets which slots: at first, when a server comes, when one goes, when one died.
//!
//! - I-SLOT-1: a plan moves a slot once, to a server that is up; the same map and loads give the same plan.
//! - I-SLOT-2: nothing moves without need: between servers that stay nothing moves when another comes or goes.
//! - I-SLOT-3: who was given slots has no more than the others but for one slot's weight (and, where slots were taken from
//!   servers that stay, for a fiftieth of the mean: the last few are not worth their moves).
//! - I-SLOT-4: a server that only keeps copies gets no slot while another one is up, but those of a dead server whose standby it is.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;
use types::Slot;

use crate::{
    change::Change,
    load::{Loads, takers},
    map::ClusterMap,
    node::{Node, NodeId},
    plan::{Move, Plan},
};

/// A difference of less than the mean server's weight divided by this is left.
const SLACK: u64 = 50;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("no metadata server is up that could take the slots")]
pub struct NoServer;

/// Every slot without an owner gets one.
pub fn assign(map: &ClusterMap, loads: &Loads) -> Result<Plan, NoServer> {
    let free = map.slots().filter(|(_, entry)| entry.owner.is_none()).map(|(slot, _)| slot);
    hand_out(map, loads, free.collect(), None)
}

/// A server is drained, was removed, or only keeps copies: its slots go to the others, and nothing else moves.
pub fn vacate(map: &ClusterMap, leaving: NodeId, loads: &Loads) -> Result<Plan, NoServer> {
    hand_out(map, loads, map.slots_of(leaving).collect(), Some(leaving))
}

/// A server died: its standby has the end of its journal, so it takes all of its slots, whatever that weighs; without a standby as in
/// [`vacate`]. Whether its lease has ended is for [`members`](crate::members) to know.
pub fn fail_over(map: &ClusterMap, dead: NodeId, loads: &Loads) -> Result<Plan, NoServer> {
    let standby = map.standby_of(dead).filter(|by| map.node(*by).is_some_and(Node::may_serve));
    let Some(to) = standby else { return vacate(map, dead, loads) };
    let moves = map.slots_of(dead).map(|slot| (slot, Move { from: Some(dead), to }));
    Ok(Plan { moves: moves.collect() })
}

/// [`NoServer`] can take a dead server's slots: they are nobody's, so that it may join again itself. Without this nobody would ever
/// come back to a cluster whose servers were all given up.
pub fn release(map: &ClusterMap, dead: NodeId) -> Vec<Change> {
    map.slots_of(dead).map(Change::Release).collect()
}

/// Servers have come: they get slots of the others until all carry the same, in as few moves as can be.
pub fn grow(map: &ClusterMap, newcomers: &BTreeSet<NodeId>, loads: &Loads) -> Plan {
    let mut book = Book::of(map, loads);
    let mut donors: BTreeSet<NodeId> = book.shares.keys().copied().collect();
    let receivers: BTreeSet<NodeId> = donors.intersection(newcomers).copied().collect();
    donors.retain(|node| !newcomers.contains(node));
    let slack = book.mean(donors.iter().chain(&receivers)) / SLACK;
    let mut plan = Plan::default();
    while let (Some(from), Some(to)) = (book.heaviest(&donors), book.lightest(&receivers)) {
        let gap = book.weight(from).saturating_sub(book.weight(to));
        if gap <= slack {
            break;
        }
        let mean = book.mean(donors.iter().chain(&receivers));
        let room = book.weight(from).saturating_sub(mean).min(mean.saturating_sub(book.weight(to)));
        // A slot that is as heavy as the gap would only turn it round.
        match book.largest_within(from, room).or_else(|| book.lightest_under(from, gap)) {
            Some(slot) => {
                book.shift(slot, from, to);
                plan.moves.insert(slot, Move { from: Some(from), to });
            }
            // What it has is too heavy to help; what it weighs is not for the others to share.
            None => drop(donors.remove(&from)),
        }
    }
    plan
}

/// The heaviest first, each to whoever has the least.
fn hand_out(
    map: &ClusterMap,
    loads: &Loads,
    slots: Vec<Slot>,
    leaving: Option<NodeId>,
) -> Result<Plan, NoServer> {
    let mut book = Book::of(map, loads);
    let receivers: BTreeSet<NodeId> = takers(map).filter(|node| Some(*node) != leaving).collect();
    let mut slots: Vec<(u64, Slot)> = slots.into_iter().map(|slot| (book.slot_weight(slot), slot)).collect();
    slots.sort_by_key(|(weight, slot)| (std::cmp::Reverse(*weight), *slot));
    let mut plan = Plan::default();
    for (_, slot) in slots {
        let to = book.lightest(&receivers).ok_or(NoServer)?;
        book.give(slot, to);
        plan.moves.insert(slot, Move { from: leaving, to });
    }
    Ok(plan)
}

/// What each server that is up carries.
struct Book {
    weights: Vec<u64>,
    shares: BTreeMap<NodeId, Share>,
}

#[derive(Default)]
struct Share {
    weight: u64,
    slots: BTreeSet<(u64, Scattered)>,
}

/// A slot, in an order in which neighbours are far apart: new directories have slots that follow each other, and should not be one server's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Scattered(u16);

impl Scattered {
    const LAST: Scattered = Scattered(u16::MAX);

    fn of(slot: Slot) -> Scattered {
        Scattered(slot.get().reverse_bits())
    }

    fn slot(self) -> Option<Slot> {
        Slot::new(self.0.reverse_bits())
    }
}

impl Book {
    fn of(map: &ClusterMap, loads: &Loads) -> Book {
        let shares = takers(map).map(|node| (node, Share::default())).collect();
        let mut book = Book { weights: loads.weights(), shares };
        for (slot, entry) in map.slots() {
            if let Some(owner) = entry.owner {
                book.give(slot, owner);
            }
        }
        book
    }

    fn slot_weight(&self, slot: Slot) -> u64 {
        self.weights[usize::from(slot.get())]
    }

    fn weight(&self, node: NodeId) -> u64 {
        self.shares.get(&node).map_or(0, |share| share.weight)
    }

    /// To one that is not up: nothing to note.
    fn give(&mut self, slot: Slot, to: NodeId) {
        let weight = self.slot_weight(slot);
        if let Some(share) = self.shares.get_mut(&to) {
            share.weight += weight;
            share.slots.insert((weight, Scattered::of(slot)));
        }
    }

    fn shift(&mut self, slot: Slot, from: NodeId, to: NodeId) {
        let weight = self.slot_weight(slot);
        if let Some(share) = self.shares.get_mut(&from)
            && share.slots.remove(&(weight, Scattered::of(slot)))
        {
            share.weight -= weight;
        }
        self.give(slot, to);
    }

    fn mean<'a>(&self, nodes: impl Iterator<Item = &'a NodeId>) -> u64 {
        let (count, sum) = nodes.fold((0, 0), |(count, sum), node| (count + 1, sum + self.weight(*node)));
        u64::checked_div(sum, count).unwrap_or(0)
    }

    /// Of those with the same weight the first.
    fn heaviest(&self, among: &BTreeSet<NodeId>) -> Option<NodeId> {
        among.iter().copied().min_by_key(|node| (std::cmp::Reverse(self.weight(*node)), *node))
    }

    fn lightest(&self, among: &BTreeSet<NodeId>) -> Option<NodeId> {
        let slots = |node| self.shares.get(&node).map_or(0, |share| share.slots.len());
        among.iter().copied().min_by_key(|node| (self.weight(*node), slots(*node), *node))
    }

    fn largest_within(&self, node: NodeId, room: u64) -> Option<Slot> {
        let share = self.shares.get(&node)?;
        let last = share.slots.range(..=(room, Scattered::LAST)).next_back();
        last.and_then(|(_, slot)| slot.slot())
    }

    fn lightest_under(&self, node: NodeId, gap: u64) -> Option<Slot> {
        let first = self.shares.get(&node)?.slots.first().filter(|(weight, _)| *weight < gap);
        first.and_then(|(_, slot)| slot.slot())
    }
}
