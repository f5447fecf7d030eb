//! Goal: all of it holds on kernels that have neither FUSE over io_uring nor passthrough, such as Debian 12's. Method:
//! the tests that do not set these themselves, compiled a second time: under this crate's name the harness mounts over
//! /dev/fuse without passthrough.

#[path = "closing.rs"]
mod closing;
#[path = "mount.rs"]
mod mount;
#[path = "policies.rs"]
mod policies;
#[path = "waiting.rs"]
mod waiting;
