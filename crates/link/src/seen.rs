//! What the back end had when we last looked or wrote, and what has changed since.
//!
//! A look that finds the same times as the last one proves that nothing was written in between only if a write would have
//! given other times. Times come in steps (a clock tick of the kernel, a whole second on old file systems): what is written
//! after a look, in the same step, leaves no trace. A write sets both times to the clock, so it is enough that *one* of the two
//! was older than the look by more than a step; a version of ours, whose modification time is set to our own, is so at once.
//! Where neither was, the look is [`Proof::Racy`]: it is remembered as such, and the next look that differs in nothing says
//! [`Change::Unproven`], which costs a clean file that its copy is read again, and a directory that it is listed again. The look
//! after that is late enough.
//!
//! Once somebody says that the tree was moved to another place ([`Seen::elsewhere`]), numbers and creation times say nothing:
//! what has the name, the kind, the size and the modification time is taken for the same, and a directory is listed again.
//!
//! Not seen: a write whose modification time is then set back to what it was before, to the nanosecond. It changes the ctime
//! alone, as every change of attributes does.

use std::time::Duration;

use types::{FileKind, Timestamp};

/// What a look is worth as the base of later comparisons.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Proof {
    /// An equal look later proves that no byte and no name changed.
    Firm = 1,
    /// It does not: the look came too soon after the times that it found.
    Racy = 2,
    /// The bytes were compared, and are not those that we agreed on, whatever the times say.
    Void = 3,
}

impl Proof {
    pub const fn from_u8(n: u8) -> Option<Proof> {
        Some(match n {
            1 => Proof::Firm,
            2 => Proof::Racy,
            3 => Proof::Void,
            _ => return None,
        })
    }
}

/// The clock that gives the back end's times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    /// Not later than the back end's clock was when the look began: the newest time that it gave us before, or our clock
    /// less how far the two may be apart.
    pub at: Timestamp,
    /// The step of its times.
    pub step: Duration,
}

/// Of an object whose number is not known. No file system gives it to a file.
const UNKNOWN: u64 = 0;

/// One object of the back end, as a look found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    pub kind: FileKind,
    /// Its inode number there.
    pub fileid: u64,
    /// Its creation, where the back end knows it: tells a number that is used again.
    pub birth: Option<Timestamp>,
    pub size: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// Without the type.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub proof: Proof,
}

impl Seen {
    /// The same, with what a look under this clock proves.
    pub fn looked(self, clock: Clock) -> Seen {
        let older = self.mtime.min(self.ctime);
        let firm = older.plus(clock.step) < clock.at;
        Seen { proof: if firm { Proof::Firm } else { Proof::Racy }, ..self }
    }

    /// The same object, be it changed or not. Of a back end that knows no creation times a number that was used again for
    /// the same kind passes for it; its times then show it as changed.
    pub fn is_same_object(&self, other: &Seen) -> bool {
        let born_apart = self.birth.zip(other.birth).is_some_and(|(a, b)| a != b);
        let unknown = !self.is_numbered() || !other.is_numbered();
        self.kind == other.kind && (self.fileid == other.fileid || unknown) && !born_apart
    }

    /// As [`Seen::is_same_object`], and by its number: a name alone does not make it so.
    pub fn is_surely(&self, other: &Seen) -> bool {
        self.is_numbered() && other.is_numbered() && self.is_same_object(other)
    }

    /// Is its number known?
    pub fn is_numbered(&self) -> bool {
        self.fileid != UNKNOWN
    }

    /// The tree that it is in was copied or moved to another file system, with its times: under its name there it has another
    /// number. What a directory has there nobody has seen.
    pub fn elsewhere(self) -> Seen {
        let unseen = self.kind == FileKind::Directory && self.proof == Proof::Firm;
        let proof = if unseen { Proof::Racy } else { self.proof };
        Seen { fileid: UNKNOWN, birth: None, proof, ..self }
    }
}

/// What became of an object since a look. Each says all that those before it say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Change {
    Nothing,
    /// Mode, owner, links, extended attributes: what only the ctime tells counts here.
    Attributes,
    /// No byte need have changed, but the last look cannot prove it.
    Unproven,
    /// The bytes; of a directory, its names.
    Data,
    /// Another object of the same kind has the name.
    Replaced,
    /// An object of another kind has the name.
    OtherKind,
    /// The name is free.
    Gone,
}

/// What differs between a look and what the same name has now.
pub fn compare(last: &Seen, now: Option<&Seen>) -> Change {
    let Some(now) = now else { return Change::Gone };
    if last.kind != now.kind {
        return Change::OtherKind;
    }
    if !last.is_same_object(now) {
        return Change::Replaced;
    }
    // How large a directory is says nothing that its times do not say.
    let resized = last.kind != FileKind::Directory && last.size != now.size;
    if resized || last.mtime != now.mtime || last.proof == Proof::Void {
        return Change::Data;
    }
    if last.proof == Proof::Racy {
        return Change::Unproven;
    }
    let attributes = |seen: &Seen| (seen.ctime, seen.mode, seen.uid, seen.gid, seen.nlink);
    // What it is now is to be remembered with its number.
    let known = last.is_numbered() || !now.is_numbered();
    if known && attributes(last) == attributes(now) { Change::Nothing } else { Change::Attributes }
}

/// Whether it is time to look again. A clock that was set back makes it so.
pub fn due(last_look: Option<Timestamp>, now: Timestamp, interval: Duration) -> bool {
    last_look.is_none_or(|last| now < last || now.since(last) >= interval)
}

#[cfg(test)]
mod tests {
    //! Goal: every change is seen for what it is, or not proven to be none. Method: one field at a time, and a back end
    //! whose clock has coarse steps.
    use super::*;
    use proptest::prelude::*;

    fn at(sec: i64) -> Timestamp {
        Timestamp { sec, nsec: 0 }
    }

    fn seen() -> Seen {
        Seen {
            kind: FileKind::Regular,
            fileid: 7,
            birth: Some(at(1)),
            size: 10,
            mtime: at(100),
            ctime: at(100),
            mode: 0o644,
            uid: 1,
            gid: 1,
            nlink: 1,
            proof: Proof::Firm,
        }
    }

    #[test]
    fn each_difference_has_its_name() {
        let old = seen();
        assert_eq!(compare(&old, None), Change::Gone);
        for (now, change) in [
            (old, Change::Nothing),
            (Seen { proof: Proof::Racy, ..old }, Change::Nothing),
            (Seen { birth: None, ..old }, Change::Nothing),
            (Seen { mode: 0o600, ..old }, Change::Attributes),
            (Seen { uid: 2, ..old }, Change::Attributes),
            (Seen { gid: 2, ..old }, Change::Attributes),
            (Seen { nlink: 2, ..old }, Change::Attributes),
            (Seen { ctime: at(101), ..old }, Change::Attributes),
            (Seen { size: 11, ..old }, Change::Data),
            (Seen { mtime: at(99), ..old }, Change::Data),
            (Seen { fileid: 8, ..old }, Change::Replaced),
            (Seen { birth: Some(at(2)), ..old }, Change::Replaced),
            (Seen { kind: FileKind::Directory, ..old }, Change::OtherKind),
            (Seen { kind: FileKind::Directory, fileid: 8, ..old }, Change::OtherKind),
        ] {
            assert_eq!(compare(&old, Some(&now)), change, "{now:?}");
        }
        let racy = Seen { proof: Proof::Racy, ..old };
        assert_eq!(compare(&racy, Some(&old)), Change::Unproven);
        assert_eq!(compare(&racy, Some(&Seen { mode: 0, ..old })), Change::Unproven);
        assert_eq!(compare(&racy, Some(&Seen { size: 0, ..old })), Change::Data);
        assert_eq!(compare(&Seen { proof: Proof::Void, ..old }, Some(&old)), Change::Data);
        let dir = Seen { kind: FileKind::Directory, ..old };
        assert_eq!(compare(&dir, Some(&Seen { size: 4096, ..dir })), Change::Nothing);
    }

    /// Goal: after a move of the whole tree a file is known by its name, size and time, a directory is listed, and nothing
    /// else passes for it.
    #[test]
    fn what_was_moved_elsewhere_is_known_by_size_and_time() {
        let moved = seen().elsewhere();
        let copy = Seen { fileid: 99, birth: Some(at(500)), ctime: at(500), ..seen() };
        assert!(moved.is_same_object(&copy) && !moved.is_surely(&copy) && copy.is_surely(&copy));
        assert_eq!(compare(&moved, Some(&copy)), Change::Attributes);
        assert_eq!(compare(&moved, Some(&seen())), Change::Attributes, "its number is to be remembered");
        assert_eq!(compare(&moved, Some(&Seen { size: 1, ..copy })), Change::Data);
        assert_eq!(compare(&moved, Some(&Seen { mtime: at(101), ..copy })), Change::Data);
        assert_eq!(compare(&moved, None), Change::Gone);
        let dir = Seen { kind: FileKind::Directory, ..seen() };
        assert_eq!(compare(&moved, Some(&dir)), Change::OtherKind);
        assert_eq!(
            compare(&dir.elsewhere(), Some(&Seen { kind: FileKind::Directory, ..copy })),
            Change::Unproven
        );
        assert_eq!(
            Seen { proof: Proof::Void, ..dir }.elsewhere().proof,
            Proof::Void,
            "nobody has seen its names"
        );
    }

    #[test]
    fn a_look_is_firm_once_one_time_is_a_step_old() {
        let clock = |sec| Clock { at: at(sec), step: Duration::from_secs(1) };
        assert_eq!(seen().looked(clock(101)).proof, Proof::Racy);
        assert_eq!(seen().looked(clock(102)).proof, Proof::Firm);
        // Published by us just now, with our own time; and a time in the future, set by somebody.
        assert_eq!(Seen { mtime: at(50), ..seen() }.looked(clock(100)).proof, Proof::Firm);
        assert_eq!(Seen { mtime: at(9999), ..seen() }.looked(clock(102)).proof, Proof::Firm);
        assert_eq!(Seen { mtime: at(9999), ctime: at(9999), ..seen() }.looked(clock(102)).proof, Proof::Racy);
    }

    #[test]
    fn looks_are_due_after_the_interval() {
        let span = Duration::from_secs(5);
        assert!(due(None, at(0), span));
        assert!(!due(Some(at(10)), at(14), span));
        assert!(due(Some(at(10)), at(15), span));
        assert!(due(Some(at(10)), at(9), span));
        assert!(due(Some(at(10)), at(10), Duration::ZERO));
    }

    proptest! {
        /// A back end with steps of one second, writes and looks at any moment, and a clock that is known with an error:
        /// whenever the comparison says that no byte changed, none did.
        #[test]
        fn no_write_hides_behind_equal_times(
            moments in prop::collection::vec((0u64..700, any::<bool>(), prop::option::weighted(0.2, -5i64..5)), 1..40),
            behind in 0u64..1500,
        ) {
            let mut now_ms = 20_000u64;
            let tick = |ms: u64| Timestamp { sec: (ms / 1000) as i64, nsec: 0 };
            let mut object = Seen { mtime: tick(now_ms), ctime: tick(now_ms), ..seen() };
            let (mut written, mut last) = (0, None::<(Seen, u32)>);
            for (passed, look, set_time) in moments {
                now_ms += passed;
                if look {
                    let known = now_ms.saturating_sub(behind);
                    let exact = Timestamp { sec: (known / 1000) as i64, nsec: (known % 1000) as u32 * 1_000_000 };
                    let now = object.looked(Clock { at: exact, step: Duration::from_secs(1) });
                    if let Some((before, then)) = last
                        && compare(&before, Some(&now)) < Change::Unproven
                    {
                        prop_assert_eq!(then, written);
                    }
                    last = Some((now, written));
                } else if let Some(shift) = set_time {
                    // As cp -p and rsync: the bytes are written, and the time is set to one of its own, never the same twice.
                    written += 1;
                    object.mtime = Timestamp { sec: (now_ms / 1000) as i64 + shift, nsec: written };
                    object.ctime = tick(now_ms);
                } else {
                    written += 1;
                    (object.mtime, object.ctime) = (tick(now_ms), tick(now_ms));
                }
            }
        }
    }
}
