//! The owner's side: what it may answer, what its standby is sent, and what the row has to say first. See [`crate::tail`].
//!
//! It begins as one whose row may say anything, and answers nothing until that is settled. *Alone* it answers at once. To have a copy it writes
//! the number of that into the row, carries what there is into the engine, and sends what comes after that; when the standby is nearly up to
//! date answers begin to wait for it, and when it has all that was answered the row says that the copy is complete.

use std::collections::{BTreeMap, VecDeque};

use super::{Terms, row::Change};
use crate::{NodeId, tenure::Time};

/// Beats whose answers are still awaited; later ones have made older ones worthless.
const AWAITED_MAX: usize = 8;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// By the map.
    Standby(Option<NodeId>),
    /// The record that follows the last one is in the journal.
    Added,
    /// The standby has stored all of the copy up to this record; of the copy, before it takes over, it let us answer for a while.
    Stored { by: NodeId, copy: u64, beat: u64, up_to: u64 },
    /// The standby takes nothing for the copy.
    Refused { by: NodeId, copy: u64 },
    /// The row is as the write of this number says.
    Written { write: u64 },
    /// The row is no more ours: somebody took over.
    Fenced,
    /// The engine has all up to this record.
    Applied { up_to: u64 },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// To be said by the row, under the session that we have in the database. Of several the last one counts.
    Write { write: u64, change: Change<NodeId> },
    /// What was added up to now is to go into the engine.
    Carry,
    /// A copy begins after this record. What is known of operations that may be asked again goes along.
    Begin { to: NodeId, copy: u64, beat: u64, base: u64 },
    /// Records `from..=to`, perhaps none; the engine has all up to `applied`.
    Send { to: NodeId, copy: u64, beat: u64, from: u64, up_to: u64, applied: u64 },
    /// What was added up to here may be answered.
    Answer { up_to: u64 },
    /// For people.
    Says(Says),
    /// Nothing is answered any more.
    StepDown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Says {
    Complete {
        standby: NodeId,
    },
    /// The row says so.
    Alone,
    Ended {
        standby: NodeId,
        why: Why,
    },
}

/// Why a copy ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// It confirmed nothing for long.
    Silent,
    /// It takes no more: it was started again, or looks whether it has to take over.
    Refused,
    /// More came than can be kept for it.
    Slow,
    /// Another one is to have it.
    Replaced,
}

#[derive(Clone, Debug)]
struct Copy {
    number: u64,
    standby: NodeId,
    base: u64,
    /// The standby has heard of it.
    begun: bool,
    sent: u64,
    stored: u64,
    /// When the standby last confirmed something, or had all.
    moved: Time,
    next_beat: Time,
    /// When they were sent.
    awaited: BTreeMap<u64, Time>,
}

#[derive(Clone, Debug)]
enum State {
    /// The row may say anything until it says that nobody has a copy. What copy there was goes on meanwhile.
    Leaving {
        write: u64,
        next: Time,
        copy: Option<Copy>,
    },
    Alone {
        again: Time,
    },
    /// The row is to name the standby.
    Opening {
        write: u64,
        next: Time,
        standby: NodeId,
        number: u64,
    },
    /// The engine is to have all up to `base`.
    Carrying {
        standby: NodeId,
        number: u64,
        base: u64,
    },
    /// Sent, and not waited for.
    Filling(Copy),
    /// Waited for; what was answered before, up to `free`, is not all there.
    Closing {
        copy: Copy,
        free: u64,
    },
    /// The row says that it is complete, or may.
    Held {
        copy: Copy,
        write: u64,
        next: Time,
        confirmed: bool,
    },
    Over,
}

#[derive(Clone, Debug)]
pub struct Owner {
    terms: Terms,
    standby: Option<NodeId>,
    state: State,
    /// No copy of a higher number was ever in the row.
    number: u64,
    /// Up to when the standby let us answer.
    until: Time,
    began_at: u64,
    last: u64,
    applied: u64,
    answered: u64,
    writes: u64,
    beats: u64,
    effects: VecDeque<Effect>,
}

impl Owner {
    /// The engine has all up to `last`; the row has had no copy of a higher number than `number`.
    pub fn new(terms: Terms, number: u64, last: u64, now: Time) -> Owner {
        let mut owner = Owner {
            terms,
            standby: None,
            state: State::Alone { again: now },
            number,
            until: Time::ZERO,
            began_at: last,
            last,
            applied: last,
            answered: last,
            writes: 0,
            beats: 0,
            effects: VecDeque::new(),
        };
        owner.leave(now, None);
        owner
    }

    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// May anything be answered now? Asked after the answer is known, and before it is given.
    pub fn may_answer(&self, now: Time) -> bool {
        match &self.state {
            State::Over => false,
            State::Leaving { .. } | State::Held { .. } => now < self.until,
            State::Alone { .. }
            | State::Opening { .. }
            | State::Carrying { .. }
            | State::Filling(_)
            | State::Closing { .. } => true,
        }
    }

    /// What may go into the engine.
    pub fn may_apply(&self) -> u64 {
        match &self.state {
            State::Over => self.applied,
            State::Leaving { copy: None, .. } => self.began_at.max(self.applied),
            State::Leaving { copy: Some(copy), .. } | State::Held { copy, .. } => copy.stored,
            State::Closing { copy, free } => copy.stored.max(*free),
            State::Alone { .. } | State::Opening { .. } | State::Carrying { .. } | State::Filling(_) => {
                self.last
            }
        }
    }

    /// Records above this are kept for the standby.
    pub fn kept_above(&self) -> u64 {
        match &self.state {
            State::Carrying { base, .. } => *base,
            State::Filling(copy)
            | State::Closing { copy, .. }
            | State::Held { copy, .. }
            | State::Leaving { copy: Some(copy), .. } => copy.stored,
            State::Leaving { copy: None, .. } | State::Alone { .. } | State::Opening { .. } | State::Over => {
                self.last
            }
        }
    }

    /// Records that are answered only when the standby has them.
    pub fn lag(&self) -> u64 {
        self.last - self.answered
    }

    /// Confirmed by the row.
    pub fn is_complete(&self) -> bool {
        matches!(self.state, State::Held { confirmed: true, .. })
    }

    /// The row may name somebody who can go on in our place.
    pub fn may_be_replaced(&self) -> bool {
        matches!(self.state, State::Leaving { .. } | State::Held { .. })
    }

    /// When there is something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        let copy = |copy: &Copy| copy.next_beat.min(copy.moved.saturating_add(self.terms.patience));
        match &self.state {
            State::Over | State::Carrying { .. } => None,
            State::Alone { again } => self.standby.map(|_| *again),
            State::Opening { next, .. } | State::Leaving { next, copy: None, .. } => Some(*next),
            State::Leaving { next, copy: Some(copy), .. } => Some((*next).min(copy.next_beat)),
            State::Filling(some) | State::Closing { copy: some, .. } => Some(copy(some)),
            State::Held { copy: some, confirmed: true, .. } => Some(copy(some)),
            State::Held { copy: some, next, .. } => Some(copy(some).min(*next)),
        }
    }

    pub fn handle(&mut self, now: Time, input: Input) {
        if matches!(self.state, State::Over) {
            return;
        }
        match input {
            Input::Standby(standby) => {
                self.standby = standby;
                if self.copied_by().is_some_and(|by| Some(by) != standby) {
                    self.end(now, Why::Replaced);
                }
            }
            Input::Added => {
                self.last += 1;
                if self.last - self.kept_above() > self.terms.kept_max {
                    self.end(now, Why::Slow);
                }
            }
            Input::Stored { by, copy, beat, up_to } => self.stored(now, (by, copy), beat, up_to),
            Input::Refused { by, copy } => {
                if self.copy().is_some_and(|there| there.standby == by && there.number == copy) {
                    self.end(now, Why::Refused);
                }
            }
            Input::Written { write } => self.written(now, write),
            Input::Fenced => {
                self.state = State::Over;
                self.effects.push_back(Effect::StepDown);
            }
            Input::Applied { up_to } => {
                self.applied = self.applied.max(up_to);
                if let State::Carrying { standby, number, base } = self.state
                    && self.applied >= base
                {
                    self.state = State::Filling(Copy {
                        number,
                        standby,
                        base,
                        begun: false,
                        sent: base,
                        stored: base,
                        moved: now,
                        next_beat: now,
                        awaited: BTreeMap::new(),
                    });
                }
            }
        }
        self.go_on(now);
    }

    pub fn handle_deadline(&mut self, now: Time) {
        let silent = |copy: &Copy| now >= copy.moved.saturating_add(self.terms.patience);
        let ended = match &self.state {
            State::Filling(copy) | State::Closing { copy, .. } | State::Held { copy, .. } => silent(copy),
            State::Leaving { .. }
            | State::Alone { .. }
            | State::Opening { .. }
            | State::Carrying { .. }
            | State::Over => false,
        };
        if ended {
            self.end(now, Why::Silent);
        }
        self.write_again(now);
        if let State::Alone { again } = self.state
            && let Some(standby) = self.standby.filter(|_| now >= again)
        {
            self.number += 1;
            let change = Change::Begin { copy: self.number, standby };
            let write = self.write(change);
            self.state = State::Opening { write, next: self.next_try(now), standby, number: self.number };
        }
        self.beat(now);
        self.go_on(now);
    }

    fn copy(&self) -> Option<&Copy> {
        match &self.state {
            State::Filling(copy)
            | State::Closing { copy, .. }
            | State::Held { copy, .. }
            | State::Leaving { copy: Some(copy), .. } => Some(copy),
            State::Leaving { copy: None, .. }
            | State::Alone { .. }
            | State::Opening { .. }
            | State::Carrying { .. }
            | State::Over => None,
        }
    }

    fn copy_mut(&mut self) -> Option<&mut Copy> {
        match &mut self.state {
            State::Filling(copy)
            | State::Closing { copy, .. }
            | State::Held { copy, .. }
            | State::Leaving { copy: Some(copy), .. } => Some(copy),
            State::Leaving { copy: None, .. }
            | State::Alone { .. }
            | State::Opening { .. }
            | State::Carrying { .. }
            | State::Over => None,
        }
    }

    fn copied_by(&self) -> Option<NodeId> {
        match &self.state {
            State::Opening { standby, .. } | State::Carrying { standby, .. } => Some(*standby),
            State::Leaving { .. }
            | State::Alone { .. }
            | State::Filling(_)
            | State::Closing { .. }
            | State::Held { .. }
            | State::Over => self.copy().map(|copy| copy.standby),
        }
    }

    fn next_try(&self, now: Time) -> Time {
        now.saturating_add(self.terms.again)
    }

    fn write(&mut self, change: Change<NodeId>) -> u64 {
        self.writes += 1;
        self.effects.push_back(Effect::Write { write: self.writes, change });
        self.writes
    }

    /// The row is to say that nobody has a copy.
    fn leave(&mut self, now: Time, copy: Option<Copy>) {
        self.number += 1;
        let write = self.write(Change::Alone { copy: self.number });
        self.state = State::Leaving { write, next: self.next_try(now), copy };
    }

    /// No copy any more.
    fn end(&mut self, now: Time, why: Why) {
        let standby = self.copied_by();
        let state = std::mem::replace(&mut self.state, State::Over);
        match state {
            // The row may say that it is complete, so it has to say first that it is not. A standby that comes to itself still counts.
            State::Held { copy, .. } => self.leave(now, Some(copy)),
            State::Leaving { write, next, copy } => {
                let copy = if matches!(why, Why::Silent) { copy } else { None };
                self.began_at = self.began_at.max(self.applied);
                self.state = State::Leaving { write, next, copy };
                return;
            }
            State::Alone { again } => {
                self.state = State::Alone { again };
                return;
            }
            // The row says that the copy is not complete.
            State::Opening { .. } | State::Carrying { .. } | State::Filling(_) | State::Closing { .. } => {
                self.state = State::Alone { again: now.saturating_add(self.terms.pause) };
            }
            State::Over => return,
        }
        self.effects.extend(standby.map(|standby| Effect::Says(Says::Ended { standby, why })));
    }

    fn stored(&mut self, now: Time, (by, number): (NodeId, u64), beat: u64, up_to: u64) {
        let (last, terms) = (self.last, self.terms);
        let Some(copy) = self.copy_mut().filter(|copy| copy.standby == by && copy.number == number) else {
            return;
        };
        copy.begun = true;
        let up_to = up_to.min(last);
        if up_to > copy.stored || copy.stored == last {
            copy.moved = now;
        }
        copy.stored = copy.stored.max(up_to);
        copy.sent = copy.sent.max(copy.stored);
        let let_until = copy.awaited.remove(&beat).map(|sent| terms.tenure.may_until(sent));
        self.until = self.until.max(let_until.unwrap_or(Time::ZERO));
    }

    fn written(&mut self, now: Time, done: u64) {
        match &mut self.state {
            State::Leaving { write, .. } if *write == done => {
                self.state = State::Alone { again: now.saturating_add(self.terms.pause) };
                self.effects.push_back(Effect::Says(Says::Alone));
            }
            State::Opening { write, standby, number, .. } if *write == done => {
                let (standby, number) = (*standby, *number);
                self.state = State::Carrying { standby, number, base: self.last };
                self.effects.push_back(Effect::Carry);
                if self.applied >= self.last {
                    // There is nothing to carry.
                    let up_to = self.applied;
                    self.handle(now, Input::Applied { up_to });
                }
            }
            State::Held { write, confirmed, copy, .. } if *write == done && !*confirmed => {
                *confirmed = true;
                let standby = copy.standby;
                self.effects.push_back(Effect::Says(Says::Complete { standby }));
            }
            State::Leaving { .. }
            | State::Alone { .. }
            | State::Opening { .. }
            | State::Carrying { .. }
            | State::Filling(_)
            | State::Closing { .. }
            | State::Held { .. }
            | State::Over => {}
        }
    }

    fn write_again(&mut self, now: Time) {
        let change = match &self.state {
            State::Leaving { next, .. } if now >= *next => Change::Alone { copy: self.number },
            State::Opening { next, standby, number, .. } if now >= *next => {
                Change::Begin { copy: *number, standby: *standby }
            }
            State::Held { next, confirmed: false, copy, .. } if now >= *next => {
                Change::Complete { copy: copy.number }
            }
            State::Leaving { .. }
            | State::Alone { .. }
            | State::Opening { .. }
            | State::Carrying { .. }
            | State::Filling(_)
            | State::Closing { .. }
            | State::Held { .. }
            | State::Over => return,
        };
        let (again, after) = (self.write(change), self.next_try(now));
        if let State::Leaving { write, next, .. }
        | State::Opening { write, next, .. }
        | State::Held { write, next, .. } = &mut self.state
        {
            (*write, *next) = (again, after);
        }
    }

    /// That we are there, and what it has not confirmed since the last beat once more.
    fn beat(&mut self, now: Time) {
        let (beats, applied, every) = (self.beats + 1, self.applied, self.terms.tenure.beat_every);
        let Some(copy) = self.copy_mut().filter(|copy| now >= copy.next_beat) else { return };
        copy.next_beat = now.saturating_add(every);
        copy.sent = copy.stored;
        copy.await_answer(beats, now);
        let (to, number) = (copy.standby, copy.number);
        let effect = if copy.begun {
            Effect::Send { to, copy: number, beat: beats, from: copy.sent + 1, up_to: copy.sent, applied }
        } else {
            Effect::Begin { to, copy: number, beat: beats, base: copy.base }
        };
        self.beats = beats;
        self.effects.push_back(effect);
    }

    /// What the state allows by now.
    fn go_on(&mut self, now: Time) {
        self.close(now);
        self.send(now);
        let may = match &self.state {
            State::Over => self.answered,
            State::Leaving { copy: None, .. } => self.answered,
            State::Leaving { copy: Some(copy), .. } | State::Held { copy, .. } => copy.stored,
            State::Closing { copy, free } => copy.stored.max(*free),
            State::Alone { .. } | State::Opening { .. } | State::Carrying { .. } | State::Filling(_) => {
                self.last
            }
        };
        if may > self.answered {
            self.answered = may;
            self.effects.push_back(Effect::Answer { up_to: may });
        }
    }

    /// When the standby is nearly up to date, and when it is.
    fn close(&mut self, now: Time) {
        if let State::Filling(copy) = &self.state
            && copy.begun
            && self.last - copy.stored <= self.terms.window
        {
            self.state = State::Closing { copy: copy.clone(), free: self.last };
        }
        if let State::Closing { copy, free } = &self.state
            && copy.stored >= *free
        {
            let copy = copy.clone();
            let write = self.write(Change::Complete { copy: copy.number });
            self.state = State::Held { copy, write, next: self.next_try(now), confirmed: false };
        }
    }

    fn send(&mut self, now: Time) {
        let (last, applied, window, beat) = (self.last, self.applied, self.terms.window, self.beats + 1);
        let Some(copy) = self.copy_mut().filter(|copy| copy.begun) else { return };
        let up_to = last.min(copy.stored.saturating_add(window));
        if up_to <= copy.sent {
            return;
        }
        let effect =
            Effect::Send { to: copy.standby, copy: copy.number, beat, from: copy.sent + 1, up_to, applied };
        copy.sent = up_to;
        copy.await_answer(beat, now);
        self.beats = beat;
        self.effects.push_back(effect);
    }
}

impl Copy {
    fn await_answer(&mut self, beat: u64, now: Time) {
        self.awaited.insert(beat, now);
        while self.awaited.len() > AWAITED_MAX {
            self.awaited.pop_first();
        }
    }
}
