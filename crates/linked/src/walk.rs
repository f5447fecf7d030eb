//! Directories that somebody who walks a tree will come to: they are imported before, several at once, so that he does not wait for the
//! back end at each.
//!
//! Who opens one directory after another for the first time walks. From then on what is below each that he opens is imported, the next
//! first. How many of one directory are imported that nobody has opened yet is a window, wider with each that is opened, narrower
//! when they are not: who walks in a part of a tree (`git status`, beside hundreds of directories of objects) does not wait
//! behind looks at all of it.

use std::{
    collections::{HashMap, VecDeque},
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
/// Directories of which something below is in line, or imported and awaited.
const PARENTS: usize = 1024;
/// Imported ones that nobody has opened yet.
const FRESH: usize = 1 << 16;
const PAUSE: Duration = Duration::from_millis(200);
/// Of one directory, imported or being imported, and not opened within [`LATELY`]: at first.
const WINDOW_FIRST: usize = 2;

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
    /// What is below directories, the one where somebody is first.
    line: VecDeque<Below>,
}

/// The directories in one.
struct Below {
    parent: Ino,
    line: VecDeque<Ino>,
    window: usize,
    importing: usize,
    /// Imported and awaited, the first one first; some of them are opened already.
    ahead: VecDeque<(Instant, Ino)>,
}

impl Below {
    /// Whether one more may be imported before it is opened.
    fn has_room(&mut self, fresh: &HashMap<Ino, By>, now: Instant) -> bool {
        let mut in_vain = false;
        self.ahead.retain(|(at, dir)| {
            let unopened = fresh.contains_key(dir);
            let late = now.saturating_duration_since(*at) > LATELY;
            in_vain |= unopened && late;
            unopened && !late
        });
        if in_vain {
            self.window /= 2;
        }
        self.importing + self.ahead.len() < self.window
    }

    fn is_idle(&self) -> bool {
        self.line.is_empty() && self.importing == 0 && self.ahead.is_empty()
    }
}

impl State {
    /// The next directory to import, and what it is in; [`Walks::ended`] follows.
    fn next(&mut self, now: Instant) -> Option<(Ino, Ino)> {
        let State { fresh, line, .. } = self;
        line.iter_mut().find_map(|below| {
            if below.line.is_empty() || !below.has_room(fresh, now) {
                return None;
            }
            let dir = below.line.pop_front()?;
            below.importing += 1;
            Some((below.parent, dir))
        })
    }
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

    /// Somebody came to a directory in this one: so he will to others.
    fn came(&self, parent: Ino) {
        let mut state = self.state.lock();
        if let Some(below) = state.line.iter_mut().find(|below| below.parent == parent) {
            below.window = (2 * below.window).clamp(WINDOW_FIRST, CHILDREN);
            self.wanted.notify_one();
        }
    }

    /// Next, in this order: what is below the directory where he is, and then what is beside it.
    fn put_first(&self, below: (Ino, Vec<Ino>), beside: Option<(Ino, Vec<Ino>)>) {
        let mut state = self.state.lock();
        for (parent, dirs) in beside.into_iter().chain([below]) {
            let known = state.line.iter().position(|below| below.parent == parent);
            let known = known.and_then(|at| state.line.remove(at));
            let mut first = known.unwrap_or(Below {
                parent,
                line: VecDeque::new(),
                window: WINDOW_FIRST,
                importing: 0,
                ahead: VecDeque::new(),
            });
            first.line = dirs.into();
            state.line.push_front(first);
        }
        for _ in 0..THREADS {
            self.wanted.notify_one();
        }
        state.line.retain(|below| !below.is_idle());
        let in_line = |line: &VecDeque<Below>| line.iter().map(|below| below.line.len()).sum::<usize>();
        while state.line.len() > PARENTS || in_line(&state.line) > LINE {
            state.line.pop_back();
        }
    }

    /// As [`State::next`], and waits a moment if there is none.
    fn next(&self, now: Instant) -> Option<(Ino, Ino)> {
        let mut state = self.state.lock();
        let next = state.next(now);
        if next.is_none() {
            self.wanted.wait_for(&mut state, PAUSE);
        }
        next
    }

    fn ended(&self, (parent, dir): (Ino, Ino), now: Instant) {
        let mut state = self.state.lock();
        if let Some(below) = state.line.iter_mut().find(|below| below.parent == parent) {
            below.importing = below.importing.saturating_sub(1);
            below.ahead.push_back((now, dir));
        }
    }
}

impl Linked {
    /// A directory is opened, or a name is looked up in it.
    pub fn walked(&self, dir: Ino) {
        let Some(by) = self.walks.opened(dir, Instant::now()) else { return };
        let below = self.unseen_in(dir).unwrap_or_default();
        let parent = self.ledger.mds.parent(dir).ok();
        parent.iter().for_each(|parent| self.walks.came(*parent));
        // He was faster than the walk: what is beside it was never put in line, or was left out.
        let beside = parent.filter(|_| by == By::Visitor);
        let beside = beside.and_then(|parent| Some((parent, self.unseen_in(parent).ok()?)));
        self.walks.put_first((dir, below), beside);
    }

    pub(crate) fn run_walks(&self) {
        while !self.is_stopping() {
            let Some(next) = self.walks.next(Instant::now()) else { continue };
            let (_, dir) = next;
            if !self.is_away()
                && let Err(errno) = self.visit_dir_by(dir, By::Walk)
            {
                tracing::debug!(%dir, %errno, "a directory was not imported before it was opened");
            }
            self.walks.ended(next, Instant::now());
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

    fn next(walks: &Walks, now: Instant) -> Option<Ino> {
        let (parent, dir) = walks.state.lock().next(now)?;
        walks.imported(dir, By::Walk);
        walks.ended((parent, dir), now);
        Some(dir)
    }

    fn all(walks: &Walks, now: Instant) -> Vec<Ino> {
        std::iter::from_fn(|| next(walks, now)).collect()
    }

    #[test]
    fn what_is_below_comes_before_what_is_beside() {
        let (walks, now, parents) = (Walks::default(), Instant::now(), dirs(1000..1002));
        walks.put_first((parents[0], dirs([2, 3, 4])), None);
        assert_eq!(next(&walks, now), Some(dirs([2])[0]));
        walks.came(parents[0]);
        walks.put_first((parents[1], dirs([20, 21])), Some((parents[0], dirs([3, 4, 5]))));
        assert_eq!(all(&walks, now), dirs([20, 21, 3, 4, 5]));
    }

    #[test]
    fn the_line_is_bounded_and_forgets_the_oldest() {
        let walks = Walks::default();
        for n in 0..40 {
            let below = dirs((0..CHILDREN as u64).map(|m| 2 + n * CHILDREN as u64 + m));
            walks.put_first((dirs([1_000_000 + n])[0], below), None);
        }
        let state = walks.state.lock();
        assert_eq!(state.line.iter().map(|below| below.line.len()).sum::<usize>(), LINE);
        assert_eq!(state.line[0].parent, dirs([1_000_039])[0]);
    }

    #[test]
    fn few_are_imported_while_none_is_opened_and_all_when_they_are() {
        let (walks, now, parents) = (Walks::default(), Instant::now(), dirs([1000, 1001]));
        walks.put_first((parents[0], dirs(2..258)), None);
        assert_eq!(all(&walks, now).len(), WINDOW_FIRST);
        // Nobody comes, and fewer and fewer are imported; what is elsewhere has nothing to do with it.
        let later = |n: u32| now + n * 2 * LATELY;
        let in_vain: Vec<usize> = (1..4).map(|n| all(&walks, later(n)).len()).collect();
        assert_eq!(in_vain, [1, 0, 0]);
        walks.put_first((parents[1], dirs(300..400)), None);
        assert_eq!(all(&walks, later(5)).len(), WINDOW_FIRST);
        // He does.
        let mut imported = 3;
        for dir in dirs(2..250) {
            walks.opened(dir, later(6));
            walks.came(parents[0]);
            imported +=
                all(&walks, later(6)).into_iter().filter(|dir| dir.get() < dirs([300])[0].get()).count();
        }
        assert_eq!(imported, 256);
    }
}
