//! The mark of an object that is not done with moving, as it is stored.
//!
//! Mark, version 1, 14 bytes, little-endian (`docs/data-model.md`), under the key `0, H, inode`: version u8 | kind u8 (1 a copy that came, 2 it
//! went) | generation u32 | attempt u64

use std::collections::BTreeMap;

use bytes::Bytes;
use types::Ino;

const VERSION: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Came = 1,
    Went = 2,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub kind: Kind,
    pub generation: u32,
    pub attempt: u64,
}

/// Of copies alone.
pub(super) type Marks = BTreeMap<Ino, Mark>;

impl Mark {
    pub fn encode(self) -> Bytes {
        let mut bytes = vec![VERSION, self.kind as u8];
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.attempt.to_le_bytes());
        bytes.into()
    }

    pub fn decode(bytes: &[u8]) -> Option<Mark> {
        let [VERSION, kind, rest @ ..] = bytes else { return None };
        let kind = match kind {
            1 => Kind::Came,
            2 => Kind::Went,
            _ => return None,
        };
        let (generation, attempt) = rest.split_first_chunk::<4>()?;
        let attempt = u64::from_le_bytes(attempt.try_into().ok()?);
        Some(Mark { kind, generation: u32::from_le_bytes(*generation), attempt })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mark = Mark { kind: Kind::Went, generation: 0x0102_0304, attempt: 6 << 32 | 5 };
        let golden = b"\x01\x02\x04\x03\x02\x01\x05\0\0\0\x06\0\0\0";
        assert_eq!((&mark.encode()[..], Mark::decode(golden)), (&golden[..], Some(mark)));
    }

    /// Goal: what is stored is a mark or none. Method: fuzzing.
    #[test]
    fn fuzz_marks() {
        let good =
            [Kind::Came, Kind::Went].map(|kind| Mark { kind, generation: 1, attempt: 2 }.encode().to_vec());
        fuzzing::fuzz("marks", &good, fuzzing::as_it_is, |bytes| {
            if let Some(mark) = Mark::decode(bytes) {
                assert_eq!(&mark.encode()[..], bytes);
            }
        });
    }
}
