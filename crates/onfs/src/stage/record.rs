//! The stored form of a stage's journal (docs/data-model.md). Pure.
//!
//! A header says format and job; then frames, each with its length and checksum. What does not decode ends the journal:
//! a record is a hint that saves work, and what it speaks of is compared with the destination before it is used.

use types::Timestamp;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::facts::Stamp;

/// The last byte is the version.
const MAGIC: &[u8; 8] = b"ONFSSTG1";
const FORMAT: usize = 7;
pub const HEADER: usize = 8 + 16;
const FRAME: usize = 8;
/// The longest record has a path.
const PAYLOAD_MAX: usize = 64 << 10;

const RUN: u8 = 1;
const BEGUN: u8 = 2;
const PIECE: u8 = 3;
const DONE: u8 = 4;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A run begins: what follows was written in this boot.
    Run { boot: [u8; 16] },
    /// A large file is being copied, in pieces.
    Begun { key: u128, stamp: Stamp, way: Vec<u8> },
    /// A piece was written.
    Piece { key: u128, index: u32, sum: u64 },
    /// A file has its name, whole.
    Done { key: u128, stamp: Stamp, sum: u64, durable: bool },
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("the journal of another stage has this name")]
    OtherJob,
    #[error("the journal was written by another version of onfs (format {0:?})")]
    OtherFormat(char),
    #[error("this is no journal of a stage")]
    Strange,
}

/// Names a destination.
pub fn key_of(path: &[u8]) -> u128 {
    xxh3_128(path)
}

pub fn header(job: u128) -> Vec<u8> {
    [&MAGIC[..], &job.to_le_bytes()].concat()
}

/// Whether `bytes` begin with the header of this job; `false` for a header that was never written whole.
pub fn check_header(bytes: &[u8], job: u128) -> Result<bool, HeaderError> {
    let wanted = header(job);
    let Some(found) = bytes.get(..HEADER) else {
        return if wanted.starts_with(bytes) { Ok(false) } else { Err(HeaderError::Strange) };
    };
    if found == wanted {
        Ok(true)
    } else if found[..FORMAT] != MAGIC[..FORMAT] {
        Err(HeaderError::Strange)
    } else if found[FORMAT] != MAGIC[FORMAT] {
        Err(HeaderError::OtherFormat(char::from(found[FORMAT])))
    } else {
        Err(HeaderError::OtherJob)
    }
}

impl Record {
    /// As a frame.
    pub fn encode(&self) -> Vec<u8> {
        let payload = self.payload();
        let mut out = Vec::with_capacity(FRAME + payload.len());
        out.extend((payload.len() as u32).to_le_bytes());
        out.extend(check(&payload).to_le_bytes());
        out.extend(payload);
        out
    }

    fn payload(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Record::Run { boot } => {
                out.push(RUN);
                out.extend(boot);
            }
            Record::Begun { key, stamp, way } => {
                out.push(BEGUN);
                out.extend(key.to_le_bytes());
                put_stamp(&mut out, stamp);
                out.extend(way);
            }
            Record::Piece { key, index, sum } => {
                out.push(PIECE);
                out.extend(key.to_le_bytes());
                out.extend(index.to_le_bytes());
                out.extend(sum.to_le_bytes());
            }
            Record::Done { key, stamp, sum, durable } => {
                out.push(DONE);
                out.extend(key.to_le_bytes());
                put_stamp(&mut out, stamp);
                out.extend(sum.to_le_bytes());
                out.push(u8::from(*durable));
            }
        }
        out
    }
}

/// The first record, and how many bytes it takes; `None` when the bytes end within it, or are damaged.
pub fn decode(bytes: &[u8]) -> Option<(Record, usize)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    let payload = rest.get(..length).filter(|_| length <= PAYLOAD_MAX)?;
    if check(payload) != u32::from_le_bytes(*sum) {
        return None;
    }
    Some((record(payload)?, FRAME + length))
}

fn record(payload: &[u8]) -> Option<Record> {
    let (tag, mut rest) = payload.split_first()?;
    let record = match *tag {
        RUN => Record::Run { boot: *array(&mut rest)? },
        BEGUN => {
            let key = u128::from_le_bytes(*array(&mut rest)?);
            let stamp = stamp(&mut rest)?;
            Record::Begun { key, stamp, way: std::mem::take(&mut rest).to_vec() }
        }
        PIECE => Record::Piece {
            key: u128::from_le_bytes(*array(&mut rest)?),
            index: u32::from_le_bytes(*array(&mut rest)?),
            sum: u64::from_le_bytes(*array(&mut rest)?),
        },
        DONE => {
            let key = u128::from_le_bytes(*array(&mut rest)?);
            let stamp = stamp(&mut rest)?;
            let sum = u64::from_le_bytes(*array(&mut rest)?);
            let durable = match array::<1>(&mut rest)? {
                [0] => false,
                [1] => true,
                _ => return None,
            };
            Record::Done { key, stamp, sum, durable }
        }
        _ => return None,
    };
    rest.is_empty().then_some(record)
}

fn put_stamp(out: &mut Vec<u8>, stamp: &Stamp) {
    out.extend(stamp.ino.to_le_bytes());
    out.extend(stamp.size.to_le_bytes());
    for time in [stamp.mtime, stamp.ctime] {
        out.extend(time.sec.to_le_bytes());
        out.extend(time.nsec.to_le_bytes());
    }
}

fn stamp(rest: &mut &[u8]) -> Option<Stamp> {
    let ino = u64::from_le_bytes(*array(rest)?);
    let size = u64::from_le_bytes(*array(rest)?);
    Some(Stamp { ino, size, mtime: time(rest)?, ctime: time(rest)? })
}

fn time(rest: &mut &[u8]) -> Option<Timestamp> {
    Some(Timestamp { sec: i64::from_le_bytes(*array(rest)?), nsec: u32::from_le_bytes(*array(rest)?) })
}

fn array<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (first, behind) = rest.split_first_chunk::<N>()?;
    *rest = behind;
    Some(first)
}

fn check(payload: &[u8]) -> u32 {
    xxh3_64(payload) as u32
}

#[cfg(test)]
mod tests {
    //! Goal: journals are read by later versions, and damaged ones by none wrongly. Method: the bytes of each record, and
    //! changed bytes.
    use super::*;

    fn samples() -> Vec<Record> {
        let stamp = Stamp {
            ino: 0x0102_0304_0506_0708,
            size: 5 << 30,
            mtime: Timestamp { sec: -1, nsec: 999_999_999 },
            ctime: Timestamp { sec: 1_700_000_000, nsec: 1 },
        };
        let key = key_of(b"/dst/a");
        vec![
            Record::Run { boot: *b"0123456789abcdef" },
            Record::Begun { key, stamp, way: b"/dst/.onfs-stage-1".to_vec() },
            Record::Piece { key, index: 3, sum: 0xfeed },
            Record::Done { key, stamp, sum: 0xbeef, durable: true },
        ]
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn the_stored_form_is_fixed() {
        assert_eq!(
            hex(&header(1)),
            "4f4e465353544731\
            01000000000000000000000000000000"
        );
        let stored: Vec<String> = samples().iter().map(|r| hex(&r.encode())).collect();
        assert_eq!(stored, GOLDEN);
    }
    const GOLDEN: [&str; 4] = [
        "110000008ec097150130313233343536373839616263646566",
        "4b0000001313d59b02c244509b3b6801b5c6804ccdd1c4043f0807060504030201000000400100\
         0000ffffffffffffffffffc99a3b00f1536500000000010000002f6473742f2e6f6e66732d73746167652d31",
        "1d0000000b5ff5da03c244509b3b6801b5c6804ccdd1c4043f03000000edfe000000000000",
        "42000000f8c4583a04c244509b3b6801b5c6804ccdd1c4043f0807060504030201000000400100\
         0000ffffffffffffffffffc99a3b00f153650000000001000000efbe00000000000001",
    ];

    #[test]
    fn records_come_back() {
        for record in samples() {
            let bytes = record.encode();
            assert_eq!(decode(&bytes), Some((record, bytes.len())));
            for end in 0..bytes.len() {
                assert_eq!(decode(&bytes[..end]), None);
            }
        }
    }

    #[test]
    fn a_header_says_whose_it_is() {
        let own = header(5);
        assert_eq!(check_header(&own, 5), Ok(true));
        assert_eq!(check_header(&own[..9], 5), Ok(false));
        assert_eq!(check_header(b"", 5), Ok(false));
        assert_eq!(check_header(&own, 6), Err(HeaderError::OtherJob));
        assert_eq!(check_header(b"something of somebody's, longer", 5), Err(HeaderError::Strange));
        assert_eq!(check_header(b"short", 5), Err(HeaderError::Strange));
        let mut later = own;
        later[FORMAT] = b'2';
        assert_eq!(check_header(&later, 5), Err(HeaderError::OtherFormat('2')));
    }

    #[test]
    fn fuzz_stage_journal() {
        let good: Vec<Vec<u8>> = samples().iter().map(Record::encode).collect();
        let mend = |bytes: &mut Vec<u8>| {
            if bytes.len() >= FRAME {
                let length = (bytes.len() - FRAME) as u32;
                let sum = check(&bytes[FRAME..]);
                bytes[..4].copy_from_slice(&length.to_le_bytes());
                bytes[4..FRAME].copy_from_slice(&sum.to_le_bytes());
            }
        };
        fuzzing::fuzz("stage-journal", &good, mend, |bytes| {
            if let Some((record, length)) = decode(bytes) {
                assert_eq!(record.encode(), bytes[..length]);
            }
            let _ = check_header(bytes, 1);
        });
    }
}
