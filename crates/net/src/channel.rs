//! One connection, for those who ask: many threads share it, each waits for its own answer.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use wire::{
    PageBuffer,
    connection::{Connection, Failure, NotTaken, Request, Settings, Window},
    frame::{Body, Limits},
    handshake::Peer,
};

use crate::{
    greet::Greeted,
    link::{Link, Parts, Pending},
    newest::Mark,
    reader::{Handler, Reader},
    trace,
    transport::{Transport, Waits},
    waiter::Answered,
};

/// A side's settings. The defaults are for a network of one site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// The same on all nodes: a version of the wire fixes them, and only tests have others.
    pub limits: Limits,
    /// What this side takes unanswered.
    pub takes: Window,
    /// Requests of ours that wait for credit.
    pub queued_max: usize,
    /// From the first byte to the last one of a handshake; and of connecting.
    pub connect_wait: Duration,
    /// From the first byte to the last one of a frame.
    pub frame_wait: Duration,
    /// The peer takes not a byte of what we write.
    pub send_wait: Duration,
    pub ping_after: Duration,
    pub silence_max: Duration,
    pub leave_max: Duration,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            limits: Limits::DEFAULT,
            // 16 bodies of the largest kind: at 10 GB/s that is 6 ms of a network's way there and back.
            takes: Window { requests: 256, bytes: 64 << 20 },
            queued_max: 4096,
            connect_wait: Duration::from_secs(5),
            frame_wait: Duration::from_secs(30),
            send_wait: Duration::from_secs(15),
            ping_after: Duration::from_secs(5),
            silence_max: Duration::from_secs(15),
            leave_max: Duration::from_secs(30),
        }
    }
}

impl Tuning {
    pub(crate) fn waits(&self) -> Waits {
        // Often enough that no deadline of the machine is late by more than a part of itself.
        let tick = self.ping_after.min(self.frame_wait).min(self.connect_wait) / 4;
        let tick = tick.clamp(Duration::from_millis(10), Duration::from_secs(1));
        Waits { receive: tick, send: self.send_wait }
    }
}

/// What to ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    pub method: u16,
    pub meta: Bytes,
    pub body: Body,
    pub deadline: Instant,
    /// How long the answer's body may be.
    pub answer_bytes_max: u32,
    /// The answer's body comes into this buffer. It is made longer where it is too short; one that was used before costs nothing, and without one the
    /// connection has some that were given back.
    pub into: PageBuffer,
    pub epoch: u64,
    pub trace: u64,
    pub job: u64,
    /// If it ends without an answer, and may have been sent, the connection is cut: what is asked afterwards comes over a newer one, which takes
    /// its place.
    pub cuts: bool,
}

impl Call {
    /// Without bodies, for the request that this thread works on.
    pub fn new(method: u16, meta: impl Into<Bytes>, deadline: Instant) -> Call {
        Call {
            method,
            meta: meta.into(),
            body: Body::default(),
            deadline,
            answer_bytes_max: 0,
            into: PageBuffer::default(),
            epoch: 0,
            trace: trace::current().0,
            job: 0,
            cuts: false,
        }
    }
}

/// Ends the connection at once when it is dropped; [`Channel::close`] ends it in order.
pub struct Channel {
    link: Arc<Link>,
}

impl Channel {
    /// Starts the threads of a connection.
    pub(crate) fn start(
        transport: Box<dyn Transport>,
        greeted: Greeted,
        handler: Arc<dyn Handler>,
        tuning: &Tuning,
        mark: Arc<Mark>,
    ) -> io::Result<(Channel, impl FnOnce() + Send + 'static)> {
        let started = Instant::now();
        let Greeted { session, encoder, decoder, early } = greeted;
        let settings = Settings {
            takes: tuning.takes,
            peer_takes: session.peer.takes,
            limits: tuning.limits,
            queued_max: tuning.queued_max,
            ping_after: tuning.ping_after,
            silence_max: tuning.silence_max,
            leave_max: tuning.leave_max,
        };
        let connection = Connection::new(settings, Duration::ZERO);
        let (peer, lane) = (session.peer, session.lane);
        let parts = Parts { transport, connection, encoder, peer, lane, mark, started };
        let link = Arc::new(Link::new(parts));
        let channel = Channel { link: link.clone() };
        let writer = link.clone();
        thread::Builder::new().name("net-write".into()).spawn(move || writer.write_backlog())?;
        let reader = Reader { link, decoder, handler, frame_wait: tuning.frame_wait, begun: None };
        Ok((channel, move || reader.run(&early)))
    }

    pub fn peer(&self) -> &Peer {
        &self.link.peer
    }

    /// More can be asked.
    pub fn is_open(&self) -> bool {
        self.link.is_open()
    }

    /// Asks and waits, not beyond the deadline.
    pub fn call(&self, call: Call) -> Result<Answered, CallError> {
        Ok(self.begin(call)?.wait()?)
    }

    /// Asks; the answer is waited for later.
    pub fn begin(&self, call: Call) -> Result<Pending, CallError> {
        self.ask(call, true)
    }

    /// Asks several things in one write. Each ends by itself.
    pub fn begin_all(&self, calls: Vec<Call>) -> Vec<Result<Pending, CallError>> {
        let begun = calls.into_iter().map(|call| self.ask(call, false)).collect();
        self.link.write();
        begun
    }

    /// Asks, and returns at once. `then` is called with the answer, or with why there is none, on the connection's reader thread: what it does
    /// must not wait for anything. Without an answer that is some time after the deadline.
    pub fn begin_then(
        &self,
        call: Call,
        then: impl FnOnce(Result<Answered, Failure>) + Send + 'static,
    ) -> Result<(), CallError> {
        let cuts = call.cuts.then(|| self.link.clone());
        let then = move |result: Result<Answered, Failure>| {
            if let (Some(link), Err(Failure::Unknown(_))) = (cuts, &result) {
                link.lose();
            }
            then(result);
        };
        Ok(self.link.ask_then(self.request(call), Box::new(then))?)
    }

    fn ask(&self, mut call: Call, write: bool) -> Result<Pending, CallError> {
        let (into, deadline, cuts) = (std::mem::take(&mut call.into), call.deadline, call.cuts);
        let asked = self.link.ask(self.request(call), into, write)?;
        Ok(Pending::new(self.link.clone(), asked, deadline, cuts))
    }

    fn request(&self, call: Call) -> Request {
        Request {
            method: call.method,
            meta: call.meta,
            body: call.body,
            answer_bytes_max: call.answer_bytes_max,
            deadline: self.link.time(call.deadline),
            epoch: call.epoch,
            trace: call.trace,
            job: call.job,
        }
    }

    /// The body of an answer that nobody needs any more: the next large one comes into it.
    pub fn give_back(&self, body: PageBuffer) {
        self.link.pool.give(body);
    }

    /// No more requests; waits until all is answered. Whether it ended so.
    pub fn close(&self, wait: Duration) -> bool {
        self.link.leave();
        self.link.wait_over(Instant::now() + wait)
    }

    /// Ends it at once.
    pub fn cut(&self) {
        self.link.lose();
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Why a call has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
    #[error(transparent)]
    Failed(#[from] Failure),
    /// There is no connection, and so it was not carried out.
    #[error("no connection to {address}: {why}")]
    NoConnection {
        address: String,
        why: String,
        /// For a reason that somebody has to put right: a key, a certificate.
        refused: bool,
    },
}

impl CallError {
    /// The peer may have carried it out.
    pub fn is_unknown(&self) -> bool {
        matches!(self, CallError::Failed(Failure::Unknown(_)))
    }
}
