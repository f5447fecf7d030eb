//! POSIX namespace operations as transaction functions over an ordered key-value store.
//!
//! Invariants: no clock, no random numbers, no locks, no I/O; time and new ids come in as arguments, and
//! everything that an operation changes goes through one [`Txn`], so it happens whole or not at all.

pub mod txn;
