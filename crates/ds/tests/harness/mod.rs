//! A data server on temporary directories, which can be restarted and rebooted.
#![cfg_attr(test, allow(dead_code, reason = "each test file uses a part"))]

pub mod linked;

use ds::{
    DataServer, DeviceTier, DsOptions, KvMaps, Linked, MapStore, Nearline, Object, ObjectHint, ScrubOptions,
};
use kv::{MetaStore, MetaStoreOptions};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use store::{Faults, FsUuid, MemoryTier, MemoryTierOptions, MemoryTierState, TierStore, TierStoreOptions};
use types::{Errno, Ino, LocalId, TierId, TierSet, UgsdId};

/// Asked before each save of a map; an error is the save's.
pub type OnSave = Box<dyn FnMut(&layout::ObjectRecord) -> Result<(), Errno> + Send>;

pub struct Site {
    dir: tempfile::TempDir,
    uuid: FsUuid,
    pub memory_limit: u64,
    pub ssd_limit: Option<u64>,
    pub nearline_limit: Option<u64>,
    pub safe_within: Duration,
    pub seal_after: Duration,
    pub scrub: ScrubOptions,
    instance: Option<store::InstanceId>,
    generation: u32,
    pub faults: Faults,
    /// Near-line, in place of a directory of ours.
    pub linked: Option<Arc<dyn Linked>>,
    pub has_ssd: bool,
    /// What is read of a linked near-line comes up.
    pub fills: bool,
    pub fill_bytes_max: u64,
    /// Of the SSD alone, in place of `faults`.
    pub ssd_faults: Option<Faults>,
    /// Longer operations of devices are slow.
    pub slow_after: Duration,
    running: Option<(Arc<DataServer>, Arc<MetaStore>)>,
    /// While somebody else holds it, no map is saved: as when the journal has no room.
    pub gate: Arc<std::sync::Mutex<()>>,
    on_save: Arc<std::sync::Mutex<Option<OnSave>>>,
}

impl Site {
    pub fn new(memory_limit: u64) -> Site {
        Site {
            dir: tempfile::tempdir_in(shared_root()).unwrap(),
            uuid: FsUuid([7; 16]),
            memory_limit,
            ssd_limit: None,
            nearline_limit: None,
            safe_within: Duration::from_secs(30),
            seal_after: Duration::from_secs(10),
            scrub: ScrubOptions::default(),
            instance: None,
            generation: 0,
            faults: Faults::default(),
            linked: None,
            has_ssd: true,
            fills: false,
            fill_bytes_max: 32 << 20,
            ssd_faults: None,
            slow_after: Duration::from_secs(3600),
            running: None,
            gate: Arc::default(),
            on_save: Arc::default(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn server(&self) -> &Arc<DataServer> {
        &self.running.as_ref().unwrap().0
    }
    pub fn maps(&self) -> &Arc<MetaStore> {
        &self.running.as_ref().unwrap().1
    }

    pub fn on_save(&self, ask: impl FnMut(&layout::ObjectRecord) -> Result<(), Errno> + Send + 'static) {
        *self.on_save.lock().unwrap() = Some(Box::new(ask));
    }
    /// Every save of a map fails, after `some` that do not.
    pub fn fail_saves(&self, errno: Errno, mut some: u32) {
        self.on_save(move |_| {
            some = some.checked_sub(1).ok_or(errno)?;
            Ok(())
        });
    }
    pub fn mend_saves(&self) {
        *self.on_save.lock().unwrap() = None;
    }

    pub fn start(&mut self) {
        let mut options = MemoryTierOptions::new(self.path("memory"), self.memory_limit, self.uuid);
        options.own_tmpfs = false;
        options.shared_root = self.path("shared");
        options.known_instance = self.instance;
        let memory = MemoryTier::prepare(&options).unwrap();
        if memory.state() == MemoryTierState::Fresh {
            self.generation += 1;
            self.instance = Some(memory.instance());
        }
        let open = |tier: TierId, dir: &Path| {
            let mut options = TierStoreOptions::new(tier, self.uuid);
            let own = self.ssd_faults.as_ref().filter(|_| tier == TierId::Ssd);
            options.faults = own.unwrap_or(&self.faults).clone();
            options.slow_after = self.slow_after;
            TierStore::open(dir, options).unwrap()
        };
        let memory_store = open(TierId::Memory, memory.path());
        let meta =
            Arc::new(MetaStore::open_default(&self.path("meta"), MetaStoreOptions::default()).unwrap());
        let device =
            |tier, name: &str, limit| Some(DeviceTier { store: open(tier, &self.path(name)), limit });
        let nearline = match &self.linked {
            Some(linked) => Nearline::Linked(linked.clone()),
            None => device(TierId::Nearline, "nearline", self.nearline_limit)
                .map_or(Nearline::None, Nearline::Native),
        };
        let server = DataServer::start(DsOptions {
            memory: Some((memory, memory_store)),
            ssd: if self.has_ssd { device(TierId::Ssd, "ssd", self.ssd_limit) } else { None },
            nearline,
            memory_generation: self.generation,
            maps: Arc::new(GatedMaps {
                kv: KvMaps::new(meta.clone(), Box::new(|_, _| Err(Errno::EIO))),
                gate: self.gate.clone(),
                on_save: self.on_save.clone(),
            }),
            tiering: tier::Settings {
                promote_on_open: if self.fills { TierSet::of(TierId::Nearline) } else { TierSet::EMPTY },
                ..tier::Settings::default()
            },
            movers: 2,
            fill_bytes_max: self.fill_bytes_max,
            sync_period: Duration::from_millis(50),
            waiting_max: 512,
            safe_within: self.safe_within,
            seal_after: self.seal_after,
            scrub: self.scrub,
            held: false,
        })
        .unwrap();
        let devices = Arc::downgrade(&server);
        meta.set_before_sync(Box::new(move || {
            if let Some(server) = devices.upgrade() {
                server.sync_devices();
            }
            Ok(())
        }));
        self.running = Some((server, meta));
    }

    /// Ends the server without flushing anything, as a kill would.
    pub fn stop(&mut self) {
        let (server, meta) = self.running.take().unwrap();
        server.shutdown();
        drop(server);
        meta.close().unwrap();
    }

    pub fn restart(&mut self) {
        self.stop();
        self.start();
    }

    /// The memory tier is gone.
    pub fn reboot(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(self.dir.path().join("shared"));
        self.start();
    }

    /// The object's file in a tier.
    pub fn tier_path(&self, tier: TierId, n: u64) -> PathBuf {
        let status = self.server().tiers().into_iter().find(|t| t.tier == tier).unwrap();
        let name = format!("{:016x}", ino(n).get());
        status.dir.join(&name[14..]).join(&name)
    }
    pub fn tier_file(&self, tier: TierId, n: u64) -> Vec<u8> {
        std::fs::read(self.tier_path(tier, n)).unwrap()
    }

    pub fn generation(&self) -> u32 {
        self.generation
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.stop();
        }
    }
}

fn shared_root() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    if shm.is_dir() { shm } else { std::env::temp_dir() }
}

pub fn ino(n: u64) -> Ino {
    Ino::new(UgsdId::ROOT, LocalId::new(n).unwrap())
}

/// Of a file that was closed with this size.
pub fn hint(site: &Site, size: usize) -> ObjectHint {
    ObjectHint {
        size: size as u64,
        written: true,
        stale_live: false,
        memory_generation: site.generation(),
        linked: None,
    }
}

pub fn read(site: &Site, object: &Object, offset: usize, len: usize) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; len];
    site.server().read(object, offset as u64, &mut buf).map(|n| buf[..n].to_vec())
}

struct GatedMaps {
    kv: KvMaps,
    gate: Arc<std::sync::Mutex<()>>,
    on_save: Arc<std::sync::Mutex<Option<OnSave>>>,
}

impl MapStore for GatedMaps {
    fn load(&self, ino: Ino) -> Result<Option<layout::ObjectRecord>, Errno> {
        self.kv.load(ino)
    }
    fn save(&self, ino: Ino, record: &layout::ObjectRecord) -> Result<u64, Errno> {
        let _open = self.gate.lock().unwrap();
        if let Some(ask) = &mut *self.on_save.lock().unwrap() {
            ask(record)?;
        }
        self.kv.save(ino, record)
    }
    fn save_first(&self, ino: Ino, record: &layout::ObjectRecord) -> Result<u64, Errno> {
        self.kv.save_first(ino, record)
    }
    fn drop_chunks(&self, ino: Ino) -> Result<(), Errno> {
        self.kv.drop_chunks(ino)
    }
    fn save_pin(&self, ino: Ino, tier: Option<TierId>) -> Result<(), Errno> {
        self.kv.save_pin(ino, tier)
    }
    fn pins(&self) -> Result<Vec<(Ino, TierId)>, Errno> {
        self.kv.pins()
    }
    fn save_scrub(&self, record: &[u8]) -> Result<(), Errno> {
        self.kv.save_scrub(record)
    }
    fn scrub(&self) -> Result<Option<Vec<u8>>, Errno> {
        self.kv.scrub()
    }
    fn synced(&self) -> u64 {
        self.kv.synced()
    }
    fn sync(&self) -> Result<(), Errno> {
        self.kv.sync()
    }
}
