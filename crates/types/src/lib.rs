//! The vocabulary of ONFS: ids, attributes, error numbers, sizes, times and limits.
//!
//! Invariants: nothing here does I/O, reads a clock or decides policy; every other crate may depend on this
//! one and this one depends on none of ours.

mod attr;
mod bytes;
mod errno;
mod hash;
mod id;
mod limits;
mod tier;
mod time;

pub use attr::{Attr, FileKind, MODE_MASK, S_ISGID, S_ISUID, S_ISVTX};
pub use bytes::{ByteSize, ParseSizeError};
pub use errno::Errno;
pub use hash::{NumberHasher, NumberMap};
pub use id::{Ino, LocalId, ProjectId, SLOTS, Slot, UgsdId};
pub use limits::{LINK_MAX, NAME_MAX, SAU_BYTES, SYMLINK_MAX, XATTR_NAME_MAX, XATTR_SIZE_MAX};
pub use tier::{TierId, TierSet};
pub use time::{ParseSpanError, Span, Timestamp};
