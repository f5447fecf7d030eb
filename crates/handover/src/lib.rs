//! What a daemon leaves to the next one of the same mount: an area of shared memory that a guardian keeps.
//!
//! The kernel's connection outlives the daemon, and so does what the kernel believes: which inodes it refers to and how often,
//! which handles are open, which files it reads in place, which requests nobody has answered. All of it is written here before the
//! kernel is told, and lives exactly as long as the connection: when the guardian ends, both are gone. What must survive a reboot is
//! not here but in the journal.
//!
//! Invariants:
//! - I-HAND-1: at any moment the process may be killed, and the next one finds records that are whole: a record counts from when its
//!   first word is written, which is last, and ends when that is zero.
//! - I-HAND-2: of references the area may say more than the kernel has, never less: an inode that is taken for known stays for too
//!   long, while one that is taken for forgotten would be purged under its user.
//! - I-HAND-3: bytes of the area are not believed: what makes no sense is an error, or is not there.
//!
//! Refuses to know: what a handle or a note means.

mod calls;
mod estate;
mod mapping;
mod table;

pub use calls::{Calls, Scope};
pub use estate::{Estate, EstateError, OWN_WORDS, SESSION_BYTES_MAX};
pub use table::{Place, Table};
