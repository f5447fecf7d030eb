//! Bytes at their places in a file, which later ones replace. Pure.

use std::{collections::BTreeMap, ops::Range};

use bytes::Bytes;

/// The most that one piece has that is taken.
pub(crate) const PIECE_MAX: usize = 1 << 20;

/// Bytes in a row.
#[derive(Debug)]
enum Run {
    /// Of small writes, copied together.
    Grown(Vec<u8>),
    /// Of a large one, where they came: all, or a part of so many.
    Taken { bytes: Bytes, of: usize },
}

impl Run {
    fn bytes(&self) -> &[u8] {
        match self {
            Run::Grown(bytes) => bytes,
            Run::Taken { bytes, .. } => bytes,
        }
    }

    fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// A small one is copied: what is kept holds no more than twice as much memory.
    fn part(&self, range: Range<usize>) -> Run {
        match self {
            Run::Taken { bytes, of } if range.len() * 2 >= *of => {
                Run::Taken { bytes: bytes.slice(range), of: *of }
            }
            Run::Grown(_) | Run::Taken { .. } => Run::Grown(self.bytes()[range].to_vec()),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Run::Grown(bytes) => bytes.into(),
            Run::Taken { bytes, .. } => bytes,
        }
    }
}

/// None of them overlap; small ones that are written one after the other are one.
#[derive(Default, Debug)]
pub(crate) struct Extents {
    map: BTreeMap<u64, Run>,
    bytes: u64,
}

impl Extents {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies them.
    pub(crate) fn write(&mut self, offset: u64, new: &[u8]) {
        if new.is_empty() {
            return;
        }
        let end = offset + new.len() as u64;
        let before = self.map.range_mut(..=offset).next_back();
        let grown = before.and_then(|(at, run)| match run {
            Run::Grown(bytes) if *at + bytes.len() as u64 >= offset => Some((*at, std::mem::take(bytes))),
            Run::Grown(_) | Run::Taken { .. } => None,
        });
        let (at, mut bytes) = grown.unwrap_or((offset, Vec::new()));
        let (from, had) = ((offset - at) as usize, bytes.len() as u64);
        if at + had > end {
            bytes[from..from + new.len()].copy_from_slice(new);
        } else {
            if had > 0 {
                self.map.remove(&at);
            }
            self.cut(offset..end);
            bytes.truncate(from);
            bytes.extend_from_slice(new);
            self.bytes = self.bytes - had + bytes.len() as u64;
        }
        self.map.insert(at, Run::Grown(bytes));
    }

    /// Keeps them where they are.
    pub(crate) fn put(&mut self, offset: u64, new: Bytes) {
        if new.is_empty() {
            return;
        }
        let len = new.len();
        self.cut(offset..offset + len as u64);
        self.bytes += len as u64;
        self.map.insert(offset, Run::Taken { bytes: new, of: len });
    }

    /// Nothing of the range is here any more.
    fn cut(&mut self, range: Range<u64>) {
        let before = self.map.range(..range.start).next_back().map(|(at, run)| (*at, *at + run.len()));
        if let Some((at, _)) = before.filter(|(_, stop)| *stop > range.start) {
            self.cut_run(at, &range);
        }
        while let Some((&at, _)) = self.map.range(range.clone()).next() {
            self.cut_run(at, &range);
        }
    }

    /// Of the one that begins there what is before the range and behind it stays.
    fn cut_run(&mut self, at: u64, range: &Range<u64>) {
        let Some(run) = self.map.remove(&at) else { return };
        let stop = at + run.len();
        self.bytes -= run.len();
        for left in [at..range.start.min(stop), range.end.max(at)..stop] {
            if left.start < left.end {
                self.bytes += left.end - left.start;
                let part = run.part((left.start - at) as usize..(left.end - at) as usize);
                self.map.insert(left.start, part);
            }
        }
    }

    /// All of a range, if all of it is here.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let (first, _) = self.map.range(..=offset).next_back()?;
        let (mut out, end) = (Vec::with_capacity(len), offset + len as u64);
        for (at, run) in self.map.range(*first..) {
            let here = offset + out.len() as u64;
            let stop = at + run.len();
            if *at > here || stop <= here {
                return None;
            }
            out.extend_from_slice(&run.bytes()[(here - at) as usize..(stop.min(end) - at) as usize]);
            if stop >= end {
                return Some(out);
            }
        }
        None
    }

    /// All of it, in pieces of at most [`PIECE_MAX`]; small ones as few as possible.
    pub(crate) fn take(&mut self) -> Vec<(u64, Bytes)> {
        let mut runs: Vec<(u64, Run)> = Vec::new();
        for (at, run) in std::mem::take(&mut self.map) {
            match (runs.last_mut(), run) {
                (Some((start, Run::Grown(last))), Run::Grown(bytes))
                    if *start + last.len() as u64 == at && last.len() < PIECE_MAX =>
                {
                    last.extend_from_slice(&bytes);
                }
                (_, run) => runs.push((at, run)),
            }
        }
        self.bytes = 0;
        let cut = |(at, run): (u64, Run)| {
            let (whole, len) = (run.into_bytes(), PIECE_MAX);
            (0..whole.len().div_ceil(len)).map(move |n| {
                let (from, to) = (n * len, whole.len().min((n + 1) * len));
                (at + from as u64, whole.slice(from..to))
            })
        };
        runs.into_iter().flat_map(cut).collect()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each byte is the one that was written last, none is twice, and memory that large writes came in is not kept for little. Method: random
    //! writes of both kinds beside a plain array.
    use proptest::prelude::*;

    use super::*;

    const SIZE: usize = 2000;

    /// Memory that is held, and bytes in it.
    fn held(extents: &Extents) -> (usize, usize) {
        extents.map.values().fold((0, 0), |(held, bytes), run| {
            let of = match run {
                Run::Grown(_) => run.bytes().len(),
                Run::Taken { of, .. } => *of,
            };
            (held + of, bytes + run.bytes().len())
        })
    }

    proptest! {
        #[test]
        fn later_writes_replace_earlier_ones(writes in prop::collection::vec((0..SIZE - 600, 1..600_usize, any::<bool>()), 1..60)) {
            let (mut extents, mut plain) = (Extents::default(), vec![None; SIZE]);
            for (n, (offset, len, large)) in writes.iter().enumerate() {
                let bytes: Vec<u8> = (0..*len).map(|at| (n * 7 + at) as u8).collect();
                for (place, byte) in plain[*offset..].iter_mut().zip(&bytes) {
                    *place = Some(*byte);
                }
                match large {
                    true => extents.put(*offset as u64, bytes.into()),
                    false => extents.write(*offset as u64, &bytes),
                }
                let (held, bytes) = held(&extents);
                prop_assert_eq!(extents.bytes() as usize, bytes);
                prop_assert_eq!(bytes, plain.iter().flatten().count());
                prop_assert!(held <= 2 * bytes, "{} bytes are held for {}", held, bytes);
                let all: Option<Vec<u8>> = plain[*offset..*offset + *len].iter().copied().collect();
                prop_assert_eq!(extents.read(*offset as u64, *len), all);
            }
            for at in 0..SIZE - 50 {
                let all: Option<Vec<u8>> = plain[at..at + 50].iter().copied().collect();
                prop_assert_eq!(extents.read(at as u64, 50), all);
            }
            let mut taken = vec![None; SIZE];
            for (at, bytes) in extents.take() {
                for (place, byte) in taken[at as usize..].iter_mut().zip(&bytes) {
                    prop_assert!(place.is_none());
                    *place = Some(*byte);
                }
            }
            prop_assert_eq!((taken, extents.bytes()), (plain, 0));
        }
    }

    #[test]
    fn a_large_write_is_sent_from_where_it_came() {
        let (mut extents, large) = (Extents::default(), Bytes::from(vec![7; 3000]));
        extents.put(100, large.clone());
        extents.write(3100, b"behind");
        extents.write(200, b"within");
        let pieces = extents.take();
        let places: Vec<(u64, usize)> = pieces.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        assert_eq!(
            places,
            [(100, 106), (206, 2894), (3100, 6)],
            "a small part is copied, and goes with what is written behind it"
        );
        assert_eq!(pieces[1].1.as_ptr(), large[106..].as_ptr());
    }
}
