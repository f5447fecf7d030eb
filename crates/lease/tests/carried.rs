//! Goal: locks of slots that go from one server to another, among servers that are started again and give sessions up, are never had by two that are
//! whole where the slot is, and none that was granted is lost without its session. Method: machines of three servers, each with its slots, and
//! sessions that know what they were answered; requests, hand-overs, restarts and silences in a random order, from a seed. What the shell has to keep
//! is kept here: records of who is there, verdicts, the slots that a life began with.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cluster::tenure::Terms;
use lease::coherence::{
    locks::{Class, HadLock, LockLimits, LockRequest, Outcome, Owner},
    message::{Had, Joined, Life, Party, Saying, Telling},
    ranges::{Kind, Range},
    server::{Effect, Expected, Input, Limits, Past, Server},
};
use proto::SessionId;
use types::Ino;

const SERVERS: usize = 3;
const SESSIONS: usize = 4;
/// Each has one file.
const SLOTS: u64 = 4;
const SECOND: Duration = Duration::from_secs(1);

const LIMITS: Limits = Limits {
    terms: Terms {
        lease: Duration::from_millis(27_000),
        beat_every: Duration::from_millis(5000),
        suspect_after: Duration::from_millis(2000),
        drift_one_in: 50,
    },
    silence: Duration::from_millis(30_000),
    recall: Duration::from_millis(15_000),
    rest: Duration::from_millis(300),
    sessions: 100,
    leases: 8,
    operations: 8,
    claims: 4,
    locks: LockLimits { locks: 1000, session_locks: 1000, waiters: 100 },
};

/// What must not be for a run to count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Verdicts do not go with slots.
    Untold,
    /// A life believes what it is told of slots that it did not have at its begin.
    Gullible,
    /// Verdicts of a life are forgotten when the next has ended its time of coming back, as where there is one server.
    Forgetful,
    /// The next life is not told whom a slot brought.
    Unrecorded,
}

struct Site {
    server: Server,
    slots: BTreeSet<u64>,
    begun: BTreeSet<u64>,
    life: u32,
    from: u32,
    present: BTreeSet<SessionId>,
    verdicts: BTreeMap<SessionId, u32>,
}

struct Client {
    id: SessionId,
    joined: [u64; SERVERS],
    cut: [bool; SERVERS],
    locks: BTreeMap<u64, Kind>,
    asked: u64,
}

struct World {
    fault: Fault,
    random: u64,
    now: Duration,
    sites: Vec<Site>,
    clients: Vec<Client>,
    last: u128,
    granted: usize,
    lost: usize,
}

fn ino(slot: u64) -> Ino {
    Ino::from_raw(slot + 1).unwrap()
}

fn slot_of(ino: Ino) -> u64 {
    ino.get() - 1
}

impl World {
    fn new(seed: u64, fault: Fault) -> World {
        let site = |n: usize| {
            let slots: BTreeSet<u64> = (0..SLOTS).filter(|slot| *slot as usize % SERVERS == n).collect();
            Site {
                server: Server::first(LIMITS, Duration::ZERO),
                begun: slots.clone(),
                slots,
                life: 1,
                from: 1,
                present: BTreeSet::new(),
                verdicts: BTreeMap::new(),
            }
        };
        let mut world = World {
            fault,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: SECOND,
            sites: (0..SERVERS).map(site).collect(),
            clients: Vec::new(),
            last: 0,
            granted: 0,
            lost: 0,
        };
        world.clients = (0..SESSIONS).map(|_| world.client()).collect();
        world
    }

    fn client(&mut self) -> Client {
        self.last += 1;
        let id = SessionId(self.last);
        Client { id, joined: [0; SERVERS], cut: [false; SERVERS], locks: BTreeMap::new(), asked: 0 }
    }

    fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % n
    }

    /// Carries out what a machine asks for. Returns what it told.
    fn drive(&mut self, at: usize, input: Input) -> Vec<Effect> {
        self.sites[at].server.handle(self.now, input);
        self.drain(at)
    }

    fn drain(&mut self, at: usize) -> Vec<Effect> {
        let (now, mut told) = (self.now, Vec::new());
        let site = &mut self.sites[at];
        while let Some(effect) = site.server.poll_effect() {
            match effect {
                Effect::Fence(id) => {
                    site.verdicts.insert(id, site.life);
                    site.server.handle(now, Input::Fenced(id));
                }
                Effect::Over(id) => {
                    site.present.remove(&id);
                }
                Effect::EndGrace => {
                    for id in site.server.missing().into_iter().flatten().copied().collect::<Vec<_>>() {
                        site.present.remove(&id);
                        site.verdicts.insert(id, site.life);
                    }
                    if self.fault == Fault::Forgetful {
                        site.verdicts.retain(|_, life| *life == site.life);
                    }
                    site.from = site.life;
                    site.server.handle(now, Input::GraceEnded);
                }
                other => told.push(other),
            }
        }
        told
    }

    /// The client comes to a server, as the shell has it come.
    fn come(&mut self, who: usize, at: usize) -> bool {
        let Client { id, ref joined, ref locks, .. } = self.clients[who];
        let mut before = joined[at];
        let site = &self.sites[at];
        let believed = |slot: &u64| self.fault == Fault::Gullible || site.begun.contains(slot);
        let owner = Owner { session: id, class: Class::Process, id: 1 };
        let had: Vec<HadLock> = locks
            .iter()
            .filter(|(slot, _)| believed(slot))
            .map(|(slot, kind)| HadLock { ino: ino(*slot), owner, range: Range::ALL, kind: *kind, pid: 1 })
            .collect();
        if had.is_empty() {
            before = 0;
        }
        let brings = !had.is_empty();
        let saying =
            Saying::Join { number: 1, life: Life(site.life), had: Had { locks: had, ..Had::default() } };
        let by = Party { session: id, joined: Joined(before) };
        for effect in self.drive(at, Input::Said { by, saying }) {
            if let Effect::Tell { telling: Telling::Joined { joined, .. }, to } = effect
                && to == id
            {
                self.clients[who].joined[at] = joined.0;
                if brings {
                    self.sites[at].present.insert(id);
                }
                return true;
            }
        }
        false
    }

    /// All is lost, and the others hear that.
    fn begin_again(&mut self, who: usize) {
        let new = self.client();
        let gone = std::mem::replace(&mut self.clients[who], new);
        self.lost += gone.locks.len();
        self.clients[who].cut = gone.cut;
        for at in (0..SERVERS).filter(|at| !gone.cut[*at]) {
            let by = Party { session: gone.id, joined: Joined(gone.joined[at]) };
            self.drive(at, Input::Leave(by));
        }
    }

    /// As who it is known there. `None`: it hears nothing, or had to begin again.
    fn party(&mut self, who: usize, at: usize) -> Option<Party> {
        if self.clients[who].cut[at] {
            return None;
        }
        let of = |world: &World| {
            let client = &world.clients[who];
            Party { session: client.id, joined: Joined(client.joined[at]) }
        };
        if !self.sites[at].server.is_alive(of(self)) {
            let life = Life::of(self.clients[who].joined[at]);
            let may = self.clients[who].joined[at] == 0 || life < Life(self.sites[at].life);
            if !may || !self.come(who, at) {
                self.begin_again(who);
                return None;
            }
        }
        let by = of(self);
        self.drive(at, Input::Said { by, saying: Saying::Renew { number: 1 } });
        Some(by)
    }

    fn owner(&self, slot: u64) -> usize {
        (0..SERVERS).find(|at| self.sites[*at].slots.contains(&slot)).unwrap()
    }

    fn lock(&mut self, who: usize, slot: u64, kind: Option<Kind>) {
        let at = self.owner(slot);
        let Some(by) = self.party(who, at) else { return };
        self.clients[who].asked += 1;
        let number = self.clients[who].asked;
        let owner = Owner { session: by.session, class: Class::Process, id: 1 };
        let (ino, range) = (ino(slot), Range::ALL);
        let input = match kind {
            Some(kind) => {
                self.sites[at].present.insert(by.session);
                let request = LockRequest { ino, owner, range, kind, pid: 1, wait: false };
                Input::Lock { by, number, request }
            }
            None => Input::Unlock { by, number, owner, ino, range },
        };
        for effect in self.drive(at, input) {
            if let Effect::Lock { by: of, outcome: Outcome::Granted, .. } = effect
                && of == by
            {
                let locks = &mut self.clients[who].locks;
                match kind {
                    Some(kind) => {
                        self.granted += 1;
                        locks.insert(slot, kind);
                    }
                    None => drop(locks.remove(&slot)),
                }
            }
        }
    }

    fn hand_over(&mut self, slot: u64, to: usize) {
        let from = self.owner(slot);
        if from == to || self.sites[from].server.in_grace() {
            return;
        }
        let there = |ino: Ino| slot_of(ino) == slot;
        let (locks, _) = self.sites[from].server.take_locks(&there);
        let given_up: Vec<SessionId> = self.sites[from].server.given_up().collect();
        let sessions: BTreeSet<SessionId> = locks.iter().map(|lock| lock.owner.session).collect();
        self.drain(from);
        let mut taker = to;
        for session in &sessions {
            if self.fault != Fault::Unrecorded {
                self.sites[to].present.insert(*session);
            }
            let told = self.drive(to, Input::Place { session: *session, silent: Duration::ZERO });
            let is_in =
                |effect: &Effect| matches!(effect, Effect::Tell { telling: Telling::Joined { .. }, .. });
            if !told.iter().any(is_in) {
                // It goes back.
                taker = from;
            }
        }
        self.sites[taker].server.put_locks(&locks);
        self.sites[from].slots.remove(&slot);
        self.sites[from].begun.remove(&slot);
        self.sites[taker].slots.insert(slot);
        if taker == to && self.fault != Fault::Untold {
            for session in given_up {
                self.drive(to, Input::GivenUp(session));
            }
        }
        self.drain(taker);
    }

    fn restart(&mut self, at: usize) {
        let site = &mut self.sites[at];
        site.life += 1;
        let fenced = site.verdicts.keys().copied().collect();
        let past = Past { life: Life(site.life), from: Life(site.from), fenced };
        site.server = Server::new(LIMITS, past, self.now);
        let sessions = site.present.clone();
        site.server.expect(Expected { sessions, ..Expected::default() });
        site.begun = site.slots.clone();
        self.drain(at);
    }

    /// Of those who are whole where the slot is, no two have what does not go together; and nobody who is whole everywhere has lost anything.
    fn check(&self) -> Result<(), &'static str> {
        for slot in 0..SLOTS {
            let at = self.owner(slot);
            let server = &self.sites[at].server;
            let whole = |client: &&Client| {
                server.is_alive(Party { session: client.id, joined: Joined(client.joined[at]) })
            };
            let has: Vec<(SessionId, Kind)> = self
                .clients
                .iter()
                .filter(whole)
                .filter_map(|client| Some((client.id, *client.locks.get(&slot)?)))
                .collect();
            if has.len() > 1 && has.iter().any(|(_, kind)| *kind == Kind::Write) {
                return Err("two have it");
            }
            for (id, kind) in has {
                let there = |(at, found): (Ino, lease::coherence::ranges::Found<Owner>)| {
                    slot_of(at) == slot && found.owner.session == id && found.kind == kind
                };
                if !server.locks().all().any(there) {
                    return Err("a lock is lost");
                }
            }
        }
        Ok(())
    }

    fn step(&mut self) {
        let (who, at, slot) = (self.below(SESSIONS), self.below(SERVERS), self.below(SLOTS as usize) as u64);
        match self.below(20) {
            0..8 => {
                let kind = if self.below(3) == 0 { Kind::Read } else { Kind::Write };
                self.lock(who, slot, Some(kind));
            }
            8..11 => self.lock(who, slot, None),
            11..14 => self.hand_over(slot, at),
            14 if self.below(4) == 0 => self.restart(at),
            14 | 15 => self.clients[who].cut[at] = !self.clients[who].cut[at],
            16 => {
                let pause = self.below(40) as u32;
                self.now += SECOND * pause;
            }
            _ => drop(self.party(who, at)),
        }
        self.now += SECOND / 10;
        for at in 0..SERVERS {
            while self.sites[at].server.next_deadline().is_some_and(|due| due <= self.now) {
                self.sites[at].server.handle_deadline(self.now);
                self.drain(at);
            }
        }
    }
}

/// The first step after which something is wrong.
fn run(seed: u64, fault: Fault) -> Result<(usize, usize), (usize, &'static str)> {
    let mut world = World::new(seed, fault);
    for step in 0..2000 {
        world.step();
        world.check().map_err(|why| (step, why))?;
    }
    Ok((world.granted, world.lost))
}

#[test]
fn slots_go_about_and_no_two_have_the_same_lock() {
    let (mut granted, mut lost) = (0, 0);
    for seed in 0..200 {
        match run(seed, Fault::None) {
            Ok((some, gone)) => (granted, lost) = (granted + some, lost + gone),
            Err((step, why)) => panic!("seed {seed}, step {step}: {why}"),
        }
    }
    assert!(granted > 10_000 && lost > 100, "{granted} {lost}: the runs show nothing");
}

#[test]
fn the_same_runs_find_what_is_left_out() {
    for (fault, name) in [
        (Fault::Untold, "verdicts do not go along"),
        (Fault::Forgetful, "verdicts are forgotten"),
        (Fault::Gullible, "what others have is believed"),
        (Fault::Unrecorded, "who is brought is not recorded"),
    ] {
        assert!((0..200).any(|seed| run(seed, fault).is_err()), "{name}: nothing was found");
    }
}
