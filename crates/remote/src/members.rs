//! Which of a stripe's two data servers is asked, for how long, and what then. Pure.
//!
//! Writes, and what is about a size, are the primary's; reads are either one's. Who does not answer is left aside for reads at once; that he is no member any
//! more the metadata server says, and until then what only he can answer is asked of him again.
//!
//! - I-MEMBERS-1: a read is asked of who counts in the view that it names, and of nobody else; everything else of that view's primary.
//! - I-MEMBERS-2: every request ends: with an answer, with the word that the view is another one, or at its time.
//! - I-MEMBERS-3: no error of one of the two is the answer to a read that the other one can give.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use types::Errno;

/// A member that has not answered for so long is asked about, and reads go to the other one.
pub(crate) const SILENT: Duration = Duration::from_secs(2);
/// The same of one of whom that is known from others.
const SILENT_AS_OTHERS: Duration = Duration::from_millis(200);
/// While there is no answer the metadata server is asked so often.
pub(crate) const LOOK: Duration = Duration::from_millis(500);
/// So long reads go to the other one.
const DOUBTED: Duration = Duration::from_secs(5);
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);
/// Reads of one such piece go to the same member.
const PIECE_SHIFT: u32 = 20;

/// Who has a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Members {
    pub primary: u64,
    /// If it counts.
    pub second: Option<u64>,
}

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// From there in the object, by a mount whose own data server this is (0: none).
    Read { offset: u64, own: u64 },
    /// A write, or what is as soon answered.
    Change,
    /// It waits for devices: that it takes long says nothing of its server.
    Slow,
}

/// Members that did not answer a moment ago, until when that counts.
#[derive(Default)]
pub(crate) struct Doubts(BTreeMap<u64, Instant>);

impl Doubts {
    pub(crate) fn silent(&mut self, now: Instant, node: u64) {
        self.0.insert(node, now + DOUBTED);
    }

    pub(crate) fn answered(&mut self, node: u64) {
        self.0.remove(&node);
    }

    fn has(&self, now: Instant, node: u64) -> bool {
        self.0.get(&node).is_some_and(|until| now < *until)
    }

    /// One alone tries it again when its time is over.
    fn is_left_aside(&mut self, now: Instant, node: u64) -> bool {
        if self.has(now, node) {
            return true;
        }
        if let Some(until) = self.0.get_mut(&node) {
            *until = now + SILENT + SILENT;
        }
        false
    }
}

impl Members {
    fn other(&self, node: u64) -> Option<u64> {
        if node == self.primary { self.second } else { Some(self.primary) }
    }

    fn reader(&self, now: Instant, doubts: &mut Doubts, (offset, own): (u64, u64)) -> u64 {
        let Some(second) = self.second else { return self.primary };
        let by_offset = if (offset >> PIECE_SHIFT) & 1 == 0 { self.primary } else { second };
        let first = if own == self.primary || own == second { own } else { by_offset };
        let other = if first == second { self.primary } else { second };
        if doubts.is_left_aside(now, first) && !doubts.is_left_aside(now, other) { other } else { first }
    }
}

/// What came of asking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Came {
    /// There is no connection, or it was lost.
    Lost,
    /// There was no answer yet.
    Nothing,
    /// It cannot yet, and says when it may.
    Later(Duration),
    /// The file's layout says another view, or will.
    OtherView,
    /// Only the primary can answer that now.
    PrimaryOnly,
    Error(Errno),
}

/// What the metadata server is asked, by somebody who does not wait for that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// That member does not answer.
    Silent(u64),
    Layout,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// It is waited for.
    Wait,
    Ask {
        node: u64,
        pause: Duration,
    },
    /// That is what there is to be said.
    Say(Errno),
}

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// Of one without any connection, or to which everybody says that he cannot yet.
    pub give_up: Instant,
    /// Of every one.
    pub end: Instant,
}

/// A request at one stripe, until it has its answer.
pub(crate) struct Trial {
    members: Members,
    kind: Kind,
    ends: Ends,
    begun: Instant,
    at: u64,
    asked: Instant,
    /// After which the metadata server is asked first, and the other one is.
    silent: Duration,
    patience: Duration,
    looked: bool,
    pause: Duration,
    /// The other one was asked since the last pause.
    turned: bool,
    primary_only: bool,
    /// One of two said that.
    error: Option<Errno>,
}

impl Trial {
    pub(crate) fn new(
        (members, kind): (Members, Kind),
        (now, ends): (Instant, Ends),
        doubts: &mut Doubts,
    ) -> Trial {
        let at = match kind {
            Kind::Read { offset, own } => members.reader(now, doubts, (offset, own)),
            Kind::Change | Kind::Slow => members.primary,
        };
        let mut trial = Trial {
            members,
            kind,
            ends,
            begun: now,
            at,
            asked: now,
            silent: SILENT,
            patience: SILENT,
            looked: false,
            pause: PAUSE_FIRST,
            turned: false,
            primary_only: false,
            error: None,
        };
        trial.asks(now, at, doubts);
        trial
    }

    /// Who is asked.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn end(&self) -> Instant {
        self.ends.end
    }

    /// No answer by then is [`Came::Nothing`].
    pub(crate) fn until(&self, now: Instant) -> Instant {
        let first = self.asked + self.silent;
        if self.looked || first <= now { now + LOOK } else { first }.min(self.ends.end)
    }

    /// What is to be asked beside, and what is next.
    pub(crate) fn came(&mut self, now: Instant, came: Came, doubts: &mut Doubts) -> (Option<Look>, Then) {
        match came {
            Came::OtherView => (None, Then::Say(Errno::ESTALE)),
            Came::PrimaryOnly if self.at == self.members.primary => {
                let pause = self.longer_pause();
                (None, self.pauses(now, pause, doubts))
            }
            Came::PrimaryOnly => {
                self.primary_only = true;
                (None, self.turn(now, self.members.primary, doubts))
            }
            Came::Error(error) => {
                let other = self.can_turn().filter(|_| error == Errno::EIO && self.error.is_none());
                self.error = Some(error);
                (None, other.map_or(Then::Say(error), |other| self.turn(now, other, doubts)))
            }
            Came::Later(after) => {
                // One that waits for what it lost long ago does not know that by itself.
                let look = (now >= self.begun + SILENT).then_some(Look::Layout);
                (look, self.turns_or_pauses(now, after, doubts))
            }
            Came::Lost => {
                doubts.silent(now, self.at);
                let look = Some(Look::Silent(self.at));
                let pause = self.longer_pause();
                (look, self.turns_or_pauses(now, pause, doubts))
            }
            Came::Nothing if now >= self.ends.end => (None, Then::Say(Errno::EIO)),
            Came::Nothing if self.kind == Kind::Slow => (Some(Look::Layout), Then::Wait),
            Came::Nothing => {
                self.looked = true;
                doubts.silent(now, self.at);
                let look = Some(Look::Silent(self.at));
                let waited = now.saturating_duration_since(self.asked);
                let other = self.can_turn().filter(|_| waited >= self.patience);
                let Some(other) = other else { return (look, Then::Wait) };
                // Who is slow and alone gets the time that he needs.
                self.patience *= 2;
                (look, self.turn(now, other, doubts))
            }
        }
    }

    /// Who else may answer.
    fn can_turn(&self) -> Option<u64> {
        match self.kind {
            Kind::Read { .. } if !self.primary_only => self.members.other(self.at),
            Kind::Read { .. } | Kind::Change | Kind::Slow => None,
        }
    }

    fn turns_or_pauses(&mut self, now: Instant, pause: Duration, doubts: &Doubts) -> Then {
        match self.can_turn() {
            Some(other) if !self.turned => self.turn(now, other, doubts),
            Some(_) | None => self.pauses(now, pause, doubts),
        }
    }

    fn turn(&mut self, now: Instant, to: u64, doubts: &Doubts) -> Then {
        self.turned = true;
        self.asks(now, to, doubts);
        Then::Ask { node: to, pause: Duration::ZERO }
    }

    fn asks(&mut self, now: Instant, node: u64, doubts: &Doubts) {
        (self.at, self.asked, self.looked) = (node, now, false);
        self.silent = if doubts.has(now, node) { SILENT_AS_OTHERS } else { SILENT };
    }

    fn longer_pause(&mut self) -> Duration {
        let next = (self.pause * 2).min(PAUSE_LONGEST);
        std::mem::replace(&mut self.pause, next)
    }

    fn pauses(&mut self, now: Instant, pause: Duration, doubts: &Doubts) -> Then {
        let pause = pause.clamp(PAUSE_FIRST, PAUSE_LONGEST);
        if now + pause >= self.ends.give_up.min(self.ends.end) {
            return Then::Say(Errno::EIO);
        }
        let to = self.can_turn().unwrap_or(self.at);
        self.asks(now + pause, to, doubts);
        self.turned = false;
        Then::Ask { node: to, pause }
    }
}

#[cfg(test)]
#[path = "members/tests.rs"]
mod tests;
