//! What was changed here and in the linked directory: listing it by path, and taking it off the list.

use link::{Conflict, Why};
use types::{Errno, Ino};

use super::{
    below::Below,
    parts::{Parts, failed},
    permission::Permission,
};
use crate::control::{ConflictReport, ControlError, ErrorCode, FileRef};

/// So many in one answer.
const CHUNK: usize = 1000;
/// Ranges of one file in an answer: who needs more has lost most of it.
const LOST_MAX: usize = 16;

pub(super) struct Conflicts<'a> {
    pub parts: &'a Parts,
    pub permission: &'a Permission<'a>,
}

impl Conflicts<'_> {
    pub fn list(&self, place: &FileRef, after: u64) -> Result<Vec<ConflictReport>, ControlError> {
        let below = self.below(place)?;
        let all = self.all()?.into_iter().filter(|(number, conflict)| {
            *number > after && self.concerns(&below, place, conflict) && self.permission.reaches(conflict.dir)
        });
        Ok(all.take(CHUNK).map(|(number, conflict)| self.report(&below, number, &conflict)).collect())
    }

    /// Returns those that were taken off.
    pub fn forget(&self, place: &FileRef, numbers: &[u64]) -> Result<Vec<ConflictReport>, ControlError> {
        let linked = self.parts.linked.as_ref().ok_or_else(not_linked)?;
        let below = self.below(place)?;
        let all = self.all()?;
        if let Some(number) = numbers.iter().find(|number| !all.iter().any(|(n, _)| n == *number)) {
            return Err(ControlError::new(ErrorCode::NotFound, format!("there is no conflict {number}")));
        }
        let wanted = |(number, conflict): &(u64, Conflict)| {
            if numbers.is_empty() {
                self.concerns(&below, place, conflict) && self.permission.reaches(conflict.dir)
            } else {
                numbers.contains(number)
            }
        };
        let wanted: Vec<(u64, Conflict)> = all.into_iter().filter(wanted).collect();
        // All of them or none.
        if let Some((number, _)) = wanted.iter().find(|(_, conflict)| !self.may_forget(conflict)) {
            let text = format!("conflict {number}: only the file's owner, root or the user who mounted may");
            return Err(ControlError::new(ErrorCode::NotAllowed, text));
        }
        let mut reports = Vec::new();
        for (number, conflict) in wanted {
            linked.forget_conflict(number).map_err(|errno| failed("conflicts", errno))?;
            reports.push(self.report(&below, number, &conflict));
        }
        Ok(reports)
    }

    fn all(&self) -> Result<Vec<(u64, Conflict)>, ControlError> {
        let linked = self.parts.linked.as_ref().ok_or_else(not_linked)?;
        linked.conflicts().map_err(|errno| failed("conflicts", errno))
    }

    fn below(&self, place: &FileRef) -> Result<Below<'_>, ControlError> {
        let wrong = |errno| failed(&place.path, errno);
        let ino = Ino::from_raw(place.ino).ok_or_else(|| wrong(Errno::EINVAL))?;
        let found = self.parts.mds.find(ino).map_err(wrong)?;
        self.permission.reach(&found).map_err(wrong)?;
        Ok(Below::new(self.parts, std::slice::from_ref(place), &[]))
    }

    /// Is one of its two files the place, or below it? All are of the mount point, whatever became of their directory.
    fn concerns(&self, below: &Below<'_>, place: &FileRef, conflict: &Conflict) -> bool {
        place.ino == Ino::ROOT.get()
            || below.has_dir(conflict.dir)
            || below.has(conflict.ino)
            || self.theirs(conflict).is_some_and(|ino| ino.get() == place.ino)
    }

    fn may_forget(&self, conflict: &Conflict) -> bool {
        let owns = |ino| self.parts.mds.find(ino).is_ok_and(|found| self.permission.owns(&found));
        owns(conflict.ino) || owns(conflict.dir)
    }

    fn theirs(&self, conflict: &Conflict) -> Option<Ino> {
        self.parts.mds.lookup(conflict.dir, &conflict.name).ok().map(|found| found.attr.ino)
    }

    /// What of ours was never read before theirs went. What cannot be told now is told by whoever reads it.
    fn lost(&self, conflict: &Conflict) -> Vec<(u64, u64)> {
        let found = self.parts.mds.find(conflict.ino).ok().filter(|found| found.data.written);
        let lost = found.map(|found| self.parts.ds.lost_ranges(conflict.ino, found.attr.size));
        let mut lost = lost.and_then(Result::ok).unwrap_or_default();
        lost.truncate(LOST_MAX);
        lost
    }

    fn report(&self, below: &Below<'_>, number: u64, conflict: &Conflict) -> ConflictReport {
        let theirs = self.theirs(conflict).filter(|ino| *ino != conflict.ino).and_then(|_| {
            let dir = below.path(conflict.dir)?;
            Some(format!("{}/{}", dir.trim_end_matches('/'), String::from_utf8_lossy(&conflict.name)))
        });
        let is_there = self.parts.mds.find(conflict.ino).is_ok_and(|found| found.attr.nlink > 0);
        let ours = if is_there { below.path(conflict.ino) } else { None };
        let since = conflict.when.sec.saturating_mul(1000) + i64::from(conflict.when.nsec / 1_000_000);
        ConflictReport {
            number,
            why: match conflict.why {
                Why::BothChanged => "both-changed",
                Why::NameTaken => "name-taken",
                Why::DeletedHere => "deleted-here",
                Why::BytesLost => "bytes-lost",
            }
            .to_owned(),
            theirs: theirs.unwrap_or_default(),
            ours: ours.unwrap_or_default(),
            when_ms: u64::try_from(since).unwrap_or(0),
            lost: self.lost(conflict),
        }
    }
}

fn not_linked() -> ControlError {
    ControlError::new(
        ErrorCode::BadRequest,
        "the near-line tier of this mount is not a linked directory: it has no conflicts",
    )
}
