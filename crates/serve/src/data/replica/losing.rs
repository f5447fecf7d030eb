//! Parts of an object that both copies have lost: a second one that is made has them lost, too, and all the rest.
//!
//! - I-TWO-6: a part is lost at the second only if it was lost at the primary, which had it last. A device that does not answer, or a tier that is away,
//!   loses nothing: such a part keeps the second from being complete.

use cluster::replica::copy::Range;
use proto::data::Object;
use types::{Errno, SAU_BYTES};

use super::{change::Change, object::Replica};
use crate::{answer::No, data::DataService};

impl DataService {
    pub(super) fn is_lost_here(&self, object: &Object, (from, to): Range) -> bool {
        let lost = |there: &ds::Object| self.ds.is_lost(there, from, to);
        self.is_nothing(object).is_ok_and(|nothing| !nothing)
            && self.shared(object, |_, there| Ok(lost(there))).unwrap_or(false)
    }

    /// A piece of which this was said when it was read.
    pub(super) fn piece_lost(&self, object: &Object, (from, to): Range, no: No) -> Result<Change, No> {
        let size = self.length_of(object)?;
        let there = (from, if from < size { to.min(size) } else { to });
        if no.errno() != Errno::EIO || !self.is_lost_here(object, there) {
            return Err(no);
        }
        // What is behind the end is not the object's, and what is lost there goes with the end.
        Ok(if from < size { Change::Lost { from, to } } else { Change::Zero { from, to } })
    }

    /// It would keep a part of what is lost, and can be stored nowhere: nobody is to be sent it.
    pub(super) fn refuse_lost(&self, replica: &Replica, change: &Change) -> Result<(), No> {
        let (from, to) = match change {
            Change::Bytes { from, to, .. } | Change::Zero { from, to } => (*from, *to),
            Change::Cut { .. }
            | Change::Grow { .. }
            | Change::Time { .. }
            | Change::Reserve { .. }
            | Change::Same { .. }
            | Change::Lost { .. } => return Ok(()),
        };
        let object = &replica.object;
        if self.is_nothing(object)? {
            return Ok(());
        }
        let keeps = self.shared(object, |_, there| {
            let to = if matches!(change, Change::Zero { .. }) { to.min(there.size()) } else { to };
            Ok(from < to && self.ds.keeps_lost(there, from, to))
        })?;
        if keeps { Err(Errno::EIO.into()) } else { Ok(()) }
    }

    /// As a change of the second.
    pub(super) fn lose_range(&self, object: &Object, (from, to): Range) -> Result<(), No> {
        let number = |offset: u64| u32::try_from(offset / SAU_BYTES).map_err(|_| Errno::EFBIG);
        let (first, last) = (number(from)?, number(to.saturating_sub(1))?);
        self.lose_saus(object, &(first..=last).collect::<Vec<_>>())
    }

    pub(super) fn lose_saus(&self, object: &Object, saus: &[u32]) -> Result<(), No> {
        if saus.is_empty() {
            return Ok(());
        }
        self.lose(object, saus)
    }

    /// Bytes of the object that are lost here. Where its end was lost, too, nobody knows how long it was: each part behind the end that is known counts
    /// as a whole one.
    pub(super) fn lost_bytes(&self, object: &Object) -> u64 {
        let Ok(ino) = proto::attr::ino(object.ino) else { return 0 };
        let lost = || -> Result<u64, No> {
            let size = self.length_of(object)?;
            let ranges = self.ds.lost_ranges(ino, size)?;
            let behind = self.lost_behind(object, size)?.len() as u64;
            Ok(ranges.iter().map(|(_, len)| len).sum::<u64>() + behind * SAU_BYTES)
        };
        if self.is_nothing(object).is_ok_and(|nothing| !nothing) { lost().unwrap_or(0) } else { 0 }
    }

    pub(super) fn lost_behind(&self, object: &Object, from: u64) -> Result<Vec<u32>, No> {
        self.shared(object, |_, there| Ok(self.ds.lost_saus(there, from)))
    }
}
