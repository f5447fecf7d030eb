//! Recently read entries of the engine, absences too.
//!
//! Invariant: an entry says what the engine says. A reader that missed takes a [`Ticket`] *before* it reads the
//! engine and gives it back when it fills; a checkpoint calls [`Cache::begin_update`] after the engine took the batch
//! and before it updates any key. A fill whose ticket is older than that is dropped, and both happen under the
//! key's lock, so an old value can never come in after the new one. Entries of the overlay hide those of the
//! cache, so a checkpoint must have updated all keys before it drops the overlay. Where others write to the engine too, whoever
//! lets them, or follows them, calls [`Cache::clear`].

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::key::Key;

const SHARDS: usize = 32;
/// What an entry costs beyond its bytes: key, slot, index and the value's allocation.
const ENTRY_BYTES: usize = 128;

/// The state of the engine that a reader is going to see, at least.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

pub(crate) struct Cache {
    shards: Box<[Mutex<Shard>]>,
    seed: u64,
    updates: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Cache {
    pub(crate) fn new(bytes_max: u64) -> Cache {
        let per_shard = usize::try_from(bytes_max).unwrap_or(usize::MAX) / SHARDS;
        let shards =
            (0..SHARDS).map(|_| Mutex::new(Shard { bytes_max: per_shard, ..Shard::default() })).collect();
        Cache {
            shards,
            seed: RandomState::new().hash_one(0),
            updates: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// `Ok(None)`: known to be absent. `Err`: not known; read the engine, then [`Cache::fill`].
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Ticket> {
        let ticket = self.ticket();
        let (hash, shard) = self.locate(key);
        match shard.lock().get(hash, key) {
            Some(value) => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                Ok(value)
            }
            None => {
                self.misses.fetch_add(1, Ordering::Relaxed);
                Err(ticket)
            }
        }
    }

    /// Of the engine's state by now.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.updates.load(Ordering::Acquire))
    }

    pub(crate) fn fill(&self, ticket: Ticket, key: &[u8], value: Option<Bytes>) {
        let (hash, shard) = self.locate(key);
        let mut shard = shard.lock();
        if self.updates.load(Ordering::Acquire) == ticket.0 {
            shard.set(hash, key, value);
        }
    }

    pub(crate) fn begin_update(&self) {
        self.updates.fetch_add(1, Ordering::AcqRel);
    }

    /// What was just written is likely to be read, so values come in; deletions only replace.
    pub(crate) fn update(&self, key: &[u8], value: Option<&Bytes>) {
        let (hash, shard) = self.locate(key);
        let mut shard = shard.lock();
        match value {
            Some(value) => shard.set(hash, key, Some(value.clone())),
            None if shard.holds(hash, key) => shard.set(hash, key, None),
            None => {}
        }
    }

    /// Drops all entries, and what readers that have begun would fill in.
    pub(crate) fn clear(&self) {
        self.begin_update();
        for shard in &self.shards {
            let mut shard = shard.lock();
            *shard = Shard { bytes_max: shard.bytes_max, ..Shard::default() };
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes).sum()
    }

    pub(crate) fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }

    fn locate(&self, key: &[u8]) -> (u64, &Mutex<Shard>) {
        let hash = hash_of(key, self.seed);
        (hash, &self.shards[(hash >> 32) as usize % SHARDS])
    }
}

/// Keyed, and fast: two keys with the same hash only take each other's place.
fn hash_of(key: &[u8], seed: u64) -> u64 {
    let mix = |sum: u64, word: u64| {
        let product = u128::from(sum ^ word) * u128::from(0x9e37_79b9_7f4a_7c15_u64 | seed << 1);
        (product >> 64) as u64 ^ product as u64
    };
    let (words, rest) = key.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let sum = words.iter().fold(seed ^ key.len() as u64, |sum, word| mix(sum, u64::from_le_bytes(*word)));
    mix(mix(sum, u64::from_le_bytes(last)), seed.rotate_left(32))
}

/// Entries in a ring; the hand drops the first one that was not used since it last came by.
#[derive(Default)]
struct Shard {
    index: HashMap<u64, usize, BuildHasherDefault<Identity>>,
    ring: Vec<Entry>,
    hand: usize,
    bytes: usize,
    bytes_max: usize,
}

struct Entry {
    hash: u64,
    key: Key,
    value: Option<Bytes>,
    used: bool,
}

impl Entry {
    fn cost(&self) -> usize {
        ENTRY_BYTES + self.key.heap_bytes() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

impl Shard {
    fn get(&mut self, hash: u64, key: &[u8]) -> Option<Option<Bytes>> {
        let entry = &mut self.ring[*self.index.get(&hash)?];
        if *entry.key != *key {
            return None;
        }
        entry.used = true;
        Some(entry.value.clone())
    }

    fn holds(&self, hash: u64, key: &[u8]) -> bool {
        self.index.get(&hash).is_some_and(|at| *self.ring[*at].key == *key)
    }

    /// An entry of another key with the same hash gives way.
    fn set(&mut self, hash: u64, key: &[u8], value: Option<Bytes>) {
        if let Some(at) = self.index.get(&hash).copied() {
            self.remove(at);
        }
        let entry = Entry { hash, key: Key::new(key), value, used: false };
        let cost = entry.cost();
        if cost > self.bytes_max {
            return;
        }
        while self.bytes + cost > self.bytes_max {
            self.evict();
        }
        self.bytes += cost;
        self.index.insert(hash, self.ring.len());
        self.ring.push(entry);
    }

    fn evict(&mut self) {
        loop {
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            match self.ring.get_mut(self.hand) {
                None => return,
                Some(entry) if entry.used => {
                    entry.used = false;
                    self.hand += 1;
                }
                Some(_) => return self.remove(self.hand),
            }
        }
    }

    fn remove(&mut self, at: usize) {
        let removed = self.ring.swap_remove(at);
        self.bytes -= removed.cost();
        self.index.remove(&removed.hash);
        if let Some(moved) = self.ring.get(at) {
            self.index.insert(moved.hash, at);
        }
    }
}

/// The index's keys are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, b| sum.rotate_left(8) ^ u64::from(*b));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(n: u64) -> Option<Bytes> {
        Some(Bytes::copy_from_slice(&n.to_le_bytes()))
    }

    #[test]
    fn a_fill_that_began_before_a_checkpoint_is_dropped() {
        // Goal: a reader that read the engine's old value cannot put it over the new one. Method: the interleaving
        // by hand, for a key that was not in the cache, and for a deletion, which leaves no entry behind.
        let cache = Cache::new(1 << 20);
        for new in [value(2), None] {
            let Err(ticket) = cache.get(b"key") else { panic!("not there yet") };
            cache.begin_update();
            cache.update(b"key", new.as_ref());
            cache.fill(ticket, b"key", value(1));
            assert_ne!(cache.get(b"key").ok(), Some(value(1)));
            cache.update(b"key", None);
            cache.shards.iter().for_each(|s| {
                while !s.lock().ring.is_empty() {
                    s.lock().remove(0)
                }
            });
        }
    }

    #[test]
    fn a_fill_between_the_engine_and_the_update_is_overwritten() {
        let cache = Cache::new(1 << 20);
        let Err(ticket) = cache.get(b"key") else { panic!("not there yet") };
        cache.fill(ticket, b"key", value(1));
        cache.begin_update();
        cache.update(b"key", None);
        assert!(matches!(cache.get(b"key"), Ok(None)));
    }

    #[test]
    fn bytes_stay_within_the_bound_and_content_stays_right() {
        // Goal: bounded, and never another key's value. Method: many more entries than fit, all sizes, overwritten.
        let cache = Cache::new(256 << 10);
        for n in 0..20_000u64 {
            let key = (n % 7_000).to_be_bytes();
            let wanted = Some(Bytes::from(vec![(n % 7_000) as u8; (n % 7_000) as usize % 900]));
            match cache.get(&key) {
                Ok(found) => assert_eq!(found, wanted),
                Err(ticket) => cache.fill(ticket, &key, wanted),
            }
            assert!(cache.bytes() <= 256 << 10);
        }
        assert!(cache.bytes() > 128 << 10, "and it is used: {}", cache.bytes());
        let counted: usize =
            cache.shards.iter().map(|s| s.lock().ring.iter().map(Entry::cost).sum::<usize>()).sum();
        assert_eq!(cache.bytes(), counted);
    }

    #[test]
    fn an_entry_larger_than_the_cache_is_not_kept() {
        let cache = Cache::new(0);
        let Err(ticket) = cache.get(b"key") else { panic!("not there yet") };
        cache.fill(ticket, b"key", value(1));
        assert!(cache.get(b"key").is_err());
        assert_eq!(cache.bytes(), 0);
    }
}
