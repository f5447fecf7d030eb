//! Where the bytes of a file are: which tiers hold each SAU of an object, how that is stored, which tier a
//! read or a write goes to, and how a striped file divides into objects.
//!
//! Invariants (checked by `SauMap::check`, by the tests, and by every decode):
//! - I-LAYOUT-1: a lost SAU has no valid tier and no seal.
//! - I-LAYOUT-2: a seal belongs to the current bytes: a SAU without a valid tier has none, and a seal covers at
//!   most `SAU_BYTES`. It is the CRC-32C of the first `len` bytes; whatever follows them reads as zeros.
//! - I-LAYOUT-3: after a write exactly one tier is valid and there is no seal.
//! - I-LAYOUT-4: the last valid copy is never dropped; only a truncation, a punch or `forget_memory` ends it.
//! - I-LAYOUT-5: `forget_memory` makes lost exactly the SAUs that only memory held; no zeros, no old bytes.
//! - I-LAYOUT-6: equal maps have equal bytes when stored, and the counters equal what a walk would find.
//!
//! Refuses to know: files, devices, clocks, policy (which object to move when), and the size of the file,
//! which callers pass in where it matters.

mod map;
mod place;
mod record;
mod sau;
mod stripe;

pub use map::{NoteError, SauMap};
pub use place::{ReadPlace, WritePlace, WriteWish, read_place, write_place};
pub use record::{DecodeError, ObjectRecord, Partial};
pub use sau::{FILE_BYTES_MAX, Piece, SAUS_MAX, Sau, SauIndex, Seal, pieces};
pub use stripe::{Stripe, StripeSpot};
