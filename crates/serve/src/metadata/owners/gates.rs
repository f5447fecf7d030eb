//! A gate before each slot: requests go through it, and a slot goes when nobody is inside.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use types::{SLOTS, Slot};

const SHUT: u32 = 1 << 31;

thread_local! {
    /// The slots that this thread's request is inside of.
    static INSIDE: RefCell<Vec<Slot>> = const { RefCell::new(Vec::new()) };
}

pub(crate) struct Gates {
    /// How many are inside, and whether it is shut.
    gates: Box<[AtomicU32]>,
    /// Requests since they were asked for.
    requests: Box<[AtomicU32]>,
    left: (Mutex<()>, Condvar),
}

/// A request is inside of some slots, until this is dropped.
pub(crate) struct Inside<'a> {
    gates: &'a Gates,
    slots: usize,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let rest = INSIDE.with_borrow(|inside| inside.len().saturating_sub(self.slots));
        let slots = INSIDE.with_borrow_mut(|inside| inside.split_off(rest));
        slots.into_iter().for_each(|slot| self.gates.leave(slot));
    }
}

impl Gates {
    pub(crate) fn new() -> Gates {
        let zeros = || (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
        Gates { gates: zeros(), requests: zeros(), left: Default::default() }
    }

    fn gate(&self, slot: Slot) -> &AtomicU32 {
        // Slots are less than `SLOTS`.
        &self.gates[usize::from(slot.get())]
    }

    /// `None`: one of them is on its way.
    pub(crate) fn enter(&self, slots: impl IntoIterator<Item = Slot>) -> Option<Inside<'_>> {
        let mut inside = Inside { gates: self, slots: 0 };
        for slot in slots {
            if !self.go_in(slot) {
                return None;
            }
            INSIDE.with_borrow_mut(|all| all.push(slot));
            inside.slots += 1;
            self.requests[usize::from(slot.get())].fetch_add(1, Ordering::Relaxed);
        }
        Some(inside)
    }

    fn go_in(&self, slot: Slot) -> bool {
        if self.gate(slot).fetch_add(1, Ordering::AcqRel) & SHUT == 0 {
            return true;
        }
        self.leave(slot);
        false
    }

    fn leave(&self, slot: Slot) {
        if self.gate(slot).fetch_sub(1, Ordering::AcqRel) == SHUT + 1 {
            let _lock = self.left.0.lock();
            self.left.1.notify_all();
        }
    }

    /// Somebody waits until nobody is inside.
    pub(crate) fn is_wanted(&self, slot: Slot) -> bool {
        self.gate(slot).load(Ordering::Acquire) & SHUT != 0
    }

    /// Runs while this thread's request is outside, so that slots can go meanwhile. `None`: it could not come back in.
    pub(crate) fn outside<V>(&self, run: impl FnOnce() -> V) -> Option<V> {
        let slots = INSIDE.with_borrow_mut(std::mem::take);
        slots.iter().for_each(|slot| self.leave(*slot));
        let value = run();
        let mut back = true;
        for slot in &slots {
            // Counted inside in any case: who is inside leaves.
            back &= self.gate(*slot).fetch_add(1, Ordering::AcqRel) & SHUT == 0;
        }
        INSIDE.with_borrow_mut(|inside| *inside = slots);
        back.then_some(value)
    }

    /// Shuts them and waits until nobody is inside; opens them again and says no when that takes too long.
    pub(crate) fn shut(&self, slots: &[Slot], wait: Duration) -> bool {
        for slot in slots {
            self.gate(*slot).fetch_or(SHUT, Ordering::AcqRel);
        }
        let until = Instant::now() + wait;
        let empty = || slots.iter().all(|slot| self.gate(*slot).load(Ordering::Acquire) == SHUT);
        let mut lock = self.left.0.lock();
        while !empty() {
            if self.left.1.wait_until(&mut lock, until).timed_out() && !empty() {
                drop(lock);
                self.open(slots);
                return false;
            }
        }
        true
    }

    pub(crate) fn open(&self, slots: &[Slot]) {
        for slot in slots {
            self.gate(*slot).fetch_and(!SHUT, Ordering::AcqRel);
        }
    }

    /// Requests for each slot since the last call; those without are left out.
    pub(crate) fn take_requests(&self) -> Vec<(Slot, u32)> {
        Slot::all()
            .zip(&self.requests)
            .map(|(slot, requests)| (slot, requests.swap(0, Ordering::Relaxed)))
            .filter(|(_, requests)| *requests > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(n: u16) -> Slot {
        Slot::new(n).unwrap()
    }

    /// Goal: nobody is inside of a shut slot, and who waits to shut gets it when the last has left. Method: by hand, and with threads.
    #[test]
    fn a_slot_is_shut_when_nobody_is_inside() {
        let gates = Gates::new();
        let inside = gates.enter([slot(1), slot(2)]).unwrap();
        assert!(!gates.shut(&[slot(2), slot(3)], Duration::ZERO));
        // It was opened again.
        drop(gates.enter([slot(2)]).unwrap());
        std::thread::scope(|scope| {
            let shutting = scope.spawn(|| gates.shut(&[slot(2)], Duration::from_secs(60)));
            while gates.enter([slot(2)]).is_some() {
                std::thread::yield_now();
            }
            drop(inside);
            assert!(shutting.join().unwrap());
        });
        assert!(gates.enter([slot(1), slot(2)]).is_none());
        assert!(gates.shut(&[slot(1)], Duration::ZERO), "who was refused is not inside of the first");
        gates.open(&[slot(1), slot(2)]);
        assert!(gates.enter([slot(1), slot(2)]).is_some());
        let requests = gates.take_requests();
        assert_eq!(requests.iter().map(|(slot, _)| slot.get()).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(gates.take_requests(), []);
    }

    /// Goal: who waits for something outside does not keep a slot, and knows if it went. Method: shut meanwhile, and opened or not.
    #[test]
    fn who_is_outside_does_not_keep_a_slot() {
        let gates = Gates::new();
        let inside = gates.enter([slot(5)]).unwrap();
        let went = gates.outside(|| assert!(gates.shut(&[slot(5)], Duration::ZERO)));
        assert_eq!(went, None);
        drop(inside);
        assert!(gates.shut(&[slot(5)], Duration::ZERO));
        gates.open(&[slot(5)]);
        let inside = gates.enter([slot(5)]).unwrap();
        assert_eq!(gates.outside(|| 7), Some(7));
        assert!(!gates.shut(&[slot(5)], Duration::ZERO));
        drop(inside);
        assert!(gates.shut(&[slot(5)], Duration::ZERO));
    }
}
