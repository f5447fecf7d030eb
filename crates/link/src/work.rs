//! What the back end lacks of one inode: the difference of the two sides, whatever the way to it was.

use std::collections::BTreeSet;

use types::{FileKind, Timestamp};

use crate::{
    place::Place,
    step::{Attrs, Staged, Step},
};

/// A change on our side, of one inode, to be pushed in the commit that makes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// `writing`: it is open for writing, and its first [`Op::Publish`] is what will create it there.
    Create {
        at: Place,
        writing: bool,
    },
    /// Its data changed, and a `Publish` will come. Versions of an inode grow.
    Written {
        version: u64,
    },
    /// This version is to be seen there.
    Publish {
        version: u64,
    },
    /// What has the new name is unlinked before.
    Rename {
        from: Place,
        to: Place,
    },
    Link {
        at: Place,
    },
    /// `last`: the inode has no other name.
    Unlink {
        at: Place,
        last: bool,
    },
    Rmdir {
        at: Place,
    },
    SetAttr {
        what: Attrs,
    },
    SetXattr {
        name: Vec<u8>,
    },
}

/// The stored state of the log, one for each inode that has something to apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    /// Grows with the first change that is not applied: older work goes first.
    pub seq: u64,
    pub since: Timestamp,
    pub kind: FileKind,
    /// The back end has the inode.
    pub there: bool,
    /// It has no name on our side.
    pub deleted: bool,
    /// Names that they have and we have not.
    pub minus: BTreeSet<Place>,
    /// Names that we have and they have not.
    pub plus: BTreeSet<Place>,
    /// The newest version of the data that was spoken of, the newest that they have, and the one to be published.
    pub written: u64,
    pub published: u64,
    pub due: Option<u64>,
    /// Before it takes the name of another, this version is published.
    pub needs: u64,
    /// Created, but to be seen only with its data.
    pub writing: bool,
    pub attrs: Attrs,
    pub xattrs: BTreeSet<Vec<u8>>,
    /// The step that is under way, or was when the last process ended.
    pub begun: Option<Step>,
    pub staged: Option<Staged>,
}

impl Work {
    pub(crate) fn new(seq: u64, since: Timestamp, kind: FileKind) -> Work {
        Work {
            seq,
            since,
            kind,
            there: true,
            deleted: false,
            minus: BTreeSet::new(),
            plus: BTreeSet::new(),
            written: 0,
            published: 0,
            due: None,
            needs: 0,
            writing: false,
            attrs: Attrs::NONE,
            xattrs: BTreeSet::new(),
            begun: None,
            staged: None,
        }
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Nothing is left to apply.
    pub(crate) fn is_done(&self) -> bool {
        let named = !self.minus.is_empty() || !self.plus.is_empty();
        let data = self.due.is_some() || self.written > self.published;
        let attributes = !self.attrs.is_empty() || !self.xattrs.is_empty();
        self.begun.is_none() && !named && !data && !attributes
    }

    /// Our side changed.
    pub(crate) fn change(&mut self, op: Op) {
        match op {
            Op::Create { at, writing } => {
                self.there = false;
                self.writing = writing;
                self.named(at);
            }
            Op::Written { version } => self.written = self.written.max(version),
            Op::Publish { version } => {
                self.written = self.written.max(version);
                self.due = self.due.max(Some(version));
                self.writing = false;
            }
            Op::Rename { from, to } => {
                self.unnamed(from);
                self.named(to);
                self.needs = self.written;
            }
            Op::Link { at } => {
                self.named(at);
                self.needs = self.written;
            }
            Op::Unlink { at, last } => {
                self.unnamed(at);
                if last {
                    self.delete();
                }
            }
            Op::Rmdir { at } => {
                self.unnamed(at);
                self.delete();
            }
            Op::SetAttr { what } => self.attrs = self.attrs.with(what),
            Op::SetXattr { name } => drop(self.xattrs.insert(name)),
        }
        if self.begun.is_none() {
            self.forget_unmade();
        }
    }

    fn delete(&mut self) {
        self.deleted = true;
        self.due = None;
        (self.written, self.published, self.needs) = (0, 0, 0);
        self.attrs = Attrs::NONE;
        self.xattrs.clear();
    }

    /// Of what was never there and has no name nothing is left to do, and what is made there gets all that it has.
    pub(crate) fn forget_unmade(&mut self) {
        if !self.there {
            self.attrs = Attrs::NONE;
            self.xattrs.clear();
            if self.plus.is_empty() {
                self.due = None;
                (self.written, self.published, self.needs) = (0, 0, 0);
            }
        }
    }

    fn named(&mut self, at: Place) {
        if !self.minus.remove(&at) {
            self.plus.insert(at);
        }
    }

    fn unnamed(&mut self, at: Place) {
        if !self.plus.remove(&at) {
            self.minus.insert(at);
        }
    }

    /// They have this name now, by a step or by their own doing.
    pub(crate) fn gained(&mut self, at: Place) {
        if !self.plus.remove(&at) {
            self.minus.insert(at);
        }
    }

    /// They have it no more.
    pub(crate) fn vacated(&mut self, at: Place) {
        if !self.minus.remove(&at) {
            self.plus.insert(at);
        }
    }

    /// Takes what a step is to carry out of what is left to do.
    pub(crate) fn begin(&mut self, step: &Step) {
        match step {
            Step::Create { .. } => self.forget_unmade(),
            Step::SetAttr { .. } => self.attrs = Attrs::NONE,
            Step::SetXattr { .. } => self.xattrs.clear(),
            Step::Publish { .. } | Step::Rename { .. } | Step::Link { .. } => {}
            Step::Unlink { .. } | Step::Rmdir { .. } => {}
        }
        self.begun = Some(step.clone());
    }

    /// The step that was begun is applied.
    pub(crate) fn end(&mut self) {
        let Some(step) = self.begun.take() else { return };
        self.staged = None;
        if let Some(at) = step.source() {
            self.vacated(at.clone());
        }
        if let Some(at) = step.target() {
            self.gained(at.clone());
        }
        match &step {
            Step::Create { data, .. } => {
                self.there = true;
                self.publish(data.unwrap_or(0));
            }
            Step::Publish { version } => self.publish(*version),
            Step::Rename { .. } | Step::Link { .. } | Step::Unlink { .. } | Step::Rmdir { .. } => {}
            Step::SetAttr { .. } | Step::SetXattr { .. } => {}
        }
        self.note_gone();
    }

    /// What has no name on either side is not there.
    pub(crate) fn note_gone(&mut self) {
        if self.deleted && self.minus.is_empty() && self.begun.is_none() {
            self.there = false;
            self.forget_unmade();
        }
    }

    fn publish(&mut self, version: u64) {
        self.published = self.published.max(version);
        self.due = self.due.filter(|due| *due > version);
    }

    /// The step that was begun had no effect, for certain.
    pub(crate) fn undo(&mut self) {
        let step = self.begun.take();
        self.staged = None;
        match step {
            Some(Step::SetAttr { what }) if !self.deleted => self.attrs = self.attrs.with(what),
            Some(Step::SetXattr { names }) if !self.deleted => self.xattrs.extend(names),
            Some(_) | None => {}
        }
        self.forget_unmade();
    }

    /// A name that both sides lose.
    pub(crate) fn gone(&mut self, theirs: Place, ours: Option<Place>, last: bool) {
        self.vacated(theirs);
        if let Some(ours) = ours {
            self.unnamed(ours);
        }
        if last {
            self.delete();
        }
        self.note_gone();
    }

    /// They have nothing of it any more; we have it under these names, and this version.
    pub(crate) fn displaced(&mut self, names: BTreeSet<Place>, version: Option<u64>) {
        self.there = false;
        self.begun = None;
        self.staged = None;
        self.minus.clear();
        self.plus = names;
        self.published = 0;
        self.due = self.due.max(version);
        self.written = self.written.max(version.unwrap_or(0));
        self.forget_unmade();
    }
}
