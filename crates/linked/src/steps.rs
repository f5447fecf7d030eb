//! One step in the back end: look, let the core judge, do it, and say what is there then.
//!
//! Nothing here holds a lock. A step may have been done before, by a process that ended; [`link::judge`] knows.

use std::collections::BTreeSet;

use link::{
    Agreed, Attrs, Entry, Found, LinkRecord, Look, Making, Over, Place, Seen, Staged, Step, Trouble, Verdict,
    judge,
};
use types::{Errno, FileKind, Ino};

use crate::{
    Linked,
    done::{Done, Record, Task},
    own::Own,
};

type Way = Vec<Vec<u8>>;

/// Of an error that comes when the step may have been done: whatever it says, it does not say that it was not.
pub(crate) fn after_the_fact(errno: Errno) -> Trouble {
    tracing::debug!(%errno, "whether a step was done is not known");
    Trouble::Later
}

impl Linked {
    pub(crate) fn do_step(&self, entry: &Entry) -> Result<Done, Trouble> {
        match self.try_step(entry) {
            // It is forgotten, and perhaps never begun again.
            Err(trouble @ (Trouble::Refused(_) | Trouble::Conflict(_) | Trouble::Gone)) => {
                self.clear_left(entry).and(Err(trouble))
            }
            Ok(done) => {
                let victim = self.victim_of(entry).map_err(after_the_fact)?;
                Ok(Done { victim, ..done })
            }
            later @ Err(Trouble::Later) => later,
        }
    }

    /// What is known by the name that it loses by the step, and has another there.
    fn victim_of(&self, entry: &Entry) -> Result<Option<LinkRecord>, Errno> {
        let (Some(victim), Some(lost)) = (entry.step.over(), entry.step.target()) else { return Ok(None) };
        let Some(record) = self.record_of(victim)?.filter(|record| record.place == *lost) else {
            return Ok(None);
        };
        Ok(self.another_name(victim, lost)?.map(|place| LinkRecord { place, ..record }))
    }

    fn try_step(&self, entry: &Entry) -> Result<Done, Trouble> {
        let unseen = |errno| if entry.again { after_the_fact(errno) } else { Trouble::of(errno) };
        self.check_root().map_err(unseen)?;
        let task = self.task(entry).map_err(unseen)?;
        let (from, to) = self.look_at(&task).map_err(unseen)?;
        let agreed = Agreed {
            own: task.own.as_ref().map(|record| &record.seen),
            over: task.over.as_ref().map(|record| &record.seen),
            staged: entry.staged,
        };
        let look =
            Look { from: from.as_ref().map(|found| &found.seen), to: to.as_ref().map(|found| &found.seen) };
        match judge(entry.kind, &entry.step, agreed, look) {
            Verdict::Do if self.is_unwanted(entry) => self.abandon(&task, from),
            Verdict::Do => self.carry_out(&task, from, to),
            Verdict::Done => {
                let done = self.found_done(&task, from, to)?;
                // If it moved along with its directory, that one has the times which it had, and would not be listed.
                if let Step::Unlink { at } | Step::Rmdir { at } = &entry.step {
                    self.unsettle(at.dir).map_err(after_the_fact)?;
                }
                Ok(Done { changed: self.dirs_of(&task).map_err(after_the_fact)?, ..done })
            }
            // Whose bytes they were nobody can tell: neither is lost if both are kept.
            Verdict::Verify if matches!(entry.step, Step::Publish { .. }) => {
                Err(Trouble::Conflict(link::Why::BothChanged))
            }
            Verdict::Verify => Err(Trouble::Conflict(link::Why::DeletedHere)),
            Verdict::Trouble(trouble) => Err(trouble),
        }
    }

    fn task<'a>(&self, entry: &'a Entry) -> Result<Task<'a>, Errno> {
        let own = self.record_of(entry.ino)?;
        let over = entry.step.over().map_or(Ok(None), |victim| self.record_of(victim))?;
        Ok(Task { entry, own, over })
    }

    /// What is at the source, or where the inode is, and at the target.
    fn look_at(&self, task: &Task<'_>) -> Result<(Option<Found>, Option<Found>), Errno> {
        let at = |place: Option<&Place>| match place {
            None => Ok(None),
            Some(place) => match self.way_of(place).and_then(|way| self.back.look(&way)) {
                // Its directory is not there: nor is it.
                Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
                other => other,
            },
        };
        let is_at = task.own.as_ref().map(|record| &record.place);
        let from = if task.entry.ino == Ino::ROOT {
            self.back.look(&[])?
        } else {
            at(task.entry.step.source().or(is_at))?
        };
        Ok((from, at(task.entry.step.target())?))
    }

    fn carry_out(&self, task: &Task<'_>, from: Option<Found>, to: Option<Found>) -> Result<Done, Trouble> {
        let over = if to.is_some() { Over::Replace } else { Over::Nothing };
        match &task.entry.step {
            Step::Create { at, data, .. } if task.entry.kind == FileKind::Regular => {
                self.publish(task, at, over, data.is_some())
            }
            Step::Publish { .. } => {
                let at = task.own.as_ref().map(|record| record.place.clone()).ok_or(Trouble::Gone)?;
                if let Some(done) = self.find_published(task, from.as_ref())? {
                    return Ok(done);
                }
                let several = from.is_some_and(|found| found.seen.nlink > 1);
                if several && self.back.abilities().in_place {
                    return self.publish_in_place(task, &at);
                }
                self.publish(task, &at, Over::Replace, true)
            }
            Step::Create { at, .. } => self.make(task, at, over),
            Step::Rename { from, to, .. } => self.rename(task, from, to, over),
            Step::Link { at, .. } => self.link(task, at, over),
            Step::Unlink { at } => self.take_name(task, at, false),
            Step::Rmdir { at } => self.take_name(task, at, true),
            Step::SetAttr { what } => self.or_stays_here(task.entry.ino, self.set_attributes(task, *what)),
            Step::SetXattr { names } => self.or_stays_here(task.entry.ino, self.set_xattrs(task, names)),
        }
    }

    /// The directories whose names it changed. Of one that was found done nobody knows whether they are durable.
    fn dirs_of(&self, task: &Task<'_>) -> Result<Vec<Way>, Errno> {
        let step = &task.entry.step;
        let own = task.own.as_ref().map(|record| &record.place).filter(|_| step.target().is_none());
        let dirs: BTreeSet<Ino> =
            [step.source(), step.target(), own].into_iter().flatten().map(|at| at.dir).collect();
        // One that is not there has nothing to be made durable.
        let way = |dir| match self.way_of_dir(dir) {
            Err(Errno::ENOENT) => None,
            way => Some(way),
        };
        dirs.into_iter().filter_map(way).collect()
    }

    /// Has the inode gone here, with its last name, since the step began? What it was to bring there is nowhere any more.
    fn is_unwanted(&self, entry: &Entry) -> bool {
        let brings = match &entry.step {
            Step::Create { .. } | Step::Publish { .. } | Step::SetAttr { .. } | Step::SetXattr { .. } => true,
            Step::Rename { .. } | Step::Link { .. } | Step::Unlink { .. } | Step::Rmdir { .. } => false,
        };
        brings && matches!(self.ledger.mds.find(entry.ino), Err(Errno::ESTALE))
    }

    /// It is not made. What they have of the inode goes by the step that follows.
    fn abandon(&self, task: &Task<'_>, from: Option<Found>) -> Result<Done, Trouble> {
        if matches!(task.entry.step, Step::Create { .. }) {
            return Err(Trouble::Gone);
        }
        self.clear_left(task.entry)?;
        let record = match (task.entry.staged, &task.own, from) {
            // Half written by us: that it is not what it was is no change of theirs.
            (Some(Staged::InPlace), Some(own), Some(from)) => Record::Is(self.record(from.seen, &own.place)),
            (Some(Staged::InPlace | Staged::Aside(_)) | None, _, _) => Record::Stays,
        };
        Ok(Done::with(record, Vec::new()))
    }

    /// Takes away what the step has left under a name that is ours alone. `Later`: it may be there still.
    fn clear_left(&self, entry: &Entry) -> Result<(), Trouble> {
        let dir = match &entry.step {
            Step::Create { at, .. } | Step::Link { at, over: Some(_) } => Some(at.dir),
            Step::Publish { .. } => {
                self.record_of(entry.ino).map_err(Trouble::of)?.map(|record| record.place.dir)
            }
            Step::Link { over: None, .. } | Step::Rename { .. } | Step::Unlink { .. } => None,
            Step::Rmdir { .. } | Step::SetAttr { .. } | Step::SetXattr { .. } => None,
        };
        let Some(dir) = dir.filter(|_| entry.kind != FileKind::Directory) else { return Ok(()) };
        let cleared =
            self.way_of(&Place::being_made(dir, entry.ino)).and_then(|aside| self.clear_aside(&aside));
        match cleared.map_err(Trouble::of) {
            Err(Trouble::Later) => Err(Trouble::Later),
            // What refuses that refuses the step, too; and without its directory it is not there.
            Ok(()) | Err(Trouble::Refused(_) | Trouble::Conflict(_) | Trouble::Gone) => Ok(()),
        }
    }

    /// It was done by an earlier process, or by them.
    fn found_done(&self, task: &Task<'_>, from: Option<Found>, to: Option<Found>) -> Result<Done, Trouble> {
        let nothing = || Done::with(Record::Stays, Vec::new());
        let is = |place: &Place, found: Option<Found>| match found {
            Some(found) => Done { record: Record::Is(self.record(found.seen, place)), ..nothing() },
            None => nothing(),
        };
        Ok(match &task.entry.step {
            // Two directories of one name: what is in theirs is not known.
            Step::Create { at, .. } if task.entry.kind == FileKind::Directory => match to {
                Some(found) => {
                    is(at, Some(Found { seen: Seen { proof: link::Proof::Void, ..found.seen }, ..found }))
                }
                None => nothing(),
            },
            Step::Create { at, .. } => {
                self.clear_half_renamed(task, at).map_err(Trouble::of)?;
                Done { live: self.is_changed_since(task)?, ..is(at, self.as_staged(task, to)) }
            }
            Step::Publish { .. } => match &task.own {
                Some(record) => {
                    self.clear_half_renamed(task, &record.place).map_err(Trouble::of)?;
                    let live = self.is_changed_since(task)?;
                    Done { live, ..is(&record.place, self.as_staged(task, from)) }
                }
                None => nothing(),
            },
            // What they have written to it since is a change of theirs.
            Step::Rename { to: at, .. } => match renamed(task, to) {
                Some(seen) => Done { record: Record::Is(self.record(seen, at)), ..nothing() },
                None => nothing(),
            },
            Step::Link { .. } => {
                self.clear_left(task.entry)?;
                nothing()
            }
            Step::Unlink { at } | Step::Rmdir { at } => self.without(task, at).map_err(Trouble::of)?,
            Step::SetAttr { .. } | Step::SetXattr { .. } => nothing(),
        })
    }

    /// Of a version that has its name: may the file have been written since it was taken? Whoever had it open then is told of by
    /// nobody, and what was noted of that is forgotten.
    fn is_changed_since(&self, task: &Task<'_>) -> Result<bool, Trouble> {
        let Some(Staged::Aside(staged)) = task.entry.staged else { return Ok(false) };
        match self.ledger.mds.find(task.entry.ino) {
            Ok(found) if found.attr.kind == FileKind::Regular && found.data.written => {
                let same = (found.attr.size, found.attr.mtime) == (staged.size, staged.mtime);
                Ok(found.data.live || !same)
            }
            Ok(_) | Err(Errno::ESTALE) => Ok(false),
            Err(errno) => Err(after_the_fact(errno)),
        }
    }

    /// The version that was given its name. If they changed it since, the next look finds that out by what is remembered.
    fn as_staged(&self, task: &Task<'_>, found: Option<Found>) -> Option<Found> {
        let found = found?;
        match task.entry.staged {
            Some(Staged::Aside(staged)) => {
                let same = staged.size == found.seen.size && staged.mtime == found.seen.mtime;
                Some(if same { found } else { Found { seen: staged, ..found } })
            }
            Some(Staged::InPlace) | None => Some(found),
        }
    }

    pub(crate) fn record(&self, seen: Seen, place: &Place) -> LinkRecord {
        LinkRecord { seen, looked: self.now(), place: place.clone() }
    }

    /// Two directories of one name are one. Anything else gets its name by a rename, so that after a crash it is known for ours.
    fn make(&self, task: &Task<'_>, at: &Place, over: Over) -> Result<Done, Trouble> {
        let own = Own::of(&self.ledger.mds, task.entry.ino).map_err(Trouble::of)?;
        let (dir, way) = self.dir_and_way(at).map_err(Trouble::of)?;
        let with = &own.attributes();
        let making = Making { kind: task.entry.kind, rdev: own.attr.rdev, target: &own.target, with };
        let seen = if task.entry.kind == FileKind::Directory {
            self.back.make(&way, &making).map_err(Trouble::of)?.seen
        } else {
            let aside = self.way_of(&Place::being_made(at.dir, task.entry.ino)).map_err(Trouble::of)?;
            self.clear_aside(&aside).map_err(Trouble::of)?;
            let made = self.back.make(&aside, &making).map_err(Trouble::of)?;
            self.wait_for_clock(&made);
            let made = made.seen;
            self.stage(task, Staged::Aside(made)).map_err(Trouble::of)?;
            self.back.rename(&aside, &way, over).map_err(Trouble::of)?;
            self.back
                .look(&way)
                .map_err(after_the_fact)?
                .filter(|found| found.seen.is_same_object(&made))
                .map_or(made, |found| found.seen)
        };
        Ok(Done::with(Record::Is(self.record(seen, at)), vec![dir]))
    }

    /// What an earlier try left under a name that is ours alone.
    pub(crate) fn clear_aside(&self, aside: &Way) -> Result<(), Errno> {
        match self.back.unlink(aside) {
            Err(Errno::ENOENT) => Ok(()),
            other => other,
        }
    }

    fn rename(&self, task: &Task<'_>, from: &Place, to: &Place, over: Over) -> Result<Done, Trouble> {
        let (from_dir, from_way) = self.dir_and_way(from).map_err(Trouble::of)?;
        let (to_dir, to_way) = self.dir_and_way(to).map_err(Trouble::of)?;
        self.back.rename(&from_way, &to_way, over).map_err(Trouble::of)?;
        let found = self.back.look(&to_way).map_err(after_the_fact)?;
        let seen = renamed(task, found).ok_or(Trouble::Gone)?;
        Ok(Done::with(Record::Is(self.record(seen, to)), vec![from_dir, to_dir]))
    }

    fn link(&self, task: &Task<'_>, at: &Place, over: Over) -> Result<Done, Trouble> {
        let own = task.own.as_ref().ok_or(Trouble::Gone)?;
        let from = self.way_of(&own.place).map_err(Trouble::of)?;
        let (dir, way) = self.dir_and_way(at).map_err(Trouble::of)?;
        let linked = match over {
            Over::Nothing => self.back.link(&from, &way),
            Over::Replace => self.link_over(task, &from, (at, &way)),
        };
        linked.map_err(Trouble::of)?;
        if over == Over::Nothing {
            // What was to go was perhaps there at an earlier try.
            self.clear_left(task.entry)?;
        }
        let seen = self.after_ours(own, self.back.look(&way).map_err(after_the_fact)?);
        Ok(Done::with(Record::Is(self.record(seen, &own.place)), vec![dir]))
    }

    fn link_over(&self, task: &Task<'_>, from: &Way, (at, way): (&Place, &Way)) -> Result<(), Errno> {
        let aside = self.way_of(&Place::being_made(at.dir, task.entry.ino))?;
        self.clear_aside(&aside)?;
        self.back.link(from, &aside)?;
        self.back.rename(&aside, way, Over::Replace)
    }

    /// What was agreed on, with what a step of ours that leaves the bytes alone changed about it.
    fn after_ours(&self, own: &LinkRecord, found: Option<Found>) -> Seen {
        match found {
            Some(found) if found.seen.is_same_object(&own.seen) => {
                let now = found.seen;
                Seen {
                    ctime: now.ctime,
                    nlink: now.nlink,
                    mode: now.mode,
                    uid: now.uid,
                    gid: now.gid,
                    ..own.seen
                }
            }
            Some(_) | None => own.seen,
        }
    }

    fn take_name(&self, task: &Task<'_>, at: &Place, is_dir: bool) -> Result<Done, Trouble> {
        let (dir, way) = self.dir_and_way(at).map_err(Trouble::of)?;
        let taken = if is_dir { self.back.rmdir(&way) } else { self.back.unlink(&way) };
        match taken {
            Ok(()) => {}
            Err(Errno::ENOENT) => self.unsettle(at.dir).map_err(after_the_fact)?,
            Err(errno) => return Err(Trouble::of(errno)),
        }
        let done = self.without(task, at).map_err(after_the_fact)?;
        Ok(Done { changed: vec![dir], ..done })
    }

    /// The name is gone there. With another one the inode is still there.
    fn without(&self, task: &Task<'_>, at: &Place) -> Result<Done, Errno> {
        let record = match &task.own {
            Some(own) if own.place == *at => match self.another_name(task.entry.ino, at)? {
                Some(place) => Record::Is(LinkRecord { place, ..own.clone() }),
                None => Record::Goes,
            },
            Some(_) | None => Record::Stays,
        };
        Ok(Done::with(record, Vec::new()))
    }

    fn set_attributes(&self, task: &Task<'_>, what: Attrs) -> Result<Done, Trouble> {
        let own = task.own.as_ref().ok_or(Trouble::Gone)?;
        let ours = Own::of(&self.ledger.mds, task.entry.ino).map_err(Trouble::of)?;
        let way = self.way_of_inode(task.entry.ino, own).map_err(Trouble::of)?;
        self.back.set_attributes(&way, what, &ours.attributes()).map_err(Trouble::of)?;
        let found = self.back.look(&way).map_err(after_the_fact)?;
        let mut seen = self.after_ours(own, found);
        if let Some(found) = found.filter(|_| what.contains(Attrs::TIMES)) {
            seen.mtime = found.seen.mtime;
        }
        Ok(Done::with(Record::Is(self.record(seen, &own.place)), vec![way]))
    }

    fn set_xattrs(&self, task: &Task<'_>, names: &BTreeSet<Vec<u8>>) -> Result<Done, Trouble> {
        let own = task.own.as_ref().ok_or(Trouble::Gone)?;
        let way = self.way_of_inode(task.entry.ino, own).map_err(Trouble::of)?;
        for name in names {
            let value = match self.ledger.mds.getxattr(task.entry.ino, name) {
                Ok(value) => Some(value),
                Err(Errno::ENODATA) => None,
                Err(errno) => return Err(Trouble::of(errno)),
            };
            self.back.set_xattr(&way, name, value.as_deref()).map_err(Trouble::of)?;
        }
        let seen = self.after_ours(own, self.back.look(&way).map_err(after_the_fact)?);
        Ok(Done::with(Record::Is(self.record(seen, &own.place)), vec![way]))
    }

    pub(crate) fn way_of_inode(&self, ino: Ino, record: &LinkRecord) -> Result<Way, Errno> {
        if ino == Ino::ROOT { Ok(Vec::new()) } else { self.way_of(&record.place) }
    }

    pub(crate) fn dir_and_way(&self, at: &Place) -> Result<(Way, Way), Errno> {
        let dir = self.way_of_dir(at.dir)?;
        let mut way = dir.clone();
        way.push(at.name.clone());
        Ok((dir, way))
    }
}

/// What is agreed on of what has another name.
fn renamed(task: &Task<'_>, found: Option<Found>) -> Option<Seen> {
    match (found, &task.own) {
        // Only its ctime changed, by us; the rest is as it was agreed on.
        (Some(found), Some(own)) if found.seen.is_same_object(&own.seen) => {
            Some(Seen { ctime: found.seen.ctime, ..own.seen })
        }
        (Some(found), _) => Some(found.seen),
        (None, own) => own.as_ref().map(|own| own.seen),
    }
}
