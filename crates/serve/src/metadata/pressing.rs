//! Data servers that run full, or that have only memory: their coolest stripes go to others, as [`cluster::pressure`] says. The data server says what it
//! would be rid of, this decides where that goes, and the destination takes it when it has room: the machinery is that of draining ([`super::moving`]).

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use cluster::{
    NodeId,
    pressure::{Held, Peers, Stand, Why, leaving},
};
use parking_lot::Mutex;
use proto::{
    control::Pressure,
    layout::file_and_stripe,
    moving::{CoolList, CoolWhy, Coolest},
    owners::runs,
};
use types::Ino;

use super::{MetadataService, moving::Cause};
use crate::{answer::No, nodes::Pressed};

/// Files at once, of all data servers.
const MOVERS: usize = 4;
/// After so long nothing more is begun of what was decided: somebody else may wait for something by then.
const ROUND: Duration = Duration::from_secs(2);

/// One file of which something leaves.
struct Order {
    ino: Ino,
    from: u64,
    why: Why,
    bytes: u64,
}

pub(super) fn stand(said: &Pressure) -> Stand {
    let Pressure { lacking, forced, spare, most, safe, .. } = *said;
    Stand { lacking, forced, spare, most, safe }
}

fn held(list: &CoolList) -> impl Iterator<Item = Held> + '_ {
    list.objects.iter().map(|one| Held {
        object: one.object,
        bytes: one.bytes,
        open: one.open,
        cool: one.cool,
        why: match one.why() {
            CoolWhy::Room => Why::Room,
            CoolWhy::Safe => Why::Safe,
            CoolWhy::Aged => Why::Aged,
        },
    })
}

impl MetadataService {
    /// Data servers that take stripes and send them away, less what is on its way to them.
    pub(super) fn peers(&self) -> Peers {
        let mut peers = Peers::default();
        for known in self.nodes.pressures() {
            peers.insert(NodeId(known.node), stand(&known.pressure), known.busy);
            let promised = self.sendings.promised(known.node, known.heard);
            peers.promise(NodeId(known.node), promised);
        }
        peers
    }

    /// The largest stripes that others could take from a node.
    pub(super) fn room_beside(&self, node: u64) -> (u64, u64) {
        self.peers().room_beside(NodeId(node))
    }

    /// Of what a data server lacks: each metadata server orders a part, of files in its own slots.
    fn share(&self, lacking: u64) -> u64 {
        if self.owners.is_none() {
            return lacking;
        }
        let map = self.nodes.map();
        let servers = map.nodes().filter(|node| map.slots_of(node.id).next().is_some()).count();
        lacking.div_ceil(servers.max(1) as u64)
    }

    /// Files and bytes that a data server sent to others since this was started.
    pub fn sent_by(&self, node: u64) -> (u64, u64) {
        self.sendings.table.lock().get(&node).map_or((0, 0), |sent| (sent.files, sent.bytes))
    }

    /// Called again and again.
    pub(super) fn tend_pressure(&self) {
        let _at_work = self.sendings.at_work.lock();
        if self.has_ended() || self.may_vouch().is_err() || !self.nodes.has_map() {
            return;
        }
        let slots = if self.owners.is_some() { self.served() } else { Vec::new() };
        if self.owners.is_some() && slots.is_empty() {
            return;
        }
        let coolest = Coolest { slots: runs(slots) };
        let began = Instant::now();
        let pressed = self.nodes.pressures().into_iter();
        let due = |one: &Pressed| {
            let Pressure { lacking, waiting, aged, .. } = one.pressure;
            let ask_again = self.sendings.table.lock().get(&one.node).and_then(|sent| sent.ask_again);
            waiting > 0 || lacking + aged > 0 && ask_again.is_none_or(|at| at <= began)
        };
        let asked: Vec<(u64, Coolest)> = pressed.filter(due).map(|one| (one.node, coolest.clone())).collect();
        let answers = self.nodes.ask_all(&asked);
        let took = began.elapsed();
        let mut orders = Vec::new();
        for ((node, _), answer) in asked.iter().zip(answers) {
            match answer {
                Ok(list) => orders.extend(self.decide(*node, &list, took)),
                Err(no) => self.stuck(*node, &no),
            }
        }
        // Who waits for somebody to answer goes first; the others in the order of their servers' choice.
        orders.sort_by_key(|order| order.why);
        self.carry_out_orders(orders, began);
    }

    /// What leaves a data server now.
    fn decide(&self, node: u64, list: &CoolList, took: Duration) -> Vec<Order> {
        let stand = list.pressure.as_ref().map(stand).unwrap_or_default();
        let stand = Stand { lacking: self.share(stand.lacking), ..stand };
        let (safe, any) = self.room_beside(node);
        let room = |why: Why| if why == Why::Room { any } else { safe };
        let file = |object: u64| file_and_stripe(object).map_or(object, |(file, _)| file);
        let may = |one: &Held| {
            let rests = Ino::from_raw(file(one.object)).is_none_or(|ino| self.sendings.rests(ino));
            !rests && one.bytes <= room(one.why)
        };
        let fitting: Vec<Held> = held(list).filter(may).collect();
        let mut seen = HashSet::new();
        let mut orders = Vec::new();
        for Held { object, bytes, why, .. } in leaving(&stand, &fitting) {
            if let Some(ino) = Ino::from_raw(file(object)).filter(|ino| seen.insert(*ino)) {
                orders.push(Order { ino, from: node, why, bytes });
            }
        }
        let mut table = self.sendings.table.lock();
        let sent = table.entry(node).or_default();
        if !orders.is_empty() {
            sent.ask_again = None;
        } else if list.objects.is_empty() {
            sent.is_stuck("", took);
        } else {
            let none = "no other data server is up and has room for it";
            let why = if sent.stuck.is_empty() { none.to_owned() } else { sent.stuck.clone() };
            sent.is_stuck(&why, took);
        }
        orders
    }

    fn stuck(&self, node: u64, no: &No) {
        let why = if no.0.detail.is_empty() { no.errno().to_string() } else { no.0.detail.clone() };
        self.sendings.table.lock().entry(node).or_default().is_stuck(&why, Duration::ZERO);
    }

    fn carry_out_orders(&self, orders: Vec<Order>, began: Instant) {
        let movers = MOVERS.min(orders.len());
        let orders = Mutex::new(orders.into_iter());
        std::thread::scope(|scope| {
            for _ in 0..movers {
                scope.spawn(|| {
                    loop {
                        let next = orders.lock().next();
                        let Some(order) = next else { return };
                        if self.has_ended() || began.elapsed() > ROUND && order.why != Why::Safe {
                            return;
                        }
                        self.carry_out_order(&order);
                    }
                });
            }
        });
    }

    fn carry_out_order(&self, order: &Order) {
        let Order { ino, from, why, bytes } = *order;
        match self.move_off(ino, from, Cause::Press(why, bytes)) {
            Ok(moved) => {
                self.sendings.wake(ino);
                tracing::debug!(from, %ino, ?why, bytes = moved, "a file was moved off a data server");
                let mut table = self.sendings.table.lock();
                let sent = table.entry(from).or_default();
                sent.has_sent(moved);
            }
            Err(no) => {
                tracing::info!(from, %ino, ?why, errno = %no.errno(), detail = no.0.detail, "a file is moved off a data server later");
                self.sendings.rest(ino);
                self.stuck(from, &no);
            }
        }
    }
}
