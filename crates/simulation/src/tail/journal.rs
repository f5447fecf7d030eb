//! A metadata server's side: its journal, the machine that says what may be answered, and what it asks of the database.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use cluster::{
    NodeId, SlotEpoch,
    tail::{
        owner::{self, Owner},
        row::Change,
        standby,
    },
    tenure::Time,
};
use lease::coherence::message::Life;
use types::Slot;

use super::{CARRY_EVERY, LEASE, TERMS, copies::Copying, disk::Disk};
use crate::{
    cast::{Broken, Place},
    message::{
        Ask, Commit, JournalRecords as Records, Known, Message, Record, Taken, Writer, WriterTold as Told,
    },
    records,
    scene::Scene,
};

/// What a call to the database is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Open,
    Claim,
    Renew,
    Write(u64),
    Apply(u64),
    Look(NodeId),
    Take(NodeId),
    Free(Slot),
}

/// What the one gone on for had in a slot.
pub struct Inherited {
    pub life: Life,
    pub knows: bool,
    pub answers: Known,
}

/// A record of this domain and number may be answered.
pub type Released = (Slot, u64, u64);

pub struct Journal {
    pub(super) place: Place,
    pub(super) me: NodeId,
    pub(super) life: u64,
    session: Option<u64>,
    opened: bool,
    replaying: bool,
    calls: BTreeMap<u64, (Asked, u64)>,
    pub(super) write: Option<(u64, Change<NodeId>)>,
    pub(super) carry: Option<u64>,
    next_carry: Time,
    next_renew: Time,
    pub(super) looks: BTreeSet<NodeId>,
    pub(super) take: Option<(NodeId, Ask)>,
    /// Slots that are to be anybody's.
    frees: BTreeMap<Slot, Life>,
    copy: u64,
    pub(super) machine: Option<Owner>,
    fed: Option<NodeId>,
    /// For the standby.
    pub(super) kept: Records,
    pub(super) unreleased: Records,
    /// What is released, as the truth has it.
    safe: BTreeMap<Slot, records::Records>,
    /// Under their records.
    pub(super) known: BTreeMap<u64, Known>,
    pub(super) released: Vec<Released>,
    pub inherited: BTreeMap<Slot, Inherited>,
    pub(super) copies: BTreeMap<NodeId, Copying>,
    /// What the rows say that is ours.
    pub rows: Vec<(Slot, SlotEpoch, Life)>,
    pub disk: Disk,
    /// Somebody went on in our place: this process begins anew.
    pub is_over: bool,
}

impl Journal {
    pub fn new(scene: &mut Scene, at: usize, disk: Disk) -> Journal {
        let place = Place::Metadata(at);
        let (now, me) = (scene.local(place), Place::node_id(at));
        let copies = disk.files.iter().map(|(of, file)| {
            let has = (file.copy, file.base, file.last());
            (*of, Copying::new(standby::Standby::found(TERMS, me, now, has)))
        });
        Journal {
            place,
            me,
            life: scene.number(),
            session: None,
            opened: false,
            replaying: false,
            calls: BTreeMap::new(),
            write: None,
            carry: None,
            next_carry: now,
            next_renew: now,
            looks: BTreeSet::new(),
            take: None,
            frees: BTreeMap::new(),
            copy: 0,
            machine: None,
            fed: None,
            kept: Records::new(),
            unreleased: Records::new(),
            safe: BTreeMap::new(),
            known: BTreeMap::new(),
            released: Vec::new(),
            inherited: BTreeMap::new(),
            copies: copies.collect(),
            rows: Vec::new(),
            disk,
            is_over: false,
        }
    }

    /// Nothing is said in a slot otherwise.
    pub fn may_answer(&self, now: Time, scene: &Scene) -> bool {
        let any = scene.broken == Broken::TailTenure;
        self.machine.as_ref().is_some_and(|machine| any || machine.may_answer(now))
    }

    /// The database has all of this slot.
    pub fn has_all_of(&self, slot: Slot) -> bool {
        !self.disk.journal.values().any(|record| record.slot == slot)
    }

    pub fn carry_all(&mut self) {
        self.next_carry = Time::ZERO;
    }

    pub fn free(&mut self, slot: Slot, life: Life) {
        self.frees.insert(slot, life);
        for known in self.known.values_mut() {
            known.retain(|_, (of, _)| *of != slot);
        }
    }

    pub fn is_freeing(&self, slot: Slot) -> bool {
        self.frees.contains_key(&slot)
    }

    /// The row says that the copy is complete, and nothing else is on its way there.
    pub fn is_held(&self) -> bool {
        self.machine.as_ref().is_some_and(Owner::is_complete)
    }

    pub fn life(&self) -> u64 {
        self.life
    }

    pub fn is_at_rest(&self) -> bool {
        let complete =
            self.machine.as_ref().is_some_and(|machine| self.fed.is_none() || machine.is_complete());
        complete && self.disk.journal.is_empty() && self.frees.is_empty()
    }

    pub fn waits(&self) -> String {
        let machine = self.machine.as_ref().map(|m| (m.is_complete(), m.lag()));
        let calls: Vec<_> = self.calls.values().collect();
        format!(
            "opened {}, machine {machine:?} of {:?}, {} records, {calls:?}, frees {:?}",
            self.opened,
            self.fed,
            self.disk.journal.len(),
            self.frees
        )
    }

    /// A slot is served from now on.
    pub fn serve(&mut self, slot: Slot, view: records::Records) {
        self.safe.insert(slot, view);
        self.frees.remove(&slot);
    }

    pub fn add(&mut self, scene: &mut Scene, slot: Slot, commit: Option<Commit>, known: Known) {
        let Some(machine) = &mut self.machine else { return };
        self.disk.last += 1;
        let number = self.disk.last;
        self.known.insert(number, known.clone());
        let record = Rc::new(Record { id: scene.number(), slot, commit, known });
        self.disk.journal.insert(number, record.clone());
        self.kept.insert(number, record.clone());
        self.unreleased.insert(number, record);
        machine.handle(scene.local(self.place), owner::Input::Added);
        if scene.broken == Broken::EarlyTail {
            self.release(scene, number);
        }
    }

    /// What was added up to now may be answered, and counts.
    pub(super) fn release(&mut self, scene: &mut Scene, up_to: u64) {
        let rest = self.unreleased.split_off(&(up_to + 1));
        for record in std::mem::replace(&mut self.unreleased, rest).into_values() {
            let counts = scene.tail.released(record.id, self.me);
            let Some(commit) = &record.commit else { continue };
            self.released.push((record.slot, commit.stream, commit.number));
            let Some(safe) = self.safe.get_mut(&record.slot) else { continue };
            safe.apply(&commit.changes);
            if let Some(done) = commit.done.as_ref().filter(|_| counts) {
                scene.note(|| format!("may be answered: {done:?}"));
                let verdict = scene.names.commit(scene.net.now, done, safe);
                scene.judge(verdict);
            }
        }
    }

    /// Time, the machines, and what they want. What may be answered now comes back.
    pub fn run(&mut self, scene: &mut Scene, standby: Option<NodeId>) -> Vec<Released> {
        let now = scene.local(self.place);
        if let Some(machine) = &mut self.machine {
            if self.fed != standby {
                self.fed = standby;
                machine.handle(now, owner::Input::Standby(standby));
            }
            if machine.next_deadline().is_some_and(|at| now >= at) {
                machine.handle_deadline(now);
                assert!(machine.next_deadline().is_none_or(|at| at > now), "no busy loop");
            }
            if now >= self.next_carry && self.carry.is_none() {
                self.next_carry = now + CARRY_EVERY;
                let may = machine.may_apply();
                self.carry = self.disk.journal.keys().next().filter(|first| **first <= may).map(|_| may);
            }
        }
        self.tend_copies(scene);
        self.owner_effects(scene);
        if let Some(machine) = &self.machine {
            // All that was to be sent is.
            self.kept = self.kept.split_off(&(machine.kept_above() + 1));
        }
        self.standby_effects(scene);
        self.ask_all(scene);
        std::mem::take(&mut self.released)
    }

    fn ask_all(&mut self, scene: &mut Scene) {
        let now = scene.local(self.place);
        if !self.opened {
            return self.ask(scene, Asked::Open, Ask::Open);
        }
        if self.session.is_none() {
            return self.ask(scene, Asked::Claim, Ask::Claim);
        }
        if now >= self.next_renew {
            self.next_renew = now + LEASE / 4;
            self.ask(scene, Asked::Renew, Ask::Renew);
        }
        if let Some((write, change)) = self.write.take() {
            self.ask(scene, Asked::Write(write), Ask::Write { change });
        }
        if let Some(up_to) = self.carry {
            let records =
                self.disk.journal.range(..=up_to).map(|(number, record)| (*number, record.clone())).collect();
            self.ask(scene, Asked::Apply(up_to), Ask::Apply { up_to, records });
        }
        for of in std::mem::take(&mut self.looks) {
            self.ask(scene, Asked::Look(of), Ask::Look { of });
        }
        if let Some((from, take)) = self.take.take() {
            self.ask(scene, Asked::Take(from), take);
        }
        for (slot, life) in self.frees.clone() {
            self.ask(scene, Asked::Free(slot), Ask::Free { slot, life });
        }
    }

    fn ask(&mut self, scene: &mut Scene, asked: Asked, ask: Ask) {
        if self.calls.values().any(|(of, _)| *of == asked) {
            return;
        }
        let session = self.session.unwrap_or(0);
        let by = Writer { by: self.me, life: self.life, session };
        let message = Message::Writer(by, Box::new(ask));
        let call = scene.net.ask(self.place, Place::Database, message, crate::cast::TERMS.lease);
        self.calls.insert(call, (asked, session));
    }

    /// Nothing is known of it: it is asked again under another session.
    pub fn failed(&mut self, call: u64) {
        match self.calls.remove(&call) {
            Some((Asked::Write(_) | Asked::Apply(_) | Asked::Take(_) | Asked::Free(_), session)) => {
                self.session.take_if(|now| *now == session);
            }
            Some((Asked::Open | Asked::Claim | Asked::Renew | Asked::Look(_), _)) | None => (),
        }
    }

    pub fn told(&mut self, scene: &mut Scene, call: u64, told: Told) {
        let Some((asked, session)) = self.calls.remove(&call) else { return };
        let now = scene.local(self.place);
        match (asked, told) {
            (Asked::Open, Told::Opened { session, copy, applied, taken }) => {
                (self.opened, self.session, self.copy) = (true, Some(session), copy);
                self.disk.last = self.disk.last.max(applied);
                if taken != std::mem::replace(&mut self.disk.taken, taken) {
                    // What is in the journal and not there was never answered.
                    self.disk.journal.clear();
                }
                self.replaying = true;
                self.carry = Some(self.disk.last);
            }
            (_, Told::Fenced) => {
                if let Some(machine) = &mut self.machine {
                    machine.handle(now, owner::Input::Fenced);
                }
                self.is_over = true;
            }
            (_, Told::NotDone) => drop(self.session.take_if(|now| *now == session)),
            (Asked::Claim, Told::Claimed(session)) => self.session = Some(session),
            (Asked::Renew, Told::Renewed(rows)) => self.rows = rows,
            (Asked::Write(write), Told::Done) => {
                self.machine.iter_mut().for_each(|m| m.handle(now, owner::Input::Written { write }));
            }
            (Asked::Apply(up_to), Told::Done) => self.applied(now, up_to),
            (Asked::Free(slot), Told::Done) => drop(self.frees.remove(&slot)),
            (Asked::Look(of), Told::Seen { row, ended }) => {
                let me = self.me;
                scene.note(|| format!("{me} looks at {of}: {row:?}, ended {ended}"));
                if let Some(copying) = self.copies.get_mut(&of) {
                    copying.machine.handle(now, standby::Input::Seen { row, ended });
                }
            }
            (Asked::Take(from), Told::Took(outcome)) => {
                if let Some(copying) = self.copies.get_mut(&from) {
                    copying.machine.handle(now, standby::Input::Took(outcome.clone().map(|_| ())));
                }
                self.inherit(scene, from, outcome.unwrap_or_default());
            }
            _ => (),
        }
    }

    fn applied(&mut self, now: Time, up_to: u64) {
        self.disk.journal = self.disk.journal.split_off(&(up_to + 1));
        self.carry.take_if(|wanted| *wanted <= up_to);
        if std::mem::take(&mut self.replaying) {
            self.machine = Some(Owner::new(TERMS, self.copy, self.disk.last, now));
        } else if let Some(machine) = &mut self.machine {
            machine.handle(now, owner::Input::Applied { up_to });
        }
    }

    fn inherit(&mut self, scene: &mut Scene, from: NodeId, taken: Vec<Taken>) {
        let mut known = self.disk.files.get(&from).map(|file| file.all_known()).unwrap_or_default();
        if scene.broken == Broken::AnswersLost {
            known.clear();
        }
        for Taken { slot, life, knows } in taken {
            let answers = known.iter().filter(|(_, (of, _))| *of == slot);
            let answers = answers.map(|(number, answered)| (*number, answered.clone())).collect();
            self.inherited.insert(slot, Inherited { life, knows, answers });
        }
    }
}
