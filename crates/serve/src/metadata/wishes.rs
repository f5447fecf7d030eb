//! What a directory says of where the data of new files in it go, as text and as it is stored.
//!
//! Text: `stripes=N|auto unit=SIZE|auto local=yes|no|auto copies=1|2|auto`, each word once at the most.
//! Record, version 1, 12 bytes, little-endian (`docs/data-model.md`), under the key `inode, T` of a directory:
//! version u8 | local u8 (0 auto, 1 yes, 2 no) | stripes u16 (0 auto) | unit u64 (0 auto)
//!
//! Version 2, of one that says how many copies, is followed by: copies u8

use std::fmt;

use cluster::placement::GROUP_MAX;
use types::{ByteSize, SAU_BYTES};

const VERSION: u8 = 1;
const COPIES_VERSION: u8 = 2;
/// Of one stripe.
pub(super) const COPIES_MAX: u8 = 2;
const RECORD_BYTES: usize = 12;
/// Bytes of the largest stripe unit.
const UNIT_MAX: u64 = 1 << 30;

/// Do the data of a file go to its writer's own node?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Local {
    /// If nobody else has it open for writing.
    #[default]
    Auto,
    Yes,
    No,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct DirWish {
    /// `None`: as many as the writers suggest.
    pub stripes: Option<u16>,
    /// Bytes.
    pub unit: Option<u64>,
    pub local: Local,
    /// Of each stripe. `None`: one.
    pub copies: Option<u8>,
}

impl Local {
    const ALL: [(Local, &'static str); 3] = [(Local::Auto, "auto"), (Local::Yes, "yes"), (Local::No, "no")];

    fn name(self) -> &'static str {
        Local::ALL.iter().find(|(local, _)| *local == self).map_or("auto", |(_, name)| name)
    }
}

impl DirWish {
    /// It says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        *self == DirWish::default()
    }

    /// What it is when `text` is said: words that are not there stay as they are. `None`: the text says nothing that can be.
    pub(crate) fn with(mut self, text: &str) -> Option<DirWish> {
        let mut seen: Vec<&str> = Vec::new();
        for word in text.split_whitespace() {
            let (key, value) = word.split_once('=')?;
            if seen.contains(&key) {
                return None;
            }
            seen.push(key);
            match (key, value) {
                ("stripes", "auto") => self.stripes = None,
                ("stripes", n) => self.stripes = Some(n.parse().ok()?),
                ("unit", "auto") => self.unit = None,
                ("unit", size) => self.unit = Some(size.parse::<ByteSize>().ok()?.0),
                ("copies", "auto") => self.copies = None,
                ("copies", n) => self.copies = Some(n.parse().ok()?),
                ("local", word) => self.local = Local::ALL.iter().find(|(_, name)| *name == word)?.0,
                _ => return None,
            }
        }
        (!seen.is_empty() && self.is_good()).then_some(self)
    }

    fn is_good(&self) -> bool {
        self.copies.is_none_or(|n| (1..=COPIES_MAX).contains(&n))
            && self.stripes.is_none_or(|n| (1..=GROUP_MAX).contains(&n))
            && self.unit.is_none_or(|unit| unit > 0 && unit <= UNIT_MAX && unit.is_multiple_of(SAU_BYTES))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let local = match self.local {
            Local::Auto => 0,
            Local::Yes => 1,
            Local::No => 2,
        };
        let version = if self.copies.is_some() { COPIES_VERSION } else { VERSION };
        let mut bytes = vec![version, local];
        bytes.extend(self.stripes.unwrap_or(0).to_le_bytes());
        bytes.extend(self.unit.unwrap_or(0).to_le_bytes());
        bytes.extend(self.copies);
        bytes
    }

    /// `None`: not such a record.
    pub(crate) fn decode(bytes: &[u8]) -> Option<DirWish> {
        let (bytes, rest) = bytes.split_first_chunk::<RECORD_BYTES>()?;
        let copies = match (bytes[0], rest) {
            (VERSION, []) => None,
            (COPIES_VERSION, [copies]) => Some(*copies),
            _ => return None,
        };
        let local = match bytes[1] {
            0 => Local::Auto,
            1 => Local::Yes,
            2 => Local::No,
            _ => return None,
        };
        let stripes = Some(u16::from_le_bytes([bytes[2], bytes[3]])).filter(|n| *n != 0);
        let unit = bytes.get(4..)?.try_into().ok().map(u64::from_le_bytes).filter(|unit| *unit != 0);
        let wish = DirWish { stripes, unit, local, copies };
        wish.is_good().then_some(wish)
    }
}

impl fmt::Display for DirWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_auto = |n: Option<u64>| n.map_or_else(|| "auto".to_owned(), |n| n.to_string());
        let (stripes, unit) = (or_auto(self.stripes.map(u64::from)), or_auto(self.unit));
        write!(f, "stripes={stripes} unit={unit} local={}", self.local.name())?;
        self.copies.map_or(Ok(()), |copies| write!(f, " copies={copies}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let wish = DirWish { stripes: Some(4), unit: Some(8 << 20), local: Local::No, copies: None };
        let golden = b"\x01\x02\x04\0\0\0\x80\0\0\0\0\0";
        assert_eq!(wish.encode(), golden);
        assert_eq!(DirWish::decode(golden), Some(wish));
        assert_eq!(DirWish::decode(&DirWish::default().encode()), Some(DirWish::default()));
        let wish = DirWish { copies: Some(2), ..wish };
        let golden = b"\x02\x02\x04\0\0\0\x80\0\0\0\0\0\x02";
        assert_eq!(wish.encode(), golden);
        assert_eq!(DirWish::decode(golden), Some(wish));
        assert_eq!(wish.with(&wish.to_string()), Some(wish));
        assert_eq!(wish.with("copies=3"), None);
    }

    #[test]
    fn words_that_are_not_there_stay_as_they_are() {
        let wish = DirWish::default().with("stripes=2 unit=8MiB").unwrap();
        assert_eq!(wish.to_string(), "stripes=2 unit=8388608 local=auto");
        assert_eq!(wish.with(&wish.to_string()), Some(wish));
        assert_eq!(wish.with("local=yes").unwrap().to_string(), "stripes=2 unit=8388608 local=yes");
        assert!(wish.with("stripes=auto unit=auto").unwrap().is_empty());
        for wrong in [
            "",
            "stripes",
            "stripes=0",
            "stripes=65",
            "stripes=-1",
            "unit=1",
            "unit=0",
            "unit=2GiB",
            "local=",
            "local=3",
            "stripes=1 stripes=1",
            "other=1",
            "stripes=99999",
        ] {
            assert_eq!(wish.with(wrong), None, "{wrong}");
        }
    }

    /// Goal: what is stored or said is within its bounds, or is none. Method: fuzzing.
    #[test]
    fn fuzz_wishes() {
        let wish = DirWish { stripes: Some(4), unit: Some(8 << 20), local: Local::Yes, copies: None };
        let good = [wish.encode(), wish.to_string().into_bytes()];
        fuzzing::fuzz("wishes", &good, fuzzing::as_it_is, |bytes| {
            if let Some(wish) = DirWish::decode(bytes) {
                assert_eq!(wish.encode(), bytes);
            }
            if let Some(wish) = std::str::from_utf8(bytes).ok().and_then(|text| DirWish::default().with(text))
            {
                assert_eq!(DirWish::decode(&wish.encode()), Some(wish));
            }
        });
    }
}
