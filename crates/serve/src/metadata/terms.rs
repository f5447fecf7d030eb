//! Sessions' terms, their leases and the locks of their programs: the shell of [`lease::coherence::server`].
//!
//! - I-TERMS-1: the machine is driven under one lock, and what it decides is put into the order of its decisions there: each outcome
//!   of a lock has a stamp, and is either the answer of who asked or in his mailbox.
//! - I-TERMS-2: a session is given up by the machine's verdict alone, which is durable before what the session had is free.
//! - I-TERMS-3: nobody's thread waits for a lock. What comes before it is known who has what waits here, in its order.
//! - I-TERMS-4: leases end without a word when their session was silent for [`lease_term`] by our clock, drift included; a client counts from when it
//!   asked what was answered last, and forgets all when that time is over.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

use cluster::tenure::Terms as Term;
use lease::coherence::{
    locks::{LockLimits, LockRequest, Outcome as Decision, Owner},
    message::{Joined, Life, Party, Saying, Telling as Said},
    ranges::Found,
    rights::{Claim, Key, Rights},
    server::{Effect, Expected, Input, Limits, Past, Refused, Server},
    vacating::KeptThere,
};
use parking_lot::{Condvar, Mutex};
use proto::{
    SessionId,
    leases::Returned,
    locks::{LOCKS_MAX, LockOutcome, Locked},
};

use types::Slot;

use super::{
    mailbox::{Heard, Listener, Mailbox},
    session::SessionLimits,
    verdicts::Presence,
};
use crate::waking::Waking;

/// Programs' threads that wait for locks.
const WAITERS_MAX: usize = 1 << 14;
/// Some 100 bytes each.
const LOCKS_IN_ALL: usize = 1 << 20;

/// What was recalled a moment ago is not granted: names and directories that several clients change in turn would be recalled each time.
const REST: Duration = Duration::from_millis(300);
/// Of keys that rest; beyond it the oldest may be granted sooner, which costs speed only.
const RESTING_MAX: usize = 1 << 12;
/// All leases of all sessions.
const LEASES_MAX: usize = 1 << 20;

/// For how long a client may use what it keeps after it asked something.
pub(super) fn lease_term(sessions: &SessionLimits) -> Duration {
    sessions.silence / 5
}

/// The same by our clock, for clocks that gain or lose one part in fifty.
fn lapse(sessions: &SessionLimits) -> Duration {
    let term = lease_term(sessions);
    term + term / 20
}

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
        leases: LEASES_MAX,
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

pub(super) struct Early {
    pub by: Party,
    pub number: u64,
    pub request: LockRequest,
}

pub(super) struct Machine {
    pub server: Server,
    /// Of the last change of a lock.
    pub stamp: u64,
    /// Where there are several metadata servers: slots whose locks of earlier lives are brought by those who had them.
    pub begun: Option<HashSet<Slot>>,
    /// Slots that were taken without what was in them: until when nobody gets a lock there, and their number among such ones.
    pub unsettled: HashMap<Slot, (Duration, u64)>,
    /// Slots that are asked back, and how often: nothing is granted there.
    pub closing: HashMap<Slot, u32>,
    /// Until when it is not known what clients keep in slots that were taken.
    pub doubtful: HashMap<Slot, Duration>,
    mailboxes: BTreeMap<SessionId, Mailbox>,
    /// Those that something was put into, or somebody began to listen to.
    touched: BTreeSet<SessionId>,
    /// Locks that were asked for while who has what was not known.
    pub early: VecDeque<Early>,
    /// Operations that somebody waits for, and whether they have begun.
    beginning: HashMap<(SessionId, u64), bool>,
    resting: HashMap<Key, Instant>,
    counts: Counts,
}

/// Since the service was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    pub granted: u64,
    pub recalled: u64,
    /// Sessions whose leases ended because they were silent.
    pub lapsed: u64,
    /// Leases at this moment.
    pub leases: u64,
}

/// What somebody waits for at this moment.
pub(super) enum Asked {
    Nothing,
    Lock(SessionId, u64),
    Joining(SessionId),
    /// A lease, or the beginning of an operation.
    Operation(SessionId, u64),
}

/// What he gets.
#[derive(Default)]
pub(super) struct Got {
    locked: Option<Locked>,
    pub said: Option<Said>,
    /// His session was given up.
    gone: bool,
    begun: bool,
    refused: Option<Refused>,
}

pub(super) struct Terms {
    pub clock: Waking,
    life: Life,
    pub lapse: Duration,
    pub machine: Mutex<Machine>,
    /// Something that was waited for has begun.
    pub begun: Condvar,
}

impl Terms {
    /// `begun`: where there are several metadata servers, the slots of this one.
    pub(super) fn new(
        sessions: &SessionLimits,
        (past, present): (Past, Option<BTreeMap<SessionId, Presence>>),
        begun: Option<HashSet<Slot>>,
    ) -> Terms {
        let (life, lapse) = (past.life, lapse(sessions));
        // Each life is counted before anybody is served, so nobody was before the first.
        let mut server = if life == Life(1) {
            Server::first(limits(sessions), Duration::ZERO)
        } else {
            Server::new(limits(sessions), past, Duration::ZERO)
        };
        if let Some(present) = present {
            let those = |least: Presence| {
                present.iter().filter(|(_, has)| **has >= least).map(|(session, _)| *session).collect()
            };
            let (keeping, writing) = (those(Presence::Keeping), those(Presence::Writing));
            let sessions = present.keys().copied().collect();
            server.expect(Expected { sessions, keeping, lapsed: lapse, writing });
        }
        let machine = Machine {
            server,
            stamp: life.first_number(),
            begun,
            unsettled: HashMap::new(),
            closing: HashMap::new(),
            doubtful: HashMap::new(),
            mailboxes: BTreeMap::new(),
            touched: BTreeSet::new(),
            early: VecDeque::new(),
            beginning: HashMap::new(),
            resting: HashMap::new(),
            counts: Counts::default(),
        };
        let (clock, machine) = (Waking::for_silence(sessions.silence), Mutex::new(machine));
        Terms { clock, life, lapse, machine, begun: Condvar::new() }
    }

    /// Since the service was started, but for what it stood still.
    pub(super) fn age(&self) -> Duration {
        self.clock.now()
    }

    pub(super) fn life(&self) -> Life {
        self.life
    }

    /// They were heard of.
    pub(super) fn heard(&self, parties: &[Party]) {
        let (now, mut machine) = (self.age(), self.machine.lock());
        for by in parties {
            machine.server.handle(now, Input::Said { by: *by, saying: Saying::Renew { number: 0 } });
            // That it may go on it knows by its answer.
            while machine.server.poll_effect().is_some() {}
        }
    }

    /// Those that are there, and the last number that one came by.
    pub(super) fn there(&self) -> (Vec<Joined>, Joined) {
        self.machine.lock().server.there()
    }

    /// Everybody of earlier lives who may have something has come back.
    pub(super) fn all_are_back(&self) -> bool {
        self.machine.lock().server.missing().is_some_and(BTreeSet::is_empty)
    }

    /// Sessions of earlier lives that did not come back yet.
    pub(super) fn missing(&self) -> Vec<SessionId> {
        self.machine.lock().server.missing().into_iter().flatten().copied().collect()
    }

    pub(super) fn counts(&self) -> Counts {
        let machine = self.machine.lock();
        Counts { leases: machine.server.table().leases() as u64, ..machine.counts }
    }

    /// Those of these that have leases, and were silent for so long that they use them no more. `silent` is looked at with the lock
    /// by which sessions are heard.
    pub(super) fn lapse(&self, silent: impl Iterator<Item = (SessionId, Duration)>) -> Due {
        let mut due = Due::default();
        let mut machine = self.machine.lock();
        for (session, _) in silent.filter(|(_, silent)| *silent > self.lapse) {
            if machine.server.table().lapsing(session).next().is_some() {
                machine.counts.lapsed += 1;
                machine.server.handle(self.age(), Input::Lapsed(session));
                machine.drain(&Asked::Nothing, &mut due);
            }
        }
        machine.speak(&mut due);
        drop(machine);
        self.begun.notify_all();
        due
    }

    /// May the session keep this? To be asked before what is told is read. Returns the number of the grant.
    pub(super) fn grant(&self, by: Party, key: &Key, rights: Rights) -> Option<u64> {
        let now = self.age();
        let mut machine = self.machine.lock();
        let rests = machine.resting.get(key).is_some_and(|until| Instant::now() < *until);
        if rests || machine.is_closed(key, now) {
            return None;
        }
        let (asked, mut due) = (Asked::Operation(by.session, LOOKING), Due::default());
        let claims = vec![(key.clone(), Claim::Look)];
        machine.server.handle(now, Input::Begin { by, operation: LOOKING, claims });
        let begun = machine.drain(&asked, &mut due).begun;
        let mut got = Got::default();
        if begun {
            let saying = Saying::Want { request: 0, key: key.clone(), rights };
            machine.server.handle(now, Input::Said { by, saying });
            got = machine.drain(&asked, &mut due);
        }
        machine.server.handle(now, Input::End { by, operation: LOOKING });
        match got.said {
            Some(Said::Granted { rights: granted, number, .. }) if granted.contains(rights) => {
                machine.counts.granted += 1;
                Some(number)
            }
            _ => None,
        }
    }

    /// Begins an operation. `Ok(false)`: what is in the way is being recalled, and [`Terms::wait`] says when it has begun.
    pub(super) fn begin(
        &self,
        by: Party,
        operation: u64,
        claims: Vec<(Key, Claim)>,
    ) -> (Result<bool, Refused>, Due) {
        let (now, mut machine) = (self.age(), self.machine.lock());
        let mut due = Due::default();
        if claims.iter().any(|(key, _)| machine.in_doubt(key.slot(), now)) {
            return (Err(Refused::Later), due);
        }
        machine.beginning.insert((by.session, operation), false);
        machine.server.handle(now, Input::Begin { by, operation, claims });
        let got = machine.drain(&Asked::Operation(by.session, operation), &mut due);
        machine.speak(&mut due);
        if got.begun || got.refused.is_some() {
            machine.beginning.remove(&(by.session, operation));
        }
        (got.refused.map_or(Ok(got.begun), Err), due)
    }

    /// False: not by then. It is not waited for any more.
    pub(super) fn wait(&self, by: Party, operation: u64, until: Instant) -> bool {
        let mut machine = self.machine.lock();
        let at = (by.session, operation);
        while machine.beginning.get(&at) == Some(&false) {
            if self.begun.wait_until(&mut machine, until).timed_out() {
                break;
            }
        }
        machine.beginning.remove(&at);
        machine.server.table().has_begun(by.session, operation) == Some(true)
    }

    pub(super) fn end(&self, by: Party, operation: u64) {
        self.machine.lock().server.handle(self.age(), Input::End { by, operation });
    }

    /// A session gives leases back.
    pub(super) fn returned(&self, by: Party, returned: &[(Key, Returned)]) -> Due {
        let now = self.age();
        let mut machine = self.machine.lock();
        let mut due = Due::default();
        for (key, Returned { number, keeps, .. }) in returned {
            let keeps = u8::try_from(*keeps).ok().and_then(Rights::from_bits).unwrap_or(Rights::NONE);
            let saying = Saying::Returned { key: key.clone(), number: *number, keeps };
            if let Some(mailbox) = machine.mailboxes.get_mut(&by.session) {
                mailbox.returned(*number);
            }
            machine.server.handle(now, Input::Said { by, saying });
            machine.drain(&Asked::Nothing, &mut due);
        }
        machine.speak(&mut due);
        drop(machine);
        self.begun.notify_all();
        due
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
        let now = self.age();
        machine.decide_early(now, &mut due);
        machine.speak(&mut due);
        due
    }

    /// What is due by the clock.
    pub(super) fn tick(&self) -> Due {
        let (now, mut due) = (self.age(), Due::default());
        let mut machine = self.machine.lock();
        if machine.server.next_deadline().is_some_and(|at| at <= now) {
            machine.server.handle_deadline(now);
            machine.drain(&Asked::Nothing, &mut due);
        }
        machine.doubtful.retain(|_, until| now < *until);
        machine.touch_all();
        machine.speak(&mut due);
        let now = Instant::now();
        machine.resting.retain(|_, until| now < *until);
        drop(machine);
        self.begun.notify_all();
        due
    }

    /// `None`: the session was just given up.
    pub(super) fn lock(&self, by: Party, number: u64, request: LockRequest) -> (Option<Locked>, Due) {
        let mut machine = self.machine.lock();
        if machine.is_early(request.ino) && machine.server.is_alive(by) {
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
        machine.server.handle(self.age(), input);
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
            machine.server.handle(self.age(), Input::Cancel { by, number });
            machine.drain(&Asked::Nothing, &mut due);
        }
        machine.speak(&mut due);
        due
    }

    /// Who is in the way. `Err`: it is not known yet.
    pub(super) fn find(&self, request: &LockRequest) -> Result<Option<Found<Owner>>, ()> {
        let machine = self.machine.lock();
        if machine.is_early(request.ino) { Err(()) } else { Ok(machine.server.locks().in_the_way(request)) }
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

    pub(super) fn drive(&self, input: Input, asked: Asked) -> (Got, Due) {
        let mut machine = self.machine.lock();
        let mut due = Due::default();
        machine.server.handle(self.age(), input);
        let got = machine.drain(&asked, &mut due);
        machine.speak(&mut due);
        drop(machine);
        self.begun.notify_all();
        (got, due)
    }
}

/// The operation of a look, which lasts for a moment under the machine's lock.
const LOOKING: u64 = u64::MAX;

impl Machine {
    fn stamped(&mut self, outcome: LockOutcome) -> Locked {
        self.stamp += 1;
        Locked { outcome: outcome.into(), stamp: self.stamp }
    }

    pub(super) fn put(&mut self, session: SessionId, number: u64, outcome: LockOutcome) {
        let locked = self.stamped(outcome);
        self.mailboxes.entry(session).or_default().put(number, locked);
        self.touched.insert(session);
    }

    pub(super) fn recall_slots(&mut self, there: &KeptThere) {
        self.counts.recalled += 1;
        self.mailboxes.entry(there.session).or_default().recall_slots(&there.slots, there.number);
        self.touched.insert(there.session);
    }

    pub(super) fn slots_returned(&mut self, session: SessionId, number: u64) {
        if let Some(mailbox) = self.mailboxes.get_mut(&session) {
            mailbox.slots_returned(number);
        }
    }

    /// Some may have listened long enough.
    fn touch_all(&mut self) {
        self.touched.extend(self.mailboxes.keys());
    }

    /// Carries out what can be here.
    pub(super) fn drain(&mut self, asked: &Asked, due: &mut Due) -> Got {
        let mut got = Got::default();
        while let Some(effect) = self.server.poll_effect() {
            match effect {
                Effect::Tell { to, telling: Said::Recall { key, keeps, number, .. } } => {
                    self.counts.recalled += 1;
                    if self.resting.len() < RESTING_MAX {
                        self.resting.insert(key.clone(), Instant::now() + REST);
                    }
                    self.mailboxes.entry(to).or_default().recall(&key, keeps, number);
                    self.touched.insert(to);
                }
                Effect::Tell { to, telling } => {
                    let is_his = match asked {
                        Asked::Joining(session) => *session == to,
                        Asked::Operation(session, number) => *session == to && *number == LOOKING,
                        Asked::Nothing | Asked::Lock(..) => false,
                    };
                    if is_his {
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
                    self.beginning.retain(|(of, _), _| *of != session);
                    due.over.push(session);
                }
                Effect::EndGrace => due.end_grace = true,
                Effect::Begun { by, operation } => {
                    let at = (by.session, operation);
                    got.begun |= matches!(asked, Asked::Operation(s, n) if (*s, *n) == at);
                    self.beginning.entry(at).and_modify(|begun| *begun = true);
                }
                Effect::NotBegun { by, operation, why } => {
                    if matches!(asked, Asked::Operation(s, n) if (*s, *n) == (by.session, operation)) {
                        got.refused = Some(why);
                    }
                }
            }
        }
        got
    }

    /// Who listens and has something to hear.
    pub(super) fn speak(&mut self, due: &mut Due) {
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
