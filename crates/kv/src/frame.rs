//! The journal's bytes: segment headers and commit frames. All numbers little-endian.
//!
//! Segment header, 64 bytes: magic `ONFSJRNL` | version u32 | 0 u32 | sequence u64 | salt u64 | boot id 16 bytes (zeros:
//! not known) | crc32c u32 of the 48 bytes before | zeros. The first 12 bytes have this meaning in every version.
//!
//! Frame: magic u32 | body length u32 | lsn u64 | synced u64 | body crc32c u32 | header crc32c u32, then the body.
//! - The header's checksum begins with the segment's salt and sequence: bytes of another segment, or bytes that
//!   somebody put into a value, never look like a frame.
//! - `synced` is the last number known to be durable when the frame was written. At recovery it proves what must
//!   be there: a hole below it is damage, a hole above it is what a power cut may leave. Without a power cut,
//!   which the boot id tells, nothing but the end of the last frame may be missing.
//!
//! Body: count u32, then for each entry: key length u16 | value length u32 (0xffffffff: deleted) | key | value.

use bytes::Bytes;

use crate::{disk::BootId, key::Key, lsn::Lsn, write_set::WriteSet};

/// Of the journal's segments.
pub const FORMAT_VERSION: u32 = 2;
/// The longest body of a frame; a commit beyond it is refused.
pub const FRAME_BYTES_MAX: usize = 64 << 20;
pub(crate) const SEGMENT_HEADER_BYTES: usize = 64;
/// In a sector of its own: writing it again puts nothing else at risk.
pub(crate) const MARK_OFFSET: usize = 512;
pub(crate) const FRAMES_OFFSET: usize = 1024;
pub(crate) const FRAME_HEADER_BYTES: usize = 32;

const MARK_MAGIC: [u8; 4] = *b"SYNC";
const MARK_BYTES: usize = 16;
const SEGMENT_MAGIC: [u8; 8] = *b"ONFSJRNL";
/// No zero byte, and unlikely in text.
const FRAME_MAGIC: [u8; 4] = [0xf5, 0x4a, 0x9d, 0xe3];
const DELETED: u32 = u32::MAX;
const BOOT_UNKNOWN: [u8; 16] = [0; 16];

/// What a segment's header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub sequence: u64,
    pub salt: u64,
    /// In which its frames were written.
    pub boot: Option<BootId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderError {
    /// Zeros, too short, or wrong bytes.
    Invalid,
    Newer(u32),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.salt.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.boot.map_or(BOOT_UNKNOWN, |boot| boot.0));
        let crc = crc32c::crc32c(&bytes[..48]);
        bytes[48..52].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<SegmentHeader, HeaderError> {
        if bytes.len() < SEGMENT_HEADER_BYTES || bytes[..8] != SEGMENT_MAGIC {
            return Err(HeaderError::Invalid);
        }
        let version = u32_at(bytes, 8);
        if version > FORMAT_VERSION {
            return Err(HeaderError::Newer(version));
        }
        if version == 0 || crc32c::crc32c(&bytes[..48]) != u32_at(bytes, 48) {
            return Err(HeaderError::Invalid);
        }
        let mut boot = BOOT_UNKNOWN;
        boot.copy_from_slice(&bytes[32..48]);
        let boot = (boot != BOOT_UNKNOWN).then_some(BootId(boot));
        Ok(SegmentHeader { sequence: u64_at(bytes, 16), salt: u64_at(bytes, 24), boot })
    }

    /// What the checksum of each frame header of this segment begins with.
    pub(crate) fn seed(&self) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.salt.to_le_bytes()), &self.sequence.to_le_bytes())
    }
}

/// Everything up to `synced` is durable.
pub(crate) fn encode_mark(synced: Lsn, seed: u32) -> [u8; MARK_BYTES] {
    let mut bytes = [0; MARK_BYTES];
    let number = synced.0.to_le_bytes();
    bytes[..4].copy_from_slice(&MARK_MAGIC);
    bytes[4..8].copy_from_slice(&crc32c::crc32c_append(seed, &number).to_le_bytes());
    bytes[8..].copy_from_slice(&number);
    bytes
}

/// `None` when there is no mark in the segment, or half of one.
pub(crate) fn decode_mark(segment: &[u8], seed: u32) -> Option<Lsn> {
    let bytes = segment.get(MARK_OFFSET..MARK_OFFSET + MARK_BYTES)?;
    let whole = bytes[..4] == MARK_MAGIC && crc32c::crc32c_append(seed, &bytes[8..]) == u32_at(bytes, 4);
    whole.then(|| Lsn(u64_at(bytes, 8)))
}

/// Replaces `out` by a frame whose header is still to be sealed by [`seal`].
pub(crate) fn encode(writes: &WriteSet, out: &mut Vec<u8>) {
    out.clear();
    out.resize(FRAME_HEADER_BYTES, 0);
    out.extend_from_slice(&(writes.len() as u32).to_le_bytes());
    for (key, value) in writes.iter() {
        out.extend_from_slice(&(key.len() as u16).to_le_bytes());
        match value {
            Some(value) => {
                out.extend_from_slice(&(value.len() as u32).to_le_bytes());
                out.extend_from_slice(key);
                out.extend_from_slice(value);
            }
            None => {
                out.extend_from_slice(&DELETED.to_le_bytes());
                out.extend_from_slice(key);
            }
        }
    }
    let body_crc = crc32c::crc32c(&out[FRAME_HEADER_BYTES..]);
    let body_len = (out.len() - FRAME_HEADER_BYTES) as u32;
    out[..4].copy_from_slice(&FRAME_MAGIC);
    out[4..8].copy_from_slice(&body_len.to_le_bytes());
    out[24..28].copy_from_slice(&body_crc.to_le_bytes());
}

/// Numbers the frame and finishes its header: all that must be done under the journal's lock.
pub(crate) fn seal(frame: &mut [u8], seed: u32, lsn: Lsn, synced: Lsn) {
    frame[8..16].copy_from_slice(&lsn.0.to_le_bytes());
    frame[16..24].copy_from_slice(&synced.0.to_le_bytes());
    let crc = crc32c::crc32c_append(seed, &frame[..28]);
    frame[28..32].copy_from_slice(&crc.to_le_bytes());
}

/// A frame's header that belongs to the segment, at the start of `bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameHeader {
    pub lsn: Lsn,
    pub synced: Lsn,
    pub body_len: usize,
    body_crc: u32,
}

impl FrameHeader {
    pub(crate) fn decode(bytes: &[u8], seed: u32) -> Option<FrameHeader> {
        if bytes.len() < FRAME_HEADER_BYTES || bytes[..4] != FRAME_MAGIC {
            return None;
        }
        if crc32c::crc32c_append(seed, &bytes[..28]) != u32_at(bytes, 28) {
            return None;
        }
        Some(FrameHeader {
            lsn: Lsn(u64_at(bytes, 8)),
            synced: Lsn(u64_at(bytes, 16)),
            body_len: u32_at(bytes, 4) as usize,
            body_crc: u32_at(bytes, 24),
        })
    }

    /// The body, when it is whole. `bytes` begin at the header.
    pub(crate) fn body<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let body = bytes.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES.checked_add(self.body_len)?)?;
        (crc32c::crc32c(body) == self.body_crc).then_some(body)
    }
}

/// The entries of a whole body; `None` when they do not fill it exactly.
pub(crate) fn entries(body: &[u8]) -> Option<Vec<(Key, Option<Bytes>)>> {
    let (count, mut rest) = body.split_at_checked(4)?;
    let count = u32_at(count, 0) as usize;
    let mut entries = Vec::with_capacity(count.min(rest.len() / 6));
    for _ in 0..count {
        let (head, after) = rest.split_at_checked(6)?;
        let value_len = u32_at(head, 2);
        let (key, after) = after.split_at_checked(usize::from(u16::from_le_bytes([head[0], head[1]])))?;
        let (value, after) = match value_len {
            DELETED => (None, after),
            len => {
                let (value, after) = after.split_at_checked(len as usize)?;
                (Some(Bytes::copy_from_slice(value)), after)
            }
        };
        entries.push((Key::new(key), value));
        rest = after;
    }
    rest.is_empty().then_some(entries)
}

/// Are the bytes at `at`, which are no whole frame, what an interrupted write of one leaves? A write goes from front to
/// back over zeros, so there is the front part of a frame, and nothing after it; `end` is behind the last byte that is
/// not zero. What reaches to where a frame ends was written whole, and is damaged.
pub(crate) fn is_torn(bytes: &[u8], at: usize, end: usize, seed: u32) -> bool {
    match FrameHeader::decode(&bytes[at..], seed) {
        Some(header) => {
            header.body(&bytes[at..]).is_none() && end - at < FRAME_HEADER_BYTES + header.body_len
        }
        None => {
            let magic = (end - at).min(FRAME_MAGIC.len());
            end - at < FRAME_HEADER_BYTES && bytes[at..at + magic] == FRAME_MAGIC[..magic]
        }
    }
}

/// Where the next possible frame begins at or after `from`.
pub(crate) fn find_magic(bytes: &[u8], from: usize) -> Option<usize> {
    let tail = bytes.get(from..)?;
    tail.windows(FRAME_MAGIC.len()).position(|w| w == FRAME_MAGIC).map(|at| from + at)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prelude::*, sample::Index};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn example() -> (SegmentHeader, Vec<u8>) {
        let header = SegmentHeader {
            sequence: 7,
            salt: 0x1122_3344_5566_7788,
            boot: Some(BootId(*b"0123456789abcdef")),
        };
        let mut writes = WriteSet::new();
        writes.put(b"a", Bytes::from_static(b"one"));
        writes.delete(b"bc");
        let mut frame = Vec::new();
        encode(&writes, &mut frame);
        seal(&mut frame, header.seed(), Lsn(3), Lsn(2));
        (header, frame)
    }

    #[test]
    fn the_bytes_are_these() {
        // Goal: the stored format does not change by accident. Method: golden bytes.
        let (header, frame) = example();
        assert_eq!(hex(&header.encode()[..52]), GOLDEN_HEADER);
        assert_eq!(hex(&frame), GOLDEN_FRAME);
    }

    #[test]
    fn marks_come_back_whole_or_not_at_all() {
        let seed = example().0.seed();
        let mut segment = vec![0; FRAMES_OFFSET];
        assert_eq!(decode_mark(&segment, seed), None);
        let mark = encode_mark(Lsn(0x0102), seed);
        segment[MARK_OFFSET..MARK_OFFSET + MARK_BYTES].copy_from_slice(&mark);
        assert_eq!(hex(&mark), GOLDEN_MARK);
        assert_eq!(decode_mark(&segment, seed), Some(Lsn(0x0102)));
        assert_eq!(decode_mark(&segment, seed ^ 1), None, "of another segment");
        for bit in 0..MARK_BYTES * 8 {
            let mut damaged = segment.clone();
            damaged[MARK_OFFSET + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_mark(&damaged, seed), None, "bit {bit}");
        }
    }

    #[test]
    fn frames_come_back() {
        let (header, frame) = example();
        let decoded = FrameHeader::decode(&frame, header.seed()).unwrap();
        assert_eq!((decoded.lsn, decoded.synced), (Lsn(3), Lsn(2)));
        let entries = entries(decoded.body(&frame).unwrap()).unwrap();
        assert_eq!(entries, [(Key::new(b"a"), Some(Bytes::from_static(b"one"))), (Key::new(b"bc"), None)]);
        assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
        let unknown = SegmentHeader { boot: None, ..header };
        assert_eq!(SegmentHeader::decode(&unknown.encode()), Ok(unknown));
    }

    #[test]
    fn a_frame_of_another_segment_is_none() {
        // Goal: bytes that were copied, or planted in a value, are not taken for a frame of this segment.
        let (header, frame) = example();
        let other = SegmentHeader { salt: header.salt ^ 1, ..header };
        assert_eq!(FrameHeader::decode(&frame, other.seed()), None);
        let later = SegmentHeader { sequence: 8, ..header };
        assert_eq!(FrameHeader::decode(&frame, later.seed()), None);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (header, frame) = example();
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let whole =
                FrameHeader::decode(&damaged, header.seed()).and_then(|h| h.body(&damaged).map(<[u8]>::len));
            assert_eq!(whole, None, "bit {bit}");
        }
    }

    #[test]
    fn only_the_front_part_of_a_frame_is_torn() {
        // Goal: what a killed write leaves is told from damage. Method: every front part; every flipped byte of the
        // whole frame, whose last byte is not zero.
        let (header, frame) = example();
        let torn = |bytes: &[u8]| {
            let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
            is_torn(bytes, 0, end, header.seed())
        };
        for written in 1..frame.len() {
            let mut bytes = vec![0; frame.len() + 9];
            bytes[..written].copy_from_slice(&frame[..written]);
            assert!(torn(&bytes), "{written}");
        }
        for at in 0..frame.len() {
            let mut bytes = frame.clone();
            bytes[at] ^= 0x55;
            assert!(!torn(&bytes), "{at}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        /// Goal: no bytes make the decoders panic or take memory by what they promise, and a body has one reading. Method:
        /// random bytes, also as the body of a frame with right checksums.
        #[test]
        fn any_bytes_at_all(noise in prop::collection::vec(any::<u8>(), 0..200), at: Index, count in 0u32..6) {
            let seed = example().0.seed();
            let _ = (SegmentHeader::decode(&noise), FrameHeader::decode(&noise, seed), find_magic(&noise, 1));
            let end = noise.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
            if end > 0 {
                let _ = is_torn(&noise, at.index(end), end, seed);
            }
            for body in [noise.clone(), [&count.to_le_bytes(), &noise[..]].concat()] {
                let Some(read) = entries(&body) else { continue };
                let mut again = (read.len() as u32).to_le_bytes().to_vec();
                for (key, value) in &read {
                    again.extend((key.len() as u16).to_le_bytes());
                    again.extend(value.as_ref().map_or(DELETED, |value| value.len() as u32).to_le_bytes());
                    again.extend_from_slice(key);
                    again.extend(value.iter().flatten());
                }
                prop_assert_eq!(again, body);
            }
        }

        /// Goal: a damaged body under right checksums is refused or is another list of entries. Method: random damage.
        #[test]
        fn damaged_bodies_are_refused_or_read(at: Index, byte: u8, cut: Index) {
            let (header, frame) = example();
            let mut body = FrameHeader::decode(&frame, header.seed()).unwrap().body(&frame).unwrap().to_vec();
            let at = at.index(body.len());
            body[at] = byte;
            let _ = entries(&body);
            let _ = entries(&body[..cut.index(body.len())]);
        }
    }

    #[test]
    fn a_newer_version_is_told_apart() {
        let mut bytes = example().0.encode();
        bytes[8] = 9;
        assert_eq!(SegmentHeader::decode(&bytes), Err(HeaderError::Newer(9)));
        bytes[8] = 0;
        assert_eq!(SegmentHeader::decode(&bytes), Err(HeaderError::Invalid));
        assert_eq!(SegmentHeader::decode(&[]), Err(HeaderError::Invalid));
    }

    const GOLDEN_MARK: &str = "53594e432b2889270201000000000000";
    const GOLDEN_HEADER: &str = "4f4e46534a524e4c02000000000000000700000000000000887766554433221130313233343536373839616263646566dbc2affc";
    const GOLDEN_FRAME: &str = "f54a9de31600000003000000000000000200000000000000b47b26548f68c4d302000000010003000000616f6e650200ffffffff6263";
}
