//! What the machine of a copy wants done, and what the primary of another one sends.

use cluster::{
    replica::{
        Member,
        copy::{Effect, Input, Of, Sent, Source},
    },
    tenure::Time,
};

use super::{
    cast::{Left, object, place_of},
    peers::Question,
    said::{Said, Values},
    server::{Called, Object, Server, Storing},
    stage::Stage,
};
use crate::network::Ticket;

impl Server {
    pub(super) fn carry_out(&mut self, stage: &mut Stage, number: u64) {
        while let Some(effect) = self.objects.get_mut(&number).and_then(|of| of.copy.poll_effect()) {
            self.do_it(stage, number, effect);
        }
    }

    fn do_it(&mut self, stage: &mut Stage, number: u64, effect: Effect) {
        let now = stage.local(self.place());
        match effect {
            Effect::Send { to, sent, source } => self.send(stage, number, (to, sent, source)),
            Effect::SayDone { to, view, done } => {
                let said = Said::Done { object: number, view, done };
                self.ask(stage, place_of(to), Called::Nothing, said);
            }
            Effect::SayStored { since, serial, .. } => {
                let stored = Said::Stored { by: self.me(), stored: true, differs: false, newer: None };
                let Some(of) = self.objects.get_mut(&number) else { return };
                for ticket in of.senders.remove(&(since, serial)).unwrap_or_default() {
                    stage.answer(ticket, stored.clone());
                }
            }
            Effect::Store { number: order, of, range } => {
                let values = self.values_of(number, of).unwrap_or_default();
                if let Of::Sent { since, serial } = of
                    && self.objects.get(&number).is_some_and(|of| of.compared.contains(&(since, serial)))
                {
                    let is_same = self.read(number, range) == values || stage.left == Left::NotCompared;
                    return self.compared(
                        stage,
                        number,
                        (since, serial),
                        is_same.then_some(order).ok_or(order),
                    );
                }
                let ready = now + stage.disk();
                self.storing.push(Storing { ready, object: number, number: order, values });
            }
            Effect::Written(call) => self.answer(stage, number, call, |_, _| Said::Written),
            Effect::Show(call) => self.answer(stage, number, call, |this, range| {
                Said::Bytes(this.read(number, range).into_iter().map(|(_, value)| value).collect())
            }),
            Effect::AskElsewhere(call, view) => {
                let Some(of) = self.objects.get_mut(&number) else { return };
                if let Some((ticket, _)) = of.calls.remove(&call) {
                    stage.answer(ticket, Said::Elsewhere(view));
                }
            }
            Effect::WantsLeave(member) => self.peers.want(now, member),
            Effect::Complain(member) => {
                let view = self.view(number).map_or(0, |view| view.number);
                self.words.insert(number, (view, Some(member)));
            }
            Effect::GoesOn { view } => {
                if let Some(of) = self.objects.get_mut(&number) {
                    of.goes_on = Some(view);
                }
            }
            Effect::Complete { view } => drop(self.words.insert(number, (view, None))),
            Effect::LeaveOut { member, view } => self.peers.leave_out(member, object(number), view),
        }
    }

    fn send(&mut self, stage: &mut Stage, number: u64, (to, sent, source): (Member, Sent, Source)) {
        let values = match source {
            Source::Client(call) => self.values_of(number, Of::Call(call)).unwrap_or_default(),
            Source::Here => self.read(number, sent.range),
        };
        let called = Called::Store { object: number, since: sent.view.since, serial: sent.serial };
        let is_new = sent.view.second.is_some_and(|second| !second.counts && !second.kept);
        let differs = |of: &Object| of.differs.contains(&(sent.view.since, sent.serial));
        let compares = source == Source::Here && is_new && !self.objects.get(&number).is_some_and(differs);
        self.ask(stage, place_of(to), called, Said::Store { object: number, sent, values, compares });
        if stage.left == Left::NoSecond
            && let Some(of) = self.objects.get_mut(&number)
        {
            let (since, serial) = (sent.view.since, sent.serial);
            of.copy.handle(Input::Stored { by: to, since, serial });
        }
    }

    /// What was sent as a digest is here, or is not; with the order's number.
    fn compared(&mut self, stage: &mut Stage, number: u64, key: (u64, u64), is_same: Result<u64, u64>) {
        let me = self.me();
        let Some(of) = self.objects.get_mut(&number) else { return };
        match is_same {
            Ok(order) => {
                stage.tally.same += 1;
                of.copy.handle(Input::StoredHere(order));
            }
            Err(order) => {
                stage.tally.differed += 1;
                of.copy.handle(Input::NotStored(order));
                for ticket in of.senders.remove(&key).unwrap_or_default() {
                    let said = Said::Stored { by: me, stored: false, differs: true, newer: None };
                    stage.answer(ticket, said);
                }
            }
        }
    }

    fn answer(
        &mut self,
        stage: &mut Stage,
        number: u64,
        call: u64,
        what: impl FnOnce(&Server, (u64, u64)) -> Said,
    ) {
        let (Some(view), me) = (self.view(number), self.me()) else { return };
        let verdict = stage.truth.answers(number, me, view);
        stage.judge(verdict);
        let Some(of) = self.objects.get_mut(&number) else { return };
        let Some((ticket, range)) = of.calls.remove(&call) else { return };
        let said = what(self, range);
        stage.answer(ticket, said);
    }

    /// The primary has us store something.
    pub(super) fn sent(
        &mut self,
        stage: &mut Stage,
        ticket: Ticket,
        number: u64,
        (sent, values, compares): (Sent, Values, bool),
    ) -> Option<Said> {
        let now = stage.local(self.place());
        self.adopt(stage, number, sent.view);
        let me = self.me();
        let second = sent.view.second.filter(|second| second.member == me);
        let key = (sent.view.since, sent.serial);
        let of = self.objects.get_mut(&number)?;
        if let Some(second) = second.filter(|second| of.wiped < second.since) {
            // What it had is compared, if it did not say that it has kept it, or goes.
            of.wiped = second.since;
            if !second.kept && !second.counts && stage.random.one_in(4) {
                self.tiers.remove(stage, now, number);
            }
        }
        let of = self.objects.get_mut(&number)?;
        of.sent.entry(key).or_insert(values);
        if compares {
            of.compared.insert(key);
        } else {
            of.compared.remove(&key);
        }
        of.senders.entry(key).or_default().push(ticket);
        self.handle(stage, number, Input::Sent(sent));
        // Said already, being stored, or not to be stored: then it is asked again.
        let of = self.objects.get_mut(&number)?;
        let known = of.copy.view().copied();
        let newer = known.filter(|known| known.number > sent.view.number);
        let is_being_stored = newer.is_none() && of.senders.contains_key(&key);
        if is_being_stored && self.storing.iter().any(|one| one.object == number) {
            return None;
        }
        let waits = of.senders.remove(&key).unwrap_or_default();
        for other in waits {
            stage.answer(other, Said::Stored { by: me, stored: false, differs: false, newer });
        }
        None
    }

    pub(super) fn ask_for_leave(&mut self, stage: &mut Stage, now: Time) {
        for Question { of, number, knows } in self.peers.questions(now) {
            let said = Said::AskLeave { by: self.me(), of, knows: knows.clone() };
            let call = self.ask(stage, place_of(of), Called::Leave { of, told: knows }, said);
            self.peers.is_asking(of, call, number);
        }
    }
}
