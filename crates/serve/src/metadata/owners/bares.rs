//! Slots that were taken without what sessions had in them.
//!
//! Whoever had them ended, and could not hand them over. What sessions have in them they say themselves, each before its first request there:
//! references, openings. Nobody is taken for one that has nothing, so no open file is lost or removed.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use types::Slot;

#[derive(Default)]
pub(crate) struct Bares {
    /// Of the last that were taken so; 0: none ever.
    last: AtomicU64,
    /// At most one for each slot.
    slots: Mutex<HashMap<Slot, Bare>>,
}

#[derive(Clone, Copy)]
struct Bare {
    number: u64,
    /// What was answered in it is known.
    answers: bool,
}

impl Bares {
    /// They were taken. Returns their number.
    pub(crate) fn add(&self, slots: &[Slot], answers: bool) -> u64 {
        let mut table = self.slots.lock();
        let number = self.last.load(Ordering::Acquire) + 1;
        table.extend(slots.iter().map(|slot| (*slot, Bare { number, answers })));
        self.last.store(number, Ordering::Release);
        number
    }

    /// They went, with what sessions have in them.
    pub(crate) fn remove(&self, slots: &[Slot]) {
        let mut table = self.slots.lock();
        table.retain(|slot, _| !slots.contains(slot));
    }

    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// `Some`: a session that said what it has in those up to `brought` has to say more before it asks in this slot; and are answers known?
    pub(crate) fn lacks(&self, slot: Slot, brought: u64) -> Option<bool> {
        if brought >= self.last() {
            return None;
        }
        self.slots.lock().get(&slot).filter(|bare| bare.number > brought).map(|bare| bare.answers)
    }

    /// Those after `brought`, in order.
    pub(crate) fn after(&self, brought: u64) -> (u64, Vec<u16>) {
        let table = self.slots.lock();
        let number = self.last.load(Ordering::Acquire);
        let after = table.iter().filter(|(_, bare)| bare.number > brought).map(|(slot, _)| slot.get());
        let mut after: Vec<u16> = after.collect();
        after.sort_unstable();
        (number, after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a session is asked for what it has in each slot once. Method: by hand.
    #[test]
    fn each_is_asked_for_once() {
        let slot = |n| Slot::new(n).unwrap();
        let bares = Bares::default();
        assert_eq!(bares.lacks(slot(1), 0), None);
        bares.add(&[slot(1), slot(2)], false);
        bares.add(&[slot(2), slot(3)], true);
        assert_eq!(
            [1, 2, 3, 4].map(|n| bares.lacks(slot(n), 0)),
            [Some(false), Some(true), Some(true), None]
        );
        assert_eq!([1, 2, 3].map(|n| bares.lacks(slot(n), 1)), [None, Some(true), Some(true)]);
        assert_eq!(bares.after(0), (2, vec![1, 2, 3]));
        assert_eq!(bares.after(1), (2, vec![2, 3]));
        assert_eq!(bares.after(2), (2, vec![]));
        bares.remove(&[slot(2)]);
        assert_eq!((bares.lacks(slot(2), 0), bares.after(0)), (None, (2, vec![1, 3])));
    }
}
