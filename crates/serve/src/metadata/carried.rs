//! How sessions come to the terms, and what of locks goes with slots from one metadata server to another.
//!
//! - I-CARRY-1: with a slot go its locks, whose sessions are given up where the giver gave them up, and come no later than they would have there. Nobody gets
//!   one of them meanwhile: the giver has none, and the taker serves the slot when it has them.
//! - I-CARRY-2: of what a session had of an earlier life the server believes what is in slots that it had when its life began. What is in others came, or comes,
//!   from whoever had them.
//! - I-CARRY-3: in slots that come without what was in them nobody gets a lock until those who may have one there have said so, or are given up.

use std::{collections::HashSet, time::Duration};

use lease::coherence::{
    locks::HadLock,
    message::{Had, Joined, Party, Saying, Telling as Said},
    server::Input,
};
use proto::{SessionId, locks::LockOutcome};
use types::{Ino, Slot};

use super::terms::{Asked, Due, Early, Got, Machine, Terms};

/// Sessions that were given up, remembered over restarts and told to whoever takes slots: the client of one has long heard of it when there are so many others.
pub(super) const GIVEN_UP_MAX: usize = 1 << 16;

/// Of the locks in slots that go.
pub(super) struct Carried {
    pub locks: Vec<HadLock>,
    pub given_up: Vec<SessionId>,
    pub stamp: u64,
}

/// `Ok(None)`: there is no room. `Err`: it was given up, or it comes too late.
type Coming = (Result<Option<Joined>, ()>, Due);

fn coming((got, due): (Got, Due)) -> Coming {
    let joined = match got.said {
        Some(Said::Joined { joined, .. }) => Ok(Some(joined)),
        Some(_) => Err(()),
        None => Ok(None),
    };
    (joined, due)
}

impl Terms {
    /// A session comes, with what it had, and with the highest stamp that it has heard of.
    pub(super) fn join(&self, by: Party, had: Had, stamp: u64) -> Coming {
        let (mut by, mut had) = (by, had);
        {
            let mut machine = self.machine.lock();
            machine.stamp = machine.stamp.max(stamp);
            if let Some(begun) = &machine.begun {
                had.locks.retain(|lock| begun.contains(&lock.ino.ugsd().slot()));
                if had.is_empty() {
                    // It may have been away for as long as it likes.
                    by.joined = Joined::default();
                }
            }
        }
        let saying = Saying::Join { number: 0, life: self.life(), had };
        coming(self.drive(Input::Said { by, saying }, Asked::Joining(by.session)))
    }

    /// A session has something in slots that come.
    pub(super) fn place(&self, session: SessionId, silent: Duration) -> Coming {
        coming(self.drive(Input::Place { session, silent }, Asked::Joining(session)))
    }

    /// A session that was given up has something in slots that come: what it has is free when it is fenced there, too.
    pub(super) fn place_given_up(&self, session: SessionId, silent: Duration) -> Due {
        self.drive(Input::PlaceGivenUp { session, silent }, Asked::Nothing).1
    }

    /// It was given up, and what it has is not free yet.
    pub(super) fn is_condemned(&self, session: SessionId) -> bool {
        self.machine.lock().server.is_condemned(session)
    }

    /// Who has what in which slot is not known of all slots.
    pub(super) fn in_grace(&self) -> bool {
        self.machine.lock().server.in_grace()
    }

    /// The slots go, and nobody is inside of them. Who waits there is told so.
    pub(super) fn take_locks(&self, slots: &HashSet<Slot>) -> (Carried, Due) {
        let mut due = Due::default();
        let mut machine = self.machine.lock();
        let (locks, waited) = machine.server.take_locks(&|ino: Ino| slots.contains(&ino.ugsd().slot()));
        if let Some(begun) = &mut machine.begun {
            begun.retain(|slot| !slots.contains(slot));
        }
        for (session, number) in waited {
            machine.put(session, number, LockOutcome::Moved);
        }
        machine.speak(&mut due);
        let given_up: Vec<SessionId> = machine.server.given_up().take(GIVEN_UP_MAX).collect();
        (Carried { locks, given_up, stamp: machine.stamp }, due)
    }

    /// The slots come; all who have something in them are placed.
    pub(super) fn put_locks(&self, carried: &Carried) -> Due {
        let mut all = Due::default();
        {
            let mut machine = self.machine.lock();
            machine.stamp = machine.stamp.max(carried.stamp);
            machine.server.put_locks(&carried.locks);
        }
        all.add(self.give_up_all(carried.given_up.iter().copied()));
        all
    }

    /// Another server gave them up.
    pub(super) fn give_up_all(&self, sessions: impl Iterator<Item = SessionId>) -> Due {
        let mut all = Due::default();
        sessions.for_each(|session| all.add(self.drive(Input::GivenUp(session), Asked::Nothing).1));
        all
    }

    /// Here or elsewhere, as far as it is known: no more than go with a slot.
    pub(super) fn given_up(&self) -> Vec<SessionId> {
        self.machine.lock().server.given_up().take(GIVEN_UP_MAX).collect()
    }

    /// Slots are taken without what was in them. Sessions say what they have there; nobody gets a lock before all had the time to. `number`: of these slots
    /// among such ones.
    pub(super) fn unsettle(&self, slots: &[Slot], number: u64, wait: Duration) {
        let until = self.age() + wait;
        let mut machine = self.machine.lock();
        if let Some(begun) = &mut machine.begun {
            begun.retain(|slot| !slots.contains(slot));
        }
        machine.unsettled.extend(slots.iter().map(|slot| (*slot, (until, number))));
    }

    /// They did not come.
    pub(super) fn not_taken(&self, slots: &[Slot]) {
        self.machine.lock().unsettled.retain(|slot, _| !slots.contains(slot));
    }

    /// The number of such a slot, until it is known who has what there.
    pub(super) fn unsettled(&self, slot: Slot) -> Option<u64> {
        self.machine.lock().unsettled.get(&slot).map(|(_, number)| *number)
    }

    pub(super) fn is_unsettled(&self) -> bool {
        !self.machine.lock().unsettled.is_empty()
    }

    /// The locks that a session says it has in such slots. False: somebody else may have one of them by now; it is given up.
    pub(super) fn bring(&self, by: Party, locks: &[HadLock], stamp: u64) -> (bool, Due) {
        let has = {
            let mut machine = self.machine.lock();
            machine.stamp = machine.stamp.max(stamp);
            let (open, late): (Vec<HadLock>, Vec<HadLock>) =
                locks.iter().partition(|lock| machine.is_early(lock.ino));
            late.iter().all(|lock| machine.server.locks().has(lock)) && machine.server.bring_locks(by, &open)
        };
        if has {
            (true, Due::default())
        } else {
            (false, self.drive(Input::GivenUp(by.session), Asked::Nothing).1)
        }
    }

    /// Slots whose time is over, and sessions that may still believe in a lock there: those that have not said what they have. `spoke`: up to which number;
    /// the time since the slots' time was over. Who came since then has not had his.
    pub(super) fn overdue(&self, spoke: impl Fn(SessionId, Duration) -> u64) -> (Vec<Slot>, Due) {
        let (slots, sessions) = {
            let machine = self.machine.lock();
            let now = self.age();
            let over = machine.unsettled.iter().filter(|(_, (until, _))| *until <= now);
            let over: Vec<(Slot, (Duration, u64))> = over.map(|(slot, of)| (*slot, *of)).collect();
            let Some((until, number)) = over.iter().map(|(_, of)| *of).max() else {
                return (Vec::new(), Due::default());
            };
            let since = now.saturating_sub(until);
            let alive = machine.server.alive().into_iter().filter(|session| spoke(*session, since) < number);
            (over.into_iter().map(|(slot, _)| slot).collect::<Vec<Slot>>(), alive.collect::<Vec<SessionId>>())
        };
        let mut all = Due::default();
        for session in sessions {
            all.add(self.drive(Input::GivenUp(session), Asked::Nothing).1);
        }
        (slots, all)
    }

    /// Whoever comes later and says that he has a lock there is refused.
    pub(super) fn settle(&self, slots: &[Slot]) -> Due {
        let mut due = Due::default();
        let mut machine = self.machine.lock();
        machine.unsettled.retain(|slot, _| !slots.contains(slot));
        if let Some(begun) = &mut machine.begun {
            begun.extend(slots);
        }
        machine.decide_early(self.age(), &mut due);
        machine.speak(&mut due);
        due
    }

    /// They were put, and the slots did not come.
    pub(super) fn drop_locks(&self, slots: &HashSet<Slot>) {
        self.machine.lock().server.take_locks(&|ino: Ino| slots.contains(&ino.ugsd().slot()));
    }
}

impl Machine {
    /// Who has which lock there is not known yet.
    pub(super) fn is_early(&self, ino: Ino) -> bool {
        self.server.in_grace() || self.unsettled.contains_key(&ino.ugsd().slot())
    }

    pub(super) fn decide_early(&mut self, now: Duration, due: &mut Due) {
        for early in std::mem::take(&mut self.early) {
            if self.is_early(early.request.ino) {
                self.early.push_back(early);
                continue;
            }
            let Early { by, number, request } = early;
            self.server.handle(now, Input::Lock { by, number, request });
            self.drain(&Asked::Nothing, due);
        }
    }
}
