//! A run: servers, clients, the database, and what has to hold.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cluster::{NodeId, tenure::Time};

use super::{
    CLIENTS, END, FAULTS_UNTIL, NODES, Op, STEP, TERMS,
    chance::{Post, Random, Ways},
    database::{Ask, Db, DbRow, Told},
    message::Message,
    node::Node,
};

/// Faults, each one in so many; 0 is never.
pub struct Weather {
    /// A client does not hear what it is answered.
    pub unheard: u64,
    /// The database comes to a request late.
    pub slow: u64,
    pub pause: u64,
    pub kill: u64,
    pub cut: u64,
    pub database: u64,
    /// Kills of who has just been told that his copy is complete.
    pub complete: u64,
}

impl Weather {
    pub fn of(random: &mut Random) -> Weather {
        Weather {
            unheard: random.maybe(10),
            slow: random.maybe(8),
            pause: random.maybe(700),
            kill: random.maybe(900),
            cut: random.maybe(500),
            database: random.maybe(12),
            complete: 0,
        }
    }

    pub const FINE: Weather =
        Weather { unheard: 0, slow: 0, pause: 0, kill: 0, cut: 0, database: 0, complete: 0 };
}

pub struct Client {
    pub n: u64,
    pub ask_at: Time,
}

/// When it comes, whether the answer is lost, of whom, in which life and session, its number.
pub type Request = (Time, bool, NodeId, (u64, u64), u64, Ask);

pub struct World {
    pub random: Random,
    pub weather: Weather,
    pub now: Time,
    pub db: Db,
    pub nodes: BTreeMap<NodeId, Node>,
    pub post: Post<NodeId, Message>,
    pub requests: Vec<Request>,
    pub replies: Vec<(Time, NodeId, u64, u64, Told)>,
    pub clients: BTreeMap<u64, Client>,
    pub answered: BTreeSet<Op>,
    pub excused: BTreeSet<Op>,
    pub asks: u64,
    pub complete: u64,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let ways = Ways { loss: 10, repeat: 12, late: 8, least: Duration::ZERO, most: [30, 1500] };
        let post = Post::new(&mut random, ways);
        let weather = Weather::of(&mut random);
        let nodes = (1..=NODES).map(|id| (NodeId(id), Node::new(id, &mut random))).collect();
        let rows = (1..=NODES).map(|id| (NodeId(id), DbRow::default())).collect();
        World {
            random,
            weather,
            now: Time::ZERO,
            db: Db { rows, owner: NodeId(1), ops: Vec::new(), takes: 0 },
            nodes,
            post,
            requests: Vec::new(),
            replies: Vec::new(),
            clients: (1..=CLIENTS).map(|id| (id, Client { n: 1, ask_at: Time::ZERO })).collect(),
            answered: BTreeSet::new(),
            excused: BTreeSet::new(),
            asks: 0,
            complete: 0,
        }
    }

    pub fn run(&mut self) {
        while self.now < END {
            self.step();
        }
        self.finish();
    }

    pub fn step(&mut self) {
        self.now += STEP;
        if self.now >= FAULTS_UNTIL {
            self.calm();
        }
        self.faults();
        self.database();
        self.deliver();
        for id in self.ids() {
            let node = &self.nodes[&id];
            if node.up && self.now >= node.paused {
                self.tend(id);
            }
        }
        self.ask();
        self.check();
    }

    pub fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    pub fn faults(&mut self) {
        for id in self.ids() {
            let (killed, paused) =
                (self.random.one_in(self.weather.kill), self.random.one_in(self.weather.pause));
            let (down, still) = (self.random.millis(6000), self.random.millis(4000));
            let node = self.nodes.get_mut(&id).unwrap();
            if node.up && killed {
                node.kill(self.now + down);
            } else if !node.up && self.now >= node.again {
                node.paused = self.now;
                node.start(self.now);
            }
            if paused {
                node.paused = self.now + still;
            }
        }
        if self.random.one_in(self.weather.cut) {
            let way = (NodeId(1 + self.random.below(NODES)), NodeId(1 + self.random.below(NODES)));
            let until = self.now + self.random.millis(3000);
            self.post.cut(way, until);
        }
    }

    pub fn send(&mut self, from: NodeId, to: NodeId, message: &Message) {
        self.post.send(&mut self.random, self.now, (from, to), message.clone(), false);
    }

    /// Nothing befalls anybody from now on.
    pub fn calm(&mut self) {
        self.weather = Weather::FINE;
        self.post.calm();
    }

    pub fn ask(&mut self) {
        let now = self.now;
        let heard: Vec<Op> = self
            .ids()
            .into_iter()
            .filter(|id| self.nodes[id].up && now >= self.nodes[id].paused)
            .flat_map(|id| self.nodes[&id].answers(now))
            .map(|(_, op)| op)
            .collect();
        for op in heard {
            let client = self.clients.get_mut(&op.0).unwrap();
            if client.n == op.1 && now + Duration::from_millis(10) >= client.ask_at {
                // It may not hear it, and asks again.
                self.answered.insert(op);
                if self.random.one_in(self.weather.unheard) {
                    client.ask_at = now + self.random.millis(600);
                } else {
                    (client.n, client.ask_at) = (op.1 + 1, now + self.random.millis(120));
                }
            }
        }
        for id in 1..=CLIENTS {
            if now < self.clients[&id].ask_at {
                continue;
            }
            let to = if self.random.one_in(4) { NodeId(1 + self.random.below(NODES)) } else { self.db.owner };
            let n = self.clients[&id].n;
            let node = self.nodes.get_mut(&to).unwrap();
            if node.up && now >= node.paused {
                node.asked(now, (id, n));
            }
        }
    }

    /// Whoever may answer has the slots.
    pub fn check(&self) {
        for node in self.nodes.values().filter(|node| node.up && self.now >= node.paused) {
            if let Some(serving) = &node.serving
                && serving.machine.may_answer(node.clock(self.now))
            {
                assert_eq!(self.db.owner, node.id, "at {:?} two may answer", self.now);
                assert!(serving.kept.len() as u64 <= TERMS.kept_max + 1);
            }
        }
    }

    pub fn finish(&self) {
        let journal = self.nodes[&self.db.owner].journal.iter();
        let applied = self.db.rows[&self.db.owner].applied;
        let rest = journal.filter(|(number, _)| **number > applied).map(|(_, op)| *op);
        let mut at: BTreeMap<Op, usize> = BTreeMap::new();
        for (place, op) in self.db.ops.iter().copied().chain(rest).enumerate() {
            let before = at.insert(op, place);
            assert!(before.is_none() || self.excused.contains(&op), "{op:?} was carried out twice");
        }
        for op in &self.answered {
            assert!(at.contains_key(op), "{op:?} was answered and is lost");
            let next = at.get(&(op.0, op.1 + 1));
            assert!(next.is_none_or(|next| *next > at[op]), "{op:?} is after the next one");
        }
        for (id, client) in &self.clients {
            assert!(client.n > 40, "client {id} came only to its operation {}", client.n);
        }
        let serving = self.nodes[&self.db.owner].serving.as_ref().expect("nobody serves in the end");
        assert!(serving.machine.is_complete(), "no complete copy in the end");
    }
}
