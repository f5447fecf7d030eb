//! Bytes that a program wrote, in the buffer in which they came.

use std::ops::Range;

use crate::buffer::Pooled;

/// The data of a WRITE. The buffer goes back to the transport when this is dropped.
pub struct Data {
    bytes: Bytes,
}

enum Bytes {
    There(Pooled, Range<usize>),
    Copied(Box<[u8]>),
}

impl Data {
    pub(crate) fn of(buffer: Pooled, range: Range<usize>) -> Data {
        Data { bytes: Bytes::There(buffer, range) }
    }

    pub(crate) fn copied(bytes: &[u8]) -> Data {
        Data { bytes: Bytes::Copied(bytes.into()) }
    }
}

impl AsRef<[u8]> for Data {
    fn as_ref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::There(buffer, range) => buffer.bytes().get(range.clone()).unwrap_or_default(),
            Bytes::Copied(bytes) => bytes,
        }
    }
}
