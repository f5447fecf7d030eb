//! Server processes of a test: data servers on temporary directories behind real sockets, which can be killed and started again.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

pub mod cluster;
#[path = "../../../mds/tests/common_engine/mod.rs"]
mod common_engine;
pub mod cuts;
#[path = "../../../kv/tests/support/fault_disk.rs"]
mod fault_disk;
pub mod say;
pub mod several;
pub mod state;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use ds::{DataServer, DeviceTier, DsOptions, KvMaps, Nearline};
use kv::MetaStore;
use net::{Address, Bounds, Call, Client, Credentials, Handler, Incoming, Reply, Server, Target, Tuning};
use proto::Request;
use serve::{
    DataService,
    data::{DataOptions, first_record},
};
use state::State;
use store::{Faults, FsUuid, MemoryTier, MemoryTierOptions, MemoryTierState, TierStore, TierStoreOptions};
use types::{Ino, LocalId, TierId, UgsdId};
use wire::{
    connection::Window,
    frame::{Body, Verdict},
    handshake::{Identity, Roles, Versions, Wish},
    key::ClusterKey,
    schema::{Fault, Lane},
};

pub fn credentials(node: u64) -> Credentials {
    let me = Identity {
        cluster: [1; 16],
        node,
        // Those of servers, which report and hand slots over; nothing else asks for them.
        roles: Roles::DS.and(Roles::MDS),
        build: cuts::build_of(node),
        versions: Versions::OURS,
        takes: Window { requests: 64, bytes: 64 << 20 },
    };
    Credentials { me, key: ClusterKey::new([7; 32]), tls: None }
}

/// Asks nobody anything.
pub struct Mute;

impl Handler for Mute {
    fn asked(&self, _: Incoming, _: Reply) {}
}

pub fn client_to(address: &Address, node: u64, lane: Lane) -> Client {
    client_as(credentials(99), address, node, lane)
}

pub fn client_as(credentials: Credentials, address: &Address, node: u64, lane: Lane) -> Client {
    Client::new(Target {
        address: address.clone(),
        wish: Wish { lane, node: Some(node) },
        credentials,
        handler: Arc::new(Mute),
        tuning: Tuning::default(),
    })
}

/// Only bounds a hang: nothing here takes nearly as long, but a machine may stand still for a while.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// An answer and its body.
pub type Asked<A> = Result<(A, Vec<u8>), Fault>;

/// As a client does: who is told to come later comes later.
pub fn ask<R: Request>(client: &Client, request: &R, body: &[u8], answer_bytes_max: u32) -> Asked<R::Answer> {
    let end = deadline();
    loop {
        match ask_once(client, request, body, answer_bytes_max) {
            Err(fault) if fault.errno == types::Errno::EAGAIN.raw() && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(fault.after_ms.into()));
            }
            answered => return answered,
        }
    }
}

/// Who is told to come later is told so.
pub fn ask_once<R: Request>(
    client: &Client,
    request: &R,
    body: &[u8],
    answer_bytes_max: u32,
) -> Asked<R::Answer> {
    let call = Call {
        body: Body::new(body.to_vec()),
        answer_bytes_max,
        ..Call::new(R::METHOD.number(), request.encode_to_vec(), deadline())
    };
    let answered = client.call(call).unwrap();
    match answered.header.verdict {
        Verdict::Done => {
            Ok((<R::Answer as prost::Message>::decode(&answered.meta[..]).unwrap(), answered.body.into_vec()))
        }
        Verdict::Fault => Err(proto::fault::read(&answered.meta)),
        Verdict::Refused => panic!("refused"),
    }
}

pub fn until(what: &str, mut there: impl FnMut() -> bool) {
    let end = deadline();
    while !there() {
        assert!(Instant::now() < end, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn ino(n: u64) -> Ino {
    Ino::new(UgsdId::ROOT, LocalId::new(n).unwrap())
}

/// The memory tier wants a tmpfs.
fn shared_root() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    if shm.is_dir() { shm } else { std::env::temp_dir() }
}

struct Running {
    ds: Arc<DataServer>,
    store: Arc<MetaStore>,
    service: Arc<DataService>,
    /// None: it is being killed.
    server: Option<Server>,
}

/// One data server.
pub struct DataSite {
    pub node: u64,
    dir: tempfile::TempDir,
    state: State,
    instance: Option<store::InstanceId>,
    generation: u32,
    pub memory: u64,
    /// Bytes of the SSD tier; `None`: there is only memory.
    pub ssd: Option<u64>,
    pub faults: Faults,
    /// Of the SSD tier alone, in their place.
    pub ssd_faults: Option<Faults>,
    pub options: DataOptions,
    /// Stays over restarts.
    pub address: Option<Address>,
    /// Others are told that it is there.
    pub shown: Option<Address>,
    /// It also listens at a Unix socket for clients on its machine.
    pub near: bool,
    running: Option<Running>,
}

impl DataSite {
    pub fn new(node: u64) -> DataSite {
        DataSite {
            node,
            dir: tempfile::tempdir_in(shared_root()).unwrap(),
            state: State::new(),
            instance: None,
            generation: 0,
            memory: 64 << 20,
            ssd: Some(1 << 30),
            faults: Faults::armed(),
            ssd_faults: None,
            options: DataOptions { idle: Duration::from_millis(200), ..DataOptions::default() },
            address: None,
            shown: None,
            near: false,
            running: None,
        }
    }

    pub fn started(node: u64) -> DataSite {
        let mut site = DataSite::new(node);
        site.start();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Before its first start: its store is one of names, too.
    pub fn make_names(&self) {
        let store = self.state.open(&self.path("meta"));
        drop(mds::Mds::new(store.clone(), mds::MdsOptions::default()).unwrap());
        store.close().unwrap();
    }

    pub fn start(&mut self) {
        let uuid = FsUuid([7; 16]);
        let mut options = MemoryTierOptions::new(self.path("memory"), self.memory, uuid);
        options.own_tmpfs = false;
        options.shared_root = self.path("shared");
        options.known_instance = self.instance;
        let memory = MemoryTier::prepare(&options).unwrap();
        let fresh = memory.state() == MemoryTierState::Fresh;
        if fresh {
            self.generation += 1;
            self.instance = Some(memory.instance());
        }
        let open = |tier: TierId, dir: &std::path::Path| {
            let mut options = TierStoreOptions::new(tier, uuid);
            let of_its_own = self.ssd_faults.as_ref().filter(|_| tier == TierId::Ssd);
            options.faults = of_its_own.unwrap_or(&self.faults).clone();
            TierStore::open(dir, options).unwrap()
        };
        let memory_store = open(TierId::Memory, memory.path());
        let ssd = self.ssd.map(|limit| {
            let (store, limit) = (open(TierId::Ssd, &self.path("ssd")), Some(limit));
            DeviceTier { store, limit }
        });
        let store = self.state.open(&self.path("meta"));
        if fresh {
            serve::data::forget_life(&store).unwrap();
        }
        let first = first_record(&store);
        let ds = DataServer::start(DsOptions {
            memory: Some((memory, memory_store)),
            ssd,
            nearline: Nearline::None,
            memory_generation: self.generation,
            maps: Arc::new(KvMaps::new(store.clone(), first.hook())),
            tiering: tier::Settings::default(),
            movers: 1,
            fill_bytes_max: 32 << 20,
            sync_period: Duration::from_millis(50),
            waiting_max: 512,
            safe_within: Duration::from_secs(30),
            seal_after: Duration::from_secs(10),
            scrub: ds::ScrubOptions::default(),
            held: false,
        })
        .unwrap();
        let devices = Arc::downgrade(&ds);
        store.set_before_sync(Box::new(move || {
            if let Some(server) = devices.upgrade() {
                server.sync_devices();
            }
            Ok(())
        }));
        let service = DataService::start(ds.clone(), store.clone(), first, self.options).unwrap();
        service.set_credentials(credentials(self.node));
        let address = self
            .address
            .clone()
            .unwrap_or_else(|| format!("unix:{}", self.dir.path().join("socket").display()).parse().unwrap());
        let mut server = Server::start(
            &address,
            credentials(self.node),
            service.clone(),
            Tuning::default(),
            Bounds::default(),
        )
        .unwrap();
        if self.near {
            server.also_at(&self.near_socket(), service.clone()).unwrap();
        }
        self.address = Some(server.address());
        self.running = Some(Running { ds, store, service, server: Some(server) });
    }

    /// Ends without settling or flushing anything, as a kill does.
    pub fn kill(&mut self) {
        // Or it would answer that it is dead.
        drop(self.running.as_mut().unwrap().server.take());
        self.state.kill();
        self.stop();
    }

    fn stop(&mut self) {
        let Running { ds, store, service, server } = self.running.take().unwrap();
        drop(server);
        service.abandon();
        drop(service);
        ds.shutdown();
        let left = Arc::downgrade(&ds);
        drop(ds);
        // A thread that looks for idle objects may still have it.
        until("its last thread ends", || left.strong_count() == 0);
        let _ = store.close();
    }

    pub fn restart(&mut self) {
        self.kill();
        self.start();
    }

    /// The memory tier is gone.
    pub fn reboot(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(self.dir.path().join("shared"));
        self.start();
    }

    /// The memory tier is gone, and of what it was to remember all that was not made durable.
    pub fn power_cut(&mut self) {
        self.state.power_cut();
        self.stop();
        let _ = std::fs::remove_dir_all(self.dir.path().join("shared"));
        self.start();
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub fn near_socket(&self) -> PathBuf {
        self.dir.path().join("near")
    }

    pub fn address(&self) -> &Address {
        self.address.as_ref().unwrap()
    }

    /// Where others reach it.
    pub fn shown(&self) -> &Address {
        self.shown.as_ref().unwrap_or_else(|| self.address())
    }

    pub fn data_server(&self) -> &Arc<DataServer> {
        &self.running.as_ref().unwrap().ds
    }

    pub fn service(&self) -> &Arc<DataService> {
        &self.running.as_ref().unwrap().service
    }

    pub fn store(&self) -> &Arc<MetaStore> {
        &self.running.as_ref().unwrap().store
    }

    pub fn client(&self) -> Client {
        client_to(self.address(), self.node, Lane::Data)
    }
}

impl Drop for DataSite {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.kill();
        }
    }
}
