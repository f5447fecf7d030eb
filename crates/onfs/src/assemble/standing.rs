//! Which tier a file is promised, and whether it is there: the one place that says so, for `onfs ls`, `flush` and `gate`.

use std::collections::HashMap;

use ::link::Trouble;
use linked::{Linked, Waiting};
use mds::Found;
use types::{Errno, FileKind, Ino, TierId};

use super::{link, parts::Parts};
use crate::control::{DataState, EntryReport, LinkState};

/// Where a file's bytes have to be for the mount to have kept its word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Promise {
    /// Nowhere: its directory is transient.
    Nothing,
    /// In a tier of ours that outlives the machine.
    Device,
    /// In the linked directory, with its name and its attributes.
    Nearline,
    /// There is no tier that outlives the machine.
    Nowhere,
}

/// Which tier files are promised whose policy is this.
pub(super) fn promised(parts: &Parts, transient: bool) -> Promise {
    let devices = parts.config.ssd.is_some() || parts.config.nearline.is_some();
    match (&parts.linked, transient) {
        (_, true) => Promise::Nothing,
        (Some(_), false) => Promise::Nearline,
        (None, false) if devices => Promise::Device,
        (None, false) => Promise::Nowhere,
    }
}

/// States of many files: what they have in common is asked for once.
pub(super) struct Standings<'a> {
    parts: &'a Parts,
    /// Numbers of the conflicts whose kept file it is.
    conflicts: HashMap<Ino, u64>,
}

impl<'a> Standings<'a> {
    pub fn new(parts: &'a Parts) -> Result<Standings<'a>, Errno> {
        let conflicts = parts.linked.as_ref().map_or(Ok(Vec::new()), |linked| linked.conflicts())?;
        let conflicts = conflicts.into_iter().map(|(number, conflict)| (conflict.ino, number)).collect();
        Ok(Standings { parts, conflicts })
    }

    /// What is said of it, and what it is promised.
    pub fn of(&self, found: &Found, name: String) -> Result<(EntryReport, Promise), Errno> {
        let attr = &found.attr;
        let waiting = self.parts.linked.as_ref().and_then(|linked| linked.waiting_of(attr.ino));
        let mut entry = EntryReport {
            name,
            ino: attr.ino.get(),
            kind: kind(attr.kind).to_owned(),
            size_bytes: attr.size,
            memory_bytes: 0,
            ssd_bytes: 0,
            nearline_bytes: 0,
            state: DataState::Other,
            open_for_writing: false,
            why: String::new(),
        };
        let glance = match attr.kind {
            FileKind::Regular => Some(self.parts.client.glance(found)?),
            FileKind::Directory
            | FileKind::Symlink
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => None,
        };
        let promise = promised(self.parts, glance.is_some_and(|glance| glance.transient));
        if let Some(glance) = &glance {
            entry.size_bytes = glance.size;
            entry.memory_bytes = glance.bytes[TierId::Memory.index()];
            entry.ssd_bytes = glance.bytes[TierId::Ssd.index()];
            entry.nearline_bytes = glance.bytes[TierId::Nearline.index()];
            entry.open_for_writing = glance.written;
        }
        let conflict = self.conflicts.get(&attr.ino).copied();
        entry.state = state(promise, glance.as_ref(), waiting.as_ref(), conflict.is_some());
        entry.why = self.why(entry.state, waiting.as_ref(), conflict);
        Ok((entry, promise))
    }

    fn why(&self, state: DataState, waiting: Option<&Waiting>, conflict: Option<u64>) -> String {
        match state {
            DataState::Refused | DataState::Unpublished | DataState::Pending | DataState::Memory => {
                match (waiting, &self.parts.linked) {
                    (Some(waiting), Some(linked)) => why_waiting(linked, waiting),
                    (Some(_) | None, _) => String::new(),
                }
            }
            DataState::Conflict => {
                conflict.map_or(String::new(), |number| format!("number {number} of onfs conflicts"))
            }
            DataState::Lost => "it was only in memory, and the memory is gone".to_owned(),
            DataState::Unsure => "a device failed to make it durable: see the log".to_owned(),
            DataState::Transient
            | DataState::Safe
            | DataState::Published
            | DataState::Stub
            | DataState::Other => String::new(),
        }
    }
}

/// What keeps something from the linked directory; empty if it is only its turn.
pub(super) fn why_waiting(linked: &Linked, waiting: &Waiting) -> String {
    match (waiting.trouble, linked.current_trouble()) {
        (Some(Trouble::Refused(errno)), _) => format!("the linked directory refuses it: {errno}"),
        (_, Some(trouble)) => match link::state(linked) {
            LinkState::Stranger => "another directory is in place of the linked one".to_owned(),
            LinkState::Unmounted => "an empty directory is in place of the linked one".to_owned(),
            LinkState::Unreachable => "the linked directory cannot be reached".to_owned(),
            LinkState::Ok | LinkState::Trouble => {
                format!("the linked directory is in trouble: {} ({})", trouble.what, trouble.errno)
            }
        },
        (Some(Trouble::Conflict(_) | Trouble::Gone), None) => {
            "something was changed there: its directory is looked at first".to_owned()
        }
        (Some(Trouble::Later), None) => "an error there: it is tried again".to_owned(),
        (None, None) => String::new(),
    }
}

fn state(
    promise: Promise,
    glance: Option<&ds::Glance>,
    waiting: Option<&Waiting>,
    conflict: bool,
) -> DataState {
    let at_risk = glance.is_some_and(|glance| glance.at_risk > 0);
    if glance.is_some_and(|glance| glance.lost_saus > 0) {
        return DataState::Lost;
    }
    if promise != Promise::Nothing && glance.is_some_and(|glance| glance.distrusted) {
        return DataState::Unsure;
    }
    match (promise, waiting) {
        (Promise::Nothing, _) if at_risk => DataState::Transient,
        (Promise::Device | Promise::Nowhere, _) if at_risk => DataState::Memory,
        (Promise::Nothing | Promise::Device | Promise::Nowhere, _) => {
            if glance.is_some() {
                DataState::Safe
            } else {
                DataState::Other
            }
        }
        (Promise::Nearline, Some(Waiting { trouble: Some(Trouble::Refused(_)), .. })) => DataState::Refused,
        (Promise::Nearline, _) if conflict => DataState::Conflict,
        (Promise::Nearline, _) if at_risk => DataState::Memory,
        (Promise::Nearline, Some(waiting)) if waiting.data => DataState::Unpublished,
        (Promise::Nearline, Some(_)) => DataState::Pending,
        (Promise::Nearline, None) => match glance {
            None => DataState::Other,
            Some(glance) if glance.bytes[TierId::Memory.index()] + glance.bytes[TierId::Ssd.index()] > 0 => {
                DataState::Published
            }
            Some(glance) if glance.size > 0 => DataState::Stub,
            Some(_) => DataState::Published,
        },
    }
}

const fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => "special",
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each word says what it says, the worst first. Method: glances with one thing wrong.
    use super::*;

    fn glance(memory: u64, ssd: u64, nearline: u64, at_risk: u64) -> ds::Glance {
        let size = memory.max(ssd).max(nearline);
        ds::Glance { size, bytes: [memory, ssd, nearline], at_risk, ..ds::Glance::default() }
    }

    #[test]
    fn a_state_follows_from_where_the_bytes_are_promised() {
        use DataState as S;
        let both = glance(9, 9, 0, 0);
        for (promise, glance, is) in [
            (Promise::Nothing, glance(9, 0, 0, 9), S::Transient),
            (Promise::Nothing, both, S::Safe),
            (Promise::Device, glance(9, 0, 0, 9), S::Memory),
            (Promise::Device, both, S::Safe),
            (Promise::Nowhere, glance(9, 0, 0, 9), S::Memory),
            (Promise::Nearline, glance(9, 0, 0, 9), S::Memory),
            (Promise::Nearline, glance(0, 9, 9, 0), S::Published),
            (Promise::Nearline, glance(0, 0, 9, 0), S::Stub),
            (Promise::Nearline, glance(0, 0, 0, 0), S::Published),
        ] {
            assert_eq!(state(promise, Some(&glance), None, false), is, "{promise:?} {glance:?}");
            let lost = ds::Glance { lost_saus: 1, ..glance };
            assert_eq!(state(promise, Some(&lost), None, true), S::Lost);
            let unsure = ds::Glance { distrusted: true, ..glance };
            let expected = if promise == Promise::Nothing { is } else { S::Unsure };
            assert_eq!(state(promise, Some(&unsure), None, false), expected);
        }
        assert_eq!(state(Promise::Nearline, Some(&both), None, true), S::Conflict);
        assert_eq!(state(Promise::Nearline, None, None, false), S::Other);
    }
}
