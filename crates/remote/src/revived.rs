//! Writes that both of two data servers may have lost: each opening hears of it once, from its next `fsync`.
//!
//! When both members of a stripe are lost, and it goes on from what their devices have, its view's number says so ([`REVIVED`]). What was written before and
//! not synced since is doubtful then.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use proto::copies::{REVIVED, View};

/// Of each stripe that was written through an opening and not synced since: how often it had been revived by then.
#[derive(Default, Debug)]
pub(crate) struct Unsynced(Mutex<BTreeMap<usize, u64>>);

pub(crate) fn revivals(view: &View) -> u64 {
    view.number >> REVIVED
}

impl Unsynced {
    pub(crate) fn wrote(&self, stripe: usize, view: &View) {
        self.0.lock().entry(stripe).or_insert(revivals(view));
    }

    /// All of it; nothing is unsynced then.
    pub(crate) fn take(&self) -> BTreeMap<usize, u64> {
        std::mem::take(&mut *self.0.lock())
    }

    pub(crate) fn put_back(&self, stripes: BTreeMap<usize, u64>) {
        let mut all = self.0.lock();
        for (stripe, revivals) in stripes {
            all.entry(stripe).and_modify(|now| *now = revivals.min(*now)).or_insert(revivals);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what was not synced is known to have been written when it was first. Method: writes beside a sync that fails.
    use super::*;

    fn revived(times: u64) -> View {
        View { number: times << REVIVED | 5, ..View::default() }
    }

    #[test]
    fn a_sync_that_fails_forgets_nothing() {
        let unsynced = Unsynced::default();
        unsynced.wrote(0, &revived(0));
        unsynced.wrote(0, &revived(2));
        let taken = unsynced.take();
        assert_eq!(taken, BTreeMap::from([(0, 0)]));
        unsynced.wrote(0, &revived(2));
        unsynced.wrote(1, &revived(2));
        unsynced.put_back(taken);
        assert_eq!(*unsynced.0.lock(), BTreeMap::from([(0, 0), (1, 2)]));
    }
}
