//! The key-value transaction that namespace operations run in. Engines implement it (crate `kv`).
//!
//! Invariants: keys are compared as byte strings; a transaction sees its own writes; nothing is visible to
//! others before the shell commits it; the shell guarantees that transactions on one UGSD do not overlap.

use std::ops::ControlFlow;

pub use bytes::Bytes;

/// Why the store could not answer. None of these means "not found".
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KvError {
    /// The device under the metadata reported an error.
    #[error("metadata store: {0}")]
    Io(String),
    /// Stored bytes do not have the form that they must have.
    #[error("metadata store is damaged: {0}")]
    Corrupt(String),
    /// No space under the metadata; nothing was changed.
    #[error("no space left for metadata")]
    Full,
    /// An earlier failure made the store read-only, so that nothing acknowledged can be lost.
    #[error("the metadata store is read-only after an error: {0}")]
    ReadOnly(String),
}

/// Called with each key and value of a scan, until it breaks. It must not call into the store.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// Reads of committed state (and, inside a transaction, of its own writes).
pub trait Reader {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;
    /// Visits the entries with `from <= key < to` in key order until `visit` breaks.
    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError>;
}

/// A transaction: reads, and writes that take effect together at commit.
pub trait Txn: Reader {
    fn put(&mut self, key: &[u8], value: Bytes);
    fn delete(&mut self, key: &[u8]);
}
