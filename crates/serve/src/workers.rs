//! Threads that carry requests out, so that no connection's reader waits for a device, a lock or another server.
//!
//! Bounded: requests that wait, and the bytes of their bodies. Who comes beyond that is told to come later. Each is counted, and works under
//! the id of the program's request that it came for ([`net::trace`]).

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use net::{
    Incoming, Queue, Refused, Reply,
    trace::{self, Trace},
};
use parking_lot::{Condvar, Mutex, RwLock};
use proto::{
    Method,
    meter::{Class, Ended, Meter},
    watch::Load,
};
use types::Errno;

use crate::{
    answer::{No, Outcome, answered},
    crowd::{Crowd, Share},
    failures::Failures,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub threads: usize,
    /// So many more at most while all are held up, by a device that does not answer, say, and others' requests wait behind them.
    pub spare: usize,
    /// Requests that wait. Each connection has its window; this is for all together.
    pub waiting: usize,
    /// Of bodies, of those that wait or are carried out and of their answers.
    pub bytes: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        // Threads mostly wait, for devices and other servers. What waits is 4,096 small requests of 16 clients' windows, or
        // a second of a fast network in bytes.
        Bounds { threads: 16, spare: 0, waiting: 4096, bytes: 1 << 30 }
    }
}

/// What is done with a request: by a service, on a worker's thread.
pub trait Serve: Send + Sync + 'static {
    fn serve(&self, incoming: &mut Incoming) -> Outcome;

    /// Gives the answer: now, or when it may be known.
    fn answer(&self, owed: Owed, outcome: Outcome) {
        owed.answer(outcome);
    }
}

/// What may be done with a request on the thread that received it, which must not wait. `None`: nothing that counts was done, a worker is to do it.
pub trait Attempt {
    fn attempt(&self, incoming: &mut Incoming) -> Option<Outcome>;
}

struct Job {
    service: Arc<dyn Serve>,
    incoming: Incoming,
    reply: Reply,
    taken: Taken,
    came: Instant,
}

/// Bytes in work, given back when it is dropped.
struct Taken(Arc<AtomicU64>, u64);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::AcqRel);
    }
}

pub struct Workers {
    bytes_max: u64,
    bytes: Arc<AtomicU64>,
    team: Arc<Team>,
    meter: Arc<Meter>,
    /// Of those that need no worker.
    counts: Arc<Counts>,
    ended: RwLock<bool>,
}

/// No request was taken for so long, though some wait: all threads are held up.
const HELD_UP: Duration = Duration::from_millis(250);
/// A spare thread that found nothing to do for so long ends.
const IDLE: Duration = Duration::from_secs(10);
/// Spare threads that begin at once.
const AT_ONCE: usize = 4;

/// The threads, and what they share.
struct Team {
    name: String,
    spare: usize,
    jobs: Queue<Box<Job>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Spare threads that have not ended.
    spares: AtomicUsize,
    /// Requests that were taken by a thread.
    taken: AtomicU64,
    crowd: Crowd,
    meter: Arc<Meter>,
    failures: Arc<Failures>,
    ended: (Mutex<bool>, Condvar),
}

impl Team {
    fn begin(self: &Arc<Team>, name: String, spare: bool) -> io::Result<()> {
        let (meter, share) = (self.meter.clone(), self.crowd.share());
        let counts = Arc::new(Counts { meter, share, failures: self.failures.clone() });
        let team = self.clone();
        let take = move || if spare { team.jobs.take_within(IDLE) } else { team.jobs.take() };
        let team = self.clone();
        let work = move || {
            while let Some(job) = take() {
                team.taken.fetch_add(1, Ordering::Relaxed);
                carry_out(&counts, *job);
            }
            if spare {
                team.spares.fetch_sub(1, Ordering::AcqRel);
            }
        };
        let thread = std::thread::Builder::new().name(name).spawn(work)?;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Sees to it that who waits for nothing is not held up by those who do.
    fn watch(self: &Arc<Team>) {
        let mut before = 0;
        loop {
            let mut ended = self.ended.0.lock();
            if !*ended {
                self.ended.1.wait_for(&mut ended, HELD_UP);
            }
            if *ended {
                return;
            }
            drop(ended);
            let (taken, waiting) = (self.taken.load(Ordering::Relaxed), self.jobs.waiting());
            if waiting > 0 && taken == before {
                let free = self.spare.saturating_sub(self.spares.load(Ordering::Acquire));
                for _ in 0..waiting.min(free).min(AT_ONCE) {
                    let n = self.spares.fetch_add(1, Ordering::AcqRel);
                    if let Err(error) = self.begin(format!("{}-spare-{n}", self.name), true) {
                        self.spares.fetch_sub(1, Ordering::AcqRel);
                        tracing::warn!(%error, "no further thread can be started");
                    }
                }
            }
            before = taken;
        }
    }
}

impl Workers {
    pub fn start(name: &str, bounds: Bounds) -> io::Result<Workers> {
        let meter: Arc<Meter> = Arc::default();
        let team = Arc::new(Team {
            name: name.to_owned(),
            spare: bounds.spare,
            jobs: Queue::new(bounds.waiting),
            threads: Mutex::default(),
            spares: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            crowd: Crowd::default(),
            meter: meter.clone(),
            failures: Arc::default(),
            ended: Default::default(),
        });
        for n in 0..bounds.threads.max(1) {
            team.begin(format!("{name}-{n}"), false)?;
        }
        if bounds.spare > 0 {
            let watched = team.clone();
            let watch = std::thread::Builder::new().name(format!("{name}-watch"));
            team.threads.lock().push(watch.spawn(move || watched.watch())?);
        }
        let counts =
            Counts { meter: meter.clone(), share: team.crowd.share(), failures: team.failures.clone() };
        let (counts, ended) = (Arc::new(counts), RwLock::new(false));
        Ok(Workers { bytes_max: bounds.bytes, bytes: Arc::default(), team, meter, counts, ended })
    }

    /// What was asked, and how it ended.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Adds what each client asked for.
    pub fn add_clients(&self, sums: &mut BTreeMap<u64, Load>) {
        self.team.crowd.add_to(sums);
    }

    /// The same as [`Workers::take`], here and now if that can be.
    pub fn take_here(&self, service: Arc<impl Serve + Attempt>, mut incoming: Incoming, reply: Reply) {
        let came = Instant::now();
        let ended = self.ended.read();
        let carried = {
            let _request = trace::enter(Trace(incoming.header.trace));
            let is_wanted = !*ended && !incoming.is_superseded() && came < incoming.deadline;
            is_wanted.then(|| service.attempt(&mut incoming)).flatten()
        };
        let Some(outcome) = carried else {
            drop(ended);
            return self.take(service, incoming, reply);
        };
        self.meter.begin();
        let received = (incoming.meta.len() + incoming.body().len()) as u64;
        let taken = Taken(self.bytes.clone(), 0);
        let owed = Owed { counts: self.counts.clone(), incoming, reply, _taken: taken, came, received };
        service.answer(owed, outcome);
    }

    /// Has a request carried out and answered, now or never.
    pub fn take(&self, service: Arc<dyn Serve>, incoming: Incoming, reply: Reply) {
        let bytes = incoming.body().len() as u64 + u64::from(incoming.header.answer_bytes_max);
        let before = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        let taken = Taken(self.bytes.clone(), bytes);
        self.meter.begin();
        // One that is alone is taken however long it is.
        if before > 0 && before.saturating_add(bytes) > self.bytes_max {
            return self.refuse(reply, "as many bytes in work as it takes");
        }
        let job = Box::new(Job { service, incoming, reply, taken, came: Instant::now() });
        match self.team.jobs.put(job) {
            Ok(()) => (),
            Err(Refused::Full(job)) => self.refuse(job.reply, "as many requests in work as it takes"),
            // The reply says that it was dropped.
            Err(Refused::Closed(_)) => self.meter.refuse(),
        }
    }

    fn refuse(&self, reply: Reply, why: &str) {
        self.meter.refuse();
        answered(reply, Err(No::later(why)));
    }

    /// Takes no more, and ends when what was taken is done.
    pub fn shutdown(&self) {
        *self.ended.write() = true;
        self.team.jobs.close();
        *self.team.ended.0.lock() = true;
        self.team.ended.1.notify_all();
        for thread in std::mem::take(&mut *self.team.threads.lock()) {
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a worker ended with a panic");
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// What a worker counts with.
#[derive(Default)]
struct Counts {
    meter: Arc<Meter>,
    share: Arc<Share>,
    /// Of all workers.
    failures: Arc<Failures>,
}

fn carry_out(counts: &Arc<Counts>, job: Job) {
    let Job { service, mut incoming, reply, taken, came } = job;
    let _request = trace::enter(Trace(incoming.header.trace));
    // The service may take it away.
    let received = (incoming.meta.len() + incoming.body().len()) as u64;
    let outcome = if incoming.is_superseded() {
        // It may have been asked again already, and more after it.
        Err(No::later("a newer connection is in its connection's place"))
    } else if Instant::now() >= incoming.deadline {
        // Nobody waits, and nothing was begun.
        Err(No::later("its time was over before it was begun"))
    } else {
        service.serve(&mut incoming)
    };
    let owed = Owed { counts: counts.clone(), incoming, reply, _taken: taken, came, received };
    service.answer(owed, outcome);
}

/// The answer of a request that was carried out, to be given by any thread.
pub struct Owed {
    counts: Arc<Counts>,
    incoming: Incoming,
    reply: Reply,
    _taken: Taken,
    came: Instant,
    received: u64,
}

impl Owed {
    pub fn incoming(&self) -> &Incoming {
        &self.incoming
    }

    pub fn answer(self, outcome: Outcome) {
        let _request = trace::enter(Trace(self.incoming.header.trace));
        self.counts.count(&self.incoming, (self.came, self.received), &outcome);
        answered(self.reply, outcome);
    }
}

/// Requests that are carried out where they come in, on the reader thread of their connection: in their order, and before anything else of it is
/// read. For what waits for nothing.
#[derive(Default)]
pub struct AtOnce {
    counts: Arc<Counts>,
    bytes: Arc<AtomicU64>,
    ended: RwLock<bool>,
}

impl AtOnce {
    pub fn take(&self, service: Arc<dyn Serve>, incoming: Incoming, reply: Reply) {
        let ended = self.ended.read();
        self.counts.meter.begin();
        if *ended {
            // The reply says that it was dropped.
            return self.counts.meter.refuse();
        }
        let taken = Taken(self.bytes.clone(), 0);
        carry_out(&self.counts, Job { service, incoming, reply, taken, came: Instant::now() });
    }

    /// Takes no more; what was taken is done.
    pub fn shutdown(&self) {
        *self.ended.write() = true;
    }
}

impl Counts {
    /// Before it is answered: who has his answer finds it counted.
    fn count(&self, incoming: &Incoming, (came, received): (Instant, u64), outcome: &Outcome) {
        let now = Instant::now();
        let ended = Ended {
            error: outcome.as_ref().err().map(No::errno),
            took: now.saturating_duration_since(came),
            received,
            sent: outcome.as_ref().map_or(0, |done| (done.meta.len() + done.body.len()) as u64),
        };
        let (method, client) = (Method::from_number(incoming.header.method), incoming.peer().node);
        self.meter.end(method, &ended);
        self.share.count(client, &ended.load(), now);
        self.say(method, client, &ended, outcome);
    }

    /// What failed here is said in any case, everything else to who wants to follow requests.
    fn say(&self, method: Option<Method>, client: u64, ended: &Ended, outcome: &Outcome) {
        let request = trace::current();
        let method = method.map_or("unknown", Method::name);
        let micros = ended.took.as_micros() as u64;
        // As onfs top has it.
        let client = format_args!("{client:016x}");
        if let Err(no) = outcome
            && Class::of(no.errno()) == Class::Failed
            && let Some(left_out) = self.failures.may_say()
        {
            let (errno, why) = (no.errno(), &no.0.detail);
            tracing::warn!(%request, method, %client, micros, %errno, why, left_out, "a request failed");
            return;
        }
        let errno = ended.error.map_or("none", Errno::name);
        let (received, sent) = (ended.received, ended.sent);
        tracing::debug!(%request, method, %client, micros, received, sent, errno, "a request was answered");
    }
}
