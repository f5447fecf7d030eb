//! Numbers of commits.
//!
//! Invariant: without holes, in the order of the commits, for as long as a store exists.

use std::fmt;

/// The number of a commit: 1, 2, 3, ... without holes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
