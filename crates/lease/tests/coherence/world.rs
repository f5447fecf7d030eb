//! One server, four clients, the servers of the data, and a network that does what networks do.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cluster::tenure::Terms;
use lease::coherence::{
    client::{self, Client, ClientLimits},
    locks::{Class, HadLock, LockLimits, LockRequest, Outcome, Owner},
    message::{Had, Joined, Life, Party, Saying, Telling},
    ranges::{Range, Ranges},
    rights::{Claim, Key, Rights},
    server::{self, Limits, Past, Refused, Server},
};
use proto::SessionId;
use types::Ino;

use weather::{Clock, Random, Weather};

mod weather;
mod work;

pub const STEP: Duration = Duration::from_millis(20);
const FAULTS_UNTIL: Duration = Duration::from_secs(15);
/// From then on everybody closes and unlocks, and begins nothing.
const WORK_UNTIL: Duration = Duration::from_secs(20);
const END: Duration = Duration::from_secs(36);
const CLIENTS: usize = 4;
const INODES: u64 = 3;
const BYTES: u64 = 8;
pub const TERMS: Terms = Terms {
    lease: Duration::from_millis(1000),
    beat_every: Duration::from_millis(200),
    suspect_after: Duration::from_millis(500),
    drift_one_in: 20,
};
pub const LIMITS: Limits = Limits {
    terms: TERMS,
    silence: Duration::from_millis(2500),
    recall: Duration::from_millis(1500),
    rest: Duration::from_millis(300),
    sessions: 64,
    leases: 9,
    operations: 64,
    claims: 4,
    locks: LockLimits { locks: 60, session_locks: 20, waiters: 8 },
};
const CLIENT: ClientLimits =
    ClientLimits { terms: TERMS, stop_before: Duration::from_millis(1), leases: 3, wants: 2 };

/// A simulation that finds nothing must not be one that sees nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    No,
    /// Clients believe a term to be longer than the server does.
    LongTerms,
    /// Data servers take writes of sessions that are fenced.
    NoFence,
    /// Clients keep their pages over a recall.
    StalePages,
    /// A server that begins anew does not wait for the terms of its former life.
    NoGrace,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    Server,
    Client(usize),
}

/// A request of a client's shell: sent again until it is answered.
#[derive(Clone, Debug)]
enum Request {
    Begin(Vec<(Key, Claim)>),
    End(u64),
    Lock(LockRequest),
    Unlock(Owner, Ino, Range),
    Cancel(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reply {
    Done,
    Lock(Outcome),
    Later,
}

#[derive(Clone, Debug)]
enum Message {
    Core(Party, Saying),
    Request(Party, u64, Request),
    Tell(SessionId, Telling),
    Reply(Party, u64, Reply),
}

/// Two registers stand for all: the bytes, and what is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Value {
    data: u64,
    attr: u64,
}

/// What a client's kernel keeps of a key.
#[derive(Clone, Copy, Default)]
struct Cache {
    pages: Option<u64>,
    attr: Option<u64>,
    /// Both are newer than what the servers have.
    dirty: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Opening,
    /// One look, or one change of attributes or of an entry.
    Once,
}

struct Operation {
    key: Key,
    claim: Claim,
    kind: Use,
    begun: bool,
}

struct Host {
    clock: Clock,
    paused_until: Duration,
    core: Client,
    session: SessionId,
    requests: BTreeMap<u64, (Request, Duration)>,
    next_request: u64,
    operations: BTreeMap<u64, Operation>,
    caches: BTreeMap<Key, Cache>,
    /// When the kernel has given back.
    releases: BTreeMap<(Key, u64), (Duration, Rights)>,
    locks: BTreeMap<Ino, [Ranges<Owner>; 2]>,
    /// What each owner waits for.
    locking: BTreeMap<Owner, u64>,
}

/// What a server's process keeps in memory, and what stands on its disk.
struct Serving {
    clock: Clock,
    paused_until: Duration,
    core: Server,
    answers: BTreeMap<(Party, u64), Reply>,
    /// What the shell carries out, when it is done.
    tasks: BTreeMap<(Duration, u64), server::Effect>,
    life: u32,
    from: u32,
    fenced: BTreeMap<SessionId, u32>,
}

pub struct World {
    broken: Broken,
    time: Duration,
    random: Random,
    weather: Weather,
    sent: u64,
    sessions: u128,
    values: u64,
    net: BTreeMap<(Duration, u64), (Place, Message)>,
    server: Serving,
    hosts: Vec<Host>,
    /// At the servers of data and metadata.
    stored: BTreeMap<Key, Value>,
    /// What was written last and answered, and by whom if only he has it.
    truth: BTreeMap<Key, (Value, Option<SessionId>)>,
    refused_writers: BTreeSet<SessionId>,
    /// That came to this life of the server.
    members: BTreeSet<SessionId>,
    pub log: Vec<String>,
    pub seen: Seen,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    pub cached_reads: u64,
    pub written_back: u64,
    pub recalls: u64,
    pub fenced: u64,
    pub lost: u64,
    pub came_back: u64,
    pub resumed: u64,
    pub locks: u64,
    pub deadlocks: u64,
    pub waited: u64,
    pub interrupted: u64,
}

fn ino(n: u64) -> Ino {
    Ino::from_raw(n + 1).expect("a number")
}

fn keys() -> Vec<Key> {
    let entry = Key::Entry { dir: Ino::ROOT, name: Box::from(&b"name"[..]) };
    (0..INODES).map(|n| Key::Inode(ino(n))).chain([entry]).collect()
}

fn space(class: Class) -> usize {
    usize::from(class == Class::Flock)
}

impl Host {
    fn new(clock: Clock, time: Duration, session: SessionId, broken: Broken) -> Host {
        let mut limits = CLIENT;
        if broken == Broken::LongTerms {
            limits.terms.lease *= 6;
        }
        Host {
            core: Client::new(limits, clock.at(time)),
            clock,
            paused_until: Duration::ZERO,
            session,
            requests: BTreeMap::new(),
            next_request: 0,
            operations: BTreeMap::new(),
            caches: BTreeMap::new(),
            releases: BTreeMap::new(),
            locks: BTreeMap::new(),
            locking: BTreeMap::new(),
        }
    }

    fn party(&self) -> Party {
        Party { session: self.session, joined: self.core.joined() }
    }

    fn may(&self, time: Duration, key: &Key) -> Rights {
        self.core.may(self.clock.at(time), key)
    }

    fn lives(&self, time: Duration) -> bool {
        self.core.may_until().is_some_and(|until| self.clock.at(time) < until)
    }

    fn ask(&mut self, request: Request) -> u64 {
        self.next_request += 1;
        self.requests.insert(self.next_request, (request, Duration::ZERO));
        self.next_request
    }

    fn held(&self) -> Vec<(Ino, lease::coherence::ranges::Found<Owner>)> {
        let of = |(ino, spaces): (&Ino, &[Ranges<Owner>; 2])| {
            let ino = *ino;
            spaces.iter().flat_map(|s| s.all()).map(|f| (ino, f)).collect::<Vec<_>>()
        };
        self.locks.iter().flat_map(of).collect()
    }
}

impl World {
    pub fn new(seed: u64, broken: Broken) -> World {
        let mut random = Random(seed);
        let weather = Weather::of(&mut random);
        let clock = Clock::of(&mut random);
        let past = Past { life: Life(1), from: Life(1), fenced: BTreeSet::new() };
        let server = Serving {
            core: Server::new(LIMITS, past, clock.at(Duration::ZERO)),
            clock,
            paused_until: Duration::ZERO,
            answers: BTreeMap::new(),
            tasks: BTreeMap::new(),
            life: 1,
            from: 1,
            fenced: BTreeMap::new(),
        };
        let host = |n| Host::new(Clock::of(&mut random), Duration::ZERO, SessionId(n as u128 + 1), broken);
        let hosts = (0..CLIENTS).map(host).collect();
        World {
            broken,
            time: Duration::ZERO,
            random,
            weather,
            sent: 0,
            sessions: CLIENTS as u128,
            values: 0,
            net: BTreeMap::new(),
            server,
            hosts,
            stored: keys().into_iter().map(|key| (key, Value::default())).collect(),
            truth: keys().into_iter().map(|key| (key, (Value::default(), None))).collect(),
            refused_writers: BTreeSet::new(),
            members: BTreeSet::new(),
            log: Vec::new(),
            seen: Seen::default(),
        }
    }

    fn faulty(&self) -> bool {
        self.time < FAULTS_UNTIL
    }

    fn send(&mut self, to: Place, message: Message) {
        let faulty = self.faulty();
        if faulty && self.random.one_in(self.weather.loss) {
            return;
        }
        let copies = if faulty && self.random.one_in(self.weather.repeat) { 2 } else { 1 };
        for _ in 0..copies {
            let late = if faulty && self.random.one_in(self.weather.late) { 3000 } else { 50 };
            self.sent += 1;
            let arrives = self.time + self.random.millis(late);
            self.net.insert((arrives, self.sent), (to, message.clone()));
        }
    }

    fn paused(&self, place: Place) -> bool {
        match place {
            Place::Server => self.time < self.server.paused_until,
            Place::Client(at) => self.time < self.hosts[at].paused_until,
        }
    }

    fn new_session(&mut self) -> SessionId {
        self.sessions += 1;
        SessionId(self.sessions)
    }

    fn trouble(&mut self) {
        if self.random.one_in(self.weather.pause) {
            let until = self.time + self.random.millis(4000);
            match self.random.below(CLIENTS as u64 + 1) as usize {
                CLIENTS => self.server.paused_until = until,
                at => self.hosts[at].paused_until = until,
            }
        }
        if self.random.one_in(self.weather.restart) {
            let at = self.random.below(CLIENTS as u64) as usize;
            self.start_host(at);
        }
        if self.random.one_in(self.weather.server_restart) {
            self.restart_server();
        }
    }

    fn start_host(&mut self, at: usize) {
        let session = self.new_session();
        let ahead = self.hosts[at].clock.ahead;
        let clock = Clock { ahead, rate: self.hosts[at].clock.rate };
        self.hosts[at] = Host::new(clock, self.time, session, self.broken);
    }

    fn restart_server(&mut self) {
        let server = &mut self.server;
        server.life += 1;
        let past = Past {
            life: Life(server.life),
            from: Life(server.from),
            fenced: server.fenced.keys().copied().collect(),
        };
        let mut now = server.clock.at(self.time);
        if self.broken == Broken::NoGrace {
            now = now.saturating_sub(TERMS.lease * 2);
        }
        server.core = Server::new(LIMITS, past, now);
        server.answers.clear();
        server.tasks.clear();
        server.paused_until = self.time + Duration::from_millis(self.random.below(800));
        self.members.clear();
        // Connections end with the process.
        self.net.retain(|_, (to, _)| *to != Place::Server);
    }

    fn server_hears(&mut self, message: Message) {
        let now = self.server.clock.at(self.time);
        match message {
            Message::Core(by, saying) => {
                if matches!(&saying, Saying::Join { .. }) && Life::of(by.joined.0) != Life(0) {
                    self.seen.came_back += 1;
                }
                self.server.core.handle(now, server::Input::Said { by, saying });
            }
            Message::Request(by, number, request) => {
                if !self.server.core.is_alive(by) {
                    return;
                }
                if let Some(reply) = self.server.answers.get(&(by, number)).copied() {
                    return self.send(self.place_of(by.session), Message::Reply(by, number, reply));
                }
                let (input, done) = match request {
                    Request::Begin(claims) => (server::Input::Begin { by, operation: number, claims }, false),
                    Request::End(operation) => (server::Input::End { by, operation }, true),
                    Request::Lock(request) => (server::Input::Lock { by, number, request }, false),
                    Request::Unlock(owner, ino, range) => {
                        (server::Input::Unlock { by, number, owner, ino, range }, false)
                    }
                    Request::Cancel(number) => (server::Input::Cancel { by, number }, true),
                };
                self.server.core.handle(now, input);
                if done {
                    self.reply(by, number, Reply::Done);
                }
            }
            Message::Tell(..) | Message::Reply(..) => panic!("not for the server"),
        }
        self.server_effects();
    }

    /// Messages to a session that is not there any more are lost.
    fn place_of(&self, session: SessionId) -> Place {
        let at = self.hosts.iter().position(|host| host.session == session);
        Place::Client(at.unwrap_or(0))
    }

    fn reply(&mut self, by: Party, number: u64, reply: Reply) {
        if reply != Reply::Later {
            self.server.answers.insert((by, number), reply);
        }
        self.send(self.place_of(by.session), Message::Reply(by, number, reply));
    }

    fn server_effects(&mut self) {
        while let Some(effect) = self.server.core.poll_effect() {
            match effect {
                server::Effect::Tell { to, telling } => {
                    self.seen.recalls += u64::from(matches!(telling, Telling::Recall { .. }));
                    if matches!(telling, Telling::Joined { .. }) {
                        self.members.insert(to);
                    }
                    self.send(self.place_of(to), Message::Tell(to, telling));
                }
                server::Effect::Begun { by, operation } => self.reply(by, operation, Reply::Done),
                server::Effect::NotBegun { by, operation, why } => match why {
                    Refused::Later => self.reply(by, operation, Reply::Later),
                    Refused::TooMany => panic!("an operation of few keys"),
                    Refused::Gone => (),
                },
                server::Effect::Lock { by, number, outcome } => match outcome {
                    Outcome::Later => self.reply(by, number, Reply::Later),
                    Outcome::Gone => (),
                    Outcome::Granted
                    | Outcome::Conflict
                    | Outcome::Deadlock
                    | Outcome::Interrupted
                    | Outcome::TooMany => self.reply(by, number, Reply::Lock(outcome)),
                },
                server::Effect::Over(session) => {
                    self.members.remove(&session);
                    self.lose(|only| only == session);
                    self.log.push(format!("{:?} over {session}", self.time));
                }
                server::Effect::Fence(_) | server::Effect::EndGrace => {
                    self.sent += 1;
                    let at = self.time + self.random.millis(300);
                    self.server.tasks.insert((at, self.sent), effect);
                }
            }
        }
    }

    /// What only a session had that is over is not there any more.
    fn lose(&mut self, of: impl Fn(SessionId) -> bool) {
        for (key, (value, only)) in &mut self.truth {
            if only.is_some_and(&of) {
                self.seen.lost += 1;
                (*value, *only) = (self.stored[key], None);
            }
        }
    }

    fn serve(&mut self) {
        let now = self.server.clock.at(self.time);
        while let Some(entry) = self.server.tasks.first_entry().filter(|entry| entry.key().0 <= self.time) {
            let life = self.server.life;
            match entry.remove() {
                server::Effect::Fence(session) => {
                    self.seen.fenced += 1;
                    self.server.fenced.insert(session, life);
                    self.refused_writers.insert(session);
                    self.server.core.handle(now, server::Input::Fenced(session));
                }
                server::Effect::EndGrace => {
                    self.server.from = life;
                    self.server.fenced.retain(|_, of| *of == life);
                    let members = self.members.clone();
                    self.lose(|only| !members.contains(&only));
                    self.server.core.handle(now, server::Input::GraceEnded);
                }
                other => panic!("{other:?}"),
            }
        }
        if self.server.core.next_deadline().is_some_and(|at| at <= now) {
            self.server.core.handle_deadline(now);
            assert!(self.server.core.next_deadline().is_none_or(|at| at > now), "no busy loop");
        }
        self.server_effects();
    }

    fn client_hears(&mut self, at: usize, message: Message) {
        let now = self.hosts[at].clock.at(self.time);
        match message {
            Message::Tell(session, telling) if session == self.hosts[at].session => {
                self.hosts[at].core.handle(now, client::Input::Told(telling));
            }
            Message::Reply(by, number, reply)
                if by == self.hosts[at].party() && !self.hosts[at].core.is_joining() =>
            {
                let late = self.time + Duration::from_millis(100);
                match (reply, self.hosts[at].requests.get_mut(&number)) {
                    (_, None) => (),
                    (Reply::Later, Some((_, again))) => *again = late,
                    (Reply::Done | Reply::Lock(_), Some(_)) => self.answered(at, number, reply),
                }
            }
            Message::Tell(..) | Message::Reply(..) => (),
            Message::Core(..) | Message::Request(..) => panic!("not for a client"),
        }
        self.client_effects(at);
    }

    fn answered(&mut self, at: usize, number: u64, reply: Reply) {
        let host = &mut self.hosts[at];
        let Some((request, _)) = host.requests.remove(&number) else { return };
        match request {
            Request::Begin(_) => {
                if let Some(operation) = host.operations.get_mut(&number) {
                    operation.begun = true;
                }
            }
            Request::End(_) | Request::Cancel(_) => (),
            Request::Unlock(owner, ino, _) => {
                host.locking.remove(&owner);
                // No room to make two of one: it gives up all of them.
                if reply == Reply::Lock(Outcome::TooMany) {
                    let spaces = host.locks.entry(ino).or_default();
                    spaces[space(owner.class)].set(owner, Range::ALL, None, 0);
                    let number = host.ask(Request::Unlock(owner, ino, Range::ALL));
                    host.locking.insert(owner, number);
                }
            }
            Request::Lock(LockRequest { owner, ino, range, kind, pid, .. }) => {
                host.locking.remove(&owner);
                if reply == Reply::Lock(Outcome::Granted) {
                    self.seen.locks += 1;
                    let spaces = host.locks.entry(ino).or_default();
                    spaces[space(owner.class)].set(owner, range, Some(kind), pid);
                }
                self.seen.deadlocks += u64::from(reply == Reply::Lock(Outcome::Deadlock));
                self.seen.interrupted += u64::from(reply == Reply::Lock(Outcome::Interrupted));
            }
        }
    }

    fn client_effects(&mut self, at: usize) {
        while let Some(effect) = self.hosts[at].core.poll_effect() {
            let session = self.hosts[at].session;
            match effect {
                client::Effect::Say { joined, saying } => {
                    self.send(Place::Server, Message::Core(Party { session, joined }, saying));
                }
                client::Effect::Join { before, number, life, leases } => {
                    let had = self.had(at, before, leases);
                    let by = Party { session, joined: before };
                    self.send(Place::Server, Message::Core(by, Saying::Join { number, life, had }));
                }
                client::Effect::Answered { .. } => (),
                client::Effect::Release { key, keeps, number } => {
                    let hangs = self.faulty() && self.random.one_in(self.weather.hang);
                    let takes = self.random.millis(if hangs { 6000 } else { 100 });
                    self.hosts[at].releases.insert((key, number), (self.time + takes, keeps));
                }
                client::Effect::Stop => {
                    for cache in self.hosts[at].caches.values_mut().filter(|cache| !cache.dirty) {
                        *cache = Cache::default();
                    }
                }
                client::Effect::Resume => self.seen.resumed += 1,
                client::Effect::Over { .. } => {
                    self.start_host(at);
                    return;
                }
            }
        }
    }

    fn had(&self, at: usize, before: Joined, leases: Vec<(Key, Rights)>) -> Had {
        let host = &self.hosts[at];
        if before == Joined::default() {
            return Had::default();
        }
        let begun = host.operations.iter().filter(|(_, operation)| operation.begun);
        let claims = begun.map(|(number, o)| (*number, vec![(o.key.clone(), o.claim)])).collect();
        let locks = host.held().into_iter().map(|(ino, f)| HadLock {
            ino,
            owner: f.owner,
            range: f.range,
            kind: f.kind,
            pid: f.pid,
        });
        Had { leases, claims, locks: locks.collect() }
    }

    fn client_steps(&mut self, at: usize) -> Result<(), String> {
        let (time, now) = (self.time, self.hosts[at].clock.at(self.time));
        self.release(at);
        self.client_effects(at);
        if self.hosts[at].core.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.hosts[at].core.handle_deadline(now);
            assert!(
                self.hosts[at].core.next_deadline().is_none_or(|deadline| deadline > now),
                "no busy loop"
            );
        }
        self.client_effects(at);
        let party = self.hosts[at].party();
        let mut again: Vec<(u64, Request)> = Vec::new();
        for (number, (request, next)) in &mut self.hosts[at].requests {
            if party.joined != Joined::default() && *next <= time {
                *next = time + Duration::from_millis(300);
                again.push((*number, request.clone()));
            }
        }
        for (number, request) in again {
            self.send(Place::Server, Message::Request(party, number, request));
        }
        if self.random.one_in(4) {
            self.work_with_locks(at);
        }
        self.work_with_files(at)
    }

    /// I-CLEASE-1 and I-CLEASE-5 at this moment of true time.
    fn together(&self) -> Result<(), String> {
        let acting: Vec<usize> = (0..CLIENTS)
            .filter(|at| !self.paused(Place::Client(*at)) && self.hosts[*at].lives(self.time))
            .collect();
        for (n, a) in acting.iter().enumerate() {
            for b in &acting[n + 1..] {
                let (a, b) = (&self.hosts[*a], &self.hosts[*b]);
                for key in keys() {
                    let (mine, other) = (a.may(self.time, &key), b.may(self.time, &key));
                    if mine.conflicts(other) {
                        return Err(format!("{:?}: {mine:?} and {other:?} of {key:?}", self.time));
                    }
                }
                for (x, y) in [(a, b), (b, a)] {
                    let begun = x.operations.values().filter(|operation| operation.begun);
                    for Operation { key, claim, .. } in begun {
                        let other = y.may(self.time, key);
                        if !claim.excludes().both(other).is_empty() {
                            return Err(format!(
                                "{:?}: {claim:?} of {:?} beside {other:?} of {:?} of {key:?}",
                                self.time,
                                x.party(),
                                y.party()
                            ));
                        }
                    }
                }
                for (ino, lock) in a.held() {
                    let Some(spaces) = b.locks.get(&ino) else { continue };
                    let space = &spaces[space(lock.owner.class)];
                    if let Some(found) = space.in_the_way(lock.owner, lock.range, lock.kind).next() {
                        return Err(format!("{:?}: {lock:?} and {found:?}", self.time));
                    }
                }
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.time += STEP;
        if self.faulty() {
            self.trouble();
        }
        let later = self.net.split_off(&(self.time + Duration::from_nanos(1), 0));
        for (key, (to, message)) in std::mem::replace(&mut self.net, later) {
            if self.paused(to) {
                // It lies in a socket until the process goes on.
                self.net.insert((self.time + STEP, key.1), (to, message));
                continue;
            }
            match to {
                Place::Server => self.server_hears(message),
                Place::Client(at) => self.client_hears(at, message),
            }
        }
        if !self.paused(Place::Server) {
            self.serve();
        }
        for at in 0..CLIENTS {
            if !self.paused(Place::Client(at)) {
                self.client_steps(at)?;
            }
        }
        self.together()
    }

    /// A whole run: what was seen, or what was wrong.
    pub fn run(mut self) -> Result<World, String> {
        while self.time < END {
            self.step()?;
        }
        let table = self.server.core.table();
        let (waiting, locks) =
            (self.server.core.locks().all_waiting().count(), self.server.core.locks().all().count());
        if (table.operations(), waiting, locks) != (0, 0, 0) {
            return Err(format!(
                "it has not settled: {} operations, {waiting} waiters, {locks} locks",
                table.operations()
            ));
        }
        for (at, host) in self.hosts.iter().enumerate() {
            if !host.requests.is_empty() || !host.lives(self.time) {
                return Err(format!("it has not settled: client {at} waits for {:?}", host.requests));
            }
        }
        Ok(self)
    }
}
