//! The server's side: whose sessions live, what they hold and wait for, and what is asked back.
//!
//! An event machine: [`Server::handle`] and [`Server::handle_deadline`], then [`Server::poll_effect`] until there is none. The shell
//! hands in each operation and each request for a lock once, however often it came (I-SESSION-2), and answers it by the effect. What a
//! grant is about is read after the grant was made and sent in one message with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cluster::tenure::Time;
use proto::SessionId;
use types::Ino;

pub use super::limits::{Expected, Limits, Past};
use super::{
    circles::Wait,
    locks::{LockRequest, Locks, Outcome, Owner},
    message::{Joined, Life, Party, Saying, Telling},
    ranges::Range,
    rights::{Claim, Key, Rights},
    table::{Recall, Table},
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    Said {
        by: Party,
        saying: Saying,
    },
    /// An operation claims what it is about; an opening does until the file is closed.
    Begin {
        by: Party,
        operation: u64,
        claims: Vec<(Key, Claim)>,
    },
    /// Of what waits, too: then there is no answer.
    End {
        by: Party,
        operation: u64,
    },
    Lock {
        by: Party,
        number: u64,
        request: LockRequest,
    },
    Unlock {
        by: Party,
        number: u64,
        owner: Owner,
        ino: Ino,
        range: Range,
    },
    /// Of the request with that number.
    Cancel {
        by: Party,
        number: u64,
    },
    /// That request was in a circle over several servers, while it waited here.
    Refuse {
        session: SessionId,
        number: u64,
    },
    /// It unmounts, has written back everything and lets go of all.
    Leave(Party),
    /// [`Effect::Fence`] is carried out.
    Fenced(SessionId),
    /// [`Effect::EndGrace`] is carried out.
    GraceEnded,
    /// It was silent for longer than leases last without a word: it uses none any more. Its session goes on, and what it may have kept back of writes
    /// is its own until it is given up.
    Lapsed(SessionId),
    /// It has something in what another server gave to this one, which heard nothing of it for so long. It may come by itself later, as whoever
    /// comes for the first time, or back from an earlier life.
    Place {
        session: SessionId,
        silent: Time,
    },
    /// Another server gave it up, and what it had there is free.
    GivenUp(SessionId),
    /// It was given up here, and something of it comes from another server: that is its own until it is fenced once more. Who is not given up yet is.
    PlaceGivenUp {
        session: SessionId,
        silent: Time,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// We have just begun, or have as many as we can: to be asked again.
    Later,
    TooMany,
    Gone,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    Tell {
        to: SessionId,
        telling: Telling,
    },
    Begun {
        by: Party,
        operation: u64,
    },
    NotBegun {
        by: Party,
        operation: u64,
        why: Refused,
    },
    Lock {
        by: Party,
        number: u64,
        outcome: Outcome,
    },
    /// Its verdict: durably, and so that no server takes a write of it any more.
    Fence(SessionId),
    /// What it had is free.
    Over(SessionId),
    /// Durably: who did not come back of earlier lives may not, and no server takes a write of him. What was fenced before may be forgotten.
    EndGrace,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    Alive,
    Condemned,
    Fenced,
}

pub(super) struct Session {
    pub(super) joined: Joined,
    /// By which number it came here.
    pub(super) before: Joined,
    /// It said itself what it had of earlier lives.
    pub(super) came: bool,
    pub(super) heard: Time,
    pub(super) granted: Time,
    pub(super) standing: Standing,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    Grace,
    Session(SessionId),
    Recall(SessionId, Key),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Grace {
    Runs,
    /// The shell was told.
    Ends,
    Ended,
}

pub struct Server {
    pub(super) limits: Limits,
    pub(super) past: Past,
    grace: Grace,
    /// `None`: it is not known who may come back.
    pub(super) expected: Option<Expected>,
    pub(super) joins: u64,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    /// By verdicts of this life: data servers refuse them by these names. As many as the shell has records of.
    pub(super) given_up: BTreeSet<SessionId>,
    pub(super) table: Table,
    pub(super) locks: Locks,
    /// One for each session and each recall. Some come too early: what they are about has moved on.
    pub(super) timers: BTreeSet<(Time, Timer)>,
    /// We were called late: until then nobody is condemned, who may have said what we did not hear.
    patient_until: Time,
    pub(super) effects: VecDeque<Effect>,
}

impl Server {
    pub fn new(limits: Limits, past: Past, now: Time) -> Server {
        let (table, locks) = (Table::new(past.life), Locks::new(limits.locks));
        let timers = BTreeSet::from([(limits.terms.ended_at(now), Timer::Grace)]);
        Server {
            limits,
            joins: past.life.first_number(),
            past,
            grace: Grace::Runs,
            expected: None,
            sessions: BTreeMap::new(),
            given_up: BTreeSet::new(),
            table,
            locks,
            timers,
            patient_until: Time::ZERO,
            effects: VecDeque::new(),
        }
    }

    /// One that surely had no life before: there is nothing to wait for.
    pub fn first(limits: Limits, now: Time) -> Server {
        let past = Past { life: Life(1), from: Life(1), fenced: BTreeSet::new() };
        Server { grace: Grace::Ended, timers: BTreeSet::new(), ..Server::new(limits, past, now) }
    }

    /// It is known who may come back: the time for it ends when all have. To be called before anybody comes.
    pub fn expect(&mut self, expected: Expected) {
        if self.grace == Grace::Runs {
            self.expected = Some(expected);
            self.end_grace_if_all_are_back();
        }
    }

    /// Those that are there and were not given up, and the last number that one came by.
    pub fn there(&self) -> (Vec<Joined>, Joined) {
        let alive = self.sessions.values().filter(|session| session.standing == Standing::Alive);
        (alive.map(|session| session.joined).collect(), Joined(self.joins))
    }

    /// Those who did not come back yet. `None`: that is not known.
    pub fn missing(&self) -> Option<&BTreeSet<SessionId>> {
        self.expected.as_ref().map(|expected| &expected.sessions)
    }

    /// Leases of earlier lives may be in use: nothing is granted, and nothing begins.
    pub(super) fn in_doubt(&self, now: Time) -> bool {
        self.in_grace()
            && self.expected.as_ref().is_none_or(|past| {
                !past.writing.is_empty() || (!past.keeping.is_empty() && now < past.lapsed)
            })
    }

    /// May somebody else than `session` have kept back what was written to it?
    pub fn may_be_kept_back(&self, session: SessionId, key: &Key) -> bool {
        let missing = self.expected.as_ref().is_some_and(|past| !past.writing.is_empty());
        (self.in_grace() && missing) || self.table.is_kept_back(session, key)
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Who has what is not known yet: looks at locks wait, too.
    pub fn in_grace(&self) -> bool {
        self.grace != Grace::Ended
    }

    /// `F_GETLK` asks them.
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// As [`Locks::waits`].
    pub fn waits(&mut self, pairs_max: usize) -> Vec<Wait> {
        self.locks.waits(pairs_max)
    }

    pub fn is_alive(&self, party: Party) -> bool {
        if party == Party::SERVER {
            return true;
        }
        let session = self.sessions.get(&party.session);
        session.is_some_and(|s| s.joined == party.joined && s.standing == Standing::Alive)
    }

    pub fn poll_effect(&mut self) -> Option<Effect> {
        while let Some((session, number, outcome)) = self.locks.poll_answer() {
            if let Some(found) = self.sessions.get(&session) {
                let by = Party { session, joined: found.joined };
                self.effects.push_back(Effect::Lock { by, number, outcome });
            }
        }
        self.effects.pop_front()
    }

    pub fn handle(&mut self, now: Time, input: Input) {
        self.notice_lateness(now);
        match input {
            Input::Said { by, saying: Saying::Join { number, life, had } } => {
                self.join(now, by, number, (life, had));
            }
            Input::Said { by, saying } => {
                if self.is_alive(by) {
                    self.said(now, by, saying);
                } else {
                    self.tell_stranger(by);
                }
            }
            Input::Begin { by, operation, claims } => self.begin(now, by, operation, &claims),
            Input::End { by, operation } => {
                if self.is_alive(by) {
                    self.table.end(by.session, operation);
                }
            }
            Input::Lock { by, number, request } => self.lock(by, number, request),
            Input::Unlock { by, number, owner, ino, range } => {
                let outcome = if !self.is_alive(by) || owner.session != by.session {
                    Outcome::Gone
                } else if self.locks.unlock(owner, ino, range) {
                    Outcome::Granted
                } else {
                    Outcome::TooMany
                };
                self.effects.push_back(Effect::Lock { by, number, outcome });
            }
            Input::Cancel { by, number } => {
                if self.is_alive(by) {
                    self.locks.cancel(by.session, number);
                }
            }
            Input::Refuse { session, number } => self.locks.refuse(session, number),
            Input::Leave(by) => {
                if self.is_alive(by) {
                    self.end_session(by.session);
                }
            }
            Input::Fenced(session) => {
                if let Some(found) = self.sessions.get_mut(&session)
                    && found.standing == Standing::Condemned
                {
                    found.standing = Standing::Fenced;
                    self.judge(now, session);
                }
            }
            Input::GraceEnded => {
                if self.grace == Grace::Ends {
                    self.grace = Grace::Ended;
                    self.past.from = self.past.life;
                    // What they had is free: they do not come back, also not to another server, which may not know that.
                    self.given_up.append(&mut self.past.fenced);
                    let missing: Vec<SessionId> = self.missing().into_iter().flatten().copied().collect();
                    missing.into_iter().for_each(|session| self.give_up(session));
                }
            }
            Input::Place { session, silent } => self.place(now, session, silent),
            Input::GivenUp(session) => self.give_up(session),
            Input::PlaceGivenUp { session, silent } => self.place_given_up(now, session, silent),
            Input::Lapsed(session) => {
                for key in self.table.lapse(session) {
                    self.begin_waiting(&key);
                }
            }
        }
    }

    /// When something happens by itself, at the earliest.
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    pub fn handle_deadline(&mut self, now: Time) {
        self.notice_lateness(now);
        while let Some((at, timer)) = self.timers.pop_first() {
            if at > now {
                self.timers.insert((at, timer));
                break;
            }
            match timer {
                Timer::Grace => self.end_grace(),
                Timer::Session(session) => self.judge(now, session),
                Timer::Recall(session, key) => self.remind(now, session, key),
            }
        }
    }

    fn end_grace(&mut self) {
        if self.grace == Grace::Runs {
            self.grace = Grace::Ends;
            self.effects.push_back(Effect::EndGrace);
        }
    }

    pub(super) fn end_grace_if_all_are_back(&mut self) {
        if self.expected.as_ref().is_some_and(|expected| expected.sessions.is_empty()) {
            self.end_grace();
        }
    }

    fn notice_lateness(&mut self, now: Time) {
        let late =
            self.next_deadline().is_some_and(|at| now.saturating_sub(at) > self.limits.terms.suspect_after);
        if late && now >= self.patient_until {
            self.patient_until = now.saturating_add(self.limits.terms.suspect_after);
        }
    }

    pub(super) fn tell(&mut self, to: SessionId, telling: Telling) {
        self.effects.push_back(Effect::Tell { to, telling });
    }

    fn said(&mut self, now: Time, by: Party, saying: Saying) {
        let Some(session) = self.sessions.get_mut(&by.session) else { return };
        session.heard = now;
        let joined = by.joined;
        match saying {
            Saying::Join { .. } => (),
            Saying::Renew { number } => {
                session.granted = now;
                self.tell(by.session, Telling::Renewed { joined, number });
            }
            Saying::Want { request, key, rights } => {
                let (rights, number) = self.want(now, by.session, &key, rights);
                self.tell(by.session, Telling::Granted { joined, request, key, rights, number });
            }
            Saying::Returned { key, number, keeps } => {
                if self.table.returned(by.session, &key, number, keeps) {
                    self.begin_waiting(&key);
                }
            }
        }
    }

    fn want(&mut self, now: Time, session: SessionId, key: &Key, rights: Rights) -> (Rights, u64) {
        let mut rights = self.table.grantable(now, session, key, rights);
        let is_new = self.table.holding(session, key).is_none();
        if self.in_doubt(now) || (is_new && self.table.leases() >= self.limits.leases) {
            rights = Rights::NONE;
        }
        let granted = self.table.grant(session, key, rights);
        let mark = self.limits.leases - self.limits.leases / 8;
        if self.table.leases() >= mark
            && let Some((session, key)) = self.table.oldest().cloned()
        {
            self.recall(now, session, key, Rights::NONE);
        }
        granted
    }

    fn begin(&mut self, now: Time, by: Party, operation: u64, claims: &[(Key, Claim)]) {
        let known = self.table.has_begun(by.session, operation);
        let why = if !self.is_alive(by) {
            Some(Refused::Gone)
        } else if claims.len() > self.limits.claims {
            Some(Refused::TooMany)
        } else if known.is_none() && (self.in_doubt(now) || self.table.operations() >= self.limits.operations)
        {
            Some(Refused::Later)
        } else {
            None
        };
        if let Some(why) = why {
            return self.effects.push_back(Effect::NotBegun { by, operation, why });
        }
        match known {
            Some(true) => return self.effects.push_back(Effect::Begun { by, operation }),
            Some(false) => return,
            None => (),
        }
        let rest = now.saturating_add(self.limits.rest);
        for way in self.table.begin((by.session, operation), claims, rest) {
            self.recall(now, way.session, way.key, way.keeps);
        }
        if self.table.try_begin(by.session, operation) {
            self.effects.push_back(Effect::Begun { by, operation });
        }
    }

    fn lock(&mut self, by: Party, number: u64, request: LockRequest) {
        let outcome = if !self.is_alive(by) || request.owner.session != by.session {
            Outcome::Gone
        } else if self.in_grace() {
            Outcome::Later
        } else {
            return self.locks.lock(number, request);
        };
        self.effects.push_back(Effect::Lock { by, number, outcome });
    }

    pub(super) fn recall(&mut self, now: Time, session: SessionId, key: Key, keeps: Rights) {
        let again = now.saturating_add(self.limits.terms.beat_every);
        let deadline = now.saturating_add(self.limits.recall);
        let recall = Recall { keeps, again, deadline };
        if let Some(number) = self.table.recall(session, &key, recall) {
            self.say_recall(session, key.clone(), keeps, number);
            self.timers.insert((again.min(deadline), Timer::Recall(session, key)));
        }
    }

    /// Who is condemned is not asked: what he has is free when he is over.
    fn say_recall(&mut self, to: SessionId, key: Key, keeps: Rights, number: u64) {
        let alive = self.sessions.get(&to).filter(|session| session.standing == Standing::Alive);
        if let Some(joined) = alive.map(|session| session.joined) {
            self.tell(to, Telling::Recall { joined, key, keeps, number });
        }
    }

    fn remind(&mut self, now: Time, session: SessionId, key: Key) {
        let recall = self.table.holding(session, &key).and_then(|holding| holding.recall);
        let alive = self.sessions.get(&session).is_some_and(|s| s.standing == Standing::Alive);
        let Some(mut recall) = recall.filter(|_| alive) else { return };
        let deadline = recall.deadline.max(self.patient_until);
        if now >= deadline {
            return self.condemn(session);
        }
        if now >= recall.again {
            recall.again = now.saturating_add(self.limits.terms.beat_every);
            if let Some((number, keeps)) = self.table.recall_again(session, &key, recall.again) {
                self.say_recall(session, key.clone(), keeps, number);
            }
        }
        self.timers.insert((recall.again.min(deadline), Timer::Recall(session, key)));
    }

    pub(super) fn condemn(&mut self, session: SessionId) {
        let Some(found) = self.sessions.get_mut(&session).filter(|s| s.standing == Standing::Alive) else {
            return;
        };
        found.standing = Standing::Condemned;
        self.locks.stop_waiting(session);
        self.timers.insert((self.limits.terms.ended_at(found.granted), Timer::Session(session)));
        self.effects.push_back(Effect::Fence(session));
    }

    /// Condemns who is silent, and ends who is fenced and whose term is over.
    fn judge(&mut self, now: Time, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else { return };
        match session.standing {
            Standing::Alive => {
                let silent = session.heard.saturating_add(self.limits.silence).max(self.patient_until);
                if now >= silent {
                    self.condemn(id);
                } else {
                    self.timers.insert((silent, Timer::Session(id)));
                }
            }
            // The shell says when.
            Standing::Condemned => (),
            Standing::Fenced => {
                let ended = self.limits.terms.ended_at(session.granted);
                if now >= ended {
                    self.end_session(id);
                } else {
                    self.timers.insert((ended, Timer::Session(id)));
                }
            }
        }
    }

    fn end_session(&mut self, id: SessionId) {
        let ended = self.sessions.remove(&id);
        if ended.is_some_and(|session| session.standing != Standing::Alive) {
            self.given_up.insert(id);
        }
        if self.in_grace() {
            self.past.fenced.insert(id);
        }
        self.locks.release(id);
        self.effects.push_back(Effect::Over(id));
        for key in self.table.forget(id) {
            self.begin_waiting(&key);
        }
    }

    pub(super) fn begin_waiting(&mut self, key: &Key) {
        for (session, operation) in self.table.begin_waiting(key) {
            if session == Party::SERVER.session {
                self.effects.push_back(Effect::Begun { by: Party::SERVER, operation });
                continue;
            }
            let alive = self.sessions.get(&session).filter(|s| s.standing == Standing::Alive);
            if let Some(joined) = alive.map(|session| session.joined) {
                let by = Party { session, joined };
                self.effects.push_back(Effect::Begun { by, operation });
            }
        }
    }
}
