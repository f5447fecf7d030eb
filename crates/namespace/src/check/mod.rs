//! The check of a whole store: pure reading, findings one by one, and repairs for most of them.
//!
//! Two passes over the records: [`records`] looks at each inode with all that is stored about it; [`links`] counts the
//! names of each inode. Memory is bounded: one chunk of records, one number per UGSD or project at a time, the inodes that wait
//! for a linked directory (their log has a bound), and a window of inodes for the counting (more inodes take more passes).
//! A repair changes only what its finding names, so a check should follow repairs until nothing is found.

mod finding;
mod links;
mod records;
mod repair;
mod spreads;
mod walk;

pub use finding::Finding;
pub use repair::repair;

use crate::{Env, error::Result, txn::Reader};

/// Inodes whose names are counted in one pass: 16 bytes each.
pub const WINDOW: usize = 4 << 20;

/// Checks everything and hands over each finding. `Err` only when the store cannot be read.
pub fn check<R: Reader + ?Sized>(reader: &R, env: &Env, found: &mut dyn FnMut(Finding)) -> Result<()> {
    check_in_windows(reader, env, WINDOW, found)
}

/// As [`check`], counting the names of `window` inodes at a time.
pub fn check_in_windows<R: Reader + ?Sized>(
    reader: &R,
    env: &Env,
    window: usize,
    found: &mut dyn FnMut(Finding),
) -> Result<()> {
    records::check(reader, env, found)?;
    links::check(reader, window.max(1), found)
}
