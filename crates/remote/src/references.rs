//! The inodes that the kernel refers to, the session's references to them, and those that are to be given back.
//!
//! Each answer of the server with an inode gives the session one reference. Answers from what is kept give none: as long as the kernel refers
//! to an inode all of the session's references to it stay, and then all go back; but for those that are given up, of which the server has to be
//! asked when the kernel hears of them again.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use handover::{Estate, Place};
use parking_lot::Mutex;
use proto::{BATCH_MAX, metadata::Reference};
use types::Ino;

/// All that the session has, however many those are.
const ALL: u64 = 1 << 32;

#[derive(Default)]
pub(crate) struct References {
    tables: Mutex<Tables>,
    /// Of a guarded mount: where the kernel's are written down.
    estate: OnceLock<Arc<Estate>>,
}

#[derive(Clone, Copy, Default)]
struct Held {
    /// Of the kernel's.
    kernel: u64,
    /// Of the session's.
    server: u64,
    /// Where the kernel's are written down.
    place: Option<Place>,
}

impl Held {
    /// Before the kernel is told of the last one.
    fn write_down(&mut self, estate: &Estate, ino: u64) {
        match self.place {
            Some(place) => estate.references.set(place, 1, self.kernel),
            None => self.place = estate.references.add([ino, self.kernel]),
        }
        if self.place.is_none() {
            estate.set_incomplete();
        }
        estate.held(ino);
    }
}

#[derive(Default)]
struct Tables {
    /// As many as the kernel knows, so it has the kernel's bound.
    held: HashMap<u64, Held>,
    /// Those of them that the session refers to.
    served: usize,
    /// Where the next look for some of them begins.
    turn: usize,
    /// Given up by the kernel, and not yet given back. At most as many as were held.
    back: HashMap<u64, u64>,
}

impl References {
    /// They are written down from now on, and those that are hold.
    pub(crate) fn keep(&self, estate: &Arc<Estate>) {
        let mut tables = self.tables.lock();
        for (place, [ino, kernel]) in estate.references.records() {
            if kernel == 0 || tables.held.contains_key(&ino) {
                // Written down twice: more is safe.
                if let Some(held) = tables.held.get_mut(&ino) {
                    held.kernel += kernel;
                    held.place.iter().for_each(|at| estate.references.set(*at, 1, held.kernel));
                }
                estate.references.remove(place);
                continue;
            }
            tables.held.insert(ino, Held { kernel, server: ALL, place: Some(place) });
            tables.served += 1;
        }
        if self.estate.set(estate.clone()).is_err() {
            tracing::error!("references are written down already");
        }
    }

    /// One that came with an answer, and that the kernel is told of.
    pub(crate) fn add(&self, ino: Ino) {
        let mut tables = self.tables.lock();
        let held = tables.held.entry(ino.get()).or_default();
        held.kernel += 1;
        held.server += 1;
        self.estate.get().into_iter().for_each(|estate| held.write_down(estate, ino.get()));
        tables.served += usize::from(held.server == 1);
    }

    /// The kernel is told of it once more. `false`: the session does not refer to it, so the server has to be asked.
    pub(crate) fn add_known(&self, ino: Ino) -> bool {
        let mut tables = self.tables.lock();
        match tables.held.get_mut(&ino.get()) {
            Some(held) if held.server > 0 => {
                held.kernel += 1;
                self.estate.get().into_iter().for_each(|estate| held.write_down(estate, ino.get()));
                true
            }
            Some(_) | None => false,
        }
    }

    /// The kernel has given up so many.
    pub(crate) fn forget(&self, ino: u64, count: u64) {
        let mut tables = self.tables.lock();
        let Some(held) = tables.held.get_mut(&ino) else { return };
        held.kernel = held.kernel.saturating_sub(count);
        if let (Some(estate), Some(place)) = (self.estate.get(), held.place) {
            match held.kernel {
                0 => estate.references.remove(place),
                kernel => estate.references.set(place, 1, kernel),
            }
        }
        if held.kernel == 0 {
            let server = held.server;
            tables.held.remove(&ino);
            tables.served -= usize::from(server > 0);
            *tables.back.entry(ino).or_default() += server;
        }
    }

    /// The session needs it no more, whatever the kernel remembers.
    pub(crate) fn give_up(&self, ino: u64) {
        let mut tables = self.tables.lock();
        let Some(held) = tables.held.get_mut(&ino) else {
            // Of which a process before this one had not given back all.
            if self.estate.get().is_some() {
                tables.back.insert(ino, ALL);
            }
            return;
        };
        let server = std::mem::take(&mut held.server);
        tables.served -= usize::from(server > 0);
        *tables.back.entry(ino).or_default() += server;
    }

    /// One that came with an answer and that the kernel was not told of.
    pub(crate) fn untold(&self, ino: Ino) {
        let mut tables = self.tables.lock();
        match tables.held.get_mut(&ino.get()) {
            Some(held) => {
                held.server += 1;
                tables.served += usize::from(held.server == 1);
            }
            None => *tables.back.entry(ino.get()).or_default() += 1,
        }
    }

    /// They were taken to be given back, and were not.
    pub(crate) fn again(&self, reference: Reference) {
        *self.tables.lock().back.entry(reference.ino).or_default() += reference.count;
    }

    /// Some that are to be given back; they are no longer here.
    pub(crate) fn take_back(&self) -> Vec<Reference> {
        let mut tables = self.tables.lock();
        let some: Vec<u64> = tables.back.keys().take(BATCH_MAX).copied().collect();
        let taken =
            some.into_iter().filter_map(|ino| tables.back.remove(&ino).map(|count| Reference { ino, count }));
        taken.filter(|reference| reference.count > 0).collect()
    }

    /// All that a session made in place of a lost one must have. What was to be given back is gone with that.
    pub(crate) fn all(&self) -> Vec<Reference> {
        let mut tables = self.tables.lock();
        tables.back.clear();
        let held = tables.held.iter_mut().filter(|(_, held)| held.server > 0).map(|(ino, held)| {
            held.server = held.kernel;
            Reference { ino: *ino, count: held.server }
        });
        held.collect()
    }

    /// The same of some inodes.
    pub(crate) fn all_of(&self, of: &dyn Fn(Ino) -> bool) -> Vec<Reference> {
        let is_one = |ino: u64| Ino::from_raw(ino).is_some_and(of);
        let mut tables = self.tables.lock();
        tables.back.retain(|ino, _| !is_one(*ino));
        let ours = tables.held.iter_mut().filter(|(ino, held)| is_one(**ino) && held.server > 0);
        let some = ours.map(|(ino, held)| {
            held.server = held.kernel;
            Reference { ino: *ino, count: held.server }
        });
        some.collect()
    }

    /// If the session refers to more than `max`: so many of them, and an eighth of `max` beside, others each time.
    pub(crate) fn beyond(&self, max: usize) -> Vec<u64> {
        let mut tables = self.tables.lock();
        let over = tables.served.saturating_sub(max);
        if over == 0 {
            return Vec::new();
        }
        let from = tables.turn % tables.held.len().max(1);
        let all = tables.held.iter().skip(from).chain(tables.held.iter().take(from));
        let some = all.filter(|(_, held)| held.server > 0).map(|(ino, _)| *ino);
        let some: Vec<u64> = some.take(over + max / 8).collect();
        tables.turn = from + some.len();
        some
    }

    pub(crate) fn len(&self) -> usize {
        self.tables.lock().held.len()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what is held and what goes back add up to what came. Method: references that come and go.
    use super::*;

    #[test]
    fn references_add_up() {
        let references = References::default();
        let ino = Ino::ROOT;
        (0..3).for_each(|_| references.add(ino));
        references.untold(ino);
        references.forget(ino.get(), 2);
        assert_eq!(references.len(), 1);
        assert!(references.take_back().is_empty(), "the kernel still refers to it");
        references.forget(ino.get(), 9);
        assert_eq!(references.take_back(), [Reference { ino: 1, count: 4 }]);
        references.untold(ino);
        assert_eq!(references.all(), []);
        assert!(references.take_back().is_empty(), "a new session has none to give back");
        references.forget(77, 1);
        assert_eq!(references.len(), 0);
        (0..2).for_each(|_| references.add(ino));
        references.untold(Ino::from_raw(9).unwrap());
        assert_eq!(references.all_of(&|ino| ino.get() == 8), []);
        assert_eq!(references.all_of(&|ino| ino.get() < 9), [Reference { ino: 1, count: 2 }]);
        assert_eq!(references.take_back(), [Reference { ino: 9, count: 1 }], "of others they go back");
    }

    #[test]
    fn answers_from_what_is_kept_give_no_reference() {
        let references = References::default();
        let ino = Ino::ROOT;
        assert!(!references.add_known(ino), "the session does not refer to it");
        references.add(ino);
        assert!((0..4).all(|_| references.add_known(ino)));
        references.forget(ino.get(), 4);
        assert!(references.take_back().is_empty());
        assert_eq!(references.all(), [Reference { ino: 1, count: 1 }]);
        references.forget(ino.get(), 1);
        assert_eq!(references.take_back(), [Reference { ino: 1, count: 1 }]);
        assert!(!references.add_known(ino));
    }

    #[test]
    fn beyond_a_bound_some_are_named_and_others_the_next_time() {
        let references = References::default();
        let inos: Vec<Ino> = (1..=20).filter_map(Ino::from_raw).collect();
        inos[..16].iter().for_each(|ino| references.add(*ino));
        assert_eq!(references.beyond(16), [0; 0]);
        inos[16..].iter().for_each(|ino| references.add(*ino));
        let first = references.beyond(16);
        assert_eq!(first.len(), 6);
        let next = references.beyond(16);
        assert!(next.len() == 6 && next.iter().all(|ino| !first.contains(ino)), "{first:?} {next:?}");
        first.iter().for_each(|ino| references.give_up(*ino));
        assert_eq!(references.beyond(16), [0; 0]);
        assert_eq!((references.all().len(), references.len()), (14, 20), "what was given up stays so");
        inos.iter().for_each(|ino| references.forget(ino.get(), 1));
        assert_eq!((references.beyond(0), references.len()), (Vec::new(), 0));
    }

    #[test]
    fn what_is_given_up_goes_back_once_whatever_the_kernel_remembers() {
        let references = References::default();
        let ino = Ino::ROOT;
        references.add(ino);
        references.add(ino);
        references.give_up(1);
        references.give_up(1);
        assert_eq!(references.take_back(), [Reference { ino: 1, count: 2 }]);
        assert!(!references.add_known(ino), "the server has to be asked");
        references.add(ino);
        references.forget(1, 3);
        assert_eq!(references.take_back(), [Reference { ino: 1, count: 1 }]);
    }
}
