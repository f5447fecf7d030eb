//! Sessions' terms and the locks of their programs: the shell of [`lease::coherence::server`].
//!
//! - I-TERMS-1: the machine is driven under one lock, and what it decides is put into the order of its decisions there: each outcome
//!   of a lock has a stamp, and is either the answer of who asked or in his mailbox.
//! - I-TERMS-2: a session is given up by the machine's verdict alone, which is durable before what the session had is free.
//! - I-TERMS-3: nobody's thread waits for a lock. What comes before it is known who has what waits here, in its order.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    time::{Duration, Instant},
};

use cluster::tenure::Terms as Term;
use lease::coherence::{
    locks::Owner,
    locks::{LockLimits, LockRequest, Outcome as Decision},
    message::{Had, Joined, Life, Party, Saying, Telling as Said},
    ranges::Found,
    server::{Effect, Input, Limits, Past, Server},
};
use parking_lot::Mutex;
use proto::{
    SessionId,
    locks::{LOCKS_MAX, LockOutcome, Locked},
};

use types::{Ino, Slot};

use super::{
    mailbox::{Heard, Listener, Mailbox},
    session::SessionLimits,
};

/// Programs' threads that wait for locks.
const WAITERS_MAX: usize = 1 << 14;
/// Some 100 bytes each.
const LOCKS_IN_ALL: usize = 1 << 20;

/// The machine's limits for the sessions' ones.
fn limits(sessions: &SessionLimits) -> Limits {
    let silence = sessions.silence;
    Limits {
        terms: Term {
            // It has ended when a silent session is given up, and before an earlier life's sessions are.
            lease: silence * 9 / 10,
            beat_every: silence / 6,
            suspect_after: (silence / 5).clamp(Duration::from_secs(1), Duration::from_secs(2)),
            drift_one_in: 50,
        },
        silence,
        recall: silence / 2,
        rest: Duration::from_millis(300),
        sessions: sessions.sessions,
        // None are asked for yet.
        leases: 1 << 20,
        operations: 1 << 20,
        claims: 8,
        locks: LockLimits { locks: LOCKS_IN_ALL, session_locks: LOCKS_MAX, waiters: WAITERS_MAX },
    }
}

/// What is left to be done outside of the machine's lock.
#[derive(Default)]
pub(super) struct Due {
    /// Verdicts that are to be made durable.
    pub fence: Vec<SessionId>,
    /// Sessions whose things are free.
    pub over: Vec<SessionId>,
    pub end_grace: bool,
    pub heard: Vec<Heard>,
    /// Of sessions that are over.
    pub deserted: Vec<Listener>,
}

impl Due {
    pub(super) fn add(&mut self, other: Due) {
        self.fence.extend(other.fence);
        self.over.extend(other.over);
        self.end_grace |= other.end_grace;
        self.heard.extend(other.heard);
        self.deserted.extend(other.deserted);
    }
}

struct Early {
    by: Party,
    number: u64,
    request: LockRequest,
}

struct Machine {
    server: Server,
    /// Of the last change of a lock.
    stamp: u64,
    mailboxes: BTreeMap<SessionId, Mailbox>,
    /// Those that something was put into, or somebody began to listen to.
    touched: BTreeSet<SessionId>,
    /// Locks that were asked for while who has what was not known.
    early: VecDeque<Early>,
}

/// What somebody waits for at this moment.
enum Asked {
    Nothing,
    Lock(SessionId, u64),
    Joining(SessionId),
}

/// What he gets.
#[derive(Default)]
struct Got {
    locked: Option<Locked>,
    said: Option<Said>,
    /// His session was given up.
    gone: bool,
}

pub(super) struct Terms {
    started: Instant,
    life: Life,
    machine: Mutex<Machine>,
}

impl Terms {
    pub(super) fn new(sessions: &SessionLimits, past: Past) -> Terms {
        let life = past.life;
        // Each life is counted before anybody is served, so nobody was before the first.
        let server = if life == Life(1) {
            Server::first(limits(sessions), Duration::ZERO)
        } else {
            Server::new(limits(sessions), past, Duration::ZERO)
        };
        let (mailboxes, early, touched) = (BTreeMap::new(), VecDeque::new(), BTreeSet::new());
        let machine = Machine { server, stamp: life.first_number(), mailboxes, touched, early };
        Terms { started: Instant::now(), life, machine: Mutex::new(machine) }
    }

    /// Since the service was started.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn life(&self) -> Life {
        self.life
    }

    /// A session comes, with what it had. `Ok(None)`: there is no room. `Err`: it was given up, or it comes too late.
    pub(super) fn join(&self, by: Party, had: Had) -> (Result<Option<Joined>, ()>, Due) {
        let saying = Saying::Join { number: 0, life: self.life, had };
        let (got, due) = self.drive(Input::Said { by, saying }, Asked::Joining(by.session));
        let joined = match got.said {
            Some(Said::Joined { joined, .. }) => Ok(Some(joined)),
            Some(_) => Err(()),
            None => Ok(None),
        };
        (joined, due)
    }

    /// They were heard of.
    pub(super) fn heard(&self, parties: &[Party]) {
        let (now, mut machine) = (self.started.elapsed(), self.machine.lock());
        for by in parties {
            machine.server.handle(now, Input::Said { by: *by, saying: Saying::Renew { number: 0 } });
            // That it may go on it knows by its answer.
            while machine.server.poll_effect().is_some() {}
        }
    }

    pub(super) fn leave(&self, by: Party) -> Due {
        self.drive(Input::Leave(by), Asked::Nothing).1
    }

    pub(super) fn fenced(&self, session: SessionId) -> Due {
        self.drive(Input::Fenced(session), Asked::Nothing).1
    }

    /// What waited for this is decided now.
    pub(super) fn grace_ended(&self) -> Due {
        let (_, mut due) = self.drive(Input::GraceEnded, Asked::Nothing);
        let mut machine = self.machine.lock();
        let now = self.started.elapsed();
        for Early { by, number, request } in std::mem::take(&mut machine.early) {
            machine.server.handle(now, Input::Lock { by, number, request });
            machine.drain(&Asked::Nothing, &mut due);
        }
        machine.speak(&mut due);
        due
    }

    /// What is due by the clock.
    pub(super) fn tick(&self) -> Due {
        let (now, mut due) = (self.started.elapsed(), Due::default());
        let mut machine = self.machine.lock();
        if machine.server.next_deadline().is_some_and(|at| at <= now) {
            machine.server.handle_deadline(now);
            machine.drain(&Asked::Nothing, &mut due);
        }
        machine.touch_all();
        machine.speak(&mut due);
        due
    }

    /// `None`: the session was just given up.
    pub(super) fn lock(&self, by: Party, number: u64, request: LockRequest) -> (Option<Locked>, Due) {
        let mut machine = self.machine.lock();
        if machine.server.in_grace() && machine.server.is_alive(by) {
            let outcome = if machine.early.len() < WAITERS_MAX {
                machine.early.push_back(Early { by, number, request });
                LockOutcome::Waits
            } else {
                LockOutcome::TooMany
            };
            machine.stamp += 1;
            let stamp = machine.stamp;
            return (Some(Locked { outcome: outcome.into(), stamp }), Due::default());
        }
        drop(machine);
        self.decide(by, number, Input::Lock { by, number, request })
    }

    pub(super) fn unlock(&self, by: Party, number: u64, lock: &LockRequest) -> (Option<Locked>, Due) {
        let LockRequest { owner, ino, range, .. } = *lock;
        self.decide(by, number, Input::Unlock { by, number, owner, ino, range })
    }

    fn decide(&self, by: Party, number: u64, input: Input) -> (Option<Locked>, Due) {
        let mut machine = self.machine.lock();
        let mut due = Due::default();
        machine.server.handle(self.started.elapsed(), input);
        let got = machine.drain(&Asked::Lock(by.session, number), &mut due);
        machine.speak(&mut due);
        // What changed by giving up another kind first has the stamp, too.
        machine.stamp += 1;
        let waits = Locked { outcome: LockOutcome::Waits.into(), stamp: machine.stamp };
        ((!got.gone).then_some(got.locked.unwrap_or(waits)), due)
    }

    pub(super) fn cancel(&self, by: Party, number: u64) -> Due {
        let mut machine = self.machine.lock();
        let mut due = Due::default();
        let here = machine.early.iter().position(|early| early.by == by && early.number == number);
        if let Some(at) = here {
            machine.early.remove(at);
            machine.put(by.session, number, LockOutcome::Interrupted);
        } else {
            machine.server.handle(self.started.elapsed(), Input::Cancel { by, number });
            machine.drain(&Asked::Nothing, &mut due);
        }
        machine.speak(&mut due);
        due
    }

    /// Who is in the way. `Err`: it is not known yet.
    pub(super) fn find(&self, request: &LockRequest) -> Result<Option<Found<Owner>>, ()> {
        let machine = self.machine.lock();
        if machine.server.in_grace() { Err(()) } else { Ok(machine.server.locks().in_the_way(request)) }
    }

    /// Does somebody have a lock in one of the slots, or wait for one?
    pub(super) fn has_locks(&self, slots: &[Slot]) -> bool {
        let slots: HashSet<Slot> = slots.iter().copied().collect();
        let there = |ino: Ino| slots.contains(&ino.ugsd().slot());
        let machine = self.machine.lock();
        let locks = machine.server.locks();
        locks.all().any(|(ino, _)| there(ino))
            || locks.all_waiting().any(|(_, request)| there(request.ino))
            || machine.early.iter().any(|early| there(early.request.ino))
    }

    /// `Err`: there is no such session.
    pub(super) fn listen(&self, by: Party, heard: u64, listener: Listener) -> Result<Due, Listener> {
        let mut machine = self.machine.lock();
        if !machine.server.is_alive(by) {
            return Err(listener);
        }
        let before = machine.mailboxes.entry(by.session).or_default().listen(heard, listener);
        machine.touched.insert(by.session);
        let mut due = Due::default();
        // Whoever asked before has lost his connection, or is told nothing.
        due.heard.extend(before.map(|before| (before.reply, proto::locks::Told::default())));
        machine.speak(&mut due);
        Ok(due)
    }

    /// Nobody is told anything any more.
    pub(super) fn silence(&self) -> Vec<Listener> {
        let boxes = std::mem::take(&mut self.machine.lock().mailboxes);
        boxes.into_values().filter_map(Mailbox::into_listener).collect()
    }

    fn drive(&self, input: Input, asked: Asked) -> (Got, Due) {
        let mut machine = self.machine.lock();
        let mut due = Due::default();
        machine.server.handle(self.started.elapsed(), input);
        let got = machine.drain(&asked, &mut due);
        machine.speak(&mut due);
        (got, due)
    }
}

impl Machine {
    fn stamped(&mut self, outcome: LockOutcome) -> Locked {
        self.stamp += 1;
        Locked { outcome: outcome.into(), stamp: self.stamp }
    }

    fn put(&mut self, session: SessionId, number: u64, outcome: LockOutcome) {
        let locked = self.stamped(outcome);
        self.mailboxes.entry(session).or_default().put(number, locked);
        self.touched.insert(session);
    }

    /// Some may have listened long enough.
    fn touch_all(&mut self) {
        self.touched.extend(self.mailboxes.keys());
    }

    /// Carries out what can be here.
    fn drain(&mut self, asked: &Asked, due: &mut Due) -> Got {
        let mut got = Got::default();
        while let Some(effect) = self.server.poll_effect() {
            match effect {
                Effect::Tell { to, telling } => {
                    if matches!(asked, Asked::Joining(session) if *session == to) {
                        got.said = Some(telling);
                    }
                }
                Effect::Lock { by, number, outcome } => {
                    let is_his =
                        matches!(asked, Asked::Lock(session, n) if (*session, *n) == (by.session, number));
                    match spoken(outcome) {
                        Some(outcome) if is_his => got.locked = Some(self.stamped(outcome)),
                        Some(outcome) => self.put(by.session, number, outcome),
                        None => got.gone |= is_his,
                    }
                }
                Effect::Fence(session) => {
                    self.early.retain(|early| early.by.session != session);
                    due.fence.push(session);
                }
                Effect::Over(session) => {
                    self.early.retain(|early| early.by.session != session);
                    let listener = self.mailboxes.remove(&session).and_then(Mailbox::into_listener);
                    due.deserted.extend(listener);
                    due.over.push(session);
                }
                Effect::EndGrace => due.end_grace = true,
                // Nobody claims anything yet.
                Effect::Begun { .. } | Effect::NotBegun { .. } => (),
            }
        }
        got
    }

    /// Who listens and has something to hear.
    fn speak(&mut self, due: &mut Due) {
        let now = Instant::now();
        for session in std::mem::take(&mut self.touched) {
            due.heard.extend(self.mailboxes.get_mut(&session).and_then(|mailbox| mailbox.ready(now)));
        }
    }
}

/// `None`: nobody is there to be answered. Who comes too early was kept back.
fn spoken(outcome: Decision) -> Option<LockOutcome> {
    match outcome {
        Decision::Granted => Some(LockOutcome::Granted),
        Decision::Conflict => Some(LockOutcome::Conflict),
        Decision::Deadlock => Some(LockOutcome::Deadlock),
        Decision::Interrupted => Some(LockOutcome::Interrupted),
        Decision::TooMany => Some(LockOutcome::TooMany),
        Decision::Later | Decision::Gone => None,
    }
}
