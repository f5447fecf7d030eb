//! The file system that the transport calls: what it is made of, its beginning and its end.

use std::{
    collections::HashMap,
    sync::{Arc, Once, OnceLock, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ds::DataServer;
use fuse::{Call, Capabilities, Filesystem, InitConfig, KernelInfo};
use handover::Estate;
use lease::Arbiter;
use mds::Mds;
use parking_lot::Mutex;
use types::{Errno, Ino, Timestamp};

use crate::{
    backing::InUse,
    handles::Handles,
    inode::{InodeRef, Inodes},
    invalidate::Invalidator,
    known::{Inventory, Known},
    lingering::Lingering,
    listener::Listener,
    messenger::Messenger,
    metrics::{ClientStats, Metrics},
    open_file::OpenFile,
    policies::{Policies, Policy},
    pool::{Pool, PoolOptions},
    purge::{BATCH, Graveyard, Purger, remove_all},
    turn::Turn,
    versions::Versions,
};

/// Two requests: one is read while the bytes of the other are used.
const READAHEAD: u32 = 2 << 20;

/// How the client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Threads for requests that must wait.
    pub workers: usize,
    /// Requests that may wait for such a thread; more run on the transport's threads.
    pub queue: usize,
    /// A request that is older is reported.
    pub deadline: Duration,
    /// How long the kernel may keep names, and the absence of names.
    pub entry_timeout: Duration,
    /// How long it may keep the attributes of what is not being written.
    pub attr_timeout: Duration,
    /// Inodes that the kernel may know; above it, it is asked to forget some that nobody uses.
    pub known_max: usize,
    /// Reads leave access times alone.
    pub no_atime: bool,
    /// Let the kernel read files in place. Needs root, too.
    pub passthrough: bool,
    /// Smaller files go through the page cache.
    pub passthrough_min_bytes: u64,
    /// Without it there is no passthrough.
    pub in_use: Option<InUse>,
    /// Bytes of each tier that passthrough may pin (`TierId::index()`).
    pub passthrough_budget: [u64; 3],
    /// Near-line is a linked directory, kept in step by this.
    pub linked: Option<Arc<linked::Linked>>,
    /// Hears what is opened.
    pub listener: Option<Arc<dyn Listener>>,
    /// What `user.onfs.control` says: the path of the socket for commands.
    pub control_socket: Option<Vec<u8>>,
    /// What outlives this process, of a guarded mount.
    pub estate: Option<Arc<Estate>>,
    /// What holds where no directory says anything; the data server's settings say the same.
    pub policy: Policy,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        // One kernel sees every change, so what it has cached stays true; a day bounds what a defect could cost.
        let long = Duration::from_secs(24 * 60 * 60);
        ClientOptions {
            workers: 8,
            queue: 256,
            deadline: Duration::from_secs(120),
            entry_timeout: long,
            attr_timeout: long,
            known_max: 1 << 20,
            no_atime: false,
            passthrough: true,
            passthrough_min_bytes: 128 << 10,
            in_use: None,
            passthrough_budget: [u64::MAX; 3],
            linked: None,
            listener: None,
            control_socket: None,
            estate: None,
            policy: Policy::default(),
        }
    }
}

/// One mounted ONFS, as the transport sees it.
pub struct Client {
    pub(crate) this: Weak<Client>,
    pub(crate) options: ClientOptions,
    pub(crate) mds: Arc<Mds>,
    pub(crate) ds: Arc<DataServer>,
    pub(crate) inodes: Arc<Inodes>,
    pub(crate) files: Handles<OpenFile>,
    pub(crate) arbiter: Mutex<Arbiter>,
    pub(crate) versions: Versions,
    pub(crate) pool: Pool,
    pub(crate) invalidator: Invalidator,
    pub(crate) messenger: Messenger,
    pub(crate) purger: Purger,
    burying: Mutex<()>,
    pub(crate) policies: Policies,
    pub(crate) lingering: Lingering,
    known: Known,
    pub(crate) metrics: Metrics,
    /// Handles that an earlier daemon made, by the requests that made them: whether the kernel knows of them it says by asking again.
    pub(crate) unanswered: Mutex<HashMap<u64, u64>>,
    /// Set by INIT: tells the kernel that what it has of an inode's attributes is old.
    attributes: OnceLock<fuse::Notifier>,
    /// Set by INIT when the kernel offers passthrough and it is wanted.
    pub(crate) backing: OnceLock<fuse::Backing>,
    /// Set by INIT: shared mappings of files opened for direct I/O (Linux 6.6).
    direct_mmap: OnceLock<bool>,
}

/// A file that a command works on; in use as long as this lives.
pub struct FileInUse(InodeRef);

impl FileInUse {
    /// The mds knows its size and time when this returns, unless somebody writes it.
    pub(crate) fn settle_if_idle(&self) -> Result<(), Errno> {
        self.0.settle_if_idle()
    }

    pub fn object(&self) -> &Arc<ds::Object> {
        &self.0.object
    }
}

impl Client {
    /// Starts the threads; nothing is mounted yet. Fails where threads cannot be started, or the policies not be read.
    pub fn new(options: ClientOptions, mds: Arc<Mds>, ds: Arc<DataServer>) -> Result<Arc<Client>, Errno> {
        let policies = Policies::load(mds.clone(), options.policy, options.linked.is_some())?;
        if policies.is_active() {
            ds.resume_policies(&|ino| policies.object_policy(ino))?;
        }
        ds.remove_strays(&|ino| mds.find(ino).is_err_and(|error| error == Errno::ESTALE));
        // Transient files are known as such: nothing writes them down by mistake.
        ds.release();
        let pool = Pool::start(PoolOptions {
            workers: options.workers,
            queue: options.queue,
            deadline: options.deadline,
        })?;
        let invalidator = Invalidator::start()?;
        let client = Arc::new_cyclic(|this: &Weak<Client>| Client {
            this: this.clone(),
            inodes: Arc::new(Inodes::new(mds.clone(), ds.clone(), options.linked.clone())),
            files: Handles::after(options.estate.as_ref().map_or(0, |estate| estate.uses())),
            arbiter: Mutex::new(Arbiter::new(options.passthrough_budget)),
            versions: Versions::new(),
            pool,
            invalidator,
            messenger: Messenger::default(),
            purger: Purger::new(),
            burying: Mutex::new(()),
            policies,
            lingering: Lingering::default(),
            known: Known::new(),
            metrics: Metrics::new(),
            unanswered: Mutex::default(),
            attributes: OnceLock::new(),
            backing: OnceLock::new(),
            direct_mmap: OnceLock::new(),
            options,
            mds,
            ds,
        });
        let weak = Arc::downgrade(&client);
        let settle = {
            let client = weak.clone();
            move || {
                client
                    .upgrade()
                    .inspect(|client| {
                        drop(client.inodes.settle_closed());
                        client.wake_purger();
                    })
                    .is_some()
            }
        };
        let started = (client.lingering.start(weak.clone()))
            .and_then(|()| client.inodes.settling.start(settle))
            .and_then(|()| client.known.start(weak.clone(), client.options.known_max))
            .and_then(|()| client.purger.start(weak.clone()))
            .and_then(|()| match &client.options.linked {
                Some(_) => client.messenger.start(Box::new(move |news| {
                    weak.upgrade().inspect(|client| client.tell_kernel(news)).is_some()
                })),
                None => Ok(()),
            });
        match started {
            Ok(()) => Ok(client),
            Err(error) => {
                client.shutdown();
                Err(error.into())
            }
        }
    }

    /// After the session has ended: closes what is still open, settles it, and ends the threads. May be called
    /// more than once.
    pub fn shutdown(&self) {
        self.pool.shutdown();
        for file in self.files.drain() {
            self.close(&file);
        }
        self.lingering.shutdown();
        self.end_lingering();
        self.known.shutdown();
        self.inodes.settling.shutdown();
        self.settle_closed();
        self.messenger.shutdown();
        self.invalidator.shutdown();
        self.purger.shutdown();
    }

    /// The mds knows size and time of every file that nobody writes any more when this returns.
    pub fn settle_closed(&self) {
        loop {
            let left = self.inodes.settle_closed();
            if left.is_empty() {
                return;
            }
            left.iter().for_each(|inode| drop(inode.lock()));
        }
    }

    /// Takes a regular file into use, as an opening does, so that what is known of its object is true. `ESTALE` when it
    /// is gone.
    pub fn use_file(&self, ino: Ino) -> Result<FileInUse, Errno> {
        self.inodes.acquire(ino).map(|(inode, _)| FileInUse(inode))
    }

    /// If something waits for it.
    pub(crate) fn wake_purger(&self) {
        if self.mds.statfs_usage().orphans_waiting > 0 {
            self.purger.wake();
        }
    }

    pub fn stats(&self) -> ClientStats {
        let load =
            |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::Relaxed);
        let pool = self.pool.counters();
        ClientStats {
            deferred: load(&pool.deferred),
            run_inline: load(&pool.run_inline),
            overdue: load(&self.pool.watch().overdue),
            open_files: self.files.len() as u64,
            open_inodes: self.inodes.len() as u64,
            passthrough_inodes: self.inodes.count_passthrough() as u64,
            remembered_inodes: self.versions.len() as u64,
            ..self.metrics.snapshot()
        }
    }

    /// What directories say about where the data below them is kept.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// Is passthrough used in this mount?
    pub fn passthrough_is_on(&self) -> bool {
        self.backing.get().is_some()
    }

    pub(crate) fn kernel_maps_direct_files(&self) -> bool {
        self.direct_mmap.get().copied().unwrap_or(false)
    }

    /// Changes how many bytes of a tier passthrough may pin.
    pub fn set_passthrough_budget(&self, tier: types::TierId, bytes: u64) {
        self.arbiter.lock().set_budget(tier, bytes);
    }

    /// The kernel asks for them anew. For a moment only: it waits for no request.
    pub(crate) fn forget_attributes(&self, ino: Ino) {
        if let Some(Err(error)) = self.attributes.get().map(|kernel| kernel.inval_inode(ino.get(), -1, 0)) {
            tracing::warn!(%ino, %error, "cached attributes were not dropped");
        }
    }

    /// What tells the kernel that something of what it has cached is old.
    pub(crate) fn kernel(&self) -> Option<&fuse::Notifier> {
        self.attributes.get()
    }

    pub(crate) fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
    }

    pub(crate) fn this(&self) -> Option<Arc<Client>> {
        self.this.upgrade()
    }
}

impl Filesystem for Client {
    fn init(&self, kernel: &KernelInfo, config: &mut InitConfig) -> Result<(), Errno> {
        config.capabilities |= wanted_capabilities() & kernel.capabilities;
        // Locks stay with the kernel, which is the only one here; so does write-back, see DESIGN section 10.
        config.capabilities -= Capabilities::POSIX_LOCKS
            | Capabilities::FLOCK_LOCKS
            | Capabilities::WRITEBACK_CACHE
            | Capabilities::AUTO_INVAL_DATA;
        if self.options.estate.is_some() {
            config.capabilities |= Capabilities::HAS_RESEND & kernel.capabilities;
        }
        config.max_write = 1 << 20;
        config.max_readahead = READAHEAD;
        config.time_granularity_ns = 1;
        let passthrough = self.options.passthrough && self.options.in_use.is_some();
        if passthrough && kernel.capabilities.contains(Capabilities::PASSTHROUGH) {
            config.capabilities |= Capabilities::PASSTHROUGH;
            config.max_stack_depth = 1;
            // A second INIT on the same client cannot be: the session answers one.
            let _ = self.backing.set(kernel.backing.clone());
        }
        if kernel.can_prune() {
            let (notifier, alone) = (kernel.notifier.clone(), self.alone(kernel));
            self.known.attach(Box::new(move |nodes| {
                alone();
                notifier.prune(nodes)
            }));
        }
        let _ = self.direct_mmap.set(config.capabilities.contains(Capabilities::DIRECT_IO_ALLOW_MMAP));
        let _ = self.attributes.set(kernel.notifier.clone());
        let (notifier, alone) = (kernel.notifier.clone(), self.alone(kernel));
        let this = self.this.clone();
        self.invalidator.attach(Box::new(move |ino, offset, len| {
            alone();
            let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
            match notifier.inval_inode(ino, offset, len) {
                Ok(()) => {
                    if let Some(client) = this.upgrade() {
                        client.metrics.invalidated();
                    }
                }
                Err(error) => tracing::warn!(ino, %error, "cached pages were not dropped"),
            }
        }));
        tracing::debug!(capabilities = ?config.capabilities, "connected");
        Ok(())
    }

    fn resume(&self) -> Result<(), Errno> {
        self.take_over()
    }

    fn dispatch(&self, call: Call) {
        let (opcode, node) = (call.header().opcode, call.header().node);
        self.pool.watch().during(opcode, node, || self.serve(call, Turn::Transport));
    }

    fn destroy(&self) {
        self.pool.shutdown();
        for file in self.files.drain() {
            self.close(&file);
        }
    }
}

impl Client {
    /// For a thread that only talks to the kernel, which may keep it when this process is killed: called there, it has it keep nothing
    /// that the next daemon needs.
    fn alone(&self, kernel: &KernelInfo) -> impl Fn() + Send + Sync + use<> {
        let notifier = self.options.estate.is_some().then(|| kernel.notifier.clone());
        let once = Once::new();
        move || {
            let Some(notifier) = &notifier else { return };
            once.call_once(|| {
                if let Err(error) = notifier.alone() {
                    tracing::warn!(%error, "a thread shares its descriptors: a killed daemon may keep its locks for a while");
                }
            });
        }
    }

    /// Does what may lack space; if it does, once more after what was removed already has given its space back.
    pub(crate) fn with_room<T>(&self, attempt: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match attempt() {
            Err(Errno::ENOSPC) if self.bury() > 0 => attempt(),
            other => other,
        }
    }
}

impl Inventory for Client {
    fn known(&self) -> usize {
        self.mds.known()
    }

    fn some(&self, n: usize, ask: &mut dyn FnMut(&[Ino]) -> Result<(), Errno>) -> Result<(), Errno> {
        self.mds.some_known(n, ask)
    }
}

impl Graveyard for Client {
    fn bury(&self) -> usize {
        let _one_at_a_time = self.burying.lock();
        let candidates = match self.mds.purge_list(BATCH) {
            Ok(candidates) => candidates,
            Err(error) => {
                tracing::warn!(%error, "the list of removed files could not be read");
                return 0;
            }
        };
        if candidates.iter().any(|ino| self.ds.is_on_devices(*ino))
            && let Err(error) = self.mds.sync()
        {
            tracing::warn!(%error, "removed files keep their data: that they are removed is not durable");
            candidates.into_iter().for_each(|ino| self.mds.purge_later(ino));
            return 0;
        }
        let (gone, left) = remove_all(candidates, |ino| self.inodes.is_used(ino), |ino| self.ds.remove(ino));
        left.into_iter().for_each(|ino| self.mds.purge_later(ino));
        if gone.is_empty() {
            return 0;
        }
        if let Err(error) = self.mds.purge(&gone) {
            tracing::warn!(%error, "removed files were not struck off the list");
            gone.into_iter().for_each(|ino| self.mds.purge_later(ino));
            return 0;
        }
        self.ds.forget_removed(&gone);
        self.metrics.purged(gone.len());
        gone.len()
    }
}

fn wanted_capabilities() -> Capabilities {
    Capabilities::ASYNC_READ
        | Capabilities::ASYNC_DIO
        | Capabilities::ATOMIC_O_TRUNC
        | Capabilities::EXPORT_SUPPORT
        | Capabilities::BIG_WRITES
        | Capabilities::DONT_MASK
        | Capabilities::READDIRPLUS
        | Capabilities::READDIRPLUS_AUTO
        | Capabilities::PARALLEL_DIROPS
        | Capabilities::POSIX_ACL
        | Capabilities::CACHE_SYMLINKS
        | Capabilities::NO_OPENDIR_SUPPORT
        | Capabilities::EXPLICIT_INVAL_DATA
        | Capabilities::HANDLE_KILLPRIV_V2
        | Capabilities::SETXATTR_EXT
        | Capabilities::HAS_EXPIRE_ONLY
        | Capabilities::DIRECT_IO_ALLOW_MMAP
}
