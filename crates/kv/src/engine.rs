//! What an engine is: an ordered map on a disk that takes atomic, durable batches.
//!
//! Invariants: a batch is applied whole or not at all, together with its [`Lsn`], and is durable when `apply`
//! returns; reads that begin after that see it. Every engine passes [`crate::conformance`].

pub(crate) mod checked;
mod guard;
mod lsm;
mod memory;

use std::time::SystemTime;

use bytes::Bytes;
use namespace::txn::{KvError, Visit};

use crate::Lsn;

pub use guard::inside as inside_engine;
pub use lsm::{LSM_NAME, LsmEngine, lsm};
pub use memory::MemoryEngine;

/// Why a batch was not applied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ApplyError {
    /// Nothing was changed, and the same batch may be applied again: no room, no file descriptor.
    #[error("{0}")]
    Nothing(KvError),
    /// Whether it was applied is unknown until the engine is opened again.
    #[error("{0}")]
    Unknown(KvError),
    /// Whether it was applied is unknown, but the same batch with the same number may be applied again, and that settles it.
    #[error("{0}")]
    Again(KvError),
    /// Nothing was changed, nor will be: the engine's content belongs to another writer now.
    #[error("{0}")]
    Fenced(KvError),
}

/// Writes in rising order of distinct keys; `None` deletes.
pub type Batch<'a> = [(&'a [u8], Option<&'a [u8]>)];

/// Where engines may keep their own records: no key of a store is equal to it. (Keys begin with an inode number
/// and a letter, so none begins with nine bytes 0xff.)
pub const RESERVED_KEY: &[u8] = &[0xff; 16];

/// A durable ordered map. Keys have 1 to 4096 bytes, values up to 16 MiB.
pub trait Engine: Send + Sync {
    /// As written in the FORMAT file.
    fn name(&self) -> &'static str;
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;
    /// Visits the entries with `from <= key < to` in key order until `visit` breaks. `visit` may read the engine.
    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError>;
    /// One atomic and durable step.
    fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError>;
    /// The number of the last batch applied; 0 in a new engine.
    fn applied_lsn(&self) -> Result<Lsn, KvError>;
    /// Another writer went on in this one's place, with all that was acknowledged: what the journal has beyond [`Engine::applied_lsn`] never
    /// was, and must not come back. So until [`Engine::begin_anew`].
    fn taken_over(&self) -> Result<bool, KvError> {
        Ok(false)
    }
    /// The journal has nothing more of the time before.
    fn begin_anew(&self) -> Result<(), KvError> {
        Ok(())
    }
    /// The disk is full: give back what removals have freed as soon as possible. Returns at once.
    fn want_room(&self) {}
    /// Since when and why the engine, if it is not here, cannot be reached or takes no batches; what needs it waits, and then fails.
    fn trouble(&self) -> Option<(SystemTime, String)> {
        None
    }
    /// Bytes on the disk.
    fn approximate_bytes(&self) -> u64;
    /// The last call: what was applied stays.
    fn close(&self) -> Result<(), KvError>;
}
