//! Read-through: what is read of a linked file comes to a tier of ours behind its reader, and ahead of him if he goes from front to
//! back. The core (`tier::RunAhead`) says which SAUs; some threads fetch them.
//!
//! - Readers wait for their bytes, never for the rest of a SAU.
//! - What is fetched has a bound: in threads, in files (the window of the core), and in the daemon's memory.
//! - What somebody waits for goes before what somebody may want, and that before movements.

use crate::{
    DataServer,
    copy::CopyStop,
    fetch::{Fetch, Held, Kept},
    filler::{Job, LOOK, Purpose},
    object::{Object, State},
};
use layout::{SauIndex, pieces};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tier::Input;
use types::{Errno, TierId, TierSet};

impl DataServer {
    pub(crate) fn run_filler(&self) {
        while !self.stopping() {
            let Some(job) = self.filler.next(Duration::from_millis(100)) else { continue };
            self.carry_out(&job);
        }
        self.filler.clear();
    }

    /// A program reads here. What is worth having whole is fetched from now on.
    pub(crate) fn note_read(&self, object: &Object, state: &State, offset: u64, len: usize) {
        let far = self.linked.is_some() && state.map.count_in(TierId::Nearline) > 0;
        if !far || !state.promote.unwrap_or(self.fill_on_read) || state.in_place.is_some() {
            return;
        }
        let advice = object.reading.advise((offset, len as u64, state.size), self.filler.ahead_max());
        if advice.again {
            self.driver.tell(Input::ReadAgain { ino: object.ino() });
        }
        if advice.here {
            for piece in pieces(offset, len as u64) {
                let within = (piece.offset - piece.sau.start()) as u32;
                self.want(object, state, (piece.sau, within), Purpose::Wanted);
            }
        }
        for sau in advice.ahead.into_iter().filter_map(SauIndex::new) {
            self.want(object, state, (sau, 0), Purpose::Ahead);
        }
    }

    /// Has a SAU fetched, if only their file has it. `None`: it has not, or it cannot be, now.
    pub(crate) fn want(
        &self,
        object: &Object,
        state: &State,
        (sau, at): (SauIndex, u32),
        purpose: Purpose,
    ) -> Option<Arc<Fetch>> {
        let len = sau.bytes_within(state.linked_len);
        if state.map.get(sau).valid != TierSet::of(TierId::Nearline) || len == 0 || state.removed {
            return None;
        }
        if let Some(fetch) = object.reading.find(sau, state.era) {
            if purpose == Purpose::Wanted && !fetch.is_begun() {
                self.filler.hurry(&fetch);
            }
            return Some(fetch);
        }
        let me = object.me.upgrade()?;
        let wanted_at = match purpose {
            Purpose::Wanted | Purpose::Ahead => Some(at),
            Purpose::Move(_) | Purpose::Missing => None,
        };
        let fetch = object.reading.begin(Fetch::new((sau, state.era), len, wanted_at))?;
        if !self.filler.push(Job { object: me, fetch: fetch.clone(), purpose }) {
            object.reading.forget(&fetch);
            return None;
        }
        Some(fetch)
    }

    /// A reader had the last byte of it.
    pub(crate) fn passed(&self, object: &Object, fetch: &Arc<Fetch>) {
        if matches!(fetch.wait_for_end(Duration::ZERO), Some(Ok(Kept::No))) {
            object.reading.forget(fetch);
        }
    }

    fn carry_out(&self, job: &Job) {
        let Job { object, fetch, purpose } = job;
        let fetched = self.fetch_whole(object, fetch);
        let result = fetched.and_then(|theirs| {
            let to = match purpose {
                Purpose::Move(to) => Some(*to),
                Purpose::Wanted | Purpose::Ahead | Purpose::Missing => None,
            };
            self.keep(object, fetch, (&theirs, to)).inspect_err(|errno| {
                tracing::warn!(ino = %object.ino(), %errno, "what was read of a linked file is not kept");
            })
        });
        match result {
            // One of a movement that has no place is tried again by that alone: found by the next, it would fail that, too.
            Ok(Kept::No) if !fetch.is_asked() && (*purpose == Purpose::Wanted || object.is_open()) => {
                self.filler.note_left(object, fetch)
            }
            Ok(Kept::Yes | Kept::No) | Err(_) => object.reading.forget(fetch),
        }
        fetch.end(result);
    }

    /// Reads it, piece by piece. `EINTR`: nobody wants it any more.
    fn fetch_whole(&self, object: &Object, fetch: &Fetch) -> Result<crate::theirs::Opened, Errno> {
        let held = self.memory_for(fetch)?;
        fetch.begin(held);
        let linked_len = fetch.sau.start() + u64::from(fetch.len);
        let theirs = self.theirs(object)?;
        for (at, len) in fetch.parts() {
            if fetch.must_stop() || self.stopping() {
                return Err(Errno::EINTR);
            }
            let mut bytes = vec![0; len as usize];
            let read = theirs.read(fetch.sau.start() + u64::from(at), &mut bytes, linked_len);
            read.inspect_err(|errno| {
                tracing::warn!(ino = %object.ino(), %errno, "a file of the linked directory cannot be read");
                object.theirs.forget(&theirs);
            })?;
            fetch.arrived(at, bytes);
        }
        Ok(theirs)
    }

    fn memory_for(&self, fetch: &Fetch) -> Result<Held, Errno> {
        loop {
            if fetch.must_stop() || self.stopping() {
                return Err(Errno::EINTR);
            }
            if let Some(held) = self.filler.memory(u64::from(fetch.len)) {
                return Ok(held);
            }
            // Others end within the deadline of their calls.
            self.filler.drop_left();
            std::thread::sleep(LOOK);
        }
    }
}

/// A movement of what a linked near-line has: what only their file has comes to `to`, whoever fetches it.
pub(crate) struct BringUp<'a> {
    pub to: TierId,
    pub most: u64,
    pub stop: &'a dyn Fn() -> bool,
}

impl DataServer {
    /// Carries it out. Returns the bytes that came.
    pub(crate) fn bring_up(&self, object: &Object, plan: &BringUp<'_>) -> Result<u64, CopyStop> {
        let mut under_way: VecDeque<Arc<Fetch>> = VecDeque::new();
        let brought = self.bring_all(object, plan, &mut under_way);
        // Its room is promised until it ends.
        under_way.iter().for_each(|fetch| fetch.stop());
        for fetch in under_way {
            while fetch.wait_for_end(Duration::from_secs(1)).is_none() && !self.stopping() {}
        }
        brought
    }

    fn bring_all(
        &self,
        object: &Object,
        plan: &BringUp<'_>,
        under_way: &mut VecDeque<Arc<Fetch>>,
    ) -> Result<u64, CopyStop> {
        let (mut next, mut taken, mut came) = (SauIndex::ZERO, 0, 0);
        let mut is_last = false;
        loop {
            while !is_last && under_way.len() < self.filler.ahead_max() as usize {
                let state = object.state.read();
                if state.removed {
                    return Err(CopyStop::Gone);
                }
                // Writes go to the fastest copy, and readers in place would not see them.
                if state.in_place.is_some_and(|tier| plan.to < tier) {
                    return Err(CopyStop::Cancelled);
                }
                let near = TierSet::of(TierId::Nearline);
                let found = state.map.iter_from(next).find(|(_, now)| now.valid == near).map(|(sau, _)| sau);
                let bytes = found.map_or(0, |sau| u64::from(sau.bytes_within(state.size)));
                let Some(sau) = found.filter(|_| taken + bytes <= plan.most) else {
                    is_last = true;
                    break;
                };
                let Some(fetch) = self.want(object, &state, (sau, 0), Purpose::Move(plan.to)) else {
                    // The line is full of others', which end.
                    break;
                };
                // After one that is tried again come those that are under way still.
                if !under_way.iter().any(|other| Arc::ptr_eq(other, &fetch)) {
                    taken += bytes;
                    under_way.push_back(fetch);
                }
                match SauIndex::new(sau.get() + 1) {
                    Some(after) => next = after,
                    None => is_last = true,
                }
            }
            if (plan.stop)() {
                return Err(CopyStop::Cancelled);
            }
            // In whatever order they end: one that waited behind another would hold the memory that the other waits for.
            let ended = under_way.iter().position(|fetch| fetch.has_ended());
            let Some(fetch) = under_way.get(ended.unwrap_or(0)).cloned() else {
                if is_last {
                    return Ok(came);
                }
                std::thread::sleep(LOOK);
                continue;
            };
            let Some(end) = fetch.wait_for_end(LOOK) else { continue };
            let (sau, len, asked) = (fetch.sau, u64::from(fetch.len), fetch.is_asked());
            under_way.retain(|other| !Arc::ptr_eq(other, &fetch));
            match end {
                Ok(Kept::Yes) => came += len,
                // A reader's, which found no place, or had nobody who wanted it any more: once more, for the movement.
                Ok(Kept::No) | Err(Errno::EINTR) if !asked => {
                    object.reading.forget(&fetch);
                    (next, is_last, taken) = (next.min(sau), false, taken.saturating_sub(len));
                }
                // Written meanwhile, perhaps: then it is here.
                Ok(Kept::No) if object.state.read().map.get(sau).valid != TierSet::of(TierId::Nearline) => {}
                Ok(Kept::No) => return Err(CopyStop::NoSpace),
                Err(Errno::EINTR) => return Err(CopyStop::Cancelled),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
