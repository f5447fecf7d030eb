//! The back ends of linked near-line (`link::BackEnd`): a directory of a mounted file system, and a shell around any of them
//! that does not wait for ever.
//!
//! [`Directory`] does what it is asked with system calls, on the thread that asks; [`Deadlined`] has it done on threads of
//! its own and gives up waiting at a deadline. [`Faults`] makes trouble on demand, and [`Limited`] a slow one.
//!
//! Refuses to know: inodes of ours, what was agreed on, when to look or what to apply.
#![forbid(unsafe_code)]

mod abreast;
mod attributes;
mod call;
mod deadlined;
mod directory;
mod error;
mod faults;
mod handed;
mod lanes;
mod limited;
mod listing;
mod marks;
mod owned;
mod pool;
mod root;
mod site;
mod source;
mod stat;
mod tally;
mod ticket;
mod times;
mod version;
mod way;
mod xattrs;

pub use call::Call;
pub use deadlined::Deadlined;
pub use directory::{Directory, Options};
pub use faults::{Effect, Fault, FaultSpan, Faults};
pub use lanes::Limits;
pub use limited::{Limited, Pace};
pub use tally::{Counters, LastError};
