//! Upward before it is read: runs over lists that programs give, and what earlier runs of a job foretell.
//!
//! The shell of `plan`. [`Ears`] hears on the transport's threads what is opened and puts it into a bounded line; one thread
//! takes it from there, drives the runs and learns the jobs; a few more bring files up. Invariants: no opening waits for any of
//! this (what does not fit in the line is counted and left out); nothing is read of a process on a thread that serves
//! the kernel (its memory may be held up by a fault that waits for us); what is kept has bounds in all and for each user.

mod engine;
mod jobs;
mod listen;
mod movers;
mod parts;
mod process;
mod runs;
mod shelf;

pub(super) use engine::Upward;
pub(super) use listen::{Ears, Heard};
pub(super) use parts::UpwardParts;
pub(super) use runs::{RunView, Source};
