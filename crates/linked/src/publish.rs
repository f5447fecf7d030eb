//! Versions of files: written under a name of ours, whole and durable, and renamed; or into the file that is there, where
//! other links of it must show it too.
//!
//! What is about to be renamed is in the store before the rename: after a crash the file that has the name is known for ours.

use std::{sync::Arc, time::Duration};

use link::{Found, Over, Place, Staged, Trouble, Version};
use types::Errno;

use crate::{
    Linked,
    done::{Copied, Done, Record, Task},
    own::Own,
    steps::after_the_fact,
};

/// Clocks with longer steps are those of no file system that we know.
const CLOCK_WAIT_MAX: Duration = Duration::from_secs(2);

const TICK: Duration = Duration::from_millis(10);

/// How a version is filled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Whole,
    /// No byte was ever written.
    Empty,
    /// Over what is there, of that length.
    InPlace {
        there: u64,
    },
}

impl Linked {
    /// A new version under the name `at`; without `data` an empty file.
    pub(crate) fn publish(
        &self,
        task: &Task<'_>,
        at: &Place,
        over: Over,
        data: bool,
    ) -> Result<Done, Trouble> {
        let own = Own::of(&self.ledger.mds, task.entry.ino).map_err(Trouble::of)?;
        let (dir, way) = self.dir_and_way(at).map_err(Trouble::of)?;
        let mut aside = dir.clone();
        aside.push(Place::being_made(at.dir, task.entry.ino).name);
        let version = self.back.begin_version(&aside).map_err(Trouble::of)?;
        let how = if data { How::Whole } else { How::Empty };
        let (copied, found) = self.fill(task, &own, version, how)?;
        self.stage(task, Staged::Aside(found.seen)).map_err(Trouble::of)?;
        if let Err(errno) = self.back.rename(&aside, &way, over) {
            // It may have been done: what is there tells the next try.
            return Err(Trouble::of(errno));
        }
        let (source, found) = self.named(&way, found).map_err(after_the_fact)?;
        let record = Record::Is(self.record(found.seen, at));
        let live = copied.as_ref().is_some_and(|copied| copied.live);
        Ok(Done { record, changed: vec![dir], published: copied.zip(source), victim: None, live })
    }

    /// They have these bytes already, for nothing was written since the last version: it was taken while somebody had the file
    /// open for writing.
    pub(crate) fn find_published(
        &self,
        task: &Task<'_>,
        there: Option<&Found>,
    ) -> Result<Option<Done>, Trouble> {
        let (Some(record), Some(there), None) = (&task.own, there, task.entry.staged) else {
            return Ok(None);
        };
        if !there.seen.is_same_object(&record.seen) {
            return Ok(None);
        }
        let held = self.hold(task.entry.ino).map_err(Trouble::of)?;
        let found = self.ledger.mds.find(task.entry.ino).map_err(Trouble::of)?;
        let ds = self.ds().map_err(Trouble::of)?;
        let live = ds.live(held.object());
        let (size, mtime) = (live.size, live.mtime.unwrap_or(found.attr.mtime));
        let same = found.data.written
            && ds.is_as_published(held.object())
            && (size, mtime) == (record.seen.size, record.seen.mtime);
        if same && !found.data.live {
            ds.let_theirs_go(task.entry.ino);
        }
        Ok(same.then(|| Done { live: found.data.live, ..Done::with(Record::Stays, Vec::new()) }))
    }

    /// A new version of a file that has several names there: half written for a moment.
    pub(crate) fn publish_in_place(&self, task: &Task<'_>, at: &Place) -> Result<Done, Trouble> {
        let own = Own::of(&self.ledger.mds, task.entry.ino).map_err(Trouble::of)?;
        let (dir, way) = self.dir_and_way(at).map_err(Trouble::of)?;
        self.stage(task, Staged::InPlace).map_err(Trouble::of)?;
        let there = task.own.as_ref().map_or(0, |record| record.seen.size);
        let version = self.back.begin_in_place(&way).map_err(Trouble::of)?;
        let (copied, found) = self
            .fill(task, &own, version, How::InPlace { there })
            .map_err(|trouble| half_written(task, trouble))?;
        let (source, found) = self.named(&way, found).map_err(after_the_fact)?;
        let record = Record::Is(self.record(found.seen, at));
        let live = copied.as_ref().is_some_and(|copied| copied.live);
        Ok(Done { record, changed: vec![dir], published: copied.zip(source), victim: None, live })
    }

    /// The version's bytes and attributes, durable.
    fn fill(
        &self,
        task: &Task<'_>,
        own: &Own,
        mut version: Box<dyn Version>,
        how: How,
    ) -> Result<(Option<Copied>, Found), Trouble> {
        let copied = if how != How::Empty && own.data.written {
            let ds = self.ds().map_err(Trouble::of)?;
            let held = self.hold(task.entry.ino).map_err(Trouble::of)?;
            // There is nothing of it in near-line, whatever was: a conflict took its place, or a deletion there.
            if task.own.is_none() {
                let lost = ds.part_from_theirs(held.object()).map_err(Trouble::of)?;
                if lost > 0 {
                    self.note_bytes_lost(task).map_err(Trouble::of)?;
                }
            }
            let stop = || self.is_stopping();
            let snapshot = match how {
                How::Whole | How::Empty => ds.copy_version(held.object(), &mut *version, &stop),
                How::InPlace { there } => ds.copy_changes(held.object(), (&mut *version, there), &stop),
            };
            let snapshot = snapshot.map_err(|errno| of_copy(task, errno))?;
            Some((snapshot, held))
        } else {
            version.set_len(own.attr.size).map_err(Trouble::of)?;
            None
        };
        // As they are now: what is changed later is a change that comes later.
        let own = Own::of(&self.ledger.mds, task.entry.ino).map_err(Trouble::of)?;
        let mut attributes = own.attributes();
        let written = copied.as_ref().and_then(|(snapshot, _)| snapshot.mtime);
        attributes.mtime = written.unwrap_or(attributes.mtime);
        let found = version.finish(&attributes).map_err(Trouble::of)?;
        self.wait_for_clock(&found);
        let live = own.data.live;
        Ok((copied.map(|(snapshot, held)| Copied { snapshot, held, live }), found))
    }

    /// Until a change of theirs would give it another time than the one that it has from us: a look that comes too soon proves
    /// nothing, and what we change next would count as changed by both.
    pub(crate) fn wait_for_clock(&self, made: &Found) {
        let clock = self.back.clock();
        if made.seen.looked(clock).proof != link::Proof::Firm {
            // The clock that is asked next may stand still for as long as a tick.
            std::thread::sleep((clock.step + TICK).min(CLOCK_WAIT_MAX));
        }
    }

    pub(crate) fn stage(&self, task: &Task<'_>, staged: Staged) -> Result<(), Errno> {
        self.ledger.alter(true, |pending| {
            pending.log.staged(task.entry.ino, staged);
            ((), Vec::new())
        })
    }

    /// The file that has the name now. If it is not the version any more, they changed it at once: what we remember is the
    /// version, and the next look sees the difference.
    fn named(
        &self,
        way: &[Vec<u8>],
        version: Found,
    ) -> Result<(Option<Arc<dyn link::Source>>, Found), Errno> {
        let (source, found) = match self.back.open(way) {
            Ok(opened) => opened,
            Err(Errno::ENOENT) => return Ok((None, version)),
            Err(errno) => return Err(errno),
        };
        let (seen, made) = (&found.seen, &version.seen);
        if seen.is_same_object(made) && seen.size == made.size && seen.mtime == made.mtime {
            Ok((Some(Arc::from(source)), found))
        } else {
            Ok((None, version))
        }
    }
}

/// What is there now is ours in part: it must be known for that until it is ours whole, so this is never a refusal.
fn half_written(task: &Task<'_>, trouble: Trouble) -> Trouble {
    if let Trouble::Refused(errno) = trouble {
        tracing::warn!(ino = %task.entry.ino, %errno, "a file with several names is written in place, and the linked directory has it half written: it is tried again");
        return after_the_fact(errno);
    }
    trouble
}

/// A copy that was stopped or found its source changed is tried again.
fn of_copy(task: &Task<'_>, errno: Errno) -> Trouble {
    if matches!(errno, Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG | Errno::EIO) {
        Trouble::Refused(errno)
    } else {
        tracing::debug!(ino = %task.entry.ino, step = ?task.entry.step, known = ?task.own, %errno, "a version could not be copied: it is tried again");
        Trouble::Later
    }
}
