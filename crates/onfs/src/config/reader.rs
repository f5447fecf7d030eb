//! Settings read as what their kinds say they are.

use std::{path::PathBuf, time::Duration};

use types::{ByteSize, Span};

use super::{
    error::ConfigError,
    layers::{Entry, Settings},
    value::Value,
};

/// Typed access to the table. A wrong name or kind here is a mistake of the program; it becomes an error and not
/// a panic, and the test that resolves the defaults finds it.
pub(super) struct Reader<'a>(pub &'a Settings);

impl Reader<'_> {
    pub(super) fn entry(&self, section: &str, key: &str) -> Result<&Entry, ConfigError> {
        let name = || format!("{section}.{key}");
        self.0.get(section, key).ok_or_else(|| ConfigError::new(name(), "is not in the table of settings"))
    }
    fn wrong<T>(entry: &Entry) -> Result<T, ConfigError> {
        Err(ConfigError::new(&entry.origin, format!("{} has the wrong kind", entry.setting.name())))
    }
    pub(super) fn size(&self, section: &str, key: &str) -> Result<ByteSize, ConfigError> {
        let entry = self.entry(section, key)?;
        if let Value::Size(size) = entry.value { Ok(size) } else { Reader::wrong(entry) }
    }
    /// `None` for the word that stands in for a size.
    pub(super) fn size_or_word(&self, section: &str, key: &str) -> Result<Option<ByteSize>, ConfigError> {
        let entry = self.entry(section, key)?;
        if let Value::Word(_) = entry.value { Ok(None) } else { self.size(section, key).map(Some) }
    }
    pub(super) fn time(&self, section: &str, key: &str) -> Result<Duration, ConfigError> {
        let entry = self.entry(section, key)?;
        if let Value::Time(Span(duration)) = entry.value { Ok(duration) } else { Reader::wrong(entry) }
    }
    /// `None` for the word that stands in for a number.
    pub(super) fn count(&self, section: &str, key: &str) -> Result<Option<u32>, ConfigError> {
        let entry = self.entry(section, key)?;
        if let Value::Word(_) = entry.value {
            return Ok(None);
        }
        let Value::Count(count) = entry.value else { return Reader::wrong(entry) };
        u32::try_from(count).map(Some).or_else(|_| Reader::wrong(entry))
    }
    pub(super) fn word(&self, section: &str, key: &str) -> Result<&'static str, ConfigError> {
        let entry = self.entry(section, key)?;
        if let Value::Word(word) = entry.value { Ok(word) } else { Reader::wrong(entry) }
    }
    /// `None` for the word that stands in for a text.
    pub(super) fn text(&self, section: &str, key: &str) -> Result<Option<&str>, ConfigError> {
        let entry = self.entry(section, key)?;
        match &entry.value {
            Value::Word(_) => Ok(None),
            Value::Text(text) => Ok(Some(text)),
            Value::Size(_) | Value::Time(_) | Value::Count(_) | Value::Switch(_) | Value::Path(_) => {
                Reader::wrong(entry)
            }
        }
    }
    /// `None` for the word that stands in for a path.
    pub(super) fn path(&self, section: &str, key: &str) -> Result<Option<PathBuf>, ConfigError> {
        let entry = self.entry(section, key)?;
        if let Value::Word(_) = entry.value {
            return Ok(None);
        }
        if let Value::Path(path) = &entry.value { Ok(Some(path.clone())) } else { Reader::wrong(entry) }
    }
}
