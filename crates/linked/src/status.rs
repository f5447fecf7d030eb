//! What is said of linked near-line.

use types::{Errno, Timestamp};

use crate::{Linked, Trouble};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Inodes with something that is not applied there, and since when the oldest waits.
    pub pending: usize,
    pub oldest: Option<Timestamp>,
    /// Of these, those that were refused, or wait for a look.
    pub held: usize,
    /// Why one of those was refused that were.
    pub refusal: Option<Errno>,
    pub conflicts: usize,
    pub applied: u64,
    pub put_off: u64,
    pub refused: u64,
    /// Directories that were listed, and files of which theirs took the place of our copy.
    pub listed: u64,
    pub renewed: u64,
    pub trouble: Option<Trouble>,
}

impl Linked {
    pub fn status(&self) -> Status {
        let (lag, held, refusal) = {
            let pending = self.ledger.lock();
            (pending.log.lag(), pending.log.held().count(), pending.refused().map(|(_, errno)| errno))
        };
        Status {
            pending: lag.entries,
            oldest: lag.oldest,
            held,
            refusal,
            conflicts: self.conflicts().map_or(0, |conflicts| conflicts.len()),
            applied: self.counters.applied.get(),
            put_off: self.counters.put_off.get(),
            refused: self.counters.refused.get(),
            listed: self.counters.listed.get(),
            renewed: self.counters.renewed.get(),
            trouble: self.current_trouble(),
        }
    }
}
