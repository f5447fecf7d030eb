//! One lane to one server: a request is made until it is answered, or the server was away for too long.
//!
//! Requests may be made again: a change has its number, and what has none may be carried out twice, the second time over a newer connection,
//! which ends the first. So a change of an object that is given up takes its connection with it.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use net::{
    Address, Answered, Call, CallError, Client, Credentials, Instance, NobodyAnswers, Pending, Target,
    Tuning, trace,
};
use parking_lot::Mutex;
use prost::Message;
use proto::{
    Method, Reason, Request,
    meter::{Ended, Meter},
};
use types::Errno;
use wire::{
    PageBuffer,
    frame::{Body, Verdict},
    handshake::Wish,
    schema::{Fault, Retry},
};

use crate::{
    heard::Heard,
    near::{self, Near},
};

/// Between two attempts that failed at once.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two attempts at a server that says that it cannot yet.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);
/// Whoever comes when a server has been away for as long as he would wait waits so long for it and no longer.
pub(crate) const AWAY_PATIENCE: Duration = Duration::from_secs(2);

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    /// Without a connection, or with connections that are lost.
    pub patience: Duration,
    /// In all.
    pub longest: Duration,
    /// While the server says that it cannot yet.
    pub able: Duration,
}

impl Waits {
    pub(crate) fn of(patience: Duration, longest: Duration) -> Waits {
        Waits { patience, longest, able: patience }
    }
}

/// A request, as often as it is made.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    pub method: Method,
    pub meta: Bytes,
    pub body: Body,
    pub answer_bytes_max: u32,
}

impl Asking {
    pub(crate) fn call(&self, deadline: Instant) -> Call {
        Call {
            body: self.body.clone(),
            answer_bytes_max: self.answer_bytes_max,
            cuts: self.method.changes_object(),
            ..Call::new(self.method.number(), self.meta.clone(), deadline)
        }
    }
}

/// The body of an answer, whose memory goes back to its connection when this is dropped.
pub(crate) struct Arrived {
    bytes: PageBuffer,
    line: Arc<Line>,
}

impl Arrived {
    pub(crate) fn new(bytes: PageBuffer, line: Arc<Line>) -> Arrived {
        Arrived { bytes, line }
    }
}

impl AsRef<[u8]> for Arrived {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        self.line.give_back(std::mem::take(&mut self.bytes));
    }
}

/// Why there is no answer that says yes.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The server says no. `again`: an earlier attempt of the same request may have been carried out.
    Fault { fault: Box<Fault>, again: bool },
    /// `again`: it may have been carried out.
    Silent { why: String, again: bool },
}

impl Stop {
    pub(crate) fn silent(why: impl Into<String>) -> Stop {
        Stop::Silent { why: why.into(), again: true }
    }

    pub(crate) fn errno(&self) -> Errno {
        match self {
            // Who could not for so long is as good as away.
            Stop::Fault { fault, .. } if fault.errno == Errno::EAGAIN.raw() => Errno::EIO,
            Stop::Fault { fault, .. } => Errno::from_raw(fault.errno),
            Stop::Silent { .. } => Errno::EIO,
        }
    }
}

/// The same server may say yes a little later.
fn comes_later(fault: &Fault) -> bool {
    Retry::try_from(fault.retry) == Ok(Retry::After)
}

/// On a control line.
pub(crate) fn ask_at<R: Request>(
    line: &Line,
    request: &R,
    patience: Duration,
) -> Result<(R::Answer, Vec<u8>), Stop> {
    ask_with(line, request, Body::default(), patience)
}

/// The same, with a body.
pub(crate) fn ask_with<R: Request>(
    line: &Line,
    request: &R,
    body: Body,
    patience: Duration,
) -> Result<(R::Answer, Vec<u8>), Stop> {
    let asking =
        Asking { method: R::METHOD, meta: request.encode_to_vec().into(), body, answer_bytes_max: 4 << 20 };
    let answered = line.ask(&asking, Waits::of(patience, patience))?;
    match R::Answer::decode(answered.meta.as_slice()) {
        Ok(answer) => Ok((answer, answered.body.into_vec())),
        Err(_) => Err(Stop::silent("an answer that makes no sense")),
    }
}

/// What all lines of a mount have in common.
#[derive(Clone)]
pub(crate) struct Common {
    pub credentials: Credentials,
    pub tuning: Tuning,
    pub meter: Arc<Meter>,
}

pub(crate) struct Line {
    /// On this machine, while that works.
    near: Option<Near>,
    /// For each address of the server.
    clients: Vec<Client>,
    /// The one that is used.
    at: AtomicUsize,
    /// It has answered once.
    known: AtomicBool,
    away: Mutex<Option<Away>>,
    /// Over this lane and others to the same server.
    heard: Heard,
    in_flight: AtomicU64,
    /// 0: the metadata server.
    node: u64,
    meter: Arc<Meter>,
}

#[derive(Clone)]
struct Away {
    /// Somebody has waited from then on.
    since: Instant,
    why: String,
    /// How often it had been heard by then.
    heard: u64,
}

impl Line {
    pub(crate) fn new(addresses: &[Address], wish: Wish, common: &Common) -> Line {
        Line::of(Instance::random(), addresses, wish, common)
    }

    /// Beside other lanes to the same server.
    pub(crate) fn beside(heard: &Heard, addresses: &[Address], wish: Wish, common: &Common) -> Line {
        Line { heard: heard.clone(), ..Line::new(addresses, wish, common) }
    }

    /// In the place of one to the same server.
    pub(crate) fn of(instance: Instance, addresses: &[Address], wish: Wish, common: &Common) -> Line {
        Line::near(instance, None, addresses, wish, common)
    }

    /// The same, of one that also listens at a Unix socket of this machine, if it does.
    pub(crate) fn near(
        instance: Instance,
        socket: Option<&Path>,
        addresses: &[Address],
        wish: Wish,
        common: &Common,
    ) -> Line {
        let client = |address: &Address, connect_wait: Duration| {
            let target = Target {
                address: address.clone(),
                wish,
                credentials: common.credentials.clone(),
                handler: Arc::new(NobodyAnswers),
                tuning: Tuning { connect_wait, ..common.tuning },
            };
            Client::of(instance, target)
        };
        Line {
            near: socket.map(|path| Near::new(path, client(&Address::Unix(path.into()), near::CONNECT))),
            clients: addresses.iter().map(|one| client(one, common.tuning.connect_wait)).collect(),
            at: AtomicUsize::new(0),
            known: AtomicBool::new(false),
            away: Mutex::default(),
            heard: Heard::default(),
            in_flight: AtomicU64::new(0),
            node: wish.node.unwrap_or(0),
            meter: common.meter.clone(),
        }
    }

    /// Asks until there is an answer.
    pub(crate) fn ask(&self, asking: &Asking, waits: Waits) -> Result<Answered, Stop> {
        let begun = self.begin();
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let answer = self.attempts(asking, waits);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.end(asking, begun, answer.as_ref().map_err(Stop::errno));
        answer
    }

    /// A request that is made; each has its [`Line::end`], however often it is made.
    pub(crate) fn begin(&self) -> Instant {
        self.meter.begin();
        Instant::now()
    }

    /// Counts it, and says to who follows requests that it was made.
    pub(crate) fn end(&self, asking: &Asking, begun: Instant, answer: Result<&Answered, Errno>) {
        let len = |meta: usize, body: usize| (meta + body) as u64;
        let ended = Ended {
            error: answer.err(),
            took: begun.elapsed(),
            received: answer.map_or(0, |answered| len(answered.meta.len(), answered.body.len())),
            sent: len(asking.meta.len(), asking.body.len()),
        };
        self.meter.end(Some(asking.method), &ended);
        let (method, node, micros) = (asking.method.name(), self.node, ended.took.as_micros() as u64);
        let errno = ended.error.map_or("none", Errno::name);
        tracing::debug!(request = %trace::current(), method, node, micros, errno, "asked a server");
    }

    /// A connection, for requests that go to several servers at once. What fails on it is asked for again with [`Line::ask`].
    pub(crate) fn open_channel(&self) -> Option<Arc<net::Channel>> {
        if self.away.lock().is_some() {
            return None;
        }
        self.client()?.channel(Instant::now() + Duration::from_secs(1)).ok()
    }

    /// A connection, if there is one. Waits for nothing.
    pub(crate) fn channel_there(&self) -> Option<Arc<net::Channel>> {
        if self.away.lock().is_some() { None } else { self.client()?.there() }
    }

    /// The body of an answer of this server's that nobody needs any more.
    pub(crate) fn give_back(&self, body: PageBuffer) {
        if let Some(client) = self.client() {
            client.give_back(body);
        }
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// For how long, and why.
    pub(crate) fn away(&self) -> Option<(Duration, String)> {
        self.away.lock().as_ref().map(|away| (away.since.elapsed(), away.why.clone()))
    }

    fn attempts(&self, asking: &Asking, waits: Waits) -> Result<Answered, Stop> {
        let mut heard = self.heard.count();
        self.look_at_other_lanes();
        let begun = Instant::now();
        let end = begun + waits.longest;
        let mut give_up = begun + self.patience(waits.patience, begun);
        let mut silent = begun;
        let (mut again, mut refusals) = (false, 0);
        let (mut able_by, mut pause) = (None, PAUSE_FIRST);
        let mut by_other_lanes = None;
        loop {
            let why = match self.attempt(asking, give_up, end) {
                Ok(answered) if answered.header.verdict == Verdict::Done => {
                    self.heard();
                    return Ok(answered);
                }
                Ok(answered) if answered.header.verdict == Verdict::Fault => {
                    self.heard();
                    let fault = proto::fault::read(&answered.meta);
                    let now = Instant::now();
                    // It is there, only not able to.
                    // Or it says itself when it gives up.
                    let able_until = *able_by.get_or_insert(now + waits.able);
                    let until = if Reason::of(&fault) == Reason::Leaving { end } else { able_until };
                    let after = pause.max(Duration::from_millis(fault.after_ms.min(5000).into()));
                    if !comes_later(&fault) || now + after >= until.min(end) {
                        return Err(Stop::Fault { fault: Box::new(fault), again });
                    }
                    give_up = now + after + waits.patience;
                    silent = now;
                    pause = (pause * 2).min(PAUSE_LONGEST);
                    thread::sleep(after);
                    continue;
                }
                Ok(_) => "the server is leaving".to_owned(),
                Err(error) => {
                    again |= error.is_unknown();
                    // The other ways are as good as before.
                    if !self.has_other_way(&error)
                        && let CallError::NoConnection { refused, .. } = &error
                    {
                        refusals = if *refused { refusals + 1 } else { 0 };
                    }
                    error.to_string()
                }
            };
            let now = Instant::now();
            if heard != self.heard.count() {
                // Over another lane, since this was asked for.
                heard = self.heard.count();
                self.look_at_other_lanes();
                self.clients.iter().for_each(Client::dial_now);
                give_up = give_up.max(by_other_lanes.get_or_insert(now + waits.patience).to_owned());
            }
            // One that has answered before may be in the middle of getting new certificates.
            let hopeless = refusals >= self.clients.len().max(1) && !self.known.load(Ordering::Relaxed);
            if hopeless || now + PAUSE >= give_up.min(end) {
                self.lost(silent, &why);
                return Err(Stop::Silent { why, again });
            }
            thread::sleep(PAUSE);
        }
    }

    /// Of somebody who begins to wait. One who waited for a moment only does not make it a server that all others have waited for.
    fn patience(&self, wanted: Duration, now: Instant) -> Duration {
        let Some(since) = self.away.lock().as_ref().map(|away| away.since) else { return wanted };
        let left = (since + wanted).saturating_duration_since(now);
        left.max(wanted.min(AWAY_PATIENCE))
    }

    /// With several addresses each gets its part of the time for a connection.
    fn attempt(&self, asking: &Asking, give_up: Instant, end: Instant) -> Result<Answered, CallError> {
        let (client, _) = self.connected(give_up)?;
        client.call(asking.call(end))
    }

    fn connected(&self, give_up: Instant) -> Result<(&Client, Arc<net::Channel>), CallError> {
        let none = || CallError::NoConnection {
            address: String::new(),
            why: "no address is known".into(),
            refused: false,
        };
        let client = self.client().ok_or_else(none)?;
        let left = give_up.saturating_duration_since(Instant::now());
        let channel = if let Some(near) = self.near.as_ref().filter(|near| near.is(client)) {
            near.connect(Instant::now() + left)?
        } else {
            client.channel(Instant::now() + left / self.clients.len().max(1) as u32)?
        };
        Ok((client, channel))
    }

    /// One attempt, for who has somebody else to ask. That it is one is said with [`Line::begin`], and how it ended with [`Line::end`].
    pub(crate) fn begin_once(
        &self,
        asking: &Asking,
        connect_by: Instant,
        end: Instant,
    ) -> Result<Pending, CallError> {
        let (_, channel) = self.connected(connect_by)?;
        channel.begin(asking.call(end))
    }

    /// There is a connection, as far as is known.
    pub(crate) fn is_connected(&self) -> bool {
        self.client().is_some_and(|client| client.there().is_some())
    }

    /// There was an answer to what was begun once.
    pub(crate) fn answered(&self) {
        if let Some(client) = self.client() {
            client.worked();
        }
        self.heard();
    }

    /// It failed on one way, and the next one may be tried at once; otherwise another address is the next one.
    pub(crate) fn has_other_way(&self, error: &CallError) -> bool {
        let is_near = self.near.as_ref().is_some_and(|near| near.failed_with(error));
        if !is_near && matches!(error, CallError::NoConnection { .. }) {
            self.at.fetch_add(1, Ordering::Relaxed);
        }
        is_near
    }

    /// By which way it is asked now.
    pub(crate) fn near_way(&self) -> Option<&Near> {
        self.near.as_ref().filter(|near| near.works())
    }

    /// Where it is asked on this machine, if nothing is known against that.
    pub(crate) fn near_path(&self) -> Option<&Path> {
        self.near.as_ref().filter(|near| near.may_work()).map(Near::path)
    }

    fn client(&self) -> Option<&Client> {
        if let Some(near) = self.near.as_ref().filter(|near| near.may_work()) {
            return Some(near.client());
        }
        let at = self.at.load(Ordering::Relaxed);
        self.clients.get(at.checked_rem(self.clients.len())?)
    }

    /// Was it heard over another one since it was lost on this one? Then it is there, and is asked as if it had never been away.
    fn look_at_other_lanes(&self) {
        let mut away = self.away.lock();
        if away.take_if(|away| away.heard != self.heard.count()).is_some() {
            tracing::info!(node = self.node, "a server answers again, on another lane");
            self.clients.iter().for_each(Client::dial_now);
        }
    }

    fn heard(&self) {
        self.heard.hear();
        self.known.store(true, Ordering::Relaxed);
        if self.away.lock().take().is_some() {
            tracing::info!(node = self.node, "a server answers again");
        }
    }

    fn lost(&self, since: Instant, why: &str) {
        let mut away = self.away.lock();
        if away.is_none() {
            tracing::warn!(request = %trace::current(), node = self.node, why, "a server is away");
            let heard = self.heard.count();
            *away = Some(Away { since, why: why.to_owned(), heard });
        }
    }
}
