//! What a monitoring system sees of a daemon: metrics and health over HTTP.
//!
//! - [`table`] every metric, once: docs/metrics.md comes from there. [`Sample`] gathers their values at one moment, and is the text.
//! - [`Monitor`] serves both. It knows nothing of what it shows: the file system says it ([`crate::running::MountedFs`]).

mod http;
mod sample;
mod serve;
pub mod table;

pub use sample::Sample;
pub use serve::Monitor;
pub use table::Id;
