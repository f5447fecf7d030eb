//! SAUs of a linked file on their way here, and what is known of the reading of that file.
//!
//! - Bytes are there for readers as soon as they arrive, in pieces; a tier gets the SAU when it is whole (`keep.rs`).
//! - A fetch is of one file: who looks for one says in which era of the object.
//! - It is found from before its bytes are asked for until the map says where they are, or until it failed. What no tier had room for
//!   stays until a reader had its end, or its memory is wanted.

use layout::SauIndex;
use parking_lot::{Condvar, Mutex};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tier::{Advice, RunAhead};
use types::Errno;

/// What is read at once: enough that a call costs little beside its bytes.
const PIECE: u32 = 1 << 20;
/// The first one, which somebody waits for.
const FIRST_PIECE: u32 = 256 << 10;
/// Where a reader came in the middle.
const ALIGN: u32 = 64 << 10;
/// Fetches of one object that are not over: more than a window ahead of each of some readers.
const FETCHES_MAX: usize = 48;
/// How long a reader waits for one that no thread has taken up; then he reads for himself.
const QUEUED_PATIENCE: Duration = Duration::from_millis(50);
/// And for one that is under way: longer than a call to a back end may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// Bytes that fetches may hold.
pub(crate) struct Memory {
    used: AtomicU64,
    max: u64,
}

impl Memory {
    pub fn new(max: u64) -> Arc<Memory> {
        Arc::new(Memory { used: AtomicU64::new(0), max })
    }
    pub fn max(&self) -> u64 {
        self.max
    }
    /// `None`: there are not so many left.
    pub fn take(self: &Arc<Memory>, bytes: u64) -> Option<Held> {
        let fits = |used: u64| (used + bytes <= self.max).then_some(used + bytes);
        let taken = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        taken.is_ok().then(|| Held { memory: self.clone(), bytes })
    }
}

/// Given back when it is dropped.
pub(crate) struct Held {
    memory: Arc<Memory>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// One SAU of their file that is being read, or was.
pub(crate) struct Fetch {
    pub sau: SauIndex,
    pub era: u64,
    /// Bytes of it that count in their file.
    pub len: u32,
    /// Where somebody waits.
    first: u32,
    /// Of a movement, which wants it whether anybody reads or not.
    asked: bool,
    arrival: Mutex<Arrival>,
    bell: Condvar,
    stop: AtomicBool,
}

#[derive(Default)]
struct Arrival {
    begun: Option<Held>,
    /// By where they begin.
    pieces: Vec<Piece>,
    end: Option<Result<Kept, Errno>>,
}

type Piece = (u32, Arc<Vec<u8>>);

/// Does a tier have it now?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    Yes,
    No,
}

/// What a reader gets of a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Got {
    Bytes,
    /// They are to be read from their file.
    Nothing,
    Failed(Errno),
}

impl Fetch {
    /// `wanted_at`: where somebody waits; `None`: it is a movement's.
    pub fn new((sau, era): (SauIndex, u64), len: u32, wanted_at: Option<u32>) -> Fetch {
        let at = wanted_at.filter(|_| len > PIECE).unwrap_or(0);
        let first = at.min(len.saturating_sub(1)) / ALIGN * ALIGN;
        let asked = wanted_at.is_none();
        let arrival = Mutex::default();
        Fetch { sau, era, len, first, asked, arrival, bell: Condvar::new(), stop: AtomicBool::new(false) }
    }

    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// What to read, in this order: from where somebody waits to the end, then what lies before.
    pub fn parts(&self) -> Vec<(u32, u32)> {
        let mut parts = Vec::new();
        let (mut at, mut most) = (self.first, if self.len <= PIECE { PIECE } else { FIRST_PIECE });
        for end in [self.len, self.first] {
            while at < end {
                let len = most.min(end - at);
                parts.push((at, len));
                (at, most) = (at + len, PIECE);
            }
            at = 0;
        }
        parts
    }

    pub fn begin(&self, held: Held) {
        self.arrival.lock().begun = Some(held);
    }
    pub fn is_begun(&self) -> bool {
        self.arrival.lock().begun.is_some()
    }

    pub fn arrived(&self, at: u32, bytes: Vec<u8>) {
        let mut arrival = self.arrival.lock();
        let place = arrival.pieces.partition_point(|(other, _)| *other < at);
        arrival.pieces.insert(place, (at, Arc::new(bytes)));
        drop(arrival);
        self.bell.notify_all();
    }

    /// All of it, in order.
    pub fn pieces(&self) -> Vec<Piece> {
        self.arrival.lock().pieces.clone()
    }

    pub fn end(&self, result: Result<Kept, Errno>) {
        self.arrival.lock().end = Some(result);
        self.bell.notify_all();
    }

    pub fn has_ended(&self) -> bool {
        self.arrival.lock().end.is_some()
    }

    /// How it ended; waits no longer than `at_most`.
    pub fn wait_for_end(&self, at_most: Duration) -> Option<Result<Kept, Errno>> {
        let mut arrival = self.arrival.lock();
        self.bell.wait_while_for(&mut arrival, |arrival| arrival.end.is_none(), at_most);
        arrival.end
    }

    /// Nobody wants it any more; it goes on if little is missing.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }
    pub fn must_stop(&self) -> bool {
        let there = || self.arrival.lock().pieces.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        self.stop.load(Ordering::Acquire) && there() < self.len as usize / 4 * 3
    }

    /// Its bytes from `at` on, if they are there.
    pub fn try_read(&self, at: u32, buf: &mut [u8]) -> bool {
        let pieces = found(&self.arrival.lock(), at, buf.len());
        pieces.is_some_and(|pieces| {
            copy(&pieces, at, buf);
            true
        })
    }

    /// The same, waiting until they are there.
    pub fn read(&self, at: u32, buf: &mut [u8]) -> Got {
        let asked = Instant::now();
        let mut arrival = self.arrival.lock();
        let pieces = loop {
            if let Some(pieces) = found(&arrival, at, buf.len()) {
                break pieces;
            }
            match arrival.end {
                // Who waited for the deadline of a call does not do so again.
                Some(Err(Errno::ETIMEDOUT)) => return Got::Failed(Errno::ETIMEDOUT),
                Some(_) => return Got::Nothing,
                None => {}
            }
            let patience = if arrival.begun.is_some() { PATIENCE } else { QUEUED_PATIENCE };
            if self.bell.wait_until(&mut arrival, asked + patience).timed_out()
                && (arrival.begun.is_none() || asked.elapsed() >= PATIENCE)
            {
                return Got::Nothing;
            }
        };
        drop(arrival);
        copy(&pieces, at, buf);
        Got::Bytes
    }
}

/// The pieces that have these bytes, if all are there.
fn found(arrival: &Arrival, at: u32, len: usize) -> Option<Vec<Piece>> {
    let end = at as usize + len;
    let mut reached = at as usize;
    let mut pieces = Vec::new();
    for (start, bytes) in &arrival.pieces {
        let start = *start as usize;
        if start <= reached && start + bytes.len() > reached {
            pieces.push((start as u32, bytes.clone()));
            reached = start + bytes.len();
        }
        if reached >= end {
            return Some(pieces);
        }
    }
    None
}

fn copy(pieces: &[Piece], at: u32, buf: &mut [u8]) {
    let (begin, end) = (at as usize, at as usize + buf.len());
    for (start, bytes) in pieces {
        let start = *start as usize;
        let (from, to) = (begin.max(start), end.min(start + bytes.len()));
        if from < to {
            buf[from - begin..to - begin].copy_from_slice(&bytes[from - start..to - start]);
        }
    }
}

/// The reading of one object. Takes no room until there is some.
#[derive(Default)]
pub(crate) struct Reading(Mutex<Option<Box<Now>>>);

#[derive(Default)]
struct Now {
    core: Option<RunAhead>,
    fetches: Vec<Arc<Fetch>>,
}

impl Reading {
    pub fn advise(&self, (offset, len, size): (u64, u64, u64), ahead_max: u32) -> Advice {
        let mut now = self.0.lock();
        let core = &mut now.get_or_insert_default().core;
        core.get_or_insert_with(|| RunAhead::new(ahead_max)).read(offset, len, size)
    }

    pub fn find(&self, sau: SauIndex, era: u64) -> Option<Arc<Fetch>> {
        let now = self.0.lock();
        let mut fetches = now.as_ref()?.fetches.iter();
        fetches.find(|fetch| fetch.sau == sau && fetch.era == era).cloned()
    }

    /// `None`: there is one of it already, or there are too many.
    pub fn begin(&self, fetch: Fetch) -> Option<Arc<Fetch>> {
        let mut now = self.0.lock();
        let now = now.get_or_insert_default();
        let there = now.fetches.iter().any(|other| other.sau == fetch.sau && other.era == fetch.era);
        if there || now.fetches.len() >= FETCHES_MAX {
            return None;
        }
        let fetch = Arc::new(fetch);
        now.fetches.push(fetch.clone());
        Some(fetch)
    }

    /// It is found no more.
    pub fn forget(&self, fetch: &Arc<Fetch>) {
        if let Some(now) = &mut *self.0.lock() {
            now.fetches.retain(|other| !Arc::ptr_eq(other, fetch));
        }
    }

    /// Nobody reads any more: what comes next is a first request. What nobody else wants ends.
    pub fn close(&self) {
        let mut reading = self.0.lock();
        let Some(now) = &mut *reading else { return };
        now.core = None;
        now.fetches.iter().filter(|fetch| !fetch.asked).for_each(|fetch| fetch.stop());
        now.fetches.retain(|fetch| fetch.asked);
        if now.fetches.is_empty() {
            *reading = None;
        }
    }
}
