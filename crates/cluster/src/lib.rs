//! What the cluster decides about itself: who is in it, who owns which slot, who is believed to be dead, where data go.
//!
//! - [`map`] what everybody must know, under an epoch; [`change`] how one map becomes the next; [`difference`] what is pushed;
//!   [`route`] which server is asked, and what a stale client gets; [`schema`] the bytes.
//! - [`assignment`] who gets which slots, by [`load`]; [`relief`] of a hot server; a [`plan`] is what both come to.
//! - [`members`] and [`membership`], the coordinator's and a node's side of who is in, with rights that run out ([`tenure`]).
//! - [`tail`] the end of a metadata server's journal, kept by its standby, and when that may go on in its place.
//! - [`replica`] an object on two data servers. Not called yet.
//! - [`placement`] where a file's data go; [`striping`] which byte of it is where; [`sizing`] how long it is while it grows; [`moving`] a stripe to
//!   another server while it is in use.
//!
//! Pure: no clock, file, socket, thread or random number of its own. The rows in the database rule who may commit in a slot
//! (crate `pg`); a map says what they said.
#![forbid(unsafe_code)]

pub mod assignment;
pub mod change;
pub mod difference;
mod encoding;
pub mod envelope;
mod id;
pub mod load;
pub mod map;
pub mod members;
pub mod membership;
pub mod moving;
pub mod node;
pub mod placement;
pub mod plan;
pub mod pressure;
pub mod relief;
pub mod replica;
pub mod route;
mod rule;
pub mod schema;
pub mod sizing;
pub mod striping;
pub mod tail;
pub mod tenure;

pub use change::{Change, Refused};
pub use difference::Difference;
pub use load::Loads;
pub use map::{ClusterMap, Epoch, SlotEntry, SlotEpoch};
pub use node::{Node, NodeId, NodeState};
pub use plan::{Move, Plan};
