//! Fixed little-endian records: a writer into an array of known length and a strict reader.
//!
//! Invariants: a record has exactly its length; reading never panics, whatever the bytes.

use types::Timestamp;

/// Fills an array of `N` bytes front to back.
pub(crate) struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    pub(crate) fn new() -> Writer<N> {
        Writer { bytes: [0; N], at: 0 }
    }
    pub(crate) fn raw(mut self, field: &[u8]) -> Writer<N> {
        let end = self.at + field.len();
        self.bytes[self.at..end].copy_from_slice(field);
        self.at = end;
        self
    }
    pub(crate) fn u8(self, n: u8) -> Writer<N> {
        self.raw(&[n])
    }
    pub(crate) fn u16(self, n: u16) -> Writer<N> {
        self.raw(&n.to_le_bytes())
    }
    pub(crate) fn u32(self, n: u32) -> Writer<N> {
        self.raw(&n.to_le_bytes())
    }
    pub(crate) fn u64(self, n: u64) -> Writer<N> {
        self.raw(&n.to_le_bytes())
    }
    pub(crate) fn time(self, t: Timestamp) -> Writer<N> {
        self.raw(&t.sec.to_le_bytes()).u32(t.nsec)
    }
    pub(crate) fn finish(self) -> [u8; N] {
        debug_assert_eq!(self.at, N);
        self.bytes
    }
}

/// Takes fields off the front of stored bytes; `None` once they run out or are out of range.
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields(bytes)
    }
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|b| b[0])
    }
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    pub(crate) fn time(&mut self) -> Option<Timestamp> {
        let sec = i64::from_le_bytes(self.array()?);
        let nsec = self.u32()?;
        if nsec < 1_000_000_000 { Some(Timestamp { sec, nsec }) } else { None }
    }
    /// `Some` only when everything was taken.
    pub(crate) fn end(&self) -> Option<()> {
        if self.0.is_empty() { Some(()) } else { None }
    }
}
