//! The locks of all programs on all nodes: fcntl(2) with its two kinds of owners, and flock(2); who waits for them, and who would
//! wait for ever.
//!
//! - I-CLEASE-5: two owners' locks never conflict: of two that share a byte none is for writing. Those of fcntl(2) and of flock(2) do
//!   not see each other, those of processes and of open file descriptions do.
//! - I-CLEASE-6: a request is answered once: at once, or when what is in its way has gone, or when it is cancelled. Nobody waits whom
//!   nothing is in the way of, and no circle of processes waits for each other: whoever would close it is told `EDEADLK`, be it by
//!   waiting or, for a process of several threads, by getting a lock. As on one machine only processes' fcntl locks are looked at for that.
//!
//! Who waits stands in nobody's way: a later request that conflicts with no lock is granted, as Linux does it. It knows no session's
//! state and no time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proto::SessionId;
use types::Ino;

pub use super::owner::{Class, Owner};
use super::{
    circles::{Pairs, Wait},
    ranges::{Found, Kind, Range, Ranges},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    pub ino: Ino,
    pub owner: Owner,
    /// flock(2) has no choice but all.
    pub range: Range,
    pub kind: Kind,
    pub pid: u32,
    pub wait: bool,
}

/// A lock that a session had when its server began anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HadLock {
    pub ino: Ino,
    pub owner: Owner,
    pub range: Range,
    pub kind: Kind,
    pub pid: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Granted,
    /// `EAGAIN`: somebody has it, and the request does not wait.
    Conflict,
    /// `EDEADLK`.
    Deadlock,
    /// `EINTR`.
    Interrupted,
    /// `ENOLCK`.
    TooMany,
    /// The server has just begun, and who has what is not known: to be asked again.
    Later,
    /// The session is not there.
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockLimits {
    /// Pieces of all owners: some 100 bytes each.
    pub locks: usize,
    pub session_locks: usize,
    /// A waiter is a thread of some program.
    pub waiters: usize,
}

/// Owners on inodes that are compared with who waits there, in one look for circles.
const CONSIDERED_MAX: usize = 1 << 18;

struct Waiter {
    number: u64,
    request: LockRequest,
}

#[derive(Default)]
struct OnInode {
    ranges: Ranges<Owner>,
    files: Ranges<Owner>,
    /// In the order in which they came.
    waiting: BTreeMap<u64, Waiter>,
}

impl OnInode {
    fn of(&self, class: Class) -> &Ranges<Owner> {
        match class {
            Class::Process | Class::Description => &self.ranges,
            Class::Flock => &self.files,
        }
    }

    fn of_mut(&mut self, class: Class) -> &mut Ranges<Owner> {
        match class {
            Class::Process | Class::Description => &mut self.ranges,
            Class::Flock => &mut self.files,
        }
    }

    fn blockers(&self, request: &LockRequest) -> impl Iterator<Item = Found<Owner>> {
        self.of(request.owner.class).in_the_way(request.owner, request.range, request.kind)
    }
}

pub struct Locks {
    limits: LockLimits,
    inodes: BTreeMap<Ino, OnInode>,
    /// Where a request waits.
    waiting: BTreeMap<(SessionId, u64), (Ino, u64)>,
    waits_of: BTreeMap<Owner, BTreeSet<(Ino, u64)>>,
    /// Pieces and waiters of a session on an inode.
    places: BTreeMap<(SessionId, Ino), usize>,
    pieces_of: BTreeMap<SessionId, usize>,
    pieces: usize,
    arrivals: u64,
    answers: VecDeque<(SessionId, u64, Outcome)>,
    /// What was told of who waits for whom.
    pairs: Pairs,
}

impl Locks {
    pub fn new(limits: LockLimits) -> Locks {
        Locks {
            limits,
            inodes: BTreeMap::new(),
            waiting: BTreeMap::new(),
            waits_of: BTreeMap::new(),
            places: BTreeMap::new(),
            pieces_of: BTreeMap::new(),
            pieces: 0,
            arrivals: 0,
            answers: VecDeque::new(),
            pairs: Pairs::default(),
        }
    }

    /// A session's request by its number. One that waits already may come again; one that was answered must not.
    pub fn lock(&mut self, number: u64, request: LockRequest) {
        let key = (request.owner.session, number);
        if self.waiting.contains_key(&key) {
            return;
        }
        let mut request = request;
        if request.owner.class == Class::Flock {
            request.range = Range::ALL;
            self.give_up_other_kind(&request);
        }
        let decided = self.decide(&request, true);
        let outcome = match decided {
            Some(Outcome::Granted) => Some(self.take(&request)),
            Some(outcome) => Some(outcome),
            None if !request.wait => Some(Outcome::Conflict),
            None if self.waiting.len() >= self.limits.waiters => Some(Outcome::TooMany),
            None => None,
        };
        // A lock that one of its owner's threads gets can be what the others wait for.
        let circles = decided == Some(Outcome::Granted) && self.waits_of.contains_key(&request.owner);
        match outcome {
            Some(outcome) => self.answers.push_back((key.0, number, outcome)),
            None => self.enqueue(number, request),
        }
        self.settle(request.ino, circles);
    }

    /// `false`, and nothing changed: it would make two locks of one, and there is no room.
    pub fn unlock(&mut self, owner: Owner, ino: Ino, range: Range) -> bool {
        let range = if owner.class == Class::Flock { Range::ALL } else { range };
        let Some(on) = self.inodes.get(&ino) else { return true };
        if !self.room(owner.session, on.of(owner.class).growth(owner, range, None)) {
            return false;
        }
        self.set(ino, owner, range, None, 0);
        self.settle(ino, false);
        true
    }

    /// The program wants to wait no longer. Of what does not wait, it says nothing.
    pub fn cancel(&mut self, session: SessionId, number: u64) {
        if let Some((ino, arrival)) = self.waiting.get(&(session, number)).copied() {
            self.dequeue(ino, arrival);
            self.answers.push_back((session, number, Outcome::Interrupted));
        }
    }

    /// A process's request that waits is told `EDEADLK`: it was in a circle over several servers ([`super::circles`]).
    pub fn refuse(&mut self, session: SessionId, number: u64) {
        let Some((ino, arrival)) = self.waiting.get(&(session, number)).copied() else { return };
        let waiter = self.inodes.get(&ino).and_then(|on| on.waiting.get(&arrival));
        if waiter.is_some_and(|waiter| waiter.request.owner.class == Class::Process) {
            self.dequeue(ino, arrival);
            self.answers.push_back((session, number, Outcome::Deadlock));
        }
    }

    /// Which processes wait for which, at most so many pairs.
    pub fn waits(&mut self, pairs_max: usize) -> Vec<Wait> {
        let (mut waits, mut left) = (self.pairs.begin(), (pairs_max, CONSIDERED_MAX));
        for (owner, places) in self.waits_of.iter().filter(|(owner, _)| owner.class == Class::Process) {
            for (ino, arrival) in places {
                let Some(on) = self.inodes.get(ino) else { continue };
                let Some(Waiter { number, request }) = on.waiting.get(arrival) else { continue };
                let Some(considered) = left.1.checked_sub(on.ranges.owners_len()) else { continue };
                let behind: Vec<Owner> = on.blockers(request).map(|found| found.owner).collect();
                let Some(pairs) = left.0.checked_sub(behind.len()) else { continue };
                left = (pairs, considered);
                waits.tell((*ino, *arrival), (*owner, *number), behind);
            }
        }
        self.pairs.end(waits)
    }

    /// Nobody waits for it any more: what waits of the session is dropped without an answer.
    pub fn stop_waiting(&mut self, session: SessionId) {
        let of = self.waiting.range((session, 0)..).take_while(|((s, _), _)| *s == session);
        let places: Vec<(Ino, u64)> = of.map(|(_, place)| *place).collect();
        for (ino, arrival) in places {
            self.dequeue(ino, arrival);
        }
        self.answers.retain(|(of, _, _)| *of != session);
    }

    /// The session is over.
    pub fn release(&mut self, session: SessionId) {
        self.stop_waiting(session);
        let of = self.places.range((session, Ino::ROOT)..).take_while(|((s, _), _)| *s == session);
        let inodes: Vec<Ino> = of.map(|((_, ino), _)| *ino).collect();
        for ino in inodes {
            let Some(on) = self.inodes.get(&ino) else { continue };
            let owners = on.ranges.owners().chain(on.files.owners()).filter(|owner| owner.session == session);
            for owner in owners.collect::<Vec<Owner>>() {
                self.set(ino, owner, Range::ALL, None, 0);
            }
            self.settle(ino, false);
        }
    }

    /// `F_GETLK`: the first that is in the way.
    pub fn in_the_way(&self, request: &LockRequest) -> Option<Found<Owner>> {
        self.inodes.get(&request.ino)?.blockers(request).min_by_key(|found| found.range)
    }

    /// Could it be had at once?
    pub fn is_free(&self, request: &LockRequest) -> bool {
        self.in_the_way(request).is_none()
    }

    /// Could a session have had these, beside what others came back with?
    pub fn fit(&self, session: SessionId, had: &[HadLock]) -> bool {
        let free = |lock: &HadLock| {
            let Some(on) = self.inodes.get(&lock.ino) else { return true };
            let mut found = on.of(lock.owner.class).in_the_way(lock.owner, lock.range, lock.kind);
            found.all(|found| found.owner.session == session)
        };
        let growth = isize::try_from(had.len()).unwrap_or(isize::MAX);
        self.room(session, growth) && had.iter().all(free)
    }

    pub fn has(&self, had: &HadLock) -> bool {
        let Some(on) = self.inodes.get(&had.ino) else { return false };
        let covers = |range: Range| range.start() <= had.range.start() && had.range.end() <= range.end();
        let mut all = on.of(had.owner.class).all();
        all.any(|found| found.owner == had.owner && found.kind == had.kind && covers(found.range))
    }

    /// One of those that [`Locks::fit`].
    pub fn restore(&mut self, had: &HadLock) {
        self.set(had.ino, had.owner, had.range, Some(had.kind), had.pid);
    }

    /// All that is on some inodes goes to another server: their locks, and the numbers of the requests that wait there, in their order. Nobody is
    /// answered.
    pub fn take_out(&mut self, there: &dyn Fn(Ino) -> bool) -> (Vec<HadLock>, Vec<(SessionId, u64)>) {
        let (mut locks, mut waited) = (Vec::new(), Vec::new());
        let inodes: Vec<Ino> = self.inodes.keys().copied().filter(|ino| there(*ino)).collect();
        for ino in inodes {
            let arrivals = self.inodes.get(&ino).map(|on| on.waiting.keys().copied().collect::<Vec<u64>>());
            for arrival in arrivals.into_iter().flatten() {
                let waiter = self.dequeue(ino, arrival);
                waited.extend(waiter.map(|waiter| (waiter.request.owner.session, waiter.number)));
            }
            let Some(on) = self.inodes.get(&ino) else { continue };
            let found: Vec<Found<Owner>> = on.ranges.all().chain(on.files.all()).collect();
            for Found { owner, range, kind, pid } in found {
                locks.push(HadLock { ino, owner, range, kind, pid });
                self.set(ino, owner, range, None, 0);
            }
        }
        (locks, waited)
    }

    pub fn poll_answer(&mut self) -> Option<(SessionId, u64, Outcome)> {
        self.answers.pop_front()
    }

    /// Every lock.
    pub fn all(&self) -> impl Iterator<Item = (Ino, Found<Owner>)> {
        self.inodes.iter().flat_map(|(ino, on)| on.ranges.all().chain(on.files.all()).map(|f| (*ino, f)))
    }

    /// Every request that waits, and its number.
    pub fn all_waiting(&self) -> impl Iterator<Item = (u64, &LockRequest)> {
        self.inodes.values().flat_map(|on| on.waiting.values().map(|w| (w.number, &w.request)))
    }

    /// What can be said now. `None`: it has to wait.
    fn decide(&self, request: &LockRequest, circles: bool) -> Option<Outcome> {
        if self.is_free(request) {
            return Some(Outcome::Granted);
        }
        let looked_at = circles && request.wait && request.owner.class == Class::Process;
        (looked_at && self.closes_a_circle(request)).then_some(Outcome::Deadlock)
    }

    fn closes_a_circle(&self, request: &LockRequest) -> bool {
        let blockers = |request: &LockRequest| -> Vec<Owner> {
            let on = self.inodes.get(&request.ino).into_iter();
            on.flat_map(|on| on.blockers(request).map(|found| found.owner)).collect()
        };
        let mut seen: BTreeSet<Owner> = BTreeSet::new();
        let mut ahead = blockers(request);
        while let Some(owner) = ahead.pop() {
            if owner == request.owner {
                return true;
            }
            if owner.class != Class::Process || !seen.insert(owner) {
                continue;
            }
            for (ino, arrival) in self.waits_of.get(&owner).into_iter().flatten() {
                if let Some(waiter) = self.inodes.get(ino).and_then(|on| on.waiting.get(arrival)) {
                    ahead.extend(blockers(&waiter.request));
                }
            }
        }
        false
    }

    /// flock(2) changes a lock by giving it up first, and who then fails or waits has none.
    fn give_up_other_kind(&mut self, request: &LockRequest) {
        let has = self.inodes.get(&request.ino).and_then(|on| on.files.whole(request.owner));
        if has.is_some_and(|kind| kind != request.kind) {
            self.set(request.ino, request.owner, Range::ALL, None, 0);
        }
    }

    /// It is free.
    fn take(&mut self, request: &LockRequest) -> Outcome {
        let LockRequest { ino, owner, range, kind, pid, .. } = *request;
        let ranges = self.inodes.get(&ino).map(|on| on.of(owner.class));
        let growth = ranges.map_or(1, |ranges| ranges.growth(owner, range, Some(kind)));
        if !self.room(owner.session, growth) {
            return Outcome::TooMany;
        }
        self.set(ino, owner, range, Some(kind), pid);
        Outcome::Granted
    }

    fn room(&self, session: SessionId, growth: isize) -> bool {
        let growth = usize::try_from(growth).unwrap_or(0);
        let of_session = self.pieces_of.get(&session).copied().unwrap_or(0);
        growth == 0
            || (self.pieces + growth <= self.limits.locks && of_session + growth <= self.limits.session_locks)
    }

    fn set(&mut self, ino: Ino, owner: Owner, range: Range, kind: Option<Kind>, pid: u32) {
        let ranges = self.inodes.entry(ino).or_default().of_mut(owner.class);
        let growth = ranges.growth(owner, range, kind);
        ranges.set(owner, range, kind, pid);
        if let Some(on) = self.inodes.get(&ino).filter(|_| owner.class == Class::Process) {
            let blocks = |arrival: u64| {
                let waiter = on.waiting.get(&arrival);
                waiter.is_some_and(|w| on.ranges.blocks(owner, w.request.range, w.request.kind))
            };
            self.pairs.changed(ino, owner, blocks);
        }
        self.pieces = self.pieces.saturating_add_signed(growth);
        let of_session = self.pieces_of.entry(owner.session).or_default();
        *of_session = of_session.saturating_add_signed(growth);
        if *of_session == 0 {
            self.pieces_of.remove(&owner.session);
        }
        self.count(owner.session, ino, growth);
    }

    /// Keeps the places of a session, and drops inodes that nobody has anything on.
    fn count(&mut self, session: SessionId, ino: Ino, growth: isize) {
        let place = self.places.entry((session, ino)).or_default();
        *place = place.saturating_add_signed(growth);
        if *place == 0 {
            self.places.remove(&(session, ino));
        }
        let idle = |on: &OnInode| on.ranges.is_empty() && on.files.is_empty() && on.waiting.is_empty();
        if self.inodes.get(&ino).is_some_and(idle) {
            self.inodes.remove(&ino);
        }
    }

    fn enqueue(&mut self, number: u64, request: LockRequest) {
        self.arrivals += 1;
        let (ino, owner) = (request.ino, request.owner);
        self.waiting.insert((owner.session, number), (ino, self.arrivals));
        self.waits_of.entry(owner).or_default().insert((ino, self.arrivals));
        self.inodes.entry(ino).or_default().waiting.insert(self.arrivals, Waiter { number, request });
        self.count(owner.session, ino, 1);
    }

    fn dequeue(&mut self, ino: Ino, arrival: u64) -> Option<Waiter> {
        let waiter = self.inodes.get_mut(&ino)?.waiting.remove(&arrival)?;
        self.pairs.ended(ino, arrival);
        let owner = waiter.request.owner;
        self.waiting.remove(&(owner.session, waiter.number));
        if let Some(waits) = self.waits_of.get_mut(&owner) {
            waits.remove(&(ino, arrival));
            if waits.is_empty() {
                self.waits_of.remove(&owner);
            }
        }
        self.count(owner.session, ino, -1);
        Some(waiter)
    }

    /// Locks of an inode changed. `circles`: somebody who waits got one, so that those who wait for him may wait for ever.
    fn settle(&mut self, ino: Ino, circles: bool) {
        let mut circles = circles;
        loop {
            let Some(on) = self.inodes.get(&ino) else { return };
            let decided = on
                .waiting
                .iter()
                .find_map(|(arrival, waiter)| Some((*arrival, self.decide(&waiter.request, circles)?)));
            let Some((arrival, outcome)) = decided else { return };
            let Some(Waiter { number, request }) = self.dequeue(ino, arrival) else { return };
            let outcome = if outcome == Outcome::Granted { self.take(&request) } else { outcome };
            circles |= self.waits_of.contains_key(&request.owner);
            self.answers.push_back((request.owner.session, number, outcome));
        }
    }
}
