//! Bytes at their places in a file, which later ones replace. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;

/// The most that one piece has that is taken.
pub(crate) const PIECE_MAX: usize = 1 << 20;

/// None of them overlap; those that are written one after the other are one.
#[derive(Default, Debug)]
pub(crate) struct Extents {
    map: BTreeMap<u64, Vec<u8>>,
    bytes: u64,
}

impl Extents {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn write(&mut self, offset: u64, new: &[u8]) {
        let end = offset + new.len() as u64;
        let before = self.map.range(..=offset).next_back().map(|(at, bytes)| (*at, *at + bytes.len() as u64));
        let at = before.filter(|(_, stop)| *stop >= offset).map_or(offset, |(at, _)| at);
        let mut bytes = self.map.remove(&at).unwrap_or_default();
        let (from, had) = ((offset - at) as usize, bytes.len() as u64);
        if at + had > end {
            bytes[from..from + new.len()].copy_from_slice(new);
        } else {
            bytes.truncate(from);
            bytes.extend_from_slice(new);
        }
        self.bytes = self.bytes - had + bytes.len() as u64;
        self.map.insert(at, bytes);
        // What is behind its beginning, up to its end, is replaced.
        while let Some((&next, _)) = self.map.range(at + 1..end.max(at + 1)).next() {
            let Some(old) = self.map.remove(&next) else { break };
            self.bytes -= old.len() as u64;
            let stop = next + old.len() as u64;
            if stop > end {
                let rest = old[(end - next) as usize..].to_vec();
                self.bytes += rest.len() as u64;
                self.map.insert(end, rest);
            }
        }
    }

    /// All of a range, if all of it is here.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let (first, _) = self.map.range(..=offset).next_back()?;
        let (mut out, end) = (Vec::with_capacity(len), offset + len as u64);
        for (at, bytes) in self.map.range(*first..) {
            let here = offset + out.len() as u64;
            let stop = at + bytes.len() as u64;
            if *at > here || stop <= here {
                return None;
            }
            out.extend_from_slice(&bytes[(here - at) as usize..(stop.min(end) - at) as usize]);
            if stop >= end {
                return Some(out);
            }
        }
        None
    }

    /// All of it, as few pieces of at most [`PIECE_MAX`].
    pub(crate) fn take(&mut self) -> Vec<(u64, Bytes)> {
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for (at, bytes) in std::mem::take(&mut self.map) {
            match runs.last_mut() {
                Some((start, run)) if *start + run.len() as u64 == at && run.len() < PIECE_MAX => {
                    run.extend_from_slice(&bytes);
                }
                Some(_) | None => runs.push((at, bytes)),
            }
        }
        self.bytes = 0;
        let cut = |(at, run): (u64, Vec<u8>)| {
            let (whole, len) = (Bytes::from(run), PIECE_MAX);
            (0..whole.len().div_ceil(len)).map(move |n| {
                let (from, to) = (n * len, whole.len().min((n + 1) * len));
                (at + from as u64, whole.slice(from..to))
            })
        };
        runs.into_iter().flat_map(cut).collect()
    }
}
