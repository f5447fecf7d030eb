//! What was written to a file and answered, and is not known to be durable: by stripe, in which life of its data server's memory. Pure.
//!
//! - I-LOSS-1: what was answered in a life that has ended, and was not made durable in it, is told as lost before anything says that it is durable.
//! - I-LOSS-2: what was made durable, or moved to another data server since (which makes it durable), is not told as lost.
//!
//! It refuses to know who is told. A data server of before lives says 0, of which nothing is known. Of a stripe with two copies a life is what ends when
//! both servers lose it ([`place_of`](crate::reading::place_of)).

use std::collections::{BTreeMap, BTreeSet};

use proto::data::Object;

/// A data server and the object there.
pub(crate) type Where = (u64, Object);

#[derive(Clone, Copy, Debug)]
struct Note {
    at: Where,
    life: u64,
    /// The last write, counted over the file.
    write: u64,
}

#[derive(Default, Debug)]
pub(crate) struct Answered {
    writes: u64,
    notes: BTreeMap<usize, Note>,
    /// Stripes of which something else is known than when that was asked last.
    changed: BTreeSet<usize>,
}

impl Answered {
    /// A write of a stripe was answered; `durable`: it is. True: some before it are lost.
    pub(crate) fn wrote(&mut self, stripe: usize, at: Where, life: u64, durable: bool) -> bool {
        let lost = self.heard(stripe, at, life);
        if life != 0 && !durable {
            self.writes += 1;
            if self.notes.insert(stripe, Note { at, life, write: self.writes }).is_none() {
                self.changed.insert(stripe);
            }
        }
        lost
    }

    /// Another process was given this answer.
    pub(crate) fn inherited(&mut self, stripe: usize, at: Where, life: u64) {
        self.notes.insert(stripe, Note { at, life, write: self.writes });
    }

    /// What became of stripes since this was asked last; nothing: there is nothing that is not known to be durable.
    pub(crate) fn changes(&mut self) -> impl Iterator<Item = (usize, Option<(Where, u64)>)> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        changed.map(|stripe| (stripe, self.notes.get(&stripe).map(|note| (note.at, note.life))))
    }

    /// Of which something is not known to be durable.
    pub(crate) fn stripes(&self) -> impl Iterator<Item = usize> {
        self.notes.keys().copied()
    }

    /// Is something not known to be durable?
    pub(crate) fn has_any(&self) -> bool {
        !self.notes.is_empty()
    }

    /// For [`Answered::synced`], before the data servers are asked.
    pub(crate) fn now(&self) -> u64 {
        self.writes
    }

    /// All that was answered before `until` is durable, as the stripe's data server says. True: some of it is lost.
    pub(crate) fn synced(&mut self, stripe: usize, at: Where, life: u64, until: u64) -> bool {
        let lost = self.heard(stripe, at, life);
        if self.notes.get(&stripe).is_some_and(|note| note.write <= until) {
            self.forget(stripe);
        }
        lost
    }

    /// It is told once: what comes of that stripe belongs to the new life.
    fn heard(&mut self, stripe: usize, at: Where, life: u64) -> bool {
        let Some(note) = self.notes.get(&stripe).filter(|_| life != 0) else { return false };
        let (moved, over) = (note.at != at, note.life != life);
        if moved || over {
            self.forget(stripe);
        }
        over && !moved
    }

    fn forget(&mut self, stripe: usize) {
        self.notes.remove(&stripe);
        self.changed.insert(stripe);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(node: u64) -> Where {
        (node, Object { ino: 5, generation: 1, view: None })
    }

    #[test]
    fn what_was_answered_in_another_life_is_lost_once() {
        let mut answered = Answered::default();
        assert!(!answered.wrote(0, at(1), 7, false));
        assert!(!answered.wrote(1, at(2), 9, false));
        let until = answered.now();
        assert!(answered.synced(0, at(1), 8, until), "another life");
        assert!(!answered.synced(1, at(2), 9, until), "the same one");
        assert!(
            !answered.synced(0, at(1), 8, until) && !answered.synced(1, at(2), 10, until),
            "told, or durable"
        );
        assert!(!answered.wrote(0, at(1), 8, false));
        assert!(answered.wrote(0, at(1), 3, true), "a later write tells it as well");
        assert!(!answered.synced(0, at(1), 4, answered.now()), "that one was durable by itself");
    }

    #[test]
    fn what_is_written_while_a_sync_is_under_way_is_not_durable() {
        let mut answered = Answered::default();
        answered.wrote(0, at(1), 7, false);
        let until = answered.now();
        answered.wrote(0, at(1), 7, false);
        assert!(!answered.synced(0, at(1), 7, until));
        assert!(answered.synced(0, at(1), 8, answered.now()));
    }

    #[test]
    fn what_moved_and_what_does_not_say_is_not_lost() {
        let mut answered = Answered::default();
        answered.wrote(0, at(1), 7, false);
        assert!(!answered.synced(0, at(2), 8, answered.now()), "the move made it durable");
        answered.wrote(0, at(2), 0, false);
        assert!(!answered.synced(0, at(2), 9, answered.now()), "nothing is known of it");
        answered.wrote(0, at(2), 9, false);
        assert!(!answered.wrote(0, at(2), 0, false));
        assert!(answered.synced(0, at(2), 8, answered.now()), "the first is as it was");
    }

    #[test]
    fn what_changes_is_said_once() {
        let mut answered = Answered::default();
        let said = |answered: &mut Answered| answered.changes().collect::<Vec<_>>();
        answered.wrote(0, at(1), 7, false);
        answered.wrote(2, at(1), 7, false);
        assert_eq!(said(&mut answered), [(0, Some((at(1), 7))), (2, Some((at(1), 7)))]);
        answered.wrote(0, at(1), 7, false);
        assert_eq!(said(&mut answered), [], "the same place, the same life");
        let until = answered.now();
        answered.synced(0, at(1), 7, until);
        answered.wrote(2, at(1), 8, false);
        assert_eq!(said(&mut answered), [(0, None), (2, Some((at(1), 8)))]);
        let mut next = Answered::default();
        next.inherited(2, at(1), 8);
        assert_eq!(said(&mut next), []);
        assert!(next.synced(2, at(1), 9, next.now()), "of an answer that another process was given");
        assert_eq!(said(&mut next), [(2, None)]);
    }
}
