//! Having a standby, being one, and going on in a dead server's place: threads and messages. See [`crate::metadata::tail`].

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use cluster::{
    NodeId,
    tail::{
        owner::{Says, Why},
        row::Change,
    },
};
use namespace::superblock;
use net::Incoming;
use prost::Message;
use proto::{
    Head, Method, SessionId,
    owners::SlotState,
    tail::{
        TailAnswer, TailBegin, TailIs, TailMore, TailNow, TailOperation, TailRecord, TailStatus, TailStored,
        TailWho,
    },
};
use types::{Errno, UgsdId};

use super::{Owners, Tails, duty::own, rights::as_slots};
use crate::{
    answer::{Done, No, Outcome},
    metadata::{
        MetadataService,
        tail::{
            ANSWERS, Keeper, Known, TailTrouble, Taking, Unsettled, carried_out, in_operation, into_outcome,
            of_outcome,
        },
    },
    workers::Owed,
};

/// A message to the standby. Within the time after which it is gone on without there is a second one.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// An answer waits for the standby as long as its asker waits for it, and no longer than that.
const SETTLE_WAIT: Duration = Duration::from_secs(25);
/// So that who asked still hears that he is to come later.
const BEFORE_DEADLINE: Duration = Duration::from_millis(300);
/// What came with a slot, before that is served; and what goes to data servers.
const SOON: Duration = Duration::from_secs(3);
/// At the end.
const RETIRE_WAIT: Duration = Duration::from_secs(4);

/// What requests do.
impl MetadataService {
    pub(super) fn tails(&self) -> Option<&Tails> {
        self.owners.as_ref()?.tails.as_ref()
    }

    /// Commits of `run` are the operation's.
    pub(in crate::metadata) fn as_operation(&self, head: &Head, run: impl FnOnce() -> Outcome) -> Outcome {
        let operation = (head.number > 0 && self.tails().is_some()).then(|| TailOperation::of(head));
        in_operation(operation, run)
    }

    /// By a server in whose place this one goes on.
    pub(in crate::metadata) fn answered_before(&self, head: &Head) -> Option<Outcome> {
        let tails = self.tails().filter(|tails| tails.inherits.load(Ordering::Acquire))?;
        let mut inherited = tails.inherited.lock();
        let answer = (head.number > 0).then(|| inherited.take(head)).flatten()?;
        Some(answer.as_ref().map_or_else(carried_out, into_outcome))
    }

    /// The session has it already.
    pub(in crate::metadata) fn tell_standby(&self, head: &Head, outcome: &Outcome) {
        let Some(tails) = self.tails().filter(|_| head.number > 0) else { return };
        let again = outcome.as_ref().is_err_and(|no| matches!(no.errno(), Errno::EAGAIN | Errno::EREMOTE));
        let answer = (!again).then(|| of_outcome(head.number, outcome));
        let (operation, acknowledged) = (TailOperation::of(head), head.acknowledged);
        tails.keeper.answered(TailAnswer { operation, acknowledged, answer });
        self.send_tail(tails, false);
    }

    /// Another may go on in this one's place when not.
    pub(in crate::metadata) fn may_speak(&self) -> Result<(), No> {
        match self.tails() {
            Some(tails) if tails.keeper.is_over() => Err(self.unsettled(Unsettled::Over)),
            Some(tails) if !tails.keeper.may_act() => Err(self.unsettled(Unsettled::NotYet)),
            Some(_) | None => Ok(()),
        }
    }

    /// A session is over.
    pub(in crate::metadata) fn forget_answers(&self, session: SessionId) {
        if let Some(tails) = self.tails() {
            tails.keeper.forget(TailOperation::of(&Head::of(session)));
        }
    }

    /// Gives the answer when nobody can see it lost any more.
    pub(in crate::metadata) fn when_settled(&self, owed: Owed, outcome: Outcome) {
        let tails = self.tails().zip(waits_until(owed.incoming(), &outcome));
        let Some((tails, until)) = tails else { return owed.answer(outcome) };
        let me = self.me.clone();
        tails.keeper.when_settled(until, move |settled| {
            let unsettled = |unsettled| match me.upgrade() {
                Some(service) => service.unsettled(unsettled),
                None => No::later("it has ended"),
            };
            owed.answer(settled.map_err(unsettled).and(outcome));
        });
    }

    fn unsettled(&self, unsettled: Unsettled) -> No {
        match unsettled {
            Unsettled::NotYet => No::later("its standby does not answer, nor is the database told so"),
            Unsettled::Over => No::wrong_owner(self.nodes.epoch()),
        }
    }

    /// Before data servers are told what cannot be undone.
    pub(in crate::metadata) fn settled_here(&self) -> Result<(), No> {
        let Some(tails) = self.tails() else { return Ok(()) };
        tails.keeper.settle(Instant::now() + SOON).map_err(|unsettled| self.unsettled(unsettled))
    }

    /// Answers that came with slots, and who was given up where they were, to our standby.
    pub(super) fn pass_on(&self, state: &SlotState) -> Result<(), No> {
        let Some(tails) = self.tails() else { return Ok(()) };
        let mut known = Known::default();
        for session in &state.sessions {
            let operation = |number| TailOperation { number, ..TailOperation::of(&Head::of(session.id())) };
            let answer = |answer: &proto::owners::AnswerState| TailAnswer {
                operation: operation(answer.number),
                acknowledged: 0,
                answer: Some(answer.clone()),
            };
            let answers = session.answers.iter().map(answer).collect();
            known.add(&TailRecord { answers, ..TailRecord::default() });
        }
        self.tell_given_up(&state.given_up.iter().map(Head::session).collect::<Vec<SessionId>>());
        tails.keeper.learn(known.records(ANSWERS));
        self.settled_here()
    }

    /// Of its standby, and how often it went on for others.
    pub fn standby_now(&self) -> Option<(TailStatus, u64)> {
        let tails = self.tails()?;
        Some((tails.keeper.status(), tails.taken_over.load(Ordering::Relaxed)))
    }

    /// It has to be ended and started: another went on in its place, or it goes on for who was on duty.
    pub fn has_to_begin_anew(&self) -> bool {
        self.tails().is_some_and(|tails| tails.anew.load(Ordering::Acquire) || tails.keeper.is_over())
    }
}

/// How long an answer may wait for the standby. `None`: it need not.
fn waits_until(incoming: &Incoming, outcome: &Outcome) -> Option<Instant> {
    if outcome.as_ref().is_err_and(|no| matches!(no.errno(), Errno::EAGAIN | Errno::EREMOTE)) {
        // It says nothing.
        return None;
    }
    match Method::from_number(incoming.header.method) {
        Some(method) if method.lane() == wire::schema::Lane::Metadata => {
            let end = incoming.deadline.checked_sub(BEFORE_DEADLINE).unwrap_or(incoming.deadline);
            Some(end.min(Instant::now() + SETTLE_WAIT))
        }
        // It has the root's attributes; and who waits here keeps others from saying that they are there.
        Some(Method::Mount) => Some(Instant::now()),
        Some(_) | None => None,
    }
}

/// The owner's side: threads.
impl MetadataService {
    pub(in crate::metadata) fn start_tails(self: &Arc<Self>) -> io::Result<()> {
        let Some(tails) = self.tails() else { return Ok(()) };
        type Round = fn(&MetadataService, &Keeper) -> bool;
        let rounds: [(&str, Round); 3] = [
            ("tail-clock", |_, keeper| keeper.tick()),
            ("tail-send", MetadataService::tend_sends),
            ("tail-row", MetadataService::write_row),
        ];
        for (name, round) in rounds {
            let (weak, keeper) = (Arc::downgrade(self), tails.keeper.clone());
            let run = move || {
                while let Some(service) = weak.upgrade() {
                    if !round(&service, &keeper) {
                        return;
                    }
                }
            };
            std::thread::Builder::new().name(name.into()).spawn(run)?;
        }
        Ok(())
    }

    /// After the last request.
    pub(in crate::metadata) fn end_tails(&self) {
        let Some(tails) = self.tails() else { return };
        if !tails.keeper.is_over() && !tails.keeper.retire(RETIRE_WAIT) {
            tracing::warn!("the database still says that the standby may go on in this server's place");
        }
        let stopped = tails.keeper.is_stopped();
        tails.keeper.stop();
        if !tails.keeper.is_over() && !stopped {
            // An answer that was lost on its way is known after the start.
            if let Err(error) = tails.copies.leave(&self.known_answers(tails)) {
                tracing::warn!(%error, "what was answered last is not kept for the next start");
            }
        }
    }

    /// Nothing is answered that a standby should have, and it is told nothing any more.
    pub fn fall_silent(&self) {
        if let Some(tails) = self.tails() {
            tails.keeper.stop();
        }
    }

    /// What the database is to be told, if there is anything soon. False: it has ended.
    fn write_row(&self, keeper: &Keeper) -> bool {
        let Ok((write, carry)) = keeper.next_write() else { return false };
        let (Ok(owners), Some(tails)) = (self.shared(), self.tails()) else { return true };
        if let Some((number, change)) = write {
            let change = match self.with_names(owners, &change) {
                Ok(change) => change,
                Err(no) => {
                    tracing::debug!(detail = no.0.detail, "the standby does not say who it is");
                    return true;
                }
            };
            match tails.rows.write(&change) {
                Ok(()) => keeper.written(number),
                Err(TailTrouble::Fenced(why)) => {
                    tracing::error!(why, "another server has gone on in this one's place");
                    keeper.fenced();
                }
                // It is said again.
                Err(TailTrouble::Refused(refused)) => {
                    tracing::warn!(?refused, "the database does not take what is said of the standby");
                }
                Err(TailTrouble::Failed(why)) => {
                    tracing::warn!(why, "the database was not told about the standby");
                }
            }
        } else if carry {
            match self.store.checkpoint() {
                Ok(()) => keeper.carried(),
                Err(error) => {
                    tracing::debug!(%error, "a copy begins later");
                    std::thread::sleep(super::following::EVERY);
                }
            }
        }
        true
    }

    fn with_names(&self, owners: &Owners, change: &Change<NodeId>) -> Result<Change<String>, No> {
        Ok(match *change {
            Change::Alone { copy } => Change::Alone { copy },
            Change::Complete { copy } => Change::Complete { copy },
            Change::Begin { copy, standby } => {
                let peer = owners.peers.of(&self.nodes.map(), standby)?;
                let (TailIs { writer }, _) = peer.ask(&TailWho {}, Vec::new(), ANSWER_WAIT)?;
                Change::Begin { copy, standby: writer }
            }
        })
    }

    /// Who is our standby, by the map; and what people are told.
    pub(in crate::metadata) fn tend_tail(&self) {
        let (Ok(owners), Some(tails)) = (self.shared(), self.tails()) else { return };
        let map = self.nodes.map();
        tails.keeper.set_standby(map.standby_of(owners.me.id).filter(|_| self.nodes.has_map()));
        let name = |node: NodeId| map.node(node).map_or_else(|| node.to_string(), |node| node.name.clone());
        for says in tails.keeper.take_said() {
            match says {
                Says::Complete { standby } => {
                    tracing::info!(standby = name(standby), "the standby has all that was answered");
                }
                Says::Alone => tracing::info!("this server has no standby now"),
                Says::Ended { standby, why: Why::Replaced } => {
                    tracing::info!(standby = name(standby), "another standby is to have the copy");
                }
                Says::Ended { standby, why } => {
                    tracing::warn!(standby = name(standby), ?why, "the standby's copy is over");
                }
            }
        }
    }
}

/// The standby's side.
impl MetadataService {
    fn with_tails(&self) -> Result<(&Owners, &Tails), No> {
        let owners = self.shared()?;
        owners.tails.as_ref().map(|tails| (owners, tails)).ok_or_else(|| Errno::ENOSYS.into())
    }

    pub(in crate::metadata) fn tail_who(&self, meta: &[u8]) -> Outcome {
        let _: TailWho = proto::decode(meta)?;
        Ok(Done::new(&TailIs { writer: self.with_tails()?.1.rows.writer() }))
    }

    pub(in crate::metadata) fn tail_begin(&self, meta: &[u8]) -> Outcome {
        let TailBegin { writer, copy, beat, base, .. } = proto::decode(meta)?;
        Ok(Done::new(&self.with_tails()?.1.copies.begun(&writer, (copy, beat, base))))
    }

    pub(in crate::metadata) fn tail_more(&self, meta: &[u8], body: &[u8]) -> Outcome {
        let TailMore { writer, copy, beat, from, up_to, applied, .. } = proto::decode(meta)?;
        let TailStored { records } = TailStored::decode(body).map_err(|_| Errno::EINVAL)?;
        let copies = &self.with_tails()?.1.copies;
        Ok(Done::new(&copies.came(&writer, (copy, beat), (from, up_to, applied), &records)))
    }

    pub(in crate::metadata) fn tail_now(&self, meta: &[u8]) -> Outcome {
        let _: TailNow = proto::decode(meta)?;
        Ok(Done::new(&self.with_tails()?.1.keeper.status()))
    }

    /// Looks whether others are dead.
    pub(in crate::metadata) fn tend_copies(&self) {
        let Ok((owners, tails)) = self.with_tails() else { return };
        let ours = tails.rows.writer();
        for writer in tails.copies.to_look_at() {
            match tails.rows.see(&writer) {
                Ok(Some(view)) => tails.copies.seen(&writer, &view, &ours),
                Ok(None) => {}
                Err(why) => tracing::debug!(writer, why, "a silent server is not looked at"),
            }
        }
        for taking in tails.copies.to_take() {
            self.go_on_for(owners, tails, &taking);
        }
    }

    /// In one transaction. What became of it may not be known: then it is asked again.
    fn go_on_for(&self, owners: &Owners, tails: &Tails, taking: &Taking) {
        let Taking { writer, copy, commits, known } = taking;
        // Whoever goes on in our place has to know it, too.
        tails.keeper.learn(known.records(ANSWERS));
        if self.settled_here().is_err() {
            return;
        }
        if let Err(error) = tails.copies.note(writer) {
            return tracing::error!(%error, "a copy of a dead server's journal is not gone on with");
        }
        match tails.rows.take_over(writer, *copy, commits) {
            Ok(slots) => {
                known.records(ANSWERS).iter().for_each(|record| tails.inherited.lock().add(record));
                tails.inherits.store(true, Ordering::Release);
                if tails.copies.took(writer, Ok(())) {
                    tracing::warn!(
                        writer,
                        slots = slots.len(),
                        commits = commits.len(),
                        "this server goes on in the place of a dead one"
                    );
                    tails.taken_over.fetch_add(1, Ordering::Relaxed);
                    self.serve_taken(owners, tails, &slots, known.given_up());
                }
            }
            Err(TailTrouble::Refused(refused)) => {
                tails.copies.unnote(writer);
                tails.copies.took(writer, Err(refused));
                tracing::info!(writer, ?refused, "a dead server's place is not taken");
            }
            Err(TailTrouble::Fenced(why)) => {
                tracing::error!(why, "another server has gone on in this one's place");
                tails.keeper.fenced();
            }
            Err(TailTrouble::Failed(why)) => {
                tracing::warn!(writer, why, "a dead server's place is not taken yet");
            }
        }
    }

    fn serve_taken(
        &self,
        owners: &Owners,
        tails: &Tails,
        slots: &BTreeMap<u16, u64>,
        given_up: &BTreeSet<SessionId>,
    ) {
        let _come = self.slots_come();
        // Before they say what they have in these; and before a start, which data servers are to hear of by their numbers here.
        let due = self.terms.give_up_all(given_up.iter().copied());
        self.carry_on(due);
        if slots.contains_key(&UgsdId::ROOT.slot().get()) {
            // Whoever has it is on duty, from a start on.
            tails.anew.store(true, Ordering::Release);
            return;
        }
        let numbers: Vec<u16> = slots.keys().copied().collect();
        // Sessions say what they have in them, and go on.
        self.expect_sessions(owners, &as_slots(&numbers), true);
        self.store.forget_reads();
        let served = superblock::load(&*self.store).map_err(|error| error.to_string()).and_then(|found| {
            self.mds.take_on(&as_slots(&numbers), found.next_ugsd).map_err(|errno| errno.to_string())
        });
        if let Err(why) = served {
            tracing::error!(why, "slots that were taken are served after a start");
            tails.anew.store(true, Ordering::Release);
            return;
        }
        self.slots_changed(true);
        self.fence_there(&given_up.iter().copied().collect());
        if owners.is_on_duty() {
            let epochs: Vec<u64> = slots.values().copied().collect();
            if let Err(no) = self.nodes.change(&own(&numbers, owners.me.id, &epochs)) {
                tracing::error!(detail = no.0.detail, "slots that were taken are not in the map");
            }
        }
    }
}
