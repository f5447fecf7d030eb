//! Files with two copies: who is said not to answer, whose second copy is complete, which stripes lack one.
//!
//! What is done about it is [`super::tending`]'s and [`super::views`]'. Nothing here is stored: what lacks a copy is found again by a look through all layouts, at the start, and
//! whenever data servers come or go.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use proto::{
    copies::{CopyWord, Member},
    layout::file_and_stripe,
};
use types::Ino;

/// Words that wait; more are said again.
const WORDS_MAX: usize = 1 << 14;
/// Of a member that answers us somebody else has to complain for so long, at least so often, before it is believed.
pub(super) const DOUBTED_FOR: Duration = Duration::from_secs(4);
/// So long others are tried before one that did not answer the other data server.
pub(super) const APART_FOR: Duration = Duration::from_secs(30);

/// What was said of a stripe, in this view.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Heard {
    pub ino: Ino,
    pub stripe: usize,
    pub view: u64,
    /// This member does not answer; none: the second has every byte.
    pub silent: Option<Member>,
    /// By a client, who may be wrong.
    pub doubtful: bool,
}

/// By stripes.
type Doubted = HashMap<(Ino, usize, Member), (Instant, Instant)>;
type Apart = HashMap<(Ino, usize, u64), Instant>;
/// When, with which data servers and standings.
type Looked = (Instant, BTreeMap<u64, (u64, bool)>, u64);

#[derive(Default)]
pub(super) struct Replicas {
    pub heard: Mutex<BTreeSet<Heard>>,
    /// Somebody was heard, or a view was stored.
    pub woken: Condvar,
    pub wakes: Mutex<u64>,
    /// Of members that answered us: when somebody complained first, and last.
    pub doubted: Mutex<Doubted>,
    /// Members that were left out upon another data server's word, and when: the two may not reach each other, whoever else reaches both.
    pub apart: Mutex<Apart>,
    /// Files of which a stripe lacks a copy, or has one somewhere where it is not to stay.
    pub lacking: Mutex<BTreeSet<Ino>>,
    pub looked: Mutex<Option<Looked>>,
    pub tended: Mutex<Option<Instant>>,
    /// There is one.
    pub seen: AtomicBool,
    pub changed: AtomicU64,
    pub revived: AtomicU64,
}

impl Replicas {
    /// By data servers.
    pub fn hear(&self, words: &[CopyWord]) {
        for word in words {
            let Some(object) = word.object else { continue };
            let Some((ino, stripe)) = file_and_stripe(object.ino) else { continue };
            let (Some(ino), Some(view)) = (Ino::from_raw(ino), object.view) else { continue };
            self.note(Heard { ino, stripe, view: view.number, silent: word.silent, doubtful: false });
        }
    }

    pub fn note(&self, heard: Heard) {
        {
            let mut all = self.heard.lock();
            if all.len() < WORDS_MAX {
                all.insert(heard);
            }
        }
        self.seen.store(true, Ordering::Release);
        self.wake();
    }

    pub fn wake(&self) {
        *self.wakes.lock() += 1;
        self.woken.notify_all();
    }

    pub fn is_new(&self, ino: Ino, pairs: &[(Member, Option<Member>)]) {
        self.seen.store(true, Ordering::Release);
        if pairs.iter().any(|(_, second)| second.is_none()) {
            self.lacking.lock().insert(ino);
        }
    }

    /// Objects with fewer than two copies that count, or a file in which there is such a one; by files.
    pub fn lacking(&self) -> u64 {
        self.lacking.lock().len() as u64
    }
}
