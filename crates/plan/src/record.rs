//! The stored form of a history.
//!
//! Little-endian. It begins with its mark and version and ends with the CRC-32C of all before it; anything else is damage.
//! ```text
//! history: "ONFSPLAN" | version u16 = 1 | uid u32 | runs u32 | last end u64 (seconds since 1970) | name: length u16, UTF-8
//!          | scores: count u8 (8 at most) | (hits u32 | missed u32 | in vain u32 | acted u8)*
//!          | files: count u32 (65,536 at most) | (inode u64 | bytes u64 | gap u32 (ms) | seen u8)* | crc u32
//! ```

use std::collections::VecDeque;

use types::Ino;

use crate::history::{History, Known, Score};

const MARK: &[u8; 8] = b"ONFSPLAN";
const VERSION: u16 = 1;
const FILE_BYTES: usize = 8 + 8 + 4 + 1;

/// Why bytes are no history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Damaged {
    #[error("it is no history, or cut off, or changed")]
    Bytes,
    #[error("it has version {0}, and this is {VERSION}")]
    Version(u16),
}

impl History {
    /// No stored history is longer.
    pub const BYTES_MAX: usize = 4096 + History::FILES_MAX * FILE_BYTES;

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 + self.files.len() * FILE_BYTES);
        out.extend_from_slice(MARK);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.uid.to_le_bytes());
        out.extend_from_slice(&self.runs.to_le_bytes());
        out.extend_from_slice(&self.last_end.to_le_bytes());
        let name: String = self.name.chars().take(History::NAME_CHARS_MAX).collect();
        out.extend_from_slice(&(name.len() as u16).to_le_bytes());
        out.extend_from_slice(name.as_bytes());
        let scores = self.scores.len().min(History::SCORES_MAX);
        out.push(scores as u8);
        for score in self.scores.iter().rev().take(scores).rev() {
            out.extend_from_slice(&score.hits.to_le_bytes());
            out.extend_from_slice(&score.missed.to_le_bytes());
            out.extend_from_slice(&score.in_vain.to_le_bytes());
            out.push(u8::from(score.acted));
        }
        let files = &self.files[..self.files.len().min(History::FILES_MAX)];
        out.extend_from_slice(&(files.len() as u32).to_le_bytes());
        for known in files {
            out.extend_from_slice(&known.ino.get().to_le_bytes());
            out.extend_from_slice(&known.bytes.to_le_bytes());
            out.extend_from_slice(&known.gap_ms.to_le_bytes());
            out.push(known.seen);
        }
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<History, Damaged> {
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or(Damaged::Bytes)?;
        let mut input = Input(body);
        if input.take::<8>()? != *MARK {
            return Err(Damaged::Bytes);
        }
        let version = input.u16()?;
        if version != VERSION {
            return Err(Damaged::Version(version));
        }
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(Damaged::Bytes);
        }
        let (uid, runs, last_end) = (input.u32()?, input.u32()?, input.u64()?);
        let length = usize::from(input.u16()?);
        let name = std::str::from_utf8(input.bytes(length)?).map_err(|_| Damaged::Bytes)?.to_owned();
        let mut scores = VecDeque::new();
        let [count] = input.take::<1>()?;
        if usize::from(count) > History::SCORES_MAX {
            return Err(Damaged::Bytes);
        }
        for _ in 0..count {
            let (hits, missed, in_vain) = (input.u32()?, input.u32()?, input.u32()?);
            scores.push_back(Score { hits, missed, in_vain, acted: input.flag()? });
        }
        let count = input.u32()? as usize;
        if count > History::FILES_MAX || input.0.len() != count * FILE_BYTES {
            return Err(Damaged::Bytes);
        }
        let mut files = Vec::with_capacity(count);
        for _ in 0..count {
            let ino = Ino::from_raw(input.u64()?).ok_or(Damaged::Bytes)?;
            let (bytes, gap_ms, [seen]) = (input.u64()?, input.u32()?, input.take::<1>()?);
            files.push(Known { ino, bytes, gap_ms, seen });
        }
        Ok(History { uid, name, runs, last_end, scores, files })
    }
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn bytes(&mut self, count: usize) -> Result<&[u8], Damaged> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Damaged::Bytes)?;
        self.0 = rest;
        Ok(taken)
    }
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Damaged::Bytes)?;
        self.0 = rest;
        Ok(*taken)
    }
    fn u16(&mut self) -> Result<u16, Damaged> {
        self.take().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Result<u32, Damaged> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64, Damaged> {
        self.take().map(u64::from_le_bytes)
    }
    fn flag(&mut self) -> Result<bool, Damaged> {
        match self.take::<1>()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [_] => Err(Damaged::Bytes),
        }
    }
}
