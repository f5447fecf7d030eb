//! A data server's process: the machines of its copies, what they are asked, and leave between it and the others.
//!
//! Whoever asks names a view, and who knows an older one learns it so. A call by a view of before both copies were lost is answered with the newer view.

use std::collections::{BTreeMap, BTreeSet};

use cluster::{
    replica::{
        Member, View,
        copy::{Copy, Input, Of, Range},
    },
    tenure::Time,
};

use super::{
    cast::{LENGTH, Left, OBJECTS, PATIENCE, REPORT_EVERY, cells, epoch, node, object, range},
    peers::Peers,
    said::{Said, Values},
    stage::Stage,
    tiers::Tiers,
};
use crate::{
    cast::Place,
    message::Message,
    network::{Happened, Ticket},
    store::Devices,
};

pub(super) enum Called {
    Store { object: u64, since: u64, serial: u64 },
    Leave { of: Member, told: Vec<(u64, u64)> },
    Sync { tag: u64 },
    Nothing,
}

/// On its way to the tiers: cells that are left to store.
pub(super) struct Storing {
    pub ready: Time,
    pub object: u64,
    pub number: u64,
    pub values: Values,
}

pub(super) struct Syncing {
    pub(super) ticket: Ticket,
    pub(super) object: u64,
    pub(super) view: View,
    /// Of whom no word has come yet, this one included.
    pub(super) waits: usize,
    pub(super) failed: bool,
}

pub(super) struct Object {
    pub copy: Copy,
    pub calls: BTreeMap<u64, (Ticket, Range)>,
    pub writes: BTreeMap<u64, Values>,
    pub sent: BTreeMap<(u64, u64), Values>,
    /// Who waits until it is stored.
    pub senders: BTreeMap<(u64, u64), Vec<Ticket>>,
    /// Of what was sent as a digest.
    pub compared: BTreeSet<(u64, u64)>,
    /// At the primary: what the second does not have.
    pub differs: BTreeSet<(u64, u64)>,
    /// By which view this was the second for which what was older was taken away.
    pub wiped: u64,
    pub goes_on: Option<u64>,
}

pub struct Server {
    pub(super) at: usize,
    pub life: u64,
    pub tiers: Tiers,
    pub(super) objects: BTreeMap<u64, Object>,
    pub(super) peers: Peers,
    pub(super) words: BTreeMap<u64, (u64, Option<Member>)>,
    pub(super) calls: BTreeMap<u64, Called>,
    pub(super) storing: Vec<Storing>,
    pub(super) syncing: BTreeMap<u64, Syncing>,
    report_at: Time,
}

impl Server {
    pub fn begin(at: usize, life: u64, devices: Devices, left: Left, now: Time) -> Server {
        let life = if left == Left::SameLife { 1 } else { life };
        let me = Member { node: node(at), life };
        let new = || Object {
            copy: Copy::new(me, PATIENCE),
            calls: BTreeMap::new(),
            writes: BTreeMap::new(),
            sent: BTreeMap::new(),
            senders: BTreeMap::new(),
            compared: BTreeSet::new(),
            differs: BTreeSet::new(),
            wiped: 0,
            goes_on: None,
        };
        Server {
            at,
            life,
            tiers: Tiers::begin(devices, left, now),
            objects: (0..OBJECTS).map(|number| (number, new())).collect(),
            peers: Peers::default(),
            words: BTreeMap::new(),
            calls: BTreeMap::new(),
            storing: Vec::new(),
            syncing: BTreeMap::new(),
            report_at: Time::ZERO,
        }
    }

    pub fn me(&self) -> Member {
        Member { node: node(self.at), life: self.life }
    }

    pub(super) fn place(&self) -> Place {
        Place::Data(self.at)
    }

    pub(super) fn view(&self, number: u64) -> Option<View> {
        self.objects.get(&number)?.copy.view().copied()
    }

    pub fn run(&mut self, stage: &mut Stage) {
        while let Some(happened) = stage.net.next_event(self.place()) {
            match happened {
                Happened::Asked { ticket, message: Message::Copies(said), .. } => {
                    if let Some(answer) = self.asked(stage, ticket, *said) {
                        stage.answer(ticket, answer);
                    }
                }
                Happened::Asked { .. } => (),
                Happened::Answered { call, message: Message::Copies(said) } => {
                    if let Some(called) = self.calls.remove(&call) {
                        self.answered(stage, call, called, Some(*said));
                    }
                }
                Happened::Answered { call, .. } | Happened::Failed { call } => {
                    if let Some(called) = self.calls.remove(&call) {
                        self.answered(stage, call, called, None);
                    }
                }
            }
        }
        let now = stage.local(self.place());
        self.tiers.run(stage, now);
        self.store(stage, now);
        self.end_syncs(stage);
        for number in 0..OBJECTS {
            if let Some(object) = self.objects.get_mut(&number)
                && object.copy.next_deadline().is_some_and(|at| at <= now)
            {
                object.copy.handle_deadline(now);
            }
            self.go_on(stage, number);
        }
        self.ask_for_leave(stage, now);
        self.make_room(stage, now);
        if now >= self.report_at {
            self.report_at = now + REPORT_EVERY;
            let words = self.words.iter().map(|(object, (view, silent))| (*object, *view, *silent)).collect();
            for keeper in 0..super::cast::KEEPERS {
                let report = Said::Report { member: self.me(), words: Vec::clone(&words) };
                self.ask(stage, Place::Metadata(keeper), Called::Nothing, report);
            }
        }
    }

    pub(super) fn ask(&mut self, stage: &mut Stage, to: Place, called: Called, said: Said) -> u64 {
        let call = stage.ask(self.place(), to, said, super::cast::CALL_WAIT);
        self.calls.insert(call, called);
        call
    }

    fn asked(&mut self, stage: &mut Stage, ticket: Ticket, said: Said) -> Option<Said> {
        let now = stage.local(self.place());
        match said {
            Said::Write { object, view, cells, value } => {
                self.adopt(stage, object, view);
                if let Some(other) = self.is_other_epoch(stage, object, &view) {
                    return Some(Said::Elsewhere(Some(other)));
                }
                let (call, range) = (stage.number(), range(&cells));
                let of = self.objects.get_mut(&object)?;
                of.calls.insert(call, (ticket, range));
                of.writes.insert(call, cells.map(|cell| (cell, Some(value))).collect());
                self.handle(stage, object, Input::Write { call, range });
                None
            }
            Said::Read { object, view, cells } => {
                self.adopt(stage, object, view);
                if let Some(other) = self.is_other_epoch(stage, object, &view) {
                    return Some(Said::Elsewhere(Some(other)));
                }
                let (call, range) = (stage.number(), range(&cells));
                self.objects.get_mut(&object)?.calls.insert(call, (ticket, range));
                self.handle(stage, object, Input::Read { call, range });
                None
            }
            Said::Store { object, sent, values, compares } => {
                self.sent(stage, ticket, object, (sent, values, compares))
            }
            Said::Done { object, view, done } => {
                self.handle(stage, object, Input::Done { view, done });
                Some(Said::Synced)
            }
            Said::Know { object, view, asks } => {
                self.adopt(stage, object, view);
                let of = self.objects.get_mut(&object)?;
                of.goes_on = None;
                if asks {
                    self.handle(stage, object, Input::Asked { view: view.number });
                }
                let of = self.objects.get(&object)?;
                let goes_on = of.goes_on == Some(view.number);
                let kept = of.copy.has_kept();
                Some(Said::Known { by: self.me(), goes_on, kept })
            }
            Said::Sync { object, view, own } => self.sync(stage, ticket, object, view, own),
            Said::AskLeave { by, of, knows } => {
                if of != self.me() {
                    // An earlier life let it answer; this one knows nothing of that.
                    return Some(Said::Elsewhere(None));
                }
                let asked = self.peers.asks(now, by, &knows);
                let left_out = asked.err().unwrap_or_default();
                let granted = left_out.is_empty();
                let told = left_out.into_iter().filter_map(|object| Some((object, self.view(object)?)));
                let left_out = told.collect();
                Some(Said::Leave { granted, left_out })
            }
            _ => None,
        }
    }

    /// What is asked by a view of another time before or after a loss of both copies.
    fn is_other_epoch(&self, stage: &Stage, number: u64, view: &View) -> Option<View> {
        let known = self.view(number)?;
        (epoch(&known) != epoch(view) && stage.left != Left::OldEpoch).then_some(known)
    }

    fn answered(&mut self, stage: &mut Stage, call: u64, called: Called, said: Option<Said>) {
        match (called, said) {
            (Called::Store { object, since, serial }, Some(Said::Stored { by, stored, differs, newer })) => {
                if let Some(of) = self.objects.get_mut(&object).filter(|_| differs) {
                    of.differs.insert((since, serial));
                }
                if stored {
                    self.handle(stage, object, Input::Stored { by, since, serial });
                }
                if let Some(newer) = newer {
                    self.adopt(stage, object, newer);
                }
            }
            (Called::Leave { of, told }, Some(Said::Leave { granted, left_out })) => {
                self.peers.answered(of, call, Some(granted), &told);
                for (number, view) in left_out {
                    self.adopt(stage, number, view);
                    if let Some(known) = self.view(number).filter(|known| known.number >= view.number) {
                        self.peers.note_known(of, number, &known);
                    }
                }
                (0..OBJECTS).for_each(|number| self.go_on(stage, number));
            }
            (Called::Leave { of, told }, _) => self.peers.answered(of, call, None, &told),
            (Called::Sync { tag }, said) => self.synced_there(tag, matches!(said, Some(Said::Synced))),
            (Called::Store { .. } | Called::Nothing, _) => (),
        }
    }

    pub(super) fn adopt(&mut self, stage: &mut Stage, number: u64, view: View) {
        if self.view(number).is_none_or(|known| known.number < view.number) {
            if self.words.get(&number).is_some_and(|(of, _)| *of < view.number) {
                self.words.remove(&number);
            }
            self.handle(stage, number, Input::View { view, length: LENGTH });
        }
    }

    pub(super) fn handle(&mut self, stage: &mut Stage, number: u64, input: Input) {
        if let Some(object) = self.objects.get_mut(&number) {
            object.copy.handle(input);
        }
        self.go_on(stage, number);
    }

    pub(super) fn go_on(&mut self, stage: &mut Stage, number: u64) {
        self.carry_out(stage, number);
        let now = stage.local(self.place());
        let Some(of) = self.objects.get_mut(&number) else { return };
        let leave = self.peers.leave(now, &of.copy, object(number), stage.left);
        of.copy.go_on(now, leave);
        self.carry_out(stage, number);
    }

    /// What a device has taken long enough to store.
    fn store(&mut self, stage: &mut Stage, now: Time) {
        let storing = std::mem::take(&mut self.storing);
        for mut one in storing {
            if one.ready <= now {
                let tiers = &mut self.tiers;
                while let Some((cell, value)) = one.values.last().copied() {
                    if !tiers.write(stage, now, one.object, cell, value) {
                        break;
                    }
                    one.values.pop();
                }
                if one.values.is_empty() {
                    self.handle(stage, one.object, Input::StoredHere(one.number));
                    continue;
                }
            }
            self.storing.push(one);
        }
    }

    pub(super) fn values_of(&self, number: u64, of: Of) -> Option<Values> {
        let object = self.objects.get(&number)?;
        match of {
            Of::Call(call) => object.writes.get(&call).cloned(),
            Of::Sent { since, serial } => object.sent.get(&(since, serial)).cloned(),
        }
    }

    pub(super) fn read(&self, number: u64, range: Range) -> Values {
        cells(range).map(|cell| (cell, self.tiers.read(number, cell))).collect()
    }

    /// Of what is somebody else's the bytes are given up at times.
    fn make_room(&mut self, stage: &mut Stage, now: Time) {
        for number in 0..OBJECTS {
            let is_out = self.view(number).is_some_and(|view| !view.has(self.me()));
            let Some(of) = self.objects.get_mut(&number) else { continue };
            if !is_out || !of.copy.has_kept() || !stage.random.one_in(60) {
                continue;
            }
            // First: from now on it says that it has kept nothing.
            if stage.left != Left::SilentDrop {
                of.copy.handle(Input::Dropped);
            }
            stage.tally.made_room += 1;
            self.tiers.remove(stage, now, number);
        }
    }

    pub fn is_at_rest(&self) -> bool {
        self.storing.is_empty() && self.syncing.is_empty() && self.tiers.is_at_rest()
    }
}
