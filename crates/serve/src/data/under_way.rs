//! Changes of objects that are under way, and over which connection each was asked.
//!
//! Who has no answer asks again over a newer connection, which takes the place of the older one. Then what came over the older one does not
//! begin any more, and for what has begun the newer requests for the same object wait: so what is answered is never undone by an earlier copy.
//! Others do not wait: a device that hangs costs only what is on it.

use std::time::{Duration, Instant};

use net::Incoming;
use parking_lot::{Condvar, Mutex};
use types::Ino;
use wire::schema::Lane;

use crate::answer::No;

/// Who waits looks so often whether he was superseded himself.
const LOOK: Duration = Duration::from_millis(100);

/// Who asks, and over which of his connections.
#[derive(Clone, Copy, PartialEq, Eq)]
struct From {
    node: u64,
    instance: u64,
    lane: Lane,
    connection: u64,
}

impl From {
    /// `None`: he does not say that he asks again.
    fn of(incoming: &Incoming) -> Option<From> {
        let peer = incoming.peer();
        let from = From {
            node: peer.node,
            instance: peer.instance,
            lane: incoming.lane(),
            connection: incoming.connection(),
        };
        (from.instance != 0).then_some(from)
    }

    /// Of the same asker; `other` is not superseded.
    fn is_older_than(self, other: From) -> bool {
        self.connection != other.connection && From { connection: other.connection, ..self } == other
    }
}

#[derive(Default)]
struct State {
    /// One for each thread that works, at most.
    changes: Vec<(Ino, From)>,
    waiting: usize,
}

#[derive(Default)]
pub(super) struct UnderWay {
    state: Mutex<State>,
    ended: Condvar,
}

/// A change that has begun, until it is dropped.
pub(super) struct Begun<'a> {
    of: &'a UnderWay,
    change: Option<(Ino, From)>,
}

impl UnderWay {
    /// To be called before an object changes, and before anything of it is locked.
    pub(super) fn begin(&self, incoming: &Incoming, ino: Ino) -> Result<Begun<'_>, No> {
        let Some(from) = From::of(incoming) else { return Ok(Begun { of: self, change: None }) };
        let mut state = self.state.lock();
        // Under the lock: whoever comes over the newer connection finds this one, or this one finds that it has come.
        while !incoming.is_superseded() {
            if let Some(begun) = self.begin_now(&mut state, (ino, from)) {
                return Ok(begun);
            }
            let now = Instant::now();
            if now >= incoming.deadline {
                return Err(No::later("an earlier request for the object is still under way"));
            }
            state.waiting += 1;
            self.ended.wait_until(&mut state, incoming.deadline.min(now + LOOK));
            state.waiting -= 1;
        }
        Err(No::later("a newer connection is in its connection's place"))
    }

    /// The same, if there is nobody to wait for.
    pub(super) fn try_begin(&self, incoming: &Incoming, ino: Ino) -> Option<Begun<'_>> {
        let Some(from) = From::of(incoming) else { return Some(Begun { of: self, change: None }) };
        let mut state = self.state.lock();
        if incoming.is_superseded() { None } else { self.begin_now(&mut state, (ino, from)) }
    }

    /// `None`: an earlier one of the object is under way.
    fn begin_now(&self, state: &mut State, change: (Ino, From)) -> Option<Begun<'_>> {
        let earlier = |(of, by): &(Ino, From)| *of == change.0 && by.is_older_than(change.1);
        if state.changes.iter().any(earlier) {
            return None;
        }
        state.changes.push(change);
        Some(Begun { of: self, change: Some(change) })
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let Some(change) = self.change else { return };
        let mut state = self.of.state.lock();
        if let Some(at) = state.changes.iter().position(|one| *one == change) {
            state.changes.swap_remove(at);
        }
        if state.waiting > 0 {
            self.of.ended.notify_all();
        }
    }
}
