//! Between two data servers: leave to answer, asked for while somebody wants it, and what one is told that it has no more.

use std::{collections::BTreeMap, time::Duration};

use cluster::{
    replica::{
        Member, View,
        copy::{Copy, Leave},
        trust::Trust,
    },
    tenure::Time,
};
use types::Ino;

use super::cast::{Left, TERMS, object};

/// Leave is asked for so long after somebody wanted it.
const WANTED_FOR: Duration = Duration::from_millis(900);

struct Peer {
    trust: Trust,
    wanted: Time,
    asked: Time,
    /// The call of the network, and the question's number.
    asking: Option<(u64, u64)>,
    /// Views of objects of which it said that we do not have them: it is told that we know.
    knows: Vec<(u64, u64)>,
}

#[derive(Default)]
pub struct Peers(BTreeMap<Member, Peer>);

/// To whom, its number, and what we know.
pub struct Question {
    pub of: Member,
    pub number: u64,
    pub knows: Vec<(u64, u64)>,
}

impl Peers {
    fn get(&mut self, member: Member) -> &mut Peer {
        let trust = Trust::new(TERMS);
        let new = || Peer { trust, wanted: Time::ZERO, asked: Time::ZERO, asking: None, knows: Vec::new() };
        self.0.entry(member).or_insert_with(new)
    }

    pub fn leave(&mut self, now: Time, copy: &Copy, ino: Ino, left: Left) -> Leave {
        let settled = self.0.values().all(|peer| peer.trust.is_settled(now, ino));
        let act = copy.peer().and_then(|peer| self.0.get_mut(&peer)).is_some_and(|peer| {
            peer.wanted = now;
            peer.trust.may_act(now)
        });
        let view = copy.view().map_or(0, |view| view.number);
        Leave { view, act: act || left == Left::NoLeave, settled: settled || left == Left::Unsettled }
    }

    pub fn want(&mut self, now: Time, member: Member) {
        self.get(member).wanted = now;
    }

    pub fn leave_out(&mut self, member: Member, ino: Ino, view: u64) {
        self.get(member).trust.leave_out(ino, view);
    }

    /// What is to be asked now.
    pub fn questions(&mut self, now: Time) -> Vec<Question> {
        let mut questions = Vec::new();
        for (of, peer) in &mut self.0 {
            let wanted = now < peer.wanted + WANTED_FOR || !peer.knows.is_empty();
            let often = if peer.knows.is_empty() { TERMS.beat_every } else { Duration::from_millis(20) };
            if wanted && peer.asking.is_none() && now >= peer.asked + often {
                peer.asked = now;
                let number = peer.trust.ask(now);
                questions.push(Question { of: *of, number, knows: peer.knows.clone() });
            }
        }
        questions
    }

    pub fn is_asking(&mut self, of: Member, call: u64, number: u64) {
        self.get(of).asking = Some((call, number));
    }

    /// `None`: it has not answered.
    pub fn answered(&mut self, of: Member, call: u64, granted: Option<bool>, told: &[(u64, u64)]) {
        let peer = self.get(of);
        let Some((_, number)) = peer.asking.take_if(|(asking, _)| *asking == call) else { return };
        if granted.is_some() {
            peer.knows.retain(|known| !told.contains(known));
        }
        if granted == Some(true) {
            peer.trust.granted(number);
        }
    }

    /// It asks, and says what it knows. What it does not have any more, if that is not leave.
    pub fn asks(&mut self, now: Time, by: Member, knows: &[(u64, u64)]) -> Result<(), Vec<u64>> {
        let peer = self.get(by);
        for (number, view) in knows {
            peer.trust.knows(object(*number), *view);
        }
        if peer.trust.grant(now) {
            return Ok(());
        }
        let untold: Vec<Ino> = peer.trust.untold().map(|(ino, _)| ino).collect();
        Err((0..super::cast::OBJECTS).filter(|number| untold.contains(&object(*number))).collect())
    }

    pub fn note_known(&mut self, by: Member, number: u64, view: &View) {
        self.get(by).knows.push((number, view.number));
    }
}
