//! What INIT came to, for another process that goes on with the connection.
//!
//! ```text
//! u32  version, 1
//! u32  number of the connection
//! u32  minor version of the protocol
//! u32  bytes that one answer carries at most
//! u64  capabilities that were granted
//! u32  block size
//! u32  readahead
//! ```

use crate::{abi, call::Agreed, decode::Dialect, flags::Capabilities};

const VERSION: u32 = 1;
const RECORD_BYTES: usize = 32;

/// What INIT came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) connection: u32,
    pub(crate) minor: u32,
    pub(crate) payload: u32,
    pub(crate) capabilities: Capabilities,
    pub(crate) block_size: u32,
    pub(crate) max_readahead: u32,
}

impl Record {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(RECORD_BYTES);
        for word in [VERSION, self.connection, self.minor, self.payload] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.capabilities.bits().to_le_bytes());
        out.extend_from_slice(&self.block_size.to_le_bytes());
        out.extend_from_slice(&self.max_readahead.to_le_bytes());
        out
    }

    /// `None`: of another version, or damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Record> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if bytes.len() != RECORD_BYTES || word(0)? != VERSION {
            return None;
        }
        let (low, high) = (u64::from(word(16)?), u64::from(word(20)?));
        let record = Record {
            connection: word(4)?,
            minor: word(8)?,
            payload: word(12)?,
            capabilities: Capabilities::from_bits_retain(high << 32 | low),
            block_size: word(24)?,
            max_readahead: word(28)?,
        };
        let sizes = (abi::MIN_READ_BUFFER as u32..=64 << 20).contains(&record.payload);
        sizes.then_some(record)
    }

    pub(crate) fn agreed(&self) -> Agreed {
        Agreed {
            dialect: Dialect { setxattr_ext: self.capabilities.contains(Capabilities::SETXATTR_EXT) },
            block_size: self.block_size,
            payload: self.payload as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use fuzzing::{as_it_is, fuzz};

    use super::*;

    const GOOD: Record = Record {
        connection: 41,
        minor: 45,
        payload: 1 << 20,
        capabilities: Capabilities::HAS_RESEND.union(Capabilities::ASYNC_READ),
        block_size: 4096,
        max_readahead: 2 << 20,
    };

    /// Goal: the next program reads what this one wrote. Method: golden bytes.
    #[test]
    fn golden_record() {
        let hex: String = GOOD.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "01000000290000002d000000000010000100000080000000 0010000000002000".replace(' ', ""));
        assert_eq!(Record::decode(&GOOD.encode()), Some(GOOD));
    }

    /// Goal: no bytes make it panic, and what is read is what was written. Method: [`fuzzing`].
    #[test]
    fn fuzz_record() {
        fuzz("session-record", &[GOOD.encode()], as_it_is, |bytes| {
            if let Some(record) = Record::decode(bytes) {
                assert_eq!(record.encode(), bytes);
            }
        });
    }
}
