//! Data servers that run full, or that have only memory: their coolest stripes go to others, as [`cluster::pressure`] says. The data server says what it
//! would be rid of, this decides where that goes, and the destination takes it when it has room: the machinery is that of draining ([`super::moving`]).

use std::{
    collections::{BTreeMap, HashMap, HashSet},
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
    moving::{CoolList, CoolWhy, Coolest, WHY_MAX},
};
use types::Ino;

use super::{MetadataService, moving::Cause};
use crate::{answer::No, nodes::Pressed};

/// Files at once, of all data servers.
const MOVERS: usize = 4;
/// A file that could not be moved is tried again later, and later each time.
const REST: Duration = Duration::from_millis(500);
const REST_MAX: Duration = Duration::from_secs(60);
/// Those that rest, at the most: who is not among them is tried again earlier.
const RESTING_MAX: usize = 65_536;
/// A data server of which nothing could be moved is asked again after this, and later each time, unless somebody waits there.
const ASK_AGAIN: Duration = Duration::from_millis(500);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(8);
/// It may have to look through all that it has, so it is not asked again for so many times as long as it took.
const ASKED_REST: u32 = 10;
/// After so long nothing more is begun of what was decided: somebody else may wait for something by then.
const ROUND: Duration = Duration::from_secs(2);

/// What was sent away of one data server, and why no more.
#[derive(Clone, Default)]
pub(super) struct Sent {
    pub files: u64,
    pub bytes: u64,
    pub stuck: String,
    ask_again: Option<Instant>,
    pause: Duration,
}

impl Sent {
    fn is_stuck(&mut self, why: &str, took: Duration) {
        self.pause = (self.pause * 2).clamp(ASK_AGAIN, ASK_AGAIN_MAX);
        self.ask_again = Some(Instant::now() + self.pause.max(took * ASKED_REST));
        self.stuck = why.chars().take(WHY_MAX / 4).collect();
    }
}

/// Bytes on their way to a node, or arrived and perhaps not in its last report.
struct Promise {
    attempt: u64,
    to: u64,
    bytes: u64,
    ended: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Sendings {
    pub table: Mutex<BTreeMap<u64, Sent>>,
    resting: Mutex<HashMap<Ino, (Instant, Duration)>>,
    /// One for each attempt under way, and those that ended since the destination's last report.
    promises: Mutex<Vec<Promise>>,
    /// Held while files are moved.
    pub at_work: Mutex<()>,
}

impl Sendings {
    pub(super) fn promise(&self, attempt: u64, to: u64, bytes: u64) {
        self.promises.lock().push(Promise { attempt, to, bytes, ended: None });
    }

    pub(super) fn ended(&self, attempt: u64, moved: bool) {
        let mut promises = self.promises.lock();
        match promises.iter_mut().find(|promise| promise.attempt == attempt) {
            Some(promise) if moved => promise.ended = Some(Instant::now()),
            Some(_) | None => promises.retain(|promise| promise.attempt != attempt),
        }
    }

    fn rest(&self, ino: Ino) {
        let now = Instant::now();
        let mut resting = self.resting.lock();
        let rest = resting.get(&ino).map_or(REST, |(_, before)| (*before * 2).min(REST_MAX));
        if resting.len() >= RESTING_MAX {
            resting.retain(|_, (until, _)| *until > now);
        }
        if resting.len() < RESTING_MAX {
            resting.insert(ino, (now + rest, rest));
        }
    }

    fn rests(&self, ino: Ino) -> bool {
        self.resting.lock().get(&ino).is_some_and(|(until, _)| *until > Instant::now())
    }
}

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
        let mut promises = self.sendings.promises.lock();
        for known in self.nodes.pressures() {
            promises.retain(|one| one.to != known.node || one.ended.is_none_or(|ended| ended >= known.heard));
            peers.insert(NodeId(known.node), stand(&known.pressure), known.busy);
        }
        promises.iter().for_each(|one| peers.promise(NodeId(one.to), one.bytes));
        peers
    }

    /// The largest stripes that others could take from a node. None, where nobody orders it.
    pub(super) fn room_beside(&self, node: u64) -> (u64, u64) {
        if self.owners.is_some() { (0, 0) } else { self.peers().room_beside(NodeId(node)) }
    }

    /// Files and bytes that a data server sent to others since this was started.
    pub fn sent_by(&self, node: u64) -> (u64, u64) {
        self.sendings.table.lock().get(&node).map_or((0, 0), |sent| (sent.files, sent.bytes))
    }

    /// Called again and again.
    pub(super) fn tend_pressure(&self) {
        let _at_work = self.sendings.at_work.lock();
        if self.has_ended() {
            return;
        }
        let began = Instant::now();
        let pressed = self.nodes.pressures().into_iter();
        let due = |one: &Pressed| {
            let Pressure { lacking, waiting, aged, .. } = one.pressure;
            let ask_again = self.sendings.table.lock().get(&one.node).and_then(|sent| sent.ask_again);
            waiting > 0 || lacking + aged > 0 && ask_again.is_none_or(|at| at <= began)
        };
        let asked: Vec<(u64, Coolest)> = pressed.filter(due).map(|one| (one.node, Coolest {})).collect();
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
                self.sendings.resting.lock().remove(&ino);
                tracing::debug!(from, %ino, ?why, bytes = moved, "a file was moved off a data server");
                let mut table = self.sendings.table.lock();
                let sent = table.entry(from).or_default();
                sent.files += 1;
                sent.bytes = sent.bytes.saturating_add(moved);
                sent.stuck.clear();
                (sent.pause, sent.ask_again) = (Duration::ZERO, None);
            }
            Err(no) => {
                tracing::info!(from, %ino, ?why, errno = %no.errno(), detail = no.0.detail, "a file is moved off a data server later");
                self.sendings.rest(ino);
                self.stuck(from, &no);
            }
        }
    }
}
