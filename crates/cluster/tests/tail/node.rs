//! A server: what a kill leaves of it, and what it does not.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use cluster::{
    NodeId,
    tail::{
        owner::{self, Owner},
        standby::Standby,
    },
    tenure::Time,
};

use super::{Op, Records, TERMS, chance::Random, database::Ask};

/// What a standby has in a file.
#[derive(Clone, Default)]
pub struct File {
    pub copy: u64,
    pub base: u64,
    pub records: BTreeMap<u64, Op>,
    /// The last of each client.
    pub ops: BTreeMap<u64, u64>,
}

impl File {
    pub fn last(&self) -> u64 {
        self.records.last_key_value().map_or(self.base, |(number, _)| *number)
    }

    pub fn known(&self) -> BTreeMap<u64, u64> {
        let mut known = self.ops.clone();
        known.extend(self.records.values().copied());
        known
    }
}

pub enum Write {
    Start { copy: u64, base: u64 },
    Keep { copy: u64, records: Records, up_to: u64 },
}

pub struct Copying {
    pub machine: Standby,
    /// By the copy and the number.
    pub incoming: BTreeMap<(u64, u64), Op>,
    pub ops: BTreeMap<u64, u64>,
    pub writes: VecDeque<(Time, Write)>,
}

pub struct Serving {
    pub machine: Owner,
    pub ready: u64,
    /// Records for the standby.
    pub kept: BTreeMap<u64, Op>,
    /// Of each client the last operation, and its record.
    pub known: BTreeMap<u64, (u64, u64)>,
    pub applying: bool,
    pub next_apply: Time,
    pub fed: Option<NodeId>,
}

pub struct Node {
    pub id: NodeId,
    pub up: bool,
    pub life: u64,
    pub paused: Time,
    pub again: Time,
    pub rate: f64,
    pub shift: Duration,
    // What a kill leaves.
    pub journal: BTreeMap<u64, Op>,
    pub last: u64,
    pub files: BTreeMap<NodeId, File>,
    // What it does not.
    pub session: Option<u64>,
    pub opened: bool,
    pub copy: u64,
    pub wants: VecDeque<Ask>,
    pub outstanding: Option<(u64, Ask, Time)>,
    pub next_renew: Time,
    pub replaying: bool,
    pub serving: Option<Serving>,
    pub copies: BTreeMap<NodeId, Copying>,
}

pub type Answers = Vec<(u64, Op)>;

impl Node {
    pub fn new(id: u64, random: &mut Random) -> Node {
        let part = random.below(2001) as f64 / 1000.0 - 1.0;
        Node {
            id: NodeId(id),
            up: false,
            life: 0,
            paused: Time::ZERO,
            again: Time::ZERO,
            rate: 1.0 + part / f64::from(TERMS.tenure.drift_one_in),
            shift: random.millis(100_000),
            journal: BTreeMap::new(),
            last: 0,
            files: BTreeMap::new(),
            session: None,
            opened: false,
            copy: 0,
            wants: VecDeque::new(),
            outstanding: None,
            next_renew: Time::ZERO,
            replaying: false,
            serving: None,
            copies: BTreeMap::new(),
        }
    }

    pub fn clock(&self, now: Time) -> Time {
        now.mul_f64(self.rate) + self.shift
    }

    pub fn kill(&mut self, again: Time) {
        (self.up, self.again) = (false, again);
        (self.session, self.opened, self.replaying) = (None, false, false);
        self.wants.clear();
        self.outstanding = None;
        self.serving = None;
        self.copies.clear();
    }

    pub fn start(&mut self, now: Time) {
        (self.up, self.life) = (true, self.life + 1);
        self.wants.push_back(Ask::Open);
        let clock = self.clock(now);
        for (of, file) in &self.files {
            let has = (file.copy, file.base, file.last());
            let machine = Standby::found(TERMS, self.id, clock, has);
            self.copies.insert(*of, Copying::new(machine));
        }
    }

    pub fn serve(&mut self, now: Time, known: BTreeMap<u64, u64>) {
        let machine = Owner::new(TERMS, self.copy, self.last, self.clock(now));
        self.serving = Some(Serving {
            machine,
            ready: self.last,
            kept: BTreeMap::new(),
            known: known.into_iter().map(|(client, n)| (client, (n, 0))).collect(),
            applying: false,
            next_apply: now,
            fed: None,
        });
    }

    /// A client asks. Answered later, in [`Node::answers`].
    pub fn asked(&mut self, now: Time, op: Op) {
        let clock = self.clock(now);
        let Some(serving) = &mut self.serving else { return };
        if serving.known.get(&op.0).is_some_and(|(n, _)| *n >= op.1) {
            return;
        }
        self.last += 1;
        self.journal.insert(self.last, op);
        serving.kept.insert(self.last, op);
        serving.known.insert(op.0, (op.1, self.last));
        serving.machine.handle(clock, owner::Input::Added);
    }

    pub fn answers(&self, now: Time) -> Answers {
        let clock = self.clock(now);
        let Some(serving) = &self.serving else { return Vec::new() };
        if !serving.machine.may_answer(clock) {
            return Vec::new();
        }
        let ready = serving.known.iter().filter(|(_, (_, number))| *number <= serving.ready);
        ready.map(|(client, (n, number))| (*number, (*client, *n))).collect()
    }

    pub fn apply(&mut self, up_to: u64) {
        let Some(serving) = &mut self.serving else { return };
        if !serving.applying {
            serving.applying = true;
            let records = self.journal.range(..=up_to).map(|(number, op)| (*number, *op)).collect();
            self.wants.push_back(Ask::Apply { up_to, records });
        }
    }
}

impl Copying {
    pub fn new(machine: Standby) -> Copying {
        Copying { machine, incoming: BTreeMap::new(), ops: BTreeMap::new(), writes: VecDeque::new() }
    }
}
