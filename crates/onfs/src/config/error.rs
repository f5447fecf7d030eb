//! The one error of configuration.

/// What is wrong with a configuration: where, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{origin}: {message}")]
pub struct ConfigError {
    /// As the origin prints itself, such as `onfs.toml:12` or `environment ONFS_MEMORY_SIZE`.
    pub origin: String,
    pub message: String,
}

impl ConfigError {
    pub fn new(origin: impl ToString, message: impl Into<String>) -> ConfigError {
        ConfigError { origin: origin.to_string(), message: message.into() }
    }
}
