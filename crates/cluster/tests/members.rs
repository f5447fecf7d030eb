//! Goal: never may two act in one slot, (slot, epoch) never names two, every stored map has a higher epoch, and when the faults stop
//! everybody is in and every slot is served. Method: two coordinators, a store and nodes that know nothing of each other but messages,
//! which are lost, late, repeated or stopped one way; pauses, restarts, clocks that differ in time and rate. One seed is one run:
//!
//!     CLUSTER_SEED=N cargo test -p cluster --test members
#![allow(clippy::expect_used, clippy::wildcard_enum_match_arm)]

mod chance;

use std::{collections::BTreeMap, time::Duration};

use chance::{Post, Random, Ways};
use cluster::{
    Change, ClusterMap, Difference, Epoch, Loads, Node, NodeId, NodeState, SlotEpoch,
    assignment::{NoServer, assign, fail_over, release},
    members::{Effect, Input, Members},
    membership::{Answer, Membership, Saying},
    tenure::{Terms, Time},
};
use types::Slot;
use wire::handshake::Roles;

const SEEDS: u64 = 600;
const STEP: Duration = Duration::from_millis(20);
const FAULTS_UNTIL: Duration = Duration::from_secs(20);
const END: Duration = Duration::from_secs(40);
const NODES: u64 = 4;
const SLOTS_USED: usize = 6;
const TERMS: Terms = Terms {
    lease: Duration::from_millis(1000),
    beat_every: Duration::from_millis(200),
    suspect_after: Duration::from_millis(500),
    drift_one_in: 20,
};

/// Faults, each one in so many; 0 is never.
struct Weather {
    pause: u64,
    restart: u64,
    cut: u64,
    report: u64,
}

impl Weather {
    fn of(random: &mut Random) -> Weather {
        Weather {
            pause: random.maybe(250),
            restart: random.maybe(400),
            cut: random.maybe(150),
            report: random.maybe(60),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    Store,
    Coordinator(usize),
    Node(usize),
}

/// A coordinator's process.
type Holder = (usize, u64);

#[derive(Clone, Debug)]
enum Message {
    Claim { by: Holder, asked: Time },
    Claimed { by: Holder, asked: Time, map: ClusterMap },
    Taken { by: Holder },
    Store { by: Holder, map: ClusterMap },
    Stored { by: Holder, epoch: Epoch },
    Superseded { by: Holder },
    Said { saying: Saying, node: Node },
    Report { by: NodeId, about: NodeId },
    Answer(Answer),
    Publish(Difference),
    Fetch { by: usize },
    Map(ClusterMap),
}

struct Clock {
    ahead: Duration,
    /// In thousandths.
    rate: u32,
}

impl Clock {
    fn of(random: &mut Random) -> Clock {
        Clock { ahead: random.millis(100_000), rate: 955 + random.below(91) as u32 }
    }

    fn at(&self, time: Duration) -> Time {
        self.ahead + time * self.rate / 1000
    }
}

struct Process<M> {
    clock: Clock,
    paused_until: Duration,
    restarts: u64,
    machine: M,
}

struct Coordinating {
    members: Option<Members>,
    storing: Option<ClusterMap>,
    /// Claims, repeated stores and new plans.
    next: Time,
}

struct Serving {
    membership: Membership,
    map: Option<ClusterMap>,
    fetch: Time,
}

struct World {
    time: Duration,
    random: Random,
    node_terms: Terms,
    weather: Weather,
    post: Post<Place, Message>,
    store_clock: Clock,
    map: ClusterMap,
    holder: Option<(Holder, Time)>,
    coordinators: Vec<Process<Coordinating>>,
    nodes: Vec<Process<Serving>>,
    acted: BTreeMap<(Slot, SlotEpoch), (NodeId, Epoch)>,
    given_up: u64,
    refused: u64,
    log: Vec<String>,
}

fn node_of(at: usize) -> Node {
    Node {
        id: NodeId(at as u64 + 1),
        name: format!("n{at}"),
        addresses: Vec::new(),
        roles: Roles::MDS,
        labels: BTreeMap::new(),
        state: NodeState::Joining,
        joined: Epoch(0),
    }
}

fn serving(at: usize, restarts: u64, terms: Terms, now: Time) -> Serving {
    let membership = Membership::new(NodeId(at as u64 + 1), terms, restarts * 1_000_000, now);
    Serving { membership, map: None, fetch: now }
}

impl World {
    fn new(seed: u64, node_terms: Terms) -> World {
        let mut random = Random(seed);
        let ways = Ways { loss: 8, repeat: 10, late: 6, least: Duration::from_millis(1), most: [50, 3000] };
        let post = Post::new(&mut random, ways);
        let weather = Weather::of(&mut random);
        let store_clock = Clock::of(&mut random);
        let coordinators = (0..2).map(|_| Process {
            clock: Clock::of(&mut random),
            paused_until: Duration::ZERO,
            restarts: 0,
            machine: Coordinating { members: None, storing: None, next: Time::ZERO },
        });
        let coordinators = coordinators.collect();
        let nodes = (0..NODES as usize).map(|at| {
            let clock = Clock::of(&mut random);
            let machine = serving(at, 0, node_terms, clock.at(Duration::ZERO));
            Process { clock, paused_until: Duration::ZERO, restarts: 0, machine }
        });
        let nodes = nodes.collect();
        World {
            time: Duration::ZERO,
            random,
            node_terms,
            weather,
            post,
            store_clock,
            map: ClusterMap::first([1; 16]),
            holder: None,
            coordinators,
            nodes,
            acted: BTreeMap::new(),
            given_up: 0,
            refused: 0,
            log: Vec::new(),
        }
    }

    fn faulty(&self) -> bool {
        self.time < FAULTS_UNTIL
    }

    fn send(&mut self, from: Place, to: Place, message: Message) {
        self.post.send(&mut self.random, self.time, (from, to), message, false);
    }

    fn trouble(&mut self) {
        let places: Vec<Place> = (0..2)
            .map(Place::Coordinator)
            .chain((0..NODES as usize).map(Place::Node))
            .chain([Place::Store])
            .collect();
        let any = |random: &mut Random| places[random.below(places.len() as u64) as usize];
        if self.random.one_in(self.weather.cut) {
            let ends = (any(&mut self.random), any(&mut self.random));
            let until = self.time + self.random.millis(5000);
            self.post.cut(ends, until);
        }
        if self.random.one_in(self.weather.pause) {
            let until = self.time + self.random.millis(5000);
            match any(&mut self.random) {
                Place::Store => (),
                Place::Coordinator(at) => self.coordinators[at].paused_until = until,
                Place::Node(at) => self.nodes[at].paused_until = until,
            }
        }
        if self.random.one_in(self.weather.restart) {
            match any(&mut self.random) {
                Place::Store => (),
                Place::Coordinator(at) => self.end_coordinator(at),
                Place::Node(at) => {
                    let node_terms = self.node_terms;
                    let node = &mut self.nodes[at];
                    node.restarts += 1;
                    node.machine = serving(at, node.restarts, node_terms, node.clock.at(self.time));
                }
            }
        }
        if self.random.one_in(self.weather.report) {
            let (by, about) = (NodeId(1 + self.random.below(NODES)), NodeId(1 + self.random.below(NODES)));
            self.tell_coordinators(by.0 as usize - 1, &Message::Report { by, about });
        }
    }

    fn end_coordinator(&mut self, at: usize) {
        let process = &mut self.coordinators[at];
        process.restarts += 1;
        process.machine.members = None;
        process.machine.storing = None;
    }

    fn tell_coordinators(&mut self, at: usize, message: &Message) {
        for to in 0..2 {
            self.send(Place::Node(at), Place::Coordinator(to), message.clone());
        }
    }

    fn store(&mut self, message: Message) {
        let now = self.store_clock.at(self.time);
        let (by, reply) = match message {
            Message::Claim { by, asked } => {
                let free = self.holder.is_none_or(|(holder, until)| holder == by || now >= until);
                if free {
                    self.holder = Some((by, TERMS.ended_at(now)));
                }
                let map = self.map.clone();
                (by, if free { Message::Claimed { by, asked, map } } else { Message::Taken { by } })
            }
            Message::Store { by, map } => {
                let held = self.holder.is_some_and(|(holder, _)| holder == by);
                if held && map.epoch().0 == self.map.epoch().0 + 1 {
                    self.log.push(format!("{:?} {:?}", self.time, map.epoch()));
                    self.map = map.clone();
                }
                let stored = held && map == self.map;
                let epoch = map.epoch();
                (by, if stored { Message::Stored { by, epoch } } else { Message::Superseded { by } })
            }
            Message::Fetch { by } => {
                let map = self.map.clone();
                return self.send(Place::Store, Place::Node(by), Message::Map(map));
            }
            other => panic!("{other:?}"),
        };
        self.send(Place::Store, Place::Coordinator(by.0), reply);
    }

    fn coordinator(&mut self, at: usize, message: Message) {
        let (me, now) = ((at, self.coordinators[at].restarts), self.coordinators[at].clock.at(self.time));
        let machine = &mut self.coordinators[at].machine;
        let input = match message {
            Message::Claimed { by, asked, map } if by == me => {
                let until = TERMS.may_until(asked);
                if machine.members.is_none() {
                    machine.members = Some(Members::new(map, TERMS, now, until));
                }
                Input::Tenure { until }
            }
            Message::Taken { by } if by == me => return self.end_coordinator(at),
            Message::Stored { by, epoch } if by == me => {
                machine.storing.take_if(|map| map.epoch() == epoch);
                Input::Stored(epoch)
            }
            Message::Superseded { by } if by == me => {
                // A repeated store that is late is no news.
                if machine.storing.is_none() {
                    return;
                }
                Input::Superseded
            }
            Message::Said { saying, node } => Input::Said { saying, node: Some(Box::new(node)) },
            Message::Report { by, about } => Input::Report { by, about },
            _ => return,
        };
        if let Some(members) = &mut machine.members {
            members.handle(now, input);
        }
        self.effects(at);
    }

    fn effects(&mut self, at: usize) {
        while let Some(effect) = self.coordinators[at].machine.members.as_mut().and_then(Members::poll_effect)
        {
            let me = (at, self.coordinators[at].restarts);
            match effect {
                Effect::Store(map) => {
                    self.coordinators[at].machine.storing = Some(map.clone());
                    self.send(Place::Coordinator(at), Place::Store, Message::Store { by: me, map });
                }
                Effect::Publish(difference) => {
                    for node in 0..NODES as usize {
                        let message = Message::Publish(difference.clone());
                        self.send(Place::Coordinator(at), Place::Node(node), message);
                    }
                }
                Effect::Answer { to, answer } => {
                    self.refused += u64::from(matches!(answer, Answer::Refused { .. }));
                    let to = Place::Node(to.0 as usize - 1);
                    self.send(Place::Coordinator(at), to, Message::Answer(answer));
                }
                Effect::GivenUp(_) => self.given_up += 1,
                Effect::Suspected(_) | Effect::NotTaken { .. } => (),
                Effect::StepDown => self.end_coordinator(at),
            }
        }
    }

    /// The shell's part: claims, stores that got no answer, slots of those that are down or nobody's.
    fn coordinate(&mut self, at: usize) {
        let now = self.coordinators[at].clock.at(self.time);
        let me = (at, self.coordinators[at].restarts);
        if now >= self.coordinators[at].machine.next {
            self.coordinators[at].machine.next = now + TERMS.beat_every;
            self.send(Place::Coordinator(at), Place::Store, Message::Claim { by: me, asked: now });
            if let Some(map) = self.coordinators[at].machine.storing.clone() {
                self.send(Place::Coordinator(at), Place::Store, Message::Store { by: me, map });
            } else if let Some(members) = &mut self.coordinators[at].machine.members {
                let changes = divide(members.map());
                if !changes.is_empty() {
                    members.handle(now, Input::Changes(changes));
                }
            }
        }
        if let Some(members) = &mut self.coordinators[at].machine.members
            && members.next_deadline().is_some_and(|deadline| deadline <= now)
        {
            members.handle_deadline(now);
            assert!(members.next_deadline().is_none_or(|deadline| deadline > now), "no busy loop");
        }
        self.effects(at);
    }

    fn node(&mut self, at: usize, message: Message) {
        let now = self.nodes[at].clock.at(self.time);
        let Serving { membership, map, .. } = &mut self.nodes[at].machine;
        match message {
            Message::Answer(answer) => membership.handle(now, answer),
            // A gap is for the next whole map.
            Message::Publish(difference) => drop(map.as_mut().map(|map| map.apply(&difference))),
            Message::Map(whole) => {
                if map.as_ref().is_none_or(|map| map.epoch() < whole.epoch()) {
                    *map = Some(whole);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn serve(&mut self, at: usize) {
        let now = self.nodes[at].clock.at(self.time);
        if let Some(saying) = self.nodes[at].machine.membership.handle_deadline(now) {
            self.tell_coordinators(at, &Message::Said { saying, node: node_of(at) });
        }
        if now >= self.nodes[at].machine.fetch {
            self.nodes[at].machine.fetch = now + Duration::from_millis(700);
            self.send(Place::Node(at), Place::Store, Message::Fetch { by: at });
        }
    }

    fn paused(&self, place: Place) -> bool {
        match place {
            Place::Store => false,
            Place::Coordinator(at) => self.time < self.coordinators[at].paused_until,
            Place::Node(at) => self.time < self.nodes[at].paused_until,
        }
    }

    fn step(&mut self) {
        self.time += STEP;
        if self.faulty() {
            self.trouble();
        } else {
            self.post.calm();
        }
        while let Some((from, to, message)) = self.post.next(self.time) {
            if self.paused(to) {
                // It lies in a socket until the process goes on.
                self.post.put(self.time + STEP, (from, to), message);
                continue;
            }
            match to {
                Place::Store => self.store(message),
                Place::Coordinator(at) => self.coordinator(at, message),
                Place::Node(at) => self.node(at, message),
            }
        }
        for at in 0..2 {
            if !self.paused(Place::Coordinator(at)) {
                self.coordinate(at);
            }
        }
        for at in 0..NODES as usize {
            if !self.paused(Place::Node(at)) {
                self.serve(at);
            }
        }
    }

    /// Who acts in which slot at this moment.
    fn acting(&mut self) -> Result<BTreeMap<Slot, NodeId>, String> {
        let mut acting = BTreeMap::new();
        for at in 0..NODES as usize {
            let id = NodeId(at as u64 + 1);
            let now = self.nodes[at].clock.at(self.time);
            let Serving { membership, map: Some(map), .. } = &self.nodes[at].machine else { continue };
            let joined = membership.joined();
            let known = map.node(id).map(|node| node.joined);
            if self.paused(Place::Node(at)) || !membership.may_act(now) || known != joined {
                continue;
            }
            for slot in Slot::all().take(SLOTS_USED).filter(|slot| map.slot(*slot).owner == Some(id)) {
                let named = (id, joined.unwrap_or_default());
                if let Some(other) = acting.insert(slot, id) {
                    return Err(format!("{:?}: {other} and {id} act in {slot:?}", self.time));
                }
                let first = *self.acted.entry((slot, map.slot(slot).epoch)).or_insert(named);
                if first != named {
                    return Err(format!("{:?}: {first:?} and {named:?} under one epoch", self.time));
                }
            }
        }
        Ok(acting)
    }
}

/// The changes that slots need; a few slots stand for all.
fn divide(map: &ClusterMap) -> Vec<Change> {
    let mut changes = Vec::new();
    for node in map.nodes().filter(|node| node.state == NodeState::Down) {
        match fail_over(map, node.id, &Loads::none()) {
            Ok(plan) => changes.extend(plan.changes(map)),
            Err(NoServer) => changes.extend(release(map, node.id)),
        }
    }
    let free = map.slots().take(SLOTS_USED).any(|(_, entry)| entry.owner.is_none());
    if free && let Ok(mut plan) = assign(map, &Loads::none()) {
        plan.moves.retain(|slot, _| usize::from(slot.get()) < SLOTS_USED);
        changes.extend(plan.changes(map));
    }
    changes
}

fn run(seed: u64, node_terms: Terms) -> Result<World, String> {
    let mut world = World::new(seed, node_terms);
    let mut acting = BTreeMap::new();
    while world.time < END {
        world.step();
        acting = world.acting()?;
    }
    let up = world.map.nodes().filter(|node| node.state == NodeState::Up).count() as u64;
    if (up, acting.len()) != (NODES, SLOTS_USED) {
        return Err(format!("it has not settled: {up} nodes are up, {} slots are served", acting.len()));
    }
    let quiet = world.nodes.iter().all(|node| node.machine.membership.may_act(node.clock.at(world.time)));
    if quiet { Ok(world) } else { Err("it has not settled: a node may not act".into()) }
}

#[test]
fn never_two_owners_and_it_settles() {
    let only = std::env::var("CLUSTER_SEED").ok().map(|seed| seed.parse().expect("CLUSTER_SEED is a number"));
    let seeds = only.map_or(0..SEEDS, |seed: u64| seed..seed + 1);
    let (mut given_up, mut refused, mut epochs) = (0, 0, 0);
    for seed in seeds {
        match run(seed, TERMS) {
            Ok(world) => {
                given_up += world.given_up;
                refused += world.refused;
                epochs += world.map.epoch().0;
            }
            Err(why) => panic!("{why}\nagain: CLUSTER_SEED={seed} cargo test -p cluster --test members"),
        }
    }
    // Fair weather shows nothing.
    let rough = given_up > SEEDS && refused > SEEDS && epochs > 5 * SEEDS;
    assert!(only.is_some() || rough, "{given_up} given up, {refused} refused, {epochs} epochs");
}

/// Goal: a simulation that finds nothing must not be one that sees nothing. Method: nodes that trust a grant for longer than the coordinator thinks.
#[test]
fn a_broken_lease_is_seen() {
    let broken = Terms { lease: TERMS.lease * 4, ..TERMS };
    assert!((0..40).any(|seed| run(seed, broken).is_err_and(|why| why.contains(" act in "))));
}

#[test]
fn a_seed_is_one_run() {
    for seed in 0..3 {
        let logs = [0, 1].map(|_| run(seed, TERMS).map(|world| (world.log, world.post.sent, world.map)).ok());
        assert!(logs[0] == logs[1], "{seed}");
    }
}

/// Goal: the only server of a cluster may come back after it was given up with all slots, and its former self's beats are refused.
/// Found by the simulation: it waited for its slots to be taken by others, of whom there were none.
#[test]
fn regression_the_last_server_comes_back() {
    let at = Duration::from_millis;
    let mut members = Members::new(ClusterMap::first([1; 16]), TERMS, at(0), at(60_000));
    let join = |attempt| {
        let saying = Saying::Join { node: NodeId(1), attempt };
        Input::Said { saying, node: Some(Box::new(node_of(0))) }
    };
    let settle = |members: &mut Members, now| {
        let mut answers = Vec::new();
        while let Some(effect) = members.poll_effect() {
            match effect {
                Effect::Store(map) => members.handle(now, Input::Stored(map.epoch())),
                Effect::Answer { answer, .. } => answers.push(answer),
                _ => (),
            }
        }
        answers
    };
    members.handle(at(10), join(1));
    settle(&mut members, at(10));
    members.handle(at(20), Input::Changes(divide(members.map())));
    settle(&mut members, at(20));
    let joined = members.map().node(NodeId(1)).expect("in").joined;
    assert_eq!(members.map().slots_of(NodeId(1)).count(), SLOTS_USED);
    members.handle_deadline(at(5000));
    settle(&mut members, at(5000));
    assert_eq!(members.map().node(NodeId(1)).expect("known").state, NodeState::Down);
    let beat = Saying::Beat { node: NodeId(1), joined, number: 9 };
    members.handle(at(5010), Input::Said { saying: beat, node: None });
    let epoch = members.map().epoch();
    assert_eq!(settle(&mut members, at(5010)), [Answer::Refused { joined, epoch }]);
    members.handle(at(5020), join(2));
    settle(&mut members, at(5020));
    assert_eq!(members.map().node(NodeId(1)).expect("known").state, NodeState::Down, "it has slots");
    members.handle(at(5030), Input::Changes(divide(members.map())));
    settle(&mut members, at(5030));
    members.handle(at(5040), join(2));
    settle(&mut members, at(5040));
    let node = members.map().node(NodeId(1)).expect("in");
    assert!(node.state == NodeState::Up && node.joined > joined);
}
