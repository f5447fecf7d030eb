//! What a session is to be told by itself: kept until it says that it heard it, and handed to who listens.

use std::{collections::VecDeque, time::Instant};

use net::Reply;
use proto::{
    BATCH_MAX,
    locks::{Locked, Telling, Told},
};

/// Of one session. Its bound is that of the requests whose outcomes are in it.
#[derive(Default)]
pub(super) struct Mailbox {
    last: u64,
    tellings: VecDeque<Telling>,
    listener: Option<Listener>,
}

pub(super) struct Listener {
    pub reply: Reply,
    /// Then it is answered with nothing.
    pub until: Instant,
}

/// An answer to somebody who listens.
pub(super) type Heard = (Reply, Told);

impl Mailbox {
    pub(super) fn put(&mut self, operation: u64, locked: Locked) {
        self.last += 1;
        self.tellings.push_back(Telling { number: self.last, operation, locked: Some(locked) });
    }

    /// Somebody listens who has heard all up to `heard`. Returns who listened before.
    pub(super) fn listen(&mut self, heard: u64, listener: Listener) -> Option<Listener> {
        while self.tellings.front().is_some_and(|telling| telling.number <= heard) {
            self.tellings.pop_front();
        }
        self.listener.replace(listener)
    }

    /// Whoever listens, if there is something to say, or he has listened long enough.
    pub(super) fn ready(&mut self, now: Instant) -> Option<Heard> {
        let over = self.listener.as_ref().is_some_and(|listener| now >= listener.until);
        if self.tellings.is_empty() && !over {
            return None;
        }
        let told = Told { tellings: self.tellings.iter().take(BATCH_MAX).copied().collect() };
        self.listener.take().map(|listener| (listener.reply, told))
    }

    /// The session is over.
    pub(super) fn into_listener(self) -> Option<Listener> {
        self.listener
    }
}
