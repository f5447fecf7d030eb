//! The record that is being made: commits, and the answers of the operations that made them.
//!
//! It is closed when each operation that has a commit in it is answered. One that takes long is let loose: the record then has its name, and a later
//! one its answer. No clock, no lock, no file.

use std::{cell::Cell, collections::BTreeSet};

use proto::{
    Reason,
    owners::AnswerState,
    tail::{TailAnswer, TailCommit, TailOperation, TailRecord},
};
use types::Errno;
use wire::schema::Retry;

use crate::answer::{Done, No, Outcome};

thread_local! {
    /// What this thread carries out.
    static OPERATION: Cell<Option<TailOperation>> = const { Cell::new(None) };
}

/// Commits that `run` makes on this thread are the operation's.
pub(crate) fn in_operation<V>(operation: Option<TailOperation>, run: impl FnOnce() -> V) -> V {
    struct Before(Option<TailOperation>);
    impl Drop for Before {
        fn drop(&mut self) {
            OPERATION.set(self.0);
        }
    }
    let _before = Before(OPERATION.replace(operation));
    run()
}

pub(super) fn current() -> Option<TailOperation> {
    OPERATION.get()
}

#[derive(Default)]
pub(super) struct Forming {
    record: TailRecord,
    bytes: usize,
    /// They have commits in it, and are not answered.
    open: BTreeSet<TailOperation>,
    /// As those, but nobody waits for their answers. No more than requests are carried out at a time.
    loose: BTreeSet<TailOperation>,
}

impl Forming {
    pub(super) fn is_empty(&self) -> bool {
        self.record.commits.is_empty() && self.record.answers.is_empty() && self.record.begun.is_empty()
    }

    /// Nobody's answer is missing in it.
    pub(super) fn is_whole(&self) -> bool {
        !self.is_empty() && self.open.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn first_lsn(&self) -> Option<u64> {
        self.record.commits.first().map(|commit| commit.lsn)
    }

    pub(super) fn committed(&mut self, lsn: u64, body: Vec<u8>, by: Option<TailOperation>) {
        self.bytes += body.len() + 64;
        self.record.commits.push(TailCommit { lsn, body });
        if let Some(by) = by
            && !self.loose.contains(&by)
        {
            self.open.insert(by);
        } else if let Some(by) = by {
            self.begun(by);
        }
    }

    fn begun(&mut self, by: TailOperation) {
        if self.record.begun.last() != Some(&by) {
            self.bytes += 32;
            self.record.begun.push(by);
        }
    }

    /// One without commits needs none: carried out again it is carried out for the first time.
    pub(super) fn answered(&mut self, answer: TailAnswer) {
        let open = self.open.remove(&answer.operation);
        if self.loose.remove(&answer.operation) || open {
            self.say(answer);
        }
    }

    /// Said in any case.
    pub(super) fn say(&mut self, answer: TailAnswer) {
        self.bytes += 96 + answer.answer.as_ref().map_or(0, |answer| answer.meta.len());
        self.record.answers.push(answer);
    }

    /// Its answer comes later.
    pub(super) fn let_loose(&mut self, operation: TailOperation) {
        if self.open.remove(&operation) {
            self.begun(operation);
            self.loose.insert(operation);
        }
    }

    /// That they have begun, for a copy that does not have their commits.
    pub(super) fn say_begun(&mut self) {
        for operation in self.loose.clone() {
            self.begun(operation);
        }
    }

    /// What there is.
    pub(super) fn take(&mut self, number: u64) -> TailRecord {
        for operation in self.open.clone() {
            self.let_loose(operation);
        }
        self.bytes = 0;
        TailRecord { number, ..std::mem::take(&mut self.record) }
    }
}

/// As it is kept.
pub(crate) fn of_outcome(number: u64, outcome: &Outcome) -> AnswerState {
    match outcome {
        Ok(Done { meta, .. }) => AnswerState { number, meta: meta.clone(), refused: false },
        Err(No(fault)) => {
            AnswerState { number, meta: prost::Message::encode_to_vec(&**fault), refused: true }
        }
    }
}

pub(crate) fn into_outcome(answer: &AnswerState) -> Outcome {
    if answer.refused {
        Err(No(Box::new(proto::fault::read(&answer.meta))))
    } else {
        Ok(Done { meta: answer.meta.clone(), ..Done::default() })
    }
}

/// Of an operation of which the commits are known and not what it was to be answered.
pub(crate) fn carried_out() -> Outcome {
    let why = "it was carried out by a server that died before it was answered";
    Err(No::new(Errno::EIO, Retry::Never, Reason::AnswerGone, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(number: u64) -> TailOperation {
        TailOperation { session_high: 0, session_low: 7, number }
    }

    fn answer(number: u64) -> TailAnswer {
        let answer = Some(AnswerState { number, meta: vec![number as u8], refused: false });
        TailAnswer { operation: op(number), acknowledged: 1, answer }
    }

    /// Goal: a commit and its answer are in one record, whoever else commits meanwhile; one that takes long is named and answered later. Method:
    /// by hand.
    #[test]
    fn an_operation_is_whole_or_named() {
        let mut forming = Forming::default();
        assert!(forming.is_empty() && !forming.is_whole());
        forming.answered(answer(9));
        assert!(forming.is_empty(), "what commits nothing is not kept");
        forming.committed(1, vec![1], Some(op(1)));
        forming.committed(2, vec![2], None);
        forming.committed(3, vec![3], Some(op(2)));
        forming.answered(answer(2));
        assert!(!forming.is_whole());
        forming.answered(answer(1));
        assert!(forming.is_whole());
        let record = forming.take(5);
        assert_eq!((record.number, record.commits.len(), record.answers.len()), (5, 3, 2));
        assert_eq!((record.begun, forming.is_empty(), forming.bytes()), (vec![], true, 0));
        // Taken before its answer.
        forming.committed(4, vec![], Some(op(3)));
        assert_eq!(forming.take(6).begun, [op(3)]);
        forming.committed(5, vec![], Some(op(3)));
        assert!(forming.is_whole(), "nobody waits for it");
        assert_eq!(forming.take(7).begun, [op(3)]);
        forming.say_begun();
        assert_eq!(forming.take(8).begun, [op(3)]);
        forming.answered(answer(3));
        assert_eq!(forming.take(9).answers, [answer(3)]);
        forming.say_begun();
        assert!(forming.is_empty());
    }

    #[test]
    fn commits_are_of_the_operation_that_runs() {
        assert_eq!(current(), None);
        let inside = in_operation(Some(op(1)), || (current(), in_operation(None, current), current()));
        assert_eq!(inside, (Some(op(1)), None, Some(op(1))));
        assert_eq!(current(), None);
    }

    #[test]
    fn answers_are_kept_as_they_are() {
        let done = Ok(Done { meta: vec![1, 2], ..Done::default() });
        for outcome in [done, Err(Errno::ENOENT.into()), carried_out()] {
            assert_eq!(into_outcome(&of_outcome(3, &outcome)), outcome);
        }
    }
}
