//! One step of the log in the back end: what it does, and whether it may still be done.
//!
//! Before a step, be it the first try or one after a crash, the shell looks at the places that it is about, and [`judge`] says
//! what to do. So a step that was applied just before the crash is known by what is there, and one that meets a change of
//! theirs does not overwrite it.

use std::collections::BTreeSet;

use types::{Errno, FileKind, Ino};

use crate::{
    conflict::Why,
    place::Place,
    seen::{Change, Seen, compare},
};

/// A set of attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attrs(u8);

impl Attrs {
    pub const NONE: Attrs = Attrs(0);
    pub const MODE: Attrs = Attrs(1);
    pub const OWNER: Attrs = Attrs(2);
    pub const TIMES: Attrs = Attrs(4);

    pub const fn bits(self) -> u8 {
        self.0
    }
    pub const fn from_bits(bits: u8) -> Option<Attrs> {
        if bits < 8 { Some(Attrs(bits)) } else { None }
    }
    pub const fn with(self, other: Attrs) -> Attrs {
        Attrs(self.0 | other.0)
    }
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    pub const fn contains(self, other: Attrs) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What is done in the back end at once. Values are those that the inode has when the step begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// With all attributes, and with its data when `data` gives a version: whole from the first moment on. `over`: in place
    /// of something that goes; then, as with data, it is made under a name on the way and renamed.
    Create {
        at: Place,
        over: Option<Ino>,
        data: Option<u64>,
    },
    /// A new version of the data, at least this one, of a file that is there.
    Publish {
        version: u64,
    },
    Rename {
        from: Place,
        to: Place,
        over: Option<Ino>,
    },
    Link {
        at: Place,
        over: Option<Ino>,
    },
    Unlink {
        at: Place,
    },
    Rmdir {
        at: Place,
    },
    SetAttr {
        what: Attrs,
    },
    /// Each to the value that it has, or away.
    SetXattr {
        names: BTreeSet<Vec<u8>>,
    },
}

impl Step {
    /// The name that it gives.
    pub fn target(&self) -> Option<&Place> {
        match self {
            Step::Create { at, .. } | Step::Link { at, .. } | Step::Rename { to: at, .. } => Some(at),
            Step::Publish { .. } | Step::Unlink { .. } | Step::Rmdir { .. } => None,
            Step::SetAttr { .. } | Step::SetXattr { .. } => None,
        }
    }

    /// What loses the name that it gives.
    pub fn over(&self) -> Option<Ino> {
        match self {
            Step::Create { over, .. } | Step::Link { over, .. } | Step::Rename { over, .. } => *over,
            Step::Publish { .. } | Step::Unlink { .. } | Step::Rmdir { .. } => None,
            Step::SetAttr { .. } | Step::SetXattr { .. } => None,
        }
    }

    /// The name that it takes away.
    pub fn source(&self) -> Option<&Place> {
        match self {
            Step::Rename { from: at, .. } | Step::Unlink { at } | Step::Rmdir { at } => Some(at),
            Step::Create { .. } | Step::Link { .. } | Step::Publish { .. } => None,
            Step::SetAttr { .. } | Step::SetXattr { .. } => None,
        }
    }
}

/// What is durably known of a new version before it is given its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Staged {
    /// This object, under a name on the way.
    Aside(Seen),
    /// It is being written into the object that is there: what is found half written is ours.
    InPlace,
}

/// What both sides agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Agreed<'a> {
    pub own: Option<&'a Seen>,
    /// Of what goes when the step is one over something.
    pub over: Option<&'a Seen>,
    pub staged: Option<Staged>,
}

/// What the back end has now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Look<'a> {
    /// At the source, or where the inode is.
    pub from: Option<&'a Seen>,
    pub to: Option<&'a Seen>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Do,
    /// It is done already.
    Done,
    /// Compare the bytes of what the step ends with the checksum of what was agreed on; the same: do.
    Verify,
    /// Not without [`crate::reconcile`].
    Trouble(Trouble),
}

/// Why a step could not be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Or may have been: it is tried again, after a pause that grows.
    Later,
    /// By the back end, for good as far as it goes: it is held, reported, and tried again seldom, or when the inode changes.
    Refused(Errno),
    /// They changed it too: held until the directory is reconciled.
    Conflict(Why),
    /// It is not where it was: held until the directory is reconciled.
    Gone,
}

impl Trouble {
    /// Of the error that a step ended with.
    pub fn of(errno: Errno) -> Trouble {
        use Errno::*;
        match errno {
            EEXIST => Trouble::Conflict(Why::NameTaken),
            ENOTEMPTY => Trouble::Conflict(Why::DeletedHere),
            ENOENT | ENOTDIR | EISDIR => Trouble::Gone,
            EIO | EINTR | EAGAIN | ENOMEM | EBUSY | ESTALE | ETIMEDOUT | ETXTBSY | EPIPE | EMFILE | ENXIO => {
                Trouble::Later
            }
            ENODEV | EBADF | EDEADLK | ENOLCK | EREMOTE => Trouble::Later,
            EPERM | EACCES | EROFS | EDQUOT | ENOSPC | ENAMETOOLONG | EFBIG | EMLINK | EXDEV | EINVAL
            | ELOOP => Trouble::Refused(errno),
            E2BIG | ENOTTY | ESPIPE | ERANGE | ENOSYS | ENODATA | EOVERFLOW | EOPNOTSUPP => {
                Trouble::Refused(errno)
            }
        }
    }
}

/// May the step be done?
pub fn judge(kind: FileKind, step: &Step, agreed: Agreed<'_>, look: Look<'_>) -> Verdict {
    let is_ours = |there: Option<&Seen>| there.zip(agreed.own).is_some_and(|(a, b)| a.is_same_object(b));
    // By its number, and not by its name alone.
    let is_surely_ours = |there: Option<&Seen>| there.zip(agreed.own).is_some_and(|(a, b)| a.is_surely(b));
    let is_staged = |there: Option<&Seen>| match (there, agreed.staged) {
        (Some(there), Some(Staged::Aside(staged))) => there.is_surely(&staged),
        (_, Some(Staged::InPlace) | None) | (None, _) => false,
    };
    match step {
        Step::Create { over, .. } => match look.to {
            to if is_staged(to) => Verdict::Done,
            // Made just before a crash, or by them: two directories of one name are one.
            Some(there) if kind == FileKind::Directory && there.kind == kind => Verdict::Done,
            to => free(to, agreed.over.filter(|_| over.is_some())),
        },
        Step::Publish { .. } => match look.from {
            from if is_staged(from) => Verdict::Done,
            from if is_surely_ours(from) && agreed.staged == Some(Staged::InPlace) => Verdict::Do,
            // Deleted there, or renamed: the directory says which.
            None => Verdict::Trouble(Trouble::Gone),
            from => match agreed.own.map(|own| compare(own, from)) {
                Some(Change::Nothing | Change::Attributes) => Verdict::Do,
                Some(Change::Unproven) => Verdict::Verify,
                Some(Change::Data | Change::Replaced | Change::OtherKind | Change::Gone) | None => {
                    Verdict::Trouble(Trouble::Conflict(Why::BothChanged))
                }
            },
        },
        // Copied, and not removed yet: a back end that cannot rename does so, and nothing else has two names and one link.
        Step::Rename { .. }
            if is_ours(look.from) && look.to.is_some_and(|to| is_ours(Some(to)) && is_single(to)) =>
        {
            Verdict::Do
        }
        Step::Rename { over, .. } if is_ours(look.from) => {
            free(look.to, agreed.over.filter(|_| over.is_some()))
        }
        Step::Link { .. } if is_surely_ours(look.to) => Verdict::Done,
        Step::Link { over, .. } if is_ours(look.from) => {
            free(look.to, agreed.over.filter(|_| over.is_some()))
        }
        Step::Rename { .. } if is_surely_ours(look.to) => Verdict::Done,
        Step::Rename { .. } | Step::Link { .. } => Verdict::Trouble(Trouble::Gone),
        // Gone, or it is something of theirs that has the name now.
        Step::Unlink { .. } | Step::Rmdir { .. } if !is_ours(look.from) => Verdict::Done,
        // Whether it is empty the back end says.
        Step::Rmdir { .. } => Verdict::Do,
        Step::Unlink { .. } => ended(agreed.own, look.from),
        Step::SetAttr { .. } | Step::SetXattr { .. } if is_ours(look.from) => Verdict::Do,
        Step::SetAttr { .. } | Step::SetXattr { .. } => Verdict::Trouble(Trouble::Gone),
    }
}

fn is_single(there: &Seen) -> bool {
    there.nlink == 1 && there.kind != FileKind::Directory
}

/// Whether a name may be given: nothing is there, or what has to go and is as it was.
fn free(there: Option<&Seen>, over: Option<&Seen>) -> Verdict {
    match (there, over) {
        (None, _) => Verdict::Do,
        (Some(there), Some(over)) if there.is_same_object(over) => ended(Some(over), Some(there)),
        (Some(_), _) => Verdict::Trouble(Trouble::Conflict(Why::NameTaken)),
    }
}

/// Whether what is there may end.
fn ended(agreed: Option<&Seen>, there: Option<&Seen>) -> Verdict {
    match agreed.map(|agreed| compare(agreed, there)) {
        Some(Change::Nothing | Change::Attributes | Change::Gone) => Verdict::Do,
        Some(Change::Unproven) => Verdict::Verify,
        Some(Change::Data | Change::Replaced | Change::OtherKind) | None => {
            Verdict::Trouble(Trouble::Conflict(Why::DeletedHere))
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a step is done once, and never over a change of theirs. Method: each step with what may be found before it.
    use super::*;
    use crate::seen::Proof;
    use types::Timestamp;

    fn seen(fileid: u64, version: i64) -> Seen {
        let time = Timestamp { sec: version, nsec: 0 };
        Seen {
            kind: FileKind::Regular,
            fileid,
            birth: None,
            size: 1,
            mtime: time,
            ctime: time,
            mode: 0o644,
            uid: 0,
            gid: 0,
            nlink: 1,
            proof: Proof::Firm,
        }
    }

    /// Ours is 1, what goes is 2, what was staged is 3, all in their version 1.
    fn judged(step: &Step, from: Option<Seen>, to: Option<Seen>, staged: bool) -> Verdict {
        let (own, over, aside) = (seen(1, 1), seen(2, 1), Staged::Aside(seen(3, 1)));
        let agreed = Agreed { own: Some(&own), over: Some(&over), staged: Some(aside).filter(|_| staged) };
        judge(FileKind::Regular, step, agreed, Look { from: from.as_ref(), to: to.as_ref() })
    }

    fn place() -> Place {
        Place::new(Ino::ROOT, b"a")
    }

    const TAKEN: Verdict = Verdict::Trouble(Trouble::Conflict(Why::NameTaken));
    const DELETED: Verdict = Verdict::Trouble(Trouble::Conflict(Why::DeletedHere));
    const CHANGED: Verdict = Verdict::Trouble(Trouble::Conflict(Why::BothChanged));
    const GONE: Verdict = Verdict::Trouble(Trouble::Gone);

    #[test]
    fn names_are_given_once_and_only_where_nothing_of_theirs_is() {
        let victim = Some(Ino::ROOT);
        let create = |over| Step::Create { at: place(), over, data: Some(1) };
        let rename = |over| Step::Rename { from: place(), to: place(), over };
        let link = |over| Step::Link { at: place(), over };
        let racy = Seen { proof: Proof::Racy, ..seen(2, 1) };
        for (step, own) in
            [(create(None), None), (rename(None), Some(seen(1, 5))), (link(None), Some(seen(1, 5)))]
        {
            assert_eq!(judged(&step, own, None, true), Verdict::Do);
            assert_eq!(judged(&step, own, Some(seen(9, 1)), true), TAKEN);
            assert_eq!(judged(&step, own, Some(seen(2, 1)), true), TAKEN, "nothing was to go");
        }
        for (step, own) in
            [(create(victim), None), (rename(victim), Some(seen(1, 5))), (link(victim), Some(seen(1, 1)))]
        {
            assert_eq!(judged(&step, own, None, true), Verdict::Do);
            assert_eq!(judged(&step, own, Some(seen(2, 1)), true), Verdict::Do);
            assert_eq!(judged(&step, own, Some(seen(2, 5)), true), DELETED);
            assert_eq!(judged(&step, own, Some(seen(9, 1)), true), TAKEN);
        }
        assert_eq!(judged(&create(None), None, Some(seen(3, 1)), true), Verdict::Done);
        assert_eq!(judged(&create(None), None, Some(seen(3, 1)), false), TAKEN);
        assert_eq!(judged(&rename(None), None, Some(seen(1, 1)), false), Verdict::Done);
        assert_eq!(judged(&rename(None), Some(seen(9, 1)), Some(seen(1, 1)), false), Verdict::Done);
        assert_eq!(judged(&link(None), Some(seen(1, 1)), Some(seen(1, 1)), false), Verdict::Done);
        assert_eq!(judged(&rename(None), None, None, false), GONE);
        let half = |links| Some(Seen { nlink: links, ..seen(1, 1) });
        assert_eq!(judged(&rename(None), half(1), half(1), false), Verdict::Do, "copied, not removed");
        assert_eq!(judged(&rename(None), half(2), half(2), false), TAKEN, "a link of theirs");
        assert_eq!(judged(&link(None), Some(seen(9, 1)), None, false), GONE);
        let agreed = Agreed { own: None, over: Some(&racy), staged: None };
        let look = Look { from: None, to: Some(&seen(2, 1)) };
        assert_eq!(judge(FileKind::Regular, &create(victim), agreed, look), Verdict::Verify);
    }

    #[test]
    fn a_directory_that_is_there_is_made() {
        let step = Step::Create { at: place(), over: None, data: None };
        let there = Seen { kind: FileKind::Directory, ..seen(9, 1) };
        let judged = |there| {
            judge(FileKind::Directory, &step, Agreed::default(), Look { from: None, to: Some(there) })
        };
        assert_eq!(judged(&there), Verdict::Done);
        assert_eq!(judged(&seen(9, 1)), TAKEN);
    }

    #[test]
    fn versions_replace_what_was_agreed_on() {
        let step = Step::Publish { version: 7 };
        assert_eq!(judged(&step, Some(seen(1, 1)), None, true), Verdict::Do);
        assert_eq!(judged(&step, Some(Seen { mode: 0, ..seen(1, 1) }), None, true), Verdict::Do);
        assert_eq!(judged(&step, None, None, true), GONE);
        assert_eq!(judged(&step, Some(seen(3, 1)), None, true), Verdict::Done);
        assert_eq!(judged(&step, Some(seen(3, 1)), None, false), CHANGED);
        assert_eq!(judged(&step, Some(seen(1, 2)), None, true), CHANGED);
        assert_eq!(judged(&step, Some(seen(9, 1)), None, true), CHANGED);
        let (racy, half) = (Seen { proof: Proof::Racy, ..seen(1, 1) }, seen(1, 4));
        let with = |own: &Seen, staged: Option<Staged>, from: &Seen| {
            let agreed = Agreed { own: Some(own), over: None, staged };
            judge(FileKind::Regular, &step, agreed, Look { from: Some(from), to: None })
        };
        assert_eq!(with(&racy, None, &racy), Verdict::Verify);
        assert_eq!(with(&seen(1, 1), Some(Staged::InPlace), &half), Verdict::Do, "half written by us");
        assert_eq!(with(&seen(1, 1), Some(Staged::InPlace), &seen(9, 1)), CHANGED);
    }

    /// Goal: after a move of their tree a step is not taken for done because something has the name, and what is no longer
    /// what it was is neither replaced nor removed.
    #[test]
    fn in_a_tree_that_was_moved_a_name_alone_is_no_proof() {
        let (own, copy, other) = (seen(1, 1).elsewhere(), seen(70, 1), seen(71, 9));
        let staged = Staged::Aside(seen(3, 1).elsewhere());
        let judged = |step: &Step, from: Option<&Seen>, to: Option<&Seen>| {
            let agreed = Agreed { own: Some(&own), over: None, staged: Some(staged) };
            judge(FileKind::Regular, step, agreed, Look { from, to })
        };
        let link = Step::Link { at: place(), over: None };
        let rename = Step::Rename { from: place(), to: place(), over: None };
        assert_eq!(judged(&link, Some(&copy), Some(&other)), TAKEN);
        assert_eq!(judged(&link, Some(&copy), None), Verdict::Do);
        assert_eq!(judged(&rename, None, Some(&other)), GONE);
        assert_eq!(judged(&rename, Some(&copy), None), Verdict::Do);
        let publish = Step::Publish { version: 7 };
        assert_eq!(judged(&publish, Some(&copy), None), Verdict::Do);
        assert_eq!(judged(&publish, Some(&other), None), CHANGED);
        assert_eq!(
            judged(&Step::Create { at: place(), over: None, data: Some(1) }, None, Some(&other)),
            TAKEN
        );
        let unlink = Step::Unlink { at: place() };
        assert_eq!(judged(&unlink, Some(&copy), None), Verdict::Do);
        assert_eq!(judged(&unlink, Some(&other), None), DELETED);
    }

    #[test]
    fn only_what_was_agreed_on_is_removed() {
        let (unlink, rmdir) = (Step::Unlink { at: place() }, Step::Rmdir { at: place() });
        assert_eq!(judged(&unlink, Some(seen(1, 1)), None, false), Verdict::Do);
        assert_eq!(judged(&unlink, Some(Seen { uid: 5, ..seen(1, 1) }), None, false), Verdict::Do);
        assert_eq!(judged(&unlink, Some(seen(1, 2)), None, false), DELETED);
        for step in [&unlink, &rmdir] {
            assert_eq!(judged(step, None, None, false), Verdict::Done);
            assert_eq!(judged(step, Some(seen(9, 1)), None, false), Verdict::Done);
        }
        assert_eq!(judged(&rmdir, Some(seen(1, 2)), None, false), Verdict::Do);
        for step in [Step::SetAttr { what: Attrs::MODE }, Step::SetXattr { names: BTreeSet::new() }] {
            assert_eq!(judged(&step, Some(seen(1, 2)), None, false), Verdict::Do);
            assert_eq!(judged(&step, None, None, false), GONE);
            assert_eq!(judged(&step, Some(seen(9, 1)), None, false), GONE);
        }
    }

    #[test]
    fn errors_have_their_kind() {
        for errno in [Errno::EACCES, Errno::EROFS, Errno::EDQUOT, Errno::ENOSPC, Errno::ENAMETOOLONG] {
            assert_eq!(Trouble::of(errno), Trouble::Refused(errno));
        }
        for errno in [Errno::EIO, Errno::ESTALE, Errno::ETIMEDOUT] {
            assert_eq!(Trouble::of(errno), Trouble::Later);
        }
        assert_eq!(Trouble::of(Errno::ENOTEMPTY), Trouble::Conflict(Why::DeletedHere));
        assert_eq!(Trouble::of(Errno::ENOENT), Trouble::Gone);
    }
}
