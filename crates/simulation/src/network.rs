//! Connections between processes: the machines, handshakes and frames of `wire` over bytes that are late, held up, cut off or gone.
//!
//! What the real network does to a connection is done to these: bytes of one way keep their order, are delayed, sent again and so held
//! up, or cannot pass one way for a while; connections break; a process that is killed closes its own, a machine that loses its
//! power says nothing until it is back. Between connections nothing keeps its order. What cannot happen does not: no byte
//! comes twice, none is changed on the way.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use cluster::tenure::Time;
use wire::{
    backoff::Redial,
    connection::{Answer, Failure, Request},
    frame::{Body, Verdict},
};

use crate::{
    cast::{Broken, Place},
    chance::{Clock, Random, Weather},
    message::Message,
    side::{Came, Side},
    trace::Trace,
};

/// What an answer goes with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket {
    wire: u64,
    side: usize,
    id: u64,
}

/// For a process.
#[derive(Clone, Debug)]
pub enum Happened {
    Asked {
        from: Place,
        ticket: Ticket,
        message: Message,
    },
    Answered {
        call: u64,
        message: Message,
    },
    /// It may have been carried out.
    Failed {
        call: u64,
    },
}

struct Chunk {
    arrives: Duration,
    bytes: Vec<u8>,
}

/// One way of a connection.
#[derive(Default)]
struct Pipe {
    chunks: VecDeque<Chunk>,
    last: Duration,
    /// Nothing comes after it.
    end: Option<Duration>,
    /// The machine that wrote is gone without a word.
    dark: bool,
}

struct Wire {
    sides: [Side; 2],
    pipes: [Pipe; 2],
    opened: Duration,
}

struct Host {
    clock: Clock,
    up: bool,
}

struct Waiting {
    call: u64,
    token: u64,
    until: Time,
}

pub struct Network {
    pub now: Duration,
    pub trace: Trace,
    random: Random,
    broken: Broken,
    weather: Weather,
    hosts: BTreeMap<Place, Host>,
    wires: BTreeMap<u64, Wire>,
    wires_made: u64,
    /// The latest of who opened it and to whom.
    latest: BTreeMap<(Place, Place), u64>,
    waiting: BTreeMap<(Place, Place), VecDeque<Waiting>>,
    redials: BTreeMap<(Place, Place), Redial>,
    cuts: BTreeMap<(Place, Place), Duration>,
    messages: Vec<Message>,
    calls: u64,
    inboxes: BTreeMap<Place, VecDeque<Happened>>,
    pub frames: u64,
    pub broken_off: u64,
}

impl Network {
    pub fn new(mut random: Random, weather: Weather, broken: Broken, trace: Trace) -> Network {
        let host = |place| (place, Host { clock: Clock::of(&mut random), up: true });
        let hosts = Place::all().into_iter().map(host).collect();
        Network {
            now: Duration::ZERO,
            trace,
            random,
            broken,
            weather,
            hosts,
            wires: BTreeMap::new(),
            wires_made: 0,
            latest: BTreeMap::new(),
            waiting: BTreeMap::new(),
            redials: BTreeMap::new(),
            cuts: BTreeMap::new(),
            messages: Vec::new(),
            calls: 0,
            inboxes: BTreeMap::new(),
            frames: 0,
            broken_off: 0,
        }
    }

    /// By the process's own clock.
    pub fn local(&self, place: Place) -> Time {
        self.hosts.get(&place).map_or(self.now, |host| host.clock.at(self.now))
    }

    pub fn is_up(&self, place: Place) -> bool {
        self.hosts.get(&place).is_some_and(|host| host.up)
    }

    pub fn calm(&mut self) {
        self.weather = Weather::FAIR;
        self.cuts.clear();
    }

    // What processes do.

    /// Asks over a connection that is there or will be. It ends with an answer or a failure, at the latest after `patience`.
    pub fn ask(&mut self, from: Place, to: Place, message: Message, patience: Duration) -> u64 {
        self.calls += 1;
        let (call, token, until) = (self.calls, self.keep(message), self.local(from) + patience);
        self.waiting.entry((from, to)).or_default().push_back(Waiting { call, token, until });
        call
    }

    /// Says something over the latest connection that `to` has made to `from`. Nobody knows whether it arrives.
    pub fn push(&mut self, from: Place, to: Place, message: Message) {
        let Some(wire) = self.latest.get(&(to, from)).copied() else { return };
        let (token, now) = (self.keep(message), self.local(from));
        if let Some(wire) = self.wires.get_mut(&wire) {
            // A full queue, or one that ends: it is not said.
            let _ = wire.sides[1].ask(request(token, now + Duration::from_millis(800)), None);
        }
    }

    pub fn answer(&mut self, ticket: Ticket, message: Message) {
        let token = self.keep(message);
        if let Some(wire) = self.wires.get_mut(&ticket.wire) {
            let answer = Answer {
                verdict: Verdict::Done,
                meta: Bytes::copy_from_slice(&token.to_le_bytes()),
                body: filling(token),
                epoch: 0,
            };
            wire.sides[ticket.side].answer(ticket.id, answer);
        }
    }

    pub fn next_event(&mut self, place: Place) -> Option<Happened> {
        self.inboxes.get_mut(&place)?.pop_front()
    }

    fn keep(&mut self, message: Message) -> u64 {
        self.messages.push(message);
        self.messages.len() as u64 - 1
    }

    // What the world does.

    pub fn cut(&mut self, from: Place, to: Place, until: Duration) {
        self.trace.note(self.now, || format!("nothing passes from {from:?} to {to:?} until {until:?}"));
        self.cuts.insert((from, to), until);
    }

    /// Some connection breaks: for both ends, and what is on its way is gone; or for one of them, and the other hears of it behind what is.
    pub fn reset_one(&mut self) {
        let who = self.weather.who;
        let concerns = |wire: &Wire| who.is_none_or(|who| who.contains(&wire.sides[1].place));
        let all: Vec<u64> = self.wires.iter().filter(|(_, wire)| concerns(wire)).map(|(id, _)| *id).collect();
        let Some(wire) = self.random.any(&all).and_then(|id| self.wires.get_mut(&id)) else { return };
        let (a, b) = (wire.sides[0].place, wire.sides[1].place);
        let one = self.random.below(4) as usize;
        self.trace.note(self.now, || format!("the connection from {a:?} to {b:?} breaks ({one})"));
        for side in (0..2).filter(|side| one > 1 || *side == one) {
            if one > 1 {
                wire.pipes[side].chunks.clear();
            }
            wire.sides[side].lose();
        }
        self.broken_off += 1;
    }

    /// Its process ends: the kernel closes what it had. Without power nobody does.
    pub fn end_process(&mut self, place: Place, with_power: bool) {
        if let Some(host) = self.hosts.get_mut(&place) {
            host.up = false;
        }
        self.inboxes.remove(&place);
        self.waiting.retain(|(from, _), _| *from != place);
        for wire in self.wires.values_mut() {
            for n in 0..2 {
                if wire.sides[n].place == place && !wire.sides[n].is_gone() {
                    wire.sides[n].vanish();
                    if with_power {
                        wire.pipes[n].end = Some(wire.pipes[n].last.max(self.now));
                    } else {
                        wire.pipes[n].chunks.clear();
                        wire.pipes[n].dark = true;
                    }
                }
            }
        }
    }

    /// Its next self begins; who still believes in a connection to the last one is told so.
    pub fn begin_process(&mut self, place: Place) {
        let soon = self.now + Duration::from_millis(30);
        if let Some(host) = self.hosts.get_mut(&place) {
            host.up = true;
        }
        for wire in self.wires.values_mut() {
            for n in 0..2 {
                if wire.sides[n].place == place && wire.pipes[n].dark {
                    wire.pipes[n].end = Some(soon);
                }
            }
        }
    }

    /// What came for a process, and what its connections do by themselves.
    pub fn arrive(&mut self, place: Place) {
        let local = self.local(place);
        let mine: Vec<(u64, usize)> = self.sides_of(place);
        for (id, n) in &mine {
            self.receive(*id, *n, local);
        }
        for (id, n) in &mine {
            let Some(wire) = self.wires.get_mut(id) else { continue };
            wire.sides[*n].handle_deadline(local);
            let events = wire.sides[*n].events();
            let from = wire.sides[1 - *n].place;
            for event in events {
                self.happen(place, from, (*id, *n), event, local);
            }
        }
        self.close(place, local);
    }

    fn sides_of(&self, place: Place) -> Vec<(u64, usize)> {
        let of = |(id, wire): (&u64, &Wire)| {
            let at = (0..2).find(|n| wire.sides[*n].place == place && !wire.sides[*n].is_gone());
            at.map(|n| (*id, n))
        };
        self.wires.iter().filter_map(of).collect()
    }

    fn receive(&mut self, id: u64, n: usize, local: Time) {
        let Some(wire) = self.wires.get_mut(&id) else { return };
        let way = (wire.sides[1 - n].place, wire.sides[n].place);
        let cut = self.cuts.get(&way).is_some_and(|until| self.now < *until);
        let pipe = &mut wire.pipes[1 - n];
        while let Some(chunk) = pipe.chunks.front().filter(|chunk| chunk.arrives <= self.now && !cut) {
            wire.sides[n].read(&chunk.bytes, local);
            self.trace.mix(&chunk.bytes);
            pipe.chunks.pop_front();
        }
        if pipe.chunks.is_empty() && pipe.end.is_some_and(|end| end <= self.now && !cut) {
            wire.sides[n].lose();
        }
    }

    fn happen(&mut self, place: Place, from: Place, (wire, side): (u64, usize), came: Came, local: Time) {
        let happened = match came {
            Came::Open => {
                if side == 1 && self.broken != Broken::OldConnections {
                    self.supersede(from, place, wire);
                }
                return;
            }
            Came::Asked { id, meta, body } => {
                let message = self.message(&meta, &body);
                Happened::Asked { from, ticket: Ticket { wire, side, id }, message }
            }
            Came::Answered { call, meta, body } => {
                if let Some(redial) = self.redials.get_mut(&(place, from)) {
                    redial.worked();
                }
                let message = self.message(&meta, &body);
                let Some(call) = call else { return };
                Happened::Answered { call, message }
            }
            Came::Failed { call: None, .. } => return,
            // It was not begun: it may be made again within its time.
            Came::Failed { call: Some(call), failure: Failure::NotSent(_) }
            | Came::Failed { call: Some(call), failure: Failure::Unknown(_) } => Happened::Failed { call },
            Came::Over => {
                let random = self.random.next();
                if side == 0 {
                    self.redial(place, from).failed(local, random);
                }
                return;
            }
        };
        if self.is_up(place) {
            self.inboxes.entry(place).or_default().push_back(happened);
        }
    }

    /// A process that has made a new connection has given up the old ones: what still comes over them is of nobody.
    fn supersede(&mut self, from: Place, to: Place, newest: u64) {
        for (id, wire) in &mut self.wires {
            if *id < newest && wire.sides[0].place == from && wire.sides[1].place == to {
                wire.sides[1].lose();
            }
        }
    }

    fn message(&mut self, meta: &[u8], body: &[u8]) -> Message {
        let token = meta.first_chunk::<8>().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
        assert_eq!(filling(token).bytes(), body, "the body of {token} is whole");
        self.frames += 1;
        self.messages[token as usize].clone()
    }

    fn redial(&mut self, from: Place, to: Place) -> &mut Redial {
        let new = || Redial::new(Duration::from_millis(20), Duration::from_millis(400));
        self.redials.entry((from, to)).or_insert_with(new)
    }

    /// Ends of connections that are over say so to the other end.
    fn close(&mut self, place: Place, local: Time) {
        for wire in self.wires.values_mut() {
            for n in 0..2 {
                if wire.sides[n].place == place && wire.sides[n].is_gone() && wire.pipes[n].end.is_none() {
                    wire.pipes[n].end = Some(wire.pipes[n].last.max(self.now) + Duration::from_millis(5));
                }
            }
            let slow = self.now.saturating_sub(wire.opened) > Duration::from_millis(900);
            for side in wire.sides.iter_mut().filter(|side| side.place == place && side.is_greeting() && slow)
            {
                side.lose();
            }
        }
        self.wires.retain(|_, wire| !wire.sides.iter().all(Side::is_gone));
        let _ = local;
    }

    /// Connects where something is to be said, hands over what waits, and writes.
    pub fn flush(&mut self, place: Place) {
        let local = self.local(place);
        let pairs: Vec<(Place, Place)> =
            self.waiting.keys().filter(|pair| pair.0 == place).copied().collect();
        for pair in pairs {
            self.hand_over(pair, local);
        }
        for (id, n) in self.sides_of(place) {
            self.write(id, n, local);
        }
    }

    fn hand_over(&mut self, pair: (Place, Place), local: Time) {
        let Some(mut queue) = self.waiting.remove(&pair) else { return };
        let (late, on_time): (VecDeque<_>, VecDeque<_>) = queue.drain(..).partition(|w| w.until <= local);
        for waiting in late {
            self.inboxes.entry(pair.0).or_default().push_back(Happened::Failed { call: waiting.call });
        }
        if on_time.is_empty() {
            return;
        }
        let known = self.latest.get(&pair).and_then(|id| self.wires.get_mut(id));
        let wire = known.filter(|wire| !wire.sides[0].is_gone() && !wire.sides[0].is_ending());
        match wire {
            None => self.dial(pair, local),
            Some(wire) if wire.sides[0].is_greeting() => (),
            Some(wire) => {
                let mut left = VecDeque::new();
                for waiting in on_time {
                    let asked = wire.sides[0].ask(request(waiting.token, waiting.until), Some(waiting.call));
                    if asked.is_err() {
                        left.push_back(waiting);
                    }
                }
                if !left.is_empty() {
                    self.waiting.insert(pair, left);
                }
                return;
            }
        }
        self.waiting.insert(pair, on_time);
    }

    fn dial(&mut self, pair: (Place, Place), local: Time) {
        if self.redial(pair.0, pair.1).not_before() > local {
            return;
        }
        if !self.is_up(pair.1) {
            let random = self.random.next();
            self.redial(pair.0, pair.1).failed(local, random);
            return;
        }
        self.wires_made += 1;
        let nonce = |random: &mut Random| {
            let mut nonce = [0; 32];
            nonce.chunks_mut(8).for_each(|part| part.copy_from_slice(&random.next().to_le_bytes()));
            nonce
        };
        let theirs = self.local(pair.1);
        let (a, b) = (nonce(&mut self.random), nonce(&mut self.random));
        let sides = [Side::initiate(pair, a, local), Side::respond(pair, b, theirs)];
        let wire = Wire { sides, pipes: [Pipe::default(), Pipe::default()], opened: self.now };
        self.wires.insert(self.wires_made, wire);
        self.latest.insert(pair, self.wires_made);
    }

    fn write(&mut self, id: u64, n: usize, local: Time) {
        let Some(wire) = self.wires.get_mut(&id) else { return };
        let mut bytes = wire.sides[n].output(local);
        if wire.sides[1 - n].is_gone() {
            return;
        }
        let concerned = self.weather.who.is_none_or(|who| who.contains(&wire.sides[1].place));
        let pipe = &mut wire.pipes[n];
        while !bytes.is_empty() {
            let all = bytes.len() as u64;
            let some = if self.random.one_in(3) { 1 + self.random.below(all) } else { all };
            let rest = bytes.split_off(some as usize);
            let lost = self.random.one_in(self.weather.loss) && concerned;
            let slow = if lost { 2500 } else { 12 };
            pipe.last = pipe.last.max(self.now + self.random.millis(slow));
            pipe.chunks.push_back(Chunk { arrives: pipe.last, bytes });
            bytes = rest;
        }
    }
}

fn request(token: u64, deadline: Time) -> Request {
    Request {
        method: 5,
        meta: Bytes::copy_from_slice(&token.to_le_bytes()),
        body: filling(token),
        answer_bytes_max: 400,
        deadline,
        epoch: 0,
        trace: token,
        job: 0,
    }
}

/// Bytes of no meaning, so that frames come in pieces.
fn filling(token: u64) -> Body {
    Body::new(vec![token as u8; (token * 37 % 400) as usize])
}
