//! Decides all movement of data between the tiers of one data server: what is written where, what moves out, what
//! gets a persistent copy and when, what comes up.
//!
//! An event machine without clock, file, thread or lock. The shell owns one [`Tiering`] behind its lock:
//! [`Tiering::handle`] an input, or [`Tiering::place`] a write; then take [`Tiering::poll_effect`] until it is empty and
//! start what it says; call [`Tiering::handle_deadline`] when [`Tiering::next_deadline`] comes.
//!
//! Invariants (checked by `tests/simulation.rs`):
//! - I-TIER-1: bytes placed, admitted and reserved for movements never take a tier above its limit.
//! - I-TIER-2: an object is in one movement at most.
//! - I-TIER-3: a movement reserves its room at the start; nothing moves out of a tier where it is pinned or where
//!   passthrough reads it, and a copy is dropped only while the object is clean there.
//! - I-TIER-4: the copy of a dirty object starts in its bounded time when a slot and room are there.
//! - I-TIER-5: `NoSpace` only when no tier has the room and nothing moves.
//! - I-TIER-6: every request ends once.
//! - I-TIER-7: when load stops, every tier comes back above C_n-m as far as slower tiers have room.
//!
//! It does not know what a SAU map, a device or a file handle is: "bytes of an object in a tier" is all. It never infers
//! that data is safe: the shell says so with [`Input::Clean`], and checks before it drops anything.
#![forbid(unsafe_code)]

mod api;
mod coolness;
mod evict;
pub mod health;
mod lru;
mod machine;
mod movement;
mod object;
mod place;
mod probation;
mod remembered;
mod request;
mod run_ahead;
mod space;
mod table;
mod unfinished;
mod write_behind;

pub use api::*;
pub use machine::Tiering;
pub use probation::Room;
pub use run_ahead::{Advice, RunAhead};
use types::SAU_BYTES;

/// Does a read or write at `offset`, after one in SAU `last` (if any), move an open file to the tail of the LRU table
/// (paper, section 6.3: the first MiB of a SAU, each address once)? If so, the SAU to remember.
pub fn touch_counts(offset: u64, last: Option<u32>) -> Option<u32> {
    let sau = u32::try_from(offset / SAU_BYTES).unwrap_or(u32::MAX - 1).min(u32::MAX - 1);
    (offset % SAU_BYTES < 1 << 20 && last != Some(sau)).then_some(sau)
}
