//! Opening the metadata store and the server on it.

use std::{path::Path, sync::Arc};

use kv::{MetaStore, MetaStoreOptions, OpenError};
use mds::{Mds, MdsOptions};

use crate::{config::Config, running::StartError};

/// Where the metadata is, below the state directory.
const META_DIR: &str = "meta";
/// The memory budget's shares: requests' buffers first, then an eighth for journal and overlay, a third for the caches, and
/// three eighths for what is kept of each inode that the kernel knows. What is left of it is enough for what is read of a linked
/// directory, a tenth of the budget.
const CACHE_SHARE: u64 = 3;
/// References, the arbiter's memory of the page cache, and the tables around them; measured.
const KNOWN_BYTES: u64 = 160;
const KNOWN_MIN: u64 = 10_000;

/// How many inodes the kernel may know.
pub(super) fn known_max(config: &Config, buffers: u64) -> usize {
    let left = config.mount.memory_budget.0.saturating_sub(buffers);
    usize::try_from((left / 8 * 3 / KNOWN_BYTES).max(KNOWN_MIN)).unwrap_or(usize::MAX)
}

/// Was anything stored there? A directory that cannot be looked into may have something.
pub fn has_metadata(state: &Path) -> bool {
    match std::fs::read_dir(state.join(META_DIR)) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

pub(super) fn open_metadata(config: &Config, buffers: u64, repair: bool) -> Result<MetaStore, OpenError> {
    let left = config.mount.memory_budget.0.saturating_sub(buffers);
    let options = MetaStoreOptions {
        sync_period: config.metadata.sync_period,
        checkpoint_bytes: config.metadata.journal_size.0.min(left / 8).max(1 << 20),
        cache_bytes: (left / CACHE_SHARE).max(4 << 20),
        repair,
        ..MetaStoreOptions::default()
    };
    MetaStore::open_default(&config.mount.state.join(META_DIR), options)
}

/// What the opening left out of the journal, if anything.
pub(super) fn recovery_line(store: &MetaStore) -> Option<String> {
    let report = store.recovery();
    if report.repaired {
        Some(format!(
            "the metadata journal was damaged: {} later changes were dropped by the repair",
            report.dropped
        ))
    } else if report.dropped > 0 {
        Some(format!(
            "the metadata journal has a hole: {} later changes were dropped; none of them is known to have been \
             made durable (fsync, or one sync period)",
            report.dropped
        ))
    } else {
        None
    }
}

pub(super) fn open_mds(store: &Arc<MetaStore>, owner_uid: u32) -> Result<Mds, StartError> {
    let gid = rustix::process::getegid().as_raw();
    let options = MdsOptions { root_uid: owner_uid, root_gid: gid, ..MdsOptions::default() };
    Mds::new(store.clone(), options).map_err(|error| match error {
        mds::Error::OtherFormat { .. } | mds::Error::Store(_) => StartError::Damaged(error.to_string()),
        mds::Error::Random(_) => StartError::Failed(error.to_string()),
    })
}
