//! What the primary does: it orders, has the second store, stores and answers, and sends what a new second lacks.

use std::collections::VecDeque;

use super::{Behind, Copy, END, Effect, Flight, Of, PIECE, Range, Sent, Source, Stage, touch};
use crate::{
    moving::Noted,
    replica::{Member, Second, View},
    tenure::Time,
};

impl Copy {
    /// What is under way is said under the new view, or needs nobody else any more.
    pub(super) fn lead(&mut self, view: View, length: u64, stays: bool) {
        let new = view.second.filter(|_| !stays);
        match (view.second, new) {
            (None, _) => self.lacks.clear(),
            (Some(_), Some(new)) if !new.counts => self.lacks = self.lacks_of(new, length),
            (Some(second), _) if second.counts => self.lacks.clear(),
            (Some(_), _) => (),
        }
        if view.second.is_none() {
            self.flights.retain(|_, flight| flight.source != Source::Here);
        }
        for flight in self.flights.values_mut() {
            match (flight.stage, view.second.is_some()) {
                (Stage::There, false) => flight.stage = Stage::Ready,
                (Stage::There | Stage::Ready, true) if flight.stage == Stage::There || new.is_some() => {
                    (flight.stage, flight.sent) = (Stage::There, None);
                }
                (Stage::There | Stage::Ready | Stage::Here | Stage::Stored, _) => (),
            }
        }
    }

    pub(super) fn leave_behind(&self, member: Member) -> Behind {
        let mut differs = Noted::default();
        let under_way = self.flights.values().map(|flight| flight.range).chain(self.lacks.iter().copied());
        let unknown = self.stored.values().chain(self.storing.values()).copied();
        for (from, to) in under_way.chain(unknown) {
            differs.add(from, to);
        }
        Behind { member, differs }
    }

    pub(super) fn lacks_of(&mut self, second: Second, length: u64) -> VecDeque<Range> {
        let behind = self.behind.take().filter(|behind| behind.member == second.member && second.kept);
        let ends = self.flights.values().map(|flight| flight.range.1);
        let ends = ends.chain(self.here.values().map(|(_, range)| range.1));
        // A cut is under way: it goes to the second as the rest does.
        let length = ends.filter(|end| *end != END).fold(length, u64::max);
        let differs = behind.map_or_else(|| vec![(0, length)], |mut behind| behind.differs.take());
        let bytes = differs.into_iter().map(|(from, to)| (from, to.min(length)));
        // The end comes in any case: the second has to have said something.
        bytes.filter(|(from, to)| from < to).chain([(length, END)]).collect()
    }

    pub(super) fn send(&mut self, now: Time, serial: u64) {
        let (Some(view), Some(to)) = (self.view, self.second()) else { return };
        let done = self.all_done();
        let Some(flight) = self.flights.get_mut(&serial) else { return };
        flight.sent = Some(now);
        let sent = Sent { view, serial, range: flight.range, done };
        self.effects.push_back(Effect::Send { to, sent, source: flight.source });
        self.told = self.told.max(done);
    }

    pub(super) fn all_done(&self) -> u64 {
        self.flights.keys().next().map_or(self.serial, |first| first - 1)
    }

    pub(super) fn begin(&mut self, now: Time, source: Source, range: Range) {
        self.serial += 1;
        let stage = if self.second().is_some() { Stage::There } else { Stage::Ready };
        let flight = Flight { source, range, stage, sent: None, patient: now };
        self.flights.insert(self.serial, flight);
        if stage == Stage::There {
            self.send(now, self.serial);
        }
    }

    pub(super) fn is_free(&self, range: Range) -> bool {
        !self.flights.values().any(|flight| touch(flight.range, range))
            && !self.here.values().any(|(_, other)| touch(*other, range))
    }

    pub(super) fn stored_there(&mut self, by: Member, since: u64, serial: u64) {
        let now_leads = self.view.is_some_and(|view| view.primary == self.me && view.since == since);
        if !now_leads || self.second() != Some(by) {
            return;
        }
        if let Some(flight) = self.flights.get_mut(&serial).filter(|flight| flight.stage == Stage::There) {
            flight.stage = Stage::Ready;
            if flight.source == Source::Here {
                self.flights.remove(&serial);
            }
        }
    }

    pub(super) fn store_what_is_ready(&mut self, settled: bool) {
        if !settled {
            return;
        }
        let ready: Vec<u64> = {
            let ready = self.flights.iter().filter(|(_, flight)| flight.stage == Stage::Ready);
            ready.map(|(serial, _)| *serial).collect()
        };
        for serial in ready {
            let Some(flight) = self.flights.get_mut(&serial) else { continue };
            let Source::Client(call) = flight.source else { continue };
            flight.stage = Stage::Here;
            self.numbers += 1;
            let (number, of, range) = (self.numbers, Of::Call(call), flight.range);
            self.here.insert(number, (of, range));
            self.effects.push_back(Effect::Store { number, of, range });
            if let Some(behind) = self.behind.as_mut() {
                behind.differs.add(range.0, range.1);
            }
        }
    }

    pub(super) fn answer(&mut self, now: Time) {
        let effects = &mut self.effects;
        self.flights.retain(|_, flight| {
            let is_done = flight.stage == Stage::Stored;
            if let (true, Source::Client(call)) = (is_done, flight.source) {
                effects.push_back(Effect::Written(call));
            }
            !is_done
        });
        if self.second().is_some() && self.told < self.all_done() && self.tell_at.is_none() {
            self.tell_at = Some(now.saturating_add(self.patience.done));
        }
    }

    /// In the order in which they came, of those that touch.
    pub(super) fn begin_what_is_free(&mut self, now: Time) {
        let mut later: VecDeque<(u64, Range)> = VecDeque::new();
        while let Some((call, range)) = self.writes.pop_front() {
            if self.is_free(range) && !later.iter().any(|(_, other)| touch(*other, range)) {
                self.begin(now, Source::Client(call), range);
            } else {
                later.push_back((call, range));
            }
        }
        self.writes = later;
    }

    pub(super) fn send_what_is_lacking(&mut self, now: Time) {
        let Some(view) = self.view else { return };
        if view.second.is_none_or(|second| second.counts) {
            return;
        }
        let mut pieces = self.pieces();
        while pieces < self.pieces_max {
            let Some((from, to)) = self.lacks.pop_front() else { break };
            // None is of two parts of which one may be lost.
            let end = (from / PIECE + 1).saturating_mul(PIECE);
            let piece = if to == END { (from, to) } else { (from, to.min(end)) };
            if !self.is_free(piece) {
                self.lacks.push_front((from, to));
                break;
            }
            if piece.1 < to {
                self.lacks.push_front((piece.1, to));
            }
            self.begin(now, Source::Here, piece);
            pieces += 1;
        }
        let due = self.complete.is_none_or(|again| now >= again);
        if pieces == 0 && self.lacks.is_empty() && due {
            self.complete = Some(now.saturating_add(self.patience.again));
            self.effects.push_back(Effect::Complete { view: view.number });
        }
    }
}
