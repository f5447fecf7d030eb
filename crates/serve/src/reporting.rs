//! What a data server says of itself to the metadata server, again and again: its silence is a sign as well.

use std::{
    io,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use net::{Call, Client};
use parking_lot::{Condvar, Mutex};
use prost::Message;
use proto::{
    Reason, Request,
    control::{NodeReport, NodeReported},
};
use wire::frame::Verdict;

use crate::DataService;

/// Until the metadata server says otherwise.
const PERIOD: Duration = Duration::from_secs(2);
/// However often it is told to.
const PERIOD_MIN: Duration = Duration::from_millis(10);

/// Since when the metadata server takes no report, and why.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub since: Instant,
    pub why: String,
    /// The node's number is another's.
    pub refused: bool,
}

/// Gets the epoch of the map of who took it, and whom to ask for that.
pub(crate) type Taken = Box<dyn Fn(u64, &Client) + Send>;

/// Ends with its thread when it is dropped.
pub struct Reporter {
    ended: Arc<(Mutex<bool>, Condvar)>,
    trouble: Arc<Mutex<Option<Trouble>>>,
    thread: Option<JoinHandle<()>>,
}

impl Reporter {
    /// `about` says who reports; the numbers are the service's. The first report goes out at once.
    pub fn start(service: Arc<DataService>, to: Client, about: NodeReport) -> io::Result<Reporter> {
        Reporter::telling(service, to, about, Box::new(|_, _| ()))
    }

    /// The same, and `taken` is called after each report that was taken.
    pub(crate) fn telling(
        service: Arc<DataService>,
        to: Client,
        mut about: NodeReport,
        taken: Taken,
    ) -> io::Result<Reporter> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        about.incarnation = u64::from_le_bytes(random);
        let ended: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let trouble: Arc<Mutex<Option<Trouble>>> = Arc::default();
        let (own, said) = (ended.clone(), trouble.clone());
        let nudged = Arc::downgrade(&ended);
        service.on_pressure(Box::new(move || {
            // One that reports just now does so again after its period.
            if let Some(ended) = nudged.upgrade() {
                ended.1.notify_all();
            }
        }));
        let thread = std::thread::Builder::new().name("data-report".into());
        let thread = thread.spawn(move || run((&own, &said), &service, (&to, taken), about))?;
        Ok(Reporter { ended, trouble, thread: Some(thread) })
    }

    /// `None`: the last report was taken.
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble.lock().clone()
    }

    /// It ends, and nobody waits for that yet.
    pub(crate) fn end(&self) {
        *self.ended.0.lock() = true;
        self.ended.1.notify_all();
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that reports ended with a panic");
        }
    }
}

type Said<'a> = (&'a (Mutex<bool>, Condvar), &'a Mutex<Option<Trouble>>);

fn run(
    (ended, trouble): Said<'_>,
    service: &DataService,
    (to, taken): (&Client, Taken),
    mut about: NodeReport,
) {
    let mut over = ended.0.lock();
    let (mut server, mut refused) = (0, false);
    while !*over {
        let mut again = PERIOD;
        parking_lot::MutexGuard::unlocked(&mut over, || {
            service.report(&mut about, server);
            let sent = Instant::now();
            match report(to, &about) {
                Ok(reported) => {
                    server = reported.server;
                    service.told(&reported);
                    again = Duration::from_millis(reported.again_ms.into()).clamp(PERIOD_MIN, PERIOD);
                    // Somebody waits to hear that this was taken.
                    if service.reported(sent, &reported) {
                        again = PERIOD_MIN;
                    }
                    service.vouched(false, std::mem::take(&mut refused));
                    *trouble.lock() = None;
                    taken(reported.map_epoch, to);
                }
                Err(NotTaken { why, other_state }) => {
                    // One that does not answer says nothing new.
                    if let Some(other) = other_state {
                        service.vouched(other, std::mem::replace(&mut refused, other));
                    }
                    let mut trouble = trouble.lock();
                    // Once is enough.
                    if trouble.as_ref().is_none_or(|before| other_state == Some(true) && before.why != why) {
                        tracing::warn!(%why, "the metadata server does not take this node's report");
                    }
                    let since = trouble.as_ref().map_or_else(Instant::now, |before| before.since);
                    *trouble = Some(Trouble { since, why, refused });
                }
            }
        });
        if !*over {
            ended.1.wait_for(&mut over, again);
        }
    }
    service.vouched(false, refused);
}

struct NotTaken {
    why: String,
    /// Whether it says that the node's number is another's. `None`: it says nothing.
    other_state: Option<bool>,
}

fn report(to: &Client, about: &NodeReport) -> Result<NodeReported, NotTaken> {
    let silent = |why: String| NotTaken { why, other_state: None };
    let deadline = Instant::now() + PERIOD;
    let call = Call::new(NodeReport::METHOD.number(), about.encode_to_vec(), deadline);
    let answered = to.call(call).map_err(|error| silent(error.to_string()))?;
    match answered.header.verdict {
        Verdict::Done => NodeReported::decode(&answered.meta[..]).map_err(|error| silent(error.to_string())),
        Verdict::Fault => {
            let fault = proto::fault::read(&answered.meta);
            let other_state = Some(Reason::of(&fault) == Reason::OtherState);
            Err(NotTaken { why: fault.detail, other_state })
        }
        Verdict::Refused => Err(silent("refused".to_owned())),
    }
}
