//! Goal: leases go together, operations begin when their way is free and not before, whoever does not answer is fenced first, and tables are
//! bounded. Method: random sayings, operations and answers beside the plain rules; and the histories that the rules are for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm)]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cluster::tenure::{Terms, Time};
use lease::coherence::{
    locks::{Class, HadLock, LockLimits, LockRequest, Outcome, Owner},
    message::{Had, Joined, Life, Party, Saying, Telling},
    ranges::{Kind, Range},
    rights::{Claim, Key, Rights},
    server::{Effect, Input, Limits, Past, Refused, Server},
};
use proptest::prelude::*;
use proto::SessionId;
use types::Ino;

const LIMITS: Limits = Limits {
    terms: Terms {
        lease: Duration::from_millis(1000),
        beat_every: Duration::from_millis(200),
        suspect_after: Duration::from_millis(500),
        drift_one_in: 20,
    },
    silence: Duration::from_millis(3000),
    recall: Duration::from_millis(700),
    rest: Duration::from_millis(300),
    sessions: 8,
    leases: 5,
    operations: 20,
    claims: 3,
    locks: LockLimits { locks: 20, session_locks: 20, waiters: 5 },
};

fn at(ms: u64) -> Time {
    Duration::from_millis(ms)
}

fn key(n: u64) -> Key {
    match n {
        0 => Key::Entry { dir: Ino::ROOT, name: Box::from(&b"a"[..]) },
        n => Key::Inode(Ino::from_raw(n + 1).unwrap()),
    }
}

fn past(life: u32, from: u32) -> Past {
    Past { life: Life(life), from: Life(from), fenced: BTreeSet::new() }
}

/// A server and what it said.
struct Run {
    server: Server,
    now: Time,
    parties: BTreeMap<u128, Party>,
    told: Vec<(SessionId, Telling)>,
    begun: Vec<(u128, u64)>,
    effects: Vec<Effect>,
}

impl Run {
    /// Behind its grace.
    fn new(limits: Limits) -> Run {
        let mut run = Run::in_grace(limits, past(1, 1));
        run.wait(2000);
        assert_eq!(run.effects, [Effect::EndGrace]);
        run.effects.clear();
        run.input(Input::GraceEnded);
        run
    }

    fn in_grace(limits: Limits, past: Past) -> Run {
        let server = Server::new(limits, past, at(0));
        let (now, parties) = (at(0), BTreeMap::new());
        Run { server, now, parties, told: Vec::new(), begun: Vec::new(), effects: Vec::new() }
    }

    fn input(&mut self, input: Input) {
        self.server.handle(self.now, input);
        self.take();
    }

    fn take(&mut self) {
        while let Some(effect) = self.server.poll_effect() {
            match effect {
                Effect::Tell { to, telling } => {
                    if let Telling::Joined { joined, .. } = telling {
                        self.parties.insert(to.0, Party { session: to, joined });
                    }
                    self.told.push((to, telling));
                }
                Effect::Begun { by, operation } => self.begun.push((by.session.0, operation)),
                other @ (Effect::NotBegun { .. }
                | Effect::Lock { .. }
                | Effect::Fence(_)
                | Effect::Over(_)
                | Effect::EndGrace) => self.effects.push(other),
            }
        }
    }

    fn join(&mut self, session: u128) -> Party {
        let by = Party { session: SessionId(session), joined: Joined::default() };
        self.input(Input::Said {
            by,
            saying: Saying::Join { number: 1, life: Life(1), had: Had::default() },
        });
        self.parties[&session]
    }

    fn join_all(&mut self, sessions: u128) {
        for session in 1..=sessions {
            self.join(session);
        }
    }

    fn begin(&mut self, session: u128, operation: u64, claims: &[(Key, Claim)]) {
        let by = self.parties[&session];
        self.input(Input::Begin { by, operation, claims: claims.to_vec() });
    }

    fn end(&mut self, session: u128, operation: u64) {
        let by = self.parties[&session];
        self.input(Input::End { by, operation });
    }

    fn say(&mut self, session: u128, saying: Saying) {
        let by = self.parties[&session];
        self.input(Input::Said { by, saying });
    }

    fn want(&mut self, session: u128, key: &Key, wanted: Rights) -> Rights {
        self.say(session, Saying::Want { request: 1, key: key.clone(), rights: wanted });
        let granted = self.told.iter().rev().find_map(|(to, telling)| match telling {
            Telling::Granted { rights, .. } if to.0 == session => Some(*rights),
            _ => None,
        });
        granted.unwrap()
    }

    /// The last recall of each lease that is not answered.
    fn recalls(&self) -> Vec<(u128, Key, Rights, u64)> {
        let held = self.server.table().all();
        let recalled = held.filter_map(|(key, of, holding)| {
            Some((of.0, key.clone(), holding.recall?.keeps, holding.number))
        });
        recalled.collect()
    }

    fn answer_recalls(&mut self) {
        for (session, key, keeps, number) in self.recalls() {
            self.say(session, Saying::Returned { key, number, keeps });
        }
    }

    fn wait(&mut self, ms: u64) {
        let until = self.now + at(ms);
        while let Some(next) = self.server.next_deadline().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.server.handle_deadline(self.now);
            self.take();
        }
        self.now = until;
    }

    fn renew_all(&mut self) {
        for session in self.parties.keys().copied().collect::<Vec<_>>() {
            self.say(session, Saying::Renew { number: 2 });
        }
    }

    fn check(&self) {
        let table = self.server.table();
        let held: Vec<_> = table.all().collect();
        for (key, of, holding) in &held {
            for (_, _, other) in held.iter().filter(|(k, o, _)| k == key && o != of) {
                assert!(!holding.rights.conflicts(other.rights), "I-CLEASE-1");
            }
        }
        for (session, number, claims, begun) in table.all_operations() {
            let in_the_way = |key: &Key, claim: &Claim| {
                let others = held.iter().filter(|(k, of, _)| *k == key && *of != session);
                let hinders = others.filter(|(_, _, h)| !h.rights.both(claim.excludes()).is_empty());
                hinders.map(|(_, of, h)| (*of, h.recall, claim.excludes())).collect::<Vec<_>>()
            };
            let all: Vec<_> = claims.iter().flat_map(|(key, claim)| in_the_way(key, claim)).collect();
            assert_eq!(begun, all.is_empty(), "I-CLEASE-1 or somebody waits for nothing: {session} {number}");
            for (_, recall, excludes) in all {
                let recall = recall.expect("what is in the way is asked back");
                assert!(recall.keeps.both(excludes).is_empty());
            }
            let told = self.begun.iter().filter(|at| **at == (session.0, number)).count();
            if self.effects.contains(&Effect::Fence(session)) {
                assert!(told <= usize::from(begun), "who is given up is not told of what begins afterwards");
            } else {
                assert_eq!(told, usize::from(begun), "told once");
            }
        }
        assert!(held.len() <= LIMITS.leases, "I-CLEASE-8");
        assert_eq!(held.len(), table.leases());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Begin {
        session: u128,
        claims: Vec<(u64, u8)>,
    },
    End(usize),
    Want {
        session: u128,
        key: u64,
        rights: u8,
    },
    /// The nth recall is answered; perhaps by its former number, perhaps with less than all.
    Answer {
        nth: usize,
        late: bool,
        part: bool,
    },
    /// By itself.
    GiveBack {
        nth: usize,
        keeps: u8,
    },
    Wait(u64),
    Renew,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..4u128, proptest::collection::vec((0..3u64, 0..3u8), 1..3)).prop_map(|(session, claims)| Step::Begin { session, claims }),
        3 => (0..20usize).prop_map(Step::End),
        6 => (1..4u128, 0..3u64, 1..8u8).prop_map(|(session, key, rights)| Step::Want { session, key, rights }),
        4 => (0..4usize, prop::bool::weighted(0.2), prop::bool::weighted(0.2)).prop_map(|(nth, late, part)| Step::Answer { nth, late, part }),
        1 => (0..6usize, 0..8u8).prop_map(|(nth, keeps)| Step::GiveBack { nth, keeps }),
        2 => (0..250u64).prop_map(Step::Wait),
        2 => Just(Step::Renew),
    ]
}

fn carry_out(run: &mut Run, number: u64, step: &Step) {
    let claim = |n: u8| [Claim::Look, Claim::Change, Claim::Modify][usize::from(n)];
    match step {
        Step::Begin { session, claims } => {
            let claims: Vec<(Key, Claim)> = claims.iter().map(|(k, c)| (key(*k), claim(*c))).collect();
            run.begin(*session, number, &claims);
        }
        Step::End(nth) => {
            let found = run.server.table().all_operations().nth(*nth).map(|(of, n, _, _)| (of.0, n));
            if let Some((session, number)) = found {
                run.end(session, number);
            }
        }
        Step::Want { session, key: k, rights } => {
            run.say(
                *session,
                Saying::Want { request: number, key: key(*k), rights: Rights::from_bits(*rights).unwrap() },
            );
        }
        Step::Answer { nth, late, part } => {
            if let Some((session, key, keeps, number)) = run.recalls().into_iter().nth(*nth) {
                let keeps = if *part { Rights::ALL } else { keeps };
                run.say(session, Saying::Returned { key, number: number - u64::from(*late), keeps });
            }
        }
        Step::GiveBack { nth, keeps } => {
            let found = run.server.table().all().nth(*nth).map(|(key, of, h)| (key.clone(), of.0, h.number));
            if let Some((key, session, number)) = found {
                run.say(session, Saying::Returned { key, number, keeps: Rights::from_bits(*keeps).unwrap() });
            }
        }
        Step::Wait(ms) => run.wait(*ms),
        Step::Renew => run.renew_all(),
    }
}

#[test]
fn who_is_given_up_is_not_told_of_what_begins_afterwards() {
    let mut run = Run::new(LIMITS);
    run.join_all(3);
    let (mine, theirs) = (key(1), key(2));
    for (session, kept) in [(1, &mine), (2, &theirs)] {
        run.begin(session, 1, &[(kept.clone(), Claim::Look)]);
        assert_eq!(run.want(session, kept, KEEP), KEEP);
        run.end(session, 1);
    }
    run.begun.clear();
    run.begin(3, 1, &[(mine, Claim::Modify)]);
    run.wait(400);
    run.begin(1, 2, &[(theirs, Claim::Modify)]);
    // The first does not give back what it is asked for.
    run.wait(350);
    assert_eq!(run.effects, [Effect::Fence(SessionId(1))]);
    let (session, key, keeps, number) = run.recalls().into_iter().find(|(of, ..)| *of == 2).unwrap();
    run.say(session, Saying::Returned { key, number, keeps });
    assert!(run.begun.is_empty(), "nobody carries out what somebody asks who is given up");
    run.check();
    run.input(Input::Fenced(SessionId(1)));
    run.wait(1000);
    assert_eq!(run.begun, [(3, 1)]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn leases_go_together_and_nobody_waits_for_ever(steps in proptest::collection::vec(step(), 1..60)) {
        let mut run = Run::new(LIMITS);
        run.join_all(3);
        for (number, step) in (0..).zip(&steps) {
            carry_out(&mut run, number, step);
            run.check();
        }
        // Nobody says anything any more: all are fenced, and then all is free.
        run.wait(10_000);
        let fenced: Vec<SessionId> =
            run.effects.iter().filter_map(|e| if let Effect::Fence(s) = e { Some(*s) } else { None }).collect();
        prop_assert_eq!(fenced.iter().collect::<BTreeSet<_>>().len(), 3);
        prop_assert_eq!(fenced.len(), 3, "each verdict is one");
        prop_assert!(!run.effects.iter().any(|e| matches!(e, Effect::Over(_))), "I-CLEASE-4: not before it is fenced");
        for session in fenced {
            run.input(Input::Fenced(session));
        }
        prop_assert_eq!((run.server.table().leases(), run.server.table().operations()), (0, 0));
        prop_assert_eq!(run.server.next_deadline(), None);
    }
}

const KEEP: Rights = Rights::ATTRIBUTES.with(Rights::PAGES);

#[test]
fn openings_choose_the_mode() {
    let mut run = Run::new(LIMITS);
    let file = key(1);
    run.join_all(3);
    assert_eq!(run.want(1, &file, Rights::ALL), Rights::NONE, "nothing without a claim");
    run.begin(1, 1, &[(file.clone(), Claim::Look)]);
    run.begin(2, 1, &[(file.clone(), Claim::Look)]);
    assert_eq!(run.want(1, &file, Rights::ALL), KEEP);
    assert_eq!(run.want(2, &file, KEEP), KEEP, "readers share");
    run.end(2, 1);
    // A writer comes: all that others keep is asked back before it begins.
    run.begin(3, 1, &[(file.clone(), Claim::Modify)]);
    assert_eq!(run.recalls().len(), 2);
    assert!(!run.begun.contains(&(3, 1)));
    run.answer_recalls();
    assert!(run.begun.contains(&(3, 1)));
    assert_eq!(
        run.want(1, &file, KEEP),
        Rights::NONE,
        "a reader beside a writer of another node asks each time"
    );
    assert_eq!(
        run.want(3, &file, Rights::ALL),
        KEEP,
        "its own pages; what it writes others may read at once"
    );
    run.end(1, 1);
    assert_eq!(run.want(3, &file, Rights::WRITE_BACK), Rights::ALL, "alone");
    // Closed, and still kept; a look has it written back, and the pages stay.
    run.end(3, 1);
    run.begin(2, 2, &[(file.clone(), Claim::Look)]);
    assert_eq!(run.recalls().into_iter().map(|r| (r.0, r.2)).collect::<Vec<_>>(), [(3, KEEP)]);
    run.answer_recalls();
    assert!(run.begun.contains(&(2, 2)));
    assert_eq!(run.want(2, &file, KEEP), KEEP);
    run.check();
}

#[test]
fn names_and_attributes_are_kept_until_they_change() {
    let mut run = Run::new(LIMITS);
    run.join_all(2);
    run.begin(1, 1, &[(key(0), Claim::Look), (key(1), Claim::Look)]);
    assert_eq!(run.want(1, &key(0), Rights::ALL), Rights::ATTRIBUTES, "an entry has no pages");
    assert_eq!(run.want(1, &key(1), KEEP), KEEP);
    run.end(1, 1);
    // `chmod` asks for attributes alone, a name that goes for the name.
    run.begin(2, 1, &[(key(0), Claim::Change), (key(1), Claim::Change)]);
    let asked: Vec<(Key, Rights)> = run.recalls().into_iter().map(|r| (r.1, r.2)).collect();
    assert_eq!(asked, [(key(1), Rights::PAGES), (key(0), Rights::NONE)]);
    run.answer_recalls();
    assert!(run.begun.contains(&(2, 1)));
    // Who changes it himself keeps what he has.
    run.begin(1, 2, &[(key(1), Claim::Modify)]);
    assert!(run.begun.contains(&(1, 2)) && run.recalls().is_empty());
}

/// Goal: a lease on its way back is not granted by the number that it goes back by. Found by the simulation: a wish for what was held got its
/// old number, the holder had given it back meanwhile, and took the answer for a grant.
#[test]
fn regression_each_grant_has_a_number_of_its_own() {
    let mut run = Run::new(LIMITS);
    let file = key(1);
    run.join_all(2);
    run.begin(1, 1, &[(file.clone(), Claim::Look)]);
    run.want(1, &file, KEEP);
    let first = run.server.table().all().next().unwrap().2.number;
    run.want(1, &file, KEEP);
    run.say(1, Saying::Returned { key: file.clone(), number: first, keeps: Rights::NONE });
    assert_eq!(run.server.table().leases(), 1, "the second grant stands");
}

/// I-CLEASE-3.
#[test]
fn several_writers_recall_nothing() {
    let mut run = Run::new(LIMITS);
    let file = key(1);
    for session in 1..4 {
        run.join(session);
        run.begin(session, 1, &[(file.clone(), Claim::Modify)]);
    }
    run.begin(1, 2, &[(file.clone(), Claim::Look)]);
    for round in 0..300 {
        let session = round % 3 + 1;
        assert_eq!(run.want(session, &file, Rights::ALL), Rights::NONE);
        run.wait(20);
        run.renew_all();
    }
    // One of the writers is left with a reader; still nothing moves.
    (2..4).for_each(|session| run.end(session, 1));
    run.begin(2, 2, &[(file.clone(), Claim::Look)]);
    for _ in 0..100 {
        assert_eq!(run.want(1, &file, Rights::ALL), KEEP);
        assert_eq!(run.want(2, &file, Rights::ALL), Rights::NONE);
        run.wait(20);
        run.renew_all();
    }
    assert!(!run.told.iter().any(|(_, telling)| matches!(telling, Telling::Recall { .. })));
}

#[test]
fn what_is_looked_at_rests() {
    let mut run = Run::new(LIMITS);
    let file = key(1);
    run.join_all(2);
    run.begin(1, 1, &[(file.clone(), Claim::Modify)]);
    assert_eq!(run.want(1, &file, Rights::ALL), Rights::ALL);
    run.begin(2, 1, &[(file.clone(), Claim::Look)]);
    run.answer_recalls();
    run.end(2, 1);
    assert_eq!(run.want(1, &file, Rights::ALL), KEEP, "not at once");
    run.wait(299);
    assert_eq!(run.want(1, &file, Rights::ALL), KEEP);
    run.wait(1);
    assert_eq!(run.want(1, &file, Rights::ALL), Rights::ALL);
}

/// I-CLEASE-2, I-CLEASE-4: a holder that does not answer, though it renews its term, is fenced; what it had waits for fence and term.
#[test]
fn a_holder_that_does_not_answer_is_fenced_first() {
    for fence_late in [false, true] {
        let mut run = Run::new(LIMITS);
        let file = key(1);
        run.join_all(2);
        run.begin(1, 1, &[(file.clone(), Claim::Modify)]);
        run.want(1, &file, Rights::ALL);
        run.end(1, 1);
        let begin = run.now;
        run.begin(2, 1, &[(file.clone(), Claim::Look)]);
        for _ in 0..6 {
            run.wait(100);
            run.renew_all();
        }
        assert!(run.effects.is_empty());
        let recalls =
            run.told.iter().filter(|(_, telling)| matches!(telling, Telling::Recall { .. })).count();
        assert!(recalls >= 3, "it is said again: {recalls}");
        let granted = run.now;
        run.wait(100);
        assert_eq!(run.effects, [Effect::Fence(SessionId(1))]);
        assert_eq!(run.now, begin + LIMITS.recall);
        run.renew_all();
        let gone = (SessionId(1), Telling::Gone { joined: run.parties[&1].joined });
        assert!(run.told.contains(&gone), "it gets no term any more");
        run.parties.remove(&1);
        let ended = LIMITS.terms.ended_at(granted);
        if fence_late {
            while run.now < ended + at(500) {
                run.wait(100);
                run.renew_all();
            }
            assert!(run.begun.is_empty() || run.begun == [(1, 1)]);
            run.input(Input::Fenced(SessionId(1)));
        } else {
            run.input(Input::Fenced(SessionId(1)));
            assert!(!run.begun.contains(&(2, 1)));
            while run.now < ended {
                assert!(!run.begun.contains(&(2, 1)), "its term has not ended");
                run.wait(1);
                run.renew_all();
            }
        }
        assert_eq!(run.effects[1], Effect::Over(SessionId(1)));
        assert!(run.begun.contains(&(2, 1)));
    }
}

#[test]
fn a_server_that_was_stopped_itself_condemns_nobody_unheard() {
    let mut run = Run::new(LIMITS);
    run.join_all(2);
    // It slept far over both sessions' silence; what they said lies in its sockets.
    run.now += at(20_000);
    run.server.handle_deadline(run.now);
    run.take();
    assert!(run.effects.is_empty());
    run.say(1, Saying::Renew { number: 3 });
    run.wait(1000);
    assert_eq!(run.effects, [Effect::Fence(SessionId(2))]);
}

#[test]
fn the_oldest_leases_make_room() {
    let mut run = Run::new(LIMITS);
    run.join(1);
    for n in 1..6 {
        run.begin(1, n, &[(key(n), Claim::Look)]);
        assert_eq!(run.want(1, &key(n), KEEP), KEEP);
    }
    // All but an eighth, rounded: five of five.
    assert_eq!(run.recalls().into_iter().map(|r| r.1).collect::<Vec<_>>(), [key(1)]);
    run.begin(1, 6, &[(key(6), Claim::Look)]);
    assert_eq!(run.want(1, &key(6), KEEP), Rights::NONE, "not before it has made room");
    run.answer_recalls();
    assert_eq!(run.want(1, &key(6), KEEP), KEEP);
    run.check();
}

fn write_lock(session: u128, wait: bool) -> LockRequest {
    let owner = Owner { session: SessionId(session), class: Class::Process, id: 1 };
    LockRequest { ino: Ino::ROOT, owner, range: Range::ALL, kind: Kind::Write, pid: 1, wait }
}

fn locked(run: &mut Run, session: u128, number: u64) -> Option<Outcome> {
    let by = run.parties[&session];
    run.input(Input::Lock { by, number, request: write_lock(session, true) });
    outcome(run, session, number)
}

fn outcome(run: &Run, session: u128, number: u64) -> Option<Outcome> {
    run.effects.iter().find_map(|effect| match effect {
        Effect::Lock { by, number: n, outcome } if by.session.0 == session && *n == number => Some(*outcome),
        _ => None,
    })
}

#[test]
fn locks_of_a_session_go_with_it() {
    let mut run = Run::new(LIMITS);
    run.join_all(3);
    assert_eq!(locked(&mut run, 1, 1), Some(Outcome::Granted));
    assert_eq!(locked(&mut run, 2, 1), None);
    assert_eq!(locked(&mut run, 3, 1), None);
    let other = Input::Lock { by: run.parties[&3], number: 9, request: write_lock(1, false) };
    run.input(other);
    assert_eq!(outcome(&run, 3, 9), Some(Outcome::Gone), "nobody locks for another session");
    // The second is silent and waits; the first is silent and holds; the third stays.
    run.parties.retain(|session, _| *session == 3);
    for _ in 0..40 {
        run.wait(100);
        run.renew_all();
    }
    assert!(
        run.effects.contains(&Effect::Fence(SessionId(1)))
            && run.effects.contains(&Effect::Fence(SessionId(2)))
    );
    assert_eq!(outcome(&run, 3, 1), None);
    run.input(Input::Fenced(SessionId(1)));
    assert_eq!(outcome(&run, 3, 1), Some(Outcome::Granted));
    assert_eq!(outcome(&run, 2, 1), None, "nobody is there to be answered");
    let by = run.parties[&3];
    run.input(Input::Leave(by));
    assert!(run.effects.contains(&Effect::Over(SessionId(3))));
    assert_eq!(run.server.locks().all().count(), 0);
}

/// Goal: a server that begins anew takes back what its sessions had, from them alone, and gives nothing before. Method: one that comes back,
/// one that was fenced, one of a life too early, one that claims what another came back with, one that comes late.
#[test]
fn a_new_life_takes_back_what_was_held() {
    let mut begins = past(7, 6);
    begins.fenced.insert(SessionId(2));
    let mut run = Run::in_grace(LIMITS, begins);
    let had = |session: u128, rights: Rights| Had {
        leases: vec![(key(1), rights)],
        claims: vec![(5, vec![(key(1), Claim::Modify)])],
        locks: vec![HadLock {
            ino: Ino::ROOT,
            owner: write_lock(session, false).owner,
            range: Range::ALL,
            kind: Kind::Write,
            pid: 1,
        }],
    };
    let old = |session: u128, life: u32| Party {
        session: SessionId(session),
        joined: Joined(Life(life).first_number() + 9),
    };
    let join = |run: &mut Run, by: Party, life: u32, had: Had| {
        run.told.clear();
        run.input(Input::Said { by, saying: Saying::Join { number: 4, life: Life(life), had } });
        run.told.last().map(|(_, telling)| telling.clone()).unwrap()
    };
    let first = join(&mut run, old(1, 6), 7, had(1, Rights::ALL));
    let Telling::Joined { before, leases, number: 4, .. } = first.clone() else { panic!("{first:?}") };
    assert_eq!((before, leases.len(), leases[0].1), (old(1, 6).joined, 1, Rights::ALL));
    assert_eq!(join(&mut run, old(1, 6), 7, Had::default()), first, "it says it again");
    let gone = |by: Party| Telling::Gone { joined: by.joined };
    assert_eq!(join(&mut run, old(2, 6), 7, Had::default()), gone(old(2, 6)), "fenced");
    assert_eq!(join(&mut run, old(3, 5), 7, Had::default()), gone(old(3, 5)), "too early a life");
    assert_eq!(join(&mut run, old(4, 6), 7, had(4, Rights::NONE)), gone(old(4, 6)), "the lock is another's");
    let mut claims = had(4, Rights::PAGES);
    claims.locks.clear();
    assert_eq!(join(&mut run, old(4, 6), 7, claims), gone(old(4, 6)), "so are the pages");
    assert!(matches!(join(&mut run, old(5, 6), 6, Had::default()), Telling::Rejoin { life: Life(7), .. }));
    assert!(matches!(
        join(&mut run, Party { joined: Joined(0), ..old(6, 0) }, 7, Had::default()),
        Telling::Joined { .. }
    ));
    // Until the grace has ended nobody gets anything.
    run.begin(6, 1, &[(key(2), Claim::Look)]);
    let later = Effect::NotBegun { by: run.parties[&6], operation: 1, why: Refused::Later };
    assert_eq!(run.effects, [later]);
    assert_eq!(locked(&mut run, 6, 2), Some(Outcome::Later));
    run.begin(1, 5, &[(key(1), Claim::Modify)]);
    assert_eq!(run.begun, [(1, 5)], "what it came back with has begun");
    run.wait(1500);
    assert_eq!(run.effects.last(), Some(&Effect::EndGrace));
    run.input(Input::GraceEnded);
    assert_eq!(join(&mut run, old(7, 6), 7, Had::default()), gone(old(7, 6)), "too late");
    run.begin(6, 1, &[(key(1), Claim::Look)]);
    assert_eq!(run.recalls().len(), 1);
    run.answer_recalls();
    assert_eq!(run.begun, [(1, 5), (6, 1)]);
    assert_eq!(locked(&mut run, 6, 3), None, "it is locked");
}
