//! What an object's user metadata say of the file.
//!
//! The names and forms are those of s3fs: `mode` (with the type) and `uid`, `gid` as decimal numbers, `mtime` and `atime` as
//! seconds with a fraction, which is rclone's form as well. A `mode` that begins with 0 is octal, as rclone writes it. Ours besides:
//! `onfs-id`, 16 hexadecimal digits, names the object through its copies, and `onfs-rdev` is the number of a device. What is
//! missing or does not have its form is as if it was not there.

use std::collections::HashMap;

use link::Attributes;
use types::{FileKind, Timestamp};

const ID: &str = "onfs-id";
const RDEV: &str = "onfs-rdev";
const TYPE_BITS: u32 = 0o170_000;
const MODE_BITS: u32 = 0o7777;

/// What was found of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stored {
    pub id: Option<u64>,
    pub kind: Option<FileKind>,
    /// Without the type.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mtime: Option<Timestamp>,
    pub atime: Option<Timestamp>,
    pub rdev: Option<u32>,
}

impl Stored {
    pub fn of(kind: FileKind, id: u64, rdev: u32, to: &Attributes<'_>) -> Stored {
        Stored {
            id: Some(id),
            kind: Some(kind),
            mode: Some(to.mode & MODE_BITS),
            uid: Some(to.uid),
            gid: Some(to.gid),
            mtime: Some(to.mtime),
            atime: Some(to.atime),
            rdev: Some(rdev).filter(|rdev| *rdev != 0),
        }
    }

    pub fn parse(metadata: &HashMap<String, String>) -> Stored {
        let text = |name: &str| metadata.get(name).map(|value| value.trim());
        let number = |name: &str| text(name).and_then(|value| value.parse().ok());
        let mode = text("mode").and_then(mode);
        Stored {
            id: text(ID).filter(|id| id.len() == 16).and_then(|id| u64::from_str_radix(id, 16).ok()),
            kind: mode.filter(|mode| mode & TYPE_BITS != 0).and_then(FileKind::from_mode),
            mode: mode.map(|mode| mode & MODE_BITS),
            uid: number("uid"),
            gid: number("gid"),
            mtime: text("mtime").and_then(time),
            atime: text("atime").and_then(time),
            rdev: number(RDEV),
        }
    }

    /// Puts it among the metadata of others.
    pub fn put(&self, into: &mut HashMap<String, String>) {
        let mut put = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                into.insert(name.to_owned(), value);
            }
        };
        put(ID, self.id.map(|id| format!("{id:016x}")));
        let kind = self.kind.map_or(0, FileKind::mode_bits);
        put("mode", self.mode.map(|mode| (mode | kind).to_string()));
        put("uid", self.uid.map(|uid| uid.to_string()));
        put("gid", self.gid.map(|gid| gid.to_string()));
        put("mtime", self.mtime.map(shown));
        put("atime", self.atime.map(shown));
        put(RDEV, self.rdev.map(|rdev| rdev.to_string()));
    }
}

fn mode(text: &str) -> Option<u32> {
    match text.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => u32::from_str_radix(octal, 8).ok(),
        Some(_) | None => text.parse().ok(),
    }
}

fn shown(time: Timestamp) -> String {
    format!("{}.{:09}", time.sec, time.nsec)
}

/// A fraction counts from the whole second on, before 1970 as well.
fn time(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let sec = whole.parse().ok()?;
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    Some(Timestamp { sec, nsec: digits.parse().ok()? })
}

#[cfg(test)]
mod tests {
    //! Goal: what we write is what others write, and comes back; no text breaks the reader. Method: a golden form, forms of
    //! others, any text.
    use super::*;
    use proptest::prelude::*;

    fn at(sec: i64, nsec: u32) -> Timestamp {
        Timestamp { sec, nsec }
    }

    fn stored() -> Stored {
        let to = Attributes { mode: 0o4751, uid: 5, gid: 6, atime: at(1, 2), mtime: at(-3, 4), xattrs: &[] };
        Stored::of(FileKind::CharDevice, 0xab, 0x801, &to)
    }

    #[test]
    fn golden_form() {
        let mut all = HashMap::from([("colour".to_owned(), "blue".to_owned())]);
        stored().put(&mut all);
        let mut lines: Vec<String> = all.iter().map(|(name, value)| format!("{name}={value}")).collect();
        lines.sort();
        assert_eq!(
            lines,
            [
                "atime=1.000000002",
                "colour=blue",
                "gid=6",
                "mode=10729",
                "mtime=-3.000000004",
                "onfs-id=00000000000000ab",
                "onfs-rdev=2049",
                "uid=5"
            ]
        );
        assert_eq!(Stored::parse(&all), stored());
    }

    #[test]
    fn forms_of_others() {
        let parse =
            |name: &str, value: &str| Stored::parse(&HashMap::from([(name.to_owned(), value.to_owned())]));
        assert_eq!(parse("mode", "33188").mode, Some(0o644));
        assert_eq!(parse("mode", "0100600").kind, Some(FileKind::Regular));
        assert_eq!((parse("mode", "420").mode, parse("mode", "420").kind), (Some(0o644), None));
        assert_eq!(parse("mtime", "1700000000").mtime, Some(at(1_700_000_000, 0)));
        assert_eq!(parse("mtime", "1700000000.5").mtime, Some(at(1_700_000_000, 500_000_000)));
        assert_eq!(parse("mtime", "1700000000.1234567891").mtime, Some(at(1_700_000_000, 123_456_789)));
        for bad in ["2024-01-01T00:00:00Z", "", ".", "1.-5", "1.5e3", "x"] {
            assert_eq!(parse("mtime", bad).mtime, None, "{bad}");
        }
        assert_eq!(parse("onfs-id", "ab").id, None);
        assert_eq!(parse("uid", "-1").uid, None);
    }

    proptest! {
        #[test]
        fn any_text_is_read(value in ".{0,30}") {
            for name in ["mode", "uid", "mtime", "atime", ID, RDEV] {
                let _ = Stored::parse(&HashMap::from([(name.to_owned(), value.clone())]));
            }
        }

        #[test]
        fn times_come_back(sec in any::<i64>(), nsec in 0u32..1_000_000_000) {
            prop_assert_eq!(time(&shown(at(sec, nsec))), Some(at(sec, nsec)));
        }
    }
}
