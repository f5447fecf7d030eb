//! A whole ONFS on temporary directories, mounted for real and unmounted whatever happens.

#![allow(clippy::unwrap_used, dead_code, reason = "tests, and not each of them needs everything")]

use std::{
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Once},
    time::{Duration, Instant},
};

use client::{Client, ClientOptions};
use ds::{DataServer, DeviceTier, DsOptions, KvMaps, Nearline, ObjectHint, ObjectReport};
use fuse::{Capabilities, MountOptions, Session, TransportChoice};
use kv::{Disk, MetaStore, MetaStoreOptions, SystemDisk};
use mds::{Clock, Mds, MdsOptions, SystemClock};
use store::{
    FsUuid, InstanceId, MemoryTier, MemoryTierOptions, MemoryTierState, TierStore, TierStoreOptions,
};
use types::{Errno, Ino, TierId};

/// How long anything may take, the end of a mount too: it only bounds a hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// See `tests/older_kernel.rs`.
const OLDER_KERNEL: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"older_kernel");

/// Whether anyone else has the file open or mapped: nobody, if a write lease can be had.
fn in_use(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    const F_SETSIG: i32 = 10;
    let fd = file.as_raw_fd();
    // The signal that tells of another's open while the lease is held, for an instant, is ignored by default.
    // SAFETY: three fcntl(2) calls with plain numbers on an open descriptor.
    unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG);
        if libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) == 0 {
            libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK);
            return Ok(false);
        }
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => Ok(true),
        _ => Err(Errno::EIO),
    }
}

/// The directories of one file system, and its running mount.
pub struct Site {
    dir: tempfile::TempDir,
    pub memory_limit: u64,
    pub passthrough: bool,
    /// Whatever is asked is mapped still.
    pub all_in_use: bool,
    /// Whoever asks whether a file is in use.
    pub in_use: client::InUse,
    pub no_atime: bool,
    pub known_max: usize,
    /// Mounted as on Debian 12's kernel.
    pub older_kernel: bool,
    pub transport: TransportChoice,
    pub policy: client::Policy,
    pub tiering: tier::Settings,
    pub deadline: Duration,
    /// So long the data server runs before anybody tells it of policies.
    pub slow_start: Duration,
    pub clock: Arc<dyn Clock>,
    /// Under the metadata.
    pub disk: Arc<dyn Disk>,
    pub listener: Option<Arc<dyn client::Listener>>,
    instance: Option<InstanceId>,
    generation: u32,
    running: Option<Running>,
}

struct Running {
    session: Session,
    client: Arc<Client>,
    mds: Arc<Mds>,
    ds: Arc<DataServer>,
    meta: Arc<MetaStore>,
}

impl Site {
    /// `None` (with a line that says so) where nothing can be mounted.
    pub fn new() -> Option<Site> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            if std::env::var_os("RUST_LOG").is_some() {
                tracing_subscriber::fmt()
                    .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
                    .with_writer(std::io::stderr)
                    .init();
            }
        });
        if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
            eprintln!("/dev/fuse cannot be opened: nothing is tested");
            return None;
        }
        let root =
            if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
        let dir = tempfile::tempdir_in(root).unwrap();
        // Other users get to the mount point, too.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Some(Site {
            dir,
            memory_limit: 64 << 20,
            passthrough: true,
            all_in_use: false,
            in_use,
            no_atime: false,
            known_max: 1 << 20,
            older_kernel: OLDER_KERNEL,
            transport: TransportChoice::Auto,
            policy: client::Policy::default(),
            tiering: tier::Settings::default(),
            deadline: ClientOptions::default().deadline,
            slow_start: Duration::ZERO,
            clock: Arc::new(SystemClock),
            disk: Arc::new(SystemDisk),
            listener: None,
            instance: None,
            generation: 0,
            running: None,
        })
    }

    pub fn mounted() -> Option<Site> {
        let mut site = Site::new()?;
        site.mount();
        Some(site)
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }
    pub fn client(&self) -> &Arc<Client> {
        &self.running.as_ref().unwrap().client
    }
    pub fn mds(&self) -> &Arc<Mds> {
        &self.running.as_ref().unwrap().mds
    }
    pub fn meta(&self) -> &Arc<MetaStore> {
        &self.running.as_ref().unwrap().meta
    }
    pub fn ds(&self) -> &Arc<DataServer> {
        &self.running.as_ref().unwrap().ds
    }

    fn make(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn mount(&mut self) {
        let uuid = FsUuid([7; 16]);
        let mut options = MemoryTierOptions::new(self.make("memory"), self.memory_limit, uuid);
        options.own_tmpfs = false;
        options.shared_root = self.make("shared");
        options.known_instance = self.instance;
        let memory = MemoryTier::prepare(&options).unwrap();
        if memory.state() == MemoryTierState::Fresh {
            self.generation += 1;
            self.instance = Some(memory.instance());
        }
        let open =
            |tier: TierId, dir: &Path| TierStore::open(dir, TierStoreOptions::new(tier, uuid)).unwrap();
        let memory_store = open(TierId::Memory, memory.path());
        let (state, options) = (self.make("meta"), MetaStoreOptions::default());
        let meta = Arc::new(MetaStore::open(&state, kv::lsm, options, self.disk.clone()).unwrap());
        let mds_options = MdsOptions {
            memory_generation: self.generation,
            clock: self.clock.clone(),
            ..MdsOptions::default()
        };
        let mds = Arc::new(Mds::new(meta.clone(), mds_options).unwrap());
        let first = Arc::downgrade(&mds);
        let ds = DataServer::start(DsOptions {
            memory: Some((memory, memory_store)),
            ssd: Some(DeviceTier { store: open(TierId::Ssd, &self.make("ssd")), limit: None }),
            nearline: Nearline::Native(DeviceTier {
                store: open(TierId::Nearline, &self.make("nearline")),
                limit: None,
            }),
            memory_generation: self.generation,
            maps: Arc::new(KvMaps::new(
                meta.clone(),
                Box::new(move |ino, entries| first.upgrade().unwrap().begin_write_with(ino, entries)),
            )),
            tiering: self.tiering.clone(),
            fill_bytes_max: 8 << 20,
            movers: 2,
            sync_period: Duration::from_millis(50),
            waiting_max: 512,
            safe_within: Duration::from_secs(30),
            seal_after: Duration::from_secs(10),
            scrub: ds::ScrubOptions::default(),
            held: true,
        })
        .unwrap();
        let options = ClientOptions {
            passthrough: self.passthrough,
            no_atime: self.no_atime,
            known_max: self.known_max,
            passthrough_min_bytes: 0,
            in_use: Some(if self.all_in_use { |_| Ok(true) } else { self.in_use }),
            control_socket: Some(b"/run/onfs/control".to_vec()),
            policy: self.policy,
            listener: self.listener.clone(),
            deadline: self.deadline,
            ..ClientOptions::default()
        };
        std::thread::sleep(self.slow_start);
        let client = Client::new(options, mds.clone(), ds.clone()).unwrap();
        let mut mount = MountOptions::new(self.make("mnt"));
        mount.default_permissions = true;
        mount.allow_other = true;
        mount.transport = self.transport;
        mount.options = vec!["suid".into(), "dev".into()];
        if self.older_kernel {
            mount.withhold = Capabilities::NEWER_THAN_LINUX_6_1;
        }
        let session = Session::mount(&mount, client.clone()).unwrap();
        self.running = Some(Running { session, client, mds, ds, meta });
    }

    /// Where the file's bytes are now.
    pub fn report(&self, name: &str) -> ObjectReport {
        let ino = Ino::from_raw(std::fs::metadata(self.path(name)).unwrap().ino()).unwrap();
        let found = self.mds().find(ino).unwrap();
        let hint = ObjectHint {
            size: found.attr.size,
            written: found.data.written,
            stale_live: found.data.live,
            memory_generation: found.data.memory_generation,
            linked: None,
        };
        self.ds().report(&self.ds().attach(ino, &hint).unwrap())
    }

    /// Waits until the file is as wanted.
    pub fn wait_for(&self, name: &str, wanted: impl Fn(&ObjectReport) -> bool) -> ObjectReport {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = self.report(name);
            if wanted(&now) {
                return now;
            }
            assert!(Instant::now() < end, "{name} stays {now:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What a check of the metadata finds, unmounted.
    pub fn findings(&mut self) -> Vec<String> {
        self.unmount();
        let meta = MetaStore::open_default(&self.make("meta"), MetaStoreOptions::default()).unwrap();
        let mut lines = Vec::new();
        mds::fsck(&meta, types::Timestamp::EPOCH, false, &mut |finding| lines.push(finding.to_string()))
            .unwrap();
        meta.close().unwrap();
        lines
    }

    pub fn unmount(&mut self) {
        let Some(running) = self.running.take() else { return };
        // The last close of a file that was mapped reaches the kernel's mount a moment after the program.
        let mut clean = running.session.unmount(false);
        for _ in 0..100 {
            if clean.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            clean = running.session.unmount(false);
        }
        if clean.is_err() {
            running.session.unmount(true).unwrap();
        }
        assert!(running.session.wait(PATIENCE), "the session did not end");
        running.client.shutdown();
        running.ds.shutdown();
        running.mds.sync().unwrap();
        running.meta.close().unwrap();
        if !std::thread::panicking() {
            clean.unwrap();
        }
    }

    /// The kernel tells of a close when it likes: returns when it has told of all, and what was closed is settled.
    pub fn settle_closed(&self) {
        let begun = std::time::Instant::now();
        while self.client().stats().open_inodes > 0 {
            assert!(begun.elapsed() < PATIENCE, "a file stays open");
            self.client().settle_closed();
            std::thread::yield_now();
        }
    }

    /// The memory tier is gone.
    pub fn reboot(&mut self) {
        self.unmount();
        std::fs::remove_dir_all(self.dir.path().join("shared")).unwrap();
        self.mount();
    }

    pub fn remount(&mut self) {
        self.unmount();
        self.mount();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.unmount();
    }
}

pub mod map;
