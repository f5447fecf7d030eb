//! The objects in use, and what the service knows of each.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ds::Object;
use parking_lot::{Mutex, RwLock};
use types::Ino;

use super::Record;

/// Reads and writes hold the state shared, whatever changes it holds it alone.
pub(crate) struct Held {
    pub ino: Ino,
    pub state: RwLock<State>,
    /// Milliseconds since the table was made.
    used: AtomicU64,
}

#[derive(Default)]
pub(crate) struct State {
    /// Loaded, and open at the data server.
    pub object: Option<Arc<Object>>,
    /// As it is stored, or as the commit of the first bytes stores it; `None`: there is no object.
    pub record: Option<Record>,
    /// The record says live, in this life of the memory tier.
    pub begun: bool,
    /// It has left the table: whoever wants it looks there again.
    pub gone: bool,
}

pub(crate) struct Table {
    held: Mutex<HashMap<Ino, Arc<Held>>>,
    started: Instant,
    max: usize,
}

impl Table {
    pub(crate) fn new(max: usize) -> Table {
        Table { held: Mutex::default(), started: Instant::now(), max }
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// The object's place, made if there is none; `None`: there are as many as there may be.
    pub(crate) fn get_or_make(&self, ino: Ino) -> Option<Arc<Held>> {
        let now = self.now();
        let mut held = self.held.lock();
        if let Some(one) = held.get(&ino) {
            one.used.store(now, Ordering::Relaxed);
            return Some(one.clone());
        }
        if held.len() >= self.max {
            return None;
        }
        let one = Arc::new(Held { ino, state: RwLock::default(), used: AtomicU64::new(now) });
        held.insert(ino, one.clone());
        Some(one)
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Held>> {
        self.held.lock().get(&ino).cloned()
    }

    /// Somebody uses it.
    pub(crate) fn touch(&self, held: &Held) {
        held.used.store(self.now(), Ordering::Relaxed);
    }

    /// It says that it is gone, under its lock.
    pub(crate) fn remove(&self, ino: Ino) {
        self.held.lock().remove(&ino);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Held>> {
        self.held.lock().values().cloned().collect()
    }

    /// Those that nobody used for so long, the longest unused first.
    pub(crate) fn idle(&self, idle: Duration) -> Vec<Arc<Held>> {
        let before = self.now().saturating_sub(idle.as_millis() as u64);
        let used = |one: &Arc<Held>| one.used.load(Ordering::Relaxed);
        let mut idle: Vec<_> = self.held.lock().values().filter(|one| used(one) <= before).cloned().collect();
        idle.sort_by_key(used);
        idle
    }
}
