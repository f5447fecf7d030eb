//! Goal: reads and writes of an object on two data servers have one order, whoever answers; nothing that was answered is lost as long as one who
//! counts lives; who was left behind answers nobody once another has gone on; and when the faults stop two have the same bytes. Method: three
//! data servers, a metadata server with a durable record, clients that read at either member. Messages are lost, late, repeated or stopped one
//! way; servers are paused, or killed and lose everything; devices are slow; clocks differ in time and rate. One seed is one run:
//!
//!     REPLICA_SEED=N cargo test -p cluster --test replica
//!
//! REPLICA_SEEDS=N runs the first N.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "a test")]

mod chance;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use chance::{Post, Random, Ways};
use cluster::{
    NodeId,
    replica::{
        Member, View,
        copy::{Copy, Effect, Input, Leave, Of, PIECE, Patience, Range, Sent, Source},
        keeper::Known,
        trust::Trust,
    },
    tenure::{Terms, Time},
};
use types::Ino;

const SEEDS: u64 = 400;
const NODES: u64 = 3;
const CLIENTS: u64 = 3;
const BLOCKS: usize = 6;
const FAULTS_UNTIL: Time = Duration::from_secs(12);
const CALLS_UNTIL: Time = Duration::from_secs(17);
const END: Time = Duration::from_secs(20);
const STEP: Time = Duration::from_millis(1);
const PATIENCE: Patience = Patience {
    again: Duration::from_millis(40),
    complain: Duration::from_millis(200),
    done: Duration::from_millis(10),
};
const TERMS: Terms = Terms {
    lease: Duration::from_millis(400),
    beat_every: Duration::from_millis(100),
    suspect_after: Duration::from_millis(400),
    drift_one_in: 20,
};
/// Without a word for so long a data server is believed to be gone.
const SILENCE: Time = Duration::from_millis(500);
const CALL_WAIT: Time = Duration::from_millis(900);

/// Faults, each one in so many; 0 is never.
#[derive(Clone, Copy)]
struct Weather {
    pause: u64,
    kill: u64,
    cut: u64,
    slow: u64,
}

impl Weather {
    const FINE: Weather = Weather { pause: 0, kill: 0, cut: 0, slow: 0 };

    fn of(random: &mut Random) -> Weather {
        Weather {
            pause: random.maybe(3000),
            kill: random.maybe(3000),
            cut: random.maybe(2500),
            slow: random.maybe(20),
        }
    }
}

/// Who takes part; the metadata server is nobody of these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Who {
    Keeper,
    Node(u64),
    Client(u64),
}

type Values = Vec<u64>;

#[derive(Clone, Debug)]
enum Message {
    Beat { member: Member, kept: bool },
    View(View),
    Complain(Member),
    Complete(u64),
    Asks(u64),
    GoesOn(Member, u64),
    Sent(Sent, Values),
    Done(View, u64),
    Stored { by: Member, since: u64, serial: u64 },
    Ask { by: Member, number: u64 },
    Granted { by: Member, number: u64 },
    LeftOut { by: Member, view: View },
    Knows { by: Member, view: u64 },
    AskView(u64),
    Write { call: u64, range: Range, values: Values },
    Read { call: u64, range: Range },
    Written { call: u64 },
    Bytes { call: u64, values: Values },
    Elsewhere { call: u64 },
}

struct Node {
    me: Member,
    paused: Time,
    rate: f64,
    offset: Time,
    copy: Copy,
    trust: BTreeMap<Member, Trust>,
    asked: Time,
    bytes: Values,
    /// Of writes that came, and of what was sent, by what stores them.
    payload: BTreeMap<(u64, u64), Values>,
    /// On the way to the device.
    stores: Vec<(Time, u64, Range, Values)>,
}

impl Node {
    fn new(node: u64, life: u64, random: &mut Random) -> Node {
        let me = Member { node: NodeId(node), life };
        Node {
            me,
            paused: Time::ZERO,
            rate: 1.0 + (random.below(90) as f64 - 45.0) / 1000.0,
            offset: random.millis(5000),
            copy: Copy::new(me, PATIENCE),
            trust: BTreeMap::new(),
            asked: Time::ZERO,
            bytes: vec![0; BLOCKS],
            payload: BTreeMap::new(),
            stores: Vec::new(),
        }
    }

    fn clock(&self, now: Time) -> Time {
        self.offset + now.mul_f64(self.rate)
    }

    fn trust(&mut self, of: Member) -> &mut Trust {
        self.trust.entry(of).or_insert_with(|| Trust::new(TERMS))
    }

    fn leave(&self, now: Time) -> Leave {
        let now = self.clock(now);
        let peer = self.copy.peer().and_then(|peer| self.trust.get(&peer));
        Leave {
            view: self.copy.view().map_or(0, |view| view.number),
            act: peer.is_some_and(|trust| trust.may_act(now)),
            settled: self.trust.values().all(|trust| trust.is_settled(now, Ino::ROOT)),
        }
    }
}

fn blocks((from, to): Range) -> std::ops::Range<usize> {
    let block = |at: u64| usize::try_from(at / PIECE).unwrap_or(usize::MAX).min(BLOCKS);
    block(from)..block(to)
}

fn range(blocks: &std::ops::Range<usize>) -> Range {
    (blocks.start as u64 * PIECE, blocks.end as u64 * PIECE)
}

/// What a client did, of one block.
#[derive(Clone, Debug)]
struct Done {
    writes: bool,
    value: u64,
    called: Time,
    /// `None`: it was not answered; it may be done at any time.
    answered: Option<Time>,
}

struct Call {
    number: u64,
    blocks: std::ops::Range<usize>,
    values: Option<Values>,
    called: Time,
    asked: bool,
}

#[derive(Default)]
struct Client {
    view: Option<View>,
    call: Option<Call>,
}

struct Keeper {
    view: View,
    heard: BTreeMap<u64, (Time, Member, bool)>,
    told: Time,
}

struct World {
    random: Random,
    weather: Weather,
    now: Time,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    keeper: Keeper,
    post: Post<Who, Message>,
    calls: u64,
    values: u64,
    history: Vec<Vec<Done>>,
    /// The view of an answer, with the newest first.
    answered: Option<View>,
    views: u64,
    rejoined: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let ways = Ways { loss: 12, repeat: 12, late: 10, least: STEP, most: [4, 700] };
        let post = Post::new(&mut random, ways);
        let weather = Weather::of(&mut random);
        let nodes: Vec<Node> = (0..NODES).map(|node| Node::new(node + 1, 1, &mut random)).collect();
        let view = View::first(nodes[0].me, Some(nodes[1].me));
        World {
            random,
            weather,
            now: Time::ZERO,
            nodes,
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            keeper: Keeper { view, heard: BTreeMap::new(), told: Time::ZERO },
            post,
            calls: 0,
            values: 0,
            history: vec![Vec::new(); BLOCKS],
            answered: None,
            views: 0,
            rejoined: 0,
        }
    }

    fn send(&mut self, from: Who, to: Who, message: Message) {
        // A call comes once: connections see to that.
        let is_call = matches!(message, Message::Write { .. });
        self.post.send(&mut self.random, self.now, (from, to), message, is_call);
    }

    fn run(&mut self) {
        while self.now < END {
            self.now += STEP;
            if self.now < FAULTS_UNTIL {
                self.befall();
            } else {
                self.weather = Weather::FINE;
                self.post.calm();
            }
            self.deliver();
            for node in 0..self.nodes.len() {
                self.tick(node);
            }
            self.keep();
            for client in 0..self.clients.len() {
                self.call(client);
            }
        }
    }

    fn befall(&mut self) {
        if self.random.one_in(self.weather.cut) {
            let everybody: Vec<Who> = (0..NODES).map(Who::Node).chain([Who::Keeper]).collect();
            let pick = |random: &mut Random| everybody[random.below(NODES + 1) as usize];
            let (from, to) = (pick(&mut self.random), pick(&mut self.random));
            let until = self.now + self.random.millis(2500);
            self.post.cut((from, to), until);
            if self.random.one_in(2) {
                self.post.cut((to, from), until);
            }
        }
        if self.random.one_in(self.weather.pause) {
            let node = self.random.below(NODES) as usize;
            self.nodes[node].paused = self.now + self.random.millis(2000);
        }
        if self.random.one_in(self.weather.kill) {
            self.kill();
        }
    }

    /// One of whom nobody depends on: two have all, or it has nothing that counts.
    fn kill(&mut self) {
        let node = self.random.below(NODES) as usize;
        let view = self.keeper.view;
        let lives = |member: Member| self.nodes.iter().any(|node| node.me == member);
        let me = self.nodes[node].me;
        if view.counts(me) && (view.members().count() < 2 || !view.members().all(lives)) {
            return;
        }
        self.nodes[node] = Node::new(me.node.0, me.life + 1, &mut self.random);
        self.nodes[node].paused = self.now + self.random.millis(1200);
    }

    fn deliver(&mut self) {
        while let Some((from, to, message)) = self.post.next(self.now) {
            match to {
                Who::Keeper => self.keeper_hears(message),
                Who::Client(client) => self.client_hears(client as usize, message),
                Who::Node(node) if self.nodes[node as usize].paused > self.now => {
                    // It is in the kernel's buffer.
                    let at = self.nodes[node as usize].paused + STEP;
                    self.post.put(at, (from, to), message);
                }
                Who::Node(node) => self.node_hears(node as usize, from, message),
            }
        }
    }

    fn who(member: Member) -> Who {
        Who::Node(member.node.0 - 1)
    }

    // A data server.

    fn node_hears(&mut self, node: usize, from: Who, message: Message) {
        let (now, me) = (self.now, self.nodes[node].me);
        let this = &mut self.nodes[node];
        let clock = this.clock(now);
        let input = match message {
            Message::View(view) => Input::View { view, length: BLOCKS as u64 * PIECE },
            Message::Asks(view) => Input::Asked { view },
            Message::Sent(sent, values) => {
                this.payload.entry((sent.view.since + (1 << 32), sent.serial)).or_insert(values);
                Input::Sent(sent)
            }
            Message::Done(view, done) => Input::Done { view, done },
            Message::Stored { by, since, serial } => Input::Stored { by, since, serial },
            Message::Ask { by, number } => {
                let grants = this.trust(by).grant(clock);
                let view = this.copy.view().copied();
                if grants {
                    self.send(Who::Node(node as u64), Self::who(by), Message::Granted { by: me, number });
                } else if let Some(view) = view {
                    self.send(Who::Node(node as u64), Self::who(by), Message::LeftOut { by: me, view });
                }
                return;
            }
            Message::Granted { by, number } => {
                this.trust(by).granted(number);
                return self.deadline(node);
            }
            Message::LeftOut { by, view } => {
                self.handle(node, Input::View { view, length: BLOCKS as u64 * PIECE });
                let known = self.nodes[node].copy.view().map_or(0, |view| view.number);
                self.send(Who::Node(node as u64), Self::who(by), Message::Knows { by: me, view: known });
                return;
            }
            Message::Knows { by, view } => {
                this.trust(by).knows(Ino::ROOT, view);
                return self.deadline(node);
            }
            Message::Write { call, range, values } => {
                let Who::Client(_) = from else { return };
                this.payload.insert((0, call), values);
                Input::Write { call, range }
            }
            Message::Read { call, range } => Input::Read { call, range },
            _ => return,
        };
        self.handle(node, input);
    }

    fn handle(&mut self, node: usize, input: Input) {
        self.nodes[node].copy.handle(input);
        self.go_on(node);
    }

    fn deadline(&mut self, node: usize) {
        let clock = self.nodes[node].clock(self.now);
        self.nodes[node].copy.handle_deadline(clock);
        self.go_on(node);
    }

    fn go_on(&mut self, node: usize) {
        self.carry_out(node);
        // Others may have more to copy than can be sent soon.
        let pieces = if self.random.one_in(4) { 0 } else { 4 };
        let this = &mut self.nodes[node];
        this.copy.allow_pieces(pieces);
        let leave = this.leave(self.now);
        this.copy.go_on(this.clock(self.now), leave);
        self.carry_out(node);
    }

    fn tick(&mut self, node: usize) {
        if self.nodes[node].paused > self.now {
            return;
        }
        let now = self.now;
        let (stored, rest) =
            std::mem::take(&mut self.nodes[node].stores).into_iter().partition(|s| s.0 <= now);
        self.nodes[node].stores = rest;
        for (_, number, range, values) in stored {
            self.nodes[node].bytes[blocks(range)].copy_from_slice(&values);
            self.handle(node, Input::StoredHere(number));
        }
        let clock = self.nodes[node].clock(now);
        let due = self.nodes[node].copy.next_deadline().is_some_and(|at| at <= clock);
        if due || self.random.one_in(20) {
            self.deadline(node);
        }
        if now.as_millis() % 100 == node as u128 {
            let (member, kept) = (self.nodes[node].me, self.nodes[node].copy.has_kept());
            self.send(Who::Node(node as u64), Who::Keeper, Message::Beat { member, kept });
        }
    }

    fn carry_out(&mut self, node: usize) {
        let me = self.nodes[node].me;
        let view = self.nodes[node].copy.view().copied();
        let is_out = view.is_some_and(|view| !view.has(me)) && self.nodes[node].copy.has_kept();
        if is_out && self.random.one_in(8) {
            // It makes room.
            self.nodes[node].bytes = vec![u64::MAX; BLOCKS];
            self.nodes[node].copy.handle(Input::Dropped);
        }
        let here = Who::Node(node as u64);
        while let Some(effect) = self.nodes[node].copy.poll_effect() {
            match effect {
                Effect::Send { to, sent, source } => {
                    let this = &self.nodes[node];
                    let values = match source {
                        Source::Client(call) => this.payload[&(0, call)].clone(),
                        Source::Here => this.bytes[blocks(sent.range)].to_vec(),
                    };
                    self.send(here, Self::who(to), Message::Sent(sent, values));
                }
                Effect::SayDone { to, view, done } => {
                    self.send(here, Self::who(to), Message::Done(view, done))
                }
                Effect::SayStored { to, since, serial } => {
                    self.send(here, Self::who(to), Message::Stored { by: me, since, serial });
                }
                Effect::Store { number, of, range } => {
                    let key = match of {
                        Of::Call(call) => (0, call),
                        Of::Sent { since, serial } => (since + (1 << 32), serial),
                    };
                    let values = self.nodes[node].payload[&key].clone();
                    let slow = if self.random.one_in(self.weather.slow) { 600 } else { 3 };
                    let at = self.now + self.random.millis(slow);
                    self.nodes[node].stores.push((at, number, range, values));
                }
                Effect::Written(call) => self.answer(node, call, None),
                Effect::Show(call) => self.answer(node, call, Some(())),
                Effect::AskElsewhere(call, _) => {
                    let client = Who::Client(call % CLIENTS);
                    self.send(here, client, Message::Elsewhere { call });
                }
                Effect::WantsLeave(member) => {
                    let clock = self.nodes[node].clock(self.now);
                    if clock >= self.nodes[node].asked + Duration::from_millis(30) {
                        self.nodes[node].asked = clock;
                        let number = self.nodes[node].trust(member).ask(clock);
                        self.send(here, Self::who(member), Message::Ask { by: me, number });
                    }
                }
                Effect::Complain(member) => self.send(here, Who::Keeper, Message::Complain(member)),
                Effect::GoesOn { view } => self.send(here, Who::Keeper, Message::GoesOn(me, view)),
                Effect::Complete { view } => self.send(here, Who::Keeper, Message::Complete(view)),
                Effect::LeaveOut { member, view } => {
                    self.nodes[node].trust(member).leave_out(Ino::ROOT, view);
                    let view = view_of(&self.nodes[node]);
                    self.send(here, Self::who(member), Message::LeftOut { by: me, view });
                }
            }
        }
    }

    fn answer(&mut self, node: usize, call: u64, shows: Option<()>) {
        let (me, view) = (self.nodes[node].me, view_of(&self.nodes[node]));
        if let Some(newest) = &self.answered {
            assert!(
                newest.number <= view.number || newest.counts(me),
                "I-REPLICA-3: {me:?} answers in {view:?} after {newest:?}"
            );
        }
        if self.answered.is_none_or(|newest| newest.number < view.number) {
            self.answered = Some(view);
        }
        let client = call % CLIENTS;
        let message = match shows {
            None => Message::Written { call },
            Some(()) => Message::Bytes { call, values: self.nodes[node].bytes.clone() },
        };
        self.send(Who::Node(node as u64), Who::Client(client), message);
    }

    // The metadata server.

    fn is_up(&self, member: Member) -> bool {
        let heard = self.keeper.heard.get(&member.node.0);
        heard.is_some_and(|(at, life, _)| *life == member && self.now < *at + SILENCE)
    }

    fn learn(&mut self, known: Known) {
        let view = self.keeper.view;
        if let Some(other) = view.asks(known) {
            self.send(Who::Keeper, Self::who(other), Message::Asks(view.number));
        }
        let Some(next) = view.next(known, |member| self.is_up(member)) else { return };
        assert!(next.number == view.number + 1 && next.members().count() > 0);
        if let Known::Room { kept: true, .. } = known {
            self.rejoined += 1;
        }
        self.views += 1;
        self.keeper.view = next;
        self.tell(&[view, next]);
    }

    fn tell(&mut self, views: &[View]) {
        let newest = *views.last().unwrap();
        let named: BTreeSet<Member> = views
            .iter()
            .flat_map(|view| [Some(view.primary), view.second.map(|second| second.member)])
            .flatten()
            .collect();
        for member in named {
            self.send(Who::Keeper, Self::who(member), Message::View(newest));
        }
    }

    fn keeper_hears(&mut self, message: Message) {
        match message {
            Message::Beat { member, kept } => {
                let known = self.keeper.heard.get(&member.node.0).map_or(0, |(_, member, _)| member.life);
                if member.life >= known {
                    self.keeper.heard.insert(member.node.0, (self.now, member, kept));
                }
            }
            Message::Complain(member) => self.learn(Known::Silent(member)),
            Message::GoesOn(by, view) => self.learn(Known::GoesOn { by, view }),
            Message::Complete(view) => self.learn(Known::Complete { view }),
            Message::AskView(client) => {
                let view = self.keeper.view;
                self.send(Who::Keeper, Who::Client(client), Message::View(view));
            }
            _ => (),
        }
    }

    fn keep(&mut self) {
        if self.now < self.keeper.told + Duration::from_millis(60) {
            return;
        }
        self.keeper.told = self.now;
        let view = self.keeper.view;
        self.tell(&[view]);
        let named = [Some(view.primary), view.second.map(|second| second.member)];
        for member in named.into_iter().flatten() {
            if self.now > SILENCE && !self.is_up(member) {
                self.learn(Known::Silent(member));
            }
        }
        let heard: Vec<(Member, bool)> =
            self.keeper.heard.values().map(|(_, member, kept)| (*member, *kept)).collect();
        for (member, kept) in heard {
            if self.is_up(member) && self.random.one_in(4) {
                self.learn(Known::Room { member, kept });
            }
        }
    }

    // A client.

    fn call(&mut self, client: usize) {
        let who = client as u64;
        if let Some(call) = &self.clients[client].call {
            if self.now > call.called + CALL_WAIT {
                self.give_up(client);
            } else if !call.asked && self.random.one_in(10) {
                self.ask(client);
            }
            return;
        }
        if self.now > CALLS_UNTIL || !self.random.one_in(15) {
            return;
        }
        self.calls += 1;
        let number = self.calls * CLIENTS + who;
        let first = self.random.below(BLOCKS as u64) as usize;
        let blocks = first..(first + 1 + self.random.below(2) as usize).min(BLOCKS);
        let values = self.random.one_in(2).then(|| {
            let values = blocks.clone().map(|_| {
                self.values += 1;
                self.values
            });
            values.collect::<Values>()
        });
        self.clients[client].call = Some(Call { number, blocks, values, called: self.now, asked: false });
        self.ask(client);
    }

    fn ask(&mut self, client: usize) {
        let who = Who::Client(client as u64);
        let Some(view) = self.clients[client].view else {
            return self.send(who, Who::Keeper, Message::AskView(client as u64));
        };
        let Some(call) = &mut self.clients[client].call else { return };
        call.asked = true;
        let (number, range) = (call.number, range(&call.blocks));
        match call.values.clone() {
            Some(values) => {
                self.send(who, Self::who(view.primary), Message::Write { call: number, range, values });
            }
            None => {
                let members: Vec<Member> = view.members().collect();
                let member = members[self.random.below(members.len() as u64) as usize];
                self.send(who, Self::who(member), Message::Read { call: number, range });
            }
        }
    }

    fn give_up(&mut self, client: usize) {
        self.clients[client].view = None;
        let Some(call) = self.clients[client].call.take() else { return };
        self.note(&call, call.values.as_deref(), None);
    }

    /// Reads without an answer say nothing.
    fn note(&mut self, call: &Call, values: Option<&[u64]>, answered: Option<Time>) {
        let writes = call.values.is_some();
        for (block, value) in call.blocks.clone().zip(values.unwrap_or_default()) {
            self.history[block].push(Done { writes, value: *value, called: call.called, answered });
        }
    }

    fn client_hears(&mut self, client: usize, message: Message) {
        let now = self.now;
        let is_it = |call: &Call, number: u64| call.number == number;
        match message {
            Message::View(view) => {
                let known = self.clients[client].view;
                if known.is_none_or(|known| known.number <= view.number) {
                    self.clients[client].view = Some(view);
                }
            }
            Message::Written { call } => {
                if let Some(call) = self.clients[client].call.take_if(|one| is_it(one, call)) {
                    let values = call.values.clone();
                    self.note(&call, values.as_deref(), Some(now));
                }
            }
            Message::Bytes { call, values } => {
                if let Some(call) = self.clients[client].call.take_if(|one| is_it(one, call)) {
                    let values = values[call.blocks.clone()].to_vec();
                    self.note(&call, Some(&values), Some(now));
                }
            }
            Message::Elsewhere { call } => {
                let Some(current) = self.clients[client].call.as_mut().filter(|one| is_it(one, call)) else {
                    return;
                };
                // Of a write it is not known; a read is made again.
                current.asked = false;
                let writes = current.values.is_some();
                if writes {
                    self.give_up(client);
                }
                self.send(Who::Client(client as u64), Who::Keeper, Message::AskView(client as u64));
            }
            _ => (),
        }
    }

    /// One was given up for silent, and then who remained died before the metadata server knew: two faults at once.
    fn is_lost(&self) -> bool {
        let lives = |member: Member| self.nodes.iter().any(|node| node.me == member);
        !self.keeper.view.members().any(lives)
    }

    /// By what each value was seen: values of writes are all different, so the order of a block is an order of values, and those
    /// between the first answer and the last call about one are only about that (Gibbons and Korach, 1997).
    fn check(&self) {
        for (block, history) in self.history.iter().enumerate() {
            let mut by_value: BTreeMap<u64, Vec<&Done>> = BTreeMap::new();
            for done in history {
                by_value.entry(done.value).or_default().push(done);
            }
            let mut zones = Vec::new();
            for (value, ops) in &by_value {
                let wrote = ops.iter().find(|op| op.writes);
                let written_from = if *value == 0 {
                    Time::ZERO
                } else {
                    wrote.unwrap_or_else(|| panic!("nobody wrote {value} {ops:?}")).called
                };
                if ops.iter().all(|op| op.writes) && wrote.is_some_and(|op| op.answered.is_none()) {
                    continue;
                }
                assert!(ops.iter().all(|op| op.answered.is_none_or(|at| at >= written_from)));
                let first = ops.iter().filter_map(|op| op.answered).min();
                let last = ops.iter().map(|op| op.called).max().unwrap();
                let first = if *value == 0 { Some(Time::ZERO) } else { first };
                zones.push((*value, first.unwrap_or(END * 2), last));
            }
            for (one, first, last) in &zones {
                for (other, from, to) in zones.iter().filter(|(other, ..)| other != one) {
                    let forward = first < last;
                    let overlaps = from < to && first < to && from < last;
                    let inside = from >= to && first < to && from < last;
                    assert!(
                        !forward || !(overlaps || inside),
                        "block {block}: {one} and {other} have no order: {:?} {:?}",
                        by_value[one],
                        by_value[other]
                    );
                }
            }
        }
        if self.is_lost() {
            return;
        }
        let view = self.keeper.view;
        assert_eq!(view.members().count(), 2, "a second one is made: {view:?}");
        let bytes = view.members().map(|member| &self.nodes[member.node.0 as usize - 1].bytes);
        let bytes: Vec<&Values> = bytes.collect();
        assert_eq!(bytes[0], bytes[1], "both have the same");
        let late = |done: &&Done| done.called > FAULTS_UNTIL + Duration::from_secs(3);
        let after: Vec<&Done> = self.history.iter().flatten().filter(late).collect();
        let lost: Vec<&&Done> = after.iter().filter(|done| done.answered.is_none()).collect();
        assert!(lost.is_empty(), "all is answered without faults: {lost:?}");
    }
}

fn view_of(node: &Node) -> View {
    *node.copy.view().expect("who answers knows the view")
}

fn one(seed: u64) -> World {
    let mut world = World::new(seed);
    world.run();
    world.check();
    world
}

#[test]
fn two_copies_are_one_object() {
    if let Ok(seed) = std::env::var("REPLICA_SEED") {
        one(seed.parse().unwrap());
        return;
    }
    let seeds = std::env::var("REPLICA_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    let (mut views, mut rejoined, mut calls, mut lost) = (0, 0, 0, 0);
    for seed in 1..=seeds {
        let run = std::panic::catch_unwind(|| one(seed));
        let world =
            run.unwrap_or_else(|_| panic!("again: REPLICA_SEED={seed} cargo test -p cluster --test replica"));
        (views, rejoined, lost) =
            (views + world.views, rejoined + world.rejoined, lost + u64::from(world.is_lost()));
        calls += world.history.iter().flatten().filter(|done| done.answered.is_some()).count();
    }
    println!(
        "{seeds} seeds: {calls} answers about blocks, {views} changes of the view, {rejoined} came back with what they had, {lost} lost"
    );
    assert!(lost * 100 <= seeds.max(100), "{lost} lost");
    assert!(seeds < 100 || (views > seeds * 3 && rejoined > seeds && calls > 1000));
}
