//! The database that has the metadata, if it is not the state directory itself.

use std::path::PathBuf;

use super::{error::ConfigError, reader::Reader, value::Value};

/// As the settings name it. The password is in its file alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatabaseConfig {
    pub url: String,
    pub password_file: Option<PathBuf>,
    pub namespace: String,
    /// Other metadata servers write to it, too.
    pub shared: bool,
    /// Another metadata server has what this one answers, and goes on when it dies.
    pub standby: bool,
    /// This one keeps copies for others, and is given no slots.
    pub standby_only: bool,
}

/// `None`: metadata are in the state directory.
pub(super) fn database(reader: &Reader<'_>) -> Result<Option<DatabaseConfig>, ConfigError> {
    let wrong = |key: &str, why: String| Err(ConfigError::new(&reader.entry("metadata", key)?.origin, why));
    let url = reader.text("metadata", "url")?;
    let password_file = reader.path("metadata", "password_file")?;
    let shared = reader.word("metadata", "servers")? == "several";
    if shared && reader.word("metadata", "engine")? != "postgres" {
        return wrong(
            "servers",
            "metadata.servers is several: metadata.engine must be postgres for that".to_owned(),
        );
    }
    let standby_only = matches!(reader.entry("metadata", "standby_only")?.value, Value::Switch(true));
    if standby_only && !shared {
        return wrong(
            "standby_only",
            "metadata.standby_only is yes: metadata.servers must be several for that".to_owned(),
        );
    }
    match (reader.word("metadata", "engine")?, url) {
        ("postgres", Some(url)) => {
            let namespace = reader.text("metadata", "namespace")?.unwrap_or_default();
            if let Err(why) = pg::check_namespace(namespace) {
                return wrong("namespace", format!("metadata.namespace: {why}"));
            }
            let (url, namespace) = (url.to_owned(), namespace.to_owned());
            let standby = reader.word("metadata", "standby")? == "auto";
            Ok(Some(DatabaseConfig { url, password_file, namespace, shared, standby, standby_only }))
        }
        ("postgres", None) => {
            wrong("engine", "metadata.engine is postgres: metadata.url must say which database".to_owned())
        }
        (_, Some(_)) => {
            let text =
                "metadata.url names a database that is not used: metadata.engine must be postgres for that";
            wrong("url", text.to_owned())
        }
        (_, None) => Ok(None),
    }
}
