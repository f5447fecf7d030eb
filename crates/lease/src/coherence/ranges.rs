//! The byte-range locks of one inode, as fcntl(2) has them; of flock(2), which are of whole files, too.
//!
//! An owner's pieces do not overlap, and neighbours of one kind are one. A lock takes the place of what its owner had in its
//! range. Owners' locks conflict where they share a byte and one of them is for writing.

use std::collections::BTreeMap;

/// Reading: shared. Writing: exclusive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    Read,
    Write,
}

/// Bytes, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Range {
    start: u64,
    end: u64,
}

impl Range {
    /// Offsets are signed in fcntl(2): the largest is "up to the end, wherever that is".
    pub const END: u64 = i64::MAX as u64;
    pub const ALL: Range = Range { start: 0, end: Range::END };

    /// `None` when there is no byte in it, or one that no file has.
    pub const fn new(start: u64, end: u64) -> Option<Range> {
        if start <= end && end <= Range::END { Some(Range { start, end }) } else { None }
    }
    pub const fn start(self) -> u64 {
        self.start
    }
    pub const fn end(self) -> u64 {
        self.end
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    end: u64,
    kind: Kind,
    pid: u32,
}

/// One lock as it is told to who is in its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found<O> {
    pub owner: O,
    pub range: Range,
    pub kind: Kind,
    /// Whoever asked last for a part of it.
    pub pid: u32,
}

/// By owner, and then by first byte.
#[derive(Clone, Debug)]
pub struct Ranges<O> {
    owners: BTreeMap<O, BTreeMap<u64, Piece>>,
}

impl<O> Default for Ranges<O> {
    fn default() -> Ranges<O> {
        Ranges { owners: BTreeMap::new() }
    }
}

/// The pieces that share a byte with the range.
fn touched(pieces: &BTreeMap<u64, Piece>, range: Range) -> impl Iterator<Item = (u64, Piece)> {
    let before = pieces.range(..range.start).next_back().filter(|(_, piece)| piece.end >= range.start);
    before.into_iter().chain(pieces.range(range.start..=range.end)).map(|(start, piece)| (*start, *piece))
}

impl<O: Ord + Copy> Ranges<O> {
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Every lock, by owner.
    pub fn all(&self) -> impl Iterator<Item = Found<O>> {
        self.owners.iter().flat_map(|(owner, pieces)| {
            pieces.iter().map(|(start, piece)| {
                let range = Range { start: *start, end: piece.end };
                Found { owner: *owner, range, kind: piece.kind, pid: piece.pid }
            })
        })
    }

    /// Locks of others that are in the way of such a one.
    pub fn in_the_way(&self, of: O, range: Range, kind: Kind) -> impl Iterator<Item = Found<O>> {
        let others = self.owners.iter().filter(move |(owner, _)| **owner != of);
        others.filter_map(move |(owner, pieces)| {
            let conflicts = |piece: &Piece| kind == Kind::Write || piece.kind == Kind::Write;
            let (start, piece) = touched(pieces, range).find(|(_, piece)| conflicts(piece))?;
            let range = Range { start, end: piece.end };
            Some(Found { owner: *owner, range, kind: piece.kind, pid: piece.pid })
        })
    }

    /// Is a lock of this one in the way of another's?
    pub fn blocks(&self, owner: O, range: Range, kind: Kind) -> bool {
        let conflicts = |piece: &Piece| kind == Kind::Write || piece.kind == Kind::Write;
        let pieces = self.owners.get(&owner).into_iter();
        pieces.flat_map(|pieces| touched(pieces, range)).any(|(_, piece)| conflicts(&piece))
    }

    pub fn owners_len(&self) -> usize {
        self.owners.len()
    }

    /// How many pieces more there would be.
    pub fn growth(&self, owner: O, range: Range, kind: Option<Kind>) -> isize {
        let mut after = Ranges { owners: BTreeMap::new() };
        let Some(pieces) = self.owners.get(&owner) else { return isize::from(kind.is_some()) };
        // Those beside the range can become one with it.
        let wide =
            Range { start: range.start.saturating_sub(1), end: range.end.saturating_add(1).min(Range::END) };
        let near: BTreeMap<u64, Piece> = touched(pieces, wide).collect();
        let before = near.len();
        after.owners.insert(owner, near);
        after.set(owner, range, kind, 0);
        after.owners.get(&owner).map_or(0, BTreeMap::len) as isize - before as isize
    }

    /// `None` unlocks. Says nothing of other owners.
    pub fn set(&mut self, owner: O, range: Range, kind: Option<Kind>, pid: u32) {
        let pieces = self.owners.entry(owner).or_default();
        let cut: Vec<(u64, Piece)> = touched(pieces, range).collect();
        for (start, piece) in cut {
            pieces.remove(&start);
            if start < range.start {
                pieces.insert(start, Piece { end: range.start - 1, ..piece });
            }
            if piece.end > range.end {
                pieces.insert(range.end + 1, piece);
            }
        }
        if let Some(kind) = kind {
            let (mut start, mut end) = (range.start, range.end);
            let before = pieces.range(..start).next_back().map(|(start, piece)| (*start, *piece));
            if let Some((first, piece)) = before.filter(|(_, p)| p.end + 1 == start && p.kind == kind) {
                pieces.remove(&first);
                start = first;
                debug_assert!(piece.end < range.start);
            }
            if let Some(piece) = pieces.get(&(end + 1)).copied().filter(|piece| piece.kind == kind) {
                pieces.remove(&(end + 1));
                end = piece.end;
            }
            pieces.insert(start, Piece { end, kind, pid });
        }
        if pieces.is_empty() {
            self.owners.remove(&owner);
        }
    }

    /// The kind that the owner has on a whole file, if it is locked as one.
    pub fn whole(&self, owner: O) -> Option<Kind> {
        self.owners.get(&owner)?.get(&0).filter(|piece| piece.end == Range::END).map(|piece| piece.kind)
    }

    pub fn owners(&self) -> impl Iterator<Item = O> {
        self.owners.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: u64 = 12;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Goal: locks as fcntl(2) says. Method: a table of what each owner has on each byte; every question is asked of both.
        #[test]
        fn ranges_are_a_table_of_bytes(steps in proptest::collection::vec((0..3u8, 0..BYTES, 0..BYTES, 0..3u8), 1..40)) {
            let mut ranges: Ranges<u8> = Ranges::default();
            let mut table = vec![[None::<Kind>; 3]; BYTES as usize];
            for (owner, a, b, what) in steps {
                let (first, last) = (a.min(b), a.max(b));
                // The last byte of the table stands for all that follow.
                let end = if last == BYTES - 1 { Range::END } else { last };
                let range = Range::new(first, end).unwrap();
                let kind = [None, Some(Kind::Read), Some(Kind::Write)][usize::from(what)];
                let mine = &table[first as usize..=last as usize];
                for kind in [Kind::Read, Kind::Write] {
                    let blocks = |k: &Kind| kind == Kind::Write || *k == Kind::Write;
                    let other = |o: u8| o != owner && mine.iter().any(|b| b[usize::from(o)].as_ref().is_some_and(blocks));
                    let wanted: Vec<u8> = (0..3).filter(|o| other(*o)).collect();
                    let found: Vec<u8> = ranges.in_the_way(owner, range, kind).map(|found| found.owner).collect();
                    prop_assert_eq!(&found, &wanted);
                    for other in (0..3).filter(|o| *o != owner) {
                        prop_assert_eq!(ranges.blocks(other, range, kind), wanted.contains(&other));
                    }
                }
                let (before, growth) = (ranges.all().count() as isize, ranges.growth(owner, range, kind));
                ranges.set(owner, range, kind, 7);
                prop_assert_eq!(ranges.all().count() as isize - before, growth);
                for byte in &mut table[first as usize..=last as usize] {
                    byte[usize::from(owner)] = kind;
                }
                let mut told = vec![[None; 3]; BYTES as usize];
                let mut runs = 0;
                for Found { owner, range, kind, .. } in ranges.all() {
                    for byte in range.start()..=range.end().min(BYTES - 1) {
                        prop_assert!(told[byte as usize][usize::from(owner)].replace(kind).is_none(), "pieces overlap");
                    }
                    runs += 1;
                }
                prop_assert_eq!(&told, &table);
                let begins = |o: usize, at: usize| table[at][o].is_some() && (at == 0 || table[at - 1][o] != table[at][o]);
                let least = (0..3).flat_map(|o| (0..table.len()).map(move |at| (o, at))).filter(|(o, at)| begins(*o, *at)).count();
                prop_assert_eq!(runs, least, "neighbours of one kind are one");
            }
        }
    }
}
