//! The standby's side, for one owner: what it has stored, how long it let the owner answer, and when it may go on in its place. See
//! [`crate::tail`].

use std::collections::VecDeque;

use super::{
    Terms,
    row::{Refused, Row},
};
use crate::{NodeId, tenure::Time};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// From the owner: a copy begins after this record.
    Begun { copy: u64, beat: u64, base: u64 },
    /// Records `from..=up_to` of the copy, perhaps none; the engine has all up to `applied`.
    Came { copy: u64, beat: u64, from: u64, up_to: u64, applied: u64 },
    /// They are in the copy's file, so that a killed process has them.
    Kept { copy: u64, up_to: u64 },
    /// What the database says of the owner: the row, and whether its lease has ended.
    Seen { row: Row<NodeId>, ended: bool },
    /// What became of the take-over. `Err`: nothing, and nothing will of this one.
    Took(Result<(), Refused>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// A new file for this copy, in place of the one there was.
    Start {
        copy: u64,
        base: u64,
    },
    /// Records that came, to its end.
    Keep {
        copy: u64,
        from: u64,
        up_to: u64,
    },
    /// The engine has them.
    Trim {
        copy: u64,
        up_to: u64,
    },
    Stored {
        copy: u64,
        beat: u64,
        up_to: u64,
    },
    Refused {
        copy: u64,
    },
    /// At the row, and the owner's lease.
    Look,
    /// In one transaction, with what the copy has up to this record. What became of it is asked until it is known.
    Take {
        copy: u64,
        up_to: u64,
    },
    /// It is ours now: to be served.
    Serve,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    /// The owner may send more.
    Open,
    /// It may not.
    Shut,
    Taking {
        next: Time,
    },
    /// Taken over, or there never was a copy.
    Nothing,
}

#[derive(Clone, Debug)]
pub struct Standby {
    terms: Terms,
    me: NodeId,
    state: State,
    copy: u64,
    base: u64,
    /// Handed to the file; `None`: the file is being made.
    coming: Option<u64>,
    stored: u64,
    trimmed: u64,
    /// The last that came.
    beat: u64,
    /// When the owner was last let to answer.
    granted: Time,
    next_look: Time,
    effects: VecDeque<Effect>,
}

impl Standby {
    /// Of an owner of whom there is nothing here.
    pub fn new(terms: Terms, me: NodeId, now: Time) -> Standby {
        Standby {
            terms,
            me,
            state: State::Nothing,
            copy: 0,
            base: 0,
            coming: None,
            stored: 0,
            trimmed: 0,
            beat: 0,
            granted: now,
            next_look: now,
            effects: VecDeque::new(),
        }
    }

    /// After a start: of the file of this copy, which has the records above `base` up to `stored`.
    pub fn found(terms: Terms, me: NodeId, now: Time, (copy, base, stored): (u64, u64, u64)) -> Standby {
        let new = Standby::new(terms, me, now);
        Standby { state: State::Shut, copy, base, coming: Some(stored), stored, trimmed: base, ..new }
    }

    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The copy's number, and the records that it has: above the first, up to the second.
    pub fn has(&self) -> (u64, u64, u64) {
        (self.copy, self.trimmed.max(self.base), self.stored)
    }

    /// By our clock, the owner answers nothing from then on that we let it.
    fn silent_at(&self) -> Time {
        self.terms.tenure.ended_at(self.granted)
    }

    pub fn next_deadline(&self) -> Option<Time> {
        match self.state {
            State::Nothing => None,
            State::Open | State::Shut => Some(self.silent_at().max(self.next_look)),
            State::Taking { next } => Some(next),
        }
    }

    pub fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Begun { copy, beat, base } => self.begun((copy, base), now, beat),
            Input::Came { copy, beat, from, up_to, applied } => {
                if self.state != State::Open || copy != self.copy {
                    self.refuse(copy);
                } else {
                    self.came(now, beat, (from, up_to), applied);
                }
            }
            Input::Kept { copy, up_to } => {
                if copy == self.copy && matches!(self.state, State::Open | State::Shut) {
                    self.coming = self.coming.max(Some(up_to));
                    self.stored = self.stored.max(up_to);
                    self.say(now);
                }
            }
            Input::Seen { row, ended } => {
                let waits = matches!(self.state, State::Open | State::Shut);
                let ours = row.take_over(&self.me, self.copy, ended).is_ok();
                if waits && ours && self.coming.is_some() && now >= self.silent_at() {
                    self.state = State::Taking { next: now };
                    self.take(now);
                }
            }
            Input::Took(outcome) => {
                if matches!(self.state, State::Taking { .. }) {
                    // What was refused to the owner meanwhile made it begin anew: no more comes of this copy.
                    self.state = if outcome.is_ok() { State::Nothing } else { State::Shut };
                    self.effects.extend(outcome.is_ok().then_some(Effect::Serve));
                }
            }
        }
    }

    pub fn handle_deadline(&mut self, now: Time) {
        match self.state {
            State::Nothing => {}
            State::Open | State::Shut => {
                if now >= self.silent_at().max(self.next_look) {
                    self.next_look = now.saturating_add(self.terms.again);
                    self.effects.push_back(Effect::Look);
                }
            }
            State::Taking { next } => {
                if now >= next {
                    self.take(now);
                }
            }
        }
    }

    fn take(&mut self, now: Time) {
        self.state = State::Taking { next: now.saturating_add(self.terms.again) };
        self.effects.push_back(Effect::Take { copy: self.copy, up_to: self.stored });
    }

    fn refuse(&mut self, copy: u64) {
        self.effects.push_back(Effect::Refused { copy });
    }

    fn begun(&mut self, (copy, base): (u64, u64), now: Time, beat: u64) {
        let taking = matches!(self.state, State::Taking { .. });
        if taking || copy < self.copy || (copy == self.copy && self.state != State::Open) {
            return self.refuse(copy);
        }
        self.beat = self.beat.max(beat);
        if copy == self.copy {
            return self.say(now);
        }
        (self.copy, self.base, self.stored, self.trimmed) = (copy, base, base, base);
        (self.state, self.coming, self.beat) = (State::Open, None, beat);
        self.granted = now;
        self.effects.push_back(Effect::Start { copy, base });
    }

    /// Beyond a hole nothing is taken: it is sent again from where it begins.
    fn came(&mut self, now: Time, beat: u64, (from, up_to): (u64, u64), applied: u64) {
        let Some(coming) = self.coming else { return };
        self.beat = self.beat.max(beat);
        if from <= coming + 1 && up_to > coming {
            self.coming = Some(up_to);
            self.effects.push_back(Effect::Keep { copy: self.copy, from: coming + 1, up_to });
        } else {
            self.say(now);
        }
        let trim = applied.min(self.stored);
        if trim > self.trimmed {
            self.trimmed = trim;
            self.effects.push_back(Effect::Trim { copy: self.copy, up_to: trim });
        }
    }

    /// What is stored; and with it the owner may answer for a while.
    fn say(&mut self, now: Time) {
        if self.state != State::Open || self.coming.is_none() {
            return;
        }
        self.granted = now;
        self.effects.push_back(Effect::Stored { copy: self.copy, beat: self.beat, up_to: self.stored });
    }
}
