//! The stored form of an object's map.
//!
//! Little-endian:
//! ```text
//! version u8 = 1 | memory_generation u32 | flags u8 (1: pending_truncate follows, 2: mapped) | [pending_truncate u64]
//! runs u32 | run*: count u32 (not 0), state u8, if sealed: count times (crc u32, len u32)
//! crc32c u32 of everything before it
//! state: bits 0..3 valid, bit 3 lost, bit 4 sealed
//! ```
//! One map has one encoding: neighbouring runs differ in state, and the last is not a hole. Anything else is refused.

use crate::{SAUS_MAX, Sau, SauIndex, SauMap, Seal};
use types::TierSet;

const VERSION: u8 = 1;
const HAS_TRUNCATE: u8 = 1;
const MAPPED: u8 = 2;
const LOST: u8 = 1 << 3;
const SEALED: u8 = 1 << 4;

/// What is stored of an object, under its inode's `O` key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ObjectRecord {
    pub map: SauMap,
    /// Generation of the memory tier in which `map` was true: if another one runs now, `forget_memory` applies.
    pub memory_generation: u32,
    /// A truncation to this size was begun: redo it before the first use.
    pub pending_truncate: Option<u64>,
    /// Programs may be writing to the fastest copy through a mapping: after a crash it alone is current.
    pub mapped: bool,
}

/// Why stored bytes are not a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("object map of format {0}, which this version does not know")]
    Version(u8),
    #[error("object map is cut short")]
    Short,
    #[error("object map fails its checksum")]
    Checksum,
    #[error("object map has bytes after its end")]
    Trailing,
    #[error("object map has a field out of range")]
    Field,
    #[error("object map covers more than the largest object")]
    TooLarge,
}

impl ObjectRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        out.push(VERSION);
        out.extend(self.memory_generation.to_le_bytes());
        let truncate = if self.pending_truncate.is_some() { HAS_TRUNCATE } else { 0 };
        out.push(truncate | if self.mapped { MAPPED } else { 0 });
        if let Some(size) = self.pending_truncate {
            out.extend(size.to_le_bytes());
        }
        encode_runs(&self.map, &mut out);
        let crc = crc32c::crc32c(&out);
        out.extend(crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<ObjectRecord, DecodeError> {
        let version = *bytes.first().ok_or(DecodeError::Short)?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or(DecodeError::Short)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(DecodeError::Checksum);
        }
        let mut input = Input(&body[1..]);
        let memory_generation = input.u32()?;
        let flags = input.u8()?;
        if flags & !(HAS_TRUNCATE | MAPPED) != 0 {
            return Err(DecodeError::Field);
        }
        let pending_truncate = if flags & HAS_TRUNCATE != 0 { Some(input.u64()?) } else { None };
        let map = decode_runs(&mut input)?;
        if !input.0.is_empty() {
            return Err(DecodeError::Trailing);
        }
        Ok(ObjectRecord { map, memory_generation, pending_truncate, mapped: flags & MAPPED != 0 })
    }
}

fn encode_runs(map: &SauMap, out: &mut Vec<u8>) {
    let runs_at = out.len();
    out.extend([0; 4]);
    let mut runs = 0u32;
    let mut next = 0;
    // Where the count of the run being written is, and its state.
    let mut open: Option<(usize, u8, u32)> = None;
    for (sau, state) in map.iter() {
        if sau.get() > next {
            close(out, open.take());
            out.extend((sau.get() - next).to_le_bytes());
            out.push(0);
            runs += 1;
        }
        next = sau.get() + 1;
        let byte = state_byte(state);
        open = match open {
            Some((at, same, count)) if same == byte => Some((at, same, count + 1)),
            other => {
                close(out, other);
                runs += 1;
                let at = out.len();
                out.extend([0, 0, 0, 0, byte]);
                Some((at, byte, 1))
            }
        };
        if let Some(seal) = state.seal {
            out.extend(seal.crc.to_le_bytes());
            out.extend(seal.len.to_le_bytes());
        }
    }
    close(out, open);
    out[runs_at..runs_at + 4].copy_from_slice(&runs.to_le_bytes());
}

fn close(out: &mut [u8], open: Option<(usize, u8, u32)>) {
    if let Some((at, _, count)) = open {
        out[at..at + 4].copy_from_slice(&count.to_le_bytes());
    }
}

fn state_byte(state: Sau) -> u8 {
    let lost = if state.lost { LOST } else { 0 };
    let sealed = if state.seal.is_some() { SEALED } else { 0 };
    state.valid.bits() | lost | sealed
}

fn decode_runs(input: &mut Input<'_>) -> Result<SauMap, DecodeError> {
    let runs = input.u32()?;
    let mut map = SauMap::new();
    let mut next = 0u32;
    let mut before = None;
    for _ in 0..runs {
        let count = input.u32()?;
        let byte = input.u8()?;
        if count == 0 || before == Some(byte) || byte & !(7 | LOST | SEALED) != 0 {
            return Err(DecodeError::Field);
        }
        before = Some(byte);
        let end = next.checked_add(count).filter(|end| *end <= SAUS_MAX).ok_or(DecodeError::TooLarge)?;
        let valid = TierSet::from_bits(byte & 7).ok_or(DecodeError::Field)?;
        for n in (next..end).take_while(|_| byte != 0) {
            let seal =
                if byte & SEALED != 0 { Some(Seal { crc: input.u32()?, len: input.u32()? }) } else { None };
            let sau = SauIndex::new(n).ok_or(DecodeError::TooLarge)?;
            if !map.set(sau, Sau { valid, lost: byte & LOST != 0, seal }) {
                return Err(DecodeError::Field);
            }
        }
        next = end;
    }
    if before == Some(0) { Err(DecodeError::Field) } else { Ok(map) }
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.0 = tail;
        Ok(*head)
    }
    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take::<1>().map(|[b]| b)
    }
    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }
}
