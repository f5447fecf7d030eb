//! How sessions come to the terms, and what of locks goes with slots from one metadata server to another.
//!
//! - I-CARRY-1: with a slot go its locks, whose sessions are given up where the giver gave them up, and come no later than they would have there. Nobody gets
//!   one of them meanwhile: the giver has none, and the taker serves the slot when it has them.
//! - I-CARRY-2: of what a session had of an earlier life the server believes what is in slots that it had when its life began. What is in others came, or comes,
//!   from whoever had them.
//! - I-CARRY-3: of slots that come without what was in them nobody keeps believing that he has a lock there.

use std::{collections::HashSet, time::Duration};

use lease::coherence::{
    locks::HadLock,
    message::{Had, Joined, Party, Saying, Telling as Said},
    server::Input,
};
use proto::{SessionId, locks::LockOutcome};
use types::{Ino, Slot};

use super::terms::{Asked, Due, Got, Terms};

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
        for session in &carried.given_up {
            all.add(self.drive(Input::GivenUp(*session), Asked::Nothing).1);
        }
        all
    }

    /// The slots are taken without what was in them, which nobody has any more: whoever is here may believe in a lock there, and so may whoever comes later
    /// and says so. An error is better than a second owner.
    pub(super) fn distrust(&self, slots: &[Slot]) -> Due {
        let (mut all, sessions) = {
            let mut machine = self.machine.lock();
            if let Some(begun) = &mut machine.begun {
                begun.extend(slots);
            }
            (Due::default(), machine.server.alive())
        };
        for session in sessions {
            all.add(self.drive(Input::GivenUp(session), Asked::Nothing).1);
        }
        all
    }

    /// They were put, and the slots did not come.
    pub(super) fn drop_locks(&self, slots: &HashSet<Slot>) {
        self.machine.lock().server.take_locks(&|ino: Ino| slots.contains(&ino.ugsd().slot()));
    }
}
