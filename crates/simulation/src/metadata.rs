//! A metadata server's process: its membership, the map, and the slots that are its own. It says and decides nothing in a slot but under a
//! grant of its membership; what it does after all, the row's fence stops.

use std::collections::{BTreeMap, BTreeSet};

use cluster::{
    ClusterMap, Epoch, NodeId, SlotEpoch,
    membership::Membership,
    tenure::{Terms, Time},
};
use lease::coherence::{message::Life, server::Effect};
use types::Slot;

use crate::{
    cast::{Broken, COORDINATORS, Place, TERMS, slots},
    domain::{Domain, Taken},
    message::{Answered, Message, OpAnswer, State},
    network::{Happened, Ticket},
    scene::Scene,
    tail::{Disk, Journal},
};

#[derive(Clone, PartialEq, Eq, Debug)]
enum Called {
    Map,
    Incarnation,
    Said,
    TakeOn { slot: Slot, epoch: SlotEpoch, incarnation: u64, writer: u64 },
    Commit { slot: Slot, stream: u64, number: u64 },
    Task { slot: Slot, stream: u64, effect: Effect, to: Place },
}

pub struct Metadata {
    at: usize,
    pub membership: Membership,
    map: Option<ClusterMap>,
    incarnation: Option<u64>,
    next_look: Time,
    pub domains: BTreeMap<Slot, Domain>,
    calls: BTreeMap<u64, Called>,
    /// Of slots that were let go or are to come.
    states: BTreeMap<Slot, State>,
    /// Not taken on again until then.
    rests: BTreeMap<Slot, Time>,
    pub journal: Option<Journal>,
}

impl Metadata {
    /// `starts`: how often it was started before.
    pub fn new(scene: &mut Scene, at: usize, starts: u64, disk: Disk) -> Metadata {
        let terms = match scene.broken {
            Broken::MemberTerms => Terms { lease: TERMS.lease * 6, ..TERMS },
            _ => TERMS,
        };
        let now = scene.local(Place::Metadata(at));
        Metadata {
            at,
            membership: Membership::new(Place::node_id(at), terms, starts * 1_000_000, now),
            map: None,
            incarnation: None,
            next_look: now,
            domains: BTreeMap::new(),
            calls: BTreeMap::new(),
            states: BTreeMap::new(),
            rests: BTreeMap::new(),
            journal: scene.journals.then(|| Journal::new(scene, at, disk)),
        }
    }

    fn place(&self) -> Place {
        Place::Metadata(self.at)
    }

    fn id(&self) -> NodeId {
        Place::node_id(self.at)
    }

    /// I-MEMBER-1; with journals, I-TAIL-4.
    pub fn may_act(&self, now: Time, scene: &Scene) -> bool {
        if let Some(journal) = &self.journal {
            return journal.may_answer(now, scene);
        }
        let joined = self.map.as_ref().and_then(|map| map.node(self.id())).map(|node| node.joined);
        self.membership.may_act(now) && joined.is_some() && joined == self.membership.joined()
    }

    fn epoch(&self) -> Epoch {
        self.map.as_ref().map_or(Epoch(0), ClusterMap::epoch)
    }

    pub fn run(&mut self, scene: &mut Scene) {
        while let Some(happened) = scene.net.next_event(self.place()) {
            match happened {
                Happened::Asked { ticket, message: Message::Tail { from, said }, .. } => {
                    scene.net.answer(ticket, Message::Yes);
                    self.journal.iter_mut().for_each(|journal| journal.heard(scene, from, *said.clone()));
                }
                Happened::Asked { from: _, ticket, message } => self.asked(scene, ticket, message),
                Happened::Answered { call, message: Message::Told(told) } => {
                    self.journal.iter_mut().for_each(|journal| journal.told(scene, call, told.clone()));
                }
                Happened::Answered { call, message } => {
                    if let Some(called) = self.calls.remove(&call) {
                        self.answered(scene, called, message);
                    }
                }
                Happened::Failed { call } => {
                    drop(self.calls.remove(&call));
                    self.journal.iter_mut().for_each(|journal| journal.failed(call));
                }
            }
            self.effects(scene);
        }
        self.be_member(scene);
        self.begin_anew(scene);
        self.own(scene);
        let now = scene.local(self.place());
        if self.may_act(now, scene) {
            for domain in self.domains.values_mut() {
                if domain.lease.next_deadline().is_some_and(|at| at <= now) {
                    domain.lease.handle_deadline(now);
                    assert!(domain.lease.next_deadline().is_none_or(|at| at > now), "no busy loop");
                }
            }
        }
        self.effects(scene);
        self.keep_journal(scene);
        self.send(scene);
    }

    fn effects(&mut self, scene: &mut Scene) {
        let (now, here) = (scene.local(self.place()), self.place());
        if self.journal.as_ref().is_some_and(|journal| !journal.may_answer(now, scene)) {
            return;
        }
        self.domains.values_mut().for_each(|domain| domain.effects(now, scene, here));
    }

    fn asked(&mut self, scene: &mut Scene, ticket: Ticket, message: Message) {
        let now = scene.local(self.place());
        let acts = self.may_act(now, scene);
        let answer = match message {
            Message::Grant(answer) => {
                self.membership.handle(now, answer);
                Message::Yes
            }
            Message::Publish(difference) => {
                // A gap is for the next whole map.
                let _ = self.map.as_mut().map(|map| map.apply(&difference));
                Message::Yes
            }
            Message::LetGo { slot } => self.let_go(scene, slot, acts),
            Message::Bring(state) => {
                self.states.insert(state.slot, *state);
                Message::Yes
            }
            Message::WhichMap => Message::Map(self.map.clone().map(Box::new)),
            Message::Lease { slot, by, saying } => match self.domains.get_mut(&slot).filter(|_| acts) {
                Some(domain) => {
                    domain.said(now, scene, by, saying);
                    Message::Yes
                }
                None => Message::WrongOwner,
            },
            Message::Ask { slot, by, number, acknowledged, call, op } => {
                match self.domains.get_mut(&slot).filter(|_| acts) {
                    Some(domain) => {
                        return domain.ask(now, scene, ticket, (by, number, acknowledged), call, op);
                    }
                    None => Message::WrongOwner,
                }
            }
            _ => return,
        };
        scene.net.answer(ticket, answer);
    }

    fn let_go(&mut self, scene: &mut Scene, slot: Slot, acts: bool) -> Message {
        let now = scene.local(self.place());
        if let Some(domain) = self.domains.get_mut(&slot).filter(|_| acts) {
            if let Some(journal) = self.journal.as_mut().filter(|journal| !journal.has_all_of(slot)) {
                domain.closed_until = now + TERMS.beat_every * 2;
                journal.carry_all();
                return Message::Later;
            }
            let Some(state) = domain.let_go(now, scene) else { return Message::Later };
            if scene.broken != Broken::ServedOn {
                self.domains.remove(&slot);
            }
            self.rests.insert(slot, now + TERMS.lease * 2);
            self.journal.iter_mut().for_each(|journal| journal.free(slot, state.life));
            self.states.insert(slot, state);
        }
        // It is asked again if the answer was lost.
        let rests = self.rests.get(&slot).is_some_and(|until| now < *until);
        if self.journal.as_ref().is_some_and(|journal| journal.is_freeing(slot)) {
            return Message::Later;
        }
        let state = self.states.get(&slot).filter(|_| rests);
        state.map_or(Message::WrongOwner, |state| Message::LetGone(Box::new(state.clone())))
    }

    fn answered(&mut self, scene: &mut Scene, called: Called, message: Message) {
        let now = scene.local(self.place());
        match (called, message) {
            (Called::Map, Message::Map(Some(map))) if self.epoch() < map.epoch() => self.map = Some(*map),
            (Called::Incarnation, Message::IncarnationIs(number)) => {
                // What it answered may be gone: nothing of what is here is worth anything.
                if self.incarnation.is_some_and(|known| known != number) {
                    self.domains.clear();
                }
                self.incarnation = Some(number);
            }
            (Called::TakeOn { slot, epoch, incarnation, writer }, Message::TakenOn { past, view })
                if self.owns(slot) == Some(epoch)
                    && self.incarnation == Some(incarnation)
                    && self.writer() == writer =>
            {
                let taken = Taken { slot, owner: self.id(), epoch, incarnation };
                let before = past.life.0.checked_sub(1).map(Life);
                self.journal.iter_mut().for_each(|journal| journal.serve(slot, (*view).clone()));
                let mut domain = Domain::begin(scene, &taken, past, *view, now);
                let state = self.states.remove(&slot);
                if let Some(state) =
                    state.filter(|of| Some(of.life) == before && of.incarnation == incarnation)
                {
                    domain.go_on(now, scene, state);
                }
                if let Some(journal) = &mut self.journal {
                    domain.inherit(scene, journal.inherited.remove(&slot));
                    domain.store_answers(scene, journal);
                }
                self.domains.insert(slot, domain);
            }
            (Called::Commit { slot, stream, number }, message) => {
                let Some(domain) = self.domains.get_mut(&slot).filter(|d| d.stream == stream) else { return };
                match message {
                    Message::Yes => drop(domain.pending.remove(&number)),
                    Message::Fenced => {
                        scene.note(|| format!("{:?} is fenced off {slot:?}", self.at));
                        self.domains.remove(&slot);
                        self.next_look = now;
                    }
                    _ => (),
                }
            }
            (Called::Task { slot, stream, effect, to }, Message::Yes) => {
                let Some(domain) = self.domains.get_mut(&slot).filter(|d| d.stream == stream) else { return };
                let Some(task) = domain.tasks.iter_mut().find(|task| task.effect == effect) else { return };
                task.to.remove(&to);
                if task.to.is_empty() {
                    domain.tasks.retain(|task| task.effect != effect);
                    domain.task_done(now, scene, &effect);
                }
            }
            (Called::Task { slot, stream, .. }, Message::Fenced)
                if self.domains.get(&slot).is_some_and(|domain| domain.stream == stream) =>
            {
                self.domains.remove(&slot);
            }
            _ => (),
        }
    }

    fn ask(&mut self, scene: &mut Scene, to: Place, called: Called, message: Message) {
        let call = scene.net.ask(self.place(), to, message, TERMS.lease);
        self.calls.insert(call, called);
    }

    fn be_member(&mut self, scene: &mut Scene) {
        let now = scene.local(self.place());
        if let Some(saying) = self.membership.handle_deadline(now) {
            for at in 0..COORDINATORS {
                self.ask(scene, Place::Coordinator(at), Called::Said, Message::Said(saying));
            }
        }
        if self.membership.joined().is_none() && self.journal.is_none() {
            self.domains.clear();
        }
        if now >= self.next_look {
            self.next_look = now + TERMS.beat_every * 2;
            for (called, message) in
                [(Called::Map, Message::FetchMap), (Called::Incarnation, Message::Incarnation)]
            {
                if !self.calls.values().any(|of| *of == called) {
                    self.ask(scene, Place::Database, called, message);
                }
            }
        }
    }

    /// Under which epoch the map gives it to us.
    fn owns(&self, slot: Slot) -> Option<SlotEpoch> {
        let entry = self.map.as_ref()?.slot(slot);
        (entry.owner == Some(self.id())).then_some(entry.epoch)
    }

    fn own(&mut self, scene: &mut Scene) {
        let now = scene.local(self.place());
        let owned: BTreeMap<Slot, SlotEpoch> =
            slots().into_iter().filter_map(|slot| Some((slot, self.owns(slot)?))).collect();
        let map = self.map.as_ref();
        // What nobody has by the map is its owner's by the rows.
        let nobodys = |slot: &Slot| map.is_none_or(|map| map.slot(*slot).owner.is_none());
        let rows = self.journal.is_some();
        self.domains.retain(|slot, domain| owned.get(slot) == Some(&domain.epoch) || rows && nobodys(slot));
        self.free_strays();
        let Some(incarnation) = self.incarnation.filter(|_| self.may_act(now, scene)) else { return };
        let writer = self.writer();
        for (slot, epoch) in owned {
            if self.rests.get(&slot).is_some_and(|until| now < *until) {
                continue;
            }
            let called = Called::TakeOn { slot, epoch, incarnation, writer };
            if self.journal.as_ref().is_some_and(|journal| !journal.has_all_of(slot)) {
                continue;
            }
            if !self.domains.contains_key(&slot) && !self.calls.values().any(|of| *of == called) {
                let message = Message::TakeOn { slot, owner: self.id(), epoch, incarnation, writer };
                self.ask(scene, Place::Database, called, message);
            }
        }
    }

    /// As a writer in the database.
    fn writer(&self) -> u64 {
        self.journal.as_ref().map_or(0, Journal::life)
    }

    /// Somebody went on in its place: it begins with empty hands.
    fn begin_anew(&mut self, scene: &mut Scene) {
        let Some(journal) = self.journal.take_if(|journal| journal.is_over) else { return };
        scene.note(|| format!("metadata {} begins anew", self.at));
        self.domains.clear();
        self.states.clear();
        self.rests.clear();
        self.journal = Some(Journal::new(scene, self.at, journal.disk));
    }

    /// What is its own by the rows, and another's by the map, it does not keep from them.
    fn free_strays(&mut self) {
        let (Some(journal), Some(map)) = (&mut self.journal, &self.map) else { return };
        for (slot, epoch, life) in std::mem::take(&mut journal.rows) {
            let entry = map.slot(slot);
            let others = entry.owner.is_some_and(|owner| owner != Place::node_id(self.at));
            if others && entry.epoch > epoch && !self.domains.contains_key(&slot) && journal.has_all_of(slot)
            {
                journal.free(slot, life);
            }
        }
    }

    /// What was done goes into the journal, and what may be answered is.
    fn keep_journal(&mut self, scene: &mut Scene) {
        let standby = self.map.as_ref().and_then(|map| map.standby_of(self.id()));
        let Some(journal) = &mut self.journal else { return };
        for (slot, domain) in &mut self.domains {
            for commit in domain.new_commits() {
                let known = commit.done.as_ref().map(|done| {
                    let answer = OpAnswer::Names(done.answer.clone());
                    (done.by, (*slot, Answered { answer, goes_along: true }))
                });
                journal.add(scene, *slot, Some(commit), known.into_iter().collect());
            }
        }
        for (slot, stream, number) in journal.run(scene, standby) {
            if let Some(domain) = self.domains.get_mut(&slot).filter(|domain| domain.stream == stream) {
                domain.pending.remove(&number);
            }
        }
        self.effects(scene);
    }

    /// What is not written, and not told, and on nobody's way.
    fn send(&mut self, scene: &mut Scene) {
        let mut wanted: Vec<(Place, Called, Message)> = Vec::new();
        let commits: BTreeSet<(u64, u64)> = self
            .calls
            .values()
            .filter_map(|called| match called {
                Called::Commit { stream, number, .. } => Some((*stream, *number)),
                _ => None,
            })
            .collect();
        for (slot, domain) in &self.domains {
            let (slot, stream) = (*slot, domain.stream);
            for (number, commit) in domain.pending.iter().filter(|_| self.journal.is_none()) {
                if !commits.contains(&(stream, *number)) {
                    let called = Called::Commit { slot, stream, number: *number };
                    wanted.push((Place::Database, called, Message::Commit(Box::new(commit.clone()))));
                }
            }
            for task in &domain.tasks {
                for to in &task.to {
                    let called = Called::Task { slot, stream, effect: task.effect.clone(), to: *to };
                    if self.calls.values().any(|of| *of == called) {
                        continue;
                    }
                    let message = match (&task.effect, to) {
                        (Effect::Fence(session), Place::Database) => {
                            Message::Verdict { slot, epoch: domain.epoch, session: *session }
                        }
                        (Effect::Fence(session), _) => {
                            Message::Refuse { slot, life: domain.life, session: *session }
                        }
                        (_, Place::Database) => {
                            Message::EndGrace { slot, epoch: domain.epoch, life: domain.life }
                        }
                        (_, _) => Message::LifeFrom { slot, life: domain.life },
                    };
                    wanted.push((*to, called, message));
                }
            }
        }
        for (to, called, message) in wanted {
            self.ask(scene, to, called, message);
        }
    }

    pub fn is_at_rest(&self, now: Time, scene: &Scene) -> bool {
        let journal = self.journal.as_ref().is_none_or(Journal::is_at_rest);
        journal && self.may_act(now, scene) && self.domains.values().all(Domain::is_at_rest)
    }
}
