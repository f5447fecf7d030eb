//! Who of all programs on the nodes of a cluster has which lock. Nobody calls it yet: each kernel keeps the locks of its node.
//!
//! - [`locks`] of byte ranges and files, over the [`ranges`] of one inode.

pub mod locks;
pub mod ranges;
