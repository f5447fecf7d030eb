//! The settings of a store.

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct MetaStoreOptions {
    /// T_syn: how long a commit may stay unsynced.
    pub sync_period: Duration,
    /// Journal bytes at which a checkpoint begins. The overlay's memory is a small multiple of it.
    pub checkpoint_bytes: u64,
    /// A checkpoint begins at the latest this long after the last, if there is anything to carry.
    pub checkpoint_period: Duration,
    /// Memory for clean entries: half for the store's cache, half for the engine's.
    pub cache_bytes: u64,
    /// Open a damaged journal by dropping what follows the damage.
    pub repair: bool,
    /// Sync and checkpoint in the background; tests do without.
    pub background: bool,
    /// A store of another engine is refused before this one is opened; without it, afterwards.
    pub engine: Option<&'static str>,
}

impl Default for MetaStoreOptions {
    fn default() -> MetaStoreOptions {
        MetaStoreOptions {
            sync_period: Duration::from_secs(1),
            checkpoint_bytes: 16 << 20,
            checkpoint_period: Duration::from_secs(5),
            cache_bytes: 128 << 20,
            repair: false,
            background: true,
            engine: None,
        }
    }
}
