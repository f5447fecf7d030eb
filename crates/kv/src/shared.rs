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
    pub reserve: Arc<Reserve>,
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
    /// Begun and ended checkpoints, well or not. Begun ones are counted under `checkpointing`.
    pub begun: AtomicU64,
    /// A checkpoint has begun that will take what is committed now: nobody asks for another because of that.
    pub rotating: AtomicBool,
    /// Signalled when one ended.
    pub room: (Mutex<u64>, Condvar),
    pub state_dir: StateDir,
}

impl Shared {
    /// For a frame of `len` bytes that the journal cannot take now. `patient`: also on a disk that the last checkpoint
    /// found full, for the next may have more luck.
    pub(crate) fn wait_for_room(&self, len: u64, patient: bool) -> Result<(), KvError> {
        if !self.options.background {
            return Err(KvError::Full);
        }
        self.work.request_checkpoint();
        let next = self.next_checkpoint();
        self.wait_until(|ended| {
            if self.journal.has_room(len)? {
                return Ok(true);
            }
            let full = self.no_space.load(Ordering::Acquire);
            let given_up = if patient { ended >= next } else { !self.space_came_back() };
            if full && given_up { Err(KvError::Full) } else { Ok(false) }
        })
    }

    /// The disk had no room for the journal: a checkpoint makes some of what the reserve has. Who is `patient` waits for it.
    pub(crate) fn after_full(&self, patient: bool) -> Result<(), KvError> {
        if !self.options.background {
            return Err(KvError::Full);
        }
        self.work.request_checkpoint();
        if !patient {
            return Err(KvError::Full);
        }
        let next = self.next_checkpoint();
        self.wait_until(|ended| Ok(ended >= next))
    }

    /// How many have ended when one has that begins after this.
    fn next_checkpoint(&self) -> u64 {
        self.begun.load(Ordering::Acquire) + 1
    }

    /// `over` learns how many checkpoints have ended, and is asked after each.
    fn wait_until(&self, over: impl Fn(u64) -> Result<bool, KvError>) -> Result<(), KvError> {
        let deadline = Instant::now() + COMMIT_WAIT_MAX;
        let mut ended = self.room.0.lock();
        while !over(*ended)? {
            self.health.check()?;
            if self.room.1.wait_until(&mut ended, deadline).timed_out() {
                let text = format!("the metadata engine took nothing for {COMMIT_WAIT_MAX:?}");
                tracing::error!(journal_bytes = self.journal.bytes(), "{text}");
                return Err(KvError::Io(text));
            }
        }
        Ok(())
    }
}
