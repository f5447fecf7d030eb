//! What a server remembers, on a disk whose power can be cut.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use kv::{MemoryEngine, MetaStore, MetaStoreOptions, OpenError};

use super::fault_disk::{FaultDisk, FaultEngine};

pub struct State {
    disk: FaultDisk,
    engine: MemoryEngine,
}

impl State {
    pub fn new() -> State {
        State { disk: FaultDisk::new(), engine: MemoryEngine::default() }
    }

    pub fn open(&self, dir: &Path) -> Arc<MetaStore> {
        std::fs::create_dir_all(dir).unwrap();
        // Small: a sync of this disk copies the journal.
        let (checkpoint_bytes, cache_bytes) = (64 << 10, 64 << 10);
        let end = super::deadline();
        loop {
            let engine = FaultEngine { disk: self.disk.clone(), inner: self.engine.clone() };
            let options = MetaStoreOptions { checkpoint_bytes, cache_bytes, ..MetaStoreOptions::default() };
            let disk = Arc::new(self.disk.clone());
            match MetaStore::open(dir, |_, _| Ok(Box::new(engine)), options, disk) {
                // A thread of the earlier life has it until it is through with what it did.
                Err(OpenError::Locked { .. }) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                opened => return Arc::new(opened.unwrap()),
            }
        }
    }

    /// The process dies: what it does from here on is not done.
    pub fn kill(&mut self) {
        self.disk = self.disk.kill();
    }

    /// The machine dies, and what was not made durable is gone.
    pub fn power_cut(&mut self) {
        self.disk = self.disk.power_cut(&mut |_| 0);
    }
}
