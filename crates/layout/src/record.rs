//! The stored form of an object's map.
//!
//! It comes in chunks of 256 SAUs (1 GiB), each stored by itself, so that a new SAU of a large object costs what it
//! costs of a small one. The head holds the first chunk, which is all there is of most objects, and is written each time.
//!
//! Little-endian:
//! ```text
//! head: version u8 = 2 | memory_generation u32 | flags u8 (1: pending_truncate follows, 2: mapped, 4: synced_size follows,
//!       8: linked_len follows) | [pending_truncate u64] | [synced_size u64, not 0] | [linked_len u64, not 0] | number of chunks that follow u32 | runs | crc
//! chunk: version u8 = 2 | its number u32, from 1 | runs, at least one | crc
//! runs: runs u32 | run*: count u32 (not 0), state u8, if sealed: count times (crc u32, len u32)
//! state: bits 0..3 valid, bit 3 lost, bit 4 sealed
//! crc: crc32c u32 of everything before it
//! ```
//! One map has one encoding: neighbouring runs differ in state, the last is not a hole, and a chunk of holes after the
//! first is not stored. Anything else is refused.

use crate::{Sau, SauIndex, SauMap, Seal, map::CHUNK};
use types::TierSet;

const VERSION: u8 = 2;
const HAS_TRUNCATE: u8 = 1;
const MAPPED: u8 = 2;
const HAS_SYNCED: u8 = 4;
const HAS_LINKED: u8 = 8;
const LOST: u8 = 1 << 3;
const SEALED: u8 = 1 << 4;

/// What is stored of an object, under its inode's `O` key and, with a chunk's number behind it, its further ones.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ObjectRecord {
    pub map: SauMap,
    /// Generation of the memory tier in which `map` was true: if another one runs now, `forget_memory` applies.
    pub memory_generation: u32,
    /// A truncation to this size was begun: redo it before the first use.
    pub pending_truncate: Option<u64>,
    /// Programs may be writing to the fastest copy through a mapping: after a crash it alone is current.
    pub mapped: bool,
    /// Holes below this offset were promised by an fsync: what is written there later must not depend on memory alone.
    pub synced_size: u64,
    /// Where near-line is a linked directory: so many bytes of the file there count, and zeros follow. It may be longer, since
    /// a cut of ours does not change it.
    pub linked_len: u64,
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
    #[error("a part of the object map is missing, or one too many")]
    Parts,
}

impl ObjectRecord {
    /// The head.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        out.push(VERSION);
        out.extend(self.memory_generation.to_le_bytes());
        let truncate = if self.pending_truncate.is_some() { HAS_TRUNCATE } else { 0 };
        let synced = if self.synced_size > 0 { HAS_SYNCED } else { 0 };
        let linked = if self.linked_len > 0 { HAS_LINKED } else { 0 };
        out.push(truncate | synced | linked | if self.mapped { MAPPED } else { 0 });
        if let Some(size) = self.pending_truncate {
            out.extend(size.to_le_bytes());
        }
        for size in [self.synced_size, self.linked_len] {
            if size > 0 {
                out.extend(size.to_le_bytes());
            }
        }
        out.extend(self.map.further_chunks().to_le_bytes());
        encode_runs(self.map.in_chunk(0), &mut out);
        with_checksum(out)
    }

    /// A chunk after the first. `None`: it is empty, and has no stored form.
    pub fn encode_chunk(&self, number: u32) -> Option<Vec<u8>> {
        self.map.in_chunk(number).next()?;
        let mut out = Vec::with_capacity(32);
        out.push(VERSION);
        out.extend(number.to_le_bytes());
        encode_runs(self.map.in_chunk(number), &mut out);
        Some(with_checksum(out))
    }

    /// Begins with the head; the chunks that it speaks of are to be added.
    pub fn decode(bytes: &[u8]) -> Result<Partial, DecodeError> {
        let mut input = Input(checked(bytes)?);
        let memory_generation = input.u32()?;
        let flags = input.u8()?;
        if flags & !(HAS_TRUNCATE | MAPPED | HAS_SYNCED | HAS_LINKED) != 0 {
            return Err(DecodeError::Field);
        }
        let pending_truncate = if flags & HAS_TRUNCATE != 0 { Some(input.u64()?) } else { None };
        let synced_size = input.size_if(flags & HAS_SYNCED != 0)?;
        let linked_len = input.size_if(flags & HAS_LINKED != 0)?;
        let missing = input.u32()?;
        let mut map = SauMap::new();
        decode_runs(&mut input, &mut map, 0)?;
        let mapped = flags & MAPPED != 0;
        let record =
            ObjectRecord { map, memory_generation, pending_truncate, mapped, synced_size, linked_len };
        Ok(Partial { record, missing, last: 0 })
    }
}

/// A record of which chunks may be missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partial {
    record: ObjectRecord,
    missing: u32,
    last: u32,
}

impl Partial {
    /// How many chunks are to be added.
    pub fn missing(&self) -> u32 {
        self.missing
    }

    /// The next chunk, in the order of their numbers; `number` as its key says.
    pub fn add(&mut self, number: u32, bytes: &[u8]) -> Result<(), DecodeError> {
        let mut input = Input(checked(bytes)?);
        if input.u32()? != number || number <= self.last {
            return Err(DecodeError::Field);
        }
        self.last = number;
        self.missing = self.missing.checked_sub(1).ok_or(DecodeError::Parts)?;
        if decode_runs(&mut input, &mut self.record.map, number)? { Ok(()) } else { Err(DecodeError::Field) }
    }

    pub fn finish(mut self) -> Result<ObjectRecord, DecodeError> {
        if self.missing > 0 {
            return Err(DecodeError::Parts);
        }
        self.record.map.stored();
        Ok(self.record)
    }
}

fn with_checksum(mut out: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c(&out);
    out.extend(crc.to_le_bytes());
    out
}

/// What is between the version and the checksum.
fn checked(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    let version = *bytes.first().ok_or(DecodeError::Short)?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or(DecodeError::Short)?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(DecodeError::Checksum);
    }
    Ok(&body[1..])
}

fn encode_runs(saus: impl Iterator<Item = (u32, Sau)>, out: &mut Vec<u8>) {
    let runs_at = out.len();
    out.extend([0; 4]);
    let mut runs = 0u32;
    let mut next = 0;
    // Where the count of the run being written is, and its state.
    let mut open: Option<(usize, u8, u32)> = None;
    for (at, state) in saus {
        if at > next {
            close(out, open.take());
            out.extend((at - next).to_le_bytes());
            out.push(0);
            runs += 1;
        }
        next = at + 1;
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

/// Reads one chunk, to the end of the input. Returns whether there is anything in it.
fn decode_runs(input: &mut Input<'_>, map: &mut SauMap, chunk: u32) -> Result<bool, DecodeError> {
    let runs = input.u32()?;
    let base = chunk.checked_mul(CHUNK).ok_or(DecodeError::TooLarge)?;
    let mut next = 0u32;
    let mut before = None;
    for _ in 0..runs {
        let count = input.u32()?;
        let byte = input.u8()?;
        if count == 0 || before == Some(byte) || byte & !(7 | LOST | SEALED) != 0 {
            return Err(DecodeError::Field);
        }
        before = Some(byte);
        let end = next.checked_add(count).filter(|end| *end <= CHUNK).ok_or(DecodeError::TooLarge)?;
        let valid = TierSet::from_bits(byte & 7).ok_or(DecodeError::Field)?;
        for n in (next..end).take_while(|_| byte != 0) {
            let seal =
                if byte & SEALED != 0 { Some(Seal { crc: input.u32()?, len: input.u32()? }) } else { None };
            let sau = base.checked_add(n).and_then(SauIndex::new).ok_or(DecodeError::TooLarge)?;
            if !map.set(sau, Sau { valid, lost: byte & LOST != 0, seal }) {
                return Err(DecodeError::Field);
            }
        }
        next = end;
    }
    if before == Some(0) {
        return Err(DecodeError::Field);
    }
    if input.0.is_empty() { Ok(runs > 0) } else { Err(DecodeError::Trailing) }
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
    /// A size that is stored only if it is not 0.
    fn size_if(&mut self, stored: bool) -> Result<u64, DecodeError> {
        match if stored { self.u64()? } else { return Ok(0) } {
            0 => Err(DecodeError::Field),
            size => Ok(size),
        }
    }
}
