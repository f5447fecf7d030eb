//! Attempts to copy an object from another data server, and how far they are.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use net::Credentials;
use parking_lot::Mutex;
use proto::{
    data::Object,
    moving::{Pull, PullState, Pulled, WHY_MAX},
};
use types::Ino;

use super::{
    mark::Marks,
    source::{Pace, Source},
};
use crate::answer::{Done, No, Outcome};

/// Who is not asked for so long gives up.
pub(super) const GIVEN_UP_AFTER: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Arriving {
    pub credentials: OnceLock<Credentials>,
    pub attempts: Mutex<HashMap<Ino, Arc<Attempt>>>,
    pub marks: Mutex<Marks>,
    pub threads: Mutex<Vec<JoinHandle<()>>>,
    pub pace: Pace,
}

/// One attempt to copy an object.
pub(super) struct Attempt {
    pub number: u64,
    pub from: Object,
    pub to: Object,
    pub source: Source,
    pub copied: AtomicU64,
    /// Bytes that were welcome; 0: whatever they are.
    room: u64,
    /// Held by who copies.
    pub copying: Mutex<()>,
    state: Mutex<State>,
    given_up: AtomicBool,
}

struct State {
    at: PullState,
    why: Option<No>,
    asked: Instant,
}

impl Attempt {
    pub(super) fn begin(asked: &Pull, (from, to): (Object, Object), source: Source) -> Attempt {
        let state = State { at: PullState::Copying, why: None, asked: Instant::now() };
        Attempt {
            number: asked.attempt,
            from,
            to,
            source,
            copied: AtomicU64::new(0),
            room: asked.room,
            copying: Mutex::default(),
            state: Mutex::new(state),
            given_up: AtomicBool::new(false),
        }
    }

    /// Whoever copies looks at it between two pieces.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire) || self.state.lock().asked.elapsed() > GIVEN_UP_AFTER
    }

    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// Of the room that was asked for, what has not come.
    pub(super) fn room_left(&self) -> u64 {
        if self.is(PullState::Failed) || self.is_given_up() {
            return 0;
        }
        self.room.saturating_sub(self.copied.load(Ordering::Relaxed))
    }

    pub(super) fn is(&self, at: PullState) -> bool {
        self.state.lock().at == at
    }

    pub(super) fn becomes(&self, at: PullState) {
        self.state.lock().at = at;
    }

    pub(super) fn fails(&self, why: No) {
        let mut state = self.state.lock();
        (state.at, state.why) = (PullState::Failed, Some(why));
    }

    pub(super) fn says(&self) -> Outcome {
        let mut state = self.state.lock();
        state.asked = Instant::now();
        let fault = state.why.as_ref().map(|no| &no.0);
        let why: String =
            fault.map_or(String::new(), |fault| fault.detail.chars().take(WHY_MAX / 4).collect());
        Ok(Done::new(&Pulled {
            state: state.at.into(),
            copied: self.copied.load(Ordering::Relaxed),
            errno: fault.map_or(0, |fault| fault.errno),
            why,
        }))
    }
}
