//! A file is synced: what all its openings wrote before, and whether both data servers of a stripe lost it meanwhile.

use std::{collections::BTreeMap, sync::Arc};

use types::Errno;

use crate::{Remote, openings::OpenFile};

/// Of all openings of a file, while it is being synced.
pub(crate) struct Syncing(Vec<(Arc<OpenFile>, BTreeMap<usize, u64>)>);

impl Remote {
    /// What is written from now on is not among it.
    pub(crate) fn begin_sync(&self, file: &OpenFile) -> Syncing {
        let all = self.openings.all().into_iter().filter(|one| one.ino == file.ino);
        Syncing(all.map(|one| (one.clone(), one.unsynced.take())).collect())
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
