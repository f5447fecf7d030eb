//! What the data service keeps of an object: whether it is live, and what it came to when it was settled.
//!
//! Record, version 1, 42 bytes, little-endian (`docs/data-model.md`), under the key `inode, H`:
//! version u8 | flags u8 (1 live, 2 has a time) | generation u32 | memory generation u32 | size u64 | blocks u64 | mtime (i64 s, u32 ns)
//! | 4 zeros
//!
//! Of an object that went to another data server, version 2, 13 bytes: version u8 | generation u32 | attempt u64

use namespace::txn::KvError;
use types::{Errno, Ino, Timestamp};

const VERSION: u8 = 1;
const GONE_VERSION: u8 = 2;
pub const RECORD_BYTES: usize = 42;
const LIVE: u8 = 1;
const TIME: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// It was written and not settled: its bytes know its size, unless this one is larger.
    pub live: bool,
    /// Of the file's layout.
    pub generation: u32,
    /// The memory tier's, when it was last begun.
    pub memory_generation: u32,
    pub size: u64,
    /// 512-byte units, when it was settled.
    pub blocks: u64,
    /// Of the last write, until somebody sets one.
    pub mtime: Option<Timestamp>,
    /// It went to another data server, in this attempt (from 1): nothing of it is here, and nothing else is said.
    pub gone: Option<u64>,
}

impl Record {
    /// Of an object that is elsewhere.
    pub fn of_gone(generation: u32, attempt: u64) -> Record {
        Record { generation, gone: Some(attempt), ..Record::default() }
    }

    pub fn encode(&self) -> Vec<u8> {
        if let Some(attempt) = self.gone {
            let mut bytes = vec![GONE_VERSION];
            bytes.extend(self.generation.to_le_bytes());
            bytes.extend(attempt.to_le_bytes());
            return bytes;
        }
        let mut bytes = Vec::with_capacity(RECORD_BYTES);
        let time = if self.mtime.is_some() { TIME } else { 0 };
        bytes.extend([VERSION, if self.live { LIVE } else { 0 } | time]);
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.memory_generation.to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.blocks.to_le_bytes());
        let mtime = self.mtime.unwrap_or_default();
        bytes.extend(mtime.sec.to_le_bytes());
        bytes.extend(mtime.nsec.to_le_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    /// `None`: not such a record.
    pub fn decode(bytes: &[u8]) -> Option<Record> {
        if let [GONE_VERSION, rest @ ..] = bytes {
            let (generation, attempt) = rest.split_first_chunk::<4>()?;
            let attempt = u64::from_le_bytes(attempt.try_into().ok()?);
            return (attempt > 0).then(|| Record::of_gone(u32::from_le_bytes(*generation), attempt));
        }
        let bytes: &[u8; RECORD_BYTES] = bytes.try_into().ok()?;
        let (version, flags, rest) = (bytes[0], bytes[1], &bytes[2..]);
        let (four, rest) = rest.split_first_chunk::<4>()?;
        let generation = u32::from_le_bytes(*four);
        let (four, rest) = rest.split_first_chunk::<4>()?;
        let memory_generation = u32::from_le_bytes(*four);
        let (eight, rest) = rest.split_first_chunk::<8>()?;
        let size = u64::from_le_bytes(*eight);
        let (eight, rest) = rest.split_first_chunk::<8>()?;
        let blocks = u64::from_le_bytes(*eight);
        let (eight, rest) = rest.split_first_chunk::<8>()?;
        let sec = i64::from_le_bytes(*eight);
        let (four, zeros) = rest.split_first_chunk::<4>()?;
        let mtime = Timestamp { sec, nsec: u32::from_le_bytes(*four) };
        let has_time = flags & TIME != 0;
        let good = version == VERSION
            && flags & !(LIVE | TIME) == 0
            && zeros == [0; 4]
            && mtime.nsec < 1_000_000_000
            && (has_time || mtime == Timestamp::EPOCH);
        let mtime = has_time.then_some(mtime);
        let live = flags & LIVE != 0;
        good.then_some(Record { live, generation, memory_generation, size, blocks, mtime, gone: None })
    }
}

pub(super) fn refused(ino: Ino, error: &KvError) -> Errno {
    match error {
        KvError::Full => Errno::ENOSPC,
        KvError::ReadOnly(_) => Errno::EROFS,
        KvError::Io(_) | KvError::Corrupt(_) => {
            tracing::error!(%ino, %error, "the record of an object was not read or stored");
            Errno::EIO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            live: true,
            generation: 0x0102_0304,
            memory_generation: 5,
            size: 0x0102_0304_0506_0708,
            blocks: 9,
            mtime: Some(Timestamp { sec: -2, nsec: 3 }),
            gone: None,
        }
    }

    #[test]
    fn golden_bytes() {
        let golden = b"\x01\x03\x04\x03\x02\x01\x05\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0\0\0\0\0\
            \xfe\xff\xff\xff\xff\xff\xff\xff\x03\0\0\0\0\0\0\0";
        assert_eq!(record().encode(), golden);
        assert_eq!(Record::decode(golden), Some(record()));
        let golden = b"\x02\x04\x03\x02\x01\x05\0\0\0\x06\0\0\0";
        let gone = Record::of_gone(0x0102_0304, 6 << 32 | 5);
        assert_eq!((gone.encode(), Record::decode(golden)), (golden.to_vec(), Some(gone)));
    }

    /// Goal: what is stored is a record or none, and nothing else. Method: fuzzing.
    #[test]
    fn fuzz_held() {
        let good = [record(), Record::default(), Record::of_gone(2, 3)].map(|record| record.encode());
        fuzzing::fuzz("held", &good, fuzzing::as_it_is, |bytes| {
            if let Some(record) = Record::decode(bytes) {
                assert_eq!(record.encode(), bytes);
            }
        });
    }
}
