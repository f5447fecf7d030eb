//! One mount: set up, and served by its threads until the kernel ends it.

use std::{
    io,
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use crate::{
    Filesystem, abi,
    buffer::{PAGE, Pool},
    connection::Connection,
    core::{Core, Presence},
    device::{self, Backing, Device, Notifier},
    flags::Capabilities,
    init::{self, InitConfig, KernelInfo},
    mount::{self, MountError, MountPoint, UnmountError},
    options::{MountOptions, TransportChoice, TransportKind, TransportReport},
    queue::{RingQueue, possible_cpus},
    record::Record,
    ring::{self, RingThread},
};

/// How long the kernel may take to begin, and a thread to get ready.
const PATIENCE: Duration = Duration::from_secs(20);

/// One mounted file system. Dropping it unmounts, lazily, what is still mounted.
pub struct Session {
    pub(crate) core: Arc<Core>,
    pub(crate) point: MountPoint,
    pub(crate) device: Arc<Device>,
    pub(crate) transport: TransportReport,
    pub(crate) buffer_bytes: u64,
    pub(crate) record: Record,
}

impl Session {
    /// Mounts and starts serving. Requests are answered from when this returns, by threads of the session.
    pub fn mount<F: Filesystem>(options: &MountOptions, filesystem: Arc<F>) -> Result<Session, MountError> {
        let wish = match options.transport {
            _ if options.guarded => Err("it is guarded".to_owned()),
            TransportChoice::Device => Err("/dev/fuse was asked for".to_owned()),
            TransportChoice::Auto | TransportChoice::IoUring => device::enable_ring(),
        };
        if let (TransportChoice::IoUring, Err(reason)) = (options.transport, &wish) {
            return Err(MountError::NoRing(reason.clone()));
        }
        let (point, device) = mount::mount(options)?;
        let device = Arc::new(device);
        let starting =
            Starting { options, filesystem, device: Arc::clone(&device), connection: point.connection };
        match starting.start(wish) {
            Ok((core, transport, record)) => {
                tracing::info!(transport = %transport.kind, reason = transport.reason, path = %point.path.display(), "mounted");
                let buffer_bytes = match transport.kind {
                    TransportKind::IoUring => core.queues.iter().map(|queue| queue.buffer_bytes()).sum(),
                    TransportKind::Device => device_buffers(options, &core),
                };
                Ok(Session { core, point, device, transport, buffer_bytes, record })
            }
            Err(error) => {
                if let Err(left) = point.unmount(true) {
                    tracing::error!(error = %left, "a mount that failed to start is left behind");
                }
                Err(error)
            }
        }
    }

    /// Waits until the file system is unmounted, by us or by others, and `destroy` has returned.
    pub fn run(&self) {
        self.core.wait_ended(None);
    }

    /// As [`Session::run`], but no longer than so; says whether it has ended.
    pub fn wait(&self, patience: Duration) -> bool {
        self.core.wait_ended(Some(patience))
    }

    pub fn has_ended(&self) -> bool {
        self.core.has_ended()
    }

    /// `lazy` also takes away what is in use, which is then served until its last user is gone.
    pub fn unmount(&self, lazy: bool) -> Result<(), UnmountError> {
        // Whatever is mounted there afterwards is not ours.
        if self.core.has_ended() {
            return Err(UnmountError::NotMounted(self.point.path.clone()));
        }
        self.point.unmount(lazy)
    }

    /// Ends the connection at once, also when it is detached: its users get `ENOTCONN`. Where the kernel does not let us, they
    /// get `ENODEV` until the process ends, and the session counts as ended.
    pub fn abort(&self) {
        if self.core.has_ended() {
            return;
        }
        if let Err(error) = self.point.connection.abort(&self.device) {
            tracing::warn!(%error, "the connection cannot be ended from here: it ends with the process");
            self.core.abandon();
        }
    }

    pub fn transport(&self) -> &TransportReport {
        &self.transport
    }

    pub fn mountpoint(&self) -> &Path {
        &self.point.path
    }

    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.device))
    }

    pub fn backing(&self) -> Backing {
        Backing::new(Arc::clone(&self.device))
    }

    /// Address space of the transport's buffers (with /dev/fuse: of the idle ones).
    pub fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.core.has_ended() {
            match self.point.unmount(true) {
                Ok(()) | Err(UnmountError::NotMounted(_)) => {}
                Err(error) => tracing::error!(%error, "a mount is left behind"),
            }
        }
    }
}

/// A mount before its INIT is answered.
struct Starting<'a, F> {
    options: &'a MountOptions,
    filesystem: Arc<F>,
    device: Arc<Device>,
    connection: Connection,
}

impl<F: Filesystem> Starting<'_, F> {
    /// The rings are made before INIT is answered: once we have said that we use them, the kernel waits for them.
    fn start(self, wish: Result<(), String>) -> Result<(Arc<Core>, TransportReport, Record), MountError> {
        let (unique, request) = self.read_init()?;
        let offered = init::offered(&request);
        if self.options.guarded && !offered.contains(Capabilities::HAS_RESEND) {
            return Err(MountError::NoResend);
        }
        let mut ring = wish.and_then(|()| {
            let missing = || "the kernel does not offer it for this mount".to_owned();
            offered.contains(Capabilities::OVER_IO_URING).then_some(()).ok_or_else(missing)
        });
        let config = self.ask_filesystem(&request, offered, ring.is_ok())?;
        let limit = self.options.max_transfer;
        let (_, agreed) = init::agree(&request, &config, limit, ring.is_ok());
        let mut queues = Vec::new();
        if ring.is_ok() {
            let made = (0..possible_cpus())
                .map(|id| RingQueue::new(id, self.options.depth(), ring::payload_bytes(&agreed)))
                .collect::<io::Result<Vec<_>>>();
            match made {
                Ok(made) => queues = made,
                Err(error) => ring = Err(format!("no memory for the rings: {error}")),
            }
        }
        let core = Core::new(Arc::clone(&self.filesystem) as Arc<dyn Filesystem>, agreed, queues);
        let presence = core.enter();
        let rings = ring.and_then(|()| self.spawn_rings(&core));
        if let (TransportChoice::IoUring, Err(reason)) = (self.options.transport, &rings) {
            return Err(MountError::NoRing(reason.clone()));
        }
        let (answer, _) = init::agree(&request, &config, limit, rings.is_ok());
        self.device.answer(unique, 0, &[abi::bytes_of(&answer)]).map_err(MountError::Setup)?;
        core.started();
        let transport = match rings.and_then(Rings::go) {
            Ok(()) => TransportReport { kind: TransportKind::IoUring, reason: None },
            Err(reason) => TransportReport { kind: TransportKind::Device, reason: Some(reason) },
        };
        match transport.kind {
            TransportKind::IoUring => self.spawn_device_thread(&core)?,
            TransportKind::Device => {
                spawn_device_threads((&core, &self.device, self.connection), self.options)?;
            }
        }
        if config.max_readahead > request.max_readahead && mount::is_root() {
            let set = mount::raise_readahead(self.connection, config.max_readahead);
            tracing::debug!(bytes = set, "readahead");
        }
        drop(presence);
        if let (TransportChoice::IoUring, Some(reason)) = (self.options.transport, &transport.reason) {
            return Err(MountError::NoRing(reason.clone()));
        }
        let record = Record {
            connection: self.connection.number(),
            minor: answer.minor,
            payload: core.agreed.payload as u32,
            capabilities: Capabilities::from_bits_retain(
                u64::from(answer.flags2) << 32 | u64::from(answer.flags),
            ),
            block_size: core.agreed.block_size,
            max_readahead: answer.max_readahead,
        };
        Ok((core, transport, record))
    }

    fn ask_filesystem(
        &self,
        request: &abi::InitIn,
        offered: Capabilities,
        ring: bool,
    ) -> Result<InitConfig, MountError> {
        let kernel = KernelInfo {
            major: request.major,
            minor: request.minor,
            capabilities: offered,
            max_readahead: request.max_readahead,
            transport: if ring { TransportKind::IoUring } else { TransportKind::Device },
            notifier: Notifier::new(Arc::clone(&self.device)),
            backing: Backing::new(Arc::clone(&self.device)),
        };
        let mut config = InitConfig::new(&kernel, self.options.max_transfer);
        self.filesystem.init(&kernel, &mut config).map_err(MountError::Refused)?;
        Ok(config)
    }

    /// The kernel's first request, and its number.
    fn read_init(&self) -> Result<(u64, abi::InitIn), MountError> {
        let mut buf = vec![0; abi::MIN_READ_BUFFER];
        loop {
            if !self.device.wait_readable(PATIENCE).map_err(MountError::Setup)? {
                return Err(MountError::NoInit);
            }
            let len = match self.device.read(&mut buf) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => continue,
                read => read.map_err(MountError::Setup)?,
            };
            let header: abi::InHeader = abi::read(&buf[..len]).ok_or(MountError::NoInit)?;
            if header.opcode != abi::op::INIT {
                return Err(MountError::NoInit);
            }
            let request = init::parse(&buf[size_of::<abi::InHeader>()..len]).map_err(MountError::Refused)?;
            let (major, minor) = (request.major, request.minor);
            if major > abi::MAJOR {
                // A newer protocol: name ours, and the kernel asks again in it.
                let ours = abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..abi::InitOut::default() };
                self.device.answer(header.unique, 0, &[abi::bytes_of(&ours)]).map_err(MountError::Setup)?;
                continue;
            }
            if major < abi::MAJOR || minor < abi::MINOR_MIN {
                let _ = self.device.answer(header.unique, -libc::EPROTO, &[]);
                return Err(MountError::KernelTooOld { major, minor });
            }
            return Ok((header.unique, init::without(request, self.options.withhold)));
        }
    }

    fn spawn_rings(&self, core: &Arc<Core>) -> Result<Rings, String> {
        let (ready, is_ready) = mpsc::sync_channel(core.queues.len());
        let mut go = Vec::with_capacity(core.queues.len());
        for (id, queue) in core.queues.iter().enumerate() {
            let (start, wait) = mpsc::sync_channel(1);
            go.push(start);
            let (queue, device, ready) = (Arc::clone(queue), Arc::clone(&self.device), ready.clone());
            let connection = self.connection;
            let presence = core.enter();
            let core = Arc::clone(core);
            spawn(format!("fuse-ring-{id}"), presence, move || {
                let thread = start_ring(queue, &device, &ready, &wait);
                serve_ring(&core, thread, connection, &device);
            })
            .map_err(|error| format!("no thread for a ring: {error}"))?;
        }
        let rings = Rings { go, is_ready };
        rings.all_ready()?;
        Ok(rings)
    }

    /// With io_uring one thread takes what still comes through /dev/fuse.
    fn spawn_device_thread(&self, core: &Arc<Core>) -> Result<(), MountError> {
        let pool = Pool::new(core.agreed.payload + PAGE, 2, false);
        spawn_device_thread(0, (core, Arc::clone(&self.device), self.connection), &pool)
    }
}

/// Each has a channel of its own, unless another process is to go on with the connection: what is read of a channel ends with the channel.
pub(crate) fn spawn_device_threads(
    (core, device, connection): (&Arc<Core>, &Arc<Device>, Connection),
    options: &MountOptions,
) -> Result<(), MountError> {
    let threads = options.thread_count();
    let kept = threads * 2 + options.held_buffers;
    let pool = Pool::new(core.agreed.payload + PAGE, kept, options.guarded);
    for id in 0..threads {
        let channel = if id == 0 || options.guarded {
            Arc::clone(device)
        } else {
            device.clone_channel().map_or_else(|_| Arc::clone(device), Arc::new)
        };
        spawn_device_thread(id, (core, channel, connection), &pool)?;
    }
    Ok(())
}

fn spawn_device_thread(
    id: usize,
    (core, device, connection): (&Arc<Core>, Arc<Device>, Connection),
    pool: &Arc<Pool>,
) -> Result<(), MountError> {
    let (presence, pool) = (core.enter(), Arc::clone(pool));
    let core = Arc::clone(core);
    spawn(format!("fuse-dev-{id}"), presence, move || {
        if let Err(error) = core.serve_device(&device, &pool) {
            tracing::error!(%error, "/dev/fuse cannot be read: the connection is ended");
            end(connection, &device);
        }
    })
    .map_err(MountError::Setup)
}

/// Address space of the buffers that idle threads have.
pub(crate) fn device_buffers(options: &MountOptions, core: &Core) -> u64 {
    options.thread_count() as u64 * (core.agreed.payload + PAGE) as u64
}

/// Ring threads that wait for the word to begin.
struct Rings {
    go: Vec<mpsc::SyncSender<()>>,
    is_ready: mpsc::Receiver<Result<(), String>>,
}

impl Rings {
    fn all_ready(&self) -> Result<(), String> {
        // Every thread's word is heard, so that none is left over for the next round.
        let words = self.go.iter().map(|_| match self.is_ready.recv_timeout(PATIENCE) {
            Ok(word) => word,
            Err(_) => Err("a ring's thread did not get ready".to_owned()),
        });
        let words: Vec<_> = words.collect();
        words.into_iter().collect()
    }

    /// INIT is answered: register the entries.
    fn go(self) -> Result<(), String> {
        for start in &self.go {
            // A thread that is gone has said why, or says nothing in time.
            let _ = start.send(());
        }
        self.all_ready()
    }
}

/// `None` when there is no ring to serve, which `ready` was told.
fn start_ring(
    queue: Arc<RingQueue>,
    device: &Device,
    ready: &mpsc::SyncSender<Result<(), String>>,
    wait: &mpsc::Receiver<()>,
) -> Option<RingThread> {
    let tell = |word: Result<(), String>| ready.send(word).ok();
    let mut thread = match RingThread::new(queue, device) {
        Ok(thread) => thread,
        Err(error) => {
            tell(Err(format!("io_uring_setup: {error}")));
            return None;
        }
    };
    tell(Ok(()))?;
    wait.recv_timeout(PATIENCE).ok()?;
    let registered = thread.register().map_err(|error| format!("the kernel refused a ring entry: {error}"));
    let usable = registered.is_ok();
    tell(registered)?;
    usable.then_some(thread)
}

fn serve_ring(core: &Core, thread: Option<RingThread>, connection: Connection, device: &Device) {
    if let Some(Err(error)) = thread.map(|mut thread| thread.run(core)) {
        tracing::error!(%error, "a ring failed: the connection is ended");
        end(connection, device);
    }
}

/// Its server cannot go on: no request may hang.
fn end(connection: Connection, device: &Device) {
    if let Err(error) = connection.abort(device) {
        tracing::error!(%error, "the connection cannot be ended: requests hang until the process ends");
    }
}

/// Signals are for the program's own threads; a thread of ours takes none.
fn spawn(name: String, presence: Presence, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let run = move || {
        let _presence = presence;
        // SAFETY: fills a set that lives on the stack, and changes the mask of this thread alone.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        }
        body();
    };
    thread::Builder::new().name(name).spawn(run).map(drop)
}
