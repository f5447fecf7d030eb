//! A hot metadata server is relieved: a set of its hot slots goes to another one, its standby first (the paper's MDSps, section 4.5).
//!
//! - I-RELIEF-1: nothing swings: one is hot only above a bound and for several periods, who gave or got rests for a while, what is
//!   moved never makes the receiver heavier than the giver nor (but for one slot) than the mean, and a move that gains little is not made.
//!
//! A slot that alone makes its server hot stays: elsewhere it would be as hot. It takes the loads that it is told, one report for each
//! period, and no clock.

use std::collections::{BTreeMap, VecDeque};

use types::Slot;

use crate::{
    load::{Loads, takers},
    map::ClusterMap,
    node::NodeId,
    plan::{Move, Plan},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Hot is more than so many hundredths of the mean server's load.
    pub hot_percent: u64,
    /// And more than this, in the unit of [`Loads`]: a server that has room needs no relief.
    pub hot_min: u64,
    /// For so many periods, one after the other; at least 1.
    pub patience: usize,
    /// Periods without a move for who gave and who got.
    pub rest: u64,
    /// Less than so many hundredths of the giver's load are not worth a move.
    pub gain_percent: u64,
}

impl Default for Settings {
    /// For loads in requests per period of five seconds: below some thousand a second a server has room.
    fn default() -> Settings {
        Settings { hot_percent: 150, hot_min: 20_000, patience: 3, rest: 6, gain_percent: 10 }
    }
}

#[derive(Clone, Debug)]
pub struct Relief {
    settings: Settings,
    period: u64,
    /// The last ones; no more than `patience`.
    seen: VecDeque<Loads>,
    hot_for: BTreeMap<NodeId, usize>,
    rests_until: BTreeMap<NodeId, u64>,
}

impl Relief {
    pub fn new(settings: Settings) -> Relief {
        Relief {
            settings,
            period: 0,
            seen: VecDeque::new(),
            hot_for: BTreeMap::new(),
            rests_until: BTreeMap::new(),
        }
    }

    /// A period has ended. The plan is for one hot server at the most; it counts as carried out.
    pub fn observe(&mut self, map: &ClusterMap, loads: Loads) -> Plan {
        self.period += 1;
        let servers = loads.by_server(map);
        self.seen.push_back(loads);
        while self.seen.len() > self.settings.patience.max(1) {
            self.seen.pop_front();
        }
        self.rests_until.retain(|_, until| *until > self.period);
        self.count(&servers);
        let loads = Loads::mean(self.seen.iter());
        let servers = loads.by_server(map);
        let patient = |node: &NodeId| self.hot_for.get(node).is_some_and(|n| *n >= self.settings.patience);
        let mut hot: Vec<(u64, NodeId)> =
            servers.iter().filter(|(node, _)| patient(node)).map(|(node, load)| (*load, *node)).collect();
        hot.sort_by_key(|(load, node)| (std::cmp::Reverse(*load), *node));
        for (_, from) in hot {
            let plan = self.relieve(map, &loads, &servers, from);
            if let Some(to) = plan.moves.values().next().map(|one| one.to) {
                for node in [from, to] {
                    self.rests_until.insert(node, self.period + self.settings.rest);
                    self.hot_for.remove(&node);
                }
                return plan;
            }
        }
        Plan::default()
    }

    fn count(&mut self, servers: &BTreeMap<NodeId, u64>) {
        let mean = servers.values().sum::<u64>() / (servers.len() as u64).max(1);
        let Settings { hot_percent, hot_min, .. } = self.settings;
        let hot = |load: u64| load > hot_min && load * 100 > mean * hot_percent;
        self.hot_for.retain(|node, _| servers.get(node).is_some_and(|load| hot(*load)));
        for (node, _) in servers.iter().filter(|(_, load)| hot(**load)) {
            *self.hot_for.entry(*node).or_default() += 1;
        }
    }

    fn relieve(
        &self,
        map: &ClusterMap,
        loads: &Loads,
        servers: &BTreeMap<NodeId, u64>,
        from: NodeId,
    ) -> Plan {
        let load_of = |node: NodeId| servers.get(&node).copied().unwrap_or(0);
        let rested = |node: &NodeId| !self.rests_until.contains_key(node);
        let others: Vec<NodeId> = takers(map).filter(|node| *node != from && rested(node)).collect();
        let standby = map.standby_of(from).filter(|by| others.contains(by));
        let lightest = others.iter().copied().min_by_key(|node| (load_of(*node), *node));
        if !rested(&from) {
            return Plan::default();
        }
        let mean = servers.values().sum::<u64>() / (servers.len() as u64).max(1);
        let mut slots: Vec<(u64, Slot)> = map.slots_of(from).map(|slot| (loads.slot(slot), slot)).collect();
        slots.sort_by_key(|(load, slot)| (std::cmp::Reverse(*load), *slot));
        for to in standby.into_iter().chain(lightest) {
            let gap = load_of(from).saturating_sub(load_of(to));
            // Up to the mean: a receiver that loads as they are would make hot would hand the slots on.
            let room = mean.saturating_sub(load_of(to));
            let mut chosen = hottest_within(&slots, gap, room);
            if chosen.is_empty() {
                // One slot above the mean is better alone than with others that are hot.
                let fitting = slots.iter().find(|(load, _)| *load > 0 && 2 * load <= gap);
                chosen.extend(fitting.map(|(load, slot)| (*slot, *load)));
            }
            let moved: u64 = chosen.values().sum();
            if moved > 0 && moved * 100 >= load_of(from) * self.settings.gain_percent {
                let moves = chosen.into_keys().map(|slot| (slot, Move { from: Some(from), to }));
                return Plan { moves: moves.collect() };
            }
        }
        Plan::default()
    }
}

/// From slots with the hottest first, those that fit in `room` and leave the giver, who is `gap` above the receiver, not below it.
fn hottest_within(slots: &[(u64, Slot)], mut gap: u64, mut room: u64) -> BTreeMap<Slot, u64> {
    let mut chosen = BTreeMap::new();
    for (load, slot) in slots {
        if *load > 0 && 2 * load <= gap && *load <= room {
            gap -= 2 * load;
            room -= load;
            chosen.insert(*slot, *load);
        }
    }
    chosen
}
