//! What is open on a connection: our requests and what they cost of the peer's window, the peer's and what they cost of ours.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::terms::{Outgoing, Request, RequestId, Time, Violation, Window};
use crate::frame::{HEADER_LEN, Header, Kind};

/// Bytes that a request takes of the window.
pub(super) fn cost(request: &Request) -> u64 {
    HEADER_LEN as u64
        + request.meta.len() as u64
        + request.body.len() as u64
        + u64::from(request.answer_bytes_max)
}

/// What is used of a window.
#[derive(Debug)]
struct Used {
    of: Window,
    requests: u32,
    bytes: u64,
}

impl Used {
    fn new(of: Window) -> Used {
        Used { of, requests: 0, bytes: 0 }
    }

    fn fits(&self, bytes: u64) -> bool {
        self.requests < self.of.requests
            && self.bytes.checked_add(bytes).is_some_and(|sum| sum <= self.of.bytes)
    }

    fn take(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn give(&mut self, bytes: u64) {
        self.requests -= 1;
        self.bytes -= bytes;
    }
}

/// How far a request of ours was when it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Own {
    Queued,
    Sent,
}

#[derive(Debug)]
enum State {
    Queued(Request),
    Sent {
        deadline: Time,
    },
    /// Given up, and still unanswered.
    GivenUp,
}

#[derive(Debug)]
struct One {
    state: State,
    cost: u64,
    answer_bytes_max: u32,
}

/// Our requests.
#[derive(Debug)]
pub(super) struct Mine {
    used: Used,
    last: u64,
    open: BTreeMap<RequestId, One>,
    /// Numbers are given out in order, so the first is the oldest.
    queue: BTreeSet<RequestId>,
    deadlines: BTreeSet<(Time, RequestId)>,
}

impl Mine {
    pub(super) fn new(peer_takes: Window) -> Mine {
        Mine {
            used: Used::new(peer_takes),
            last: 0,
            open: BTreeMap::new(),
            queue: BTreeSet::new(),
            deadlines: BTreeSet::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn queue(&mut self, request: Request) -> RequestId {
        self.last += 1;
        let id = RequestId(self.last);
        self.deadlines.insert((request.deadline, id));
        let (cost, answer_bytes_max) = (cost(&request), request.answer_bytes_max);
        self.open.insert(id, One { state: State::Queued(request), cost, answer_bytes_max });
        self.queue.insert(id);
        id
    }

    /// The request that is sent next, and its deadline.
    pub(super) fn first_queued(&self) -> Option<(RequestId, Time)> {
        let id = *self.queue.first()?;
        match &self.open.get(&id)?.state {
            State::Queued(request) => Some((id, request.deadline)),
            State::Sent { .. } | State::GivenUp => None,
        }
    }

    /// Sends the first of the queue if the window has room for it. In their order: a large one is not passed for ever by
    /// small ones.
    pub(super) fn send(&mut self, now: Time) -> Option<Outgoing> {
        let (id, deadline) = self.first_queued()?;
        let one = self.open.get_mut(&id)?;
        if !self.used.fits(one.cost) {
            return None;
        }
        let State::Queued(request) = std::mem::replace(&mut one.state, State::Sent { deadline }) else {
            return None;
        };
        self.used.take(one.cost);
        self.queue.remove(&id);
        let header = Header {
            method: request.method,
            answer_bytes_max: request.answer_bytes_max,
            left_ms: left_ms(deadline.saturating_sub(now)),
            id: id.0,
            epoch: request.epoch,
            trace: request.trace,
            job: request.job,
            ..Header::of(Kind::Request)
        };
        Some(Outgoing { header, meta: request.meta, body: request.body })
    }

    /// Of a request that the peer may answer: how long the answer may be, and whether somebody waits for it.
    pub(super) fn sent(&self, id: RequestId) -> Option<(u32, bool)> {
        let one = self.open.get(&id)?;
        match one.state {
            State::Queued(_) => None,
            State::Sent { .. } => Some((one.answer_bytes_max, true)),
            State::GivenUp => Some((one.answer_bytes_max, false)),
        }
    }

    /// Takes the credit back; whether somebody waited.
    pub(super) fn answered(&mut self, id: RequestId) -> bool {
        let Some(one) = self.open.remove(&id) else { return false };
        match one.state {
            State::Queued(_) => false,
            State::Sent { deadline } => {
                self.used.give(one.cost);
                self.deadlines.remove(&(deadline, id));
                true
            }
            State::GivenUp => {
                self.used.give(one.cost);
                false
            }
        }
    }

    /// Nobody waits for it any more. `None` when nobody did.
    pub(super) fn give_up(&mut self, id: RequestId) -> Option<Own> {
        let one = self.open.get_mut(&id)?;
        let (deadline, own) = match &one.state {
            State::Queued(request) => (request.deadline, Own::Queued),
            State::Sent { deadline } => (*deadline, Own::Sent),
            State::GivenUp => return None,
        };
        self.deadlines.remove(&(deadline, id));
        match own {
            Own::Queued => {
                self.open.remove(&id);
                self.queue.remove(&id);
            }
            Own::Sent => one.state = State::GivenUp,
        }
        Some(own)
    }

    pub(super) fn next_deadline(&self) -> Option<(Time, RequestId)> {
        self.deadlines.first().copied()
    }

    /// All that somebody waits for.
    pub(super) fn drain(&mut self) -> Vec<(RequestId, Own)> {
        self.queue.clear();
        self.deadlines.clear();
        std::mem::take(&mut self.open)
            .into_iter()
            .filter_map(|(id, one)| match one.state {
                State::Queued(_) => Some((id, Own::Queued)),
                State::Sent { .. } => Some((id, Own::Sent)),
                State::GivenUp => None,
            })
            .collect()
    }
}

/// Rounded up, so that a request never comes with less than it has; what is left is within some 49 days.
fn left_ms(left: Duration) -> u32 {
    u32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

/// A request of the peer's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) method: u16,
    pub(super) trace: u64,
    pub(super) answer_bytes_max: u32,
    cost: u64,
    answered: bool,
}

/// The peer's requests.
#[derive(Debug)]
pub(super) struct Theirs {
    used: Used,
    last: u64,
    open: BTreeMap<u64, Asked>,
}

impl Theirs {
    pub(super) fn new(takes: Window) -> Theirs {
        Theirs { used: Used::new(takes), last: 0, open: BTreeMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn begin(&mut self, header: &Header, cost: u64) -> Result<(), Violation> {
        if header.id <= self.last {
            return Err(Violation::Repeated(header.id));
        }
        if !self.used.fits(cost) {
            return Err(Violation::Credit(header.id));
        }
        self.last = header.id;
        self.used.take(cost);
        let Header { method, trace, answer_bytes_max, .. } = *header;
        self.open.insert(header.id, Asked { method, trace, answer_bytes_max, cost, answered: false });
        Ok(())
    }

    /// A request that an answer is owed to.
    pub(super) fn get(&self, id: u64) -> Option<Asked> {
        self.open.get(&id).copied().filter(|asked| !asked.answered)
    }

    /// The answer is there, and waits to be sent.
    pub(super) fn answered(&mut self, id: u64) {
        if let Some(asked) = self.open.get_mut(&id) {
            asked.answered = true;
        }
    }

    /// The answer was sent: only now there is room for another request. A peer that asks and reads nothing stays within its window.
    pub(super) fn sent(&mut self, id: u64) {
        if let Some(asked) = self.open.remove(&id) {
            self.used.give(asked.cost);
        }
    }

    /// The numbers of all that is unanswered.
    pub(super) fn drain(&mut self) -> Vec<u64> {
        let open = std::mem::take(&mut self.open).into_iter();
        open.filter(|(_, asked)| !asked.answered).map(|(id, _)| id).collect()
    }
}
