//! Open objects, least recently used out first. A shard's lock is held for table work only, never for I/O.

use crate::object::ObjectFd;
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc};
use types::Ino;

const SHARDS: usize = 16;
const NONE: u32 = u32::MAX;

pub(crate) struct FdCache {
    shards: Vec<Mutex<Shard>>,
}

/// Tells whether an object was removed since it was taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

pub(crate) enum Inserted {
    /// Ours is in, or another thread's was there first.
    Is(Arc<ObjectFd>),
    /// Something was removed meanwhile: the descriptor may be of a file that is gone. Open again.
    Stale,
}

struct Shard {
    capacity: usize,
    removals: u64,
    index: HashMap<Ino, u32>,
    nodes: Vec<Node>,
    newest: u32,
    oldest: u32,
}

struct Node {
    object: Arc<ObjectFd>,
    newer: u32,
    older: u32,
}

impl FdCache {
    /// At most `capacity` descriptors (at least one).
    pub fn new(capacity: usize) -> FdCache {
        let shards = if capacity < 4 * SHARDS { 1 } else { SHARDS };
        let capacity = (capacity / shards).max(1);
        FdCache { shards: (0..shards).map(|_| Mutex::new(Shard::new(capacity))).collect() }
    }

    pub fn get(&self, ino: Ino) -> Result<Arc<ObjectFd>, Ticket> {
        let mut shard = self.shard(ino).lock();
        let Some(&at) = shard.index.get(&ino) else { return Err(Ticket(shard.removals)) };
        shard.touch(at);
        Ok(shard.nodes[at as usize].object.clone())
    }

    pub fn insert(&self, ticket: Ticket, object: &Arc<ObjectFd>) -> Inserted {
        let mut shard = self.shard(object.ino()).lock();
        if shard.removals != ticket.0 {
            return Inserted::Stale;
        }
        if let Some(&at) = shard.index.get(&object.ino()) {
            shard.touch(at);
            return Inserted::Is(shard.nodes[at as usize].object.clone());
        }
        let evicted = if shard.nodes.len() >= shard.capacity { shard.evict_oldest() } else { None };
        shard.push(object.clone());
        drop(shard);
        // Closing happens here, outside the lock, unless someone still uses it.
        drop(evicted);
        Inserted::Is(object.clone())
    }

    /// Call after the file was unlinked.
    pub fn removed(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        shard.removals += 1;
        let gone = shard.index.get(&ino).copied().map(|at| shard.take(at));
        drop(shard);
        drop(gone);
    }

    /// Keeps nothing. Who uses a descriptor keeps it open.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut gone = Vec::new();
            let mut shard = shard.lock();
            while let Some(object) = shard.evict_oldest() {
                gone.push(object);
            }
            drop(shard);
        }
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().nodes.len()).sum()
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        // The low bits run on from create to create; the shift spreads those that the fan-out puts together.
        let n = ino.get() ^ (ino.get() >> 8);
        &self.shards[(n % self.shards.len() as u64) as usize]
    }
}

impl Shard {
    fn new(capacity: usize) -> Shard {
        Shard { capacity, removals: 0, index: HashMap::new(), nodes: Vec::new(), newest: NONE, oldest: NONE }
    }

    fn touch(&mut self, at: u32) {
        if self.newest != at {
            self.unlink(at);
            self.link_newest(at);
        }
    }

    fn push(&mut self, object: Arc<ObjectFd>) {
        let at = self.nodes.len() as u32;
        self.index.insert(object.ino(), at);
        self.nodes.push(Node { object, newer: NONE, older: NONE });
        self.link_newest(at);
    }

    fn evict_oldest(&mut self) -> Option<Arc<ObjectFd>> {
        (self.oldest != NONE).then(|| self.take(self.oldest))
    }

    /// Removes a node; the last node moves into its place.
    fn take(&mut self, at: u32) -> Arc<ObjectFd> {
        self.unlink(at);
        let last = self.nodes.len() as u32 - 1;
        let node = self.nodes.swap_remove(at as usize);
        self.index.remove(&node.object.ino());
        if at != last {
            let moved = &self.nodes[at as usize];
            let (newer, older) = (moved.newer, moved.older);
            self.index.insert(moved.object.ino(), at);
            self.set_older_of(newer, at);
            self.set_newer_of(older, at);
        }
        node.object
    }

    fn unlink(&mut self, at: u32) {
        let Node { newer, older, .. } = self.nodes[at as usize];
        self.set_older_of(newer, older);
        self.set_newer_of(older, newer);
    }

    fn link_newest(&mut self, at: u32) {
        let older = self.newest;
        self.nodes[at as usize].newer = NONE;
        self.nodes[at as usize].older = older;
        self.set_newer_of(older, at);
        self.newest = at;
    }

    fn set_older_of(&mut self, at: u32, to: u32) {
        if at == NONE { self.newest = to } else { self.nodes[at as usize].older = to }
    }
    fn set_newer_of(&mut self, at: u32, to: u32) {
        if at == NONE { self.oldest = to } else { self.nodes[at as usize].newer = to }
    }
}
