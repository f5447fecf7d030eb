//! A mount that outlives its daemon: a small process, the guardian, keeps the kernel's connection and starts one daemon after the
//! other, which go on where the one before ended ([`handover`]).
//!
//! Invariants: one daemon at a time touches the state; the guardian never reads a request; a daemon that ends in order ends the
//! guardian; one that does not is followed by another, a bounded number of times.

mod attempts;
mod channel;
mod guardian;
mod program;
mod ward;

pub use guardian::{Guarded, guard};
pub use ward::Ward;
