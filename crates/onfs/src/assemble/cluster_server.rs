//! A server of a cluster: the stores, the services over them, and no kernel.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use net::{Bounds, Server, Tuning};
use parking_lot::{Condvar, Mutex};
use types::Errno;
use wire::handshake::Roles;

use super::{
    StartContext,
    cluster_mount::credentials,
    cluster_roles::{Serving, first_records},
    names::{self, Names},
    observed,
    report::own_tiers,
    saving::save_all,
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
    running::{MountedFs, Running, StartError, UnmountError},
};

/// Connections are ended in order for so long.
const LEAVE: Duration = Duration::from_secs(5);

/// Opens the stores, recovers, and serves. Returns when it can be reached.
pub fn start_server(config: &ServerConfig, context: StartContext<'_>) -> Result<Running, StartError> {
    let credentials = credentials(&config.cluster, config.node.id, roles(&config.node))?;
    let cluster = credentials.me.cluster;
    let mut first = None;
    let mut make_first = first_records(&mut first);
    let opening = Opening { owner_uid: context.owner_uid, buffers: 0, first: &mut make_first };
    let stores = Stores::open(&config.stores, opening, context.note)?;
    drop(make_first);
    let (names, shared) =
        match names::open(config, &credentials, (&stores.store, context.owner_uid), context.note) {
            Ok(Some((names, shared))) => (Some(names), Some(shared)),
            Ok(None) => (None, None),
            Err(error) => {
                stores.give_up();
                return Err(error);
            }
        };
    let with_names = names.as_ref().zip(shared);
    let serving = match Serving::start(&config.node, &credentials, &stores, first, with_names) {
        Ok(serving) => serving,
        Err(error) => {
            give_up(names, stores);
            return Err(error);
        }
    };
    let listen = &config.node.listen;
    let server =
        Server::start(listen, credentials.clone(), serving.handler(), Tuning::default(), Bounds::default());
    let server = match server {
        Ok(server) => server,
        Err(error) => {
            serving.shutdown();
            drop(serving);
            give_up(names, stores);
            return Err(StartError::Failed(format!("{listen}: cannot listen there: {error}")));
        }
    };
    if let Err(error) = serving.report(config, &credentials, server.address()) {
        server.close(LEAVE);
        serving.shutdown();
        drop(serving);
        give_up(names, stores);
        return Err(StartError::Failed(format!("the thread that reports: {error}")));
    }
    stores.ds().release();
    let parts =
        Parts { stores, names, serving, server, config: config.clone(), cluster, began: Instant::now() };
    let fs = Arc::new(Serves {
        parts: Mutex::new(Some(parts)),
        ended: Mutex::new(false),
        changed: Condvar::new(),
    });
    Ok(Running { handler: fs.clone(), fs })
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

/// A server seen as what the daemon supervises: its "mount" is that it serves.
struct Serves {
    /// `None` after the end.
    parts: Mutex<Option<Parts>>,
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Serves {
    fn end(&self) {
        *self.ended.lock() = true;
        self.changed.notify_all();
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
        let mut ended = self.ended.lock();
        while !*ended {
            self.changed.wait(&mut ended);
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
        let Some(parts) = parts.as_ref() else { return vec!["the server has ended".to_owned()] };
        let mut troubles = parts.serving.troubles();
        troubles.extend(observed::troubles(&parts.stores.ds(), parts.names_store()));
        troubles
    }

    fn finish(&self) -> Result<(), String> {
        let Some(parts) = self.parts.lock().take() else { return Ok(()) };
        let Parts { stores, names, serving, server, config, .. } = parts;
        serving.leave();
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

impl ControlHandler for Serves {
    fn handle(&self, _: &Peer, request: Request, _: &mut dyn ProgressSink) -> Result<Response, ControlError> {
        if let Request::Status {} = request {
            let parts = self.parts.lock();
            return parts.as_ref().map(|parts| Response::Server(Box::new(parts.report()))).ok_or_else(gone);
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
        let meta = self.stores.store.stats();
        let mut warnings: Vec<String> =
            meta.read_only.iter().map(|why| format!("metadata is read-only: {why}")).collect();
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
