//! Points in time and spans of it. Nothing here reads a clock.

use std::{fmt, str::FromStr, time::Duration};

/// Seconds and nanoseconds since 1970-01-01 UTC; seconds may be negative, nanoseconds are 0..1e9.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    pub sec: i64,
    pub nsec: u32,
}

impl Timestamp {
    pub const EPOCH: Timestamp = Timestamp { sec: 0, nsec: 0 };

    pub fn as_nanos(self) -> i128 {
        i128::from(self.sec) * 1_000_000_000 + i128::from(self.nsec)
    }
    /// Time since `earlier`, zero when `earlier` is later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        let nanos = (self.as_nanos() - earlier.as_nanos()).max(0);
        Duration::new((nanos / 1_000_000_000) as u64, (nanos % 1_000_000_000) as u32)
    }
    pub fn plus(self, span: Duration) -> Timestamp {
        let nanos = u64::from(self.nsec) + u64::from(span.subsec_nanos());
        let carry = nanos / 1_000_000_000;
        Timestamp {
            sec: self.sec.saturating_add_unsigned(span.as_secs()).saturating_add_unsigned(carry),
            nsec: (nanos % 1_000_000_000) as u32,
        }
    }
}

/// A duration as people write it: `"250ms"`, `"5s"`, `"10min"`, `"2h"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span(pub Duration);

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is not a time: write a whole number and a unit, such as \"250ms\", \"5s\", \"10min\" or \"2h\""
)]
pub struct ParseSpanError(String);

impl FromStr for Span {
    type Err = ParseSpanError;

    fn from_str(text: &str) -> Result<Span, ParseSpanError> {
        let bad = || ParseSpanError(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let (digits, unit) = trimmed.split_at(split);
        let count: u64 = digits.parse().map_err(|_| bad())?;
        let unit_ms = match unit.trim() {
            "ms" => 1,
            "s" => 1_000,
            "min" | "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(bad()),
        };
        count.checked_mul(unit_ms).map(|ms| Span(Duration::from_millis(ms))).ok_or_else(bad)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        match ms {
            0 => write!(f, "0s"),
            _ if ms.is_multiple_of(3_600_000) => write!(f, "{}h", ms / 3_600_000),
            _ if ms.is_multiple_of(60_000) => write!(f, "{}min", ms / 60_000),
            _ if ms.is_multiple_of(1_000) => write!(f, "{}s", ms / 1_000),
            _ => write!(f, "{ms}ms"),
        }
    }
}

impl serde::Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Span, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_round_trip() {
        for text in ["0s", "250ms", "5s", "10min", "2h"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        for bad in ["", "5", "s", "-1s", "1.5s", "5 parsecs", "99999999999999999999h"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    #[test]
    fn differences_carry_nanoseconds() {
        let a = Timestamp { sec: -1, nsec: 999_999_999 };
        assert_eq!(a.plus(Duration::from_nanos(2)), Timestamp { sec: 0, nsec: 1 });
        assert_eq!(Timestamp { sec: 0, nsec: 1 }.since(a), Duration::from_nanos(2));
        assert_eq!(a.since(Timestamp::EPOCH), Duration::ZERO);
    }
}
