//! The daemon's life: from the state's lock to the last byte written down.
//!
//! Invariants: one daemon per state; `onfs mount` returns only when the mount is usable or has failed; the end
//! (a signal, a command, an unmount by anyone) always goes through flush, unmount, finish, in this order. Refuses to
//! know what the file system is made of.

mod launch;
mod lifecycle;
mod log;
mod ready;
mod run;
mod state;
mod supervisor;

pub use launch::{Child, launch};
pub use lifecycle::Lifecycle;
pub use log::Log;
pub use ready::{Message, Ready};
pub use run::{Duty, run};
pub use state::prepare as prepare_state;
pub use state::{StateLock, prepare};
