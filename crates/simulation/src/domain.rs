//! A slot as its owner has it: its records, the lease machine of this life, and what is asked and under way there.
//!
//! What decides is `namespace` and `lease::coherence`. The shell around them is the simulation's: of the product's (`serve::metadata`)
//! it takes the rules that an operation is handed in once and answered once under its number, and answered when its commit is written.

use std::collections::{BTreeMap, BTreeSet};

use cluster::{NodeId, SlotEpoch, tenure::Time};
use lease::coherence::{
    message::{Life, Party, Telling},
    rights::{Claim, Key},
    server::{self, Past, Refused, Server},
};
use namespace::{Place as At, SetAttr};
use proto::SessionId;
use types::{Errno, Ino, Slot, UgsdId};

use crate::{
    cast::{Broken, LEASES, Place, TERMS, directory, place_of, ugsd_of},
    database::{CALLER, env, regular},
    message::{Answered, CallId, Commit, Done, Message, NameAnswer, NameOp, Number, Op, OpAnswer, Seen},
    names::{listing, told},
    network::Ticket,
    records::{Batch, Changes, Records},
    scene::Scene,
};

/// Inode numbers that are taken at once, durably: after a power cut none is given out again.
const NUMBERS: u64 = 400;

#[derive(Clone, Debug)]
pub(crate) enum Stage {
    Claims(Vec<(Key, Claim)>),
    Locks,
    /// Answered when no commit up to this one is on its way.
    Written {
        up_to: u64,
        answer: OpAnswer,
    },
}

pub(crate) struct Doing {
    by: Party,
    call: CallId,
    op: Op,
    pub(crate) ticket: Option<Ticket>,
    stage: Stage,
}

/// What a fence or an end of grace still waits for.
pub struct Task {
    pub effect: server::Effect,
    pub to: BTreeSet<Place>,
}

pub struct Domain {
    pub slot: Slot,
    pub owner: NodeId,
    pub epoch: SlotEpoch,
    /// Names this taking on in the whole run.
    pub stream: u64,
    pub life: Life,
    pub(crate) incarnation: u64,
    view: Records,
    pub lease: Server,
    numbers: Option<std::ops::Range<u64>>,
    commits: u64,
    /// With journals: those that are in it.
    handed: u64,
    /// Not known to be written; with journals, of which it is not known that they may be answered.
    pub pending: BTreeMap<u64, Commit>,
    pub(crate) doing: BTreeMap<Number, Doing>,
    pub(crate) answers: BTreeMap<Number, Answered>,
    /// Below it a session has acknowledged all.
    floors: BTreeMap<SessionId, u64>,
    pub tasks: Vec<Task>,
    came: BTreeSet<SessionId>,
    /// It is to be let go: nothing new begins.
    pub(crate) closed_until: Time,
    /// They came with the slot: what sessions say of them is not more.
    pub(crate) knows_locks: bool,
}

/// Under which row it is taken on.
pub struct Taken {
    pub slot: Slot,
    pub owner: NodeId,
    pub epoch: SlotEpoch,
    pub incarnation: u64,
}

impl Domain {
    pub fn begin(scene: &mut Scene, taken: &Taken, past: Past, view: Records, mut now: Time) -> Domain {
        if scene.broken == Broken::Grace {
            now = now.saturating_sub(TERMS.lease * 2);
        }
        let mut domain = Domain {
            slot: taken.slot,
            owner: taken.owner,
            epoch: taken.epoch,
            stream: scene.number(),
            life: past.life,
            incarnation: taken.incarnation,
            view,
            lease: Server::new(LEASES, past, now),
            numbers: None,
            commits: 0,
            handed: 0,
            pending: BTreeMap::new(),
            doing: BTreeMap::new(),
            answers: BTreeMap::new(),
            floors: BTreeMap::new(),
            tasks: Vec::new(),
            came: BTreeSet::new(),
            closed_until: Time::ZERO,
            knows_locks: false,
        };
        domain.take_numbers();
        domain
    }

    fn ugsd(&self) -> u32 {
        ugsd_of(self.slot)
    }

    fn take_numbers(&mut self) {
        let Some(ugsd) = UgsdId::new(self.ugsd()) else { return };
        let mut batch = Batch::over(&self.view);
        let taken = namespace::alloc::reserve(&mut batch, ugsd, NUMBERS);
        let changes = batch.changes;
        assert!(taken.is_ok(), "{taken:?}");
        self.numbers = taken.ok();
        self.commit(changes, None, true);
    }

    fn commit(&mut self, changes: Changes, done: Option<Done>, durable: bool) {
        self.view.apply(&changes);
        self.commits += 1;
        let commit = Commit {
            stream: self.stream,
            number: self.commits,
            incarnation: self.incarnation,
            slot: self.slot,
            owner: self.owner,
            epoch: self.epoch,
            changes,
            done,
            durable,
        };
        self.pending.insert(self.commits, commit);
    }

    /// What was done since the last look.
    pub fn new_commits(&mut self) -> Vec<Commit> {
        let new = self.pending.range(self.handed + 1..).map(|(_, commit)| commit.clone()).collect();
        self.handed = self.commits;
        new
    }

    /// The numbers are durable, so that files can be made.
    fn is_ready(&self) -> bool {
        !self.pending.contains_key(&1)
    }

    pub fn is_at_rest(&self) -> bool {
        let none = self.lease.table().operations() == 0 && self.lease.locks().all().count() == 0;
        none && self.pending.is_empty()
            && self.doing.is_empty()
            && self.tasks.is_empty()
            && !self.lease.in_grace()
    }

    /// For people.
    pub fn waits(&self) -> String {
        let doing: Vec<_> = self.doing.iter().map(|(key, d)| (key, &d.op, &d.stage)).collect();
        let tasks: Vec<_> = self.tasks.iter().map(|task| (&task.effect, &task.to)).collect();
        let operations: Vec<_> = self.lease.table().all_operations().collect();
        let locks: Vec<_> = self.lease.locks().all().collect();
        format!(
            "{:?} {:?}: {doing:?}, {tasks:?}, {} commits, grace {}, {operations:?}, {locks:?}",
            self.slot,
            self.life,
            self.pending.len(),
            self.lease.in_grace()
        )
    }

    pub fn said(
        &mut self,
        now: Time,
        scene: &mut Scene,
        by: Party,
        mut saying: lease::coherence::message::Saying,
    ) {
        if let (true, lease::coherence::message::Saying::Join { had, .. }) = (self.knows_locks, &mut saying) {
            had.locks.retain(|lock| self.lease.locks().has(lock));
        }
        if matches!(&saying, lease::coherence::message::Saying::Join { .. }) && by.joined.0 != 0 {
            scene.tally.came_back += 1;
        }
        self.lease.handle(now, server::Input::Said { by, saying });
    }

    /// A request under its number.
    #[expect(clippy::too_many_arguments, reason = "the parts of one message")]
    pub fn ask(
        &mut self,
        now: Time,
        scene: &mut Scene,
        ticket: Ticket,
        (by, number, acknowledged): (Party, u64, u64),
        call: CallId,
        op: Op,
    ) {
        if !self.lease.is_alive(by) {
            return scene.net.answer(ticket, Message::Gone);
        }
        // What comes late says what had been acknowledged when it was sent.
        let floor = self.floors.entry(by.session).or_default();
        *floor = (*floor).max(acknowledged);
        let floor = *floor;
        self.answers.retain(|(of, n), _| *of != by.session || *n >= floor);
        let key = (by.session, number);
        if let Some(known) = self.answers.get(&key) {
            scene.tally.known_answers += 1;
            return scene.net.answer(ticket, Message::Answer(known.answer.clone()));
        }
        if let Some(doing) = self.doing.get_mut(&key) {
            scene.tally.known_answers += 1;
            doing.ticket = Some(ticket);
            return;
        }
        if number < floor {
            return;
        }
        if !self.is_ready() || now < self.closed_until {
            return scene.net.answer(ticket, Message::Later);
        }
        let stage = match &op {
            Op::Names { op, .. } => Stage::Claims(self.claims(op)),
            Op::Open { ino, claim } => Stage::Claims(vec![(Key::Inode(*ino), *claim)]),
            Op::Lock(_) | Op::Unlock { .. } => Stage::Locks,
            Op::End { .. } | Op::Cancel { .. } => Stage::Written { up_to: 0, answer: OpAnswer::Done },
        };
        self.doing
            .insert(key, Doing { by, call, op: op.clone(), ticket: Some(ticket), stage: stage.clone() });
        let input = match (op, stage) {
            (_, Stage::Claims(claims)) => server::Input::Begin { by, operation: number, claims },
            (Op::Lock(request), _) => server::Input::Lock { by, number, request },
            (Op::Unlock { owner, ino, range }, _) => server::Input::Unlock { by, number, owner, ino, range },
            (Op::End { number }, _) => server::Input::End { by, operation: number },
            (Op::Cancel { number }, _) => server::Input::Cancel { by, number },
            (Op::Names { .. } | Op::Open { .. }, _) => return,
        };
        self.lease.handle(now, input);
    }

    /// What the machine decided, and what has been written.
    pub fn effects(&mut self, now: Time, scene: &mut Scene, here: Place) {
        while let Some(effect) = self.lease.poll_effect() {
            match effect {
                server::Effect::Tell { to, telling } => self.tell(scene, here, to, telling),
                server::Effect::Begun { by, operation } => self.begun(now, scene, (by.session, operation)),
                server::Effect::NotBegun { by, operation, why } => {
                    let answer = match why {
                        Refused::Later => Message::Later,
                        Refused::Gone => Message::Gone,
                        Refused::TooMany => {
                            scene.judge(Err(format!("{operation} of {by:?} claims too much")));
                            Message::Gone
                        }
                    };
                    self.drop_request(scene, (by.session, operation), answer);
                }
                server::Effect::Lock { by, number, outcome } => {
                    use lease::coherence::locks::Outcome;
                    let key = (by.session, number);
                    match outcome {
                        Outcome::Later => self.drop_request(scene, key, Message::Later),
                        Outcome::Gone => self.drop_request(scene, key, Message::Gone),
                        Outcome::Granted
                        | Outcome::Conflict
                        | Outcome::Deadlock
                        | Outcome::Interrupted
                        | Outcome::TooMany => {
                            if let Some(doing) = self.doing.get_mut(&key) {
                                doing.stage = Stage::Written { up_to: 0, answer: OpAnswer::Lock(outcome) };
                            }
                        }
                    }
                }
                server::Effect::Over(session) => {
                    scene.note(|| format!("{session} is over in {:?}", self.slot));
                    scene.content.session_over(scene.net.now, session);
                    self.doing.retain(|(of, _), _| *of != session);
                    self.answers.retain(|(of, _), _| *of != session);
                }
                server::Effect::Fence(session) => {
                    scene.tally.fenced_sessions += 1;
                    scene.note(|| format!("{session} is to be fenced in {:?}", self.slot));
                    self.tasks.push(Task { effect: server::Effect::Fence(session), to: targets() });
                }
                server::Effect::EndGrace => {
                    self.tasks.push(Task { effect: server::Effect::EndGrace, to: targets() });
                }
            }
        }
        self.answer_written(now, scene);
    }

    /// A fence or an end of grace is carried out.
    pub fn task_done(&mut self, now: Time, scene: &mut Scene, effect: &server::Effect) {
        match effect {
            server::Effect::Fence(session) => self.lease.handle(now, server::Input::Fenced(*session)),
            server::Effect::EndGrace => {
                scene.note(|| format!("the grace of {:?} in {:?} ends", self.life, self.slot));
                scene.names.grace_ended(scene.net.now, self.slot, self.life);
                scene.content.grace_ended(scene.net.now, self.slot, &self.came);
                self.lease.handle(now, server::Input::GraceEnded);
            }
            server::Effect::Tell { .. }
            | server::Effect::Begun { .. }
            | server::Effect::NotBegun { .. }
            | server::Effect::Lock { .. }
            | server::Effect::Over(_) => (),
        }
    }

    fn tell(&mut self, scene: &mut Scene, here: Place, to: SessionId, telling: Telling) {
        scene.tally.recalls += u64::from(matches!(telling, Telling::Recall { .. }));
        if matches!(telling, Telling::Joined { .. }) {
            self.came.insert(to);
        }
        // Read after the grant was made; what is not written yet is not told.
        let seen = match &telling {
            Telling::Granted { key, .. } if self.pending.is_empty() => self.seen(key),
            _ => None,
        };
        let message = Message::Tell { slot: self.slot, session: to, telling, seen };
        scene.net.push(here, place_of(to), message);
    }

    fn seen(&self, key: &Key) -> Option<Seen> {
        Some(match key {
            Key::Entry { dir, name } => Seen::Entry(self.find(*dir, name)),
            Key::Inode(ino) => {
                let all = (*ino == directory(self.ugsd())).then(|| listing(&self.view, *ino)).flatten();
                Seen::Attributes { told: told(&self.view, *ino), listing: all }
            }
        })
    }

    fn drop_request(&mut self, scene: &mut Scene, key: Number, answer: Message) {
        if let Some(ticket) = self.doing.remove(&key).and_then(|doing| doing.ticket) {
            scene.net.answer(ticket, answer);
        }
    }

    fn find(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        namespace::lookup(&self.view, &env(1), At { dir, name }).ok().map(|found| found.attr.ino)
    }

    /// What an operation is about, as far as is known before it begins.
    fn claims(&self, op: &NameOp) -> Vec<(Key, Claim)> {
        let entry = |dir: Ino, name: &str| Key::Entry { dir, name: Box::from(name.as_bytes()) };
        let behind = |dir: Ino, name: &str| {
            self.find(dir, name.as_bytes()).map(|ino| (Key::Inode(ino), Claim::Change))
        };
        match op {
            NameOp::Lookup { dir, name } => vec![(entry(*dir, name), Claim::Look)],
            NameOp::GetAttr { ino } | NameOp::List { dir: ino } => vec![(Key::Inode(*ino), Claim::Look)],
            NameOp::Create { dir, name, .. } => {
                vec![(entry(*dir, name), Claim::Change), (Key::Inode(*dir), Claim::Modify)]
            }
            NameOp::Unlink { dir, name } => {
                let known = [(entry(*dir, name), Claim::Change), (Key::Inode(*dir), Claim::Modify)];
                known.into_iter().chain(behind(*dir, name)).collect()
            }
            NameOp::Rename { dir, from, to, .. } => {
                let known = [from, to].map(|name| (entry(*dir, name), Claim::Change));
                let found = [from, to].into_iter().filter_map(|name| behind(*dir, name));
                known.into_iter().chain([(Key::Inode(*dir), Claim::Modify)]).chain(found).collect()
            }
            NameOp::Link { ino, dir, name } => vec![
                (entry(*dir, name), Claim::Change),
                (Key::Inode(*dir), Claim::Modify),
                (Key::Inode(*ino), Claim::Change),
            ],
            NameOp::Chmod { ino, .. } => vec![(Key::Inode(*ino), Claim::Change)],
        }
    }

    /// Its way is clear: it is carried out, unless it is about something else by now.
    fn begun(&mut self, now: Time, scene: &mut Scene, key: Number) {
        let Some(doing) = self.doing.get(&key) else {
            return;
        };
        let Stage::Claims(claims) = &doing.stage else { return };
        let (by, call, op) = (doing.by, doing.call, doing.op.clone());
        if let Op::Names { op, .. } = &op {
            let wanted = self.claims(op);
            if wanted != *claims {
                if let Some(doing) = self.doing.get_mut(&key) {
                    doing.stage = Stage::Claims(wanted.clone());
                }
                self.lease.handle(now, server::Input::End { by, operation: key.1 });
                self.lease.handle(now, server::Input::Begin { by, operation: key.1, claims: wanted });
                return;
            }
        }
        let answer = match op {
            Op::Names { op, .. } => OpAnswer::Names(self.carry_out(scene, (call, key), op)),
            Op::Open { .. } | Op::End { .. } | Op::Lock(_) | Op::Unlock { .. } | Op::Cancel { .. } => {
                OpAnswer::Done
            }
        };
        let up_to = if scene.broken == Broken::EarlyAnswer { 0 } else { self.commits };
        if let Some(doing) = self.doing.get_mut(&key) {
            doing.stage = Stage::Written { up_to, answer };
        }
    }

    fn carry_out(&mut self, scene: &mut Scene, (call, by): (CallId, Number), op: NameOp) -> NameAnswer {
        let env = env(2 + scene.now().as_secs());
        let mut batch = Batch::over(&self.view);
        let done = match &op {
            NameOp::Lookup { dir, name } => Ok(NameAnswer::Found(self.find(*dir, name.as_bytes()))),
            NameOp::GetAttr { ino } => Ok(NameAnswer::Attributes(told(&self.view, *ino))),
            NameOp::List { dir } => Ok(NameAnswer::Names(listing(&self.view, *dir).unwrap_or_default())),
            NameOp::Create { dir, name, mode } => {
                let at = At { dir: *dir, name: name.as_bytes() };
                let ino = self.numbers.as_mut().and_then(Iterator::next);
                let ino = ino.map(|local| crate::cast::inode(ugsd_of(self.slot), local)).unwrap_or(Ino::ROOT);
                namespace::create(&mut batch, &env, &CALLER, at, &regular(*mode), ino)
                    .map(|found| NameAnswer::Found(Some(found.attr.ino)))
            }
            NameOp::Unlink { dir, name } => {
                let at = At { dir: *dir, name: name.as_bytes() };
                namespace::unlink(&mut batch, &env, at, &|_| true).map(|_| NameAnswer::Done)
            }
            NameOp::Rename { dir, from, to, mode } => {
                let [from, to] = [from, to].map(|name| At { dir: *dir, name: name.as_bytes() });
                namespace::rename(&mut batch, &env, from, to, *mode).map(|_| NameAnswer::Done)
            }
            NameOp::Link { ino, dir, name } => {
                let at = At { dir: *dir, name: name.as_bytes() };
                namespace::link(&mut batch, &env, *ino, at).map(|_| NameAnswer::Done)
            }
            NameOp::Chmod { ino, mode } => {
                let change = SetAttr { mode: Some(*mode), ..SetAttr::default() };
                namespace::setattr(&mut batch, &env, *ino, &change).map(|_| NameAnswer::Done)
            }
        };
        let changes = batch.changes;
        match done {
            Ok(answer) => {
                if !changes.is_empty() {
                    let done = Done { call, by, life: self.life, op, answer: answer.clone() };
                    self.commit(changes, Some(done), false);
                }
                answer
            }
            Err(namespace::Error::Errno(errno)) => NameAnswer::Refused(errno),
            Err(error) => {
                scene.judge(Err(format!("{op:?}: {error:?}")));
                NameAnswer::Refused(Errno::EIO)
            }
        }
    }

    /// Answers what waits for nothing any more.
    fn answer_written(&mut self, now: Time, scene: &mut Scene) {
        let first = self.pending.keys().next().copied().unwrap_or(u64::MAX);
        let is_done = |doing: &Doing| matches!(doing.stage, Stage::Written { up_to, .. } if up_to < first);
        let done: Vec<Number> = self.doing.iter().filter(|(_, d)| is_done(d)).map(|(key, _)| *key).collect();
        for key in done {
            let Some(doing) = self.doing.remove(&key) else { continue };
            let Stage::Written { answer, .. } = doing.stage else { continue };
            if let Op::Names { holds: false, .. } = doing.op {
                self.lease.handle(now, server::Input::End { by: doing.by, operation: key.1 });
            }
            if let Some(ticket) = doing.ticket {
                scene.net.answer(ticket, Message::Answer(answer.clone()));
            }
            let goes_along = matches!(&doing.op, Op::Names { op, holds: false } if op.changes());
            self.answers.insert(key, Answered { answer, goes_along });
        }
    }
}

/// Who has to know of a verdict: the database's row, and every data server.
fn targets() -> BTreeSet<Place> {
    let data = (0..crate::cast::DATA_SERVERS).map(Place::Data);
    data.chain([Place::Database]).collect()
}
