//! What operations were answered by servers in whose place this one goes on, by session and number; and which sessions they gave up.

use std::collections::{BTreeMap, BTreeSet};

use proto::{
    Head, SessionId,
    owners::AnswerState,
    tail::{TailAnswer, TailOperation, TailRecord},
};

use crate::metadata::carried::GIVEN_UP_MAX;

/// Of known answers in one record.
pub(crate) const ANSWERS: usize = 512;

/// `None`: carried out, and the answer is not known.
type Answer = Option<AnswerState>;

#[derive(Default, Debug, PartialEq, Eq)]
struct Session {
    /// Nothing below it is asked again.
    floor: u64,
    answers: BTreeMap<u64, Answer>,
}

/// As many as sessions may have unacknowledged.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    sessions: BTreeMap<SessionId, Session>,
    /// As many as [`GIVEN_UP_MAX`].
    given_up: BTreeSet<SessionId>,
}

fn session(operation: &TailOperation) -> SessionId {
    SessionId(u128::from(operation.session_high) << 64 | u128::from(operation.session_low))
}

impl Known {
    pub(crate) fn add(&mut self, record: &TailRecord) {
        let room = GIVEN_UP_MAX.saturating_sub(self.given_up.len());
        self.given_up.extend(record.given_up.iter().map(Head::session).take(room));
        for begun in &record.begun {
            let session = self.sessions.entry(session(begun)).or_default();
            if begun.number >= session.floor {
                session.answers.entry(begun.number).or_insert(None);
            }
        }
        for TailAnswer { operation, acknowledged, answer } in &record.answers {
            let id = session(operation);
            if *acknowledged == u64::MAX {
                // It is over.
                self.sessions.remove(&id);
                continue;
            }
            let session = self.sessions.entry(id).or_default();
            if *acknowledged > session.floor {
                session.floor = *acknowledged;
                session.answers = session.answers.split_off(acknowledged);
            }
            if operation.number < session.floor {
                continue;
            }
            match answer {
                Some(answer) => drop(session.answers.insert(operation.number, Some(answer.clone()))),
                None => drop(session.answers.remove(&operation.number)),
            }
        }
    }

    /// What it was answered, if it was carried out. Asked once: whoever asks keeps it from then on.
    pub(crate) fn take(&mut self, head: &Head) -> Option<Answer> {
        let id = head.session();
        let session = self.sessions.get_mut(&id)?;
        if head.acknowledged > session.floor {
            session.floor = head.acknowledged;
            session.answers = session.answers.split_off(&head.acknowledged);
        }
        let answer = session.answers.remove(&head.number);
        if session.answers.is_empty() {
            self.sessions.remove(&id);
        }
        answer
    }

    /// Are no answers known?
    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    pub(crate) fn given_up(&self) -> &BTreeSet<SessionId> {
        &self.given_up
    }

    /// All of it as records that are not numbered yet, of at most so many answers, or sessions.
    pub(crate) fn records(&self, most: usize) -> Vec<TailRecord> {
        let all = self.sessions.iter().flat_map(|(id, session)| {
            let of = |number| TailOperation::of(&Head::operation(*id, number, 0));
            session.answers.iter().map(move |(number, answer)| (of(*number), session.floor, answer))
        });
        let all: Vec<_> = all.collect();
        let record = |some: &[(TailOperation, u64, &Answer)]| {
            let mut record = TailRecord::default();
            for (operation, acknowledged, answer) in some {
                match answer {
                    Some(answer) => record.answers.push(TailAnswer {
                        operation: *operation,
                        acknowledged: *acknowledged,
                        answer: Some(answer.clone()),
                    }),
                    None => record.begun.push(*operation),
                }
            }
            record
        };
        let given_up: Vec<SessionId> = self.given_up.iter().copied().collect();
        all.chunks(most).map(record).chain(said_given_up(&given_up)).collect()
    }
}

/// Records that say that these were given up.
pub(crate) fn said_given_up(sessions: &[SessionId]) -> impl Iterator<Item = TailRecord> {
    let record = |some: &[SessionId]| TailRecord {
        given_up: some.iter().copied().map(Head::of).collect(),
        ..TailRecord::default()
    };
    sessions.chunks(ANSWERS).map(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(session: u64, number: u64) -> TailOperation {
        TailOperation { session_high: 0, session_low: session, number }
    }

    fn answered(session: u64, number: u64, acknowledged: u64, meta: Option<u8>) -> TailRecord {
        let answer = meta.map(|byte| AnswerState { number, meta: vec![byte], refused: false });
        let answers = vec![TailAnswer { operation: op(session, number), acknowledged, answer }];
        TailRecord { answers, ..TailRecord::default() }
    }

    fn asked(session: u64, number: u64) -> Head {
        Head::operation(SessionId(session.into()), number, 0)
    }

    /// Goal: what was answered is known until it was acknowledged or asked; what was only begun is known as that. Method: by hand.
    #[test]
    fn answers_are_known_until_they_are_acknowledged() {
        let mut known = Known::default();
        known.add(&answered(1, 4, 1, Some(4)));
        known.add(&TailRecord { begun: vec![op(1, 5), op(1, 6), op(1, 7)], ..TailRecord::default() });
        known.add(&answered(1, 6, 1, Some(6)));
        known.add(&answered(1, 7, 1, None));
        known.add(&answered(2, 3, 1, Some(3)));
        let given_up: Vec<SessionId> = (0..2 * ANSWERS as u128 + 1).map(SessionId).collect();
        said_given_up(&given_up).for_each(|record| known.add(&record));
        let mut again = Known::default();
        known.records(2).iter().for_each(|record| again.add(record));
        assert_eq!(again, known);
        assert_eq!(known.take(&asked(1, 5)), Some(None));
        assert_eq!(known.take(&asked(1, 7)), None, "it was said that it is to be asked again");
        assert_eq!(known.take(&asked(1, 6)).unwrap().unwrap().meta, [6]);
        assert_eq!(known.take(&asked(1, 6)), None);
        known.add(&answered(1, 9, 8, Some(9)));
        assert_eq!((known.take(&asked(1, 4)), known.take(&asked(1, 9)).is_some()), (None, true));
        known.add(&answered(2, 0, u64::MAX, None));
        assert!(known.is_empty(), "a session that is over has none");
        assert!(known.given_up().iter().eq(&given_up), "and is given up still");
    }
}
