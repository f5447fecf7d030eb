//! Slots of which nobody keeps anything, so that another server may have them: what clients keep there is asked back before they go.
//!
//! - I-VACANT-1: a slot is let go when nobody keeps anything in it: all was given back, or has lapsed. From when it is asked back until the slot is
//!   another's, or stays, nothing is granted there.
//! - I-VACANT-2: in slots that were taken from a server that may be dead nothing is granted, and nothing changes that somebody may keep, for as long as
//!   its leases can last.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use lease::coherence::{message::Party, rights::Key};
use proto::SessionId;
use types::{Ino, Slot};

use super::{
    MetadataService,
    keeping::of_opening,
    session::Session,
    terms::{Asked, Due, Machine, Terms},
};
use crate::answer::No;

/// Beyond what a silent client's leases last: as long as pages may take that are written back first.
const BESIDE: Duration = Duration::from_millis(1500);
/// What was not given back is asked for again.
const AGAIN: Duration = Duration::from_secs(1);
/// Who waits looks at the machine so often; leases that lapse wake nobody.
const LOOK: Duration = Duration::from_millis(50);

/// Nothing is granted in these slots until this is dropped.
pub(super) struct Vacant<'a> {
    terms: &'a Terms,
    slots: BTreeSet<Slot>,
}

impl Drop for Vacant<'_> {
    fn drop(&mut self) {
        let mut machine = self.terms.machine.lock();
        for slot in &self.slots {
            let left = machine.closing.get_mut(slot).map(|count| {
                *count -= 1;
                *count
            });
            if left == Some(0) {
                machine.closing.remove(slot);
            }
        }
    }
}

impl Machine {
    /// Nothing is granted of it now.
    pub(super) fn is_closed(&self, key: &Key, now: Duration) -> bool {
        self.closing.contains_key(&key.slot()) || self.in_doubt(key.slot(), now)
    }

    /// Whoever had it before may have granted something there that is still in use.
    pub(super) fn in_doubt(&self, slot: Slot, now: Duration) -> bool {
        self.doubtful.get(&slot).is_some_and(|until| now < *until)
    }
}

impl Terms {
    fn close(&self, slots: &[Slot]) -> Vacant<'_> {
        let slots: BTreeSet<Slot> = slots.iter().copied().collect();
        let mut machine = self.machine.lock();
        for slot in &slots {
            *machine.closing.entry(*slot).or_default() += 1;
        }
        drop(machine);
        Vacant { terms: self, slots }
    }

    /// Asks for what is kept there. `None`: nothing is.
    fn ask_back(&self, slots: &BTreeSet<Slot>) -> Option<Due> {
        let mut due = Due::default();
        let mut machine = self.machine.lock();
        let there = machine.server.ask_back(self.age(), slots);
        if there.is_empty() {
            return None;
        }
        machine.drain(&Asked::Nothing, &mut due);
        for one in &there {
            machine.recall_slots(one);
        }
        machine.speak(&mut due);
        Some(due)
    }

    fn insist(&self, slots: &BTreeSet<Slot>) -> Due {
        let mut due = Due::default();
        let mut machine = self.machine.lock();
        machine.server.insist(self.age(), slots);
        machine.drain(&Asked::Nothing, &mut due);
        machine.speak(&mut due);
        due
    }

    /// Does nobody keep anything there, by then?
    fn is_vacant(&self, slots: &BTreeSet<Slot>, until: Instant) -> bool {
        let mut machine = self.machine.lock();
        loop {
            if machine.server.holders_in(slots).is_empty() {
                return true;
            }
            let now = Instant::now();
            if now >= until {
                return false;
            }
            self.begun.wait_until(&mut machine, until.min(now + LOOK));
        }
    }

    pub(super) fn returned_slots(&self, by: Party, slots: &BTreeSet<Slot>, number: u64) -> Due {
        let mut due = Due::default();
        let mut machine = self.machine.lock();
        machine.server.returned_slots(by, slots, number);
        machine.slots_returned(by.session, number);
        machine.drain(&Asked::Nothing, &mut due);
        machine.speak(&mut due);
        drop(machine);
        self.begun.notify_all();
        due
    }

    /// Slots are taken of which nobody knows what clients keep there.
    pub(super) fn doubt(&self, slots: &[Slot]) {
        let until = self.age() + self.lapse;
        let mut machine = self.machine.lock();
        machine.doubtful.extend(slots.iter().map(|slot| (*slot, until)));
    }

    pub(super) fn put_openings(&self, openings: &[(SessionId, u64, Ino)]) {
        self.machine.lock().server.put_openings(openings);
    }
}

impl MetadataService {
    /// Has clients give back all that they keep in these slots. Changes go on meanwhile.
    pub(super) fn vacate_slots(&self, slots: &[Slot]) -> Result<Vacant<'_>, No> {
        let vacant = self.terms.close(slots);
        let end = Instant::now() + self.terms.lapse + BESIDE;
        while let Some(due) = self.terms.ask_back(&vacant.slots) {
            self.carry_on(due);
            if self.terms.is_vacant(&vacant.slots, end.min(Instant::now() + AGAIN)) {
                break;
            }
            if Instant::now() >= end {
                let due = self.terms.insist(&vacant.slots);
                self.carry_on(due);
                return Err(No::later("what clients keep was not given back"));
            }
        }
        Ok(vacant)
    }

    /// At the server that a slot leaves, whose openings go along.
    pub(super) fn forget_openings(&self, session: &Session, openings: impl IntoIterator<Item = u64>) {
        for number in openings {
            self.end_opening(session, number);
        }
    }

    pub(super) fn opened_elsewhere(&self, openings: &[(SessionId, u64, Ino)]) {
        let as_claims =
            |(session, number, ino): &(SessionId, u64, Ino)| (*session, of_opening(*number), *ino);
        let openings: Vec<_> = openings.iter().map(as_claims).collect();
        self.terms.put_openings(&openings);
    }
}
