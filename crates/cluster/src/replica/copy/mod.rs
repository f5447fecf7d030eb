//! One object at a data server that may be one of two which have it.
//!
//! The primary gives writes their order: no two that touch are under way at a time. The second stores a write, then the primary does, then it is
//! answered. So what the primary shows the second has. What the second has stored and not heard to be done yet it does not show: the
//! primary is asked instead. While a second one is made it gets all writes from the beginning, and the rest in pieces that are ordered as
//! writes are; there is no log of what came meanwhile, and no moment at which all is held up.
//!
//! - I-COPY-1: the primary changes nothing here that the second has not stored, if it has one.
//! - I-COPY-2: what is noted of who was left behind (`Behind`) covers all in which it may differ.
//! - I-COPY-3: nothing is stored over a later write, whenever a message or the own device comes to an end.
//!
//! A range up to [`END`] is about how long the object is: a cut, or the last piece of a copy.
//!
//! An event machine: [`Copy::handle`] and [`Copy::handle_deadline`], then [`Copy::poll_effect`] until there is none; then, when they are carried out,
//! [`Copy::go_on`] with what is allowed by then ([`super::trust::Trust`]), and its effects. Bytes are the caller's: ranges are from one offset up
//! to another one. A call comes once, and a message of another data server as often as the network likes.

mod primary;
mod second;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{Member, View};
use crate::{moving::Noted, tenure::Time};

/// Pieces under way to a second one that is made.
const PIECES_MAX: usize = 4;
/// Of one piece, which begins and ends at multiples of it if it can: what a data server can lose is whole pieces.
pub const PIECE: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// What has no answer is sent again after it.
    pub again: Duration,
    /// The metadata server is told after it: of what has no answer, and of leave that is wanted and does not come.
    pub complain: Duration,
    /// The second hears after it that what was sent is done, if nothing else is sent.
    pub done: Duration,
}

/// What the other member lets us do now, in this view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leave {
    pub view: u64,
    /// It lets us answer.
    pub act: bool,
    /// Who was left behind has stopped.
    pub settled: bool,
}

/// Behind all bytes.
pub const END: u64 = u64::MAX;

/// From an offset up to another one.
pub type Range = (u64, u64);

/// What the primary sends: a write of a client, or bytes that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    pub view: View,
    /// In the order of the primary, since it became that.
    pub serial: u64,
    pub range: Range,
    /// All up to this one are done.
    pub done: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// Of the metadata server. `length`: of the object here.
    View {
        view: View,
        length: u64,
    },
    /// By the metadata server, which would have us go on alone: are we there?
    Asked {
        view: u64,
    },
    /// Of a client, by a number of the caller's.
    Write {
        call: u64,
        range: Range,
    },
    Read {
        call: u64,
        range: Range,
    },
    /// It waits no longer. What is under way goes on.
    Cancel(u64),
    /// By the primary.
    Sent(Sent),
    /// By the primary: it has done all up to this one.
    Done {
        view: View,
        done: u64,
    },
    /// By who was sent something: it is stored there.
    Stored {
        by: Member,
        since: u64,
        serial: u64,
    },
    /// Here: the bytes were given up, to make room. Only of an object that it has no more.
    Dropped,
    /// Here: what [`Effect::Store`] asked for is done.
    StoredHere(u64),
    /// Here: of what the primary sent nothing was stored, and nothing will be. It is sent again.
    NotStored(u64),
}

/// Where the bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    Client(u64),
    Here,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// To be stored there.
    Send {
        to: Member,
        sent: Sent,
        source: Source,
    },
    SayDone {
        to: Member,
        view: View,
        done: u64,
    },
    /// To the primary that sent it.
    SayStored {
        to: Member,
        since: u64,
        serial: u64,
    },
    /// The bytes of this call, or of what was sent by this serial, are to be stored here. `number` is for [`Input::StoredHere`].
    Store {
        number: u64,
        of: Of,
        range: Range,
    },
    /// The write is done.
    Written(u64),
    /// The bytes here may be answered, as they are now.
    Show(u64),
    /// Somebody else is to be asked, by this view. Nothing was done; of a write it is not known.
    AskElsewhere(u64, Option<View>),
    /// Its right to answer is to be told anew.
    WantsLeave(Member),
    /// To the metadata server.
    Complain(Member),
    /// To the metadata server, which asked. Nothing changes before the view does.
    GoesOn {
        view: u64,
    },
    Complete {
        view: u64,
    },
    /// It has the object no more.
    LeaveOut {
        member: Member,
        view: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    Call(u64),
    Sent { since: u64, serial: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The second one stores it.
    There,
    /// It may be stored here.
    Ready,
    /// Being stored here.
    Here,
    /// To be answered.
    Stored,
}

struct Flight {
    source: Source,
    range: Range,
    stage: Stage,
    /// When it was sent last; `None`: it is to be sent.
    sent: Option<Time>,
    /// When it was begun, or complained about last.
    patient: Time,
}

/// Who was left behind, and where it may differ.
struct Behind {
    member: Member,
    differs: Noted,
}

pub struct Copy {
    me: Member,
    patience: Patience,
    view: Option<View>,
    has_kept: bool,
    /// The last that was given.
    serial: u64,
    flights: BTreeMap<u64, Flight>,
    writes: VecDeque<(u64, Range)>,
    reads: Vec<(u64, Range)>,
    /// What the second one lacks, and is not under way.
    lacks: VecDeque<Range>,
    /// Nothing any more; when that is said again.
    complete: Option<Time>,
    /// Since when leave is wanted, or was complained about last, and when it was wanted last.
    wants: Option<(Time, Time)>,
    behind: Option<Behind>,
    /// At the second: what it stored and does not know to be done.
    stored: BTreeMap<u64, Range>,
    storing: BTreeMap<u64, Range>,
    done: u64,
    /// The primary: up to where the second knows, and when it is told.
    told: u64,
    tell_at: Option<Time>,
    /// Whatever is being stored here, also of before a change of the view.
    here: BTreeMap<u64, (Of, Range)>,
    numbers: u64,
    /// So many pieces may be under way.
    pieces_max: usize,
    effects: VecDeque<Effect>,
}

fn touch(a: Range, b: Range) -> bool {
    a.0 < b.1 && b.0 < a.1
}

impl Copy {
    pub fn new(me: Member, patience: Patience) -> Copy {
        Copy {
            me,
            patience,
            view: None,
            has_kept: false,
            serial: 0,
            flights: BTreeMap::new(),
            writes: VecDeque::new(),
            reads: Vec::new(),
            lacks: VecDeque::new(),
            complete: None,
            wants: None,
            behind: None,
            stored: BTreeMap::new(),
            storing: BTreeMap::new(),
            done: 0,
            told: 0,
            tell_at: None,
            here: BTreeMap::new(),
            numbers: 0,
            pieces_max: PIECES_MAX,
            effects: VecDeque::new(),
        }
    }

    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// The bytes here are those of when it was in a view last.
    pub fn has_kept(&self) -> bool {
        self.has_kept
    }

    /// It was sent to somebody, or is being stored: it goes on, whoever waits.
    pub fn is_under_way(&self, call: u64) -> bool {
        self.flights.values().any(|flight| flight.source == Source::Client(call))
    }

    /// Pieces of what a new second lacks that are under way.
    pub fn pieces(&self) -> usize {
        self.flights.values().filter(|flight| flight.source == Source::Here).count()
    }

    /// Some are still to be begun.
    pub fn lacks_pieces(&self) -> bool {
        !self.lacks.is_empty()
    }

    /// From now on so many may be under way, as many as one object has at the most: others may have more to copy than can be sent soon.
    pub fn allow_pieces(&mut self, most: usize) {
        self.pieces_max = most.min(PIECES_MAX);
    }

    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    pub fn handle(&mut self, input: Input) {
        match input {
            Input::View { view, length } => self.adopt(view, length),
            Input::Write { call, range } => self.writes.push_back((call, range)),
            Input::Read { call, range } => self.reads.push((call, range)),
            Input::Cancel(call) => self.cancel(call),
            Input::Sent(sent) => self.take(sent),
            Input::Done { view, done } => self.note_done(&view, done),
            Input::Stored { by, since, serial } => self.stored_there(by, since, serial),
            Input::Asked { view } => {
                let counts = |of: &View| of.number == view && of.counts(self.me);
                if self.view.as_ref().is_some_and(counts) {
                    self.effects.push_back(Effect::GoesOn { view });
                }
            }
            Input::Dropped => self.has_kept &= self.view.is_some_and(|view| view.has(self.me)),
            Input::StoredHere(number) => self.stored_here(number),
            Input::NotStored(number) => self.not_stored(number),
        }
    }

    pub fn handle_deadline(&mut self, now: Time) {
        let Some(second) = self.second() else { return };
        let late: Vec<u64> = {
            let there = self.flights.iter().filter(|(_, flight)| flight.stage == Stage::There);
            let late = there.filter(|(_, flight)| now >= self.again(flight.sent));
            late.map(|(serial, _)| *serial).collect()
        };
        let mut complains = false;
        for serial in late {
            self.send(now, serial);
            if let Some(flight) = self.flights.get_mut(&serial)
                && now >= flight.patient.saturating_add(self.patience.complain)
            {
                flight.patient = now;
                complains = true;
            }
        }
        if complains {
            self.effects.push_back(Effect::Complain(second));
        }
        if let (Some(view), true) = (self.view, self.tell_at.is_some_and(|at| now >= at)) {
            self.tell_at = None;
            self.told = self.all_done();
            self.effects.push_back(Effect::SayDone { to: second, view, done: self.told });
        }
    }

    /// What can be done now. Also to be called when what is allowed has changed.
    pub fn go_on(&mut self, now: Time, leave: Leave) {
        let view = self.view;
        let is_of_now = view.is_some_and(|view| view.number == leave.view);
        let leave = Leave { act: leave.act && is_of_now, settled: leave.settled && is_of_now, ..leave };
        if !view.is_some_and(|view| view.counts(self.me)) {
            let calls = self.writes.drain(..).chain(self.reads.drain(..));
            self.effects.extend(calls.map(|(call, _)| Effect::AskElsewhere(call, view)));
            return;
        }
        let may_answer = leave.settled && (leave.act || !self.is_shared());
        if self.leads() {
            self.store_what_is_ready(leave.settled);
            if may_answer {
                self.answer(now);
            }
            self.begin_what_is_free(now);
            self.send_what_is_lacking(now);
        } else {
            let calls = self.writes.drain(..);
            self.effects.extend(calls.map(|(call, _)| Effect::AskElsewhere(call, view)));
        }
        self.show(may_answer);
        let waits = !self.reads.is_empty() || self.flights.values().any(|f| f.stage == Stage::Stored);
        if leave.act {
            self.wants = None;
        } else if waits
            && self.is_shared()
            && let Some(other) = self.peer()
        {
            self.effects.push_back(Effect::WantsLeave(other));
            self.complain_of_leave(now, other);
        }
    }

    /// Who waits may give up and come again: that it is wanted does not begin anew with each.
    fn complain_of_leave(&mut self, now: Time, other: Member) {
        let patience = self.patience.complain;
        let lately = |(_, last): &(Time, Time)| now < last.saturating_add(patience);
        let since = self.wants.filter(lately).map_or(now, |(since, _)| since);
        let is_long = now >= since.saturating_add(patience);
        self.wants = Some((if is_long { now } else { since }, now));
        if is_long {
            self.effects.push_back(Effect::Complain(other));
        }
    }

    pub fn next_deadline(&self) -> Option<Time> {
        let there = self.flights.values().filter(|flight| flight.stage == Stage::There);
        let again = there.map(|flight| self.again(flight.sent)).min();
        [again, self.tell_at, self.complete].into_iter().flatten().min()
    }

    fn again(&self, sent: Option<Time>) -> Time {
        sent.map_or(Time::ZERO, |sent| sent.saturating_add(self.patience.again))
    }

    /// We order the writes.
    fn leads(&self) -> bool {
        self.view.is_some_and(|view| view.primary == self.me)
    }

    /// Who stores what we store, before we do.
    fn second(&self) -> Option<Member> {
        self.view.filter(|view| view.primary == self.me)?.second.map(|second| second.member)
    }

    /// Somebody else may be asked for this object as well as we, or will be before we hear of it.
    fn is_shared(&self) -> bool {
        let view = self.view.filter(|view| view.counts(self.me));
        view.is_some_and(|view| view.other(self.me).is_some() || self.complete.is_some())
    }

    /// Who has to let us answer.
    pub fn peer(&self) -> Option<Member> {
        self.second().or_else(|| self.view.map(|view| view.primary).filter(|primary| *primary != self.me))
    }

    fn adopt(&mut self, view: View, length: u64) {
        let old = self.view.filter(|old| old.has(self.me));
        if self.view.is_some_and(|known| known.number >= view.number) {
            return;
        }
        let left = old.filter(|_| view.primary == self.me).and_then(|old| self.beside(&old));
        // Also of one that is the second again, of which we missed that it was not.
        let second = |view: &View| view.second.map(|second| (second.member, second.since));
        let stays = old.is_some_and(|old| second(&old) == second(&view));
        let left = left.filter(|member| !view.has(*member) || !stays);
        let goes_on = old.is_some_and(|old| old.since == view.since) && view.has(self.me);
        let behind = left.map(|member| self.leave_behind(member));
        self.view = Some(view);
        if !goes_on {
            self.begin_anew();
        }
        if let Some(member) = left {
            self.behind = behind;
            if !view.counts(member) {
                self.effects.push_back(Effect::LeaveOut { member, view: view.number });
            }
        }
        self.complete = None;
        self.wants = None;
        self.has_kept |= view.counts(self.me);
        if self.leads() {
            self.lead(view, length, stays);
        }
    }

    /// The one with which we have the object in this view.
    fn beside(&self, view: &View) -> Option<Member> {
        let second = view.second.map(|second| second.member);
        if view.primary == self.me { second } else { Some(view.primary) }
    }

    /// Another primary than before.
    fn begin_anew(&mut self) {
        let view = self.view;
        for (_, flight) in std::mem::take(&mut self.flights) {
            if let Source::Client(call) = flight.source {
                self.effects.push_back(Effect::AskElsewhere(call, view));
            }
        }
        (self.serial, self.done, self.told, self.tell_at) = (0, 0, 0, None);
        self.stored.clear();
        self.storing.clear();
        self.lacks.clear();
        self.behind = None;
    }

    fn cancel(&mut self, call: u64) {
        self.writes.retain(|(of, _)| *of != call);
        self.reads.retain(|(of, _)| *of != call);
    }

    fn stored_here(&mut self, number: u64) {
        let Some((of, range)) = self.here.remove(&number) else { return };
        let since = self.view.map(|view| view.since);
        match of {
            Of::Call(call) => {
                let is_it = |flight: &&mut Flight| {
                    flight.source == Source::Client(call) && flight.stage == Stage::Here
                };
                if let Some(flight) = self.flights.values_mut().find(is_it) {
                    flight.stage = Stage::Stored;
                }
            }
            Of::Sent { since: of, serial } => {
                if Some(of) == since && self.storing.remove(&serial).is_some() {
                    if serial > self.done {
                        self.stored.insert(serial, range);
                    }
                    self.say_stored(serial);
                }
            }
        }
    }

    /// Reads that may be answered, or that somebody else has to answer.
    fn show(&mut self, may_answer: bool) {
        let (leads, view) = (self.leads(), self.view);
        let unknown = |range: Range| {
            self.stored.values().chain(self.storing.values()).any(|other| touch(*other, range))
        };
        let (mut shown, mut elsewhere) = (Vec::new(), Vec::new());
        self.reads.retain(|(call, range)| {
            if !leads && unknown(*range) {
                elsewhere.push(*call);
            } else if may_answer {
                shown.push(*call);
            } else {
                return true;
            }
            false
        });
        self.effects.extend(elsewhere.into_iter().map(|call| Effect::AskElsewhere(call, view)));
        self.effects.extend(shown.into_iter().map(Effect::Show));
    }
}
