//! Directories that are spread, as far as this mount was told: a request for a name in one goes to the part in which the name is.
//!
//! - I-SPREADS-1: where to ask is only remembered. Whoever is asked wrongly says so, and does nothing of it: then it is learned anew.
//! - I-SPREADS-2: what a part said of itself is used for [`SAID_FOR`] at the most, counted from when it was asked, and never after this mount changed
//!   something there: then it is asked anew.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use lease::coherence::rights::Key;
use parking_lot::Mutex;
use proto::{Request, spread::Over};
use types::{Attr, Ino};

/// Directories that are remembered; beyond, all are learned anew. Some 64 bytes each, and 200 for each part.
const KNOWN_MAX: usize = 4096;
/// What other clients change is in attributes of a directory that is spread after so long at the latest.
const SAID_FOR: Duration = Duration::from_secs(1);

struct Part {
    whole: u64,
    /// Of the last change by this mount.
    changed: u64,
    /// And when it was asked.
    said: Option<(Attr, Instant)>,
}

/// A question to a part that is about to be asked.
#[derive(Clone, Copy)]
pub(crate) struct Asking {
    asked: Instant,
    /// Of the last change, of whichever part.
    changed: u64,
}

/// A part, and what it said of itself a moment ago.
pub(crate) struct Said {
    pub part: Ino,
    pub attr: Option<Attr>,
}

#[derive(Default)]
struct Known {
    over: HashMap<u64, Over>,
    parts: HashMap<Ino, Part>,
    /// Of what happened last: changes, parts that were learned.
    number: u64,
}

impl Known {
    fn forget(&mut self, dir: u64) {
        if let Some(over) = self.over.remove(&dir) {
            for part in over.parts() {
                self.parts.remove(&part);
            }
        }
    }

    fn clear(&mut self) {
        self.over.clear();
        self.parts.clear();
    }

    fn change(&mut self, part: Ino) {
        if let Some(part) = self.parts.get_mut(&part) {
            (part.changed, part.said) = (self.number, None);
        }
    }
}

#[derive(Default)]
pub(crate) struct Spreads {
    known: Mutex<Known>,
    /// Times that what is known has changed.
    learned: AtomicU64,
}

impl Spreads {
    pub(crate) fn of(&self, dir: u64) -> Option<Over> {
        self.known.lock().over.get(&dir).copied()
    }

    pub(crate) fn learn(&self, dir: u64, over: Option<Over>) {
        let mut known = self.known.lock();
        known.forget(dir);
        if let Some(over) = over {
            if known.over.len() >= KNOWN_MAX {
                known.clear();
            }
            known.number += 1;
            let changed = known.number;
            known.parts.extend(over.parts().map(|part| (part, Part { whole: dir, changed, said: None })));
            known.over.insert(dir, over);
        }
        self.learned.fetch_add(1, Ordering::AcqRel);
    }

    /// Times that what is known has changed.
    pub(crate) fn learned(&self) -> u64 {
        self.learned.load(Ordering::Acquire)
    }

    /// The directory that a program names, whose part this may be.
    pub(crate) fn whole_of(&self, part: Ino) -> Ino {
        let whole = self.known.lock().parts.get(&part).map(|part| part.whole);
        whole.and_then(Ino::from_raw).unwrap_or(part)
    }

    /// To be called before parts are asked.
    pub(crate) fn ask(&self, now: Instant, over: &Over) -> (Asking, Vec<Said>) {
        let known = self.known.lock();
        let lately =
            |part: &Part| part.said.filter(|(_, asked)| now < *asked + SAID_FOR).map(|(attr, _)| attr);
        let said = over.parts().map(|ino| Said { part: ino, attr: known.parts.get(&ino).and_then(lately) });
        (Asking { asked: now, changed: known.number }, said.collect())
    }

    /// The answer of a part; nothing of what this mount changed meanwhile.
    pub(crate) fn heard(&self, asking: Asking, ino: Ino, attr: Attr) {
        if let Some(part) = self.known.lock().parts.get_mut(&ino)
            && part.changed <= asking.changed
            && part.said.is_none_or(|(_, asked)| asked < asking.asked)
        {
            part.said = Some((attr, asking.asked));
        }
    }

    /// This mount changed these: parts in which there are names of them, and all of a directory that was changed without a name.
    pub(crate) fn changed(&self, keys: &[Key]) {
        let mut known = self.known.lock();
        known.number += 1;
        let names_in = |ino: &Ino| keys.iter().any(|key| matches!(key, Key::Entry { dir, .. } if dir == ino));
        for key in keys {
            match key {
                Key::Entry { dir, name } => {
                    if let Some(part) = known.over.get(&dir.get()).map(|over| over.part_of(name)) {
                        known.change(part);
                    }
                }
                Key::Inode(ino) if !names_in(ino) => {
                    let parts = known.over.get(&ino.get()).map(Over::parts);
                    parts.into_iter().flatten().for_each(|part| known.change(part));
                }
                Key::Inode(_) => (),
            }
        }
    }

    /// Where its server knows the name: in the directory, or in a part of it.
    pub(crate) fn place(&self, dir: Ino, name: &[u8]) -> Ino {
        self.of(dir.get()).map_or(dir, |over| over.part_of(name))
    }

    /// Has the request be about the parts. Returns the directories whose places they took.
    pub(crate) fn enter<R: Request>(&self, request: &mut R) -> Vec<u64> {
        let mut entered = Vec::new();
        request.directories(&mut |dir, name| {
            if let Some(name) = name.filter(|name| *name != b"." && *name != b"..")
                && let Some(over) = self.of(*dir)
            {
                entered.push(*dir);
                *dir = over.part_of(name).get();
            }
        });
        entered
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what parts said of themselves is used for as long as it may be, and not over a change of this mount. Method: questions, answers and changes in
    //! all orders that matter.
    use proto::spread::SpreadOver;
    use types::{FileKind, ProjectId, Timestamp};

    use super::*;

    const DIR: Ino = match Ino::from_raw(7 << 40 | 1) {
        Some(dir) => dir,
        None => Ino::ROOT,
    };

    fn spread() -> (Spreads, Over) {
        let over = Over::new(&SpreadOver { first: 300, bits: 2, key: vec![7; 16] }).unwrap().unwrap();
        let spreads = Spreads::default();
        spreads.learn(DIR.get(), Some(over));
        (spreads, over)
    }

    fn attr(ino: Ino, nlink: u32) -> Attr {
        let time = Timestamp { sec: 1, nsec: 0 };
        Attr {
            ino,
            kind: FileKind::Directory,
            mode: 0o755,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            project: ProjectId(0),
        }
    }

    fn said(spreads: &Spreads, over: &Over, now: Instant) -> Vec<Option<u32>> {
        spreads.ask(now, over).1.iter().map(|said| said.attr.map(|attr| attr.nlink)).collect()
    }

    /// All are asked then, and say that.
    fn hear_all(spreads: &Spreads, over: &Over, now: Instant, nlink: u32) {
        let asking = spreads.ask(now, over).0;
        over.parts().for_each(|part| spreads.heard(asking, part, attr(part, nlink)));
    }

    #[test]
    fn what_was_said_is_used_for_a_moment() {
        let (spreads, over) = spread();
        let now = Instant::now();
        assert_eq!(said(&spreads, &over, now), [None; 4]);
        hear_all(&spreads, &over, now, 2);
        let last = now + SAID_FOR - Duration::from_nanos(1);
        assert_eq!(said(&spreads, &over, last), [Some(2); 4]);
        assert_eq!(said(&spreads, &over, now + SAID_FOR), [None; 4]);
        // An answer that was asked for earlier and came later.
        let early = spreads.ask(now, &over).0;
        hear_all(&spreads, &over, last, 3);
        over.parts().for_each(|part| spreads.heard(early, part, attr(part, 2)));
        assert_eq!(said(&spreads, &over, last), [Some(3); 4]);
        spreads.learn(DIR.get(), Some(over));
        assert_eq!(said(&spreads, &over, last), [None; 4], "it is learned anew");
    }

    #[test]
    fn nothing_is_used_over_a_change() {
        let (spreads, over) = spread();
        let now = Instant::now();
        let name = Key::Entry { dir: DIR, name: (*b"name").into() };
        let at = over.parts().position(|part| part == over.part_of(b"name")).unwrap();
        let but_its_part = |nlink| {
            let mut all = [Some(nlink); 4];
            all[at] = None;
            all
        };
        hear_all(&spreads, &over, now, 2);
        let asked = spreads.ask(now, &over).0;
        spreads.changed(&[name.clone(), Key::Inode(DIR)]);
        assert_eq!(said(&spreads, &over, now), but_its_part(2));
        // Who had asked before it had ended may have seen what was there before.
        over.parts().for_each(|part| spreads.heard(asked, part, attr(part, 2)));
        assert_eq!(said(&spreads, &over, now), but_its_part(2));
        hear_all(&spreads, &over, now, 3);
        assert_eq!(said(&spreads, &over, now)[at], Some(3));
        spreads.changed(&[Key::Inode(Ino::ROOT), Key::Entry { dir: Ino::ROOT, name: (*b"name").into() }]);
        assert!(said(&spreads, &over, now).iter().all(Option::is_some));
        // All of it: its times, its owner.
        spreads.changed(&[Key::Inode(DIR)]);
        assert_eq!(said(&spreads, &over, now), [None; 4]);
    }
}
