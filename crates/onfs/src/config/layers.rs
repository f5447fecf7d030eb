//! The settings with their origins: defaults, then file, then environment, then flags.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use toml::de::{DeTable, DeValue};

use super::{
    error::ConfigError,
    nearest::nearest,
    table::{SETTINGS, Setting, sections},
    value::{Kind, Value},
};

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    Default,
    File {
        path: PathBuf,
        line: usize,
    },
    Environment(String),
    /// A flag or mount option, as the user wrote its name.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// One setting's value.
#[derive(Clone, Debug)]
pub struct Entry {
    pub setting: &'static Setting,
    pub value: Value,
    pub origin: Origin,
}

/// All settings, in the order of the table.
#[derive(Clone, Debug)]
pub struct Settings {
    entries: Vec<Entry>,
}

const PREFIX: &str = "ONFS_";
/// `ONFS_` variables that are not settings.
const VARIABLES: &[&str] = &["ONFS_CONFIG"];

impl Settings {
    pub fn defaults() -> Settings {
        let entry = |setting: &'static Setting| {
            // A default that does not parse is caught by the table's test; the text keeps the program going.
            let value = setting.kind.parse(setting.default).unwrap_or(Value::Text(setting.default.into()));
            Entry { setting, value, origin: Origin::Default }
        };
        Settings { entries: SETTINGS.iter().map(entry).collect() }
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// `None` when there is no such setting.
    pub fn get(&self, section: &str, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.setting.section == section && e.setting.key == key)
    }

    /// Applies a TOML file's text; `path` is for messages. All errors of the file are reported, not only the first.
    pub fn apply_file(&mut self, path: &Path, text: &str) -> Result<(), Vec<ConfigError>> {
        let at = |offset: usize| Origin::File { path: path.to_owned(), line: line_of(text, offset) };
        let document = match DeTable::parse(text) {
            Ok(document) => document,
            Err(error) => {
                let offset = error.span().map_or(0, |span| span.start);
                return Err(vec![ConfigError::new(at(offset), error.message())]);
            }
        };
        let mut errors = Vec::new();
        for (section, body) in document.get_ref() {
            let name: &str = section.get_ref();
            let origin = at(section.span().start);
            if let Err(message) = check_section(name) {
                errors.push(ConfigError::new(origin, message));
                continue;
            }
            let DeValue::Table(keys) = body.get_ref() else {
                errors.push(ConfigError::new(origin, format!("{name} is a section: write [{name}]")));
                continue;
            };
            for (key, value) in keys {
                let origin = at(key.span().start);
                let applied = text_of(value.get_ref(), name, key.get_ref())
                    .and_then(|value| self.set(name, key.get_ref(), &value, origin.clone()));
                errors.extend(applied.err().map(|message| ConfigError::new(origin, message)));
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Applies the `ONFS_SECTION_KEY` variables; others that begin with `ONFS_` are errors.
    pub fn apply_environment(
        &mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), Vec<ConfigError>> {
        let mut errors = Vec::new();
        for (name, value) in variables {
            if !name.starts_with(PREFIX) || VARIABLES.contains(&name.as_str()) {
                continue;
            }
            let origin = Origin::Environment(name.clone());
            let applied = match SETTINGS.iter().find(|s| s.variable() == name) {
                Some(setting) => self.set(setting.section, setting.key, &value, origin.clone()),
                None => Err(unknown_variable(&name)),
            };
            errors.extend(applied.err().map(|message| ConfigError::new(origin, message)));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Applies one flag or mount option: `name` is `section.key`, `flag` what the user wrote.
    pub fn apply_flag(&mut self, name: &str, value: &str, flag: &str) -> Result<(), ConfigError> {
        let origin = Origin::Flag(flag.to_owned());
        let (section, key) = name.split_once('.').unwrap_or((name, ""));
        check_section(section)
            .and_then(|()| self.set(section, key, value, origin.clone()))
            .map_err(|message| ConfigError::new(origin, message))
    }

    fn set(&mut self, section: &str, key: &str, text: &str, origin: Origin) -> Result<(), String> {
        let found = self.entries.iter_mut().find(|e| e.setting.section == section && e.setting.key == key);
        let entry = found.ok_or_else(|| unknown_key(section, key))?;
        entry.value = entry.setting.kind.parse(text).map_err(|e| format!("{section}.{key}: {e}"))?;
        entry.origin = origin;
        Ok(())
    }
}

fn check_section(name: &str) -> Result<(), String> {
    if sections().iter().any(|(known, _)| *known == name) {
        return Ok(());
    }
    let known = || sections().iter().map(|(name, _)| *name);
    let key_of = SETTINGS.iter().find(|s| s.key == name).map(|s| s.section);
    Err(match (nearest(name, known()), key_of) {
        (_, Some(section)) => format!("{name:?} is not a section: write it under [{section}]"),
        (Some(meant), None) => format!("unknown section {name:?}: did you mean {meant:?}?"),
        (None, None) => {
            format!("unknown section {name:?}: the sections are {}", known().collect::<Vec<_>>().join(", "))
        }
    })
}

fn unknown_key(section: &str, key: &str) -> String {
    let here = || SETTINGS.iter().filter(|s| s.section == section).map(|s| s.key);
    if let Some(meant) = nearest(key, here()) {
        return format!("unknown key {section}.{key}: did you mean {section}.{meant}?");
    }
    if let Some(other) = SETTINGS.iter().find(|s| s.key == key) {
        return format!("unknown key {section}.{key}: did you mean {}?", other.name());
    }
    format!("unknown key {section}.{key}: [{section}] has {}", here().collect::<Vec<_>>().join(", "))
}

fn unknown_variable(name: &str) -> String {
    let known: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
    match nearest(name, known.iter().map(String::as_str)) {
        Some(meant) => format!("unknown setting: did you mean {meant}?"),
        None => "unknown setting: variables are ONFS_SECTION_KEY, see onfs config show".into(),
    }
}

/// A TOML value as the text that every source is parsed from. Sizes and times need their unit, so a bare number
/// is refused for them.
fn text_of(value: &DeValue<'_>, section: &str, key: &str) -> Result<String, String> {
    let kind = SETTINGS.iter().find(|s| s.section == section && s.key == key).map(|s| s.kind);
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Boolean(on) => Ok(if *on { "yes".into() } else { "no".into() }),
        DeValue::Integer(number) => match kind {
            Some(Kind::Size { .. }) => {
                Err(format!("{section}.{key}: a size needs its unit, in quotes, such as \"64MiB\""))
            }
            Some(Kind::Time { .. }) => {
                Err(format!("{section}.{key}: a time needs its unit, in quotes, such as \"5s\""))
            }
            Some(_) | None => Ok(number.to_string()),
        },
        DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
            Err(format!("{section}.{key}: write one string, number or true/false"))
        }
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|b| **b == b'\n').count() + 1
}
