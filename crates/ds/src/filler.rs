//! What is to be fetched of linked files, in line for the threads that do it (`fill.rs`), and the memory that it may take.

use crate::{
    fetch::{Fetch, Held, Memory},
    object::Object,
};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};
use types::{Errno, SAU_BYTES, TierId};

/// SAUs that are fetched at once. A call to a network file system waits more than it computes.
pub(crate) const FILLERS: usize = 8;
/// Ahead of one reader: so many threads of them that others find one.
const AHEAD_MAX: u64 = 6;
/// Fetches in line; what finds it full is read directly. Each is some 200 bytes.
const LINE_MAX: usize = 1024;
/// How often a thread looks again whether there is memory.
pub(crate) const LOOK: Duration = Duration::from_millis(5);

/// A fetch to be made.
pub(crate) struct Job {
    pub object: Arc<Object>,
    pub fetch: Arc<Fetch>,
    pub purpose: Purpose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Somebody waits.
    Wanted,
    /// Somebody may want it.
    Ahead,
    /// Their file may go, and nobody else has it.
    Missing,
    /// A movement to this tier, which has reserved the room.
    Move(TierId),
}

/// What is to be fetched, and what may be dropped.
pub(crate) struct Filler {
    line: Mutex<Line>,
    work: Condvar,
    memory: Arc<Memory>,
}

#[derive(Default)]
struct Line {
    wanted: VecDeque<Job>,
    ahead: VecDeque<Job>,
    moves: VecDeque<Job>,
    /// What no tier had room for and readers may still want, oldest first.
    left: VecDeque<(Weak<Object>, Weak<Fetch>)>,
    /// Nobody waits for more.
    over: bool,
}

impl Filler {
    pub fn new(bytes_max: u64) -> Filler {
        let memory = Memory::new(bytes_max.max(2 * SAU_BYTES));
        Filler { line: Mutex::default(), work: Condvar::new(), memory }
    }

    pub fn ahead_max(&self) -> u32 {
        (self.memory.max() / SAU_BYTES).saturating_sub(1).clamp(1, AHEAD_MAX) as u32
    }

    /// `false`: the line is full.
    pub fn push(&self, job: Job) -> bool {
        let mut line = self.line.lock();
        if line.wanted.len() + line.ahead.len() + line.moves.len() >= LINE_MAX {
            return false;
        }
        match job.purpose {
            Purpose::Wanted => line.wanted.push_back(job),
            Purpose::Ahead => line.ahead.push_back(job),
            Purpose::Move(_) | Purpose::Missing => line.moves.push_back(job),
        }
        drop(line);
        self.work.notify_one();
        true
    }

    /// Somebody waits for it.
    pub fn hurry(&self, fetch: &Arc<Fetch>) {
        let mut line = self.line.lock();
        let Line { wanted, ahead, moves, .. } = &mut *line;
        for queue in [ahead, moves] {
            let at = queue.iter().position(|job| Arc::ptr_eq(&job.fetch, fetch));
            if let Some(job) = at.and_then(|at| queue.remove(at)) {
                return wanted.push_back(job);
            }
        }
    }

    pub fn next(&self, at_most: Duration) -> Option<Job> {
        let mut line = self.line.lock();
        let has_none = |line: &mut Line| {
            !line.over && line.wanted.is_empty() && line.ahead.is_empty() && line.moves.is_empty()
        };
        self.work.wait_while_for(&mut line, has_none, at_most);
        let Line { wanted, ahead, moves, .. } = &mut *line;
        [wanted, ahead, moves].into_iter().find_map(VecDeque::pop_front)
    }

    pub fn note_left(&self, object: &Arc<Object>, fetch: &Arc<Fetch>) {
        let mut line = self.line.lock();
        line.left.retain(|(_, fetch)| fetch.strong_count() > 0);
        line.left.push_back((Arc::downgrade(object), Arc::downgrade(fetch)));
    }

    /// Forgets the oldest of what is left.
    pub fn drop_left(&self) {
        let left = self.line.lock().left.pop_front();
        if let Some((object, fetch)) = left
            && let (Some(object), Some(fetch)) = (object.upgrade(), fetch.upgrade())
        {
            object.reading.forget(&fetch);
        }
    }

    /// Whoever waits for a job waits no longer.
    pub fn end(&self) {
        self.line.lock().over = true;
        self.work.notify_all();
    }

    /// `None`: there is not so much left.
    pub fn memory(&self, bytes: u64) -> Option<Held> {
        self.memory.take(bytes)
    }

    pub fn clear(&self) {
        let line = std::mem::take(&mut *self.line.lock());
        for job in line.wanted.into_iter().chain(line.ahead).chain(line.moves) {
            job.object.reading.forget(&job.fetch);
            job.fetch.end(Err(Errno::EINTR));
        }
    }
}
