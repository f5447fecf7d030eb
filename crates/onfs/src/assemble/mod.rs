//! The one module that builds the parts: kv -> mds -> ds -> client -> fuse, and answers control requests by calling
//! them. Nothing else in this crate knows what the file system is made of.

mod below;
mod cluster_mount;
mod cluster_roles;
mod cluster_server;
mod conflicts;
mod drain;
mod fsck;
mod gate;
mod handler;
mod held;
mod link;
mod listing;
mod metadata;
mod mounted;
mod names;
mod observed;
mod parts;
mod patience;
mod permission;
mod plans;
mod policy;
mod quota;
mod refusals;
mod report;
mod saving;
mod scrub;
mod site;
mod standing;
mod stores;
mod tiers;
mod tree;
mod upward;

pub use cluster_mount::start_remote;
pub(crate) use cluster_mount::{client_number, credentials};
pub use cluster_server::start_server;
pub use fsck::fsck;
pub use metadata::has_metadata;

use std::{
    path::Path,
    sync::{Arc, mpsc::Receiver},
    time::Instant,
};

use client::{Client, ClientOptions};
use ds::DataServer;
use fuse::{Capabilities, Filesystem, MountError, MountOptions, Session, TransportChoice};

use linked::Linked;
use mds::Mds;

use crate::{
    config::{Config, MountConfig, Transport},
    guard::Ward,
    running::{Running, StartError},
};
use handler::Handler;
use link::start_link;
use mounted::Mounted;
use parts::Parts;
use refusals::of_mount;
use stores::{Opening, Stores};
use tiers::first_record;
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
    /// Of a guarded mount: what the daemon before left, and who keeps it.
    pub ward: Option<Arc<Ward>>,
}

/// Opens the stores, recovers, mounts at `config.mount.mountpoint` (type `fuse`, subtype `onfs`) and serves. Returns
/// when the mount is usable.
pub fn start(config: &Config, context: StartContext<'_>) -> Result<Running, StartError> {
    let options = mount_options(&config.mount);
    let opening =
        Opening { owner_uid: context.owner_uid, buffers: options.buffer_bytes(), first: &mut first_record };
    let stores = Stores::open(config, opening, context.note)?;
    if let Some(ward) = &context.ward
        && let Err(error) = succeed(ward, &stores.mds)
    {
        stores.give_up();
        return Err(error);
    }
    let Stores { mds, linked, .. } = &stores;
    let ds = stores.ds();
    let (ears, heard) = Ears::new(config.plan.history);
    let known_max = metadata::known_max(config, options.buffer_bytes());
    let client_options = ClientOptions {
        known_max,
        linked: linked.clone(),
        listener: Some(ears.clone()),
        estate: context.ward.as_ref().map(|ward| ward.estate().clone()),
        control_socket: Some(context.control_socket.as_os_str().as_encoded_bytes().to_vec()),
        ..client_options(config)
    };
    let client = match Client::new(client_options, mds.clone(), ds.clone()) {
        Ok(client) => client,
        Err(error) => {
            drop(ds);
            stores.give_up();
            return Err(StartError::Failed(format!(
                "the requests' threads cannot be started, or the policies not be read (onfs fsck tells): {error}"
            )));
        }
    };
    let upward = match start_beside(config, linked.as_deref(), (mds, &ds, &client), (ears, heard)) {
        Ok(upward) => upward,
        Err(error) => {
            client.shutdown();
            drop((client, ds));
            stores.give_up();
            return Err(error);
        }
    };
    let session = match begin_session(&options, &client, context.ward.as_deref()) {
        Ok(session) => session,
        Err(error) if context.ward.as_ref().is_some_and(|ward| ward.resumes()) => {
            // As after a kill: what is open stays written down for another attempt.
            std::mem::forget((upward, client, ds, stores));
            return Err(of_mount(error));
        }
        Err(error) => {
            upward.shutdown();
            client.shutdown();
            drop((upward, client, ds));
            stores.give_up();
            return Err(of_mount(error));
        }
    };
    let (config, began) = (config.clone(), Instant::now());
    let Stores { store, mds, linked, .. } = stores;
    let parts = Parts { store, mds, ds, client, linked, upward, session, config, began, ward: context.ward };
    let fs = Arc::new(Mounted::new(parts));
    Ok(Running { handler: Arc::new(Handler::new(fs.clone())), fs })
}

/// What the daemon before wrote down of the kernel's references holds from now on.
fn succeed(ward: &Ward, mds: &Mds) -> Result<(), StartError> {
    if !ward.takes_epoch(mds.epoch()) {
        let why = "somebody else had the state since the daemon before ended: the mount cannot go on with it";
        return Err(StartError::Damaged(why.to_owned()));
    }
    mds.keep_references(ward.estate());
    Ok(())
}

/// A new mount, or the one that another daemon served.
fn begin_session<F: Filesystem>(
    options: &MountOptions,
    client: &Arc<F>,
    ward: Option<&Ward>,
) -> Result<Session, MountError> {
    let Some(ward) = ward else { return Session::mount(options, client.clone()) };
    if let Some(device) = ward.take_device() {
        let record = ward.estate().session().unwrap_or_default();
        return Session::resume(options, client.clone(), device, &record);
    }
    let session = Session::mount(options, client.clone())?;
    ward.keep(session.device(), &session.record()).map_err(MountError::Setup)?;
    Ok(session)
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

fn mount_options(config: &MountConfig) -> MountOptions {
    let mut options = MountOptions::new(&config.mountpoint);
    let flags = &config.flags;
    options.allow_other = config.allow_other;
    options.default_permissions = true;
    options.read_only = flags.read_only;
    options.transport = match config.transport {
        Transport::Auto => TransportChoice::Auto,
        Transport::IoUring => TransportChoice::IoUring,
        Transport::Dev => TransportChoice::Device,
    };
    options.threads = config.threads as usize;
    options.guarded = config.guard;
    // With many CPUs the buffers would take all of the budget: fewer, then smaller ones.
    options.fit_buffers(config.memory_budget.0 / 4);
    if config.older_kernel {
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
