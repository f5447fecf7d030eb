//! What data servers sent to others for want of room, what is on its way, and which files are left alone for a while.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use proto::moving::WHY_MAX;
use types::Ino;

/// A file that could not be moved is tried again later, and later each time.
const REST: Duration = Duration::from_millis(500);
const REST_MAX: Duration = Duration::from_secs(60);
/// Those that rest, at the most: who is not among them is tried again earlier.
const RESTING_MAX: usize = 65_536;
/// A data server of which nothing could be moved is asked again after this, and later each time, unless somebody waits there.
const ASK_AGAIN: Duration = Duration::from_millis(500);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(8);
/// It may have to look through all that it has, so it is not asked again for so many times as long as it took.
const ASKED_REST: u32 = 10;

/// What was sent away of one data server, and why no more.
#[derive(Clone, Default)]
pub(super) struct Sent {
    pub files: u64,
    pub bytes: u64,
    pub stuck: String,
    pub ask_again: Option<Instant>,
    pause: Duration,
}

impl Sent {
    pub(super) fn has_sent(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.stuck.clear();
        (self.pause, self.ask_again) = (Duration::ZERO, None);
    }

    pub(super) fn is_stuck(&mut self, why: &str, took: Duration) {
        self.pause = (self.pause * 2).clamp(ASK_AGAIN, ASK_AGAIN_MAX);
        self.ask_again = Some(Instant::now() + self.pause.max(took * ASKED_REST));
        self.stuck = why.chars().take(WHY_MAX / 4).collect();
    }
}

/// Bytes on their way to a node, or arrived and perhaps not in its last report.
struct Promise {
    attempt: u64,
    to: u64,
    bytes: u64,
    ended: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Sendings {
    pub table: Mutex<BTreeMap<u64, Sent>>,
    resting: Mutex<HashMap<Ino, (Instant, Duration)>>,
    /// One for each attempt under way, and those that ended since the destination's last report.
    promises: Mutex<Vec<Promise>>,
    /// Held while files are moved.
    pub at_work: Mutex<()>,
}

impl Sendings {
    pub(super) fn promise(&self, attempt: u64, to: u64, bytes: u64) {
        self.promises.lock().push(Promise { attempt, to, bytes, ended: None });
    }

    pub(super) fn ended(&self, attempt: u64, moved: bool) {
        let mut promises = self.promises.lock();
        match promises.iter_mut().find(|promise| promise.attempt == attempt) {
            Some(promise) if moved => promise.ended = Some(Instant::now()),
            Some(_) | None => promises.retain(|promise| promise.attempt != attempt),
        }
    }

    /// So many bytes are on their way to a node that was last heard then, or may not be in what it said.
    pub(super) fn promised(&self, to: u64, heard: Instant) -> u64 {
        let mut promises = self.promises.lock();
        promises.retain(|one| one.to != to || one.ended.is_none_or(|ended| ended >= heard));
        promises.iter().filter(|one| one.to == to).map(|one| one.bytes).fold(0, u64::saturating_add)
    }

    pub(super) fn wake(&self, ino: Ino) {
        self.resting.lock().remove(&ino);
    }

    pub(super) fn rest(&self, ino: Ino) {
        let now = Instant::now();
        let mut resting = self.resting.lock();
        let rest = resting.get(&ino).map_or(REST, |(_, before)| (*before * 2).min(REST_MAX));
        if resting.len() >= RESTING_MAX {
            resting.retain(|_, (until, _)| *until > now);
        }
        if resting.len() < RESTING_MAX {
            resting.insert(ino, (now + rest, rest));
        }
    }

    pub(super) fn rests(&self, ino: Ino) -> bool {
        self.resting.lock().get(&ino).is_some_and(|(until, _)| *until > Instant::now())
    }
}
