//! What a session is to be told by itself: kept until it says that it heard it, and handed to who listens.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Instant,
};

use lease::coherence::rights::{Key, Rights};
use net::Reply;
use proto::{
    BATCH_MAX,
    leases::{LEASES_MAX, Recalled, RecalledSlots, slot_bits},
    locks::{Locked, Telling, Told},
};
use types::Slot;

/// Of one session. Its bound is that of the requests whose outcomes are in it, and of its leases.
#[derive(Default)]
pub(super) struct Mailbox {
    last: u64,
    tellings: VecDeque<Telling>,
    recalls: VecDeque<Recalled>,
    slots: Option<(u64, BTreeSet<Slot>, u64)>,
    listener: Option<Listener>,
}

pub(super) struct Listener {
    pub reply: Reply,
    /// Then it is answered with nothing.
    pub until: Instant,
}

/// An answer to somebody who listens.
pub(super) type Heard = (Reply, Told);

impl Mailbox {
    pub(super) fn put(&mut self, operation: u64, locked: Locked) {
        self.last += 1;
        self.tellings.push_back(Telling { number: self.last, operation, locked: Some(locked) });
    }

    /// One that is not heard yet has the newest number.
    pub(super) fn recall(&mut self, key: &Key, keeps: Rights, grant: u64) {
        self.last += 1;
        let (ino, name) = match key {
            Key::Inode(ino) => (ino.get(), Vec::new()),
            Key::Entry { dir, name } => (dir.get(), name.to_vec()),
        };
        self.recalls.retain(|told| (told.ino, &told.name) != (ino, &name));
        self.recalls.push_back(Recalled { number: self.last, ino, name, keeps: keeps.bits().into(), grant });
    }

    /// It was given back, so it need not be told any more.
    pub(super) fn returned(&mut self, grant: u64) {
        self.recalls.retain(|told| told.grant != grant);
    }

    /// All in these slots, beside what is not heard or given back yet.
    pub(super) fn recall_slots(&mut self, slots: &BTreeSet<Slot>, grant: u64) {
        self.last += 1;
        let before = self.slots.take().map_or(BTreeSet::new(), |(_, slots, _)| slots);
        self.slots = Some((self.last, before.union(slots).copied().collect(), grant));
    }

    pub(super) fn slots_returned(&mut self, grant: u64) {
        self.slots = self.slots.take().filter(|(.., told)| *told > grant);
    }

    /// Somebody listens who has heard all up to `heard`. Returns who listened before.
    pub(super) fn listen(&mut self, heard: u64, listener: Listener) -> Option<Listener> {
        while self.tellings.front().is_some_and(|telling| telling.number <= heard) {
            self.tellings.pop_front();
        }
        while self.recalls.front().is_some_and(|recalled| recalled.number <= heard) {
            self.recalls.pop_front();
        }
        self.slots = self.slots.take().filter(|(number, ..)| *number > heard);
        self.listener.replace(listener)
    }

    /// Whoever listens, if there is something to say, or he has listened long enough.
    pub(super) fn ready(&mut self, now: Instant) -> Option<Heard> {
        let over = self.listener.as_ref().is_some_and(|listener| now >= listener.until);
        if self.tellings.is_empty() && self.recalls.is_empty() && self.slots.is_none() && !over {
            return None;
        }
        // What is left of either stays with its number, and is not taken for heard.
        let mut tellings: Vec<Telling> = self.tellings.iter().take(BATCH_MAX).copied().collect();
        let mut recalls: Vec<Recalled> = self.recalls.iter().take(LEASES_MAX).cloned().collect();
        let last = |all: usize, some: usize, last: Option<u64>| if some < all { last } else { None };
        let of_tellings = last(self.tellings.len(), tellings.len(), tellings.last().map(|one| one.number));
        let of_recalls = last(self.recalls.len(), recalls.len(), recalls.last().map(|one| one.number));
        let floor = of_tellings.into_iter().chain(of_recalls).min().unwrap_or(u64::MAX);
        tellings.retain(|telling| telling.number <= floor);
        recalls.retain(|recalled| recalled.number <= floor);
        let slots = self.slots.as_ref().filter(|(number, ..)| *number <= floor);
        let slots = slots.map(|(number, slots, grant)| RecalledSlots {
            number: *number,
            slots: slot_bits(slots),
            grant: *grant,
        });
        let told = Told { tellings, recalls, slots };
        self.listener.take().map(|listener| (listener.reply, told))
    }

    /// The session is over.
    pub(super) fn into_listener(self) -> Option<Listener> {
        self.listener
    }
}
