//! What the keeper has under its lock: the machine, the records for the standby, what waits to be sent and to be answered. No lock, no thread.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;
use cluster::{
    NodeId,
    tail::{
        owner::{Effect, Input, Owner, Says},
        row::Change,
    },
    tenure::Time,
};
use kv::Lsn;
use prost::Message as _;
use proto::tail::{RECORDS_BYTES, TailRecord};

use super::{
    clock::now,
    forming::Forming,
    messages::{Job, Messages},
    waiting::{Then, Unsettled, Waiting},
};

/// An operation that is not answered for so long after its commit is let loose.
pub(super) const WHOLE_WITHIN: Duration = Duration::from_millis(20);

/// Its number, and what the row is to say.
pub(crate) type Writing = (u64, Change<NodeId>);

pub(super) struct State {
    pub(super) machine: Owner,
    pub(super) forming: Forming,
    /// Since there is something in it.
    pub(super) formed: Time,
    /// For the standby, as it stores them. Only what is above [`Owner::kept_above`].
    pub(super) kept: BTreeMap<u64, Bytes>,
    pub(super) kept_bytes: u64,
    /// Of commits that the engine has not: their numbers in the journal, and those of their records.
    pub(super) commits: VecDeque<(u64, u64)>,
    pub(super) last: u64,
    /// Up to here all may be answered.
    pub(super) ready: u64,
    pub(super) waiting: Waiting,
    pub(super) messages: Messages,
    /// When the clock's thread looks again.
    pub(super) looks: Time,
    pub(super) write: Option<Writing>,
    pub(super) carry: bool,
    /// The copy whose standby was told what is known of operations.
    pub(super) told: u64,
    pub(super) standby: Option<NodeId>,
    pub(super) fed: Option<NodeId>,
    /// It was complete, or not, since then.
    pub(super) since: Instant,
    pub(super) complete: bool,
    pub(super) said: Vec<Says>,
    pub(super) over: bool,
    pub(super) stopped: bool,
}

/// Answers, and what each is told.
#[must_use]
pub(crate) struct Ready {
    pub(super) answers: Vec<Then>,
    pub(super) settled: Result<(), Unsettled>,
}

impl Ready {
    pub(crate) fn give(self) {
        self.answers.into_iter().for_each(|answer| answer(self.settled));
    }
}

impl State {
    /// Of a store whose engine has commits up to `applied`, and its journal up to `last`.
    pub(super) fn new(machine: Owner, (applied, last): (Lsn, Lsn)) -> State {
        let mut state = State {
            machine,
            forming: Forming::default(),
            formed: Time::ZERO,
            kept: BTreeMap::new(),
            kept_bytes: 0,
            commits: VecDeque::new(),
            last: 0,
            ready: 0,
            waiting: Waiting::default(),
            messages: Messages::default(),
            looks: Time::ZERO,
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
        state
    }

    /// What is answered now waits for the standby to have this.
    pub(super) fn target(&self) -> u64 {
        self.last + u64::from(!self.forming.is_empty())
    }

    /// Of what waits for this record. `None`: it waits.
    pub(super) fn settled(&self, target: u64) -> Option<Result<(), Unsettled>> {
        if self.over {
            Some(Err(Unsettled::Over))
        } else if self.stopped {
            Some(Err(Unsettled::NotYet))
        } else {
            (self.ready >= target && self.machine.may_answer(now())).then_some(Ok(()))
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.waiting.first().is_some_and(|target| self.settled(target).is_some())
    }

    pub(super) fn take_ready(&mut self) -> Ready {
        let settled = self.waiting.first().and_then(|target| self.settled(target));
        let answers = match settled {
            None => Vec::new(),
            Some(Ok(())) => self.waiting.take_up_to(self.ready),
            Some(Err(_)) => self.waiting.take_up_to(u64::MAX),
        };
        Ready { answers, settled: settled.unwrap_or(Ok(())) }
    }

    /// As much of them as a message takes: the first number and the last.
    pub(super) fn records(&self, from: u64, up_to: u64) -> (u64, u64, Vec<Bytes>) {
        let (mut first, mut last, mut bytes, mut records) = (up_to + 1, up_to, 0, Vec::new());
        for (number, record) in
            self.kept.range(from..=up_to.max(from)).filter(|(number, _)| **number <= up_to)
        {
            if bytes >= RECORDS_BYTES {
                break;
            }
            first = first.min(*number);
            last = *number;
            bytes += record.len();
            records.push(record.clone());
        }
        (first, last, records)
    }

    /// The first of what is being made may have come now.
    pub(super) fn started(&mut self) {
        if self.formed == Time::ZERO {
            self.formed = now();
        }
    }

    pub(super) fn is_due(&self) -> bool {
        self.forming.is_whole() || now() >= self.formed.saturating_add(WHOLE_WITHIN)
    }

    pub(super) fn close(&mut self) {
        let record = self.forming.take(0);
        self.formed = Time::ZERO;
        self.add(record);
    }

    pub(super) fn add(&mut self, record: TailRecord) {
        self.last += 1;
        let record = TailRecord { number: self.last, ..record };
        self.commits.extend(record.commits.iter().map(|commit| (commit.lsn, record.number)));
        let stored = Bytes::from(record.encode_to_vec());
        self.kept_bytes += stored.len() as u64;
        self.kept.insert(self.last, stored);
        self.machine.handle(now(), Input::Added);
        self.drain();
    }

    /// The record that has this commit; 0: the engine has it. `None`: it is in none yet.
    pub(super) fn formed_number(&self, lsn: u64) -> Option<u64> {
        let first = self.commits.front().map(|(first, _)| *first).or(self.forming.first_lsn());
        if first.is_none_or(|first| lsn < first) {
            return Some(0);
        }
        let at = self.commits.partition_point(|(one, _)| *one < lsn);
        self.commits.get(at).map(|(_, number)| *number)
    }

    /// The engine has all records up to here.
    pub(super) fn applied(&self) -> u64 {
        self.commits.front().map_or(self.last, |(_, number)| number - 1)
    }

    pub(super) fn drain(&mut self) {
        while let Some(effect) = self.machine.poll_effect() {
            match effect {
                Effect::Write { write, change } => self.write = Some((write, change)),
                Effect::Carry => self.carry = true,
                Effect::Begin { to, copy, beat, base } => {
                    self.messages.put(Job::Begin { to, copy, beat, base });
                }
                Effect::Send { to, copy, beat, from, up_to, applied } => {
                    self.messages.put(Job::More { to, copy, beat, from, up_to, applied });
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
            self.kept_bytes -= first.remove().len() as u64;
        }
    }
}
