//! A bucket of an object store that speaks S3 as the back end of linked near-line (`link::BackEnd`), through OpenDAL.
//!
//! Key for path below a prefix, so that others read and write the same files. What a store has not, [`link::Abilities`] say: there are
//! no hard links, no extended attributes, no renames of directories and no times of directories that tell of their names.
//!
//! Each call ends by itself: a request has a deadline and is tried again a few times. What a call that was given up still does on its way,
//! only the store knows.
//!
//! Refuses to know: inodes of ours, what was agreed on, when to look or what to apply. Never writes a secret anywhere.
#![forbid(unsafe_code)]

mod bucket;
mod error;
mod identity;
mod key;
mod known;
mod listing;
mod metadata;
mod naming;
mod object;
mod options;
mod signed;
mod source;
mod store;
mod version;

pub use bucket::Bucket;
pub use options::{Addressing, Location, Options, SCHEME};
