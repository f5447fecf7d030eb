//! The owner's side: what was committed and answered here goes to the standby, and what may be answered waits for it.
//!
//! One lock, held for moments, under which no other is taken: commits come under the journal's. What takes long (messages, the database,
//! checkpoints) is done by threads that ask for [`Job`]s.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use cluster::{
    NodeId,
    tail::{
        Terms,
        owner::{Effect, Input, Owner, Says},
        row::Change,
    },
    tenure::Time,
};
use kv::{Follower, Lsn};
use namespace::txn::KvError;
use parking_lot::{Condvar, Mutex, MutexGuard};
use proto::tail::{RECORDS_BYTES, TailAnswer, TailOperation, TailRecord, TailStatus};

use super::{clock::now, forming, forming::Forming};

/// An operation that is not answered for so long after its commit is let loose.
const WHOLE_WITHIN: Duration = Duration::from_millis(20);
/// A record is closed at this, whoever is not answered yet.
const RECORD_BYTES: usize = 1 << 20;
/// What is kept for a standby that is brought up to date or is slow: more, and the copy ends. Beside the number of records in [`Terms`].
const KEPT_BYTES: u64 = 256 << 20;
/// A checkpoint that may not be yet is tried again later.
const APPLY_WAIT: Duration = Duration::from_secs(5);
/// Messages that wait to be sent: they are made one where they follow each other, and what is left out is said again by the next beat.
const SENDS: usize = 16;
/// Nobody who waits sleeps longer without a look at the clock.
const LOOK: Duration = Duration::from_millis(100);

/// Something for a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Job {
    /// To be sent, after what is known of operations was given to [`Keeper::tell_known`].
    Begin {
        to: NodeId,
        copy: u64,
        beat: u64,
        base: u64,
    },
    More {
        to: NodeId,
        copy: u64,
        beat: u64,
        from: u64,
        up_to: u64,
        applied: u64,
    },
}

/// Its number, and what the row is to say.
pub(crate) type Writing = (u64, Change<NodeId>);

/// Nothing may be said now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unsettled {
    /// The standby has not stored it, or the database does not say that there is none.
    NotYet,
    /// Another one goes on in this one's place.
    Over,
}

struct State {
    machine: Owner,
    forming: Forming,
    /// Since there is something in it.
    formed: Time,
    /// For the standby. Only what is above [`Owner::kept_above`].
    kept: BTreeMap<u64, Arc<TailRecord>>,
    kept_bytes: u64,
    /// Of commits that the engine has not: their numbers in the journal, and those of their records.
    commits: VecDeque<(u64, u64)>,
    last: u64,
    /// Up to here all may be answered.
    ready: u64,
    sends: VecDeque<Job>,
    write: Option<Writing>,
    carry: bool,
    /// The copy whose standby was told what is known of operations.
    told: u64,
    standby: Option<NodeId>,
    fed: Option<NodeId>,
    /// It was complete, or not, since then.
    since: Instant,
    complete: bool,
    said: Vec<Says>,
    over: bool,
    stopped: bool,
}

pub(crate) struct Keeper {
    on: bool,
    state: Mutex<State>,
    /// For those who wait for answers.
    answers: Condvar,
    /// For the threads: messages, and what the database is to be told.
    sending: Condvar,
    writing: Condvar,
    ticking: Condvar,
}

impl Keeper {
    /// Of a store whose engine has commits up to `applied`, and its journal up to `last`. `copy`: the row had no higher number.
    pub(crate) fn new(terms: Terms, on: bool, copy: u64, (applied, last): (Lsn, Lsn)) -> Keeper {
        let mut state = State {
            machine: Owner::new(terms, copy, 0, now()),
            forming: Forming::default(),
            formed: Time::ZERO,
            kept: BTreeMap::new(),
            kept_bytes: 0,
            commits: VecDeque::new(),
            last: 0,
            ready: 0,
            sends: VecDeque::new(),
            write: None,
            carry: false,
            told: 0,
            standby: None,
            fed: None,
            since: Instant::now(),
            complete: false,
            said: Vec::new(),
            over: false,
            stopped: false,
        };
        // From before there was anybody to be told: no copy begins before the engine has them.
        for lsn in applied.0 + 1..=last.0 {
            state.last += 1;
            state.commits.push_back((lsn, state.last));
            state.machine.handle(now(), Input::Added);
        }
        state.drain();
        let (answers, sending, writing, ticking) = Default::default();
        Keeper { on, state: Mutex::new(state), answers, sending, writing, ticking }
    }

    fn changed(&self, mut state: MutexGuard<'_, State>) {
        self.tell(&mut state);
    }

    fn tell(&self, state: &mut State) {
        state.drain();
        self.answers.notify_all();
        if !state.sends.is_empty() {
            self.sending.notify_one();
        }
        if state.write.is_some() || state.carry {
            self.writing.notify_one();
        }
    }

    fn handle(&self, input: Input) {
        let mut state = self.state.lock();
        state.machine.handle(now(), input);
        self.changed(state);
    }

    /// By the map.
    pub(crate) fn set_standby(&self, standby: Option<NodeId>) {
        let mut state = self.state.lock();
        let standby = standby.filter(|_| self.on);
        state.standby = standby;
        // Too much came; it begins anew.
        let fed = standby.filter(|_| state.kept_bytes <= KEPT_BYTES);
        if fed != state.fed {
            state.fed = fed;
            state.machine.handle(now(), Input::Standby(fed));
            self.changed(state);
        }
    }

    /// An operation was answered, or is to be asked again (`None`). The session has the answer already.
    pub(crate) fn answered(&self, answer: TailAnswer) {
        let mut state = self.state.lock();
        state.forming.answered(answer);
        if state.forming.is_whole() {
            state.close();
            self.changed(state);
        }
    }

    /// Answers of others, which are to be known to whoever goes on here.
    pub(crate) fn learn(&self, records: Vec<TailRecord>) {
        if records.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        if !state.forming.is_empty() {
            state.close();
        }
        records.into_iter().for_each(|record| state.add(record));
        self.changed(state);
    }

    /// A session is over: what it was answered need not be known.
    pub(crate) fn forget(&self, operation: TailOperation) {
        let mut state = self.state.lock();
        state.forming.say(TailAnswer { operation, acknowledged: u64::MAX, answer: None });
        state.started();
        if state.forming.is_whole() {
            state.close();
            self.changed(state);
        }
    }

    /// What is known of operations, before the first message of a copy: it is the copy's first records.
    pub(crate) fn tell_known(&self, copy: u64, known: impl FnOnce() -> Vec<TailRecord>) {
        if self.state.lock().told == copy {
            return;
        }
        self.learn(known());
        let mut state = self.state.lock();
        state.told = copy;
        state.forming.say_begun();
        if !state.forming.is_empty() {
            state.close();
        }
        self.changed(state);
    }

    /// Waits until all that was committed and answered until now may be known to anybody.
    pub(crate) fn settle(&self, until: Instant) -> Result<(), Unsettled> {
        let mut state = self.state.lock();
        if let Some(operation) = forming::current() {
            state.forming.let_loose(operation);
        }
        let target = state.last + u64::from(!state.forming.is_empty());
        loop {
            if state.over {
                return Err(Unsettled::Over);
            }
            if state.stopped {
                return Err(Unsettled::NotYet);
            }
            if state.ready >= target && state.machine.may_answer(now()) {
                return Ok(());
            }
            if state.last < target && state.is_due() {
                state.close();
                self.tell(&mut state);
                continue;
            }
            let pause = if state.last < target { WHOLE_WITHIN } else { LOOK };
            let next = until.min(Instant::now() + pause);
            if self.answers.wait_until(&mut state, next).timed_out() && Instant::now() >= until {
                return if state.over { Err(Unsettled::Over) } else { Err(Unsettled::NotYet) };
            }
        }
    }

    /// May anything be said or ordered that others rely on?
    pub(crate) fn may_act(&self) -> bool {
        let state = self.state.lock();
        !state.over && state.machine.may_answer(now())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().over
    }

    pub(crate) fn status(&self) -> TailStatus {
        let state = self.state.lock();
        TailStatus {
            standby: state.standby.map_or(0, |node| node.0),
            complete: state.complete,
            waiting: state.machine.lag() + u64::from(!state.forming.is_empty()),
            since_ms: u64::try_from(state.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            off: !self.on,
        }
    }

    /// So that people are told.
    pub(crate) fn take_said(&self) -> Vec<Says> {
        std::mem::take(&mut self.state.lock().said)
    }
}

/// For the threads.
impl Keeper {
    /// What is due by the clock. Returns false when it has ended.
    pub(crate) fn tick(&self) -> bool {
        let mut state = self.state.lock();
        if state.stopped {
            return false;
        }
        let now = now();
        if state.machine.next_deadline().is_some_and(|at| now >= at) {
            state.machine.handle_deadline(now);
            self.changed(state);
            state = self.state.lock();
        }
        let until = state.machine.next_deadline().map(|at| at.saturating_sub(now)).unwrap_or(LOOK);
        self.ticking.wait_for(&mut state, until.clamp(Duration::from_millis(1), LOOK));
        true
    }

    /// Returns a message to be sent, if there is one soon; the error: it has ended.
    pub(crate) fn next_send(&self) -> Result<Option<Job>, ()> {
        let mut state = self.state.lock();
        if state.sends.is_empty() && !state.stopped {
            self.sending.wait_for(&mut state, LOOK);
        }
        if state.stopped { Err(()) } else { Ok(state.sends.pop_front()) }
    }

    /// The records of a message, in parts: each with the first number and the last.
    pub(crate) fn records(&self, from: u64, up_to: u64) -> Vec<(u64, u64, Vec<TailRecord>)> {
        let kept: Vec<Arc<TailRecord>> = {
            let state = self.state.lock();
            state.kept.range(from..=up_to.max(from)).map(|(_, record)| record.clone()).collect()
        };
        let mut parts: Vec<(u64, u64, Vec<TailRecord>)> = Vec::new();
        let mut bytes = 0;
        for record in kept.into_iter().filter(|record| record.number <= up_to) {
            match parts.last_mut().filter(|_| bytes < RECORDS_BYTES) {
                Some((_, last, records)) => {
                    *last = record.number;
                    bytes += size(&record);
                    records.push(Arc::unwrap_or_clone(record));
                }
                None => {
                    bytes = size(&record);
                    parts.push((record.number, record.number, vec![Arc::unwrap_or_clone(record)]));
                }
            }
        }
        parts
    }

    pub(crate) fn stored(&self, by: NodeId, copy: u64, beat: u64, up_to: u64) {
        self.handle(Input::Stored { by, copy, beat, up_to });
    }

    pub(crate) fn refused(&self, by: NodeId, copy: u64) {
        self.handle(Input::Refused { by, copy });
    }

    /// What the row is to say; and whether the engine is to be brought up to date.
    pub(crate) fn next_write(&self) -> Result<(Option<Writing>, bool), ()> {
        let mut state = self.state.lock();
        if state.write.is_none() && !state.carry && !state.stopped {
            self.writing.wait_for(&mut state, LOOK);
        }
        if state.stopped { Err(()) } else { Ok((state.write.take(), state.carry)) }
    }

    pub(crate) fn written(&self, write: u64) {
        self.handle(Input::Written { write });
    }

    pub(crate) fn fenced(&self) {
        self.handle(Input::Fenced);
    }

    /// A checkpoint ended well.
    pub(crate) fn carried(&self) {
        let mut state = self.state.lock();
        state.carry = false;
        let up_to = state.applied();
        state.machine.handle(now(), Input::Applied { up_to });
        self.changed(state);
    }

    /// No standby any more, and the row says so: whoever comes again finds nothing to take. False: not within this time.
    pub(crate) fn retire(&self, wait: Duration) -> bool {
        self.set_standby(None);
        let until = Instant::now() + wait;
        let mut state = self.state.lock();
        while !state.over && !state.stopped && state.machine.may_be_replaced() {
            if self.answers.wait_until(&mut state, until).timed_out() {
                return false;
            }
        }
        true
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.changed(state);
        for threads in [&self.sending, &self.writing, &self.ticking] {
            threads.notify_all();
        }
    }
}

impl Follower for Keeper {
    fn added(&self, lsn: Lsn, body: &[u8]) {
        let by = forming::current();
        let mut state = self.state.lock();
        state.forming.committed(lsn.0, body.to_vec(), by);
        state.started();
        if state.forming.is_whole() || state.forming.bytes() > RECORD_BYTES {
            state.close();
            self.changed(state);
        }
    }

    fn before_apply(&self, lsn: Lsn) -> Result<(), KvError> {
        let until = Instant::now() + APPLY_WAIT;
        let mut state = self.state.lock();
        loop {
            if state.over {
                return Err(KvError::Io("another server goes on in this one's place".to_owned()));
            }
            if state.formed_number(lsn.0).is_none() && (state.is_due() || state.stopped) {
                state.close();
                self.tell(&mut state);
            }
            match state.formed_number(lsn.0) {
                Some(number) if number <= state.machine.may_apply() => return Ok(()),
                Some(_) | None => {}
            }
            if state.stopped || Instant::now() >= until {
                return Err(KvError::Io("the standby has not stored it yet".to_owned()));
            }
            self.answers.wait_for(&mut state, WHOLE_WITHIN);
        }
    }

    fn applied(&self, lsn: Lsn) {
        let mut state = self.state.lock();
        while state.commits.front().is_some_and(|(front, _)| *front <= lsn.0) {
            state.commits.pop_front();
        }
        let up_to = state.applied();
        state.machine.handle(now(), Input::Applied { up_to });
        self.changed(state);
    }
}

impl State {
    /// The first of what is being made may have come now.
    fn started(&mut self) {
        if self.formed == Time::ZERO {
            self.formed = now();
        }
    }

    fn is_due(&self) -> bool {
        self.forming.is_whole() || now() >= self.formed.saturating_add(WHOLE_WITHIN)
    }

    fn close(&mut self) {
        let record = self.forming.take(0);
        self.formed = Time::ZERO;
        self.add(record);
    }

    fn add(&mut self, record: TailRecord) {
        self.last += 1;
        let record = TailRecord { number: self.last, ..record };
        self.commits.extend(record.commits.iter().map(|commit| (commit.lsn, record.number)));
        self.kept_bytes += size(&record) as u64;
        self.kept.insert(self.last, Arc::new(record));
        self.machine.handle(now(), Input::Added);
        self.drain();
    }

    /// The record that has this commit; 0: the engine has it. `None`: it is in none yet.
    fn formed_number(&self, lsn: u64) -> Option<u64> {
        let first = self.commits.front().map(|(first, _)| *first).or(self.forming.first_lsn());
        if first.is_none_or(|first| lsn < first) {
            return Some(0);
        }
        let at = self.commits.partition_point(|(one, _)| *one < lsn);
        self.commits.get(at).map(|(_, number)| *number)
    }

    /// The engine has all records up to here.
    fn applied(&self) -> u64 {
        self.commits.front().map_or(self.last, |(_, number)| number - 1)
    }

    fn drain(&mut self) {
        while let Some(effect) = self.machine.poll_effect() {
            match effect {
                Effect::Write { write, change } => self.write = Some((write, change)),
                Effect::Carry => self.carry = true,
                Effect::Begin { to, copy, beat, base } => self.send(Job::Begin { to, copy, beat, base }),
                Effect::Send { to, copy, beat, from, up_to, applied } => {
                    self.send(Job::More { to, copy, beat, from, up_to, applied });
                }
                Effect::Answer { up_to } => self.ready = self.ready.max(up_to),
                Effect::Says(says) => self.said.push(says),
                Effect::StepDown => self.over = true,
            }
        }
        let complete = self.machine.is_complete() && !self.over;
        if complete != self.complete {
            (self.complete, self.since) = (complete, Instant::now());
        }
        let above = self.machine.kept_above();
        while let Some(first) = self.kept.first_entry().filter(|first| *first.key() <= above) {
            self.kept_bytes -= size(&first.remove()) as u64;
        }
    }

    fn send(&mut self, job: Job) {
        if let (
            Some(Job::More { to, copy, beat, up_to, applied, .. }),
            Job::More { to: to2, copy: copy2, beat: beat2, from: from2, up_to: up_to2, applied: applied2 },
        ) = (self.sends.back_mut(), &job)
            && (*to, *copy) == (*to2, *copy2)
            && *from2 <= *up_to + 1
        {
            (*beat, *up_to, *applied) = (*beat2, (*up_to).max(*up_to2), *applied2);
            return;
        }
        if self.sends.len() >= SENDS {
            self.sends.pop_front();
        }
        self.sends.push_back(job);
    }
}

fn size(record: &TailRecord) -> usize {
    let commits: usize = record.commits.iter().map(|commit| commit.body.len() + 32).sum();
    let answers = |answer: &TailAnswer| answer.answer.as_ref().map_or(0, |answer| answer.meta.len());
    let answers: usize = record.answers.iter().map(|answer| answers(answer) + 64).sum();
    64 + commits + answers + 32 * record.begun.len()
}

#[cfg(test)]
mod tests {
    use cluster::tenure;
    use proto::owners::AnswerState;

    use super::{super::forming::in_operation, *};

    const STANDBY: NodeId = NodeId(7);
    const LEASE: Duration = Duration::from_millis(300);

    fn op(number: u64) -> TailOperation {
        TailOperation { session_high: 0, session_low: 1, number }
    }

    fn answer(number: u64) -> TailAnswer {
        let answer = Some(AnswerState { number, meta: vec![], refused: false });
        TailAnswer { operation: op(number), acknowledged: 1, answer }
    }

    fn keeper() -> Keeper {
        let tenure = tenure::Terms {
            lease: LEASE,
            beat_every: Duration::from_millis(20),
            suspect_after: LEASE,
            drift_one_in: 100,
        };
        // It is never silent for long enough to be gone on without.
        let patience = Duration::from_secs(600);
        let terms = Terms { tenure, patience, pause: Duration::ZERO, ..Terms::default() };
        Keeper::new(terms, true, 0, (Lsn(0), Lsn(0)))
    }

    fn row(keeper: &Keeper) -> Change<NodeId> {
        loop {
            keeper.tick();
            if let (Some((number, change)), _) = keeper.next_write().unwrap() {
                keeper.written(number);
                return change;
            }
        }
    }

    fn send(keeper: &Keeper) -> Job {
        loop {
            keeper.tick();
            if let Some(job) = keeper.next_send().unwrap() {
                return job;
            }
        }
    }

    /// The standby stores what it is sent; returns the records.
    fn store(keeper: &Keeper) -> Vec<TailRecord> {
        match send(keeper) {
            Job::Begin { copy, beat, base, .. } => {
                keeper.tell_known(copy, Vec::new);
                keeper.stored(STANDBY, copy, beat, base);
                Vec::new()
            }
            Job::More { copy, beat, from, up_to, .. } => {
                let parts = keeper.records(from, up_to);
                keeper.stored(STANDBY, copy, beat, up_to);
                parts.into_iter().flat_map(|(_, _, records)| records).collect()
            }
        }
    }

    fn complete() -> Keeper {
        let keeper = keeper();
        assert_eq!(keeper.settle(Instant::now()), Err(Unsettled::NotYet), "the row may say anything");
        assert_eq!(row(&keeper), Change::Alone { copy: 1 });
        keeper.settle(Instant::now()).unwrap();
        keeper.set_standby(Some(STANDBY));
        assert_eq!(row(&keeper), Change::Begin { copy: 2, standby: STANDBY });
        while !keeper.next_write().unwrap().1 {}
        keeper.carried();
        store(&keeper);
        assert_eq!(row(&keeper), Change::Complete { copy: 2 });
        assert!(keeper.status().complete);
        keeper
    }

    /// Goal: a commit and its answer are sent as one and answered when they are stored; the engine waits for that, too. Method: by hand.
    #[test]
    fn an_answer_waits_until_it_is_stored() {
        let keeper = complete();
        let soon = || Instant::now() + Duration::from_secs(60);
        keeper.settle(soon()).unwrap();
        in_operation(Some(op(1)), || keeper.added(Lsn(1), b"one"));
        keeper.answered(answer(1));
        assert_eq!(keeper.settle(Instant::now()), Err(Unsettled::NotYet));
        assert_eq!((keeper.status().waiting, keeper.state.lock().machine.may_apply()), (1, 0));
        let sent: Vec<TailRecord> =
            std::iter::from_fn(|| Some(store(&keeper))).find(|r| !r.is_empty()).unwrap();
        assert_eq!((sent.len(), sent[0].commits.len(), &sent[0].answers[..]), (1, 1, &[answer(1)][..]));
        keeper.settle(soon()).unwrap();
        keeper.before_apply(Lsn(1)).unwrap();
        keeper.applied(Lsn(1));
        // One that is not answered for long goes with its name.
        in_operation(Some(op(2)), || {
            keeper.added(Lsn(2), b"two");
            assert_eq!(keeper.settle(Instant::now() + 3 * WHOLE_WITHIN), Err(Unsettled::NotYet));
        });
        let sent: Vec<TailRecord> =
            std::iter::from_fn(|| Some(store(&keeper))).find(|r| !r.is_empty()).unwrap();
        assert_eq!((&sent[0].begun[..], sent[0].answers.len()), (&[op(2)][..], 0));
    }

    /// Goal: who hears nothing of his standby answers nothing after a while, reads neither; and nothing at all when another has gone on. Method:
    /// a standby that is silent, one that speaks again, a row that is another's.
    #[test]
    fn nothing_is_answered_later_than_the_standby_let_it() {
        let keeper = complete();
        let end = Instant::now() + Duration::from_secs(60);
        let until = |what: &str, there: &dyn Fn() -> bool| {
            while !there() {
                assert!(Instant::now() < end, "{what}");
                std::thread::yield_now();
            }
        };
        until("it may not answer any more", &|| !keeper.may_act());
        assert_eq!(keeper.settle(Instant::now()), Err(Unsettled::NotYet));
        until("it may again", &|| {
            store(&keeper);
            keeper.may_act()
        });
        keeper.fenced();
        assert_eq!(keeper.settle(end), Err(Unsettled::Over));
        assert!(keeper.before_apply(Lsn(0)).is_err() && keeper.is_over() && !keeper.may_act());
    }

    /// Goal: a server that is stopped in order leaves nobody who may go on. Method: the row is written, or not.
    #[test]
    fn who_retires_is_not_gone_on_for() {
        let keeper = complete();
        assert!(!keeper.retire(Duration::from_millis(50)), "the row says still that it is complete");
        assert_eq!(row(&keeper), Change::Alone { copy: 3 });
        assert!(keeper.retire(Duration::ZERO));
    }
}
