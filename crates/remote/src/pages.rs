//! Bytes of files that were read and may be used again, in chunks. Pure.
//!
//! - I-PAGES-1: bytes are found under the lease alone under which they were asked for ([`crate::kept`] knows which one stands).
//! - I-PAGES-2: what this mount changes is not kept from before the change begins; what was asked for before a change ended is not kept.
//! - I-PAGES-3: bytes that are kept have a bound. What is asked for is counted when it comes.
//! - I-PAGES-4: nobody waits for bytes that nobody asks for: what is asked for comes, fails, or is overtaken, and each of these wakes who waits.

use std::{
    collections::{BTreeSet, HashMap, hash_map::RandomState},
    ops::Range,
    sync::Arc,
};

use quick_cache::{Lifecycle, OptionsBuilder, Weighter, unsync::Cache};
use types::Ino;

/// What is kept or goes at once. A read of some bytes here and there has as much read.
pub(crate) const CHUNK: u64 = 64 << 10;
/// Of a chunk, beside its bytes.
const OVERHEAD: u64 = 256;
/// The most that is asked for at once: a question to one data server, or to two.
pub(crate) const FETCH_MAX: u64 = 1 << 20;

type Key = (Ino, u64);

#[derive(Clone)]
struct Weight;

impl Weighter<Key, Arc<[u8]>> for Weight {
    fn weight(&self, _: &Key, bytes: &Arc<[u8]>) -> u64 {
        bytes.len() as u64 + OVERHEAD
    }
}

#[derive(Clone)]
struct Evicted;

impl Lifecycle<Key, Arc<[u8]>> for Evicted {
    type RequestState = Vec<Key>;

    fn begin_request(&self) -> Vec<Key> {
        Vec::new()
    }

    fn on_evict(&self, evicted: &mut Vec<Key>, key: Key, _: Arc<[u8]>) {
        evicted.push(key);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageCounts {
    /// Reads that were answered with what is kept, and those that had to ask.
    pub found: u64,
    pub missed: u64,
    /// Bytes at this moment.
    pub bytes: u64,
}

/// What is to be read for a file, under a number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fetch {
    pub ino: Ino,
    number: u64,
    pub from: u64,
    pub len: u64,
}

/// A part of what was asked for: bytes of a chunk.
pub(crate) type Piece = (Arc<[u8]>, Range<usize>);

pub(crate) enum Step {
    /// All there is of it.
    Found(Vec<Piece>),
    /// It is to be read, and [`Pages::fill`] or [`Pages::failed`] called.
    Fetch(Fetch),
    /// Somebody else reads it.
    Wait,
    /// It is being changed: what is read now is not kept.
    Pass,
}

struct File {
    lease: u64,
    /// How many changes of this mount are under way.
    changing: u32,
    /// There is nothing at this offset or behind it.
    end: u64,
    chunks: BTreeSet<u64>,
    /// Chunks that are being read, by the number of the fetch.
    asked: Vec<(u64, Range<u64>)>,
}

impl File {
    fn new(lease: u64) -> File {
        File { lease, changing: 0, end: u64::MAX, chunks: BTreeSet::new(), asked: Vec::new() }
    }

    fn is_idle(&self) -> bool {
        self.changing == 0 && self.chunks.is_empty() && self.asked.is_empty()
    }

    fn is_asked(&self, chunk: u64) -> bool {
        self.asked.iter().any(|(_, chunks)| chunks.contains(&chunk))
    }
}

pub(crate) struct Pages {
    cache: Cache<Key, Arc<[u8]>, Weight, RandomState, Evicted>,
    /// Those with chunks, or something under way.
    files: HashMap<Ino, File>,
    number: u64,
    counts: PageCounts,
}

impl Pages {
    /// `None` if that is less than something of use.
    pub(crate) fn new(bytes: u64) -> Option<Pages> {
        let chunks = usize::try_from(bytes / CHUNK).ok().filter(|chunks| *chunks > 0)?;
        let options =
            OptionsBuilder::new().estimated_items_capacity(chunks).weight_capacity(bytes).build().ok()?;
        let cache = Cache::with_options(options, Weight, RandomState::new(), Evicted);
        Some(Pages { cache, files: HashMap::new(), number: 0, counts: PageCounts::default() })
    }

    pub(crate) fn counts(&self) -> PageCounts {
        PageCounts { bytes: self.cache.weight(), ..self.counts }
    }

    fn file(&mut self, ino: Ino, lease: u64) -> &mut File {
        if self.files.get(&ino).is_some_and(|file| file.lease != lease) {
            self.drop_chunks(ino, 0..u64::MAX);
            if let Some(file) = self.files.get_mut(&ino) {
                *file = File { changing: file.changing, ..File::new(lease) };
            }
        }
        self.files.entry(ino).or_insert_with(|| File::new(lease))
    }

    fn drop_chunks(&mut self, ino: Ino, range: Range<u64>) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let gone: Vec<u64> = file.chunks.range(range).copied().collect();
        for chunk in gone {
            file.chunks.remove(&chunk);
            self.cache.remove(&(ino, chunk));
        }
    }

    fn forget_if_idle(&mut self, ino: Ino) {
        if self.files.get(&ino).is_some_and(File::is_idle) {
            self.files.remove(&ino);
        }
    }

    /// Chunks from `chunk` on that nobody has and nobody reads, up to `until`.
    fn missing(file: &File, chunk: u64, until: u64) -> Range<u64> {
        let until = until.min(chunk + FETCH_MAX / CHUNK);
        let missing = |at: &u64| !file.chunks.contains(at) && !file.is_asked(*at);
        chunk..(chunk..until).find(|at| !missing(at)).unwrap_or(until)
    }

    fn ask(&mut self, ino: Ino, chunks: Range<u64>) -> Fetch {
        self.number += 1;
        let (from, len) = (chunks.start * CHUNK, (chunks.end - chunks.start) * CHUNK);
        if let Some(file) = self.files.get_mut(&ino) {
            file.asked.push((self.number, chunks));
        }
        Fetch { ino, number: self.number, from, len }
    }

    /// What of `len` bytes is kept, or what is to be done for that. If something has to be read, `ahead` bytes of the offset on are.
    pub(crate) fn step(&mut self, (ino, lease): (Ino, u64), offset: u64, len: u64, ahead: u64) -> Step {
        let file = self.file(ino, lease);
        let (changing, known) = (file.changing > 0, file.end);
        let end = offset.saturating_add(len).min(known);
        let mut pieces = Vec::new();
        let mut at = offset;
        while at < end {
            let chunk = at / CHUNK;
            let (start, stop) = ((at - chunk * CHUNK) as usize, (end - chunk * CHUNK).min(CHUNK) as usize);
            match self.cache.get(&(ino, chunk)).filter(|bytes| bytes.len() >= stop) {
                Some(bytes) => pieces.push((bytes.clone(), start..stop)),
                None if changing => {
                    self.forget_if_idle(ino);
                    return Step::Pass;
                }
                None => return self.miss((ino, chunk), offset.saturating_add(ahead.max(len)).min(known)),
            }
            at = chunk * CHUNK + stop as u64;
        }
        self.counts.found += 1;
        self.forget_if_idle(ino);
        Step::Found(pieces)
    }

    /// What is kept, if that is all of it.
    pub(crate) fn peek(&mut self, (ino, lease): (Ino, u64), offset: u64, len: u64) -> Option<Vec<Piece>> {
        let file = self.files.get(&ino).filter(|file| file.lease == lease)?;
        let end = offset.saturating_add(len).min(file.end);
        let chunks = offset / CHUNK..end.div_ceil(CHUNK);
        if offset < end && !chunks.clone().all(|chunk| file.chunks.contains(&chunk)) {
            return None;
        }
        match self.step((ino, lease), offset, len, 0) {
            Step::Found(pieces) => Some(pieces),
            Step::Fetch(fetch) => {
                self.failed(&fetch);
                None
            }
            Step::Wait | Step::Pass => None,
        }
    }

    fn miss(&mut self, (ino, chunk): Key, until: u64) -> Step {
        self.counts.missed += 1;
        let Some(file) = self.files.get_mut(&ino) else { return Step::Pass };
        if file.is_asked(chunk) {
            return Step::Wait;
        }
        // One that is there and too short is none.
        file.chunks.remove(&chunk);
        let chunks = Pages::missing(file, chunk, until.div_ceil(CHUNK).max(chunk + 1));
        Step::Fetch(self.ask(ino, chunks))
    }

    /// What of a range is worth reading before somebody asks for it.
    pub(crate) fn ahead(&mut self, (ino, lease): (Ino, u64), range: Range<u64>) -> Option<Fetch> {
        let file = self.file(ino, lease);
        let end = range.end.min(file.end).div_ceil(CHUNK);
        let first = (range.start / CHUNK..end).find(|at| !file.chunks.contains(at) && !file.is_asked(*at));
        let chunks = first.filter(|_| file.changing == 0).map(|first| Pages::missing(file, first, end));
        let fetch = chunks.map(|chunks| self.ask(ino, chunks));
        self.forget_if_idle(ino);
        fetch
    }

    /// What was read: all that there is of what was to be. `false`: it is not kept, since something overtook it.
    pub(crate) fn fill(&mut self, fetch: &Fetch, bytes: u64, chunks: Vec<Arc<[u8]>>) -> bool {
        if !self.take(fetch) {
            return false;
        }
        let Fetch { ino, from, len, .. } = *fetch;
        if let Some(file) = self.files.get_mut(&ino)
            && bytes < len
        {
            file.end = file.end.min(from + bytes);
        }
        for (n, part) in chunks.into_iter().enumerate() {
            let chunk = from / CHUNK + n as u64;
            if let Some(file) = self.files.get_mut(&ino) {
                file.chunks.insert(chunk);
            }
            for (of, chunk) in self.cache.insert_with_lifecycle((ino, chunk), part) {
                if let Some(file) = self.files.get_mut(&of) {
                    file.chunks.remove(&chunk);
                }
                if of != ino {
                    self.forget_if_idle(of);
                }
            }
        }
        self.forget_if_idle(ino);
        true
    }

    pub(crate) fn failed(&mut self, fetch: &Fetch) {
        self.take(fetch);
        self.forget_if_idle(fetch.ino);
    }

    /// Is it still wanted?
    fn take(&mut self, fetch: &Fetch) -> bool {
        let Some(file) = self.files.get_mut(&fetch.ino) else { return false };
        let before = file.asked.len();
        file.asked.retain(|(number, _)| *number != fetch.number);
        file.asked.len() < before
    }

    /// This mount begins to change these bytes; `None`: any of them, or the size.
    pub(crate) fn begin_change(&mut self, ino: Ino, range: Option<Range<u64>>) {
        let file = self.files.entry(ino).or_insert_with(|| File::new(0));
        file.changing += 1;
        file.asked.clear();
        let known = file.end;
        let range = range.unwrap_or(0..u64::MAX);
        if range.end > known || range.end == u64::MAX {
            file.end = u64::MAX;
            // It is longer now.
            self.drop_chunks(ino, known / CHUNK..known / CHUNK + 1);
        }
        self.drop_chunks(ino, range.start / CHUNK..range.end.div_ceil(CHUNK));
    }

    pub(crate) fn end_change(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.changing = file.changing.saturating_sub(1);
            file.asked.clear();
        }
        self.forget_if_idle(ino);
    }

    /// It was asked back.
    pub(crate) fn forget(&mut self, ino: Ino) {
        self.drop_chunks(ino, 0..u64::MAX);
        if let Some(file) = self.files.get_mut(&ino) {
            *file = File { changing: file.changing, ..File::new(0) };
        }
        self.forget_if_idle(ino);
    }

    /// All of it was.
    pub(crate) fn clear(&mut self) {
        let all: Vec<Ino> = self.files.keys().copied().collect();
        all.into_iter().for_each(|ino| self.forget(ino));
    }
}

/// How an opening is read: one after the other, or here and there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Run {
    next: u64,
    /// Bytes that were read one after the other.
    length: u64,
    /// Up to here it was asked for ahead.
    ahead: u64,
}

/// What a run begins with: as the kernel's own.
const FIRST: u64 = 128 << 10;
/// Ahead of a long run: several data servers have a part of it.
const WINDOW_MAX: u64 = 4 << 20;

impl Run {
    /// A read. Returns how much is worth reading from there on, and what ahead of it, while the program goes on.
    pub(crate) fn read(&mut self, offset: u64, len: u64) -> (u64, Option<Range<u64>>) {
        let goes_on = offset == self.next && offset > 0;
        if !goes_on {
            *self = Run::default();
        }
        self.length = self.length.saturating_add(len);
        self.next = offset.saturating_add(len);
        if !goes_on && offset > 0 {
            return (len, None);
        }
        let window = self.length.saturating_mul(2).clamp(FIRST, WINDOW_MAX);
        let want = window.min(FETCH_MAX).max(len);
        if self.length < FIRST {
            return (want, None);
        }
        let (from, to) = (self.ahead.max(self.next), self.next.saturating_add(window));
        if to.saturating_sub(from) < window / 2 {
            return (want, None);
        }
        self.ahead = to;
        (want, Some(from..to))
    }
}

#[cfg(test)]
mod tests;
