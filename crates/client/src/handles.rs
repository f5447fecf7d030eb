//! The table behind file handles: a number that the kernel keeps, and what it stands for.
//!
//! Invariants: a handle is never given out twice for two things at once, and a stale or invented handle finds
//! nothing (each slot counts its uses, and the handle carries the count). Lookups take one lock out of several,
//! for as long as a reference count goes up. It knows nothing of files.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;

const SHARD_BITS: u32 = 4;
const SHARDS: usize = 1 << SHARD_BITS;
const INDEX_BITS: u32 = 28;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// Slots of a shard that handles of an earlier table may be in.
const PUT_BACK_MAX: usize = 1 << 20;

/// Handles to things of type `T`.
pub(crate) struct Handles<T> {
    shards: [Mutex<Shard<T>>; SHARDS],
    next: AtomicUsize,
    /// Every slot's uses count on from here.
    uses: u32,
}

struct Shard<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    uses: u32,
    held: Option<Arc<T>>,
}

impl<T> Handles<T> {
    #[cfg(test)]
    pub(crate) fn new() -> Handles<T> {
        Handles::after(0)
    }

    /// None of its handles is one that had this number of uses or less, but for those that are put back.
    pub(crate) fn after(uses: u32) -> Handles<T> {
        Handles {
            shards: std::array::from_fn(|_| Mutex::new(Shard { slots: Vec::new(), free: Vec::new() })),
            next: AtomicUsize::new(0),
            uses,
        }
    }

    /// Handles that an earlier table gave out. Before any other; `false`, and not all are there, if one cannot be.
    pub(crate) fn put_back(&self, handles: Vec<(u64, Arc<T>)>) -> bool {
        let mut all = true;
        for (handle, value) in handles {
            let (which, index, uses) = decode(handle);
            let mut shard = self.shards[which].lock();
            if index >= PUT_BACK_MAX {
                all = false;
                continue;
            }
            while shard.slots.len() <= index {
                shard.slots.push(Slot { uses: 0, held: None });
            }
            let slot = &mut shard.slots[index];
            all &= slot.held.is_none();
            (slot.uses, slot.held) = (uses, Some(value));
        }
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.free =
                (0..shard.slots.len()).filter(|n| shard.slots[*n].held.is_none()).map(|n| n as u32).collect();
        }
        all
    }

    /// How often the slot of a handle was used before, with it.
    pub(crate) const fn uses_of(handle: u64) -> u32 {
        decode(handle).2
    }

    /// `None` when the table is full, at 2^32 handles.
    pub(crate) fn insert(&self, value: Arc<T>) -> Option<u64> {
        let which = self.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let mut shard = self.shards[which].lock();
        let index = match shard.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(shard.slots.len()).ok().filter(|n| u64::from(*n) <= INDEX_MASK)?;
                shard.slots.push(Slot { uses: 0, held: None });
                index
            }
        };
        let slot = &mut shard.slots[index as usize];
        slot.uses = slot.uses.max(self.uses).wrapping_add(1);
        slot.held = Some(value);
        Some(encode(which, index, slot.uses))
    }

    pub(crate) fn get(&self, handle: u64) -> Option<Arc<T>> {
        let (which, index, uses) = decode(handle);
        let shard = self.shards[which].lock();
        let slot = shard.slots.get(index)?;
        if slot.uses == uses { slot.held.clone() } else { None }
    }

    pub(crate) fn remove(&self, handle: u64) -> Option<Arc<T>> {
        let (which, index, uses) = decode(handle);
        let mut shard = self.shards[which].lock();
        let slot = shard.slots.get_mut(index)?;
        if slot.uses != uses {
            return None;
        }
        let held = slot.held.take()?;
        shard.free.push(index as u32);
        Some(held)
    }

    pub(crate) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| {
                let shard = shard.lock();
                shard.slots.len() - shard.free.len()
            })
            .sum()
    }

    /// Takes everything out; for the end of a mount.
    pub(crate) fn drain(&self) -> Vec<Arc<T>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            for index in 0..shard.slots.len() {
                if let Some(held) = shard.slots[index].held.take() {
                    all.push(held);
                    shard.free.push(index as u32);
                }
            }
        }
        all
    }
}

const fn encode(shard: usize, index: u32, uses: u32) -> u64 {
    (uses as u64) << (INDEX_BITS + SHARD_BITS) | (index as u64) << SHARD_BITS | shard as u64
}

const fn decode(handle: u64) -> (usize, usize, u32) {
    let shard = handle as usize & (SHARDS - 1);
    let index = (handle >> SHARD_BITS & INDEX_MASK) as usize;
    (shard, index, (handle >> (INDEX_BITS + SHARD_BITS)) as u32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Goal: handles of closed files find nothing even when the slot is in use again. Method: fill the shards,
    /// remove one, insert until its slot is taken again, look it up by the old number.
    #[test]
    fn a_stale_handle_finds_nothing() {
        let table = Handles::new();
        let first = table.insert(Arc::new(0)).unwrap();
        assert_eq!(table.remove(first).as_deref(), Some(&0));
        for n in 1..=SHARDS {
            table.insert(Arc::new(n)).unwrap();
        }
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.len(), SHARDS);
        assert_eq!(table.drain().len(), SHARDS);
        assert_eq!(table.len(), 0);
    }

    /// Goal: handles of an earlier table stay, and none of them is given out again, closed or not. Method: a second table that
    /// counts on.
    #[test]
    fn handles_outlive_the_table() {
        let first = Handles::new();
        let all: Vec<u64> = (0..100).map(|n| first.insert(Arc::new(n)).unwrap()).collect();
        let kept: Vec<_> =
            all.iter().step_by(3).map(|handle| (*handle, first.get(*handle).unwrap())).collect();
        let next = Handles::after(1);
        assert!(next.put_back(kept.clone()));
        assert_eq!(next.len(), kept.len());
        assert!(kept.iter().all(|(handle, value)| next.get(*handle).as_ref() == Some(value)));
        let fresh: Vec<u64> = (0..200).map(|n| next.insert(Arc::new(n)).unwrap()).collect();
        assert!(fresh.iter().all(|handle| !all.contains(handle)));
        assert!(all.iter().skip(1).step_by(3).all(|handle| next.remove(*handle).is_none()));
        assert!(!Handles::after(0).put_back(vec![(u64::MAX, Arc::new(0))]));
    }

    proptest! {
        /// Goal: the table is a map. Method: random inserts, lookups and removals against a `HashMap`, with
        /// invented handles among them.
        #[test]
        fn the_table_is_a_map(steps in proptest::collection::vec((0..4u8, any::<u64>()), 0..400)) {
            let table = Handles::new();
            let mut model: HashMap<u64, u64> = HashMap::new();
            for (step, number) in steps {
                let known = model.keys().copied().nth(number as usize % model.len().max(1));
                match (step, known) {
                    (0 | 1, _) => {
                        let handle = table.insert(Arc::new(number)).unwrap();
                        prop_assert_eq!(model.insert(handle, number), None);
                    }
                    (2, Some(handle)) => {
                        prop_assert_eq!(table.remove(handle).as_deref().copied(), model.remove(&handle));
                    }
                    (_, handle) => {
                        let handle = handle.unwrap_or(number);
                        prop_assert_eq!(table.get(handle).as_deref().copied(), model.get(&handle).copied());
                        prop_assert_eq!(table.get(number).as_deref().copied(), model.get(&number).copied());
                    }
                }
                prop_assert_eq!(table.len(), model.len());
            }
        }
    }
}
