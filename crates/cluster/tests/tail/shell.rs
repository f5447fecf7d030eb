//! What is between the machines and the world: the database's answers, messages, and what the machines want.

use std::{collections::BTreeMap, time::Duration};

use cluster::{
    NodeId,
    tail::{
        owner,
        standby::{self, Standby},
    },
};

use super::{
    ANSWER_WAIT, LEASE, Op, Records, TERMS,
    database::{Ask, Told},
    message::Message,
    node::{Copying, File, Write},
    world::World,
};

impl World {
    /// What came to the database, and what it said.
    pub fn database(&mut self) {
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

    pub fn told(&mut self, id: NodeId, ask: Ask, told: Told) {
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

    pub fn deliver(&mut self) {
        let now = self.now;
        while let Some((from, to, message)) = self.post.next(now) {
            let node = self.nodes.get_mut(&to).unwrap();
            if now < node.paused {
                self.post.put(node.paused, (from, to), message);
                continue;
            }
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

    pub fn tend(&mut self, id: NodeId) {
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
    pub fn standby_for(&mut self, id: NodeId) -> Option<NodeId> {
        let serving = self.nodes[&id].serving.as_ref()?;
        let is_up = |node: &NodeId| self.nodes[node].up && self.now >= self.nodes[node].paused;
        match serving.fed {
            Some(by) if is_up(&by) || !self.random.one_in(100) => Some(by),
            _ => self.ids().into_iter().filter(|node| *node != id).find(is_up),
        }
    }

    pub fn tend_database(&mut self, id: NodeId) {
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
        let late = if self.random.one_in(self.weather.slow) { 1500 } else { 40 };
        let at = now + self.random.millis(late);
        if !(lost && self.random.one_in(2)) {
            self.requests.push((at, lost, id, of, self.asks, ask));
        }
    }

    pub fn write_files(&mut self, id: NodeId) {
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

    pub fn owner_effects(&mut self, id: NodeId) {
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

    pub fn standby_effects(&mut self, id: NodeId) {
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
}
