//! Messages to the standby: what is to be sent, in order, and what is under way. No lock, no socket.
//!
//! One thread sends at a time, whoever has something for the standby: else messages could overtake each other, and what comes beyond a hole is not
//! stored. Few are under way; what comes meanwhile goes in the next one.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;
use cluster::NodeId;

/// Messages that wait to be sent: they are made one where they follow each other, and what is left out is said again by the next beat.
const SENDS: usize = 16;
/// With more, eight clients' operations would be a message each.
const UNDER_WAY_MAX: usize = 1;

/// Something to be said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Job {
    Begin { to: NodeId, copy: u64, beat: u64, base: u64 },
    More { to: NodeId, copy: u64, beat: u64, from: u64, up_to: u64, applied: u64 },
}

/// Said now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// After what is known of operations was given to [`Keeper::tell_known`](super::Keeper::tell_known). Its answer is waited for.
    Begin {
        to: NodeId,
        copy: u64,
        beat: u64,
        base: u64,
    },
    More(More),
}

/// Records `from..=up_to`, each as it is stored; perhaps none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct More {
    /// Of the message.
    pub number: u64,
    pub to: NodeId,
    pub copy: u64,
    pub beat: u64,
    pub from: u64,
    pub up_to: u64,
    pub applied: u64,
    pub records: Vec<Bytes>,
}

#[derive(Default)]
pub(super) struct Messages {
    sends: VecDeque<Job>,
    under_way: BTreeMap<u64, Instant>,
    last: u64,
    /// A thread sends.
    busy: bool,
}

impl Messages {
    pub(super) fn put(&mut self, job: Job) {
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

    /// What is left of one that was too long for one message.
    pub(super) fn put_back(&mut self, job: Job) {
        self.sends.push_front(job);
    }

    /// Something can be sent.
    pub(super) fn is_due(&self) -> bool {
        !self.busy && self.under_way.len() < UNDER_WAY_MAX && !self.sends.is_empty()
    }

    /// May this thread send? It does until [`Messages::next`] has nothing.
    pub(super) fn begin(&mut self) -> bool {
        let may = self.is_due();
        self.busy |= may;
        may
    }

    /// `line`: to whom there is a connection. Whoever may wait makes one.
    pub(super) fn next(&mut self, line: Option<NodeId>, may_wait: bool) -> Option<Job> {
        let there = self.sends.front().filter(|_| self.under_way.len() < UNDER_WAY_MAX);
        let may = there.is_some_and(|job| match job {
            Job::Begin { .. } => may_wait,
            Job::More { to, .. } => may_wait || line == Some(*to),
        });
        if may {
            return self.sends.pop_front();
        }
        self.busy = false;
        None
    }

    /// One more is under way; its number.
    pub(super) fn sent(&mut self, now: Instant) -> u64 {
        self.last += 1;
        self.under_way.insert(self.last, now);
        self.last
    }

    pub(super) fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// It is answered, or will not be.
    pub(super) fn ended(&mut self, number: u64) {
        self.under_way.remove(&number);
    }

    /// Those that were sent so long ago are not waited for.
    pub(super) fn give_up(&mut self, now: Instant, after: Duration) {
        self.under_way.retain(|_, sent| now.saturating_duration_since(*sent) < after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: NodeId = NodeId(7);

    fn more(beat: u64, from: u64, up_to: u64) -> Job {
        Job::More { to: TO, copy: 1, beat, from, up_to, applied: 0 }
    }

    /// Goal: one thread sends, in order, one message at a time, and nothing is forgotten when it ends. Method: by hand.
    #[test]
    fn messages_follow_each_other() {
        let (mut messages, now) = (Messages::default(), Instant::now());
        assert!(!messages.begin(), "there is nothing");
        messages.put(more(1, 1, 1));
        assert!(messages.begin() && !messages.begin(), "one sends");
        assert_eq!(messages.next(Some(TO), false), Some(more(1, 1, 1)));
        let first = messages.sent(now);
        // What comes meanwhile is one.
        messages.put(more(2, 2, 2));
        messages.put(more(3, 3, 5));
        assert_eq!(messages.next(Some(TO), false), None);
        assert!(!messages.begin(), "one is under way");
        messages.ended(first);
        assert!(messages.begin());
        assert_eq!(messages.next(Some(TO), false), Some(more(3, 2, 5)));
        messages.put_back(more(3, 4, 5));
        messages.sent(now);
        messages.give_up(now + Duration::from_secs(1), Duration::from_secs(1));
        assert_eq!(messages.next(None, false), None, "there is no connection");
        assert!(messages.begin());
        assert_eq!(messages.next(None, true), Some(more(3, 4, 5)));
        messages.put(Job::Begin { to: TO, copy: 2, beat: 4, base: 9 });
        assert_eq!(messages.next(Some(TO), false), None, "who begins a copy waits");
        assert!(messages.is_due());
    }
}
