//! What stands around stored and sent forms: who they are, in which version, whole.
//!
//! ```text
//! 0   "ONCM" a map, "ONCD" a difference
//! 4   version, u16      6   0, u16
//! 8   bytes of the record, u32
//! 12  CRC-32C of bytes 0 to 11 and of the record, u32
//! 16  the record (protobuf)
//! ```
//!
//! All numbers are little-endian.

use prost::Message;
use thiserror::Error;

use crate::rule::MapError;

pub const VERSION: u16 = 1;
const HEADER_LEN: usize = 16;
/// As much as the body of a frame.
pub const RECORD_MAX: usize = (4 << 20) - HEADER_LEN;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Map,
    Difference,
}

impl Form {
    const fn magic(self) -> [u8; 4] {
        match self {
            Form::Map => *b"ONCM",
            Form::Difference => *b"ONCD",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DecodeError {
    #[error("it does not begin as a {form:?} does")]
    Magic { form: Form },
    #[error("version {found}; this program knows {VERSION}")]
    Version { found: u16 },
    #[error("{found} bytes, where {wanted} should be")]
    Length { found: usize, wanted: usize },
    #[error("the checksum is wrong")]
    Sum,
    #[error("the record is no protobuf of this form: {0}")]
    Record(String),
    #[error(transparent)]
    Rule(#[from] MapError),
}

pub(crate) fn seal(form: Form, record: &impl Message) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    bytes.reserve(record.encoded_len());
    bytes.extend(record.encode_to_vec());
    bytes[..4].copy_from_slice(&form.magic());
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    let len = (bytes.len() - HEADER_LEN) as u32;
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    let sum = sum(&bytes);
    bytes[12..HEADER_LEN].copy_from_slice(&sum.to_le_bytes());
    bytes
}

pub(crate) fn open<R: Message + Default>(form: Form, bytes: &[u8]) -> Result<R, DecodeError> {
    let length = |wanted| DecodeError::Length { found: bytes.len(), wanted };
    let (header, record) = bytes.split_at_checked(HEADER_LEN).ok_or_else(|| length(HEADER_LEN))?;
    if header[..4] != form.magic() {
        return Err(DecodeError::Magic { form });
    }
    let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let u32_at = |at| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
    // Before the checksum: a later version may have another one.
    if u16_at(4) != VERSION {
        return Err(DecodeError::Version { found: u16_at(4) });
    }
    let len = u32_at(8) as usize;
    if len != record.len() || len > RECORD_MAX {
        return Err(length(HEADER_LEN + len.min(RECORD_MAX)));
    }
    if sum(bytes) != u32_at(12) || u16_at(6) != 0 {
        return Err(DecodeError::Sum);
    }
    R::decode(record).map_err(|error| DecodeError::Record(error.to_string()))
}

fn sum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[HEADER_LEN..])
}
