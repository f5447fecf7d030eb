//! Programs that test a file system from outside, through system calls and the `onfs` command only.
//!
//! Nothing here links against ONFS: what is tested is what a user gets. (`slowfs` is the other side of a test, and has ONFS's
//! transport.) Every program also runs on a plain directory (`--dir`), so that the tests themselves are tested on ext4 and tmpfs.
//!
//! - [`op`] what can be done, and a seeded generator of it; [`tree`] and [`semantics`] the reference file system in
//!   memory; [`perform`] the same operations as system calls; [`compare`] both side by side.
//! - [`crash`] a worker that records what was acknowledged, and what may be true after a crash; [`cut`] after a power cut.
//! - [`modes`] what a mount with a linked directory must show of modes, and keep to itself.
//! - [`chaos`] a workload that checks itself while a cluster's servers are in trouble.
//! - [`coherence`] several mounts of one file system at once, and whether their answers are those of one.
//! - [`rig`] an ONFS mount that can be killed, rebooted and mounted again; [`power`] its disk; [`tally`] one line per test case.

pub mod chaos;
pub mod coherence;
pub mod compare;
pub mod crash;
pub mod cut;
pub mod modes;
pub mod moment;
pub mod names;
pub mod op;
pub mod perform;
pub mod power;
pub mod random;
pub mod rig;
pub mod semantics;
pub mod shrink;
pub mod tally;
pub mod tree;
