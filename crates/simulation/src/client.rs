//! A client's process: its map, a session for each slot, what it asks until it is answered. What its programs do is in `work`.

use std::collections::BTreeMap;

use cluster::{ClusterMap, tenure::Time};
use lease::coherence::{
    locks::Outcome,
    message::Party,
    rights::{Claim, Key, Rights},
};
use proto::SessionId;
use types::{Ino, Slot};

use crate::{
    cast::{Broken, PROGRAMS, Place, TERMS, session_of, slots},
    message::{CallId, DataWrite, Message, Op, OpAnswer},
    network::Happened,
    program::{Doing, Program, What},
    scene::Scene,
    session::{Session, key_of},
};

/// What a call of the network is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Called {
    Map,
    Said,
    Asked {
        slot: Slot,
        session: SessionId,
        number: u64,
        by: Party,
    },
    Back {
        slot: Slot,
        session: SessionId,
        ino: Ino,
        cell: u64,
        value: u64,
    },
    /// Of a program's own call, to that data server.
    Data {
        program: usize,
        call: CallId,
        server: usize,
    },
}

pub struct Client {
    pub(crate) at: usize,
    starts: u64,
    sessions_made: u64,
    map: Option<ClusterMap>,
    next_map: Time,
    pub sessions: BTreeMap<Slot, Session>,
    pub(crate) programs: Vec<Program>,
    pub(crate) calls: BTreeMap<u64, Called>,
    /// Of each slot, what names were seen to name.
    pub(crate) known: BTreeMap<Slot, Vec<Ino>>,
}

impl Client {
    pub fn new(scene: &Scene, at: usize, starts: u64) -> Client {
        let mut client = Client {
            at,
            starts,
            sessions_made: 0,
            map: None,
            next_map: Time::ZERO,
            sessions: BTreeMap::new(),
            programs: (0..PROGRAMS).map(|_| Program::default()).collect(),
            calls: BTreeMap::new(),
            known: BTreeMap::new(),
        };
        slots().into_iter().for_each(|slot| client.begin_session(scene, slot));
        client
    }

    fn begin_session(&mut self, scene: &Scene, slot: Slot) {
        self.sessions_made += 1;
        let id = session_of(self.at, self.starts * 10_000 + self.sessions_made);
        let session = Session::new(slot, id, scene.local(self.place()), scene.broken);
        self.sessions.insert(slot, session);
    }

    pub fn place(&self) -> Place {
        Place::Client(self.at)
    }

    fn owner(&self, slot: Slot) -> Option<Place> {
        let owner = self.map.as_ref()?.slot(slot).owner?;
        Some(Place::Metadata(owner.0 as usize - 1))
    }

    pub fn run(&mut self, scene: &mut Scene) {
        while let Some(happened) = scene.net.next_event(self.place()) {
            let now = scene.local(self.place());
            match happened {
                Happened::Asked {
                    ticket, message: Message::Tell { slot, session, telling, seen }, ..
                } => {
                    scene.net.answer(ticket, Message::Yes);
                    if let Some(of) = self.sessions.get_mut(&slot).filter(|of| of.id == session) {
                        of.told(now, telling, seen);
                    }
                }
                Happened::Asked { .. } => (),
                Happened::Answered { call, message } => {
                    if let Some(called) = self.calls.remove(&call) {
                        self.answered(scene, called, message);
                    }
                }
                Happened::Failed { call } => {
                    if let Some(called) = self.calls.remove(&call) {
                        self.failed(scene, &called);
                    }
                }
            }
            self.end_sessions(scene);
        }
        self.keep_map(scene);
        let now = scene.local(self.place());
        self.sessions.values_mut().for_each(|session| session.handle_deadline(now));
        self.end_sessions(scene);
        self.write_back(scene);
        self.sessions.values_mut().for_each(|session| session.release(now));
        self.work(scene);
        self.end_sessions(scene);
        self.say(scene);
    }

    pub(crate) fn ask(&mut self, scene: &mut Scene, to: Place, called: Called, message: Message) {
        let call = scene.net.ask(self.place(), to, message, TERMS.lease * 2);
        self.calls.insert(call, called);
    }

    fn keep_map(&mut self, scene: &mut Scene) {
        let now = scene.local(self.place());
        if now >= self.next_map && !self.calls.values().any(|called| *called == Called::Map) {
            self.next_map = now + TERMS.beat_every * 4;
            let at = scene.random.below(scene.servers as u64) as usize;
            self.ask(scene, Place::Metadata(at), Called::Map, Message::WhichMap);
        }
    }

    /// Whoever was given up begins anew, and its programs have lost what they had open.
    fn end_sessions(&mut self, scene: &mut Scene) {
        let over: Vec<Slot> = self.sessions.values().filter(|s| s.over).map(|s| s.slot).collect();
        for slot in over {
            scene.tally.gone += 1;
            scene.note(|| format!("client {} has lost its session with {slot:?}", self.at));
            for program in &mut self.programs {
                if program.lose(slot) {
                    scene.tally.errors += 1;
                }
            }
            self.begin_session(scene, slot);
        }
    }

    /// What is to be said and asked, and on nobody's way.
    fn say(&mut self, scene: &mut Scene) {
        let now = scene.local(self.place());
        for slot in slots() {
            let Some(owner) = self.owner(slot) else { continue };
            let Some(session) = self.sessions.get_mut(&slot) else { continue };
            let mut messages: Vec<(Called, Message)> =
                std::mem::take(&mut session.sayings).into_iter().map(|say| (Called::Said, say)).collect();
            if session.is_in() {
                messages.extend(due(scene, session, now));
            }
            for (called, message) in messages {
                self.ask(scene, owner, called, message);
            }
        }
    }

    fn answered(&mut self, scene: &mut Scene, called: Called, message: Message) {
        match (called, message) {
            (Called::Map, Message::Map(Some(map))) => {
                if self.map.as_ref().is_none_or(|known| known.epoch() < map.epoch()) {
                    self.map = Some(*map);
                }
            }
            (Called::Said, Message::WrongOwner) => self.next_map = Time::ZERO,
            (Called::Asked { slot, session, number, by }, message) => {
                self.asked(scene, (slot, session, number, by), message);
            }
            (Called::Back { slot, session, ino, cell, value }, message) => {
                let Some(of) = self.sessions.get_mut(&slot).filter(|of| of.id == session) else { return };
                let cache = of.cache(ino);
                match message {
                    Message::Value(Some(_)) if cache.dirty.get(&cell) == Some(&value) => {
                        scene.content.finished(value);
                        cache.dirty.remove(&cell);
                        cache.pages.insert(cell, Some(value));
                    }
                    // It cannot be written: its program would be told at fsync.
                    Message::Value(None) => {
                        cache.dirty.remove(&cell);
                        cache.drops += 1;
                        scene.content.not_written(scene.net.now, (ino, cell), session);
                    }
                    _ => (),
                }
            }
            (Called::Data { program, call, server }, message) => {
                self.data_answered(scene, program, call, server, &message);
            }
            (Called::Map | Called::Said, _) => (),
        }
    }

    fn failed(&mut self, scene: &mut Scene, called: &Called) {
        match called {
            Called::Map | Called::Said => self.next_map = Time::ZERO,
            Called::Asked { slot, session, number, .. } => {
                self.next_map = Time::ZERO;
                if let Some(of) = self.sessions.get_mut(slot).filter(|of| of.id == *session)
                    && let Some(asking) = of.asking.get_mut(number)
                {
                    asking.on_way = None;
                }
            }
            Called::Back { .. } => (),
            Called::Data { program, call, server } => self.data_failed(scene, *program, *call, *server),
        }
    }

    fn asked(&mut self, scene: &mut Scene, of: (Slot, SessionId, u64, Party), message: Message) {
        let (slot, id, number, by) = of;
        let now = scene.local(self.place());
        let Some(session) = self.sessions.get_mut(&slot).filter(|session| session.id == id) else { return };
        let present = by == session.party() && !session.core.is_joining();
        let Some(asking) = session.asking.get_mut(&number) else { return };
        asking.on_way = None;
        let answer = match message {
            Message::Answer(answer) => answer,
            Message::WrongOwner => {
                self.next_map = Time::ZERO;
                asking.again = now + TERMS.beat_every / 2;
                return;
            }
            _ => {
                asking.again = now + TERMS.beat_every;
                return;
            }
        };
        // What an earlier joining answered of claims and locks is not in what the present one was told.
        let lasts = !matches!(asking.op, Op::Names { .. } | Op::End { .. } | Op::Cancel { .. });
        if lasts && !present {
            return;
        }
        let Some(asking) = session.asking.remove(&number) else { return };
        self.done(scene, slot, number, asking.op, (answer, present, asking.program, asking.call));
    }

    fn done(
        &mut self,
        scene: &mut Scene,
        slot: Slot,
        number: u64,
        op: Op,
        (answer, present, program, call): (OpAnswer, bool, Option<usize>, CallId),
    ) {
        let now = scene.local(self.place());
        let Some(session) = self.sessions.get_mut(&slot) else { return };
        match (&op, &answer) {
            (Op::Names { op, holds }, OpAnswer::Names(answer)) => {
                if op.changes() {
                    session.changing -= 1;
                    session.forget_names();
                }
                if let (true, true, Some((key, rights))) = (*holds, present, key_of(op)) {
                    session.held.insert(number, vec![(key.clone(), Claim::Look)]);
                    session.want(now, key, rights.with(Rights::ATTRIBUTES), Some(number));
                }
                if let Some(program) = program {
                    self.name_answered(scene, program, slot, op, answer);
                }
                return;
            }
            (Op::Open { ino, claim }, _) => {
                session.held.insert(number, vec![(Key::Inode(*ino), *claim)]);
                session.cache(*ino).drops += 1;
            }
            (Op::Lock(request), OpAnswer::Lock(Outcome::Granted)) => {
                let lease::coherence::locks::LockRequest { ino, owner, range, kind, pid, .. } = *request;
                let lock = lease::coherence::locks::HadLock { ino, owner, range, kind, pid };
                session.locks.insert(owner, lock);
                scene.tally.locks += 1;
                scene.note(|| format!("client {} has {lock:?}", self.at));
            }
            _ => (),
        }
        if let Some(program) = program {
            self.finish(scene, program, call);
        }
    }

    /// A call of a program that needs no judging ends.
    pub(crate) fn finish(&mut self, scene: &mut Scene, program: usize, call: CallId) {
        let Some(program) = self.programs.get_mut(program) else { return };
        if program.doing.as_ref().is_some_and(|doing| doing.call == call)
            && let Some(Doing { what, .. }) = program.doing.take()
        {
            match what {
                What::Open { slot, ino, claim, number } => program.open(slot, ino, claim, number),
                What::Close { .. } => program.file = None,
                What::Lock { .. }
                | What::Unlock { .. }
                | What::Names { .. }
                | What::Read { .. }
                | What::Write { .. }
                | What::Sync { .. }
                | What::Cut { .. } => (),
            }
            scene.tally.calls += 1;
        }
    }

    /// What is given back, and at the end all.
    fn write_back(&mut self, scene: &mut Scene) {
        let mut wanted = Vec::new();
        for session in self.sessions.values().filter(|session| session.core.joined().0 != 0) {
            let all = self.programs.iter().any(|program| program.flushes(session.slot))
                || scene.net.now >= crate::cast::WORK_UNTIL;
            for (ino, cell, value) in session.to_write_back(all) {
                let (slot, session_id) = (session.slot, session.id);
                let under_way = |called: &Called| matches!(called, Called::Back { session, ino: i, cell: c, .. } if (*session, *i, *c) == (session_id, ino, cell));
                if !self.calls.values().any(under_way) {
                    let called = Called::Back { slot, session: session_id, ino, cell, value };
                    let write = DataWrite { slot, by: session.party(), ino, cell, value, kept: true };
                    wanted.push((crate::cast::spot(cell).0, called, write));
                }
            }
        }
        for (server, called, write) in wanted {
            self.ask(scene, Place::Data(server), called, Message::Write(write));
        }
    }

    pub fn is_at_rest(&self, scene: &Scene) -> bool {
        let now = scene.local(self.place());
        let idle = self.programs.iter().all(|p| p.doing.is_none() && p.file.is_none());
        idle && self.sessions.values().all(|session| session.is_at_rest(now))
    }

    /// Who waits for what, for people.
    pub fn waits(&self) -> String {
        let ops: Vec<_> = self
            .sessions
            .values()
            .flat_map(|s| s.asking.iter().map(|(n, a)| format!("{n}: {:?} {:?}", a.op, a.on_way)))
            .collect();
        let dirty: Vec<_> = self.sessions.values().map(Session::is_dirty).collect();
        let held: Vec<_> = self.sessions.values().map(|s| (&s.held, &s.releases)).collect();
        format!("client {}: {:?}, asks {ops:?}, dirty {dirty:?}, holds {held:?}", self.at, self.programs)
    }
}

/// Requests that are not on their way, each under its number.
fn due(scene: &mut Scene, session: &mut Session, now: Time) -> Vec<(Called, Message)> {
    let numbers: Vec<u64> = session
        .asking
        .iter()
        .filter(|(_, asking)| asking.on_way.is_none() && asking.again <= now)
        .map(|(number, _)| *number)
        .collect();
    let (slot, by, acknowledged) = (session.slot, session.party(), session.acknowledged());
    let mut messages = Vec::new();
    for number in numbers {
        let mut number = number;
        let again = session.asking.get(&number).is_some_and(|asking| asking.times > 0);
        scene.tally.again += u64::from(again);
        if again
            && scene.broken == Broken::NewNumber
            && session.asking.get(&number).is_some_and(|a| matches!(a.op, Op::Names { .. }))
        {
            number = session.renumber(number).unwrap_or(number);
        }
        let Some(asking) = session.asking.get_mut(&number) else { continue };
        asking.on_way = Some(by);
        asking.times += 1;
        let message =
            Message::Ask { slot, by, number, acknowledged, call: asking.call, op: asking.op.clone() };
        messages.push((Called::Asked { slot, session: session.id, number, by }, message));
    }
    messages
}
