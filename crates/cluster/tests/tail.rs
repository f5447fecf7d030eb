//! Goal: whoever goes on in a dead metadata server's place has all that it answered, and carries nothing out twice; what it did not answer
//! does not come later; no two answer at a time; and when the faults stop everything is answered. Method: three servers, clients that
//! ask again until they are answered, a database whose answers are lost, files that a kill leaves as they are. Messages are lost, late, repeated
//! or stopped one way; servers are killed, paused, and started again; clocks differ in time and rate. One seed is one run:
//!
//!     TAIL_SEED=N cargo test -p cluster --test tail
//!
//! TAIL_SEEDS=N runs the first N.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "a test")]

mod chance;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use chance::Random;
use cluster::{
    NodeId,
    tail::{
        Terms,
        owner::{self, Owner},
        row::{Change, Refused, Row},
        standby::{self, Standby},
    },
    tenure::{self, Time},
};

const SEEDS: u64 = 400;
const STEP: Duration = Duration::from_millis(10);
const FAULTS_UNTIL: Duration = Duration::from_secs(25);
const END: Duration = Duration::from_secs(60);
/// In the database.
const LEASE: Duration = Duration::from_millis(1500);
const ANSWER_WAIT: Duration = Duration::from_millis(400);
const CLIENTS: u64 = 3;
const NODES: u64 = 3;
const TERMS: Terms = Terms {
    tenure: tenure::Terms {
        lease: Duration::from_millis(800),
        beat_every: Duration::from_millis(100),
        suspect_after: Duration::from_millis(800),
        drift_one_in: 20,
    },
    patience: Duration::from_millis(500),
    again: Duration::from_millis(200),
    pause: Duration::from_millis(300),
    window: 8,
    kept_max: 200,
};

/// A client's operation of this number.
type Op = (u64, u64);
type Records = Vec<(u64, Op)>;

/// Faults, each one in so many; 0 is never.
struct Weather {
    loss: u64,
    repeat: u64,
    late: u64,
    pause: u64,
    kill: u64,
    cut: u64,
    database: u64,
    /// Kills of who has just been told that his copy is complete.
    complete: u64,
}

impl Weather {
    fn of(random: &mut Random) -> Weather {
        let mut maybe = |often: u64| if random.one_in(2) { often } else { 0 };
        Weather {
            loss: maybe(10),
            repeat: maybe(12),
            late: maybe(8),
            pause: maybe(700),
            kill: maybe(900),
            cut: maybe(500),
            database: maybe(12),
            complete: 0,
        }
    }

    const FINE: Weather =
        Weather { loss: 0, repeat: 0, late: 0, pause: 0, kill: 0, cut: 0, database: 0, complete: 0 };
}

/// What a server has in the database.
#[derive(Default)]
struct DbRow {
    life: u64,
    session: u64,
    until: Time,
    tail: Row<NodeId>,
    applied: u64,
    /// By whom, and with which copy.
    taken: BTreeSet<(NodeId, u64)>,
    /// It was, and was not told yet.
    untold: bool,
}

struct Db {
    rows: BTreeMap<NodeId, DbRow>,
    /// Whose the slots are.
    owner: NodeId,
    ops: Vec<Op>,
    takes: u64,
}

#[derive(Clone, Debug)]
enum Ask {
    /// By a server that starts.
    Open,
    Claim,
    Renew,
    Write {
        write: u64,
        change: Change<NodeId>,
    },
    Apply {
        up_to: u64,
        records: Records,
    },
    Look {
        of: NodeId,
    },
    Take {
        from: NodeId,
        copy: u64,
        up_to: u64,
        records: Records,
    },
}

#[derive(Clone, Debug)]
enum Told {
    Opened {
        session: u64,
        copy: u64,
        applied: u64,
        owner: bool,
        taken: bool,
    },
    Claimed(u64),
    Done,
    /// The session is not the last one.
    NotDone,
    Fenced,
    Seen {
        row: Row<NodeId>,
        ended: bool,
    },
    Took(Result<(), Refused>),
}

impl Db {
    fn carry_out(&mut self, now: Time, me: NodeId, (life, session): (u64, u64), ask: &Ask) -> Told {
        let owner = self.owner == me;
        if let Ask::Look { of } = ask {
            let row = &self.rows[of];
            return Told::Seen { row: row.tail.clone(), ended: now >= row.until };
        }
        let row = self.rows.get_mut(&me).unwrap();
        if let Ask::Open = ask {
            let taken = std::mem::take(&mut row.untold);
            (row.life, row.session, row.until) = (life, row.session + 1, now + LEASE);
            let (copy, applied) = (row.tail.copy, row.applied);
            return Told::Opened { session: row.session, copy, applied, owner, taken };
        }
        if row.life != life {
            return Told::Fenced;
        }
        if let Ask::Claim = ask {
            (row.session, row.until) = (row.session + 1, now + LEASE);
            return Told::Claimed(row.session);
        }
        if row.session != session {
            return Told::NotDone;
        }
        match ask {
            Ask::Renew => row.until = now + LEASE,
            Ask::Write { change, .. } => match row.tail.change(change) {
                Ok(next) => row.tail = next,
                Err(_) => return Told::NotDone,
            },
            Ask::Apply { up_to, records } => {
                if !owner {
                    return Told::Fenced;
                }
                row.until = now + LEASE;
                let new = records.iter().filter(|(number, _)| *number > row.applied);
                self.ops.extend(new.map(|(_, op)| *op));
                row.applied = row.applied.max(*up_to);
            }
            Ask::Take { from, copy, up_to, records } => {
                return Told::Took(self.take(now, (me, *from), *copy, (*up_to, records)));
            }
            other => unreachable!("{other:?}"),
        }
        Told::Done
    }

    fn take(
        &mut self,
        now: Time,
        (me, from): (NodeId, NodeId),
        copy: u64,
        (up_to, records): (u64, &Records),
    ) -> Result<(), Refused> {
        let row = self.rows.get_mut(&from).unwrap();
        if row.taken.contains(&(me, copy)) {
            return Ok(());
        }
        row.tail = row.tail.take_over(&me, copy, now >= row.until)?;
        assert_eq!(self.owner, from, "a copy of what is another's is complete");
        (row.life, row.untold) = (0, true);
        row.taken.insert((me, copy));
        let new = records.iter().filter(|(number, _)| *number > row.applied);
        for (next, (number, op)) in (row.applied + 1..).zip(new) {
            assert_eq!(*number, next, "a hole in what is taken over");
            self.ops.push(*op);
        }
        row.applied = row.applied.max(up_to);
        (self.owner, self.takes) = (me, self.takes + 1);
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Message {
    Begin { copy: u64, beat: u64, base: u64, ops: BTreeMap<u64, u64> },
    Send { copy: u64, beat: u64, records: Records, from: u64, up_to: u64, applied: u64 },
    Stored { copy: u64, beat: u64, up_to: u64 },
    Refused { copy: u64 },
}

/// What a standby has in a file.
#[derive(Clone, Default)]
struct File {
    copy: u64,
    base: u64,
    records: BTreeMap<u64, Op>,
    /// The last of each client.
    ops: BTreeMap<u64, u64>,
}

impl File {
    fn last(&self) -> u64 {
        self.records.last_key_value().map_or(self.base, |(number, _)| *number)
    }

    fn known(&self) -> BTreeMap<u64, u64> {
        let mut known = self.ops.clone();
        known.extend(self.records.values().copied());
        known
    }
}

enum Write {
    Start { copy: u64, base: u64 },
    Keep { copy: u64, records: Records, up_to: u64 },
}

struct Copying {
    machine: Standby,
    /// By the copy and the number.
    incoming: BTreeMap<(u64, u64), Op>,
    ops: BTreeMap<u64, u64>,
    writes: VecDeque<(Time, Write)>,
}

struct Serving {
    machine: Owner,
    ready: u64,
    /// Records for the standby.
    kept: BTreeMap<u64, Op>,
    /// Of each client the last operation, and its record.
    known: BTreeMap<u64, (u64, u64)>,
    applying: bool,
    next_apply: Time,
    fed: Option<NodeId>,
}

struct Node {
    id: NodeId,
    up: bool,
    life: u64,
    paused: Time,
    again: Time,
    rate: f64,
    shift: Duration,
    // What a kill leaves.
    journal: BTreeMap<u64, Op>,
    last: u64,
    files: BTreeMap<NodeId, File>,
    // What it does not.
    session: Option<u64>,
    opened: bool,
    copy: u64,
    wants: VecDeque<Ask>,
    outstanding: Option<(u64, Ask, Time)>,
    next_renew: Time,
    replaying: bool,
    serving: Option<Serving>,
    copies: BTreeMap<NodeId, Copying>,
}

struct Client {
    n: u64,
    ask_at: Time,
}

type Answers = Vec<(u64, Op)>;
/// When it comes, whether the answer is lost, of whom, in which life and session, its number.
type Request = (Time, bool, NodeId, (u64, u64), u64, Ask);

struct World {
    random: Random,
    weather: Weather,
    now: Time,
    db: Db,
    nodes: BTreeMap<NodeId, Node>,
    messages: Vec<(Time, NodeId, NodeId, Message)>,
    requests: Vec<Request>,
    replies: Vec<(Time, NodeId, u64, u64, Told)>,
    cuts: BTreeMap<(NodeId, NodeId), Time>,
    clients: BTreeMap<u64, Client>,
    answered: BTreeSet<Op>,
    excused: BTreeSet<Op>,
    asks: u64,
    complete: u64,
}

impl Node {
    fn new(id: u64, random: &mut Random) -> Node {
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

    fn clock(&self, now: Time) -> Time {
        now.mul_f64(self.rate) + self.shift
    }

    fn kill(&mut self, again: Time) {
        (self.up, self.again) = (false, again);
        (self.session, self.opened, self.replaying) = (None, false, false);
        self.wants.clear();
        self.outstanding = None;
        self.serving = None;
        self.copies.clear();
    }

    fn start(&mut self, now: Time) {
        (self.up, self.life) = (true, self.life + 1);
        self.wants.push_back(Ask::Open);
        let clock = self.clock(now);
        for (of, file) in &self.files {
            let has = (file.copy, file.base, file.last());
            let machine = Standby::found(TERMS, self.id, clock, has);
            self.copies.insert(*of, Copying::new(machine));
        }
    }

    fn serve(&mut self, now: Time, known: BTreeMap<u64, u64>) {
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
    fn asked(&mut self, now: Time, op: Op) {
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

    fn answers(&self, now: Time) -> Answers {
        let clock = self.clock(now);
        let Some(serving) = &self.serving else { return Vec::new() };
        if !serving.machine.may_answer(clock) {
            return Vec::new();
        }
        let ready = serving.known.iter().filter(|(_, (_, number))| *number <= serving.ready);
        ready.map(|(client, (n, number))| (*number, (*client, *n))).collect()
    }

    fn apply(&mut self, up_to: u64) {
        let Some(serving) = &mut self.serving else { return };
        if !serving.applying {
            serving.applying = true;
            let records = self.journal.range(..=up_to).map(|(number, op)| (*number, *op)).collect();
            self.wants.push_back(Ask::Apply { up_to, records });
        }
    }
}

impl Copying {
    fn new(machine: Standby) -> Copying {
        Copying { machine, incoming: BTreeMap::new(), ops: BTreeMap::new(), writes: VecDeque::new() }
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let weather = Weather::of(&mut random);
        let nodes = (1..=NODES).map(|id| (NodeId(id), Node::new(id, &mut random))).collect();
        let rows = (1..=NODES).map(|id| (NodeId(id), DbRow::default())).collect();
        World {
            random,
            weather,
            now: Time::ZERO,
            db: Db { rows, owner: NodeId(1), ops: Vec::new(), takes: 0 },
            nodes,
            messages: Vec::new(),
            requests: Vec::new(),
            replies: Vec::new(),
            cuts: BTreeMap::new(),
            clients: (1..=CLIENTS).map(|id| (id, Client { n: 1, ask_at: Time::ZERO })).collect(),
            answered: BTreeSet::new(),
            excused: BTreeSet::new(),
            asks: 0,
            complete: 0,
        }
    }

    fn run(&mut self) {
        while self.now < END {
            self.step();
        }
        self.finish();
    }

    fn step(&mut self) {
        self.now += STEP;
        if self.now >= FAULTS_UNTIL {
            self.weather = Weather::FINE;
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

    fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    fn faults(&mut self) {
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
            self.cuts.insert(way, self.now + self.random.millis(3000));
        }
    }

    fn send(&mut self, from: NodeId, to: NodeId, message: &Message) {
        let cut = self.cuts.get(&(from, to)).is_some_and(|until| self.now < *until);
        if cut || self.random.one_in(self.weather.loss) {
            return;
        }
        let copies = 1 + u64::from(self.random.one_in(self.weather.repeat));
        for _ in 0..copies {
            let late = if self.random.one_in(self.weather.late) { 1500 } else { 30 };
            let at = self.now + self.random.millis(late);
            self.messages.push((at, from, to, message.clone()));
        }
    }

    /// What came to the database, and what it said.
    fn database(&mut self) {
        let now = self.now;
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.requests).into_iter().partition(|request| request.0 <= now);
        self.requests = later;
        for (_, lost, me, of, id, ask) in due {
            let told = self.db.carry_out(now, me, of, &ask);
            if !lost {
                self.replies.push((now + self.random.millis(40), me, of.0, id, told));
            }
        }
        let running = |id: &NodeId| self.nodes[id].up && now >= self.nodes[id].paused;
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.replies).into_iter().partition(|(at, to, ..)| *at <= now && running(to));
        self.replies = later;
        for (_, to, life, id, told) in due {
            let node = self.nodes.get_mut(&to).unwrap();
            if node.life != life || node.outstanding.as_ref().is_none_or(|(known, ..)| *known != id) {
                continue;
            }
            let (_, ask, _) = node.outstanding.take().unwrap();
            self.told(to, ask, told);
        }
    }

    fn told(&mut self, id: NodeId, ask: Ask, told: Told) {
        let outstanding: Vec<Op> = self.clients.iter().map(|(client, c)| (*client, c.n)).collect();
        let now = self.now;
        let node = self.nodes.get_mut(&id).unwrap();
        let clock = node.clock(now);
        match (ask, told) {
            (Ask::Open, Told::Opened { session, copy, applied, owner, taken }) => {
                (node.session, node.opened, node.copy) = (Some(session), true, copy);
                if taken || !owner {
                    // Another one has gone on: what is in the journal and not there was never answered.
                    node.journal.clear();
                    node.last = node.last.max(applied);
                } else {
                    node.replaying = true;
                    self.excused.extend(outstanding);
                    let records = node.journal.iter().map(|(number, op)| (*number, *op)).collect();
                    node.wants.push_back(Ask::Apply { up_to: node.last, records });
                }
            }
            (_, Told::Fenced) => {
                if let Some(serving) = &mut node.serving {
                    serving.machine.handle(clock, owner::Input::Fenced);
                    assert!(!serving.machine.may_answer(clock));
                }
                let again = now + self.random.millis(300);
                node.kill(again);
            }
            (Ask::Claim, Told::Claimed(session)) => node.session = Some(session),
            (ask, Told::NotDone) => {
                node.session = None;
                if let Ask::Apply { .. } = ask {
                    node.wants.push_front(ask);
                }
            }
            (Ask::Renew, Told::Done) => {}
            (Ask::Write { write, .. }, Told::Done) => {
                if let Some(serving) = &mut node.serving {
                    serving.machine.handle(clock, owner::Input::Written { write });
                }
            }
            (Ask::Apply { up_to, .. }, Told::Done) => {
                node.journal = node.journal.split_off(&(up_to + 1));
                if std::mem::take(&mut node.replaying) {
                    // Of another's that was taken over before this start.
                    let known = node.files.values().flat_map(File::known).collect();
                    node.serve(now, known);
                } else if let Some(serving) = &mut node.serving {
                    serving.applying = false;
                    serving.machine.handle(clock, owner::Input::Applied { up_to });
                }
            }
            (Ask::Look { of }, Told::Seen { row, ended }) => {
                if let Some(copying) = node.copies.get_mut(&of) {
                    copying.machine.handle(clock, standby::Input::Seen { row, ended });
                }
            }
            (Ask::Take { from, .. }, Told::Took(outcome)) => {
                if let Some(copying) = node.copies.get_mut(&from) {
                    copying.machine.handle(clock, standby::Input::Took(outcome));
                }
            }
            (ask, told) => unreachable!("{ask:?} {told:?}"),
        }
    }

    fn deliver(&mut self) {
        let now = self.now;
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.messages)
            .into_iter()
            .partition(|(at, _, to, _)| *at <= now && now >= self.nodes[to].paused);
        self.messages = later;
        for (_, from, to, message) in due {
            let node = self.nodes.get_mut(&to).unwrap();
            if !node.up || !node.opened {
                continue;
            }
            let clock = node.clock(now);
            match message {
                Message::Stored { copy, beat, up_to } => {
                    let input = owner::Input::Stored { by: from, copy, beat, up_to };
                    node.serving.iter_mut().for_each(|s| s.machine.handle(clock, input.clone()));
                }
                Message::Refused { copy } => {
                    let input = owner::Input::Refused { by: from, copy };
                    node.serving.iter_mut().for_each(|s| s.machine.handle(clock, input.clone()));
                }
                Message::Begin { copy, beat, base, ops } => {
                    let me = node.id;
                    let new = || Copying::new(Standby::new(TERMS, me, clock));
                    let copying = node.copies.entry(from).or_insert_with(new);
                    let before = copying.machine.has().0;
                    copying.machine.handle(clock, standby::Input::Begun { copy, beat, base });
                    if copying.machine.has().0 != before {
                        copying.ops = ops;
                    }
                }
                Message::Send { copy, beat, records, from: first, up_to, applied } => {
                    let me = node.id;
                    let new = || Copying::new(Standby::new(TERMS, me, clock));
                    let copying = node.copies.entry(from).or_insert_with(new);
                    if copy == copying.machine.has().0 {
                        copying.incoming.extend(records.into_iter().map(|(n, op)| ((copy, n), op)));
                    }
                    let came = standby::Input::Came { copy, beat, from: first, up_to, applied };
                    copying.machine.handle(clock, came);
                }
            }
        }
    }

    fn tend(&mut self, id: NodeId) {
        self.tend_database(id);
        let standby = self.standby_for(id);
        let now = self.now;
        let node = self.nodes.get_mut(&id).unwrap();
        let clock = node.clock(now);
        if let Some(serving) = &mut node.serving {
            if serving.fed != standby {
                serving.fed = standby;
                serving.machine.handle(clock, owner::Input::Standby(standby));
            }
            if serving.machine.next_deadline().is_some_and(|at| clock >= at) {
                serving.machine.handle_deadline(clock);
            }
            let may = serving.machine.may_apply();
            if now >= serving.next_apply {
                serving.next_apply = now + Duration::from_millis(400);
                node.apply(may);
            }
        }
        for copying in node.copies.values_mut() {
            if copying.machine.next_deadline().is_some_and(|at| clock >= at) {
                copying.machine.handle_deadline(clock);
            }
        }
        self.write_files(id);
        self.owner_effects(id);
        if let Some(serving) = &mut self.nodes.get_mut(&id).unwrap().serving {
            // All that was to be sent is.
            serving.kept = serving.kept.split_off(&(serving.machine.kept_above() + 1));
        }
        self.standby_effects(id);
    }

    /// The one that it has as long as that is up; it is heard some time later if not.
    fn standby_for(&mut self, id: NodeId) -> Option<NodeId> {
        let serving = self.nodes[&id].serving.as_ref()?;
        let is_up = |node: &NodeId| self.nodes[node].up && self.now >= self.nodes[node].paused;
        match serving.fed {
            Some(by) if is_up(&by) || !self.random.one_in(100) => Some(by),
            _ => self.ids().into_iter().filter(|node| *node != id).find(is_up),
        }
    }

    fn tend_database(&mut self, id: NodeId) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).unwrap();
        if node.opened && now >= node.next_renew {
            node.next_renew = now + LEASE / 3;
            node.wants.push_back(Ask::Renew);
        }
        if let Some((_, ask, _)) = node.outstanding.take_if(|(.., until)| now >= *until) {
            // Nothing is known of it. What machines want they say again.
            node.session = None;
            if let Ask::Open | Ask::Apply { .. } = ask {
                node.wants.push_front(ask);
            }
        }
        if node.outstanding.is_some() || node.wants.is_empty() {
            return;
        }
        let ask =
            if node.opened && node.session.is_none() { Ask::Claim } else { node.wants.pop_front().unwrap() };
        self.asks += 1;
        node.outstanding = Some((self.asks, ask.clone(), now + ANSWER_WAIT));
        let of = (node.life, node.session.unwrap_or(0));
        let lost = self.random.one_in(self.weather.database);
        // Some are carried out long after nobody waits for them any more.
        let late = if self.random.one_in(self.weather.late) { 1500 } else { 40 };
        let at = now + self.random.millis(late);
        if !(lost && self.random.one_in(2)) {
            self.requests.push((at, lost, id, of, self.asks, ask));
        }
    }

    fn write_files(&mut self, id: NodeId) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).unwrap();
        let clock = node.clock(now);
        for (of, copying) in &mut node.copies {
            while copying.writes.front().is_some_and(|(at, _)| now >= *at) {
                let (_, write) = copying.writes.pop_front().unwrap();
                let file = node.files.entry(*of).or_default();
                let kept = match write {
                    Write::Start { copy, base } => {
                        let ops = copying.ops.clone();
                        *file = File { copy, base, records: BTreeMap::new(), ops };
                        standby::Input::Kept { copy, up_to: base }
                    }
                    Write::Keep { copy, records, up_to } => {
                        if file.copy != copy {
                            continue;
                        }
                        file.records.extend(records);
                        standby::Input::Kept { copy, up_to }
                    }
                };
                copying.machine.handle(clock, kept);
            }
        }
    }

    fn owner_effects(&mut self, id: NodeId) {
        loop {
            let node = self.nodes.get_mut(&id).unwrap();
            let Some(serving) = &mut node.serving else { return };
            let Some(effect) = serving.machine.poll_effect() else { return };
            match effect {
                owner::Effect::Write { write, change } => {
                    node.wants.retain(|ask| !matches!(ask, Ask::Write { .. }));
                    node.wants.push_back(Ask::Write { write, change });
                }
                owner::Effect::Carry => {
                    let last = node.last;
                    serving.applying = false;
                    node.apply(last);
                }
                owner::Effect::Begin { to, copy, beat, base } => {
                    let ops = serving.known.iter().map(|(client, (n, _))| (*client, *n));
                    // Of what is not in the copy.
                    let old = ops.filter(|(client, _)| serving.known[client].1 <= base).collect();
                    self.send(id, to, &Message::Begin { copy, beat, base, ops: old });
                }
                owner::Effect::Send { to, copy, beat, from, up_to, applied } => {
                    let records: Records =
                        (from..=up_to).map(|number| (number, serving.kept[&number])).collect();
                    self.send(id, to, &Message::Send { copy, beat, records, from, up_to, applied });
                }
                owner::Effect::Answer { up_to } => serving.ready = up_to,
                owner::Effect::Says(says) => {
                    let complete = matches!(says, owner::Says::Complete { .. });
                    self.complete += u64::from(complete);
                    if complete && self.random.one_in(self.weather.complete) {
                        let again = self.now + self.random.millis(6000);
                        self.nodes.get_mut(&id).unwrap().kill(again);
                    }
                }
                owner::Effect::StepDown => {}
            }
        }
    }

    fn standby_effects(&mut self, id: NodeId) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).unwrap();
        let (mut said, mut serve) = (Vec::new(), None);
        for (of, copying) in &mut node.copies {
            while let Some(effect) = copying.machine.poll_effect() {
                let at = now + self.random.millis(20);
                let at = copying.writes.back().map_or(at, |(last, _)| at.max(*last));
                match effect {
                    standby::Effect::Start { copy, base } => {
                        copying.writes.push_back((at, Write::Start { copy, base }));
                    }
                    standby::Effect::Keep { copy, from, up_to } => {
                        let one = |n| (n, copying.incoming.remove(&(copy, n)).unwrap());
                        let records = (from..=up_to).map(one).collect();
                        copying.writes.push_back((at, Write::Keep { copy, records, up_to }));
                    }
                    standby::Effect::Trim { copy, up_to } => {
                        let file = node.files.get_mut(of).unwrap();
                        assert_eq!(file.copy, copy);
                        let rest = file.records.split_off(&(up_to + 1));
                        let gone = std::mem::replace(&mut file.records, rest);
                        file.ops.extend(gone.values().copied());
                        file.base = file.base.max(up_to);
                    }
                    standby::Effect::Stored { copy, beat, up_to } => {
                        said.push((*of, Message::Stored { copy, beat, up_to }));
                    }
                    standby::Effect::Refused { copy } => said.push((*of, Message::Refused { copy })),
                    standby::Effect::Look => node.wants.push_back(Ask::Look { of: *of }),
                    standby::Effect::Take { copy, up_to } => {
                        let file = &node.files[of];
                        assert_eq!(file.copy, copy);
                        let records = file.records.range(..=up_to).map(|(n, op)| (*n, *op)).collect();
                        node.wants.retain(|ask| !matches!(ask, Ask::Take { .. }));
                        node.wants.push_back(Ask::Take { from: *of, copy, up_to, records });
                    }
                    standby::Effect::Serve => serve = Some(*of),
                }
            }
        }
        if let Some(of) = serve {
            let known = node.files[&of].known();
            node.serve(now, known);
        }
        said.into_iter().for_each(|(to, message)| self.send(id, to, &message));
    }

    fn ask(&mut self) {
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
                if self.random.one_in(self.weather.loss) {
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
    fn check(&self) {
        for node in self.nodes.values().filter(|node| node.up && self.now >= node.paused) {
            if let Some(serving) = &node.serving
                && serving.machine.may_answer(node.clock(self.now))
            {
                assert_eq!(self.db.owner, node.id, "at {:?} two may answer", self.now);
                assert!(serving.kept.len() as u64 <= TERMS.kept_max + 1);
            }
        }
    }

    fn finish(&self) {
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

#[test]
fn nothing_answered_is_lost_and_nothing_is_done_twice() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds: Vec<u64> = match number("TAIL_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("TAIL_SEEDS").unwrap_or(SEEDS)).collect(),
    };
    let (mut takes, mut complete) = (0, 0);
    for seed in &seeds {
        let mut world = World::new(*seed);
        world.weather.complete = seed % 2 * 4;
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        if let Err(panic) = run {
            eprintln!("seed {seed} at {:?}", world.now);
            std::panic::resume_unwind(panic);
        }
        (takes, complete) = (takes + world.db.takes, complete + world.complete);
    }
    println!("{} runs: {complete} complete copies, {takes} taken over", seeds.len());
    let runs = seeds.len() as u64;
    if runs > 100 {
        assert!(takes > runs / 4 && complete > runs, "{takes} {complete}");
    }
}

/// The answer to a take-over was lost, the dead owner came back and was told, and then the taker was refused: the slots were its own by the
/// rows, and it served them not.
#[test]
fn regression_a_lost_answer_to_a_take_over_is_found_out_later() {
    World::new(457).run();
}

/// Goal: a dead server's slots are served again when its lease has ended, and little later. Method: it is killed and stays so.
#[test]
fn a_dead_owner_is_replaced_when_its_lease_has_ended() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.weather = Weather::FINE;
        let died = Duration::from_secs(8);
        while world.now < died {
            world.step();
        }
        assert!(world.nodes[&NodeId(1)].serving.as_ref().unwrap().machine.is_complete());
        world.nodes.get_mut(&NodeId(1)).unwrap().kill(END);
        // The last renewal, a look, the take-over, the new owner's own row: each of the last three is two ways to the database.
        let limit = died + LEASE + TERMS.again + 6 * Duration::from_millis(60);
        while world.nodes.values().all(|node| {
            node.serving.as_ref().is_none_or(|serving| !serving.machine.may_answer(node.clock(world.now)))
        }) {
            assert!(world.now < limit, "seed {seed}: nobody serves at {:?}", world.now);
            world.step();
        }
        assert_eq!(world.db.takes, 1);
    }
}

#[test]
fn without_faults_a_copy_is_complete_and_stays() {
    let mut world = World::new(7);
    world.weather = Weather::FINE;
    world.run();
    assert_eq!((world.db.takes, world.complete), (0, 1));
}
