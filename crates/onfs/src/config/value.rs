//! Kinds of setting, and the text of a value turned into one.

use std::{fmt, path::PathBuf, time::Duration};

use types::{ByteSize, Span};

use super::options::parse_options;
use crate::policy::parse_switch;

/// What a setting's value may be, with its range. `or` is a word that is allowed in place of a number or path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Bytes, from `min` to `max`.
    Size {
        min: u64,
        max: u64,
        or: Option<&'static str>,
    },
    /// Time in milliseconds, from `min_ms` to `max_ms`.
    Time {
        min_ms: u64,
        max_ms: u64,
        or: Option<&'static str>,
    },
    Count {
        min: u64,
        max: u64,
        or: Option<&'static str>,
    },
    Switch,
    Choice(&'static [&'static str]),
    /// An absolute path.
    Path {
        or: Option<&'static str>,
    },
    /// An absolute path, or a bucket (`s3://BUCKET/PREFIX`).
    Link {
        or: Option<&'static str>,
    },
    /// The address of a database, without a password.
    Database {
        or: Option<&'static str>,
    },
    /// A word of the user's, without spaces.
    Text {
        or: Option<&'static str>,
    },
    /// Mount options, comma-separated.
    MountOptions,
    /// Names of environment variables, comma-separated.
    Variables,
    /// A log filter: a level, or `target=level` terms, comma-separated.
    LogFilter,
}

/// A value that passed its kind's check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    Size(ByteSize),
    Time(Span),
    Count(u64),
    Switch(bool),
    /// One of a choice, or the word that stands for a number or path.
    Word(&'static str),
    Path(PathBuf),
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Size(size) => size.fmt(f),
            Value::Time(span) => span.fmt(f),
            Value::Count(n) => n.fmt(f),
            Value::Switch(on) => f.write_str(if *on { "yes" } else { "no" }),
            Value::Word(word) => f.write_str(word),
            Value::Path(path) => path.display().fmt(f),
            Value::Text(text) => f.write_str(text),
        }
    }
}

impl Kind {
    /// Checks `text` against the kind and its range; the error says what would be right.
    pub fn parse(self, text: &str) -> Result<Value, String> {
        if let Some(word) = self.or_word().filter(|word| *word == text) {
            return Ok(Value::Word(word));
        }
        match self {
            Kind::Size { min, max, .. } => {
                let size: ByteSize = text.parse().map_err(|e| self.or_else_word(e))?;
                in_range(size, ByteSize(min), ByteSize(max)).map(Value::Size)
            }
            Kind::Time { min_ms, max_ms, .. } => {
                let span: Span = text.parse().map_err(|e| self.or_else_word(e))?;
                let millis = |ms| Span(Duration::from_millis(ms));
                in_range(span, millis(min_ms), millis(max_ms)).map(Value::Time)
            }
            Kind::Count { min, max, .. } => {
                let bad = format!("{text:?} is not a whole number");
                let count: u64 = text.parse().map_err(|_| self.or_else_word(bad))?;
                in_range(count, min, max).map(Value::Count)
            }
            Kind::Switch => parse_switch(text).map(Value::Switch).ok_or(format!("{text:?}: write yes or no")),
            Kind::Choice(words) => words
                .iter()
                .find(|word| **word == text)
                .map(|word| Value::Word(word))
                .ok_or_else(|| format!("{text:?}: write {}", either(words))),
            Kind::Path { .. } => parse_path(text).map(Value::Path).map_err(|e| self.or_else_word(e)),
            Kind::Link { .. } => parse_link(text).map(Value::Text).map_err(|e| self.or_else_word(e)),
            Kind::Database { .. } => pg::check_address(text)
                .map(|()| Value::Text(text.to_owned()))
                .map_err(|e| self.or_else_word(e)),
            Kind::Text { .. } => parse_text(text).map(Value::Text).map_err(|e| self.or_else_word(e)),
            Kind::MountOptions => parse_options(text).map(|_| Value::Text(text.to_owned())),
            Kind::Variables => parse_variables(text).map(|()| Value::Text(text.to_owned())),
            Kind::LogFilter => parse_filter(text).map(|()| Value::Text(text.to_owned())),
        }
    }

    /// The unit of the value, for the reference.
    pub const fn unit(self) -> &'static str {
        match self {
            Kind::Size { .. } => "size",
            Kind::Time { .. } => "time",
            Kind::Count { .. } => "number",
            Kind::Switch => "yes or no",
            Kind::Choice(_) => "word",
            Kind::Path { .. } => "absolute path",
            Kind::Link { .. } => "absolute path or bucket",
            Kind::Database { .. } => "address",
            Kind::Text { .. } => "text",
            Kind::MountOptions => "comma-separated words",
            Kind::Variables => "comma-separated names",
            Kind::LogFilter => "level or filter",
        }
    }

    /// The allowed values, for the reference.
    pub fn range(self) -> String {
        let with_word = |range: String| match self.or_word() {
            Some(word) => format!("{range}, or `{word}`"),
            None => range,
        };
        match self {
            Kind::Size { min, max, .. } => with_word(format!("{} to {}", ByteSize(min), ByteSize(max))),
            Kind::Time { min_ms, max_ms, .. } => {
                let span = |ms| Span(Duration::from_millis(ms));
                with_word(format!("{} to {}", span(min_ms), span(max_ms)))
            }
            Kind::Count { min, max, .. } => with_word(format!("{min} to {max}")),
            Kind::Switch => "`yes`, `no`".into(),
            Kind::Choice(words) => words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", "),
            Kind::Path { .. } => with_word("any directory".into()),
            Kind::Link { .. } => with_word("any directory, `s3://BUCKET/PREFIX`".into()),
            Kind::Database { .. } => with_word("a PostgreSQL address".into()),
            Kind::Text { .. } => with_word("any".into()),
            Kind::MountOptions => "see `onfs mount --help`".into(),
            Kind::Variables => "environment variables, or nothing".into(),
            Kind::LogFilter => "`error`, `warn`, `info`, `debug`, `trace`, or `target=level,...`".into(),
        }
    }

    const fn or_word(self) -> Option<&'static str> {
        match self {
            Kind::Size { or, .. } | Kind::Time { or, .. } | Kind::Count { or, .. } => or,
            Kind::Path { or } | Kind::Link { or } | Kind::Database { or } | Kind::Text { or } => or,
            Kind::Switch | Kind::Choice(_) | Kind::MountOptions | Kind::Variables | Kind::LogFilter => None,
        }
    }

    fn or_else_word(self, error: impl fmt::Display) -> String {
        match self.or_word() {
            Some(word) => format!("{error}, or \"{word}\""),
            None => error.to_string(),
        }
    }
}

fn in_range<T: PartialOrd + fmt::Display>(value: T, min: T, max: T) -> Result<T, String> {
    if value < min {
        Err(format!("{value} is too little: at least {min}"))
    } else if value > max {
        Err(format!("{value} is too much: at most {max}"))
    } else {
        Ok(value)
    }
}

fn parse_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err(format!("{text:?} is not an absolute path")) }
}

fn parse_variables(text: &str) -> Result<(), String> {
    let is_name = |name: &str| {
        !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !name.starts_with(|c: char| c.is_ascii_digit())
    };
    match text.split(',').find(|name| !is_name(name)) {
        Some(name) if !text.is_empty() => Err(format!("{name:?} is not the name of an environment variable")),
        Some(_) | None => Ok(()),
    }
}

fn parse_link(text: &str) -> Result<String, String> {
    if text.starts_with(bucket::SCHEME) {
        return bucket::Location::parse(text).map(|location| location.to_string());
    }
    parse_path(text).map(|_| text.to_owned())
}

fn parse_text(text: &str) -> Result<String, String> {
    let plain = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    if plain { Ok(text.to_owned()) } else { Err(format!("{text:?} is no word")) }
}

fn parse_filter(text: &str) -> Result<(), String> {
    let hint = "write a level (error, warn, info, debug, trace) or target=level,...";
    if text.trim().is_empty() {
        return Err(hint.into());
    }
    for term in text.split(',') {
        let level = term.rsplit_once('=').map_or(term, |(_, level)| level);
        let known = ["off", "error", "warn", "info", "debug", "trace"];
        if !known.contains(&level.trim().to_ascii_lowercase().as_str()) {
            return Err(format!("{level:?} is not a log level: {hint}"));
        }
    }
    Ok(())
}

/// `a, b or c`.
fn either(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each kind takes what it should and names what is right otherwise. Method: tables of texts.
    use super::*;

    #[test]
    fn kinds_check_ranges_and_words() {
        let size = Kind::Size { min: 1 << 20, max: 1 << 30, or: Some("auto") };
        assert_eq!(size.parse("64MiB"), Ok(Value::Size(ByteSize(64 << 20))));
        assert_eq!(size.parse("auto"), Ok(Value::Word("auto")));
        assert!(size.parse("1KiB").unwrap_err().contains("at least 1MiB"));
        assert!(size.parse("2GiB").unwrap_err().contains("at most 1GiB"));
        assert!(size.parse("lots").unwrap_err().contains("or \"auto\""));
        let time = Kind::Time { min_ms: 10, max_ms: 60_000, or: None };
        assert_eq!(time.parse("2s").unwrap().to_string(), "2s");
        assert!(time.parse("1h").is_err());
        assert!(Kind::Count { min: 1, max: 9, or: None }.parse("0").is_err());
        assert_eq!(Kind::Switch.parse("on"), Ok(Value::Switch(true)));
        assert!(Kind::Switch.parse("perhaps").is_err());
        assert!(Kind::Choice(&["a", "b", "c"]).parse("d").unwrap_err().contains("a, b or c"));
        assert!(Kind::Path { or: None }.parse("relative").is_err());
        let link = Kind::Link { or: Some("none") };
        assert_eq!(link.parse("s3://b/p/"), Ok(Value::Text("s3://b/p".into())));
        assert_eq!(link.parse("/d"), Ok(Value::Text("/d".into())));
        assert!(link.parse("s3://").is_err() && link.parse("d").is_err());
        let database = Kind::Database { or: Some("none") };
        for good in ["postgresql://onfs@db1,db2/meta", "host=/run/postgresql user=onfs dbname=meta"] {
            assert_eq!(database.parse(good), Ok(Value::Text(good.into())));
        }
        assert_eq!(database.parse("none"), Ok(Value::Word("none")));
        for bad in [
            "postgresql://onfs:s3cret@db1/meta",
            "host=db1 password=s3cret",
            "host=db1 password=s3cret frob=1",
            "postgresql://onfs:s3cret@db1:port/meta",
            "mysql://onfs:s3cret@db1/meta",
            "postgresql://onfs:s3%cret@db1/meta",
        ] {
            let why = database.parse(bad).unwrap_err();
            assert!(!why.contains("cret"), "{why}");
        }
        assert!(Kind::Text { or: None }.parse("two words").is_err());
        assert!(Kind::LogFilter.parse("info,fuse=debug").is_ok());
        assert!(Kind::LogFilter.parse("chatty").is_err());
        assert!(Kind::Variables.parse("A_1,b").is_ok() && Kind::Variables.parse("").is_ok());
        assert!(Kind::Variables.parse("A,,B").is_err() && Kind::Variables.parse("A=1").is_err());
        assert!(Kind::MountOptions.parse("noatime,nosuid").is_ok());
        assert!(Kind::MountOptions.parse("nosuch").is_err());
    }
}
