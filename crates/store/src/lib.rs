//! Objects on devices: one sparse file per object in one directory per tier, and the memory tier's tmpfs.
//!
//! Invariants:
//! - I-STORE-1: a directory is used only if its marker names this file system and this tier; nothing else in
//!   it is ever read, changed or removed. One process at a time uses it.
//! - I-STORE-2: an object is the file `XX/<16 hex digits of the inode number>`, `XX` being the last two.
//! - I-STORE-3: when `ObjectFd::data_sync` of a persistent tier returns, the bytes *and the object's entry* are durable.
//! - I-STORE-4: a file descriptor is closed only when its last user is done with it, whatever the cache evicts.
//! - I-STORE-5: a copy reads, at the destination, exactly as the source: holes of the source are holes there.
//!
//! Refuses to know: which SAU is valid where, policy, file sizes, metadata. Removals and punches are not made
//! durable here: after a power loss an object or a range may be back, so whoever starts to use a range of a tier
//! anew calls `ObjectFd::clear` first.

mod copy;
mod descriptors;
mod device;
mod error;
mod faults;
mod fd_cache;
mod gauge;
mod id;
mod marker;
mod memory;
mod object;
mod shared;
mod tier_store;

pub use copy::{Copied, CopyRange};
pub use descriptors::Descriptors;
pub use error::StoreError;
pub use faults::{Fault, FaultSpan, Faults, Held, IoKind};
pub use gauge::Reading;
pub use id::{FsUuid, InstanceId};
pub use memory::{Backing, MemoryTier, MemoryTierOptions, MemoryTierState};
pub use object::{ObjectFd, ObjectStat, is_used_elsewhere};
pub use tier_store::{ScanEntry, Space, TierStore, TierStoreOptions};
