//! Goal: all of it holds on the kernel of Debian 12, which has neither FUSE over io_uring nor passthrough, and maps no
//! files that are opened for direct I/O. Method: the tests that are not about these, compiled a second time: under this
//! crate's name the harness withholds what newer kernels offer.

#![allow(
    clippy::duplicate_mod,
    reason = "each test has its own copy of the harness, as when it is compiled alone"
)]

#[path = "closing.rs"]
mod closing;
#[path = "mapped.rs"]
mod mapped;
#[path = "mount.rs"]
mod mount;
#[path = "policies.rs"]
mod policies;
#[path = "waiting.rs"]
mod waiting;
