//! Looks at many files of one directory together: who asks for one after another (`ls -l`, `git status`, `find -size`) would
//! otherwise wait for the back end at each. Only what is as it was is settled here; the rest is looked at by itself.
//!
//! Who does so is recognised by the number of looks in one directory; then the next of its files are looked at with his, twice as many
//! each time: never more than twice what he asks for. Who walks a tree of small directories is recognised by his looks in one of
//! them: when he lists it, its neighbours and what is below it, their files are looked at with the listing.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use link::{Change as Difference, LinkRecord, compare};
use types::{Errno, FileKind, Ino};

use crate::{Linked, looks::At};

/// Looks in one directory before others are made with them.
const ALONE: usize = 8;
/// Files that one answer of a listing has, about.
const LISTED: usize = 64;
/// Looks that are made together, at the most.
const TOGETHER: usize = 1024;
/// Directories in which looks are counted; with more the count begins anew everywhere.
const DIRECTORIES: usize = 1024;

/// So long somebody who looked at files here is taken to go on. What is looked at with a listing does not count, or the
/// next who lists only names would be taken for him.
const WALK: Duration = Duration::from_secs(10);

/// How the files of directories are looked at, one after another.
#[derive(Default)]
pub(crate) struct Traversals(HashMap<Ino, Traversal>);

struct Traversal {
    made: usize,
    /// Names in the directory's order up to here were looked at.
    cookie: u64,
    /// The last look at a file here, or in a directory just below.
    last: Instant,
}

impl Traversals {
    fn of(&mut self, dir: Ino, now: Instant) -> &mut Traversal {
        if self.0.len() >= DIRECTORIES && !self.0.contains_key(&dir) {
            self.0.clear();
        }
        let traversal = self.0.entry(dir).or_insert(Traversal { made: 0, cookie: 0, last: now });
        traversal.last = now;
        traversal
    }

    /// One more look in this directory: after which name, and at how many others.
    fn next(&mut self, now: Instant, dir: Ino, parent: Ino) -> Option<(u64, usize)> {
        self.of(parent, now);
        let traversal = self.of(dir, now);
        traversal.made += 1;
        (traversal.made > ALONE).then_some((traversal.cookie, traversal.made.min(TOGETHER)))
    }

    /// Were files looked at in one of these?
    fn is_walked(&self, now: Instant, dirs: [Ino; 2]) -> bool {
        let lately = |dir| {
            self.0.get(&dir).is_some_and(|traversal| now.saturating_duration_since(traversal.last) < WALK)
        };
        dirs.into_iter().any(lately)
    }

    /// They were looked at, up to here; at the end it begins anew.
    fn went(&mut self, dir: Ino, looked: usize, cookie: u64) {
        if let Some(traversal) = self.0.get_mut(&dir) {
            traversal.made += looked;
            traversal.cookie = cookie;
        }
    }
}

/// A file at which a look is due, and what was agreed on.
type Due = (Ino, LinkRecord);

impl Linked {
    /// Is a look due at one of the next files of a directory, as somebody lists it?
    pub fn are_listed_due(&self, dir: Ino, cookie: u64) -> bool {
        let Ok(parent) = self.ledger.mds.parent(dir) else { return false };
        // The kernel itself asks for attributes behind the beginning when somebody wants them.
        if cookie == 0 && !self.traversals.lock().is_walked(Instant::now(), [dir, parent]) {
            return false;
        }
        let listed = self.next_files(dir, cookie, LISTED);
        listed.is_ok_and(|(_, files)| files.into_iter().any(|ino| self.is_due(ino)))
    }

    /// The next files of a directory that somebody is listing with their attributes.
    pub fn visit_listed(&self, dir: Ino, cookie: u64) -> Result<(), Errno> {
        let (_, files) = self.next_files(dir, cookie, TOGETHER)?;
        let due = self.due_of(dir, files)?;
        self.look_together(dir, due)
    }

    /// A look at this file is about to be made. If many were made in its directory, it is made with others: `true` if that
    /// settled it.
    pub(crate) fn look_with_others(&self, ino: Ino, record: &LinkRecord) -> Result<bool, Errno> {
        let dir = record.place.dir;
        let parent = self.ledger.mds.parent(dir)?;
        let next = self.traversals.lock().next(Instant::now(), dir, parent);
        let Some((cookie, most)) = next else { return Ok(false) };
        let (next, mut files) = self.next_files(dir, cookie, most)?;
        files.retain(|other| *other != ino);
        let mut due = self.due_of(dir, files)?;
        self.traversals.lock().went(dir, due.len(), next);
        due.push((ino, record.clone()));
        self.look_together(dir, due)?;
        Ok(!self.is_due(ino))
    }

    /// Files of a directory in its order, and where to go on. Directories are looked at when somebody goes there.
    fn next_files(&self, dir: Ino, cookie: u64, most: usize) -> Result<(u64, Vec<Ino>), Errno> {
        let (mut next, mut found) = (0, Vec::new());
        self.ledger.mds.readdir(dir, cookie, &mut |entry| {
            if entry.kind != FileKind::Directory {
                found.push(entry.ino);
            }
            if found.len() < most {
                return ControlFlow::Continue(());
            }
            next = entry.cookie;
            ControlFlow::Break(())
        })?;
        Ok((next, found))
    }

    /// Those at which a look is due. What has no record is ours alone, and needs none.
    fn due_of(&self, dir: Ino, files: Vec<Ino>) -> Result<Vec<Due>, Errno> {
        let mut due = Vec::new();
        for ino in files.into_iter().filter(|ino| self.is_due(*ino)) {
            match self.record_of(ino)? {
                Some(record) if record.place.dir == dir => due.push((ino, record)),
                Some(_) => {}
                None => self.looks.note(At::Itself(ino)),
            }
        }
        Ok(due)
    }

    fn look_together(&self, dir: Ino, due: Vec<Due>) -> Result<(), Errno> {
        if due.is_empty() {
            return Ok(());
        }
        let way = self.way_of_dir(dir)?;
        let names: Vec<Vec<u8>> = due.iter().map(|(_, record)| record.place.name.clone()).collect();
        let found = self.back.look_at(&way, &names)?;
        for ((ino, record), found) in due.iter().zip(found) {
            // The record is from before the look: a step of ours in between shows as a difference.
            if compare(&record.seen, found.as_ref().map(|found| &found.seen)) == Difference::Nothing {
                self.looks.note(At::Itself(*ino));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: who looks at few files waits for few, who looks at all does not wait for each. Method: a directory of many names.
    use super::*;

    #[test]
    fn looks_are_few_for_few_and_double_for_many() {
        let (now, dir) = (Instant::now(), Ino::ROOT);
        let mut traversals = Traversals::default();
        for _ in 0..ALONE {
            assert_eq!(traversals.next(now, dir, dir), None);
        }
        let (mut asked, mut made) = (ALONE, ALONE);
        while made < 100_000 {
            let (cookie, most) = traversals.next(now, dir, dir).unwrap();
            assert!(most <= TOGETHER && (cookie == 0) == (made == asked));
            asked += 1;
            made += 1 + most;
            traversals.went(dir, most, made as u64);
        }
        assert!(asked < 200, "{asked}");
    }

    #[test]
    fn a_walk_is_known_by_its_last_directory_for_a_while() {
        let now = Instant::now();
        let [dir, parent, other] = [2, 3, 4].map(|n| Ino::from_raw((1 << 40) | n).unwrap());
        let mut traversals = Traversals::default();
        traversals.next(now, dir, parent);
        // One below it, one beside it, one elsewhere.
        assert!(traversals.is_walked(now, [other, dir]));
        assert!(traversals.is_walked(now, [other, parent]));
        assert!(!traversals.is_walked(now, [other, other]));
        assert!(!traversals.is_walked(now + WALK, [other, dir]));
    }
}
