//! The mount itself: its session, how it asks, and the thread that keeps it.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use net::{
    Address, Answered,
    trace::{self, Traces},
};
use parking_lot::{Condvar, Mutex, RwLock};
use prost::Message;
use proto::{Head, Reason, Request, SessionId, control, meter::Meter};
use types::{Attr, Errno};
use wire::{
    frame::Body,
    handshake::Wish,
    schema::{Fault, Lane, Retry},
};

use crate::{
    cache::Caching,
    closes::Closes,
    droppers::Dropping,
    held::Source,
    homes::{FIRST_PAUSE, Homes},
    kept::Kept,
    line::{Asking, Common, Line, Stop, Waits, ask_at},
    nodes::Nodes,
    openings::Openings,
    options::RemoteOptions,
    pool::Pool,
    references::References,
    session::Session,
    spreads::Spreads,
    through::Through,
    waiting::Waiting,
};

/// A look at what is to be given back and renewed.
const TICK: Duration = Duration::from_millis(100);
/// A change of the own node is told so soon.
const TELL: Duration = Duration::from_millis(500);
/// Of an end: what is open is closed within it, or left to the server.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// A request that finds its session gone so often in a row has an error.
pub(crate) const RECOVERIES_MAX: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the metadata server does not answer: {0}")]
    Away(String),
    #[error("the metadata server refuses the mount: {0}")]
    Refused(String),
    #[error("no thread can be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// What a mount asks for beside its head.
pub(crate) struct Want {
    /// A change, with a number of its own.
    pub operation: bool,
    /// It may be made again in another session, where it means the same.
    pub anew: bool,
    pub body: Body,
    pub answer_bytes_max: u32,
    pub longest: Duration,
}

/// An answer with its body.
pub(crate) type Asked<A> = Result<(A, Vec<u8>), Errno>;

pub struct Remote {
    pub(crate) this: Weak<Remote>,
    pub(crate) options: RemoteOptions,
    pub(crate) control: Line,
    pub(crate) metadata: Line,
    pub(crate) nodes: Nodes,
    /// Of several metadata servers the node of the one that is asked over the lines above; 0: there is one.
    pub(crate) on_duty: u64,
    pub(crate) homes: Homes,
    pub(crate) spreads: Spreads,
    pub(crate) references: References,
    pub(crate) kept: Mutex<Kept>,
    pub(crate) caching: Caching,
    /// The server knows nothing of bytes that are kept.
    pub(crate) keeps_none: AtomicBool,
    pub(crate) dropping: Arc<Dropping>,
    pub(crate) openings: Openings,
    pub(crate) closes: Arc<Closes>,
    closer: Mutex<Option<JoinHandle<()>>>,
    pub(crate) pool: Pool,
    pub(crate) data_pool: Pool,
    pub(crate) locks: Mutex<Waiting>,
    /// A thread hears of the locks that wait.
    pub(crate) listening: AtomicBool,
    pub(crate) session: RwLock<Arc<Session>>,
    /// One at a time makes a session in place of a lost one.
    pub(crate) recovering: Mutex<()>,
    /// Sessions that were made in place of others.
    pub(crate) recoveries: AtomicU64,
    renew: RwLock<Duration>,
    /// The own node, as the metadata server was told.
    pub(crate) told_node: AtomicU64,
    pub(crate) stopping: Mutex<bool>,
    stopped: Condvar,
    keeper: Mutex<Option<JoinHandle<()>>>,
    pub(crate) through: Through,
    pub(crate) meter: Arc<Meter>,
    /// Ids of the kernel's requests.
    pub(crate) traces: Traces,
}

impl Remote {
    /// Makes a session at the metadata server.
    pub fn start(options: RemoteOptions) -> Result<Arc<Remote>, StartError> {
        let meter: Arc<Meter> = Arc::default();
        let (credentials, tuning) = (options.credentials.clone(), options.tuning);
        let common = Common { credentials, tuning, meter: meter.clone() };
        let nodes = Nodes::new(common.clone(), options.sockets.clone());
        let (on_duty, servers) = find_duty(&options, &common, &nodes)?;
        let node = (on_duty != 0).then_some(on_duty);
        let line = |lane| Line::new(&servers, Wish { lane, node }, &common);
        let (control, metadata) = (line(Lane::Control), line(Lane::Metadata));
        let pool = Pool::start("remote", options.workers)?;
        let data_pool = Pool::start("remote-data", options.data_workers)?;
        let remote = Arc::new_cyclic(|this| Remote {
            this: this.clone(),
            control,
            metadata,
            nodes,
            on_duty,
            homes: Homes::new(common),
            spreads: Spreads::default(),
            references: References::default(),
            kept: Mutex::default(),
            caching: Caching::new(options.cache),
            keeps_none: AtomicBool::new(false),
            dropping: Arc::default(),
            openings: Openings::default(),
            closes: Arc::default(),
            closer: Mutex::default(),
            pool,
            data_pool,
            locks: Mutex::default(),
            listening: AtomicBool::new(false),
            session: RwLock::new(Arc::new(Session::new((SessionId(0), 0), 0, 0, 1))),
            recovering: Mutex::default(),
            recoveries: AtomicU64::new(0),
            renew: RwLock::new(Duration::from_secs(5)),
            told_node: AtomicU64::new(0),
            stopping: Mutex::default(),
            stopped: Condvar::new(),
            keeper: Mutex::default(),
            through: Through::default(),
            meter,
            traces: Traces::new(options.credentials.me.node),
            options,
        });
        if let Err(stop) = remote.fetch_facts().and_then(|life| remote.new_session(life)).map(|session| {
            let none = remote.locks.lock().begin_anew(Source { node: 0, joined: session.joined });
            debug_assert!(none.is_empty());
            *remote.session.write() = session;
        }) {
            remote.pool.shutdown();
            remote.data_pool.shutdown();
            return Err(match stop {
                Stop::Silent(why) => StartError::Away(why),
                Stop::Fault { fault, .. } => StartError::Refused(fault.detail),
            });
        }
        let keeper = {
            let remote = Arc::downgrade(&remote);
            std::thread::Builder::new().name("remote-keep".into()).spawn(move || keep(&remote))?
        };
        *remote.keeper.lock() = Some(keeper);
        let closer = {
            let (remote, closes) = (Arc::downgrade(&remote), remote.closes.clone());
            std::thread::Builder::new()
                .name("remote-closes".into())
                .spawn(move || Remote::send_closes(&remote, &closes))?
        };
        *remote.closer.lock() = Some(closer);
        Ok(remote)
    }

    /// The root directory, as the metadata server has it.
    pub fn root(&self) -> Result<Attr, Errno> {
        self.getattr(types::Ino::ROOT)
    }

    /// Closes what is open, gives everything back and ends the session. What was answered is the servers'.
    pub fn shutdown(&self) {
        *self.stopping.lock() = true;
        self.stopped.notify_all();
        if let Some(keeper) = self.keeper.lock().take()
            && keeper.thread().id() != std::thread::current().id()
            && keeper.join().is_err()
        {
            tracing::error!("the thread that keeps the session ended with a panic");
        }
        self.end_locks();
        self.dropping.end();
        self.pool.shutdown();
        self.data_pool.shutdown();
        let end = Instant::now() + END_PATIENCE;
        for file in self.openings.all() {
            if Instant::now() < end {
                self.close(file.number);
            }
        }
        self.end_closes();
        let session = self.session();
        self.leave_homes(&session, END_PATIENCE);
        let bye = control::Unmount { head: Some(session.head()) };
        if let Err(stop) = self.ask_control(&bye, END_PATIENCE) {
            tracing::info!(errno = %stop.errno(), "the session was not ended in order: the server gives it up later");
        }
    }

    /// Those that wait go, unless the server does not take them: then they end with the session.
    fn end_closes(&self) {
        self.closes.end(END_PATIENCE);
        if let Some(closer) = self.closer.lock().take()
            && closer.thread().id() != std::thread::current().id()
            && closer.join().is_err()
        {
            tracing::error!("the thread that closes files ended with a panic");
        }
    }

    pub(crate) fn session(&self) -> Arc<Session> {
        self.session.read().clone()
    }

    pub(crate) fn waits(&self) -> Waits {
        Waits { patience: self.options.patience, longest: self.options.longest }
    }

    /// Asks something that changes nothing, or may be carried out twice.
    pub(crate) fn look<R: Request>(&self, make: impl Fn(Head) -> R) -> Result<R::Answer, Errno> {
        self.ask(make, self.want(false)).map(|(answer, _)| answer)
    }

    /// Makes a change, once.
    pub(crate) fn change<R: Request>(&self, make: impl Fn(Head) -> R) -> Result<R::Answer, Errno> {
        self.ask(make, self.want(true)).map(|(answer, _)| answer)
    }

    pub(crate) fn want(&self, operation: bool) -> Want {
        let longest = self.options.longest;
        Want { operation, anew: false, body: Body::default(), answer_bytes_max: 0, longest }
    }

    /// For openings and closes: one that is asked for twice is carried out once, so that no late one undoes what came after it.
    pub(crate) fn want_anew(&self) -> Want {
        Want { anew: true, ..self.want(true) }
    }

    /// Asks the metadata server; the answer's body comes with it. When the session is gone, in the one that is made in its place.
    pub(crate) fn ask<R: Request>(&self, make: impl Fn(Head) -> R, want: Want) -> Asked<R::Answer> {
        self.ask_surely(make, want).0
    }

    /// The same, and whether it is over: an operation without an answer may be carried out later.
    pub(crate) fn ask_surely<R: Request>(
        &self,
        make: impl Fn(Head) -> R,
        want: Want,
    ) -> (Asked<R::Answer>, bool) {
        let mut sure = true;
        (self.ask_or(make, want, &mut sure), sure)
    }

    fn ask_or<R: Request>(&self, make: impl Fn(Head) -> R, want: Want, sure: &mut bool) -> Asked<R::Answer> {
        for _ in 0..RECOVERIES_MAX {
            let session = self.session();
            let operation =
                if want.operation { Some(session.begin(Instant::now() + want.longest)?) } else { None };
            let head = operation.as_ref().map_or_else(|| session.head(), |one| one.head());
            let (sent, mut entered) = (Instant::now(), Vec::new());
            match self.ask_owner(&make, &want, (&session, head), &mut entered) {
                Ok((answered, _)) => {
                    self.kept.lock().heard(sent, Instant::now());
                    return understand::<R>(answered);
                }
                Err((Stop::Fault { fault, again }, lost)) if Reason::of(&fault) == Reason::SessionGone => {
                    drop(operation);
                    self.recover(&session, lost)?;
                    if again && want.operation && !want.anew {
                        let request = trace::current();
                        tracing::warn!(%request, method = R::METHOD.name(), "not known whether it was carried out");
                        return Err(Errno::EIO);
                    }
                }
                // It was not done, so it gets another number.
                Err((Stop::Fault { fault, again: _ }, _))
                    if is_elsewhere(&fault, &entered)
                        && self.learn_spread(make(head), Reason::of(&fault) == Reason::Spread, &entered) => {}
                Err((stop, _)) => {
                    *sure = matches!(stop, Stop::Fault { again: false, .. });
                    if let Stop::Silent(why) = &stop {
                        let request = trace::current();
                        tracing::warn!(%request, method = R::METHOD.name(), why, "no answer");
                    }
                    return Err(stop.errno());
                }
            }
        }
        Err(Errno::EIO)
    }

    /// Asks whoever has the slot, wherever that goes meanwhile. Says who answered.
    pub(crate) fn ask_owner<R: Request>(
        &self,
        make: impl Fn(Head) -> R,
        want: &Want,
        (session, head): (&Session, Head),
        entered: &mut Vec<u64>,
    ) -> Result<(Answered, Source), (Stop, Source)> {
        let mut make = |head| {
            let mut request = make(head);
            *entered = self.spreads.enter(&mut request);
            request
        };
        let waits = Waits { patience: self.options.patience, longest: want.longest };
        let (mut pause, end) = (FIRST_PAUSE, Instant::now() + self.options.patience);
        let mut before = false;
        loop {
            let mut request = make(head);
            if let Err(bad) = request.check() {
                let fault = proto::fault::fault(bad.errno(), Retry::Never, Reason::None, bad.to_string());
                let nobody = Source { node: 0, joined: 0 };
                return Err((Stop::Fault { fault: Box::new(fault), again: false }, nobody));
            }
            let routed = self.route(&request, session, (head, None))?;
            let from = routed.source();
            if routed.head() != head {
                request = make(routed.head());
            }
            let asking = Asking {
                method: R::METHOD,
                meta: request.encode_to_vec().into(),
                body: want.body.clone(),
                answer_bytes_max: want.answer_bytes_max,
            };
            match self.ask_routed(&routed, &asking, waits) {
                Err(Stop::Fault { fault, again }) if Reason::of(&fault) == Reason::WrongOwner => {
                    before |= again;
                    let mut homes = 0;
                    request.homes(&mut |_| homes += 1);
                    // Of several some may be here and some there: who asks sorts them anew.
                    if homes != 1 || !self.redirected(&mut pause, end) {
                        return Err((Stop::Fault { fault, again: before }, from));
                    }
                }
                Err(Stop::Fault { fault, again }) => {
                    return Err((Stop::Fault { fault, again: again || before }, from));
                }
                Ok(answered) => return Ok((answered, from)),
                Err(stop) => return Err((stop, from)),
            }
        }
    }

    /// On the lane that nothing large goes over.
    pub(crate) fn ask_control<R: Request>(
        &self,
        request: &R,
        patience: Duration,
    ) -> Result<(R::Answer, Vec<u8>), Stop> {
        ask_at(&self.control, request, patience)
    }

    pub(crate) fn set_renew(&self, renew_ms: u32) {
        *self.renew.write() = Duration::from_millis(renew_ms.clamp(100, 60_000).into());
    }

    /// The map, if there is a newer one. False: nobody said.
    pub(crate) fn fetch_map(&self) -> bool {
        let since = control::MapSince { epoch: self.nodes.epoch() };
        match self.ask_control(&since, self.options.patience.min(END_PATIENCE)) {
            Ok((_, body)) => body.is_empty() || self.nodes.take(&body).is_ok(),
            Err(stop) => {
                tracing::debug!(errno = %stop.errno(), "the cluster map was not fetched");
                false
            }
        }
    }

    /// One look of the keeper.
    fn tick(&self, renewed: &mut Instant) {
        self.give_back();
        self.pay_locks();
        // Copied: making a session in place of a lost one sets it.
        let every = *self.renew.read();
        let every = self.kept.lock().renew_every().map_or(every, |kept| kept.min(every));
        let node = self.own_node();
        let is_told = self.told_node.load(Ordering::Relaxed) == node;
        // One that has come, or is no more, is told at once; if that fails, as often as all else.
        if renewed.elapsed() < if is_told { every } else { every.min(TELL) } {
            return;
        }
        *renewed = Instant::now();
        let session = self.session();
        self.renew_homes(&session, every);
        let session = self.session();
        let renew = control::Renew { head: Some(session.head()), node: Some(node) };
        let (sent, renewed) = (Instant::now(), self.ask_control(&renew, every));
        if renewed.is_ok() {
            self.told_node.store(node, Ordering::Relaxed);
            self.kept.lock().heard(sent, Instant::now());
        }
        match renewed {
            Ok((answer, _)) if answer.map_epoch != self.nodes.epoch() => {
                self.fetch_map();
            }
            Ok(_) => {}
            Err(Stop::Fault { fault, .. }) if Reason::of(&fault) == Reason::SessionGone => {
                let here = Source { node: 0, joined: session.joined };
                if let Err(error) = self.recover(&session, here) {
                    tracing::warn!(%error, "no session in place of the lost one yet");
                }
            }
            Err(Stop::Fault { fault, .. }) => {
                tracing::warn!(detail = fault.detail, "the session was not renewed")
            }
            Err(Stop::Silent(why)) => tracing::debug!(why, "the session was not renewed"),
        }
    }
}

/// Of several metadata servers the one that makes the map, and where it is; else 0 and those that were named.
fn find_duty(
    options: &RemoteOptions,
    common: &Common,
    nodes: &Nodes,
) -> Result<(u64, Vec<Address>), StartError> {
    let line = Line::new(&options.servers, Wish { lane: Lane::Control, node: None }, common);
    let hello = Asking {
        method: control::Hello::METHOD,
        meta: control::Hello {}.encode_to_vec().into(),
        body: Body::default(),
        answer_bytes_max: 4 << 20,
    };
    let waits = Waits { patience: options.patience, longest: options.patience };
    let answered = line.ask(&hello, waits).map_err(|stop| match stop {
        Stop::Silent(why) => StartError::Away(why),
        Stop::Fault { fault, .. } => StartError::Refused(fault.detail),
    })?;
    nodes.take(&answered.body).map_err(|errno| StartError::Refused(format!("the cluster map: {errno}")))?;
    let Some(owner) = nodes.owner_of(types::Ino::ROOT.get()) else { return Ok((0, options.servers.clone())) };
    let addresses = owner.addresses.iter().filter_map(|text| text.parse().ok()).collect();
    Ok((owner.node, addresses))
}

/// The directory that it is about is spread, or a part of it that was asked is none any more.
fn is_elsewhere(fault: &Fault, entered: &[u64]) -> bool {
    Reason::of(fault) == Reason::Spread || (fault.errno == Errno::ESTALE.raw() && !entered.is_empty())
}

fn keep(remote: &Weak<Remote>) {
    let mut renewed = Instant::now();
    loop {
        let Some(remote) = remote.upgrade() else { return };
        {
            let mut stopping = remote.stopping.lock();
            if !*stopping {
                let _ = remote.stopped.wait_for(&mut stopping, TICK);
            }
            if *stopping {
                return;
            }
        }
        remote.tick(&mut renewed);
    }
}

fn understand<R: Request>(answered: Answered) -> Asked<R::Answer> {
    match R::Answer::decode(answered.meta.as_slice()) {
        Ok(answer) => Ok((answer, answered.body)),
        Err(error) => {
            tracing::error!(method = R::METHOD.name(), %error, "an answer that cannot be read");
            Err(Errno::EIO)
        }
    }
}
