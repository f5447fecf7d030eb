//! The mount itself: its session, how it asks, and the thread that keeps it.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use net::{
    Answered,
    trace::{self, Traces},
};
use parking_lot::{Condvar, Mutex, RwLock};
use prost::Message;
use proto::{Head, Reason, Request, SessionId, control, meter::Meter};
use types::{Attr, Errno};
use wire::frame::Body;
use wire::schema::Fault;

use crate::{
    backlog::Backlog,
    cache::Caching,
    closes::Closes,
    droppers::Dropping,
    finding::find_duty,
    held::Source,
    homes::{Home, Homes},
    inherited::Succession,
    kept::Kept,
    line::{Common, Line, Stop, Waits},
    members::Doubts,
    nodes::Nodes,
    openings::Openings,
    options::RemoteOptions,
    pool::Pool,
    pruning::Pruning,
    references::References,
    session::Session,
    spreads::Spreads,
    through::Through,
    waiting::Waiting,
    written,
};

/// A look at what is to be given back and renewed.
const TICK: Duration = Duration::from_millis(100);
/// Questions about members at a time: one answer is of use to all who ask the same file.
const LOOKS: usize = 2;
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

impl From<Stop> for StartError {
    fn from(stop: Stop) -> StartError {
        match stop {
            Stop::Silent { why, .. } => StartError::Away(why),
            Stop::Fault { fault, .. } => StartError::Refused(why(&fault)),
        }
    }
}

fn why(fault: &wire::schema::Fault) -> String {
    let errno = Errno::from_raw(fault.errno);
    if errno == Errno::ENOSYS {
        "there is no metadata server".to_owned()
    } else if fault.detail.is_empty() {
        errno.to_string()
    } else {
        fault.detail.clone()
    }
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
/// And whose it is.
pub(crate) type AskedOf<A> = Result<(A, Vec<u8>, Source), Errno>;

pub struct Remote {
    pub(crate) this: Weak<Remote>,
    pub(crate) options: RemoteOptions,
    pub(crate) nodes: Nodes,
    /// There are several metadata servers.
    pub(crate) several: bool,
    /// The one that makes the map, or the only one.
    pub(crate) on_duty: RwLock<Arc<Home>>,
    pub(crate) homes: Homes,
    /// Lines to each that was named at the start.
    pub(crate) seeds: Vec<Line>,
    /// One at a time fetches the map; since when it was.
    pub(crate) fetching: Mutex<Option<Instant>>,
    pub(crate) spreads: Spreads,
    pub(crate) references: References,
    pub(crate) kept: Mutex<Kept>,
    pub(crate) caching: Caching,
    /// The server knows nothing of bytes that are kept.
    pub(crate) keeps_none: AtomicBool,
    pub(crate) backlog: Backlog,
    pub(crate) dropping: Arc<Dropping>,
    pub(crate) pruning: Arc<Pruning>,
    pub(crate) openings: Openings,
    pub(crate) closes: Arc<Closes>,
    closer: Mutex<Option<JoinHandle<()>>>,
    pub(crate) pool: Pool,
    pub(crate) data_pool: Pool,
    /// For looks at who has a stripe, which nobody waits for.
    pub(crate) looks: Pool,
    /// By opening and stripe.
    pub(crate) looks_under_way: Mutex<BTreeSet<(u64, usize)>>,
    pub(crate) doubts: Mutex<Doubts>,
    pub(crate) locks: Mutex<Waiting>,
    pub(crate) succession: Succession,
    pub(crate) session: RwLock<Arc<Session>>,
    /// One alone makes a session in place of a lost one; others have it come back to some servers, or say there what it has.
    pub(crate) replacing: RwLock<()>,
    /// Sessions that were made in place of others.
    pub(crate) recoveries: AtomicU64,
    renew: RwLock<Duration>,
    /// The own node, as the metadata server was told.
    pub(crate) told_node: AtomicU64,
    pub(crate) stopping: Mutex<bool>,
    stopped: Condvar,
    keepers: Mutex<Vec<JoinHandle<()>>>,
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
        let instance = options.estate.as_deref().map_or_else(net::Instance::random, written::instance);
        let nodes = Nodes::new(common.clone(), options.sockets.clone(), instance);
        let homes = Homes::new(common.clone());
        let found = find_duty(&options, &common, &nodes, &homes)?;
        let pool = Pool::start("remote", options.workers)?;
        let data_pool = Pool::start("remote-data", options.data_workers)?;
        let looks = Pool::start("remote-looks", LOOKS)?;
        let remote = Arc::new_cyclic(|this| Remote {
            this: this.clone(),
            nodes,
            several: found.several,
            on_duty: RwLock::new(found.on_duty),
            homes,
            seeds: found.seeds,
            fetching: Mutex::default(),
            spreads: Spreads::default(),
            references: References::default(),
            kept: Mutex::default(),
            caching: Caching::new(options.cache, options.read_ahead),
            keeps_none: AtomicBool::new(false),
            backlog: Backlog::new(options.write_back),
            dropping: Arc::default(),
            pruning: Arc::default(),
            openings: Openings::default(),
            closes: Arc::default(),
            closer: Mutex::default(),
            pool,
            data_pool,
            looks,
            looks_under_way: Mutex::default(),
            doubts: Mutex::default(),
            locks: Mutex::default(),
            succession: Succession::default(),
            session: RwLock::new(Arc::new(Session::new((SessionId(0), 0), 0, 0, 1))),
            replacing: RwLock::default(),
            recoveries: AtomicU64::new(0),
            renew: RwLock::new(Duration::from_secs(5)),
            told_node: AtomicU64::new(0),
            stopping: Mutex::default(),
            stopped: Condvar::new(),
            keepers: Mutex::default(),
            through: Through::default(),
            meter,
            traces: Traces::new(options.credentials.me.node),
            options,
        });
        remote.take_over_records();
        if let Err(stop) = remote.fetch_facts().and_then(|life| remote.first_session(life)) {
            remote.pool.shutdown();
            remote.data_pool.shutdown();
            remote.looks.shutdown();
            return Err(stop.into());
        }
        remote.begin_to_keep("remote-keep", keep)?;
        remote.begin_renewing()?;
        remote.begin_keeping_back()?;
        remote.begin_closing()?;
        Ok(remote)
    }

    fn first_session(&self, life: u32) -> Result<(), Stop> {
        let written =
            self.options.estate.as_deref().filter(|_| self.options.resumes).and_then(written::session);
        let session = match written {
            Some((id, serial)) => self.resume_session(id, serial, life)?,
            None => {
                let (session, at) = self.new_session(life)?;
                let none = self.locks.lock().begin_anew(at);
                debug_assert!(none.is_empty());
                self.write_down_session(&session, false);
                session
            }
        };
        *self.session.write() = session;
        Ok(())
    }

    fn begin_closing(&self) -> Result<(), StartError> {
        let (remote, closes) = (self.this.clone(), self.closes.clone());
        let closer = std::thread::Builder::new()
            .name("remote-closes".into())
            .spawn(move || Remote::send_closes(&remote, &closes))?;
        *self.closer.lock() = Some(closer);
        Ok(())
    }

    pub(crate) fn begin_to_keep(
        self: &Arc<Self>,
        name: &str,
        keep: fn(&Weak<Remote>),
    ) -> Result<(), std::io::Error> {
        let remote = Arc::downgrade(self);
        let keeper = std::thread::Builder::new().name(name.into()).spawn(move || keep(&remote))?;
        self.keepers.lock().push(keeper);
        Ok(())
    }

    /// The root directory, as the metadata server has it.
    pub fn root(&self) -> Result<Attr, Errno> {
        self.getattr(types::Ino::ROOT)
    }

    /// Closes what is open, gives everything back and ends the session. What was answered is the servers'.
    pub fn shutdown(&self) {
        *self.stopping.lock() = true;
        self.stopped.notify_all();
        for keeper in std::mem::take(&mut *self.keepers.lock()) {
            if keeper.thread().id() != std::thread::current().id() && keeper.join().is_err() {
                tracing::error!("a thread that keeps the session ended with a panic");
            }
        }
        self.end_keeping_back(END_PATIENCE);
        self.end_locks();
        self.dropping.end();
        self.pool.shutdown();
        self.data_pool.shutdown();
        self.looks.shutdown();
        let end = Instant::now() + END_PATIENCE;
        for file in self.openings.all() {
            if Instant::now() < end {
                self.close(file.number);
            }
        }
        self.end_closes();
        let session = self.session();
        if self.has_homes() {
            return self.leave_homes(&session);
        }
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
        Waits::of(self.options.patience, self.options.longest)
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
        let (answer, sure) = self.ask_whom(make, want);
        (answer.map(|(answer, body, _)| (answer, body)), sure)
    }

    /// The same, and who answered.
    pub(crate) fn ask_whom<R: Request>(
        &self,
        make: impl Fn(Head) -> R,
        want: Want,
    ) -> (AskedOf<R::Answer>, bool) {
        let mut sure = true;
        (self.ask_or(make, want, &mut sure), sure)
    }

    /// As [`Remote::look`], and who answered.
    pub(crate) fn look_and_where<R: Request>(
        &self,
        make: impl Fn(Head) -> R,
    ) -> Result<(R::Answer, Source), Errno> {
        self.ask_whom(make, self.want(false)).0.map(|(answer, _, from)| (answer, from))
    }

    fn ask_or<R: Request>(
        &self,
        make: impl Fn(Head) -> R,
        want: Want,
        sure: &mut bool,
    ) -> AskedOf<R::Answer> {
        for _ in 0..RECOVERIES_MAX {
            let session = self.session();
            let operation = match want.operation {
                true => Some(session.begin((R::METHOD, want.anew), Instant::now() + want.longest)?),
                false => None,
            };
            let head = operation.as_ref().map_or_else(|| session.head(), |one| one.head());
            let (sent, mut entered) = (Instant::now(), Vec::new());
            match self.ask_owner(&make, &want, (&session, head, None), &mut entered) {
                Ok((answered, from)) => {
                    self.kept.lock().heard(from, sent, Instant::now());
                    return understand::<R>(answered).map(|(answer, body)| (answer, body, from));
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
                    if let Stop::Silent { why, .. } = &stop {
                        let request = trace::current();
                        tracing::warn!(%request, method = R::METHOD.name(), why, "no answer");
                    }
                    return Err(stop.errno());
                }
            }
        }
        Err(Errno::EIO)
    }

    pub(crate) fn set_renew(&self, renew_ms: u32) {
        *self.renew.write() = Duration::from_millis(renew_ms.clamp(100, 60_000).into());
    }

    pub(crate) fn renew_every(&self) -> Duration {
        // Copied: making a session in place of a lost one sets it.
        let every = *self.renew.read();
        self.kept.lock().renew_every(self.backlog.has_rights()).map_or(every, |kept| kept.min(every))
    }

    /// Between two looks of who keeps the session. True: the mount ends.
    pub(crate) fn pause(&self) -> bool {
        let mut stopping = self.stopping.lock();
        if !*stopping {
            let _ = self.stopped.wait_for(&mut stopping, TICK);
        }
        *stopping
    }
}

/// The directory that it is about is spread, or a part of it that was asked is none any more.
fn is_elsewhere(fault: &Fault, entered: &[u64]) -> bool {
    Reason::of(fault) == Reason::Spread || (fault.errno == Errno::ESTALE.raw() && !entered.is_empty())
}

fn keep(remote: &Weak<Remote>) {
    loop {
        let Some(remote) = remote.upgrade() else { return };
        if remote.pause() {
            return;
        }
        remote.give_back();
        remote.pay_locks();
        remote.bound_references();
    }
}

fn understand<R: Request>(answered: Answered) -> Asked<R::Answer> {
    match R::Answer::decode(answered.meta.as_slice()) {
        Ok(answer) => Ok((answer, answered.body.into_vec())),
        Err(error) => {
            tracing::error!(method = R::METHOD.name(), %error, "an answer that cannot be read");
            Err(Errno::EIO)
        }
    }
}
