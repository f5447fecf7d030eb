//! The policy of a directory as commands, configuration and control messages write it: `key=value` words.
//!
//! Refuses to know where policy is stored and how it is inherited.

use serde::{Deserialize, Serialize};
use types::Span;

/// When data comes up from a slower tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promote {
    /// When a file is opened.
    OnOpen,
    /// Only by `onfs prefetch` or `onfs migrate`.
    OnRequest,
}

impl Promote {
    pub const NAMES: &'static [&'static str] = &["on-open", "on-request"];

    pub fn from_name(name: &str) -> Option<Promote> {
        match name {
            "on-open" => Some(Promote::OnOpen),
            "on-request" => Some(Promote::OnRequest),
            _ => None,
        }
    }
    pub const fn name(self) -> &'static str {
        match self {
            Promote::OnOpen => "on-open",
            Promote::OnRequest => "on-request",
        }
    }
}

/// How soon a closed or idle file gets a copy in a persistent tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteBehind {
    After(Span),
    Never,
}

impl WriteBehind {
    pub fn parse(text: &str) -> Result<WriteBehind, String> {
        if text == "never" {
            return Ok(WriteBehind::Never);
        }
        text.parse().map(WriteBehind::After).map_err(|e: types::ParseSpanError| format!("{e}, or \"never\""))
    }
}

impl std::fmt::Display for WriteBehind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WriteBehind::After(span) => span.fmt(f),
            WriteBehind::Never => f.write_str("never"),
        }
    }
}

/// Where the data of a directory go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Through to near-line.
    Global,
    /// Absorbed, drained later.
    Local,
    /// As local; each file may say otherwise.
    Hybrid,
    /// Never written down.
    Transient,
}

impl Mode {
    pub const NAMES: &'static [&'static str] = &["global", "local", "hybrid", "transient"];

    pub fn from_name(name: &str) -> Option<Mode> {
        match name {
            "global" => Some(Mode::Global),
            "local" => Some(Mode::Local),
            "hybrid" => Some(Mode::Hybrid),
            "transient" => Some(Mode::Transient),
            _ => None,
        }
    }
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Global => "global",
            Mode::Local => "local",
            Mode::Hybrid => "hybrid",
            Mode::Transient => "transient",
        }
    }
}

/// Whether close(2) waits until a file is where its mode promises it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CloseSync {
    Forced,
    Normal,
}

impl CloseSync {
    pub fn from_name(name: &str) -> Option<CloseSync> {
        match name {
            "forced" => Some(CloseSync::Forced),
            "normal" => Some(CloseSync::Normal),
            _ => None,
        }
    }
    pub const fn name(self) -> &'static str {
        match self {
            CloseSync::Forced => "forced",
            CloseSync::Normal => "normal",
        }
    }
}

/// What one directory sets itself; a field that is `None` is inherited from the directory above.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirPolicy {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote: Option<Promote>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<CloseSync>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_behind: Option<WriteBehind>,
}

/// One key of a change: set it, or inherit it again (`key=inherit`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyChange {
    Promote(Option<Promote>),
    Mode(Option<Mode>),
    Sync(Option<CloseSync>),
    WriteBehind(Option<WriteBehind>),
}

impl DirPolicy {
    pub fn is_empty(&self) -> bool {
        *self == DirPolicy::default()
    }
    pub fn apply(&mut self, change: PolicyChange) {
        match change {
            PolicyChange::Promote(p) => self.promote = p,
            PolicyChange::Mode(m) => self.mode = m,
            PolicyChange::Sync(s) => self.sync = s,
            PolicyChange::WriteBehind(w) => self.write_behind = w,
        }
    }
}

/// `yes` or `no` and their usual synonyms.
pub fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "yes" | "true" | "on" | "1" => Some(true),
        "no" | "false" | "off" | "0" => Some(false),
        _ => None,
    }
}

impl std::str::FromStr for PolicyChange {
    type Err = String;

    /// `mode=global|local|hybrid|transient`, `sync=forced|normal`, `promote=on-open|on-request`, `write-behind=TIME|never`; each
    /// also `=inherit`. `transient=yes` is `mode=transient`, and `transient=no` is `mode=local`.
    fn from_str(text: &str) -> Result<PolicyChange, String> {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} is not key=value, such as write-behind=2s"))?;
        let inherit = value == "inherit";
        match key {
            "promote" if inherit => Ok(PolicyChange::Promote(None)),
            "promote" => Promote::from_name(value)
                .map(|p| PolicyChange::Promote(Some(p)))
                .ok_or_else(|| format!("promote={value}: write on-open, on-request or inherit")),
            "mode" if inherit => Ok(PolicyChange::Mode(None)),
            "mode" => Mode::from_name(value)
                .map(|m| PolicyChange::Mode(Some(m)))
                .ok_or_else(|| format!("mode={value}: write global, local, hybrid, transient or inherit")),
            "sync" if inherit => Ok(PolicyChange::Sync(None)),
            "sync" => CloseSync::from_name(value)
                .map(|s| PolicyChange::Sync(Some(s)))
                .ok_or_else(|| format!("sync={value}: write forced, normal or inherit")),
            "transient" if inherit => Ok(PolicyChange::Mode(None)),
            "transient" => parse_switch(value)
                .map(|t| PolicyChange::Mode(Some(if t { Mode::Transient } else { Mode::Local })))
                .ok_or_else(|| format!("transient={value}: write yes, no or inherit")),
            "write-behind" | "write_behind" if inherit => Ok(PolicyChange::WriteBehind(None)),
            "write-behind" | "write_behind" => {
                WriteBehind::parse(value).map(|w| PolicyChange::WriteBehind(Some(w)))
            }
            _ => {
                Err(format!("unknown policy key {key:?}: the keys are mode, sync, promote and write-behind"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: policy words mean what they say, and wrong ones name the right ones. Method: tables of words.
    use super::*;

    #[test]
    fn words_become_changes() {
        let mut policy = DirPolicy::default();
        for word in ["promote=on-request", "mode=hybrid", "sync=forced", "write-behind=2s"] {
            policy.apply(word.parse().unwrap());
        }
        assert_eq!(policy.promote, Some(Promote::OnRequest));
        assert_eq!((policy.mode, policy.sync), (Some(Mode::Hybrid), Some(CloseSync::Forced)));
        for (word, mode) in [("yes", Some(Mode::Transient)), ("no", Some(Mode::Local)), ("inherit", None)] {
            policy.apply(format!("transient={word}").parse().unwrap());
            assert_eq!(policy.mode, mode);
        }
        for name in Mode::NAMES {
            policy.apply(format!("mode={name}").parse().unwrap());
            assert_eq!(policy.mode.map(Mode::name), Some(*name));
        }
        assert_eq!(policy.write_behind.unwrap().to_string(), "2s");
        policy.apply("write-behind=never".parse().unwrap());
        assert_eq!(policy.write_behind, Some(WriteBehind::Never));
        for word in ["promote=inherit", "mode=inherit", "sync=inherit", "write-behind=inherit"] {
            policy.apply(word.parse().unwrap());
        }
        assert!(policy.is_empty());
    }

    #[test]
    fn wrong_words_are_refused() {
        for word in [
            "promote",
            "promote=later",
            "transient=maybe",
            "mode=fast",
            "sync=yes",
            "write-behind=5",
            "colour=red",
            "=",
            "",
        ] {
            assert!(word.parse::<PolicyChange>().is_err(), "{word}");
        }
    }
}
