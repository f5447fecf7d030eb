//! One connection in the running program: the machine under its lock, who waits for answers, and the writing.
//!
//! Whoever has something to send writes it, and what others put in meanwhile, without ever waiting for the peer. What the socket does not
//! take at once is the writer thread's. So a frame costs no change of threads, and frames that meet go in one write.
//! The reader thread alone calls the handler; what it answers there goes in one write at the end of what came in one read.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, OnceLock},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use wire::{
    Encoder, PageBuffer,
    connection::{
        Answer, BodyFor, Cause, Connection, Event, Failure, Loss, NotTaken, Request, RequestId, Time,
    },
    frame::{Header, Verdict},
    handshake::Peer,
    schema::Lane,
};

use crate::{
    newest::Mark,
    outbox::Outbox,
    pool::Pool,
    transport::{Transport, is_wait_over},
    waiter::{Answered, Slot, Then, Waiter, Woken},
};

/// After so many writes in a row for others a caller leaves the rest to the writer.
const ROUNDS_MAX: u32 = 8;

/// For the handler, in the order in which it came.
pub(crate) enum News {
    Asked { header: Header, meta: Vec<u8>, body: PageBuffer, deadline: Time },
    Unasked { id: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    Nobody,
    /// A thread that does not wait.
    Passer,
    Writer,
}

struct Waiting {
    waiter: Waiter,
    buffer: PageBuffer,
}

struct State {
    connection: Connection,
    encoder: Encoder,
    outbox: Outbox,
    sending: Sending,
    waiting: BTreeMap<RequestId, Waiting>,
    /// Bounded by the window that the peer was told.
    news: VecDeque<News>,
    /// Those of requests that ended behind another event, or without an answer: for the reader.
    ended: VecDeque<Woken>,
    /// Ended in order with `None` inside.
    over: Option<Option<Loss>>,
}

/// What a link is made of.
pub(crate) struct Parts {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) connection: Connection,
    pub(crate) encoder: Encoder,
    pub(crate) peer: Peer,
    pub(crate) lane: Lane,
    pub(crate) mark: Arc<Mark>,
    pub(crate) started: Instant,
}

pub(crate) struct Link {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) peer: Peer,
    pub(crate) lane: Lane,
    pub(crate) mark: Arc<Mark>,
    pub(crate) pool: Arc<Pool>,
    started: Instant,
    state: Mutex<State>,
    /// For the writer.
    backlog: Condvar,
    over: Condvar,
    reader: OnceLock<ThreadId>,
}

impl Link {
    pub(crate) fn new(parts: Parts) -> Link {
        let state = State {
            connection: parts.connection,
            encoder: parts.encoder,
            outbox: Outbox::default(),
            sending: Sending::Nobody,
            waiting: BTreeMap::new(),
            news: VecDeque::new(),
            ended: VecDeque::new(),
            over: None,
        };
        Link {
            transport: parts.transport,
            peer: parts.peer,
            lane: parts.lane,
            mark: parts.mark,
            pool: Arc::default(),
            started: parts.started,
            state: Mutex::new(state),
            backlog: Condvar::new(),
            over: Condvar::new(),
            reader: OnceLock::new(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.started.elapsed()
    }

    pub(crate) fn time(&self, at: Instant) -> Time {
        at.saturating_duration_since(self.started)
    }

    pub(crate) fn instant(&self, time: Time) -> Instant {
        self.started + time
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().connection.is_open()
    }

    /// Puts a request in; `write` at once, or leave it for the next write.
    pub(crate) fn ask(
        &self,
        request: Request,
        buffer: PageBuffer,
        write: bool,
    ) -> Result<(RequestId, Arc<Slot>), NotTaken> {
        let slot = Arc::new(Slot::default());
        let id = self.ask_for(request, Waiting { waiter: Waiter::Thread(slot.clone()), buffer }, write)?;
        Ok((id, slot))
    }

    /// The same; `then` is done with what comes back.
    pub(crate) fn ask_then(&self, request: Request, then: Then) -> Result<(), NotTaken> {
        let waiting = Waiting { waiter: Waiter::Then(then), buffer: PageBuffer::default() };
        self.ask_for(request, waiting, true).map(drop)
    }

    fn ask_for(&self, request: Request, waiting: Waiting, write: bool) -> Result<RequestId, NotTaken> {
        let mut state = self.state.lock();
        let id = state.connection.request(request)?;
        state.waiting.insert(id, waiting);
        if write {
            self.flush(state);
        }
        Ok(id)
    }

    pub(crate) fn write(&self) {
        self.flush(self.state.lock());
    }

    pub(crate) fn cancel(&self, id: RequestId) {
        let mut state = self.state.lock();
        state.connection.cancel(id);
        self.flush(state);
    }

    pub(crate) fn answer(&self, id: u64, answer: Answer) -> Result<(), NotTaken> {
        let mut state = self.state.lock();
        state.connection.answer(id, answer)?;
        // The reader writes when it has handed on all that came with this request.
        if self.reader.get() != Some(&thread::current().id()) {
            self.flush(state);
        }
        Ok(())
    }

    /// What is due by the clock.
    pub(crate) fn tick(&self) {
        let now = self.now();
        let mut state = self.state.lock();
        if state.connection.next_deadline().is_some_and(|(time, _)| time <= now) {
            state.connection.handle_deadline(now);
        }
        self.flush(state);
    }

    pub(crate) fn leave(&self) {
        let now = self.now();
        let mut state = self.state.lock();
        state.connection.leave(now);
        self.flush(state);
    }

    /// Waits for the end of a connection that was left. Whether it came in order.
    pub(crate) fn wait_over(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        while state.over.is_none() {
            if self.over.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.over == Some(None)
    }

    /// The connection cannot go on.
    pub(crate) fn lose(&self) {
        let mut state = self.state.lock();
        state.connection.lost();
        self.settle(&mut state);
    }

    /// How it ended.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.state.lock().over.flatten()
    }

    // For the reader.

    pub(crate) fn i_am_the_reader(&self) {
        let _ = self.reader.set(thread::current().id());
    }

    pub(crate) fn heard(&self) {
        let now = self.now();
        self.state.lock().connection.heard(now);
    }

    /// A frame begins: the buffer for its body, at least as long. `None` when the connection is over with it.
    pub(crate) fn begin(&self, header: &Header, meta_len: usize, body_len: u32) -> Option<PageBuffer> {
        let mut state = self.state.lock();
        let place = state.connection.begin(header, meta_len, body_len);
        let mut buffer = match place {
            Err(_) => {
                self.settle(&mut state);
                return None;
            }
            Ok(_) if body_len == 0 => return Some(PageBuffer::default()),
            Ok(BodyFor::Answer(id)) => match state.waiting.get_mut(&id) {
                Some(waiting) if waiting.buffer.room() > 0 => std::mem::take(&mut waiting.buffer),
                Some(_) | None => self.pool.take(body_len as usize),
            },
            Ok(BodyFor::Request | BodyFor::Nobody) => self.pool.take(body_len as usize),
        };
        drop(state);
        buffer.resize_for(body_len as usize);
        Some(buffer)
    }

    /// A frame is whole. Whoever is woken by it is woken by the caller: later, and not under the lock, for which he would wait at once.
    pub(crate) fn end(&self, header: Header, meta: Vec<u8>, body: PageBuffer) -> Option<Woken> {
        let now = self.now();
        let mut state = self.state.lock();
        state.connection.end(now, header, meta, body);
        let woken = match state.connection.poll_event() {
            Some(Event::Answered { id, header, meta, body }) => {
                let waiting = state.waiting.remove(&id);
                waiting.map(|w| Woken { waiter: w.waiter, result: Ok(Answered { header, meta, body }) })
            }
            Some(event) => {
                self.take_event(&mut state, event);
                None
            }
            None => None,
        };
        self.settle(&mut state);
        woken
    }

    pub(crate) fn news(&self) -> Option<News> {
        self.state.lock().news.pop_front()
    }

    pub(crate) fn has_no_news(&self) -> bool {
        self.state.lock().news.is_empty()
    }

    pub(crate) fn ended(&self) -> Option<Woken> {
        self.state.lock().ended.pop_front()
    }

    /// Hands on what the machine says.
    fn settle(&self, state: &mut State) {
        while let Some(event) = state.connection.poll_event() {
            self.take_event(state, event);
        }
    }

    fn take_event(&self, state: &mut State, event: Event) {
        match event {
            Event::Asked { header, meta, body, deadline } => {
                state.news.push_back(News::Asked { header, meta, body, deadline });
            }
            Event::Unasked { id } => state.news.push_back(News::Unasked { id }),
            Event::Answered { id, header, meta, body } => {
                let waiting = state.waiting.remove(&id);
                let result = Ok(Answered { header, meta, body });
                state.ended.extend(waiting.map(|w| Woken { waiter: w.waiter, result }));
            }
            Event::Failed { id, failure } => {
                let waiting = state.waiting.remove(&id);
                state.ended.extend(waiting.and_then(|w| w.waiter.failed(failure)));
            }
            Event::Ended => self.end_with(state, None),
            Event::Lost(loss) => {
                self.transport.close();
                self.end_with(state, Some(loss));
            }
        }
    }

    fn end_with(&self, state: &mut State, how: Option<Loss>) {
        state.over = Some(how);
        self.over.notify_all();
        self.backlog.notify_one();
    }

    fn fill(&self, state: &mut State) {
        let now = self.now();
        while state.outbox.has_room() {
            let Some(frame) = state.connection.poll_output(now) else { break };
            state.outbox.push(&mut state.encoder, frame);
        }
        self.settle(state);
        if state.over == Some(None) && state.outbox.is_empty() {
            // All that was said is written.
            self.transport.close();
        }
    }

    /// Writes what can be written without waiting, unless somebody is at it.
    fn flush(&self, mut state: MutexGuard<'_, State>) {
        self.settle(&mut state);
        if state.sending != Sending::Nobody {
            return;
        }
        for _ in 0..ROUNDS_MAX {
            self.fill(&mut state);
            if state.outbox.is_empty() {
                if state.over.is_some() {
                    // The writer may have waited for this.
                    self.backlog.notify_one();
                }
                return;
            }
            state.sending = Sending::Passer;
            let mut outbox = std::mem::take(&mut state.outbox);
            let sent = MutexGuard::unlocked(&mut state, || outbox.send(self.transport.as_ref(), false));
            state.outbox = outbox;
            state.sending = Sending::Nobody;
            match sent {
                Ok(()) if state.outbox.is_empty() => (),
                Ok(()) => break,
                Err(error) if is_wait_over(&error) => break,
                Err(error) => return self.broken(&mut state, &error),
            }
        }
        state.sending = Sending::Writer;
        self.backlog.notify_one();
    }

    fn broken(&self, state: &mut State, error: &io::Error) {
        tracing::debug!(peer = self.peer.node, %error, "cannot send");
        state.connection.lost();
        self.settle(state);
    }

    /// The writer's whole life.
    pub(crate) fn write_backlog(&self) {
        let mut state = self.state.lock();
        loop {
            while state.sending != Sending::Writer {
                if state.over.is_some() && state.sending == Sending::Nobody {
                    return;
                }
                // Its deadline is the connection's end, which the reader's ticks see to, and which wakes it.
                self.backlog.wait(&mut state);
            }
            self.fill(&mut state);
            if state.outbox.is_empty() || state.over.flatten().is_some() {
                state.sending = Sending::Nobody;
                continue;
            }
            let mut outbox = std::mem::take(&mut state.outbox);
            let sent = MutexGuard::unlocked(&mut state, || outbox.send(self.transport.as_ref(), true));
            state.outbox = outbox;
            if let Err(error) = sent {
                state.sending = Sending::Nobody;
                self.broken(&mut state, &error);
            }
        }
    }
}

/// An answer that is owed to the peer. Dropped without one, the peer is told that the request failed, so that its credit comes back.
pub struct Reply {
    link: Arc<Link>,
    id: u64,
    owed: bool,
}

impl Reply {
    pub(crate) fn new(link: Arc<Link>, id: u64) -> Reply {
        Reply { link, id, owed: true }
    }

    /// The number by which [`Handler::unasked`](crate::Handler::unasked) speaks of the request.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Sends the answer, from any thread and in any order. With `Err` it does not fit what the peer asked for, and the peer is told so.
    pub fn answer(mut self, answer: Answer) -> Result<(), NotTaken> {
        self.link.answer(self.id, answer)?;
        self.owed = false;
        Ok(())
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.owed {
            let failed = Answer {
                verdict: Verdict::Fault,
                meta: crate::fault(types::Errno::EIO, "the request was dropped").into(),
                body: Default::default(),
                epoch: 0,
            };
            // It has no body, so it fits.
            let _ = self.link.answer(self.id, failed);
        }
    }
}

/// A request that waits for its answer. Dropped, it is cancelled.
pub struct Pending {
    link: Arc<Link>,
    id: RequestId,
    slot: Arc<Slot>,
    deadline: Instant,
    cuts: bool,
    waited: bool,
}

impl Pending {
    pub(crate) fn new(
        link: Arc<Link>,
        asked: (RequestId, Arc<Slot>),
        deadline: Instant,
        cuts: bool,
    ) -> Pending {
        Pending { link, id: asked.0, slot: asked.1, deadline, cuts, waited: false }
    }

    /// Not beyond the request's deadline.
    pub fn wait(mut self) -> Result<Answered, Failure> {
        self.waited = true;
        let result = self.result();
        self.ended(&result);
        result
    }

    /// The same, for a while. `Err`: there is no answer yet, and it is waited for as before.
    pub fn wait_until(mut self, until: Instant) -> Result<Result<Answered, Failure>, Pending> {
        if until >= self.deadline {
            return Ok(self.wait());
        }
        let Some(result) = self.slot.wait(until) else { return Err(self) };
        self.waited = true;
        self.ended(&result);
        Ok(result)
    }

    /// Before anybody hears how it ended.
    fn ended(&self, result: &Result<Answered, Failure>) {
        if self.cuts && matches!(result, Err(Failure::Unknown(_))) {
            self.link.lose();
        }
    }

    fn result(&self) -> Result<Answered, Failure> {
        if let Some(result) = self.slot.wait(self.deadline) {
            return result;
        }
        self.link.tick();
        // The clock of the machine and ours are one, so it has ended; a rounding is bridged by a cancellation.
        let moment = Instant::now() + Duration::from_millis(1);
        self.slot.wait(moment).unwrap_or_else(|| {
            self.link.cancel(self.id);
            let moment = Instant::now() + Duration::from_millis(1);
            self.slot.wait(moment).unwrap_or(Err(Failure::Unknown(Cause::Deadline)))
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.waited {
            self.link.cancel(self.id);
            if let Some(result) = self.slot.wait(Instant::now()) {
                self.ended(&result);
            }
        }
    }
}
