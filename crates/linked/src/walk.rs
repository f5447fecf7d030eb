//! Directories that somebody who walks a tree will come to: they are imported before, several at once, so that he does not wait for the
//! back end at each.
//!
//! Who opens one directory after another for the first time walks. From then on what is below each that he opens is imported, the next
//! first; what he does not come to was imported in vain, and is no more than some thousand names.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ops::ControlFlow,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use link::Proof;
use parking_lot::{Condvar, Mutex};
use types::{Errno, FileKind, Ino};

use crate::Linked;

/// Directories that are imported at once: enough for a site that answers in a millisecond, and as many as the looks of others leave.
pub(crate) const THREADS: usize = 4;
/// So many first openings within [`LATELY`] are a walk.
const OPENINGS: usize = 3;
const LATELY: Duration = Duration::from_secs(2);
/// Below one directory.
const CHILDREN: usize = 256;
/// In line; those that were put there first are left out then.
const LINE: usize = 4096;
/// Imported ones that nobody has opened yet.
const FRESH: usize = 1 << 16;
const PAUSE: Duration = Duration::from_millis(200);

/// By whom a directory was imported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// Who wants to see it.
    Visitor,
    Walk,
}

#[derive(Default)]
pub(crate) struct Walks {
    state: Mutex<State>,
    /// Of `fresh`, for those who need not take the lock.
    unopened: AtomicUsize,
    wanted: Condvar,
}

#[derive(Default)]
struct State {
    fresh: HashMap<Ino, By>,
    /// When directories were opened for the first time.
    openings: VecDeque<Instant>,
    line: VecDeque<Ino>,
    in_line: HashSet<Ino>,
}

impl Walks {
    /// Its names were never seen before.
    pub fn imported(&self, dir: Ino, by: By) {
        let mut state = self.state.lock();
        if state.fresh.len() >= FRESH {
            state.fresh.clear();
        }
        state.fresh.insert(dir, by);
        self.unopened.store(state.fresh.len(), Ordering::Release);
    }

    pub fn stop(&self) {
        self.state.lock().line.clear();
        self.wanted.notify_all();
    }

    /// Somebody opens it. By whom it was imported, if this is the first time and he walks.
    fn opened(&self, dir: Ino, now: Instant) -> Option<By> {
        if self.unopened.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut state = self.state.lock();
        let by = state.fresh.remove(&dir)?;
        self.unopened.store(state.fresh.len(), Ordering::Release);
        while state.openings.front().is_some_and(|at| now.saturating_duration_since(*at) > LATELY) {
            state.openings.pop_front();
        }
        state.openings.push_back(now);
        if state.openings.len() > OPENINGS {
            state.openings.pop_front();
        }
        (state.openings.len() == OPENINGS).then_some(by)
    }

    /// Next, in this order: what is below the directory where he is, and then what is beside it.
    fn put_first(&self, below: Vec<Ino>, beside: Vec<Ino>) {
        let mut state = self.state.lock();
        let before = state.line.len();
        for dir in below.into_iter().chain(beside).rev() {
            // What is in line already comes in its turn.
            if state.in_line.insert(dir) {
                state.line.push_front(dir);
            }
        }
        for _ in before..state.line.len().min(before + THREADS) {
            self.wanted.notify_one();
        }
        while state.line.len() > LINE {
            if let Some(last) = state.line.pop_back() {
                state.in_line.remove(&last);
            }
        }
    }

    fn next(&self) -> Option<Ino> {
        let mut state = self.state.lock();
        if state.line.is_empty() {
            self.wanted.wait_for(&mut state, PAUSE);
        }
        let dir = state.line.pop_front()?;
        state.in_line.remove(&dir);
        Some(dir)
    }
}

impl Linked {
    /// A directory is opened, or a name is looked up in it.
    pub fn walked(&self, dir: Ino) {
        let Some(by) = self.walks.opened(dir, Instant::now()) else { return };
        let below = self.unseen_in(dir).unwrap_or_default();
        // He was faster than the walk: what is beside it was never put in line, or was left out.
        let parent = self.ledger.mds.parent(dir).ok().filter(|_| by == By::Visitor);
        let beside = parent.and_then(|parent| self.unseen_in(parent).ok()).unwrap_or_default();
        self.walks.put_first(below, beside);
    }

    pub(crate) fn run_walks(&self) {
        while !self.is_stopping() {
            let Some(dir) = self.walks.next() else { continue };
            if self.is_away() {
                continue;
            }
            if let Err(errno) = self.visit_dir_by(dir, By::Walk) {
                tracing::debug!(%dir, %errno, "a directory was not imported before it was opened");
            }
        }
    }

    /// Directories of which nobody has seen a name.
    fn unseen_in(&self, dir: Ino) -> Result<Vec<Ino>, Errno> {
        let mut dirs = Vec::new();
        self.ledger.mds.readdir(dir, 0, &mut |entry| {
            let is_below = entry.kind == FileKind::Directory && entry.name != b"." && entry.name != b"..";
            if is_below && self.is_unseen(entry.ino) {
                dirs.push(entry.ino);
            }
            if dirs.len() < CHILDREN { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(dirs)
    }

    fn is_unseen(&self, dir: Ino) -> bool {
        matches!(self.record_of(dir), Ok(Some(record)) if record.seen.proof == Proof::Void)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: who opens directories one after another walks, and what he comes to next is first. Method: the line alone.
    use super::*;

    fn dirs(numbers: impl IntoIterator<Item = u64>) -> Vec<Ino> {
        numbers.into_iter().map(|n| Ino::from_raw((1 << 40) | n).unwrap()).collect()
    }

    #[test]
    fn three_openings_in_a_short_time_are_a_walk() {
        let (walks, now, all) = (Walks::default(), Instant::now(), dirs(2..10));
        all.iter().for_each(|dir| walks.imported(*dir, By::Visitor));
        assert_eq!(walks.opened(all[0], now), None);
        assert_eq!(walks.opened(all[1], now), None);
        assert_eq!(walks.opened(all[1], now), None, "it was open before");
        assert_eq!(walks.opened(all[2], now + 2 * LATELY), None, "long after");
        assert_eq!(walks.opened(all[3], now + 2 * LATELY), None);
        assert_eq!(walks.opened(all[4], now + 2 * LATELY), Some(By::Visitor));
        walks.imported(all[0], By::Walk);
        assert_eq!(walks.opened(all[0], now + 2 * LATELY), Some(By::Walk));
    }

    #[test]
    fn what_is_below_comes_before_what_is_beside() {
        let walks = Walks::default();
        walks.put_first(dirs([2, 3, 4]), Vec::new());
        assert_eq!(walks.next(), Some(dirs([2])[0]));
        walks.put_first(dirs([20, 21]), dirs([3, 4, 5]));
        let order: Vec<Ino> = std::iter::from_fn(|| walks.next()).collect();
        assert_eq!(order, dirs([20, 21, 5, 3, 4]));
    }

    #[test]
    fn the_line_is_bounded_and_forgets_the_oldest() {
        let walks = Walks::default();
        for n in 0..40 {
            walks.put_first(dirs((0..CHILDREN as u64).map(|m| 2 + n * CHILDREN as u64 + m)), Vec::new());
        }
        let state = walks.state.lock();
        assert_eq!((state.line.len(), state.in_line.len()), (LINE, LINE));
    }
}
