//! The one module that builds the parts: kv -> mds -> ds -> client -> fuse, and answers control requests by calling
//! them. Nothing else in this crate knows what the file system is made of.

mod below;
mod conflicts;
mod drain;
mod fsck;
mod gate;
mod handler;
mod link;
mod listing;
mod metadata;
mod mounted;
mod parts;
mod permission;
mod plans;
mod policy;
mod quota;
mod refusals;
mod report;
mod site;
mod standing;
mod tiers;
mod tree;
mod upward;

pub use fsck::fsck;
pub use metadata::has_metadata;

use std::{
    path::Path,
    sync::{Arc, mpsc::Receiver},
    time::Instant,
};

use client::{Client, ClientOptions};
use ds::DataServer;
use fuse::{Capabilities, MountOptions, Session, TransportChoice};

use linked::Linked;
use mds::Mds;

use crate::{
    config::{Config, Transport},
    running::{Running, StartError},
};
use handler::Handler;
use link::{open_link, start_link};
use metadata::{open_mds, open_metadata, recovery_line};
use mounted::Mounted;
use parts::Parts;
use refusals::{of_mount, of_open};
use tiers::{Tiers, open_tiers, sync_tiers};
use upward::{Ears, Heard, Upward, UpwardParts};

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
    let store = Arc::new(open_metadata(config, options.buffer_bytes(), false).map_err(of_open)?);
    if let Some(line) = recovery_line(&store) {
        (context.note)(&line);
    }
    let mds = Arc::new(open_mds(&store, context.owner_uid)?);
    let linked = open_link(config, &mds, context.note)?;
    let tiers = open_tiers(config, (&store, &mds), linked.as_ref(), context.note)?;
    let ds = tiers.ds.clone();
    // The journal must never speak of bytes that a power cut could still take. Weak: the store outlives the tiers.
    let devices = Arc::downgrade(&ds);
    store.set_before_sync(Box::new(move || {
        if let Some(ds) = devices.upgrade() {
            ds.sync_devices();
        }
        Ok(())
    }));
    let (ears, heard) = Ears::new(config.plan.history);
    let known_max = metadata::known_max(config, options.buffer_bytes());
    let client_options = ClientOptions {
        known_max,
        linked: linked.clone(),
        listener: Some(ears.clone()),
        control_socket: Some(context.control_socket.as_os_str().as_encoded_bytes().to_vec()),
        ..client_options(config)
    };
    let client = match Client::new(client_options, mds.clone(), ds.clone()) {
        Ok(client) => client,
        Err(error) => {
            drop(ds);
            give_up(tiers, &store);
            return Err(StartError::Failed(format!(
                "the requests' threads cannot be started, or the policies not be read (onfs fsck tells): {error}"
            )));
        }
    };
    let upward = match start_beside(config, linked.as_deref(), (&mds, &ds, &client), (ears, heard)) {
        Ok(upward) => upward,
        Err(error) => {
            linked.iter().for_each(|linked| linked.shutdown());
            client.shutdown();
            drop((client, ds));
            give_up(tiers, &store);
            return Err(error);
        }
    };
    let session = match Session::mount(&options, client.clone()) {
        Ok(session) => session,
        Err(error) => {
            upward.shutdown();
            linked.iter().for_each(|linked| linked.shutdown());
            client.shutdown();
            drop((upward, client, ds));
            give_up(tiers, &store);
            return Err(of_mount(error));
        }
    };
    let (config, began) = (config.clone(), Instant::now());
    let parts = Parts { store, mds, ds, client, linked, upward, session, config, began };
    let fs = Arc::new(Mounted::new(parts));
    Ok(Running { handler: Arc::new(Handler::new(fs.clone())), fs })
}

/// What the configuration says of the requests.
fn client_options(config: &Config) -> ClientOptions {
    let half = config.memory.size.0 / 2;
    ClientOptions {
        workers: config.mount.workers as usize,
        deadline: config.mount.request_deadline,
        entry_timeout: cache_timeout(config),
        attr_timeout: cache_timeout(config),
        no_atime: config.mount.flags.no_atime,
        passthrough: config.mount.passthrough,
        in_use: Some(store::is_used_elsewhere),
        passthrough_budget: [half, u64::MAX, u64::MAX],
        policy: policy::default_of(&config.policy),
        ..ClientOptions::default()
    }
}

/// Starts who works beside the requests: the keeper of a linked directory, and what moves up ahead of programs.
fn start_beside(
    config: &Config,
    linked: Option<&Linked>,
    (mds, ds, client): (&Arc<Mds>, &Arc<DataServer>, &Arc<Client>),
    hearing: (Arc<Ears>, Receiver<Heard>),
) -> Result<Upward, StartError> {
    if let Some(linked) = linked {
        start_link(linked, ds, client)?;
    }
    let parts = UpwardParts { mds: mds.clone(), ds: ds.clone(), client: client.clone() };
    Upward::start(parts, &config.plan, &config.mount.state, hearing).map_err(|error| {
        StartError::Failed(format!("the threads that move files up cannot be started: {error}"))
    })
}

/// What a linked directory has may be other than what we have of it; the kernel asks again when a look is due.
fn cache_timeout(config: &Config) -> std::time::Duration {
    let looks = config.link.as_ref().map(|link| link.look_every);
    looks.map_or(config.mount.cache_timeout, |look_every| look_every.min(config.mount.cache_timeout))
}

/// Closes what a start that failed had opened, and gives back the memory that it took.
fn give_up(tiers: Tiers, store: &kv::MetaStore) {
    tiers.give_up();
    if let Err(error) = store.close() {
        tracing::warn!(%error, "the metadata were not closed in order");
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
    // With many CPUs the buffers would take all of the budget: fewer, then smaller ones.
    options.fit_buffers(config.mount.memory_budget.0 / 4);
    if config.mount.older_kernel {
        options.withhold = Capabilities::NEWER_THAN_LINUX_6_1;
    }
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
