//! The services of a server process: requests of other processes, carried out by the metadata server and the data server of this one.
//!
//! - [`data`] objects, over [`ds::DataServer`]; [`metadata`] names, sessions and layouts, over [`mds::Mds`].
//! - [`nodes`] how the metadata service asks data servers; [`reporting`] what a data server says of itself, [`reporters`] to whom.
//! - [`services`] one handler for a process that has both roles; it also answers those who watch.
//!
//! Requests are carried out by a bounded number of [`workers`]; a connection's reader never waits. It refuses to know what a name or an
//! object means, and who may do what: that is the client's kernel's.
#![forbid(unsafe_code)]

pub mod answer;
mod crowd;
pub mod data;
mod failures;
pub mod metadata;
pub mod nodes;
pub mod reporters;
pub mod reporting;
pub mod services;
mod standing;
mod states;
mod views;
mod waking;
mod watching;
pub mod workers;

pub use data::DataService;
pub use metadata::MetadataService;
pub use services::Services;
