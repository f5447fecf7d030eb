//! What the standby is told: by whoever has something for it, without waiting; where something has to be waited for, by a thread.

use std::{
    sync::{Arc, Weak},
    time::Instant,
};

use cluster::NodeId;
use net::{Call, Channel};
use prost::Message as _;
use proto::{
    Head, Request, SessionId,
    tail::{TailAnswer, TailBegin, TailHas, TailMore, TailOperation, TailRecord, TailStored},
};
use wire::frame::{Body, Verdict};

use super::{Tails, tails::ANSWER_WAIT};
use crate::{
    answer::Outcome,
    metadata::{
        MetadataService,
        carried::GIVEN_UP_MAX,
        tail::{ANSWERS, Keeper, Known, Message, More, of_outcome, said_given_up},
    },
};

impl MetadataService {
    /// The thread that makes connections and begins copies. False: it has ended.
    pub(super) fn tend_sends(&self, keeper: &Keeper) -> bool {
        let goes_on = keeper.wait_for_sends(ANSWER_WAIT);
        if let Some(tails) = self.tails().filter(|_| goes_on) {
            self.send_tail(tails, true);
        }
        goes_on
    }

    /// All that can be sent, unless somebody is at it.
    pub(super) fn send_tail(&self, tails: &Tails, may_wait: bool) {
        if !tails.keeper.begin_sending() {
            return;
        }
        let mut line = there(tails);
        while let Some(message) = tails.keeper.next_message(line.as_ref().map(|(to, _)| *to), may_wait) {
            match message {
                Message::Begin { to, copy, beat, base } => self.begin_copy(tails, to, (copy, beat, base)),
                Message::More(more) => {
                    let connected = line.take().filter(|(to, _)| *to == more.to);
                    line = connected.or_else(|| self.connected(tails, more.to));
                    self.send_more(tails, line.as_ref().map(|(_, channel)| &**channel), more);
                }
            }
        }
    }

    /// Waits for the connection, and for the answer.
    fn begin_copy(&self, tails: &Tails, to: NodeId, (copy, beat, base): (u64, u64, u64)) {
        tails.keeper.tell_known(copy, || self.known_answers(tails));
        let (Ok(owners), Some((_, channel))) = (self.shared(), self.connected(tails, to)) else { return };
        let begin = TailBegin { node: owners.me.id.0, writer: tails.rows.writer(), copy, beat, base };
        let answered = channel.call(call(&begin, Vec::new()));
        match answered.ok().and_then(|answered| has(&answered)) {
            Some(TailHas { copy, refused: true, .. }) => tails.keeper.refused(to, copy),
            Some(TailHas { copy, beat, up_to, .. }) => tails.keeper.stored(to, copy, beat, up_to),
            // It is said again.
            None => tracing::debug!(standby = %to, "the standby does not answer"),
        }
    }

    fn send_more(&self, tails: &Tails, channel: Option<&Channel>, more: More) {
        let More { number, to, copy, beat, from, up_to, applied, records } = more;
        let begun = channel.zip(self.shared().ok()).is_some_and(|(channel, owners)| {
            let (node, writer) = (owners.me.id.0, tails.rows.writer());
            let more = TailMore { node, writer, copy, beat, from, up_to, applied };
            let (me, keeper) = (self.me.clone(), tails.keeper.clone());
            let heard = move |answered: Result<net::Answered, _>| {
                let ready = keeper.heard(number, to, answered.ok().and_then(|answered| has(&answered)));
                send_next(&me);
                ready.give();
            };
            channel.begin_then(call(&more, TailStored { records }.encode_to_vec()), heard).is_ok()
        });
        if !begun {
            // It is said again.
            tails.keeper.heard(number, to, None).give();
        }
    }

    /// To the standby, as the map has it now.
    fn connected(&self, tails: &Tails, to: NodeId) -> Option<(NodeId, Arc<Channel>)> {
        let peer = tails.peers.of(&self.nodes.map(), to).ok()?;
        *tails.line.lock() = Some((to, peer.clone()));
        Some((to, peer.connected(ANSWER_WAIT)?))
    }

    /// Who was given up, to our standby. Returns the record that it is to have before what they had is free; 0: nobody goes on in our place.
    pub(in crate::metadata) fn tell_given_up(&self, sessions: &[SessionId]) -> u64 {
        let Some(tails) = self.tails() else { return 0 };
        let mut told = tails.told_given_up.lock();
        if told.len() + sessions.len() > GIVEN_UP_MAX {
            told.clear();
        }
        let new: Vec<SessionId> = sessions.iter().copied().filter(|session| told.insert(*session)).collect();
        // Under that lock: who finds them told waits for what was told then.
        tails.keeper.learn(said_given_up(&new))
    }

    /// Does whoever may go on in our place have the record?
    pub(in crate::metadata) fn standby_has(&self, record: u64) -> bool {
        self.tails().is_none_or(|tails| tails.keeper.is_known(record))
    }

    /// All that may be asked again, and who was given up.
    pub(super) fn known_answers(&self, tails: &Tails) -> Vec<TailRecord> {
        let mut known = Known::default();
        said_given_up(&self.terms.given_up()).for_each(|record| known.add(&record));
        tails.inherited.lock().records(ANSWERS).iter().for_each(|record| known.add(record));
        for session in self.sessions.all() {
            let answer = |(number, outcome): (u64, Outcome)| TailAnswer {
                operation: TailOperation { number, ..TailOperation::of(&Head::of(session.id)) },
                acknowledged: 0,
                answer: Some(of_outcome(number, &outcome)),
            };
            let answers = session.kept().into_iter().map(answer).collect();
            known.add(&TailRecord { answers, ..TailRecord::default() });
        }
        known.records(ANSWERS)
    }
}

/// On the thread that has heard of the message before.
fn send_next(me: &Weak<MetadataService>) {
    if let Some(service) = me.upgrade()
        && let Some(tails) = service.tails()
    {
        service.send_tail(tails, false);
    }
}

fn there(tails: &Tails) -> Option<(NodeId, Arc<Channel>)> {
    let line = tails.line.lock().clone();
    line.and_then(|(to, peer)| Some((to, peer.there()?)))
}

fn call<R: Request>(request: &R, body: Vec<u8>) -> Call {
    let until = Instant::now() + ANSWER_WAIT;
    Call { body: Body::new(body), ..Call::new(R::METHOD.number(), request.encode_to_vec(), until) }
}

fn has(answered: &net::Answered) -> Option<TailHas> {
    let is_done = answered.header.verdict == Verdict::Done;
    is_done.then(|| TailHas::decode(&answered.meta[..]).ok()).flatten()
}
