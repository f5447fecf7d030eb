//! Answers that wait for the standby, by the record that it has to have first. No lock, no clock, no thread for each.

use std::{collections::BTreeMap, time::Instant};

/// Nothing may be said now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unsettled {
    /// The standby has not stored it, or the database does not say that there is none.
    NotYet,
    /// Another one goes on in this one's place.
    Over,
}

/// Gives an answer, and waits for nothing.
pub(super) type Then = Box<dyn FnOnce(Result<(), Unsettled>) + Send>;

/// Beyond so many who wants an answer waits himself, and so do those that come after him.
const WAITING_MAX: usize = 4096;

struct Answer {
    until: Instant,
    then: Then,
}

#[derive(Default)]
pub(super) struct Waiting {
    /// Those that wait for the same record are in the order in which they came.
    answers: BTreeMap<(u64, u64), Answer>,
    came: u64,
}

impl Waiting {
    pub(super) fn is_full(&self) -> bool {
        self.answers.len() >= WAITING_MAX
    }

    pub(super) fn put(&mut self, record: u64, until: Instant, then: Then) {
        self.came += 1;
        self.answers.insert((record, self.came), Answer { until, then });
    }

    /// The records that the first and the last of them wait for.
    pub(super) fn first(&self) -> Option<u64> {
        self.answers.first_key_value().map(|((record, _), _)| *record)
    }

    pub(super) fn last(&self) -> Option<u64> {
        self.answers.last_key_value().map(|((record, _), _)| *record)
    }

    /// Those that wait for records up to this one.
    pub(super) fn take_up_to(&mut self, record: u64) -> Vec<Then> {
        let later = self.answers.split_off(&(record.saturating_add(1), 0));
        let taken = std::mem::replace(&mut self.answers, later);
        taken.into_values().map(|answer| answer.then).collect()
    }

    /// Those that can wait no longer.
    pub(super) fn take_late(&mut self, now: Instant) -> Vec<Then> {
        let late = self.answers.iter().filter(|(_, answer)| answer.until <= now);
        let late: Vec<_> = late.map(|(key, _)| *key).collect();
        late.iter().filter_map(|key| self.answers.remove(key)).map(|answer| answer.then).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex},
        time::Duration,
    };

    use super::*;

    /// Goal: answers are given in the order of their records, each once, and none longer than it can wait. Method: by hand.
    #[test]
    fn answers_come_in_order_or_in_time() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let said: Arc<Mutex<Vec<&str>>> = Arc::default();
        let put = |waiting: &mut Waiting, record, until, name| {
            let said = said.clone();
            waiting.put(record, until, Box::new(move |_| said.lock().unwrap().push(name)));
        };
        let later = now + Duration::from_secs(1);
        put(&mut waiting, 7, later, "seventh");
        put(&mut waiting, 5, later, "fifth");
        put(&mut waiting, 5, now, "late");
        put(&mut waiting, 5, later, "fifth, too");
        put(&mut waiting, 6, later, "sixth");
        assert_eq!((waiting.first(), waiting.last()), (Some(5), Some(7)));
        assert_eq!(waiting.take_up_to(4).len(), 0);
        waiting.take_late(now).into_iter().for_each(|then| then(Err(Unsettled::NotYet)));
        waiting.take_up_to(6).into_iter().for_each(|then| then(Ok(())));
        assert_eq!(*said.lock().unwrap(), ["late", "fifth", "fifth, too", "sixth"]);
        assert!(!waiting.is_full());
        assert_eq!((waiting.take_up_to(u64::MAX).len(), waiting.first()), (1, None));
    }
}
