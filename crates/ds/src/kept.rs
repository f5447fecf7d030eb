//! Files of a linked near-line that are kept open: of objects that were changed here while near-line alone has other SAUs of
//! them. Who replaces or unlinks such a file takes its name; its bytes stay for as long as it is open.
//!
//! - A file is kept from the first change until near-line has a version of ours, or nothing of the object is there any more.
//! - One whose bytes were changed in place is let go: what we have and what it has are not of one file.
//! - It is only what can be kept: a death of the daemon lets go of all. So what is missing is fetched, too, where there is room.

use crate::{
    DataServer,
    fetch::{Fetch, Kept},
    filler::Purpose,
    object::{Object, State},
    theirs::Opened,
};
use layout::{SauIndex, SauMap};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use types::{Errno, Ino, TierId, TierSet};

/// A descriptor each: a quarter of the least that a mount has. Above it what is missing is fetched all the same, and every
/// version that is published makes room.
const KEPT_MAX: usize = 256;
/// SAUs of one object that are fetched at once, since nobody waits for them.
const AT_ONCE: usize = 2;
const LOOK: Duration = Duration::from_millis(100);

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct KeptFiles(Mutex<HashMap<Ino, Opened>>);

impl KeptFiles {
    pub fn get(&self, ino: Ino) -> Option<Opened> {
        self.0.lock().get(&ino).cloned()
    }

    /// One that is kept already stays: the object's SAUs are of that.
    pub fn put(&self, ino: Ino, file: Opened) {
        let mut kept = self.0.lock();
        if kept.len() < KEPT_MAX {
            kept.entry(ino).or_insert(file);
        } else if !kept.contains_key(&ino) {
            tracing::warn!(%ino, "too many files of the linked directory are changed in part: of this one, what was never read is lost if it is replaced there");
        }
    }

    /// It is another file now.
    pub fn replace(&self, ino: Ino, file: Opened) {
        if let Some(kept) = self.0.lock().get_mut(&ino) {
            *kept = file;
        }
    }

    pub fn clear(&self) {
        let gone = std::mem::take(&mut *self.0.lock());
        drop(gone);
    }

    pub fn let_go(&self, ino: Ino) {
        // Closing may take its time.
        let gone = self.0.lock().remove(&ino);
        drop(gone);
    }

    /// The file, if its bytes are what they were; one that was changed is let go. An error: nobody can tell now.
    pub fn check(&self, ino: Ino) -> Result<Option<Opened>, Errno> {
        let Some(file) = self.get(ino) else { return Ok(None) };
        let now = file.as_it_is()?;
        if now.is_none() {
            self.let_go(ino);
        }
        Ok(now)
    }
}

impl DataServer {
    /// A program changes the object: their file stays open if SAUs are there alone. Returns whether any is.
    pub fn keep_theirs(&self, object: &Object) -> Result<bool, Errno> {
        let is_missing = {
            let state = object.state.read();
            !state.removed && only_there(&state.map, SauIndex::ZERO).is_some()
        };
        if is_missing && self.kept.get(object.ino).is_none() {
            let file = self.theirs(object)?;
            self.kept.put(object.ino, file);
        }
        Ok(is_missing)
    }

    /// The same of one whose file is open.
    pub(crate) fn keep_open(&self, object: &Object) {
        if self.kept.get(object.ino).is_none()
            && let Some(file) = object.theirs.get()
        {
            self.kept.put(object.ino, file);
        }
    }

    /// Files of theirs that are kept open.
    pub fn files_kept(&self) -> usize {
        self.kept.0.lock().len()
    }

    /// Near-line has all of the object, and nobody changes it.
    pub fn let_theirs_go(&self, ino: Ino) {
        self.kept.let_go(ino);
    }

    /// A version of ours is their file from now on. What of the object is nowhere else is in that one.
    pub(crate) fn keep_next(&self, object: &Object, changed: bool, file: Option<Opened>) {
        match file {
            Some(file) if changed || object.is_open_for_write() => self.kept.replace(object.ino, file),
            Some(_) | None => self.kept.let_go(object.ino),
        }
    }

    /// Copies what near-line alone has to a tier of ours, as long as one has room, and until `stop`. Returns whether that
    /// was all that can be done.
    pub fn fetch_missing(&self, object: &Object, stop: &dyn Fn() -> bool) -> Result<bool, Errno> {
        let mut under_way: VecDeque<Arc<Fetch>> = VecDeque::new();
        let mut next = Some(SauIndex::ZERO);
        loop {
            while under_way.len() < AT_ONCE
                && let Some(from) = next
            {
                let state = object.state.read();
                if state.removed || state.in_place.is_some() || state.mapped.is_some() {
                    return Ok(true);
                }
                let Some(sau) = only_there(&state.map, from) else {
                    next = None;
                    break;
                };
                let Some(fetch) = self.want_missing(object, &state, sau) else { break };
                under_way.push_back(fetch);
                next = SauIndex::new(sau.get() + 1);
            }
            if stop() || self.stopping() {
                return Ok(false);
            }
            let Some(fetch) = under_way.front() else {
                if next.is_none() {
                    return Ok(true);
                }
                // The line is full of others', which end.
                std::thread::sleep(LOOK);
                continue;
            };
            let Some(end) = fetch.wait_for_end(LOOK) else { continue };
            let sau = fetch.sau;
            under_way.pop_front();
            match end {
                Ok(Kept::Yes) => {}
                // Written meanwhile, perhaps: then it is here.
                Ok(Kept::No) if !is_only_there(&object.state.read(), sau) => {}
                Ok(Kept::No) => return Ok(true),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn want_missing(&self, object: &Object, state: &State, sau: SauIndex) -> Option<Arc<Fetch>> {
        self.want(object, state, (sau, 0), Purpose::Missing)
    }

    /// The bytes of the object that are lost, as (offset, length), in order; of an object in use as it is, else as it is
    /// recorded.
    pub fn lost_ranges(&self, ino: Ino, size: u64) -> Result<Vec<(u64, u64)>, Errno> {
        if let Some(object) = self.table.get(ino) {
            let state = object.state.read();
            return Ok(lost_of(&state.map, state.size));
        }
        Ok(self.maps.load(ino)?.map_or_else(Vec::new, |record| lost_of(&record.map, size)))
    }
}

fn is_only_there(state: &State, sau: SauIndex) -> bool {
    state.map.get(sau).valid == TierSet::of(TierId::Nearline)
}

fn only_there(map: &SauMap, from: SauIndex) -> Option<SauIndex> {
    let near = TierSet::of(TierId::Nearline);
    map.iter_from(from).find(|(_, now)| now.valid == near).map(|(sau, _)| sau)
}

fn lost_of(map: &SauMap, size: u64) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (sau, _) in map.iter().filter(|(_, now)| now.lost) {
        let len = u64::from(sau.bytes_within(size));
        match ranges.last_mut() {
            Some(last) if last.0 + last.1 == sau.start() => last.1 += len,
            Some(_) | None => ranges.push((sau.start(), len)),
        }
    }
    ranges.retain(|(_, len)| *len > 0);
    ranges
}
