//! The durable ordered key-value store under the namespace: a journal and an overlay over an engine.
//!
//! Invariants
//! - I-KV-1: a commit that was acknowledged is in the journal file, so a killed process loses nothing.
//! - I-KV-2: what was acknowledged before a successful [`MetaStore::sync`] survives a power cut.
//! - I-KV-3: what survives is always a prefix of the commits, whole commits only, in the order of their [`Lsn`].
//! - I-KV-4: a commit that was refused changes nothing, neither now nor after a crash, unless the store says
//!   that it became read-only.
//! - I-KV-5: damaged bytes give an error that names the file and the offset, or a prefix; never other data. Without a
//!   power cut a prefix lacks at most the last commit.
//!
//! It refuses to know what keys and values mean, except that the first three bytes of a key are its UGSD, by
//! which the overlay is divided. Conflicts between transactions are excluded by the caller.

mod cache;
mod checkpoint;
pub mod conformance;
mod copy;
mod disk;
mod engine;
mod error;
mod follower;
mod frame;
#[cfg(test)]
mod fuzz;
mod journal;
mod key;
mod lsn;
mod options;
mod overlay;
mod recovery;
mod reserve;
mod shared;
mod state_dir;
mod store;
mod txn;
mod work;
mod write_set;

pub use copy::{CopyFile, CopyName, CopyRecord};
pub use disk::{BootId, Disk, DiskFile, Space, SystemDisk};
pub use engine::{
    ApplyError, Batch, Engine, LSM_NAME, LsmEngine, MemoryEngine, RESERVED_KEY, inside_engine, lsm,
};
pub use error::OpenError;
pub use follower::{Entry, Follower, entries_of};
pub use frame::{FORMAT_VERSION, FRAME_BYTES_MAX};
pub use journal::BeforeSync;
pub use lsn::Lsn;
pub use options::MetaStoreOptions;
pub use recovery::RecoveryReport;
pub use state_dir::engine_of;
pub use store::{BeforeNew, MetaStore, Stats};
pub use txn::MetaTxn;
pub use write_set::WriteSet;
