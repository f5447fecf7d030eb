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
/// Descriptors that each tier keeps at hand: this share of what the process may have, and no more than so many. Most are
/// for files that programs have open, and some must be left for the metadata.
const FD_SHARE: u64 = 32;
const FD_CACHE_MAX: u64 = 4096;
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

