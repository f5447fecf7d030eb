//! The cores of a cluster in one world: the namespace, leases and locks, residency maps, members and the map, over the connection machine,
//! with programs on clients and all that befalls processes, machines and networks. A seed is a run. Test support: nothing uses it.
//!
//! What decides is the product's code, as it ships: `namespace` (its operations run in transactions here), `lease::coherence` (both
//! machines and the locks), `layout` (maps, places, stored form), `cluster` (members, membership, assignment, map, striping), `wire`
//! (handshake, frames, connections, redialling), and in every third run `cluster::tail` (the ends of journals on standbys). What carries out is written for this and is no part of the product: the database,
//! devices, the network, and the shells that feed the machines. What the product's shells decide by themselves is not shown here
//! ([0028](../../../docs/decisions/0028-simulation.md) says what that is).
//!
//! - [`world`] the processes, their faults, and what must hold; [`cast`] who takes part, and what can be left out to see that it is missed.
//! - [`copies`] files with two copies, in a world of their own over the same network. [`tail`] journals and their ends on standbys. [`network`] connections; [`database`], [`store`] what outlives processes; [`names`], [`content`] what is true.
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_enum_match_arm, reason = "messages that are not for a process are no answer to it")]

pub mod cast;
mod chance;
mod client;
mod content;
mod coordinator;
pub mod copies;
mod data;
mod database;
mod domain;
mod handing;
mod message;
mod metadata;
mod names;
mod network;
mod program;
mod records;
mod scene;
mod session;
mod side;
mod store;
mod tail;
mod trace;
mod versions;
mod work;
pub mod world;
