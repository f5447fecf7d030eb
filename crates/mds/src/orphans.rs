//! Who still refers to an inode, and which inodes without a name can be purged.
//!
//! Invariants: an inode with references is not in what [`Orphans::next`] gives; one without name and references comes there
//! sooner or later, at the latest after the next mount. Memory: one entry per inode that the kernel knows, and a queue
//! of [`QUEUE_MAX`]. What does not fit is found again in the store's U records.

use std::{
    collections::{HashSet, VecDeque, hash_map::Entry},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use handover::{Estate, Place};
use parking_lot::Mutex;
use types::{Attr, Errno, Ino, NumberMap, Slot};

use crate::nameless::Nameless;

const SHARDS: usize = 64;
/// Inodes in the queue, 8 bytes each.
pub(crate) const QUEUE_MAX: usize = 1 << 16;

#[derive(Default)]
struct References {
    count: u64,
    /// It has no name, and this number among those: to be purged with the last reference. 0: it has one.
    nameless: u64,
    /// It is purged already, and was this. Few: the kernel lets go of it soon.
    gone: Option<Box<Attr>>,
    /// Where it is written down for the next process.
    place: Option<Place>,
}

impl References {
    fn write_down(&mut self, estate: &Estate, ino: Ino) {
        match self.place {
            Some(place) => estate.references.set(place, 1, self.count),
            None => self.place = estate.references.add([ino.get(), self.count]),
        }
        if self.place.is_none() {
            estate.set_incomplete();
        }
    }
}

pub(crate) struct Orphans {
    references: Box<[Mutex<NumberMap<Ino, References>>]>,
    queue: Mutex<Queue>,
    /// Taken under a shard.
    nameless: Mutex<Nameless>,
    next_shard: AtomicUsize,
    estate: OnceLock<Arc<Estate>>,
}

struct Queue {
    ready: VecDeque<Ino>,
    /// Something did not fit: the store's records must be read (again).
    overflowed: bool,
}

/// Where the reading of the store's orphan records stands: by UGSD, then inode.
pub(crate) struct Replay {
    pub(crate) at: Option<(u32, Option<Ino>)>,
    /// Those of this mount too; they are in the queue unless it overflowed.
    pub(crate) own_epoch: bool,
}

impl Replay {
    /// What every mount begins with.
    pub(crate) fn of_earlier_mounts() -> Replay {
        Replay { at: Some((0, None)), own_epoch: false }
    }

    /// Those that came from somewhere else, too.
    pub(crate) fn of_all() -> Replay {
        Replay { at: Some((0, None)), own_epoch: true }
    }
}

impl Orphans {
    pub(crate) fn new() -> Orphans {
        Orphans {
            references: (0..SHARDS).map(|_| Mutex::default()).collect(),
            queue: Mutex::new(Queue { ready: VecDeque::new(), overflowed: false }),
            nameless: Mutex::default(),
            next_shard: AtomicUsize::new(0),
            estate: OnceLock::new(),
        }
    }

    /// See [`crate::Mds::keep_references`].
    pub(crate) fn keep(&self, estate: &Arc<Estate>) {
        for (place, [number, count]) in estate.references.records() {
            let Some(ino) = Ino::from_raw(number).filter(|_| count > 0) else {
                estate.references.remove(place);
                continue;
            };
            match self.shard(ino).lock().entry(ino) {
                Entry::Vacant(entry) => {
                    entry.insert(References { count, place: Some(place), ..References::default() });
                }
                // Written down twice: more is safe.
                Entry::Occupied(mut entry) => {
                    entry.get_mut().count += count;
                    entry.get_mut().write_down(estate, ino);
                    estate.references.remove(place);
                }
            }
        }
        if self.estate.set(Arc::clone(estate)).is_err() {
            tracing::error!("references are written down already");
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<NumberMap<Ino, References>> {
        let mixed = ino.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        &self.references[mixed as usize % SHARDS]
    }

    pub(crate) fn hold(&self, ino: Ino, n: u64) {
        let mut shard = self.shard(ino).lock();
        let references = shard.entry(ino).or_default();
        references.count += n;
        if let Some(estate) = self.estate.get() {
            references.write_down(estate, ino);
            (0..n).for_each(|_| estate.held(ino.get()));
        }
    }

    pub(crate) fn release(&self, ino: Ino, n: u64) {
        let mut shard = self.shard(ino).lock();
        let Entry::Occupied(mut entry) = shard.entry(ino) else { return };
        let references = entry.get_mut();
        references.count = references.count.saturating_sub(n);
        if let (Some(estate), Some(place)) = (self.estate.get(), references.place) {
            match references.count {
                0 => estate.references.remove(place),
                count => estate.references.set(place, 1, count),
            }
        }
        if references.count == 0 {
            let nameless = references.nameless;
            entry.remove();
            drop(shard);
            if nameless != 0 {
                self.nameless.lock().remove(nameless);
                self.queue(ino);
            }
        }
    }

    /// It is purged already.
    pub(crate) fn gone(&self, attr: Attr) {
        if let Some(references) = self.shard(attr.ino).lock().get_mut(&attr.ino) {
            references.gone = Some(Box::new(attr));
        }
    }

    pub(crate) fn was(&self, ino: Ino) -> Option<Attr> {
        self.shard(ino).lock().get(&ino)?.gone.as_deref().copied()
    }

    /// An inode without a name is about to be made; the first reference will be added by who asked for it.
    pub(crate) fn expect(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        let nameless = self.nameless.lock().add(ino, Instant::now());
        shard.insert(ino, References { nameless, ..References::default() });
    }

    /// It was not made.
    pub(crate) fn unexpect(&self, ino: Ino) {
        if let Some(references) = self.shard(ino).lock().remove(&ino) {
            self.nameless.lock().remove(references.nameless);
        }
    }

    /// These slots are another server's.
    pub(crate) fn forget(&self, slots: &HashSet<Slot>) {
        let stays = |ino: &Ino| !slots.contains(&ino.ugsd().slot());
        for shard in &self.references {
            shard.lock().retain(|ino, references| {
                let stays = stays(ino);
                if !stays && references.nameless != 0 {
                    self.nameless.lock().remove(references.nameless);
                }
                stays
            });
        }
        self.queue.lock().ready.retain(stays);
    }

    /// It lost its last name.
    pub(crate) fn orphaned(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        match shard.get_mut(&ino) {
            Some(references) if references.nameless != 0 => {}
            Some(references) => references.nameless = self.nameless.lock().add(ino, Instant::now()),
            None => {
                drop(shard);
                self.queue(ino);
            }
        }
    }

    /// It got a name.
    pub(crate) fn named(&self, ino: Ino) {
        if let Some(references) = self.shard(ino).lock().get_mut(&ino) {
            let nameless = std::mem::take(&mut references.nameless);
            if nameless != 0 {
                self.nameless.lock().remove(nameless);
            }
        }
    }

    /// See [`crate::Mds::nameless`].
    pub(crate) fn nameless(&self, behind: u64, age: Duration, max: usize) -> (Vec<Ino>, u64) {
        self.nameless.lock().behind(behind, age, (Instant::now(), max))
    }

    pub(crate) fn is_held(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    /// Inodes with references.
    pub(crate) fn held(&self) -> usize {
        self.references.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Some of them, `n` at most, a shard at a time and under no lock; the next call begins where this one ended.
    pub(crate) fn some_held(
        &self,
        n: usize,
        visit: &mut dyn FnMut(&[Ino]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut left = n;
        for _ in 0..SHARDS {
            let at = self.next_shard.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let some: Vec<Ino> = self.references[at].lock().keys().take(left).copied().collect();
            left -= some.len();
            visit(&some)?;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn queue(&self, ino: Ino) {
        let mut queue = self.queue.lock();
        if queue.ready.len() < QUEUE_MAX {
            queue.ready.push_back(ino);
        } else {
            queue.overflowed = true;
        }
    }

    /// Takes up to `max` from the queue.
    pub(crate) fn next(&self, max: usize) -> Vec<Ino> {
        let mut queue = self.queue.lock();
        let n = max.min(queue.ready.len());
        queue.ready.drain(..n).collect()
    }

    /// Whether the store's records must be read; the answer is no until the queue overflows again.
    pub(crate) fn take_overflow(&self) -> bool {
        std::mem::take(&mut self.queue.lock().overflowed)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().ready.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ino(n: u64) -> Ino {
        Ino::from_raw(n).unwrap()
    }

    /// Goal: purged with the last of name and references, in whichever order they go. Method: both orders, a file
    /// without a name, one that gets a name.
    #[test]
    fn the_last_reference_queues_an_orphan() {
        let orphans = Orphans::new();
        orphans.hold(ino(2), 2);
        orphans.orphaned(ino(2));
        orphans.release(ino(2), 1);
        assert_eq!(orphans.next(9), []);
        orphans.release(ino(2), 1);
        assert_eq!(orphans.next(9), [ino(2)]);
        orphans.hold(ino(3), 1);
        orphans.release(ino(3), 1);
        assert_eq!(orphans.next(9), []);
        orphans.orphaned(ino(3));
        assert_eq!(orphans.next(9), [ino(3)]);
        orphans.expect(ino(4));
        assert!(orphans.is_held(ino(4)));
        orphans.hold(ino(4), 1);
        orphans.release(ino(4), 1);
        assert_eq!(orphans.next(9), [ino(4)]);
        orphans.expect(ino(5));
        orphans.hold(ino(5), 1);
        orphans.named(ino(5));
        orphans.release(ino(5), 1);
        assert_eq!(orphans.next(9), []);
    }

    /// Goal: what has no name and is referred to is known as such, once, for as long as that is so. Method: each way in and out.
    #[test]
    fn what_is_referred_to_without_a_name_is_known() {
        let orphans = Orphans::new();
        let nameless = || orphans.nameless(0, Duration::ZERO, 99).0;
        orphans.orphaned(ino(2));
        assert_eq!(nameless(), []);
        (3..7).for_each(|n| orphans.hold(ino(n), 1));
        (3..7).for_each(|n| orphans.orphaned(ino(n)));
        orphans.orphaned(ino(3));
        orphans.expect(ino(7));
        orphans.hold(ino(7), 1);
        orphans.expect(ino(8));
        assert_eq!(nameless(), [3, 4, 5, 6, 7, 8].map(ino));
        orphans.release(ino(3), 1);
        orphans.named(ino(4));
        orphans.unexpect(ino(8));
        assert_eq!(nameless(), [5, 6, 7].map(ino));
        orphans.forget(&[ino(5).ugsd().slot()].into());
        assert_eq!(nameless(), []);
    }

    /// Goal: all that is held is visited, not more than was asked for, and nothing that was let go. Method: turns of a part.
    #[test]
    fn held_inodes_are_visited_in_turns() {
        let orphans = Orphans::new();
        (2..1002).for_each(|n| orphans.hold(ino(n), 1));
        orphans.release(ino(500), 1);
        assert_eq!(orphans.held(), 999);
        let mut seen = std::collections::HashMap::new();
        let mut visit = |n: usize| {
            let mut visited = 0;
            orphans
                .some_held(n, &mut |inos| {
                    visited += inos.len();
                    inos.iter().for_each(|ino| *seen.entry(*ino).or_insert(0) += 1);
                    Ok(())
                })
                .unwrap();
            visited
        };
        assert_eq!(visit(100), 100);
        assert_eq!(visit(2000), 999);
        assert!(!seen.contains_key(&ino(500)) && seen.len() == 999);
        assert_eq!(orphans.some_held(9, &mut |_| Err(Errno::EIO)), Err(Errno::EIO));
    }

    /// Goal: the queue is bounded. Method: one more than fits.
    #[test]
    fn what_does_not_fit_asks_for_the_records() {
        let orphans = Orphans::new();
        for n in 0..QUEUE_MAX as u64 {
            orphans.orphaned(ino(n + 2));
        }
        assert!(!orphans.take_overflow());
        orphans.orphaned(ino(1));
        assert!(orphans.take_overflow());
        assert_eq!(orphans.waiting(), QUEUE_MAX);
    }
}
