//! A directory of theirs in one call, if it is not too large ([`link::Survey`]).

use std::{collections::BTreeMap, time::Instant};

use link::{Detail, Found, LinkRecord, Names, Proof, Reachable, Taken, Wanted, Way};
use types::{Errno, FileKind, Ino};

use crate::{Linked, agree::Level, runner::show};

/// Names of a directory that is taken in one call. One with more has its listing and the details of its names divided among threads,
/// and a deadline for each part.
const NAMES_MAX: usize = 64;

impl Linked {
    /// `agreed`: only if it is not as the record says. Its names come with it only if the root was the one that is known, before them
    /// and after them.
    pub(crate) fn survey(&self, way: &Way, record: &LinkRecord, always: bool) -> Result<Taken, Errno> {
        let unseen = record.seen.proof == Proof::Void;
        let wanted = Wanted {
            agreed: (!always && !unseen).then_some(record.seen),
            details: unseen && (self.back.abilities().xattrs || self.back.abilities().symlinks),
            names_max: NAMES_MAX,
        };
        let asked = Instant::now();
        let survey = match self.back.survey(way, &wanted) {
            Ok(survey) => survey,
            Err(errno) => {
                // Whether the root is there is not known either: what we have is served until it is.
                let _ = self.judge_root(asked, Reachable::No);
                return Err(errno);
            }
        };
        self.judge_root(asked, survey.before)?;
        let taken = survey.taken?;
        if taken.names.is_some() {
            self.judge_root(asked, survey.after)?;
        }
        Ok(taken)
    }

    /// What a survey says of a directory that was `found` before it.
    pub(crate) fn level_of(&self, dir: Ino, way: &Way, found: Found, names: Names) -> Result<Level, Errno> {
        let Names { entries, details, after } = names;
        let details: BTreeMap<Vec<u8>, Result<Detail, Errno>> =
            entries.iter().map(|(name, _)| name.clone()).zip(details).collect();
        let mut level = Level {
            dir: Some(found),
            way: Some(way.to_vec()),
            whole: is_as_before(&found, after.as_ref()),
            entries: entries.into_iter().collect(),
            ..Level::default()
        };
        self.fetch_news(dir, way, details, &mut level)?;
        self.counters.listed.add(1);
        Ok(level)
    }
}

/// Nobody changed its names between two looks at it.
pub(crate) fn is_as_before(before: &Found, after: Option<&Found>) -> bool {
    after.is_some_and(|after| {
        let (a, b) = (&after.seen, &before.seen);
        a.is_same_object(b) && (a.mtime, a.ctime) == (b.mtime, b.ctime)
    })
}

impl Level {
    /// What an import takes of one of its names.
    pub(crate) fn take_detail(
        &mut self,
        way: &Way,
        (name, kind): (&[u8], FileKind),
        detail: Result<Detail, Errno>,
    ) -> Result<(), Errno> {
        match detail {
            Ok(detail) if kind == FileKind::Symlink => _ = self.targets.insert(name.to_vec(), detail.target),
            Ok(detail) => _ = self.xattrs.insert(name.to_vec(), detail.xattrs),
            // It went, or is another since it was listed.
            Err(Errno::ENOENT) => self.whole = false,
            Err(Errno::EINVAL) if kind == FileKind::Symlink => self.whole = false,
            Err(errno) if kind == FileKind::Symlink => return Err(errno),
            Err(errno) => {
                let path = show(&[way, &[name.to_vec()]].concat());
                tracing::warn!(path, %errno, "extended attributes cannot be read");
            }
        }
        Ok(())
    }
}
