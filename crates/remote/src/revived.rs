//! Writes that both of two data servers may have lost: each opening hears of it once, from its next `fsync`.
//!
//! When both members of a stripe are lost, and it goes on from what their devices have, its view's number says so ([`REVIVED`]). What was written before and
//! not synced since is doubtful then.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use proto::copies::{REVIVED, View};
use types::Errno;

use crate::{Remote, openings::OpenFile};

/// Of each stripe that was written through an opening and not synced since: how often it had been revived by then.
#[derive(Default, Debug)]
pub(crate) struct Unsynced(Mutex<BTreeMap<usize, u64>>);

/// Of all openings of a file, while it is being synced.
pub(crate) struct Syncing(Vec<(Arc<OpenFile>, BTreeMap<usize, u64>)>);

pub(crate) fn revivals(view: &View) -> u64 {
    view.number >> REVIVED
}

impl Unsynced {
    pub(crate) fn wrote(&self, stripe: usize, view: &View) {
        self.0.lock().entry(stripe).or_insert(revivals(view));
    }

    fn put_back(&self, stripes: BTreeMap<usize, u64>) {
        let mut all = self.0.lock();
        for (stripe, revivals) in stripes {
            all.entry(stripe).and_modify(|now| *now = revivals.min(*now)).or_insert(revivals);
        }
    }
}

impl Remote {
    /// What is written from now on is not among it.
    pub(crate) fn begin_sync(&self, file: &OpenFile) -> Syncing {
        let all = self.openings.all().into_iter().filter(|one| one.ino == file.ino);
        Syncing(all.map(|one| (one.clone(), std::mem::take(&mut *one.unsynced.0.lock()))).collect())
    }

    /// `now`: how often each stripe had been revived when it was synced.
    pub(crate) fn end_sync(&self, syncing: Syncing, now: Result<Vec<u64>, Errno>) -> Result<(), Errno> {
        let now = match now {
            Ok(now) => now,
            Err(error) => {
                syncing.0.into_iter().for_each(|(file, stripes)| file.unsynced.put_back(stripes));
                return Err(error);
            }
        };
        let is_lost = |(stripe, revivals): (&usize, &u64)| now.get(*stripe).is_some_and(|now| now > revivals);
        if syncing.0.iter().any(|(_, stripes)| stripes.iter().any(is_lost)) {
            for (file, _) in &syncing.0 {
                tracing::error!(ino = %file.ino, "both servers of a file's data were lost: what was not synced may be lost");
                file.late_error.lock().get_or_insert(Errno::EIO);
            }
        }
        Ok(())
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
        let taken = std::mem::take(&mut *unsynced.0.lock());
        assert_eq!(taken, BTreeMap::from([(0, 0)]));
        unsynced.wrote(0, &revived(2));
        unsynced.wrote(1, &revived(2));
        unsynced.put_back(taken);
        assert_eq!(*unsynced.0.lock(), BTreeMap::from([(0, 0), (1, 2)]));
    }
}
