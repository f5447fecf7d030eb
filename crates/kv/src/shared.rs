//! What the callers of a store and its background threads share.
//!
//! Lock order: `checkpointing` > `gate` > the journal lock > an overlay or cache shard. Callers' code (visitors, the
//! hook before a sync) runs under none of them, except the hook under `checkpointing`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use namespace::txn::KvError;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    Engine, Lsn, MetaStoreOptions,
    cache::Cache,
    journal::{Health, Journal},
    overlay::Overlay,
    reserve::Reserve,
    state_dir::StateDir,
    work::Work,
};

/// The journal may become this many times `checkpoint_bytes`; then commits wait for a checkpoint.
pub(crate) const BACKLOG: u64 = 4;
/// The longest that a commit waits for a checkpoint.
const COMMIT_WAIT_MAX: Duration = Duration::from_secs(30);

pub(crate) struct Shared {
    pub engine: Box<dyn Engine>,
    pub overlay: Overlay,
    pub cache: Cache,
    pub journal: Journal,
    pub health: Arc<Health>,
    /// As far as the disk is large enough.
    pub options: MetaStoreOptions,
    pub reserve: Reserve,
    /// Commits hold it shared from the append to the overlay; freezing holds it alone.
    pub gate: RwLock<()>,
    /// The last number in the frozen overlay, while there is one.
    pub checkpointing: Mutex<Option<Lsn>>,
    pub applied: AtomicU64,
    pub checkpoints: AtomicU64,
    /// The last checkpoint had too little space.
    pub no_space: AtomicBool,
    /// When a commit last looked whether that is over.
    pub space_checked: Mutex<Option<Instant>>,
    pub work: Work,
    /// Signalled when a checkpoint ended, well or not.
    pub room: (Mutex<()>, Condvar),
    pub state_dir: StateDir,
}

impl Shared {
    /// For a frame of `len` bytes that the journal cannot take now.
    pub(crate) fn wait_for_room(&self, len: u64) -> Result<(), KvError> {
        if !self.options.background {
            return Err(KvError::Full);
        }
        self.work.request_checkpoint();
        let deadline = Instant::now() + COMMIT_WAIT_MAX;
        let mut waiting = self.room.0.lock();
        while !self.journal.has_room(len) {
            self.health.check()?;
            if self.no_space.load(Ordering::Acquire) && !self.space_came_back() {
                return Err(KvError::Full);
            }
            if self.room.1.wait_until(&mut waiting, deadline).timed_out() {
                let text = format!("the metadata engine took nothing for {COMMIT_WAIT_MAX:?}");
                tracing::error!(journal_bytes = self.journal.bytes(), "{text}");
                return Err(KvError::Io(text));
            }
        }
        Ok(())
    }
}
