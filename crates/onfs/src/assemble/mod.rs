//! The one module that builds the parts: kv -> mds -> ds -> client -> fuse, and answers control requests by calling
//! them. Nothing else in this crate knows what the file system is made of.

mod fsck;
mod handler;
mod mounted;
mod policy;
mod quota;
mod report;
mod site;

pub use fsck::fsck;

use std::{path::Path, sync::Arc, time::Instant};

use client::{Client, ClientOptions};
use ds::{DataServer, DeviceTier, DsOptions, KvMaps};
use fuse::{MountError, MountOptions, Session, TransportChoice};
use kv::{MetaStore, MetaStoreOptions, OpenError};
use mds::{Mds, MdsOptions};
use store::{
    FsUuid, MemoryTier, MemoryTierOptions, MemoryTierState, StoreError, TierStore, TierStoreOptions,
};
use types::{Errno, TierId, TierSet};

use crate::{
    config::{Config, Transport},
    policy::{Promote, WriteBehind},
    running::{Running, StartError},
};
use handler::Handler;
use mounted::Mounted;
use site::Site;

/// Where the metadata is, below the state directory.
const META_DIR: &str = "meta";
/// Open files that each tier keeps at hand.
const FD_CACHE: usize = 4096;
/// The memory budget's shares: requests' buffers first, then an eighth for journal and overlay, a third for the caches.
const CACHE_SHARE: u64 = 3;

/// What [`start`] gets besides the configuration. The caller holds the state's lock, has created the state directory
/// (`config.mount.state`) and has cleared a dead mount away.
pub struct StartContext<'a> {
    /// What `user.onfs.control` answers.
    pub control_socket: &'a Path,
    /// The daemon's user, who may do everything.
    pub owner_uid: u32,
    /// Something that the user should read: what is not possible, what was recovered.
    pub note: &'a mut dyn FnMut(&str),
}

/// The running parts.
pub(crate) struct Parts {
    pub store: Arc<MetaStore>,
    pub mds: Arc<Mds>,
    pub ds: Arc<DataServer>,
    pub client: Arc<Client>,
    pub session: Session,
    pub config: Config,
    pub began: Instant,
}

/// Opens the stores, recovers, mounts at `config.mount.mountpoint` (type `fuse`, subtype `onfs`) and serves. Returns
/// when the mount is usable.
pub fn start(config: &Config, context: StartContext<'_>) -> Result<Running, StartError> {
    let options = mount_options(config);
    sync_tiers(config);
    let store = Arc::new(open_metadata(config, options.buffer_bytes(), false)?);
    if let Some(line) = recovery_line(&store) {
        (context.note)(&line);
    }
    let mds = Arc::new(open_mds(&store, context.owner_uid)?);
    let ds = open_tiers(config, &store, &mds, context.note)?;
    // The journal must never speak of bytes that a power cut could still take. Weak: the store outlives the tiers.
    let devices = Arc::downgrade(&ds);
    store.set_before_sync(Box::new(move || match devices.upgrade() {
        Some(ds) => ds.sync_devices().map_err(|errno| namespace::txn::KvError::Io(errno.to_string())),
        None => Ok(()),
    }));
    let half = config.memory.size.0 / 2;
    let client_options = ClientOptions {
        workers: config.mount.workers as usize,
        deadline: config.mount.request_deadline,
        entry_timeout: config.mount.cache_timeout,
        attr_timeout: config.mount.cache_timeout,
        passthrough: config.mount.passthrough,
        in_use: Some(store::is_used_elsewhere),
        passthrough_budget: [half, u64::MAX, u64::MAX],
        control_socket: Some(context.control_socket.as_os_str().as_encoded_bytes().to_vec()),
        policy: policy::default_of(&config.policy),
        ..ClientOptions::default()
    };
    let client = Client::new(client_options, mds.clone(), ds.clone()).map_err(|e| {
        StartError::Failed(format!(
            "the requests' threads cannot be started, or the policies not be read (onfs fsck tells): {e}"
        ))
    })?;
    let session = match Session::mount(&options, client.clone()) {
        Ok(session) => session,
        Err(error) => {
            client.shutdown();
            ds.shutdown();
            let _ = store.close();
            return Err(of_mount(error));
        }
    };
    let parts = Parts { store, mds, ds, client, session, config: config.clone(), began: Instant::now() };
    let fs = Arc::new(Mounted::new(parts));
    Ok(Running { handler: Arc::new(Handler::new(fs.clone())), fs })
}

/// Opening the metadata makes durable what a killed daemon had in its journal; the bytes that it speaks of come first.
fn sync_tiers(config: &Config) {
    for tier in [&config.ssd, &config.nearline].into_iter().flatten() {
        if let Ok(dir) = std::fs::File::open(&tier.dir)
            && let Err(error) = rustix::fs::syncfs(&dir)
        {
            tracing::warn!(dir = %tier.dir.display(), %error, "bytes on the device could not be made durable");
        }
    }
}

fn mount_options(config: &Config) -> MountOptions {
    let mut options = MountOptions::new(&config.mount.mountpoint);
    let flags = &config.mount.flags;
    options.allow_other = config.mount.allow_other;
    options.default_permissions = true;
    options.read_only = flags.read_only;
    options.transport = match config.mount.transport {
        Transport::Auto => TransportChoice::Auto,
        Transport::IoUring => TransportChoice::IoUring,
        Transport::Dev => TransportChoice::Device,
    };
    options.threads = config.mount.threads as usize;
    let root = rustix::process::geteuid().is_root();
    options.options = vec![
        if flags.no_suid || !root { "nosuid" } else { "suid" }.to_owned(),
        if flags.no_dev || !root { "nodev" } else { "dev" }.to_owned(),
    ];
    let others = [
        (flags.no_exec, "noexec"),
        (flags.no_atime, "noatime"),
        (flags.no_dir_atime, "nodiratime"),
        (flags.sync, "sync"),
    ];
    options.options.extend(others.iter().filter(|(set, _)| *set).map(|(_, word)| (*word).to_owned()));
    options
}

pub(crate) fn open_metadata(config: &Config, buffers: u64, repair: bool) -> Result<MetaStore, StartError> {
    let left = config.mount.memory_budget.0.saturating_sub(buffers);
    let options = MetaStoreOptions {
        sync_period: config.metadata.sync_period,
        checkpoint_bytes: config.metadata.journal_size.0.min(left / 8).max(1 << 20),
        cache_bytes: (left / CACHE_SHARE).max(4 << 20),
        repair,
        ..MetaStoreOptions::default()
    };
    MetaStore::open_default(&config.mount.state.join(META_DIR), options).map_err(of_open)
}

fn recovery_line(store: &MetaStore) -> Option<String> {
    let report = store.recovery();
    report.repaired.then(|| {
        format!(
            "the metadata journal was damaged: {} later changes were dropped by the repair",
            report.dropped
        )
    })
}

fn open_mds(store: &Arc<MetaStore>, owner_uid: u32) -> Result<Mds, StartError> {
    let gid = rustix::process::getegid().as_raw();
    let options = MdsOptions { root_uid: owner_uid, root_gid: gid, ..MdsOptions::default() };
    Mds::new(store.clone(), options).map_err(|error| match error {
        mds::Error::NewerFormat { .. } | mds::Error::Store(_) => StartError::Damaged(error.to_string()),
        mds::Error::Random(_) => StartError::Failed(error.to_string()),
    })
}

fn open_tiers(
    config: &Config,
    store: &Arc<MetaStore>,
    mds: &Mds,
    note: &mut dyn FnMut(&str),
) -> Result<Arc<DataServer>, StartError> {
    let mut site = Site::load(&config.mount.state)?;
    let uuid = FsUuid(mds.uuid());
    for (tier, given) in [(TierId::Ssd, &config.ssd), (TierId::Nearline, &config.nearline)] {
        if let (Some(dir), None) = (site.tier(tier), given) {
            return Err(StartError::Config(format!(
                "this file system keeps data in its {tier} tier in {}: give --{tier} {} to mount it",
                dir.display(),
                dir.display()
            )));
        }
    }
    let device =
        |tier: TierId, given: &Option<crate::config::DirTier>| -> Result<Option<DeviceTier>, StartError> {
            let Some(given) = given else { return Ok(None) };
            std::fs::create_dir_all(&given.dir)
                .map_err(|e| StartError::Config(format!("{}: cannot be made: {e}", given.dir.display())))?;
            let store = open_store(tier, &given.dir, uuid, site.tier(tier).is_none())?;
            Ok(Some(DeviceTier { store, limit: given.size.map(|s| s.0) }))
        };
    let (ssd, nearline) = (device(TierId::Ssd, &config.ssd)?, device(TierId::Nearline, &config.nearline)?);
    for (tier, given) in [(TierId::Ssd, &config.ssd), (TierId::Nearline, &config.nearline)] {
        if let Some(given) = given {
            site.set_tier(tier, &given.dir)?;
        }
    }
    let memory = open_memory(config, uuid, mds, &mut site, note)?;
    if ssd.is_none() && nearline.is_none() {
        note("there is no SSD and no near-line tier: all data is in memory and is lost at a reboot");
    }
    let mut tiering = tier::Settings::default();
    if let WriteBehind::After(span) = config.policy.write_behind {
        tiering.write_behind_closed = span.0;
        // Who wants it later than the latest has it so.
        tiering.write_behind_latest = tiering.write_behind_latest.max(span.0);
    }
    if config.policy.promote == Promote::OnOpen {
        // What the SSD has is fast enough until someone says otherwise.
        tiering.promote_on_open = TierSet::of(TierId::Nearline);
    }
    DataServer::start(DsOptions {
        memory: Some(memory),
        ssd,
        nearline,
        memory_generation: mds.memory_generation(),
        maps: Arc::new(KvMaps::new(store.clone())),
        tiering,
        movers: config.policy.movers.max(1) as usize,
        sync_period: config.metadata.sync_period,
    })
    .map_err(|errno| StartError::Failed(format!("the tiers cannot be read: {errno}")))
}

fn open_memory(
    config: &Config,
    uuid: FsUuid,
    mds: &Mds,
    site: &mut Site,
    note: &mut dyn FnMut(&str),
) -> Result<(MemoryTier, TierStore), StartError> {
    let mut options = MemoryTierOptions::new(config.memory.dir.clone(), config.memory.size.0, uuid);
    options.known_instance = site.memory_instance();
    options.own_tmpfs = config.memory.own_tmpfs;
    if !config.memory.own_tmpfs {
        options.shared_root = config.memory.dir.clone();
        std::fs::create_dir_all(&config.memory.dir).map_err(|e| {
            StartError::Config(format!("{}: cannot be made: {e}", config.memory.dir.display()))
        })?;
    }
    let memory = MemoryTier::prepare(&options).map_err(of_store)?;
    if memory.state() == MemoryTierState::Fresh {
        if site.memory_instance().is_some() && !site.memory_was_empty() {
            note(
                "the memory tier of the last mount is gone (a reboot?): what was only in it reads as EIO; onfs fsck lists it",
            );
        }
        // First the generation, so that nothing written from now on can be taken for something older.
        mds.set_memory_generation(mds.memory_generation() + 1)
            .map_err(|errno| StartError::Failed(format!("the metadata cannot be written: {errno}")))?;
        site.set_memory_instance(memory.instance())?;
    } else {
        site.set_memory_instance(memory.instance())?;
    }
    let store = open_store(TierId::Memory, memory.path(), uuid, true)?;
    Ok((memory, store))
}

fn open_store(tier: TierId, dir: &Path, uuid: FsUuid, create: bool) -> Result<TierStore, StartError> {
    let mut options = TierStoreOptions::new(tier, uuid);
    options.create = create;
    options.fd_cache = FD_CACHE;
    TierStore::open(dir, options).map_err(of_store)
}

fn of_store(error: StoreError) -> StartError {
    let text = error.to_string();
    match error {
        StoreError::InUse { .. } => StartError::Busy(text),
        StoreError::NewerFormat { .. } | StoreError::DamagedMarker { .. } => StartError::Damaged(text),
        StoreError::Missing { .. }
        | StoreError::NotADirectory { .. }
        | StoreError::NotWritable { .. }
        | StoreError::NotEmpty { .. }
        | StoreError::NoMarker { .. }
        | StoreError::OtherFileSystem { .. }
        | StoreError::OtherTier { .. }
        | StoreError::Unsafe { .. }
        | StoreError::StillFull { .. } => StartError::Config(text),
        StoreError::Io { .. } => StartError::Failed(text),
    }
}

fn of_open(error: OpenError) -> StartError {
    let text = error.to_string();
    match error {
        OpenError::Locked { .. } => StartError::Busy(text),
        OpenError::Newer { .. } => StartError::Damaged(text),
        OpenError::Damaged { .. } => StartError::Damaged(format!(
            "{text}\nonfs fsck --repair --state DIR opens it without what follows the damage, and says what is lost"
        )),
        OpenError::OtherEngine { .. } | OpenError::NotAStore { .. } => StartError::Config(text),
        OpenError::Io { .. } | OpenError::Engine(_) => StartError::Failed(text),
    }
}

fn of_mount(error: MountError) -> StartError {
    let text = error.to_string();
    match error {
        MountError::NoMountpoint(_) | MountError::NotADirectory(_) | MountError::BadOption(_) => {
            StartError::Config(text)
        }
        MountError::Stale(_)
        | MountError::Mountpoint { .. }
        | MountError::NoDevice
        | MountError::NoHelper
        | MountError::NotPermitted(_)
        | MountError::Failed(_)
        | MountError::KernelTooOld { .. }
        | MountError::NoInit
        | MountError::NoRing(_)
        | MountError::Refused(_)
        | MountError::Setup(_) => StartError::Failed(text),
    }
}

/// Of a file system's own error, for messages of commands.
pub(crate) fn failed(what: &str, errno: Errno) -> crate::control::ControlError {
    crate::control::ControlError::errno(what, errno)
}
