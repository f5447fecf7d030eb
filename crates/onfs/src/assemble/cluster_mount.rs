//! A mount of a cluster: the client and the kernel's session, and nothing stored here.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fuse::{Session, TransportChoice, UnmountError as FuseUnmount};
use net::tls::Tls;
use parking_lot::RwLock;
use remote::{OwnNode, OwnStatus, Remote, RemoteOptions, ServerStatus};
use types::Errno;
use wire::{
    connection::Window,
    handshake::{Identity, Roles, Versions},
};

use super::{StartContext, begin_session, mount_options, observed, patience::told, refusals::of_mount};
use crate::{
    config::{ClusterConfig, RemoteConfig, Transport, id_text},
    control::{
        ClusterMountReport, ControlError, ControlHandler, ErrorCode, MoveReport, NodeReport, OwnReport, Peer,
        ProgressSink, Request, Response,
    },
    guard::Ward,
    monitor::{Id, Sample},
    running::{MountedFs, Running, StartError, UnmountError},
    watched,
};

/// Buffers of writes that are kept back: more than the largest files use at once.
const HELD_MAX: usize = 24;

/// Makes a session at the cluster's metadata server, mounts, and serves.
pub fn start_remote(config: &RemoteConfig, context: StartContext<'_>) -> Result<Running, StartError> {
    if config.mount.transport == Transport::IoUring {
        let why = "mount.transport: a mount of a cluster is served over /dev/fuse (auto, dev): with io_uring programs \
                   that wait for locks would stop all others";
        return Err(StartError::Config(why.to_owned()));
    }
    let ward = context.ward;
    let estate = ward.as_ref().map(|ward| ward.estate().clone());
    let number = client_number()?;
    let number = estate.as_ref().map_or(number, |estate| remote::written_node(estate, number));
    let credentials = credentials(&config.cluster, number, Roles::CLIENT)?;
    let cluster = credentials.me.cluster;
    let mut options = RemoteOptions::new(config.cluster.metadata.clone(), credentials);
    options.host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    options.job.clone_from(&config.mount.job);
    options.control_socket = Some(context.control_socket.to_owned());
    options.own_node = match config.mount.node {
        None => OwnNode::Detect,
        Some(0) => OwnNode::None,
        Some(node) => OwnNode::Is(node.into()),
    };
    options.sockets = config.sockets.clone();
    // What the kernel reads by itself the next daemon would have to know.
    options.passthrough = config.mount.passthrough && estate.is_none();
    options.resumes = ward.as_ref().is_some_and(|ward| ward.resumes());
    options.estate = estate;
    options.no_atime = config.mount.flags.no_atime;
    options.leases = config.mount.leases;
    options.cache = config.mount.cache.0;
    options.read_ahead = config.mount.read_ahead.0;
    options.write_back = config.mount.write_back.0;
    options.workers = config.mount.workers as usize;
    options.data_workers = config.mount.workers as usize * 2;
    let source = &config.source;
    let waits_for = format!("{source}: no metadata server has answered yet; it is waited for");
    let started = told(context.note, &waits_for, || Remote::start(options))?;
    let remote = started.map_err(|error| StartError::Failed(format!("{source}: {error}")))?;
    let mut wanted = mount_options(&config.mount);
    wanted.transport = TransportChoice::Device;
    let held = config.mount.write_back.0 / u64::from(wanted.max_transfer);
    wanted.held_buffers = usize::try_from(held).unwrap_or(HELD_MAX).min(HELD_MAX);
    wanted.fsname.clone_from(&config.source);
    let session = match begin_session(&wanted, &remote, ward.as_deref()) {
        Ok(session) => session,
        Err(error) if ward.as_ref().is_some_and(|ward| ward.resumes()) => {
            // As after a kill: the session stays for another attempt.
            std::mem::forget(remote);
            return Err(of_mount(error));
        }
        Err(error) => {
            remote.shutdown();
            return Err(of_mount(error));
        }
    };
    let parts = Parts { remote, session, config: config.clone(), cluster, began: Instant::now(), ward };
    let fs = Arc::new(ClusterMount { parts: RwLock::new(Some(Arc::new(parts))) });
    Ok(Running { handler: fs.clone(), fs })
}

/// What this process says of itself, and the files by which it proves it.
pub(crate) fn credentials(
    cluster: &ClusterConfig,
    node: u64,
    roles: Roles,
) -> Result<net::Credentials, StartError> {
    let key =
        net::key_file::read(&cluster.key_file).map_err(|error| StartError::Config(error.to_string()))?;
    let tls = cluster.tls.clone().map(Tls::open).transpose();
    let tls = tls.map_err(|error| StartError::Config(error.to_string()))?;
    let me = Identity {
        cluster: cluster.id.unwrap_or_else(|| key.cluster_id()),
        node,
        roles,
        build: env!("CARGO_PKG_VERSION").to_owned(),
        versions: Versions::OURS,
        // The connection says its own.
        takes: Window { requests: 0, bytes: 0 },
    };
    Ok(net::Credentials { me, key, tls })
}

/// A client is in no map: any number above those of nodes does.
pub(crate) fn client_number() -> Result<u64, StartError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| StartError::Failed(format!("random numbers: {error}")))?;
    Ok(u64::from_le_bytes(bytes) | 1 << 63)
}

struct Parts {
    remote: Arc<Remote>,
    session: Session,
    config: RemoteConfig,
    cluster: [u8; 16],
    began: Instant,
    ward: Option<Arc<Ward>>,
}

struct ClusterMount {
    /// `None` after the end.
    parts: RwLock<Option<Arc<Parts>>>,
}

impl ClusterMount {
    fn parts(&self) -> Option<Arc<Parts>> {
        self.parts.read().clone()
    }
}

impl MountedFs for ClusterMount {
    /// Every write was answered by its servers: here nothing is left to be made safe.
    fn flush_all(&self, _: bool, _: &mut dyn ProgressSink) -> Result<MoveReport, ControlError> {
        Ok(MoveReport::default())
    }

    fn unmount(&self, lazy: bool) -> Result<(), UnmountError> {
        let Some(parts) = self.parts() else { return Ok(()) };
        match parts.session.unmount(lazy) {
            Ok(()) | Err(FuseUnmount::NotMounted(_)) => Ok(()),
            Err(FuseUnmount::Busy(_)) => Err(UnmountError::Busy),
            Err(error) => Err(UnmountError::Failed(error.to_string())),
        }
    }

    fn abort(&self) {
        if let Some(parts) = self.parts() {
            parts.session.abort();
        }
    }

    fn leave(&self, patience: Duration) -> bool {
        self.parts().is_none_or(|parts| parts.session.leave(patience))
    }

    fn wait(&self) {
        if let Some(parts) = self.parts() {
            parts.session.run();
        }
    }

    fn sample(&self, sample: &mut Sample) {
        let Some(parts) = self.parts() else { return };
        observed::process(sample, "cluster-mount", parts.config.mount.memory_budget.0);
        sample.add_asked(parts.remote.meter());
        if let Some(guard) = parts.ward.as_ref().map(|ward| ward.report()) {
            observed::guard(sample, &guard);
        }
        let status = parts.remote.status();
        sample.add(Id::MapEpoch, &[], status.map_epoch);
        sample.add(Id::OpenFiles, &[], status.open_files as u64);
        sample.add(Id::ClientReferences, &[], status.references as u64);
        sample.add(Id::SessionsLost, &[], status.sessions_lost);
        sample.add(Id::KeptAnswers, &[], status.kept.answered);
        sample.add(Id::KeptRecalls, &[], status.kept.recalled);
        sample.add(Id::KeptLapses, &[], status.kept.lapsed);
        sample.add(Id::KeptNames, &[], status.kept.names);
        sample.add(Id::KeptInodes, &[], status.kept.inodes);
        if let Some(own) = &status.own {
            sample.add(Id::OwnSocket, &[], u64::from(own.near));
            sample.add(Id::OwnFiles, &[], own.files as u64);
            sample.add(Id::OwnFilesEver, &[], own.files_ever);
        }
        sample.add(Id::KeptFiles, &[], status.kept.files);
        sample.add(Id::KeptReads, &["found"], status.cache.found);
        sample.add(Id::KeptReads, &["asked"], status.cache.missed);
        sample.add(Id::KeptBytes, &[], status.cache.bytes);
        sample.add(Id::AheadReads, &[], status.ahead.found);
        sample.add(Id::AheadBlocks, &["asked"], status.ahead.asked);
        sample.add(Id::AheadBlocks, &["unread"], status.ahead.unread);
        sample.add(Id::AheadBytes, &[], status.ahead.bytes);
        sample.add(Id::BackWrites, &[], status.back.writes);
        sample.add(Id::BackRequests, &[], status.back.requests);
        sample.add(Id::BackBytes, &[], status.back.bytes);
        sample.add(Id::BackLost, &[], status.back.lost);
        sample.add(Id::MappedFiles, &[], status.mapped.0);
        sample.add(Id::MappedDrops, &[], status.mapped.1);
        for server in status.metadata.iter().chain(&status.data) {
            let away = server.away.as_ref().map_or(0.0, |(since, _)| since.as_secs_f64());
            sample.add_real(Id::ServerAway, &[&server.name], away);
        }
    }

    fn troubles(&self) -> Vec<String> {
        let Some(parts) = self.parts() else { return vec!["the file system has ended".to_owned()] };
        let status = parts.remote.status();
        status.metadata.iter().chain(&status.data).filter_map(warning).collect()
    }

    fn finish(&self) -> Result<(), String> {
        if let Some(parts) = self.parts.write().take() {
            parts.remote.shutdown();
        }
        Ok(())
    }
}

impl ControlHandler for ClusterMount {
    fn handle(&self, _: &Peer, request: Request, _: &mut dyn ProgressSink) -> Result<Response, ControlError> {
        let Some(parts) = self.parts() else {
            return Err(ControlError::errno("the file system", Errno::ENODEV));
        };
        if let Request::Status {} = request {
            return Ok(Response::ClusterMount(Box::new(parts.report())));
        }
        let name = request.name();
        let why =
            format!("{name}: that is not for mounts of a cluster; onfs layout says where a file's data are");
        Err(ControlError::new(ErrorCode::BadRequest, why))
    }
}

impl Parts {
    fn report(&self) -> ClusterMountReport {
        let status = self.remote.status();
        let servers = status.metadata.iter().chain(&status.data);
        let mut warnings: Vec<String> = servers.clone().filter_map(warning).collect();
        let whole = match self.remote.cluster_now() {
            Ok(now) => Some(watched::cluster(&now)),
            Err(why) => {
                warnings.push(format!("the metadata server does not say how the cluster is: {why}"));
                None
            }
        };
        warnings.extend(whole.iter().flat_map(|whole| whole.warnings.iter().cloned()));
        ClusterMountReport {
            mountpoint: self.session.mountpoint().display().to_string(),
            state_dir: self.config.mount.state.display().to_string(),
            source: self.config.source.clone(),
            cluster: id_text(self.cluster),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: millis(self.began.elapsed()),
            session: status.session.clone(),
            sessions_lost: status.sessions_lost,
            map_epoch: status.map_epoch,
            open_files: status.open_files as u64,
            known_inodes: status.references as u64,
            own: status.own.map(own),
            servers: servers.map(node).collect(),
            whole,
            guard: self.ward.as_ref().map(|ward| ward.report()),
            warnings,
        }
    }
}

fn own(own: OwnStatus) -> OwnReport {
    let way = if own.near { "socket" } else { "network" };
    OwnReport {
        node: own.node,
        takes: own.takes,
        way: way.to_owned(),
        passthrough_files: own.files as u64,
        passthrough_files_ever: own.files_ever,
    }
}

fn node(server: &ServerStatus) -> NodeReport {
    NodeReport {
        node: server.node,
        name: server.name.clone(),
        addresses: server.addresses.clone(),
        state: match (&server.away, server.up) {
            (Some(_), _) => "away".to_owned(),
            (None, true) if server.on_duty => "up, on duty".to_owned(),
            (None, true) => "up".to_owned(),
            (None, false) => "down".to_owned(),
        },
        in_flight: server.in_flight,
        ..NodeReport::default()
    }
}

fn warning(server: &ServerStatus) -> Option<String> {
    // A metadata server that is dead, and for which another goes on, is needed by nobody.
    let (since, why) = server.away.as_ref().filter(|_| server.serves)?;
    Some(format!("{} has not answered for {} s: {why}", server.name, since.as_secs()))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
