//! Sizes as people write them.

use std::{fmt, str::FromStr};

/// A number of bytes, written with a binary unit: `"4KiB"`, `"64MiB"`, `"2GiB"`, `"1TiB"`, or plain bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct ByteSize(pub u64);

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a size: write a whole number and a unit, such as \"64MiB\", \"2GiB\" or \"1TiB\"")]
pub struct ParseSizeError(String);

const UNITS: [(&str, u32); 5] = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl FromStr for ByteSize {
    type Err = ParseSizeError;

    /// Also takes the short forms `K M G T P` (and lower case), which mean the binary units.
    fn from_str(text: &str) -> Result<ByteSize, ParseSizeError> {
        let bad = || ParseSizeError(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (digits, unit) = trimmed.split_at(split);
        let count: u64 = digits.parse().map_err(|_| bad())?;
        let unit = unit.trim();
        let shift = match unit {
            "" | "B" => 0,
            _ => UNITS
                .iter()
                .find(|(name, _)| unit == *name || unit.eq_ignore_ascii_case(&name[..1]))
                .map(|(_, shift)| *shift)
                .ok_or_else(bad)?,
        };
        count.checked_mul(1 << shift).map(ByteSize).ok_or_else(bad)
    }
}

impl fmt::Display for ByteSize {
    /// Exact: the largest unit that divides the size. `{:#}` rounds to one decimal for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            for (name, shift) in UNITS {
                if self.0 >= 1 << shift {
                    return write!(f, "{:.1} {name}", self.0 as f64 / (1u64 << shift) as f64);
                }
            }
            return write!(f, "{} B", self.0);
        }
        for (name, shift) in UNITS {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{name}", self.0 >> shift);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl serde::Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<ByteSize, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_trip() {
        for text in ["0B", "1B", "4KiB", "64MiB", "2GiB", "3TiB", "4097B"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
        assert_eq!("2g".parse::<ByteSize>().unwrap().0, 2 << 30);
        assert_eq!(format!("{:#}", ByteSize(1536)), "1.5 KiB");
        for bad in ["", "MiB", "-1", "1.5GiB", "4 elephants", "99999999999TiB"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }
}
