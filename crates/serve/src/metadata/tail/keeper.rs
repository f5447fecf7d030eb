//! The owner's side: what was committed and answered here goes to the standby, and what may be answered waits for it.
//!
//! One lock, held for moments, under which no other is taken: commits come under the journal's. What takes long (messages, the database,
//! checkpoints) is done by others: records are sent by whoever has made one, answers given by whoever hears that they may be.

use std::time::{Duration, Instant};

use cluster::{
    NodeId,
    tail::{
        Terms,
        owner::{Input, Owner, Says},
    },
    tenure::Time,
};
use kv::{Follower, Lsn};
use namespace::txn::KvError;
use parking_lot::{Condvar, Mutex, MutexGuard};
use proto::tail::{TailAnswer, TailHas, TailOperation, TailRecord, TailStatus};

use super::{
    clock::now,
    forming,
    messages::{Job, Message, More},
    state::{Ready, State, WHOLE_WITHIN, Writing},
    waiting::Unsettled,
};

/// A record is closed at this, whoever is not answered yet.
const RECORD_BYTES: usize = 1 << 20;
/// What is kept for a standby that is brought up to date or is slow: more, and the copy ends. Beside the number of records in [`Terms`].
const KEPT_BYTES: u64 = 256 << 20;
/// A checkpoint that may not be yet is tried again later.
const APPLY_WAIT: Duration = Duration::from_secs(5);
/// Nobody who waits sleeps longer without a look at the clock.
const LOOK: Duration = Duration::from_millis(100);
/// A thread that is told what is there for it sleeps so long without.
const REST: Duration = Duration::from_millis(500);

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
        let state = State::new(Owner::new(terms, copy, 0, now()), (applied, last));
        let (answers, sending, writing, ticking) = Default::default();
        Keeper { on, state: Mutex::new(state), answers, sending, writing, ticking }
    }

    /// Gives the answers that may be given by now.
    fn changed(&self, mut state: MutexGuard<'_, State>) {
        state.drain();
        let ready = state.take_ready();
        self.tell(&mut state);
        drop(state);
        ready.give();
    }

    /// The same for who is not to give answers, for the locks that he may have: the clock's thread does.
    fn tell(&self, state: &mut State) {
        state.drain();
        self.wake(state);
        if state.messages.is_due() {
            self.sending.notify_one();
        }
        if state.is_ready() {
            self.ticking.notify_one();
        }
    }

    fn wake(&self, state: &State) {
        self.answers.notify_all();
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

    /// An operation was answered, or is to be asked again (`None`). The session has the answer already. Whoever says so sends it, too.
    pub(crate) fn answered(&self, answer: TailAnswer) {
        let mut state = self.state.lock();
        state.forming.answered(answer);
        if state.forming.is_whole() {
            state.close();
            let ready = state.take_ready();
            self.wake(&state);
            drop(state);
            ready.give();
        }
    }

    /// Answers of others, and sessions that were given up: to be known to whoever goes on here. Returns the number of the last record.
    pub(crate) fn learn(&self, records: impl IntoIterator<Item = TailRecord>) -> u64 {
        let mut records = records.into_iter().peekable();
        let mut state = self.state.lock();
        if records.peek().is_none() {
            return state.last;
        }
        if !state.forming.is_empty() {
            state.close();
        }
        records.for_each(|record| state.add(record));
        self.tell(&mut state);
        state.last
    }

    /// Does whoever may go on here have that record?
    pub(crate) fn is_known(&self, number: u64) -> bool {
        let state = self.state.lock();
        !state.over && state.ready >= number
    }

    /// A session is over: what it was answered need not be known.
    pub(crate) fn forget(&self, operation: TailOperation) {
        let mut state = self.state.lock();
        state.forming.say(TailAnswer { operation, acknowledged: u64::MAX, answer: None });
        state.started();
        if state.forming.is_whole() {
            state.close();
            self.tell(&mut state);
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
        self.tell(&mut state);
    }

    /// Calls `then` when all that was committed and answered until now may be known to anybody: at once, or from another thread.
    pub(crate) fn when_settled(
        &self,
        until: Instant,
        then: impl FnOnce(Result<(), Unsettled>) + Send + 'static,
    ) {
        let mut state = self.state.lock();
        let target = state.target();
        if let Some(settled) = state.settled(target) {
            drop(state);
            return then(settled);
        }
        if until <= Instant::now() || state.waiting.is_full() {
            drop(state);
            return then(self.settle(until));
        }
        state.waiting.put(target, until, Box::new(then));
        if state.last < target && state.looks > state.formed.saturating_add(WHOLE_WITHIN) {
            self.ticking.notify_one();
        }
    }

    /// Waits for it.
    pub(crate) fn settle(&self, until: Instant) -> Result<(), Unsettled> {
        let mut state = self.state.lock();
        if let Some(operation) = forming::current() {
            state.forming.let_loose(operation);
        }
        let target = state.target();
        loop {
            if let Some(settled) = state.settled(target) {
                return settled;
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
        }
        let unformed = state.waiting.last().is_some_and(|target| target > state.last);
        if unformed && state.is_due() {
            state.close();
        }
        state.drain();
        let late =
            Ready { answers: state.waiting.take_late(Instant::now()), settled: Err(Unsettled::NotYet) };
        let ready = state.take_ready();
        self.tell(&mut state);
        MutexGuard::unlocked(&mut state, || {
            ready.give();
            late.give();
        });
        if state.is_ready() {
            return true;
        }
        let whole = state.formed.saturating_add(WHOLE_WITHIN);
        let unformed = state.waiting.last().is_some_and(|target| target > state.last);
        let next = state.machine.next_deadline().into_iter().chain(unformed.then_some(whole)).min();
        let until = next.map(|at| at.saturating_sub(now)).unwrap_or(LOOK);
        let until = until.clamp(Duration::from_millis(1), LOOK);
        state.looks = now.saturating_add(until);
        self.ticking.wait_for(&mut state, until);
        // Awake, it looks before it sleeps.
        state.looks = Time::ZERO;
        true
    }

    /// Waits a while for something to be sent by who may wait for it; false: it has ended. Messages that were sent so long ago are not waited for.
    pub(crate) fn wait_for_sends(&self, give_up: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.messages.is_due() && !state.stopped {
            // What was sent is given up by the clock.
            let rest = if state.messages.are_under_way() { LOOK } else { REST };
            self.sending.wait_for(&mut state, rest);
        }
        state.messages.give_up(Instant::now(), give_up);
        !state.stopped
    }

    /// May this thread send now? If so it does until [`Keeper::next_message`] has nothing.
    pub(crate) fn begin_sending(&self) -> bool {
        self.state.lock().messages.begin()
    }

    /// `line`: to whom there is a connection. What needs one who waits is left to him.
    pub(crate) fn next_message(&self, line: Option<NodeId>, may_wait: bool) -> Option<Message> {
        let mut state = self.state.lock();
        let job = if state.stopped { None } else { state.messages.next(line, may_wait) };
        match job {
            None => {
                if !may_wait && state.messages.is_due() {
                    self.sending.notify_one();
                }
                None
            }
            Some(Job::Begin { to, copy, beat, base }) => Some(Message::Begin { to, copy, beat, base }),
            Some(Job::More { to, copy, beat, from, up_to, applied }) => {
                let (from, last, records) = state.records(from, up_to);
                if last < up_to {
                    let rest = Job::More { to, copy, beat, from: last + 1, up_to, applied };
                    state.messages.put_back(rest);
                }
                let number = state.messages.sent(Instant::now());
                Some(Message::More(More { number, to, copy, beat, from, up_to: last, applied, records }))
            }
        }
    }

    /// What came of a message. The answers that may be given by it are the caller's to give, when the next message is on its way.
    pub(crate) fn heard(&self, number: u64, of: NodeId, has: Option<TailHas>) -> Ready {
        let mut state = self.state.lock();
        state.messages.ended(number);
        if let Some(TailHas { copy, beat, up_to, refused }) = has {
            state.machine.handle(
                now(),
                if refused {
                    Input::Refused { by: of, copy }
                } else {
                    Input::Stored { by: of, copy, beat, up_to }
                },
            );
        }
        state.drain();
        let ready = state.take_ready();
        self.wake(&state);
        ready
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
            self.writing.wait_for(&mut state, REST);
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
            self.tell(&mut state);
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
        self.tell(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use cluster::{tail::row::Change, tenure};
    use proto::owners::AnswerState;

    use prost::Message as _;

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

    fn send(keeper: &Keeper) -> Message {
        loop {
            keeper.tick();
            if keeper.begin_sending()
                && let Some(message) = keeper.next_message(Some(STANDBY), true)
            {
                assert!(!keeper.begin_sending(), "one sends");
                // It has no more.
                assert_eq!(keeper.next_message(None, false), None);
                return message;
            }
        }
    }

    /// The standby stores what it is sent; returns the records.
    fn store(keeper: &Keeper) -> Vec<TailRecord> {
        match send(keeper) {
            Message::Begin { copy, beat, base, .. } => {
                keeper.tell_known(copy, Vec::new);
                keeper.stored(STANDBY, copy, beat, base);
                Vec::new()
            }
            Message::More(More { number, copy, beat, up_to, records, .. }) => {
                let has = TailHas { copy, beat, up_to, refused: false };
                keeper.heard(number, STANDBY, Some(has)).give();
                records.iter().map(|record| TailRecord::decode(&record[..]).unwrap()).collect()
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

    /// Goal: nobody's thread waits for an answer to be given: it is given when its record is stored, not before, and when it can be given no more.
    /// Method: answers that say that they were given; by hand.
    #[test]
    fn answers_are_given_by_who_hears_that_they_may_be() {
        let keeper = complete();
        let (said, given) = std::sync::mpsc::channel();
        let ask = |name: &'static str, wait: Duration| {
            let said = said.clone();
            keeper.when_settled(Instant::now() + wait, move |settled| said.send((name, settled)).unwrap());
        };
        let long = Duration::from_secs(60);
        in_operation(Some(op(1)), || keeper.added(Lsn(1), b"one"));
        // Its record is not closed yet: a second operation has committed in it.
        in_operation(Some(op(2)), || keeper.added(Lsn(2), b"two"));
        keeper.answered(answer(1));
        ask("first", long);
        keeper.answered(answer(2));
        ask("second", long);
        ask("late", Duration::from_millis(1));
        assert!(given.try_recv().is_err());
        while given.try_recv().map(|late| assert_eq!(late, ("late", Err(Unsettled::NotYet)))).is_err() {
            keeper.tick();
        }
        while store(&keeper).is_empty() {}
        assert_eq!(given.try_recv(), Ok(("first", Ok(()))));
        assert_eq!(given.try_recv(), Ok(("second", Ok(()))));
        ask("at once", long);
        assert_eq!(given.try_recv(), Ok(("at once", Ok(()))));
        // One whose operation takes long is let loose by the clock.
        in_operation(Some(op(3)), || keeper.added(Lsn(3), b"three"));
        ask("a read", long);
        while given.try_recv().map(|read| assert_eq!(read, ("a read", Ok(())))).is_err() {
            store(&keeper);
        }
        in_operation(Some(op(4)), || keeper.added(Lsn(4), b"four"));
        keeper.answered(answer(4));
        ask("never", long);
        keeper.fenced();
        assert_eq!(given.try_recv(), Ok(("never", Err(Unsettled::Over))));
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
