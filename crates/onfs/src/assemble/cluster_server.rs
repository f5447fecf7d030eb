//! A server of a cluster: the stores, the services over them, and no kernel.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use net::{Bounds, Server, Tuning};
use parking_lot::{Condvar, Mutex};
use serve::data::DataOptions;
use types::Errno;
use wire::handshake::Roles;

use super::{
    StartContext,
    cluster_mount::credentials,
    cluster_roles::{Serving, first_records},
    held::note_server,
    names::{self, Names},
    observed,
    report::own_tiers,
    saving::save_all,
    scrub,
    stores::{Closing, Opening, Stores},
};
use crate::{
    config::{NodeConfig, ServerConfig, id_text},
    control::{
        ControlError, ControlHandler, ErrorCode, MoveReport, Peer, ProgressSink, Request, Response,
        ServerReport,
    },
    monitor::{Id, Sample},
    mounts,
    policy::WriteBehind,
    running::{MountedFs, Running, StartError, UnmountError},
};

/// Connections are ended in order for so long.
const LEAVE: Duration = Duration::from_secs(5);
/// Between looks whether it has to begin anew.
const LOOK: Duration = Duration::from_millis(500);
/// Between attempts to.
const AGAIN: Duration = Duration::from_secs(1);

/// A metadata server that runs has taken the first report by then.
const FIRST_REPORT: Duration = Duration::from_secs(1);

/// As `tier::Settings::write_behind_latest`.
const LEAVE_LATEST: Duration = Duration::from_secs(30);

fn data_options(config: &ServerConfig) -> DataOptions {
    let policy = &config.stores.policy;
    // What is in memory alone is there as long as what is not written behind, at the latest; `None`: as long as it likes.
    let leave_after = match policy.write_behind {
        WriteBehind::After(delay) => Some(delay.0.max(LEAVE_LATEST)),
        WriteBehind::Never => None,
    };
    DataOptions { leave_after, copy_rate: policy.copy_rate.0, ..DataOptions::default() }
}

/// Opens the stores, recovers, and serves. Returns when it can be reached.
pub fn start_server(config: &ServerConfig, context: StartContext<'_>) -> Result<Running, StartError> {
    let parts = Parts::open(config, context.owner_uid, context.note)?;
    let fs = Arc::new(Serves {
        parts: Mutex::new(Some(parts)),
        owner_uid: context.owner_uid,
        config: config.clone(),
        ended: Mutex::new(false),
        changed: Condvar::new(),
    });
    Ok(Running { handler: fs.clone(), fs })
}

/// Mounts on this machine need no network. Without the socket they take that, so a server without one serves as well.
fn listen_near(
    server: &mut Server,
    serving: &Serving,
    config: &ServerConfig,
    cluster: [u8; 16],
) -> Option<PathBuf> {
    let path = config.node.sockets.of(cluster, config.node.id)?;
    let hatch = serving.hatch()?;
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    match made.and_then(|()| server.also_at(&path, hatch)) {
        Ok(()) => Some(path),
        Err(error) => {
            tracing::warn!(socket = %path.display(), %error, "no socket for mounts on this machine: they come over the network");
            None
        }
    }
}

fn roles(node: &NodeConfig) -> Roles {
    let mut roles = Roles::default();
    if node.metadata {
        roles = roles.and(Roles::MDS);
    }
    if node.data {
        roles = roles.and(Roles::DS);
    }
    roles
}

/// What a start that failed had opened.
fn give_up(names: Option<Names>, stores: Stores) {
    if let Some(Err(why)) = names.map(Names::close) {
        tracing::warn!(why, "the names were not closed in order");
    }
    stores.give_up();
}

struct Parts {
    stores: Stores,
    names: Option<Names>,
    serving: Serving,
    server: Server,
    config: ServerConfig,
    cluster: [u8; 16],
    began: Instant,
}

impl Parts {
    fn open(config: &ServerConfig, owner_uid: u32, note: &mut dyn FnMut(&str)) -> Result<Parts, StartError> {
        let credentials = credentials(&config.cluster, config.node.id, roles(&config.node))?;
        let cluster = credentials.me.cluster;
        let mut first = None;
        let mut make_first = first_records(&mut first);
        let opening = Opening { owner_uid, buffers: 0, first: &mut make_first };
        let stores = Stores::open(&config.stores, opening, note)?;
        drop(make_first);
        if let Err(error) = note_server(&stores.store) {
            stores.give_up();
            return Err(error);
        }
        let (names, shared) = match names::open(config, &credentials, (&stores.store, owner_uid), note) {
            Ok(Some((names, shared))) => (Some(names), Some(shared)),
            Ok(None) => (None, None),
            Err(error) => {
                stores.give_up();
                return Err(error);
            }
        };
        let with_names = names.as_ref().zip(shared);
        let of_node = (&config.node, data_options(config));
        let serving = match Serving::start(of_node, &credentials, &stores, first, with_names) {
            Ok(serving) => serving,
            Err(error) => {
                give_up(names, stores);
                return Err(error);
            }
        };
        let listen = &config.node.listen;
        let server = Server::start(
            listen,
            credentials.clone(),
            serving.handler(),
            Tuning::default(),
            Bounds::default(),
        );
        let server = match server {
            Ok(mut server) => {
                let near = listen_near(&mut server, &serving, config, cluster);
                near.iter().for_each(
                    |path| tracing::info!(socket = %path.display(), "mounts on this machine find it"),
                );
                server
            }
            Err(error) => {
                serving.shutdown();
                drop(serving);
                give_up(names, stores);
                return Err(StartError::Failed(format!("{listen}: cannot listen there: {error}")));
            }
        };
        if let Err(error) = serving.report(config, &credentials, (server.address(), stores.mds.uuid())) {
            server.close(LEAVE);
            serving.shutdown();
            drop(serving);
            give_up(names, stores);
            return Err(StartError::Failed(format!("the thread that reports: {error}")));
        }
        stores.ds().release();
        if let Some(why) = serving.is_not_taken(FIRST_REPORT) {
            note(&why);
        }
        let (config, began) = (config.clone(), Instant::now());
        Ok(Parts { stores, names, serving, server, config, cluster, began })
    }

    fn close(self) -> Result<(), String> {
        let Parts { stores, names, serving, server, config, .. } = self;
        server.close(LEAVE);
        serving.shutdown();
        drop(serving);
        let named = names.map_or(Ok(()), Names::close);
        let ds = stores.ds();
        let Stores { store, mds, linked, tiers } = stores;
        drop(tiers);
        let closed = Closing { store, mds, ds, linked, state: config.stores.mount.state }.close(|| true);
        named.and(closed)
    }
}

/// A server seen as what the daemon supervises: its "mount" is that it serves.
struct Serves {
    /// `None` after the end, and while it begins anew.
    parts: Mutex<Option<Parts>>,
    owner_uid: u32,
    config: ServerConfig,
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Serves {
    fn end(&self) {
        *self.ended.lock() = true;
        self.changed.notify_all();
    }

    /// Sleeps for a while; true: it is to end.
    fn ends_within(&self, wait: Duration) -> bool {
        let mut ended = self.ended.lock();
        if !*ended {
            self.changed.wait_for(&mut ended, wait);
        }
        *ended
    }

    /// Another metadata server went on in this one's place, or this one goes on for who was on duty: as a stop and a start, without another process.
    fn begin_anew(&self) {
        let Some(parts) = self.parts.lock().take() else { return };
        tracing::warn!("the server begins anew: its directories have changed hands");
        if let Err(why) = parts.close() {
            // What was answered is another's by now.
            tracing::warn!(why, "it was not closed in order");
        }
        let mut note = |text: &str| tracing::warn!("{text}");
        loop {
            match Parts::open(&self.config, self.owner_uid, &mut note) {
                Ok(parts) => {
                    *self.parts.lock() = Some(parts);
                    tracing::info!("it serves again");
                    return;
                }
                Err(error) => tracing::error!(%error, "it cannot begin anew yet"),
            }
            if self.ends_within(AGAIN) {
                return;
            }
        }
    }
}

fn gone() -> ControlError {
    ControlError::errno("the server", Errno::ENODEV)
}

impl MountedFs for Serves {
    fn flush_all(&self, _: bool, progress: &mut dyn ProgressSink) -> Result<MoveReport, ControlError> {
        let (ds, mds, names) = {
            let parts = self.parts.lock();
            let Parts { stores, names, .. } = parts.as_ref().ok_or_else(gone)?;
            (stores.ds(), stores.mds.clone(), names.as_ref().map(|names| names.mds.clone()))
        };
        if let Some(names) = names {
            names.sync().map_err(|errno| ControlError::errno("the names", errno))?;
        }
        save_all((&ds, &mds), || {}, progress)
    }

    fn unmount(&self, _: bool) -> Result<(), UnmountError> {
        self.end();
        Ok(())
    }

    fn abort(&self) {
        self.end();
    }

    fn wait(&self) {
        while !self.ends_within(LOOK) {
            let anew = self.parts.lock().as_ref().is_some_and(|parts| parts.serving.has_to_begin_anew());
            if anew {
                self.begin_anew();
            }
        }
    }

    fn sample(&self, sample: &mut Sample) {
        let parts = self.parts.lock();
        let Some(parts) = parts.as_ref() else { return };
        observed::process(sample, "server", parts.config.stores.mount.memory_budget.0);
        let (store, mds) = (parts.names_store(), parts.mds());
        observed::stores(sample, &parts.stores.ds(), store, mds);
        sample.add(Id::ServerConnections, &[], parts.server.connections() as u64);
        parts.serving.sample(sample);
    }

    fn troubles(&self) -> Vec<String> {
        let parts = self.parts.lock();
        let Some(parts) = parts.as_ref() else {
            return vec!["the server has ended, or begins anew".to_owned()];
        };
        let mut troubles = parts.serving.troubles();
        troubles.extend(observed::troubles(&parts.stores.ds(), parts.names_store()));
        troubles
    }

    fn finish(&self) -> Result<(), String> {
        let Some(parts) = self.parts.lock().take() else { return Ok(()) };
        // Of a server that has to begin anew others have it already.
        if !parts.serving.has_to_begin_anew() {
            parts.serving.leave();
        }
        parts.close()
    }
}

impl ControlHandler for Serves {
    fn handle(
        &self,
        _: &Peer,
        request: Request,
        progress: &mut dyn ProgressSink,
    ) -> Result<Response, ControlError> {
        if let Request::Status {} = request {
            let parts = self.parts.lock();
            return parts.as_ref().map(|parts| Response::Server(Box::new(parts.report()))).ok_or_else(gone);
        }
        if let Request::Scrub { action } = request {
            // What takes long does not hold the parts.
            let ds = self.parts.lock().as_ref().map(|parts| parts.stores.ds()).ok_or_else(gone)?;
            return scrub::scrub(&ds, action, progress);
        }
        let why = format!("{}: a server has no mount; ask on a client", request.name());
        Err(ControlError::new(ErrorCode::BadRequest, why))
    }
}

impl Parts {
    /// That of the names.
    fn mds(&self) -> &mds::Mds {
        self.names.as_ref().map_or(&*self.stores.mds, |names| &*names.mds)
    }

    fn names_store(&self) -> &kv::MetaStore {
        self.names.as_ref().map_or(&*self.stores.store, |names| &*names.store)
    }

    fn report(&self) -> ServerReport {
        let NodeConfig { id, name, metadata, data, address, .. } = &self.config.node;
        let ds = self.stores.ds();
        let (dirty_files, dirty_bytes) = ds.dirty();
        let roles = [(*metadata, "metadata"), (*data, "data")];
        let mut warnings = observed::troubles(&ds, self.names_store());
        warnings.extend(self.serving.warnings());
        ServerReport {
            node: *id,
            name: name.clone(),
            roles: roles.iter().filter(|(has, _)| *has).map(|(_, name)| (*name).to_owned()).collect(),
            listen: self.server.address().to_string(),
            address: address.to_string(),
            cluster: id_text(self.cluster),
            state_dir: self.config.stores.mount.state.display().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            connections: self.server.connections() as u64,
            tiers: own_tiers(&ds, &mounts::mounts().unwrap_or_default()),
            dirty_bytes,
            dirty_files,
            inodes: self.mds().statfs_usage().inodes,
            sessions: self.serving.sessions(),
            objects_in_use: self.serving.objects_in_use(),
            warnings,
        }
    }
}
