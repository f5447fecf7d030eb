//! The programs that asked for a lock and have no answer yet. Pure, but for the answers that it hands out.
//!
//! A request has a number of the kernel's, by which a signal names it, and once it was sent the number of its operation in a session, by
//! which the server names it. It is either being asked by a thread, or parked: the server answered that it waits, and tells its outcome later.

use std::collections::{HashMap, VecDeque};

use lease::coherence::{
    locks::Class,
    ranges::{Kind, Range},
};
use proto::locks::{LockOutcome, Locked};
use types::{Errno, Ino};

use crate::held::{Change, Held, Holder, Source};

/// Programs' threads that wait. Each has a request of the kernel's.
const WAITING_MAX: usize = 16 << 10;
/// Signals that came before the request that they are about, or are about none of ours.
const EARLY_MAX: usize = 256;

/// A lock that a program wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockWish {
    pub ino: Ino,
    /// The opening.
    pub handle: u64,
    pub holder: Holder,
    /// flock(2) has no choice but all.
    pub range: Range,
    pub kind: Kind,
    pub pid: u32,
    pub wait: bool,
}

pub(crate) type Answer = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// The number of a session among those of this mount, and that of an operation in it.
pub(crate) type At = (u64, u64);

struct Entry {
    wish: LockWish,
    answer: Answer,
    at: At,
    /// Where it waits.
    parked: Option<Source>,
    interrupted: bool,
}

/// What is to be done by a thread that holds no lock.
#[must_use]
pub(crate) enum Next {
    Nothing,
    Answer(Answer, Result<(), Errno>),
    /// It is to be asked, again.
    Ask(u64),
    /// It waits at the server, and its program does not want to any more.
    Cancel(u64),
    /// Nobody wants what the server just gave.
    GiveBack(LockWish),
}

#[derive(Default)]
pub(crate) struct Waiting {
    pub(crate) held: Held,
    entries: HashMap<u64, Entry>,
    by_operation: HashMap<At, u64>,
    /// At most [`EARLY_MAX`], the oldest first.
    early: VecDeque<u64>,
    /// Their programs have an answer already. They end with the session.
    abandoned: HashMap<At, LockWish>,
}

impl Waiting {
    pub(crate) fn insert(&mut self, id: u64, wish: LockWish, answer: Answer) -> Next {
        if let Some(at) = self.early.iter().position(|early| *early == id) {
            self.early.remove(at);
            return Next::Answer(answer, Err(Errno::EINTR));
        }
        if self.entries.len() >= WAITING_MAX {
            return Next::Answer(answer, Err(Errno::ENOLCK));
        }
        self.held.begin(wish.ino, wish.holder, Some(wish.handle));
        self.entries.insert(id, Entry { wish, answer, at: (0, 0), parked: None, interrupted: false });
        Next::Ask(id)
    }

    /// It is being asked under that number. `Err`: no more.
    pub(crate) fn asks(&mut self, id: u64, at: At) -> Result<LockWish, Next> {
        let Some(entry) = self.entries.get_mut(&id) else { return Err(Next::Nothing) };
        if entry.interrupted {
            return Err(self.finish(id, Err(Errno::EINTR)));
        }
        self.by_operation.remove(&entry.at);
        entry.at = at;
        entry.parked = None;
        self.by_operation.insert(at, id);
        Ok(entry.wish)
    }

    /// The server answered, or told later.
    pub(crate) fn decided(&mut self, at: At, locked: &Locked, from: Source) -> Next {
        let (outcome, stamp) = (locked.outcome(), locked.stamp);
        let found = self.by_operation.get(&at).copied();
        let Some((id, entry)) = found.and_then(|id| Some((id, self.entries.get_mut(&id)?))) else {
            let wish = self.abandoned.remove(&at);
            return wish.filter(|_| outcome == LockOutcome::Granted).map_or(Next::Nothing, Next::GiveBack);
        };
        if !self.held.counts(from) {
            return Next::Ask(id);
        }
        let LockWish { ino, holder, kind, range, pid, .. } = entry.wish;
        let given_up = holder.class == Class::Flock
            && self.held.flock_of(ino, holder).is_some_and(|has| has != kind)
            && outcome != LockOutcome::Granted;
        if given_up {
            self.held.apply(ino, holder, Change { stamp, range: Range::ALL, kind: None, pid });
        }
        let result = match outcome {
            LockOutcome::Waits => {
                entry.parked = Some(from);
                return if entry.interrupted { Next::Cancel(id) } else { Next::Nothing };
            }
            LockOutcome::Moved => {
                entry.parked = None;
                return Next::Ask(id);
            }
            LockOutcome::Granted => {
                self.held.apply(ino, holder, Change { stamp, range, kind: Some(kind), pid });
                Ok(())
            }
            LockOutcome::Conflict => Err(Errno::EAGAIN),
            LockOutcome::Deadlock => Err(Errno::EDEADLK),
            LockOutcome::Interrupted => Err(Errno::EINTR),
            LockOutcome::TooMany => Err(Errno::ENOLCK),
        };
        self.finish(id, result)
    }

    /// There is no answer of the server's, and it may have carried it out.
    pub(crate) fn failed(&mut self, id: u64, errno: Errno) -> Next {
        let Some(entry) = self.entries.get(&id) else { return Next::Nothing };
        let (at, wish) = (entry.at, entry.wish);
        self.abandoned.insert(at, wish);
        // Before it is the last of its holder, who would be forgotten.
        self.held.begin(wish.ino, wish.holder, None);
        self.held.ended(wish.ino, wish.holder, true);
        self.finish(id, Err(errno))
    }

    fn finish(&mut self, id: u64, result: Result<(), Errno>) -> Next {
        let Some(entry) = self.entries.remove(&id) else { return Next::Nothing };
        self.by_operation.remove(&entry.at);
        self.held.ended(entry.wish.ino, entry.wish.holder, false);
        Next::Answer(entry.answer, result)
    }

    /// A signal came for its program.
    pub(crate) fn interrupt(&mut self, id: u64) -> Next {
        let Some(entry) = self.entries.get_mut(&id) else {
            if self.early.len() >= EARLY_MAX {
                self.early.pop_front();
            }
            self.early.push_back(id);
            return Next::Nothing;
        };
        entry.interrupted = true;
        if entry.parked.is_some() { Next::Cancel(id) } else { Next::Nothing }
    }

    /// As what it is to be cancelled, and where; `None`: not any more.
    pub(crate) fn parked(&self, id: u64) -> Option<(At, Source)> {
        self.entries.get(&id).and_then(|entry| Some((entry.at, entry.parked?)))
    }

    pub(crate) fn parked_len(&self) -> usize {
        self.entries.values().filter(|entry| entry.parked.is_some()).count()
    }

    /// A session was made in place of a lost one. Those that waited in that are to be asked again.
    pub(crate) fn begin_anew(&mut self, at: Source) -> Vec<u64> {
        self.held.begin_anew(at);
        self.abandoned.clear();
        self.wake(|_| true)
    }

    /// The session has come back to one server. Those that waited there are to be asked again.
    pub(crate) fn come_back(&mut self, at: Source) -> Vec<u64> {
        self.held.enter(at);
        self.wake(|parked| parked.node == at.node)
    }

    /// Slots have gone from where they waited, which may not have said so. They are to be asked again.
    pub(crate) fn moved(&mut self, which: impl Fn(Ino, Source) -> bool) -> Vec<u64> {
        let parked = self.entries.iter_mut();
        let parked = parked.filter(|(_, entry)| entry.parked.is_some_and(|from| which(entry.wish.ino, from)));
        parked
            .map(|(id, entry)| {
                entry.parked = None;
                *id
            })
            .collect()
    }

    fn wake(&mut self, which: impl Fn(Source) -> bool) -> Vec<u64> {
        self.moved(|_, from| which(from))
    }

    /// The end: all of them.
    pub(crate) fn take_all(&mut self) -> Vec<Answer> {
        self.by_operation.clear();
        std::mem::take(&mut self.entries).into_values().map(|entry| entry.answer).collect()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each request has one answer, and no lock that nobody wants stays. Method: answers, signals and lost sessions in the orders
    //! that threads can bring them in.
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    fn wish(class: Class, kind: Kind) -> LockWish {
        let holder = Holder { class, id: 4 };
        LockWish { ino: Ino::ROOT, handle: 1, holder, range: Range::ALL, kind, pid: 3, wait: true }
    }

    /// As which the session is known is here as its number.
    fn at(joined: u64) -> Source {
        Source { node: 0, joined }
    }

    fn locked(outcome: LockOutcome, stamp: u64) -> Locked {
        Locked { outcome: outcome.into(), stamp }
    }

    fn asked(waiting: &mut Waiting, id: u64, wish: LockWish, at: At) -> Receiver<Result<(), Errno>> {
        let (send, answer) = channel();
        let next = waiting.insert(id, wish, Box::new(move |result| send.send(result).unwrap()));
        assert!(matches!(next, Next::Ask(of) if of == id));
        assert!(waiting.asks(id, at).is_ok());
        answer
    }

    fn answer(next: Next) {
        match next {
            Next::Answer(answer, result) => answer(result),
            Next::Nothing | Next::Ask(_) | Next::Cancel(_) | Next::GiveBack(_) => panic!("no answer"),
        }
    }

    fn started() -> Waiting {
        let mut waiting = Waiting::default();
        assert!(waiting.begin_anew(at(8)).is_empty());
        waiting
    }

    #[test]
    fn an_outcome_may_come_before_the_answer_that_it_waits() {
        let mut waiting = started();
        let got = asked(&mut waiting, 1, wish(Class::Flock, Kind::Write), (8, 1));
        answer(waiting.decided((8, 1), &locked(LockOutcome::Granted, 5), at(8)));
        assert_eq!(got.recv(), Ok(Ok(())));
        assert!(matches!(waiting.decided((8, 1), &locked(LockOutcome::Waits, 4), at(8)), Next::Nothing));
        assert_eq!(
            waiting.held.flock_of(Ino::ROOT, wish(Class::Flock, Kind::Write).holder),
            Some(Kind::Write)
        );
        // Another kind: what was there is given up, though the new one waits and fails.
        let got = asked(&mut waiting, 2, wish(Class::Flock, Kind::Read), (8, 2));
        assert!(matches!(waiting.decided((8, 2), &locked(LockOutcome::Waits, 6), at(8)), Next::Nothing));
        assert_eq!(waiting.held.flock_of(Ino::ROOT, wish(Class::Flock, Kind::Write).holder), None);
        answer(waiting.decided((8, 2), &locked(LockOutcome::Interrupted, 7), at(8)));
        assert_eq!(got.recv(), Ok(Err(Errno::EINTR)));
    }

    #[test]
    fn signals_find_their_request_wherever_it_is() {
        let mut waiting = started();
        let wish = wish(Class::Process, Kind::Write);
        // Before it came.
        assert!(matches!(waiting.interrupt(1), Next::Nothing));
        let (send, got) = channel();
        answer(waiting.insert(1, wish, Box::new(move |result| send.send(result).unwrap())));
        assert_eq!(got.recv(), Ok(Err(Errno::EINTR)));
        // While it is asked.
        let got = asked(&mut waiting, 2, wish, (8, 2));
        assert!(matches!(waiting.interrupt(2), Next::Nothing));
        assert!(matches!(waiting.decided((8, 2), &locked(LockOutcome::Waits, 1), at(8)), Next::Cancel(2)));
        // The lock was there first.
        answer(waiting.decided((8, 2), &locked(LockOutcome::Granted, 2), at(8)));
        assert_eq!(got.recv(), Ok(Ok(())));
        // While it waits; and the session is lost before the cancelling has an answer.
        let got = asked(&mut waiting, 3, wish, (8, 3));
        assert!(matches!(waiting.decided((8, 3), &locked(LockOutcome::Waits, 3), at(8)), Next::Nothing));
        assert!(matches!(waiting.interrupt(3), Next::Cancel(3)));
        assert_eq!(waiting.parked(3), Some(((8, 3), at(8))));
        assert_eq!(waiting.begin_anew(at(9)), [3]);
        match waiting.asks(3, (9, 1)) {
            Err(next) => answer(next),
            Ok(_) => panic!("it is asked again"),
        }
        assert_eq!(got.recv(), Ok(Err(Errno::EINTR)));
    }

    #[test]
    fn what_a_lost_session_said_is_asked_again() {
        let mut waiting = started();
        let wish = wish(Class::Process, Kind::Write);
        let got = asked(&mut waiting, 1, wish, (8, 1));
        assert!(waiting.begin_anew(at(9)).is_empty());
        for outcome in [LockOutcome::Granted, LockOutcome::Waits] {
            assert!(matches!(waiting.decided((8, 1), &locked(outcome, 1), at(8)), Next::Ask(1)));
        }
        assert!(waiting.asks(1, (9, 4)).is_ok());
        assert!(matches!(waiting.decided((8, 1), &locked(LockOutcome::Granted, 1), at(8)), Next::Nothing));
        answer(waiting.decided((9, 4), &locked(LockOutcome::Deadlock, 9), at(9)));
        assert_eq!(got.recv(), Ok(Err(Errno::EDEADLK)));
    }

    #[test]
    fn a_lock_that_nobody_waits_for_any_more_is_given_back() {
        let mut waiting = started();
        let wish = wish(Class::Process, Kind::Write);
        let got = asked(&mut waiting, 1, wish, (8, 1));
        answer(waiting.failed(1, Errno::EIO));
        assert_eq!(got.recv(), Ok(Err(Errno::EIO)));
        assert_eq!(waiting.held.users_of(wish.ino, wish.handle), [wish.holder], "its close gives it up");
        match waiting.decided((8, 1), &locked(LockOutcome::Granted, 1), at(8)) {
            Next::GiveBack(of) => assert_eq!(of, wish),
            Next::Nothing | Next::Answer(..) | Next::Ask(_) | Next::Cancel(_) => panic!("it stays"),
        }
        let got = asked(&mut waiting, 2, wish, (8, 2));
        for left in waiting.take_all() {
            left(Err(Errno::EIO));
        }
        assert_eq!(got.recv(), Ok(Err(Errno::EIO)));
    }
}
