//! Files with two copies in a world of their own: `cluster::replica` (copies, leave, the keeper of views) and `tier` as they ship, over the connections, clocks,
//! faults and traces of the other world, with `layout` for what is kept where.
//!
//! - [`world`] the processes, their faults, and what must hold; [`cast`] who takes part, and what can be left out; [`said`] what they say.
//! - [`server`] a data server, its [`peers`], its [`syncs`], and its [`tiers`]; [`keeper`] a metadata server; [`records`] the database; [`client`] programs.
//! - [`truth`] what answers are held against; [`stage`] what all share.

pub mod cast;
mod client;
mod keeper;
mod moves;
mod orders;
mod peers;
mod records;
pub(crate) mod said;
mod server;
mod stage;
mod syncs;
mod tiers;
mod truth;
pub mod world;
