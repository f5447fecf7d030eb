//! A slot that goes to another owner in order: what goes along with it, as `serve::metadata::carried` and `owners::state` have it.
//!
//! The giver closes the slot, until nothing that it answered or is about to answer is unwritten; what waits is told to come later. Then it is the state that
//! serves no more. The taker may use it only if nobody had the slot in between: if its life is the one after the giver's.

use std::collections::BTreeSet;

use cluster::tenure::Time;
use lease::coherence::{
    message::Life,
    server::{Expected, Input},
};
use proto::SessionId;

use crate::{
    cast::{Broken, TERMS},
    domain::Domain,
    message::{Known, Message, State},
    scene::Scene,
    tail::{Inherited, Journal},
};

impl Domain {
    /// Everything, if nothing is under way; nothing new begins for a while.
    pub fn let_go(&mut self, now: Time, scene: &mut Scene) -> Option<State> {
        self.closed_until = now + TERMS.beat_every * 2;
        if !self.pending.is_empty() || !self.tasks.is_empty() || self.lease.in_grace() {
            return None;
        }
        // They have not begun, or wait for a lock.
        for doing in std::mem::take(&mut self.doing).into_values() {
            if let Some(ticket) = doing.ticket {
                scene.net.answer(ticket, Message::Later);
            }
        }
        let (locks, _) = self.lease.take_locks(&|_| true);
        let answers = self.answers.iter().filter(|(_, answered)| answered.goes_along);
        Some(State {
            slot: self.slot,
            life: self.life,
            incarnation: self.incarnation,
            sessions: self.lease.alive(),
            locks,
            answers: answers.map(|(number, answered)| (*number, answered.clone())).collect(),
        })
    }

    /// It has just begun, after a take-over with the end of a journal: what was answered there is known.
    pub fn inherit(&mut self, scene: &mut Scene, inherited: Option<Inherited>) {
        let before = self.life.0.checked_sub(1).map(Life);
        let Some(inherited) = inherited.filter(|of| Some(of.life) == before) else { return };
        self.answers.extend(inherited.answers.into_iter().map(|(number, (_, answered))| (number, answered)));
        if inherited.knows {
            scene.names.goes_on(self.slot, inherited.life, self.life);
        }
        scene.note(|| {
            format!("{:?} goes on in {:?} with {} answers", self.slot, self.life, self.answers.len())
        });
    }

    /// What was answered elsewhere is in the journal before anything is served.
    pub fn store_answers(&self, scene: &mut Scene, journal: &mut Journal) {
        let known: Known =
            self.answers.iter().map(|(number, answered)| (*number, (self.slot, answered.clone()))).collect();
        if !known.is_empty() {
            journal.add(scene, self.slot, None, known);
        }
    }

    /// It has just begun. Sessions come back with what they keep and claim; their locks it knows better than they do, who may not have heard.
    pub fn go_on(&mut self, now: Time, scene: &mut Scene, state: State) {
        let locks = state.locks.iter().map(|lock| lock.owner.session);
        let given_up: BTreeSet<SessionId> = locks.filter(|of| !state.sessions.contains(of)).collect();
        for session in state.sessions {
            self.lease.handle(now, Input::Place { session, silent: Time::ZERO });
        }
        // They are told when they come.
        while self.lease.poll_effect().is_some() {}
        // What they have is theirs until they are fenced once more.
        for session in given_up {
            self.lease.handle(now, Input::PlaceGivenUp { session, silent: Time::ZERO });
        }
        if scene.broken != Broken::LocksLeft {
            self.lease.put_locks(&state.locks);
        }
        if scene.broken != Broken::AnswersLeft {
            self.answers = state.answers;
        }
        let sessions: BTreeSet<SessionId> = self.lease.alive().into_iter().collect();
        self.lease.expect(Expected {
            keeping: sessions.clone(),
            sessions,
            lapsed: Time::MAX,
            ..Expected::default()
        });
        self.knows_locks = true;
        scene.tally.handed_over += 1;
        scene.tally.locks_handed_over += state.locks.len() as u64;
        scene.names.goes_on(self.slot, state.life, self.life);
        scene.note(|| format!("{:?} goes on in {:?} after {:?}", self.slot, self.life, state.life));
    }
}
