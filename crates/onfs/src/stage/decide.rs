//! What is to be done for one file, from what is known of it. Pure.

use super::{
    facts::{Facts, Kind, Stamp},
    known::KnownFile,
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// It is there, whole.
    Skip,
    /// It looks as if it were there: its content decides, read on both sides.
    Compare,
    /// An earlier run copied it, and the machine may have lost power since: the destination's content decides.
    CheckRecorded(u64),
    /// Pieces of it are there, under its name on the way.
    Resume,
    Copy,
    /// The destination is another kind of thing, which is not replaced.
    Refuse(&'static str),
}

/// What is at the destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct There {
    pub facts: Facts,
    /// ONFS says that some of its data is lost.
    pub lost: bool,
}

/// For a regular file. `checksum`: the user does not trust sizes and times.
pub fn regular(source: &Facts, there: Option<&There>, known: Option<&KnownFile>, checksum: bool) -> Action {
    let stamp = source.stamp();
    let copy = || match known.and_then(|known| known.begun.as_ref()) {
        Some(begun) if begun.stamp == stamp => Action::Resume,
        Some(_) | None => Action::Copy,
    };
    let Some(there) = there else { return copy() };
    if there.facts.kind == Kind::Directory {
        return Action::Refuse("the destination is a directory, the source is not");
    }
    if there.facts.is_same(source) {
        return Action::Refuse("source and destination are the same file");
    }
    if there.lost || !agrees(source, &there.facts) {
        return copy();
    }
    if checksum {
        return Action::Compare;
    }
    match known.and_then(|known| known.done.as_ref()).filter(|done| done.stamp == stamp) {
        Some(done) if !done.trusted => Action::CheckRecorded(done.sum),
        Some(_) | None => Action::Skip,
    }
}

/// For anything else but directories.
pub fn special(source: &Facts, there: Option<&There>, same_target: bool) -> Action {
    match there {
        None => Action::Copy,
        Some(there) if there.facts.kind == Kind::Directory => {
            Action::Refuse("the destination is a directory, the source is not")
        }
        Some(there) if there.facts.is_same(source) => {
            Action::Refuse("source and destination are the same file")
        }
        Some(there)
            if there.facts.kind == source.kind
                && there.facts.mtime == source.mtime
                && there.facts.rdev == source.rdev
                && same_target =>
        {
            Action::Skip
        }
        Some(_) => Action::Copy,
    }
}

/// Whether what was copied may be trusted: the source did not change while it was read.
pub fn unchanged(before: &Stamp, after: &Stamp) -> bool {
    before == after
}

fn agrees(source: &Facts, there: &Facts) -> bool {
    there.kind == Kind::Regular && there.size == source.size && there.mtime == source.mtime
}

#[cfg(test)]
mod tests {
    //! Goal: nothing is skipped that is not there, and nothing is trusted that a power cut may have taken. Method: each
    //! rule with the facts that just fulfil it and just do not.
    use types::Timestamp;

    use super::*;
    use crate::stage::known::{Begun, Done};

    fn facts(ino: u64) -> Facts {
        let time = |sec| Timestamp { sec, nsec: 5 };
        Facts {
            kind: Kind::Regular,
            dev: 1,
            ino,
            links: 1,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 10,
            atime: time(1),
            mtime: time(2),
            ctime: time(3),
        }
    }
    fn there() -> There {
        There { facts: facts(9), lost: false }
    }
    fn known(begun: bool, done: Option<bool>) -> KnownFile {
        let stamp = facts(1).stamp();
        KnownFile {
            begun: begun.then(|| Begun { stamp, way: Vec::new() }),
            pieces: Default::default(),
            done: done.map(|trusted| Done { stamp, sum: 77, trusted, durable: false }),
        }
    }
    fn decide(there: Option<There>, known: Option<KnownFile>, checksum: bool) -> Action {
        regular(&facts(1), there.as_ref(), known.as_ref(), checksum)
    }

    #[test]
    fn what_is_not_there_is_copied() {
        assert_eq!(decide(None, None, false), Action::Copy);
        assert_eq!(decide(None, Some(known(true, None)), false), Action::Resume);
        let mut other = known(true, None);
        other.begun.as_mut().unwrap().stamp.ctime.nsec += 1;
        assert_eq!(decide(None, Some(other), false), Action::Copy, "another version was begun");
        // Done before, and removed since.
        assert_eq!(decide(None, Some(known(false, Some(true))), false), Action::Copy);
    }

    #[test]
    fn what_agrees_is_skipped_or_checked() {
        assert_eq!(decide(Some(there()), None, false), Action::Skip);
        assert_eq!(decide(Some(there()), None, true), Action::Compare);
        assert_eq!(decide(Some(there()), Some(known(false, Some(true))), false), Action::Skip);
        assert_eq!(decide(Some(there()), Some(known(false, Some(false))), false), Action::CheckRecorded(77));
        let lost = There { lost: true, ..there() };
        assert_eq!(decide(Some(lost), Some(known(false, Some(true))), false), Action::Copy);
    }

    #[test]
    fn what_differs_is_copied() {
        type Change = fn(&mut Facts);
        let changes: [Change; 4] =
            [|f| f.size += 1, |f| f.mtime.nsec += 1, |f| f.mtime.sec -= 1, |f| f.kind = Kind::Symlink];
        for change in changes {
            let mut other = there();
            change(&mut other.facts);
            assert_eq!(decide(Some(other), None, false), Action::Copy);
            assert_eq!(decide(Some(other), Some(known(true, None)), true), Action::Resume);
        }
        let mut directory = there();
        directory.facts.kind = Kind::Directory;
        assert!(matches!(decide(Some(directory), None, false), Action::Refuse(_)));
        let same = There { facts: facts(1), lost: false };
        assert!(matches!(decide(Some(same), None, true), Action::Refuse(_)));
    }

    #[test]
    fn links_and_devices_are_compared_by_what_they_are() {
        let mut link = facts(1);
        link.kind = Kind::Symlink;
        let mut there = there();
        there.facts.kind = Kind::Symlink;
        assert_eq!(special(&link, None, false), Action::Copy);
        assert_eq!(special(&link, Some(&there), true), Action::Skip);
        assert_eq!(special(&link, Some(&there), false), Action::Copy);
        there.facts.kind = Kind::Fifo;
        assert_eq!(special(&link, Some(&there), true), Action::Copy);
        there.facts.kind = Kind::Directory;
        assert!(matches!(special(&link, Some(&there), true), Action::Refuse(_)));
    }
}
