//! Configuration: one TOML file, a section per part, every setting in one table.
//!
//! Order of precedence: default < file < environment `ONFS_SECTION_KEY` < flag or mount option; each value
//! remembers where it came from. Invariants: an unknown key is an error that names the nearest known one;
//! every setting has a unit, a range, a default and a doc line in [`table`], from which docs/config.md and
//! `config show` are printed. Refuses to know what a setting does to the file system.

mod cluster;
mod database;
mod error;
mod host;
mod layers;
mod link;
mod nearest;
mod options;
mod reader;
mod table;
mod typed;
mod value;

pub use cluster::{
    ClusterConfig, NodeConfig, PORT, REMOTE_SECTIONS, RemoteConfig, ServerConfig, id_text, is_source,
};
pub use database::DatabaseConfig;
pub use error::ConfigError;
pub use host::Host;
pub(crate) use host::fnv1a;
pub use layers::{Entry, Origin, Settings};
pub use link::{BucketConfig, LinkTarget, is_bucket};
pub use nearest::nearest;
pub use options::{LINK, MountFlags, OptionWords, parse_options, split_dir_size};
pub use table::{SETTINGS, Setting, sections};
pub use typed::{
    Config, LinkConfig, LogConfig, LogFormat, MemoryTier, MetadataConfig, MonitorConfig, MountConfig,
    PlanConfig, PolicyConfig, Thresholds,
};
pub use typed::{DirTier, Transport};
pub use value::{Kind, Value};
