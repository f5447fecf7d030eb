//! A connection after its handshake: requests and answers of both sides, without a socket.
//!
//! The shell tells what came ([`Connection::begin`], [`Connection::end`]), what is wanted ([`Connection::request`],
//! [`Connection::answer`], [`Connection::cancel`], [`Connection::leave`]), and what time it is; it fetches frames to send
//! ([`Connection::poll_output`]) and events ([`Connection::poll_event`]). Both sides are the same: each may ask.
//!
//! - I-WIRE-4: a request ends with one event: its answer, or a [`Failure`] that says whether it may have been carried out.
//! - I-WIRE-5: what is unanswered stays within the [`Window`] of who has to answer. The window bounds the bodies of answers
//!   too, since a request says how long its answer may be. An answer gives the credit back; nothing else does, so a peer that
//!   never answers gets no more than its window.
//! - I-WIRE-6: a frame that breaks these rules ends the connection.
//!
//! Beside the window the memory of a connection is bounded by [`Settings::queued_max`], one ping, one pong, one farewell, and one
//! cancellation per request.

mod ledger;
mod terms;

use std::{collections::VecDeque, time::Duration};

use crate::{
    PageBuffer,
    frame::{HEADER_LEN, Header, Kind, Limits, Verdict},
};
use ledger::{Mine, Own, Theirs};
pub use terms::{
    Answer, BodyFor, Cause, Event, Failure, Loss, NotTaken, Outgoing, Request, RequestId, Settings, Time,
    Violation, Why, Window,
};

#[derive(Debug)]
pub struct Connection {
    settings: Settings,
    mine: Mine,
    theirs: Theirs,
    /// Answers, bounded by `theirs`.
    answers: VecDeque<Outgoing>,
    /// Cancellations, bounded by `mine`; a pong, a ping, a farewell.
    small: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    heard: Time,
    pinged: Option<Time>,
    /// When we said goodbye.
    left: Option<Time>,
    peer_left: bool,
    over: bool,
    /// Requests and answers take turns.
    answers_next: bool,
}

impl Connection {
    pub fn new(settings: Settings, now: Time) -> Connection {
        Connection {
            settings,
            mine: Mine::new(settings.peer_takes),
            theirs: Theirs::new(settings.takes),
            answers: VecDeque::new(),
            small: VecDeque::new(),
            events: VecDeque::new(),
            heard: now,
            pinged: None,
            left: None,
            peer_left: false,
            over: false,
            answers_next: false,
        }
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Requests can still be made.
    pub fn is_open(&self) -> bool {
        !self.over && self.left.is_none() && !self.peer_left
    }

    /// Puts a request into the queue.
    pub fn request(&mut self, request: Request) -> Result<RequestId, NotTaken> {
        if !self.is_open() {
            return Err(NotTaken::Ending);
        }
        let Limits { meta, body } = self.settings.limits;
        for (bytes, limit) in [
            (request.meta.len() as u64, u64::from(meta)),
            (request.body.len() as u64, u64::from(body)),
            (u64::from(request.answer_bytes_max), u64::from(body)),
            (ledger::cost(&request), self.settings.peer_takes.bytes),
        ] {
            if bytes > limit {
                return Err(NotTaken::TooLong { bytes, limit });
            }
        }
        if self.mine.queued() >= self.settings.queued_max {
            return Err(NotTaken::Full);
        }
        Ok(self.mine.queue(request))
    }

    /// Nobody waits for this answer any more. It ends with a [`Failure`] if it has not ended yet.
    pub fn cancel(&mut self, id: RequestId) {
        self.give_up(id, Cause::Cancelled);
    }

    /// Answers a request of the peer's. One that is over, or answered, is passed over: the connection was lost meanwhile.
    pub fn answer(&mut self, id: u64, answer: Answer) -> Result<(), NotTaken> {
        let Some(asked) = self.theirs.get(id) else { return Ok(()) };
        for (bytes, limit) in
            [(answer.meta.len(), self.settings.limits.meta), (answer.body.len(), asked.answer_bytes_max)]
        {
            if bytes as u64 > u64::from(limit) {
                return Err(NotTaken::TooLong { bytes: bytes as u64, limit: limit.into() });
            }
        }
        let header = Header {
            verdict: answer.verdict,
            method: asked.method,
            id,
            epoch: answer.epoch,
            trace: asked.trace,
            ..Header::of(Kind::Answer)
        };
        self.theirs.answered(id);
        self.answers.push_back(Outgoing { header, meta: answer.meta, body: answer.body });
        Ok(())
    }

    /// Begins the orderly end: no more requests of either side, what is open is answered.
    pub fn leave(&mut self, now: Time) {
        if self.over || self.left.is_some() {
            return;
        }
        self.left = Some(now);
        self.small.push_back(Outgoing::bare(Header::of(Kind::Goodbye)));
        self.drop_queue(Cause::Refused);
        self.settle();
    }

    /// The transport is gone.
    pub fn lost(&mut self) {
        self.end_with(Loss::Transport);
    }

    /// Bytes came from the peer.
    pub fn heard(&mut self, now: Time) {
        self.heard = now;
        self.pinged = None;
    }

    /// A frame begins: is it allowed, and where does its body go? Before a byte of the body is held.
    pub fn begin(&mut self, header: &Header, meta_len: usize, body_len: u32) -> Result<BodyFor, Violation> {
        let checked = self.check(header, meta_len, body_len);
        if let Err(violation) = checked {
            self.end_with(Loss::Violation(violation));
        }
        checked
    }

    fn check(&mut self, header: &Header, meta_len: usize, body_len: u32) -> Result<BodyFor, Violation> {
        let id = header.id;
        match header.kind {
            Kind::Request if self.peer_left => Err(Violation::AfterGoodbye(id)),
            Kind::Request => {
                let bytes = HEADER_LEN as u64
                    + meta_len as u64
                    + u64::from(body_len)
                    + u64::from(header.answer_bytes_max);
                self.theirs.begin(header, bytes)?;
                Ok(BodyFor::Request)
            }
            Kind::Answer => {
                let Some((limit, waited_for)) = self.mine.sent(RequestId(id)) else {
                    return Err(Violation::NoRequest(id));
                };
                if body_len > limit {
                    return Err(Violation::LongAnswer { id, bytes: body_len, limit });
                }
                Ok(if waited_for { BodyFor::Answer(RequestId(id)) } else { BodyFor::Nobody })
            }
            Kind::Cancel | Kind::Ping | Kind::Pong | Kind::Goodbye => {
                if body_len > 0 {
                    Err(Violation::Body(header.kind))
                } else {
                    Ok(BodyFor::Nobody)
                }
            }
            Kind::Hello | Kind::Welcome | Kind::Proof | Kind::Accepted | Kind::Refusal => {
                Err(Violation::Handshake(header.kind))
            }
        }
    }

    /// The frame that began is whole.
    pub fn end(&mut self, now: Time, header: Header, meta: Vec<u8>, body: PageBuffer) {
        if self.over {
            return;
        }
        match header.kind {
            Kind::Request => self.asked(now, header, meta, body),
            Kind::Answer => {
                let id = RequestId(header.id);
                if self.mine.answered(id) {
                    self.events.push_back(match header.verdict {
                        Verdict::Done | Verdict::Fault => Event::Answered { id, header, meta, body },
                        Verdict::Refused => Event::Failed { id, failure: Failure::NotSent(Cause::Refused) },
                    });
                }
            }
            Kind::Cancel => {
                if self.theirs.get(header.id).is_some() {
                    self.events.push_back(Event::Unasked { id: header.id });
                }
            }
            // One pong says all that several would: a peer that sends pings and reads nothing gets no queue.
            Kind::Ping => self.small_once(Kind::Pong),
            Kind::Pong => (),
            Kind::Goodbye => {
                self.peer_left = true;
                self.leave(now);
            }
            Kind::Hello | Kind::Welcome | Kind::Proof | Kind::Accepted | Kind::Refusal => (),
        }
        self.settle();
    }

    fn asked(&mut self, now: Time, header: Header, meta: Vec<u8>, body: PageBuffer) {
        if self.left.is_some() || header.left_ms == 0 {
            self.theirs.answered(header.id);
            let refused = Header {
                verdict: Verdict::Refused,
                method: header.method,
                id: header.id,
                trace: header.trace,
                ..Header::of(Kind::Answer)
            };
            self.answers.push_back(Outgoing::bare(refused));
            return;
        }
        let deadline = now + Duration::from_millis(header.left_ms.into());
        self.events.push_back(Event::Asked { header, meta, body, deadline });
    }

    /// The next frame to write. A request that was polled counts as sent.
    pub fn poll_output(&mut self, now: Time) -> Option<Outgoing> {
        if self.over {
            return None;
        }
        if let Some(small) = self.small.pop_front() {
            self.settle();
            return Some(small);
        }
        self.answers_next = !self.answers_next;
        let next = if self.answers_next {
            self.next_answer().or_else(|| self.next_request(now))
        } else {
            self.next_request(now).or_else(|| self.next_answer())
        };
        self.settle();
        next
    }

    fn next_answer(&mut self) -> Option<Outgoing> {
        let answer = self.answers.pop_front()?;
        self.theirs.sent(answer.header.id);
        Some(answer)
    }

    fn next_request(&mut self, now: Time) -> Option<Outgoing> {
        // What is over by now would be refused: it is not sent.
        while let Some(id) = self.mine.first_queued().filter(|(_, deadline)| *deadline <= now) {
            self.give_up(id.0, Cause::Deadline);
        }
        self.mine.send(now)
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Connection::handle_deadline`] has something to do next.
    pub fn next_deadline(&self) -> Option<(Time, Why)> {
        if self.over {
            return None;
        }
        let quiet = match self.pinged {
            None => (self.heard + self.settings.ping_after, Why::Ping),
            Some(_) => (self.heard + self.settings.silence_max, Why::Silence),
        };
        let end = self.left.map(|left| (left + self.settings.leave_max, Why::SlowEnd));
        let request = self.mine.next_deadline().map(|(time, id)| (time, Why::Request(id)));
        [Some(quiet), end, request].into_iter().flatten().min_by_key(|(time, _)| *time)
    }

    pub fn handle_deadline(&mut self, now: Time) {
        while let Some((time, why)) = self.next_deadline().filter(|(time, _)| *time <= now) {
            match why {
                Why::Request(id) => self.give_up(id, Cause::Deadline),
                Why::Ping => {
                    self.pinged = Some(time);
                    self.small_once(Kind::Ping);
                }
                Why::Silence => self.end_with(Loss::Silence),
                Why::SlowEnd => self.end_with(Loss::SlowEnd),
            }
        }
        self.settle();
    }

    fn small_once(&mut self, kind: Kind) {
        if self.small.iter().all(|frame| frame.header.kind != kind) {
            self.small.push_back(Outgoing::bare(Header::of(kind)));
        }
    }

    fn give_up(&mut self, id: RequestId, cause: Cause) {
        let failure = match self.mine.give_up(id) {
            None => return,
            Some(Own::Queued) => Failure::NotSent(cause),
            Some(Own::Sent) => {
                let header = Header { id: id.0, ..Header::of(Kind::Cancel) };
                self.small.push_back(Outgoing::bare(header));
                Failure::Unknown(cause)
            }
        };
        self.events.push_back(Event::Failed { id, failure });
    }

    fn drop_queue(&mut self, cause: Cause) {
        while let Some((id, _)) = self.mine.first_queued() {
            self.give_up(id, cause);
        }
    }

    /// Ends the connection when both have said goodbye, all is answered, and all of it was polled.
    fn settle(&mut self) {
        let idle = self.mine.is_empty()
            && self.theirs.is_empty()
            && self.answers.is_empty()
            && self.small.is_empty();
        if !self.over && self.left.is_some() && self.peer_left && idle {
            self.over = true;
            self.events.push_back(Event::Ended);
        }
    }

    fn end_with(&mut self, loss: Loss) {
        if self.over {
            return;
        }
        self.over = true;
        for (id, own) in self.mine.drain() {
            let failure = match own {
                Own::Queued => Failure::NotSent(Cause::Lost),
                Own::Sent => Failure::Unknown(Cause::Lost),
            };
            self.events.push_back(Event::Failed { id, failure });
        }
        self.events.extend(self.theirs.drain().into_iter().map(|id| Event::Unasked { id }));
        self.answers.clear();
        self.small.clear();
        self.events.push_back(Event::Lost(loss));
    }
}
