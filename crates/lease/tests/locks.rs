//! Goal: locks as fcntl(2) and flock(2) say, every waiter answered when it may have what it wants, and no circle of waiters. Method: random
//! requests of few owners on few bytes, beside a table that has what each owner has on each byte and does everything the slow way; and the
//! histories that people name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm)]

use std::collections::{BTreeMap, BTreeSet};

use lease::coherence::{
    locks::{Class, LockLimits, LockRequest, Locks, Outcome, Owner},
    ranges::{Kind, Range},
};
use proptest::prelude::*;
use proto::SessionId;
use types::Ino;

const BYTES: u64 = 4;
const WIDE: LockLimits = LockLimits { locks: 1000, session_locks: 1000, waiters: 1000 };

fn owner(session: u128, class: Class, id: u64) -> Owner {
    Owner { session: SessionId(session), class, id }
}

fn ino(n: u64) -> Ino {
    Ino::from_raw(n + 1).unwrap()
}

fn request(owner: Owner, at: u64, (first, last): (u64, u64), kind: Kind, wait: bool) -> LockRequest {
    LockRequest { ino: ino(at), owner, range: Range::new(first, last).unwrap(), kind, pid: 1, wait }
}

fn answers(locks: &mut Locks) -> Vec<(SessionId, u64, Outcome)> {
    std::iter::from_fn(|| locks.poll_answer()).collect()
}

fn ask(locks: &mut Locks, number: u64, request: LockRequest) -> Option<Outcome> {
    locks.lock(number, request);
    let mut found = answers(locks).into_iter();
    let outcome = found.next().map(|(_, of, outcome)| {
        assert_eq!(of, number);
        outcome
    });
    assert_eq!(found.next(), None);
    outcome
}

/// Who has what on a byte of an inode.
#[derive(Default)]
struct Table {
    bytes: BTreeMap<(Ino, bool, u64), BTreeMap<Owner, Kind>>,
    waiting: Vec<(u64, LockRequest)>,
}

impl Table {
    fn bytes_of(request: &LockRequest) -> impl Iterator<Item = (Ino, bool, u64)> + use<> {
        let flock = request.owner.class == Class::Flock;
        let (ino, range) = (request.ino, if flock { Range::ALL } else { request.range });
        (range.start()..=range.end().min(BYTES - 1)).map(move |byte| (ino, flock, byte))
    }

    fn blockers(&self, request: &LockRequest) -> BTreeSet<Owner> {
        let conflicts = |kind: Kind| kind == Kind::Write || request.kind == Kind::Write;
        let on = Table::bytes_of(request).filter_map(|at| self.bytes.get(&at)).flatten();
        on.filter(|(of, kind)| **of != request.owner && conflicts(**kind)).map(|(of, _)| *of).collect()
    }

    fn set(&mut self, request: &LockRequest, kind: Option<Kind>) {
        for at in Table::bytes_of(request) {
            let byte = self.bytes.entry(at).or_default();
            match kind {
                Some(kind) => byte.insert(request.owner, kind),
                None => byte.remove(&request.owner),
            };
        }
    }

    /// Is there a way from one of them back to `to`, over processes that wait?
    fn leads(&self, from: &BTreeSet<Owner>, to: Owner) -> bool {
        let mut reached = from.clone();
        loop {
            let before = reached.len();
            let waits = |w: &&(u64, LockRequest)| {
                w.1.owner.class == Class::Process && reached.contains(&w.1.owner) && w.1.owner != to
            };
            let more: Vec<Owner> =
                self.waiting.iter().filter(waits).flat_map(|w| self.blockers(&w.1)).collect();
            reached.extend(more);
            if reached.len() == before {
                return reached.contains(&to);
            }
        }
    }

    /// Those of an inode in the order in which they came, as long as there is one whose turn it is.
    fn settle(&mut self, ino: Ino, answered: &mut BTreeMap<u64, Outcome>) {
        loop {
            let on_inode = |(_, waits): &(usize, &(u64, LockRequest))| waits.1.ino == ino;
            let decided = self.waiting.iter().enumerate().filter(on_inode).find_map(|(at, (_, request))| {
                let blockers = self.blockers(request);
                let circle = request.owner.class == Class::Process && self.leads(&blockers, request.owner);
                match (blockers.is_empty(), circle) {
                    (true, _) => Some((at, Outcome::Granted)),
                    (false, true) => Some((at, Outcome::Deadlock)),
                    (false, false) => None,
                }
            });
            let Some((at, outcome)) = decided else { return };
            let (number, request) = self.waiting.remove(at);
            if outcome == Outcome::Granted {
                self.set(&request, Some(request.kind));
            }
            answered.insert(number, outcome);
        }
    }

    fn lock(&mut self, number: u64, request: LockRequest, answered: &mut BTreeMap<u64, Outcome>) {
        let mine = Table::bytes_of(&request).find_map(|at| self.bytes.get(&at)?.get(&request.owner).copied());
        if request.owner.class == Class::Flock && mine.is_some_and(|kind| kind != request.kind) {
            self.set(&request, None);
        }
        let blockers = self.blockers(&request);
        let circle =
            request.wait && request.owner.class == Class::Process && self.leads(&blockers, request.owner);
        if blockers.is_empty() {
            self.set(&request, Some(request.kind));
            answered.insert(number, Outcome::Granted);
        } else if circle {
            answered.insert(number, Outcome::Deadlock);
        } else if request.wait {
            self.waiting.push((number, request));
        } else {
            answered.insert(number, Outcome::Conflict);
        }
        self.settle(request.ino, answered);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Lock { who: usize, at: u64, a: u64, b: u64, write: bool, wait: bool },
    Unlock { who: usize, at: u64, a: u64, b: u64 },
    Cancel(usize),
    Release(u128),
}

fn owners() -> [Owner; 6] {
    [
        owner(1, Class::Process, 1),
        owner(1, Class::Process, 2),
        owner(2, Class::Process, 1),
        owner(2, Class::Description, 1),
        owner(1, Class::Flock, 1),
        owner(3, Class::Flock, 1),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..6usize, 0..2u64, 0..BYTES, 0..BYTES);
    prop_oneof![
        8 => (place(), any::<bool>(), any::<bool>()).prop_map(|((who, at, a, b), write, wait)| Step::Lock { who, at, a, b, write, wait }),
        4 => place().prop_map(|(who, at, a, b)| Step::Unlock { who, at, a, b }),
        1 => (0..6usize).prop_map(Step::Cancel),
        1 => (1..4u128).prop_map(Step::Release),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn locks_are_a_table_of_bytes(steps in proptest::collection::vec(step(), 1..60)) {
        let (mut locks, mut table) = (Locks::new(WIDE), Table::default());
        let (mut told, mut wanted) = (BTreeMap::new(), BTreeMap::new());
        for (number, step) in (0..).zip(&steps) {
            match *step {
                Step::Lock { who, at, a, b, write, wait } => {
                    let kind = if write { Kind::Write } else { Kind::Read };
                    let request = request(owners()[who], at, (a.min(b), a.max(b)), kind, wait);
                    locks.lock(number, request);
                    table.lock(number, request, &mut wanted);
                }
                Step::Unlock { who, at, a, b } => {
                    let request = request(owners()[who], at, (a.min(b), a.max(b)), Kind::Read, false);
                    prop_assert!(locks.unlock(request.owner, request.ino, request.range));
                    table.set(&request, None);
                    table.settle(request.ino, &mut wanted);
                }
                Step::Cancel(nth) => {
                    if let Some((number, request)) = table.waiting.get(nth).copied() {
                        table.waiting.remove(nth);
                        wanted.insert(number, Outcome::Interrupted);
                        locks.cancel(request.owner.session, number);
                    }
                }
                Step::Release(session) => {
                    let session = SessionId(session);
                    locks.release(session);
                    table.waiting.retain(|(_, request)| request.owner.session != session);
                    table.bytes.values_mut().for_each(|byte| byte.retain(|of, _| of.session != session));
                    (0..2).for_each(|at| table.settle(ino(at), &mut wanted));
                }
            }
            for (_, number, outcome) in answers(&mut locks) {
                prop_assert_eq!(told.insert(number, outcome), None, "I-CLEASE-6: answered once");
            }
            prop_assert_eq!(&told, &wanted);
            let waiting: BTreeSet<u64> = locks.all_waiting().map(|(number, _)| number).collect();
            prop_assert_eq!(waiting, table.waiting.iter().map(|(number, _)| *number).collect::<BTreeSet<_>>());
            let mut held: BTreeMap<(Ino, bool, u64), BTreeMap<Owner, Kind>> = BTreeMap::new();
            for (ino, found) in locks.all() {
                for byte in found.range.start()..=found.range.end().min(BYTES - 1) {
                    held.entry((ino, found.owner.class == Class::Flock, byte)).or_default().insert(found.owner, found.kind);
                }
            }
            table.bytes.retain(|_, byte| !byte.is_empty());
            prop_assert_eq!(&held, &table.bytes);
        }
        for session in 1..4 {
            locks.release(SessionId(session));
        }
        prop_assert_eq!((locks.all().count(), locks.all_waiting().count()), (0, 0));
    }
}

#[test]
fn two_nodes_that_wait_for_each_other_are_told() {
    let mut locks = Locks::new(WIDE);
    let (a, b) = (owner(1, Class::Process, 7), owner(2, Class::Process, 7));
    assert_eq!(ask(&mut locks, 1, request(a, 0, (0, 9), Kind::Write, true)), Some(Outcome::Granted));
    assert_eq!(ask(&mut locks, 1, request(b, 1, (0, 9), Kind::Write, true)), Some(Outcome::Granted));
    assert_eq!(ask(&mut locks, 2, request(a, 1, (5, 5), Kind::Read, true)), None);
    assert_eq!(ask(&mut locks, 2, request(b, 0, (9, 9), Kind::Read, true)), Some(Outcome::Deadlock));
    assert_eq!(ask(&mut locks, 3, request(b, 0, (9, 9), Kind::Read, false)), Some(Outcome::Conflict));
    // The one who was told gives way.
    assert!(locks.unlock(b, ino(1), Range::ALL));
    assert_eq!(answers(&mut locks), [(SessionId(1), 2, Outcome::Granted)]);
}

#[test]
fn a_thread_that_gets_a_lock_can_close_a_circle() {
    let mut locks = Locks::new(WIDE);
    let (a, b, c) = (owner(1, Class::Process, 1), owner(2, Class::Process, 1), owner(3, Class::Process, 1));
    assert_eq!(ask(&mut locks, 1, request(a, 0, (0, 0), Kind::Write, true)), Some(Outcome::Granted));
    assert_eq!(ask(&mut locks, 1, request(c, 1, (0, 0), Kind::Read, true)), Some(Outcome::Granted));
    // `a` waits for `c`; a thread of `b` waits for `a`; another one gets what `a` waits for, too.
    assert_eq!(ask(&mut locks, 2, request(a, 1, (0, 0), Kind::Write, true)), None);
    assert_eq!(ask(&mut locks, 1, request(b, 0, (0, 0), Kind::Write, true)), None);
    locks.lock(2, request(b, 1, (0, 0), Kind::Read, true));
    let told = [(SessionId(2), 2, Outcome::Granted), (SessionId(1), 2, Outcome::Deadlock)];
    assert_eq!(answers(&mut locks), told);
}

#[test]
fn a_flock_that_is_changed_is_given_up_first() {
    let mut locks = Locks::new(WIDE);
    let (a, b) = (owner(1, Class::Flock, 1), owner(2, Class::Flock, 1));
    assert_eq!(ask(&mut locks, 1, request(a, 0, (3, 4), Kind::Read, false)), Some(Outcome::Granted));
    assert_eq!(ask(&mut locks, 1, request(b, 0, (3, 4), Kind::Read, false)), Some(Outcome::Granted));
    assert_eq!(ask(&mut locks, 2, request(a, 0, (0, 0), Kind::Write, false)), Some(Outcome::Conflict));
    // Now `a` has none, as flock(2) warns; so `b` can change its own.
    assert_eq!(ask(&mut locks, 2, request(b, 0, (0, 0), Kind::Write, false)), Some(Outcome::Granted));
    assert_eq!(ask(&mut locks, 3, request(a, 0, (0, 0), Kind::Read, true)), None);
    locks.release(SessionId(2));
    assert_eq!(answers(&mut locks), [(SessionId(1), 3, Outcome::Granted)]);
    // fcntl's locks are elsewhere.
    let process = owner(3, Class::Process, 1);
    assert_eq!(ask(&mut locks, 1, request(process, 0, (0, 9), Kind::Write, false)), Some(Outcome::Granted));
    let found =
        locks.in_the_way(&request(owner(4, Class::Description, 1), 0, (2, 3), Kind::Read, false)).unwrap();
    assert_eq!((found.owner, found.range.start(), found.range.end(), found.pid), (process, 0, 9, 1));
}

/// Goal: I-CLEASE-8. Method: fill each table; whatever needs no room goes on.
#[test]
fn a_full_table_refuses_and_lets_go() {
    let mut locks = Locks::new(LockLimits { locks: 3, session_locks: 2, waiters: 1 });
    let (a, b, c) = (owner(1, Class::Process, 1), owner(2, Class::Process, 1), owner(3, Class::Process, 1));
    assert_eq!(ask(&mut locks, 1, request(a, 0, (0, 9), Kind::Write, false)), Some(Outcome::Granted));
    assert_eq!(ask(&mut locks, 2, request(a, 0, (20, 29), Kind::Write, false)), Some(Outcome::Granted));
    assert_eq!(ask(&mut locks, 3, request(a, 0, (40, 49), Kind::Write, false)), Some(Outcome::TooMany));
    assert!(!locks.unlock(a, ino(0), Range::new(5, 5).unwrap()), "it would be two");
    assert_eq!(ask(&mut locks, 1, request(b, 0, (60, 60), Kind::Read, false)), Some(Outcome::Granted));
    assert_eq!(ask(&mut locks, 1, request(c, 0, (80, 80), Kind::Read, false)), Some(Outcome::TooMany));
    assert_eq!(ask(&mut locks, 2, request(c, 0, (9, 9), Kind::Read, true)), None);
    assert_eq!(ask(&mut locks, 2, request(b, 0, (9, 9), Kind::Read, true)), Some(Outcome::TooMany));
    assert_eq!(
        ask(&mut locks, 4, request(a, 0, (10, 19), Kind::Write, false)),
        Some(Outcome::Granted),
        "one in place of two"
    );
    assert!(locks.unlock(a, ino(0), Range::ALL));
    assert_eq!(answers(&mut locks), [(SessionId(3), 2, Outcome::Granted)]);
}
