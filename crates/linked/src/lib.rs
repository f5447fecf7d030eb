//! Linked near-line: a directory of the site's file system and our namespace, kept in step.
//!
//! The shell around `link`, which decides. Programs come by ([`Linked::visit_dir`], [`Linked::visit`]): what they changed
//! there since the last look is taken over. The metadata server tells of each change of ours (`recorder`), and threads make the
//! steps that follow from it (`runner`, `steps`, `publish`). The data server asks for their files and to have ours published
//! (`serve`). The records are in `records`, what is pending and its lock in `pending`.
//!
//! Refuses to know: FUSE, and how a back end does what it does.

mod accept;
mod agree;
mod ahead;
mod conflicts;
mod counters;
mod done;
mod gather;
mod keeping;
mod kept;
mod look;
mod looks;
mod own;
mod pending;
mod publish;
mod recorder;
mod records;
mod root;
mod runner;
mod serve;
mod settings;
mod status;
mod steps;
mod survey;
mod unheld;
mod waiting;
mod walk;
mod ways;

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crossbeam_channel::{Receiver, Sender, bounded};
use ds::DataServer;
use link::BackEnd;
use mds::Mds;
use parking_lot::Mutex;
use types::{Errno, Ino, Timestamp};

pub use accept::{Accepted, NotAccepted, Roots};
pub use root::Trouble;
pub use settings::Settings;
pub use status::Status;
pub use waiting::Waiting;

use counters::Counters;
use pending::{Ledger, Pending};
use records::Committed;

/// Directories that are waiting to be visited because a step met something there. More are found by the next who comes by.
const TO_VISIT: usize = 1024;
/// Between two visits of one directory.
const VISIT_PAUSE: Duration = Duration::from_millis(50);
/// What waits for a look is looked at again after this time: the look failed, or there was no room for it in the line.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// What looks changed that a kernel may have cached.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct News {
    /// Names that mean something else now, with their directories.
    pub names: Vec<(Ino, Vec<u8>)>,
    /// Inodes with other attributes.
    pub inodes: Vec<Ino>,
    /// Inodes with other bytes.
    pub pages: Vec<Ino>,
}

/// Who uses files and has a kernel to tell.
pub trait Host: Send + Sync {
    /// Called by whoever made a look, so it must not wait for a request.
    fn hear(&self, news: News);

    /// Takes a regular file into use, so that what is known of its object is true meanwhile.
    fn hold(&self, ino: Ino) -> Result<Box<dyn Held>, Errno>;
}

/// A file that is in use as long as this lives.
pub trait Held: Send {
    fn object(&self) -> &Arc<ds::Object>;
}

/// See the crate's documentation.
pub struct Linked {
    me: Weak<Linked>,
    pub(crate) settings: Settings,
    pub(crate) back: Arc<dyn BackEnd>,
    pub(crate) ledger: Ledger,
    data: OnceLock<Weak<DataServer>>,
    host: OnceLock<Box<dyn Host>>,
    pub(crate) looks: looks::Looks,
    pub(crate) kept: kept::Kept,
    pub(crate) walks: walk::Walks,
    pub(crate) traversals: Mutex<ahead::Traversals>,
    pub(crate) root: Mutex<root::RootState>,
    pub(crate) conflicts_made: AtomicU64,
    pub(crate) unnamed_conflicts: Mutex<conflicts::Unnamed>,
    pub(crate) counters: Counters,
    pub(crate) space: status::Space,
    pub(crate) to_visit: Sender<Ino>,
    visits: Receiver<Ino>,
    pub(crate) to_keep: Sender<Ino>,
    keeping: Receiver<Ino>,
    call: Sender<()>,
    pub(crate) called: Receiver<()>,
    stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Linked {
    /// Reads what is pending, and is told of changes from now on. Nothing is applied before [`Linked::start`].
    pub fn open(settings: Settings, back: Arc<dyn BackEnd>, mds: Arc<Mds>) -> Result<Arc<Linked>, Errno> {
        let works = records::works(&Committed(&mds)).map_err(|error| records::errno(error.into()))?;
        let known = records::conflicts(&Committed(&mds)).map_err(|error| records::errno(error.into()))?;
        let pending = Pending::load(settings.log(), works, now()).map_err(|clash| {
            tracing::error!(%clash, "what is pending for the linked directory cannot be");
            Errno::EIO
        })?;
        let (to_visit, visits) = bounded(TO_VISIT);
        let (to_keep, keeping) = bounded(keeping::LINE_MAX);
        // One call stands for any number.
        let (call, called) = bounded(1);
        let linked = Arc::new_cyclic(|me| Linked {
            me: me.clone(),
            settings,
            back,
            ledger: Ledger::new(mds, pending),
            data: OnceLock::new(),
            host: OnceLock::new(),
            looks: looks::Looks::default(),
            kept: kept::Kept::default(),
            walks: walk::Walks::default(),
            traversals: Mutex::default(),
            root: Mutex::default(),
            conflicts_made: AtomicU64::new(known.last().map_or(1, |(number, _)| number + 1)),
            unnamed_conflicts: Mutex::new(conflicts::unnamed(&known)),
            counters: Counters::default(),
            space: status::Space::default(),
            to_visit,
            visits,
            to_keep,
            keeping,
            call,
            called,
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        });
        linked.load_root()?;
        let recorder: Arc<dyn mds::Recorder> = linked.clone();
        linked.ledger.mds.set_recorder(&recorder)?;
        Ok(linked)
    }

    /// From now on what is pending is applied. Once.
    pub fn start(&self, ds: &Arc<DataServer>, host: Box<dyn Host>) -> Result<(), Errno> {
        let me = self.me.upgrade().ok_or(Errno::EIO)?;
        let first = self.data.set(Arc::downgrade(ds)).is_ok() && self.host.set(host).is_ok();
        if !first {
            return Err(Errno::EBUSY);
        }
        me.run()?;
        let visitor = me.clone();
        self.spawn("link-look".to_owned(), move || visitor.run_visits())?;
        for number in 0..walk::THREADS {
            let walker = me.clone();
            self.spawn(format!("link-walk-{number}"), move || walker.run_walks())?;
        }
        let keeper = me.clone();
        self.spawn("link-keep".to_owned(), move || keeper.run_keeping(&keeper.keeping))?;
        Ok(())
    }

    /// Ends the threads. What is pending stays so.
    pub fn shutdown(&self) {
        self.stopping.store(true, Ordering::Release);
        self.call();
        // Wakes who waits for one; whoever finds the line full need not be woken.
        let _ = self.to_visit.try_send(Ino::ROOT);
        let _ = self.to_keep.try_send(Ino::ROOT);
        self.walks.stop();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }

    fn run_visits(&self) {
        let (mut last, mut again) = (None, Instant::now() + LOOK_AGAIN);
        while !self.is_stopping() {
            let Ok(dir) = self.visits.recv_timeout(Duration::from_millis(200)) else {
                if Instant::now() >= again {
                    self.look_at_waiting();
                    again = Instant::now() + LOOK_AGAIN;
                }
                continue;
            };
            // What no look settles is not looked at as fast as can be.
            if last.replace(dir) == Some(dir) {
                std::thread::sleep(VISIT_PAUSE);
            }
            if !self.is_stopping()
                && let Err(errno) = self.visit_dir(dir)
            {
                tracing::debug!(%dir, %errno, "a directory could not be looked at");
            }
        }
    }

    /// A change of an inode that is not in the log yet waits until there is room.
    pub(crate) fn wait_for_room(&self, ino: Option<Ino>) -> Result<(), Errno> {
        // Of one that is about to be made: no number is in the log.
        let must_wait =
            |pending: &Pending| pending.log.is_full() && ino.is_none_or(|ino| pending.log.must_wait(ino));
        if !must_wait(&self.ledger.lock()) {
            return Ok(());
        }
        self.call();
        let until = Instant::now() + self.settings.deadline;
        let mut pending = self.ledger.lock();
        while must_wait(&pending) {
            if self.ledger.turned.wait_until(&mut pending, until).timed_out() {
                tracing::warn!("too much waits for the linked directory: a change is refused");
                return Err(Errno::EAGAIN);
            }
        }
        Ok(())
    }

    pub(crate) fn ds(&self) -> Result<Arc<DataServer>, Errno> {
        self.data.get().and_then(Weak::upgrade).ok_or(Errno::EIO)
    }

    pub(crate) fn hold(&self, ino: Ino) -> Result<Box<dyn Held>, Errno> {
        self.host.get().ok_or(Errno::EIO)?.hold(ino)
    }

    pub(crate) fn spawn(&self, name: String, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name(name).spawn(run)?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Something may be to be done.
    pub(crate) fn call(&self) {
        let _ = self.call.try_send(());
    }

    pub(crate) fn tell(&self, news: News) {
        news.names.iter().for_each(|(dir, _)| self.kept.changed(*dir));
        if news != News::default()
            && let Some(host) = self.host.get()
        {
            host.hear(news);
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn now(&self) -> Timestamp {
        now()
    }
}

impl std::fmt::Debug for Linked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Linked").field("settings", &self.settings).finish_non_exhaustive()
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
}
