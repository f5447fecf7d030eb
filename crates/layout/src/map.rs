//! The residency map of one object.

use crate::{SAUS_MAX, Sau, SauIndex, Seal};
use std::collections::{BTreeMap, BTreeSet};
use types::{SAU_BYTES, TierId, TierSet};

/// SAUs per chunk (1 GiB); a chunk holds no more entries than it needs, and is stored by itself.
pub(crate) const CHUNK: u32 = 256;

/// Why a note about a SAU was refused; the map is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoteError {
    #[error("the SAU's bytes are lost")]
    Lost,
    #[error("the SAU is a hole")]
    Hole,
    #[error("the tier does not hold the SAU's current bytes")]
    NotThere,
    #[error("it is the last valid copy")]
    LastCopy,
    #[error("the bytes copied do not match the SAU's seal")]
    SealMismatch,
}

/// The state of every SAU of an object, 8 bytes each; long holes cost nothing.
#[derive(Clone, Debug, Default)]
pub struct SauMap {
    /// By chunk number, ascending; none is empty and none ends in a hole.
    chunks: Vec<Chunk>,
    /// SAUs by the bits of `valid`; entry 0 counts the lost ones.
    counts: [u32; 8],
    /// Numbers of the chunks that are not as they are stored. The first is stored each time and never among them.
    changed: BTreeSet<u32>,
    /// What the chunks were that changed since [`SauMap::keep`].
    before: BTreeMap<u32, Vec<Cell>>,
}

#[derive(Clone, Debug)]
struct Chunk {
    number: u32,
    cells: Vec<Cell>,
}

/// A [`Sau`] in 8 bytes: CRC | length (23 bits) | sealed | lost | valid (3 bits).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cell(u64);

impl Cell {
    const HOLE: Cell = Cell(0);
    const LOST: u64 = 1 << 3;
    const SEALED: u64 = 1 << 4;

    fn pack(sau: Sau) -> Cell {
        let mut bits = u64::from(sau.valid.bits());
        if sau.lost {
            bits |= Cell::LOST;
        }
        if let Some(seal) = sau.seal {
            bits |= Cell::SEALED | u64::from(seal.len) << 8 | u64::from(seal.crc) << 32;
        }
        Cell(bits)
    }
    fn valid(self) -> TierSet {
        TierSet::from_bits((self.0 & 7) as u8).unwrap_or(TierSet::EMPTY)
    }
    fn unpack(self) -> Sau {
        let seal = Seal { crc: (self.0 >> 32) as u32, len: (self.0 >> 8) as u32 & 0xff_ffff };
        Sau {
            valid: self.valid(),
            lost: self.0 & Cell::LOST != 0,
            seal: (self.0 & Cell::SEALED != 0).then_some(seal),
        }
    }
}

impl SauMap {
    pub fn new() -> SauMap {
        SauMap::default()
    }

    /// One past the last SAU that is not a hole.
    pub fn len(&self) -> u32 {
        self.chunks.last().map_or(0, |c| c.number * CHUNK + c.cells.len() as u32)
    }
    /// Nothing but holes.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
    /// How many SAUs are not holes.
    pub fn used(&self) -> u32 {
        self.counts.iter().sum()
    }
    pub fn lost(&self) -> u32 {
        self.counts[0]
    }

    pub fn get(&self, sau: SauIndex) -> Sau {
        let (number, at) = (sau.get() / CHUNK, (sau.get() % CHUNK) as usize);
        match self.find(number) {
            Ok(i) => self.chunks[i].cells.get(at).copied().unwrap_or(Cell::HOLE).unpack(),
            Err(_) => Sau::HOLE,
        }
    }

    /// The chunks after the first that changed since [`SauMap::stored`]: what a save must write, or delete where the
    /// chunk is empty now.
    pub fn changed(&self) -> impl Iterator<Item = u32> + '_ {
        self.changed.iter().copied()
    }
    /// The stored form is this one now.
    pub fn stored(&mut self) {
        self.changed.clear();
        self.keep();
    }
    /// What is now is what [`SauMap::roll_back`] comes back to.
    pub fn keep(&mut self) {
        self.before.clear();
    }
    /// Undoes what changed since [`SauMap::keep`] or [`SauMap::stored`]: it could not be saved.
    pub fn roll_back(&mut self) {
        for (number, cells) in std::mem::take(&mut self.before) {
            cells.iter().for_each(|cell| count(&mut self.counts, *cell));
            self.changed.extend((number > 0).then_some(number));
            match self.find(number) {
                Ok(i) => {
                    self.chunks[i].cells.iter().for_each(|cell| uncount(&mut self.counts, *cell));
                    self.chunks[i].cells = cells;
                    self.trim(i);
                }
                Err(i) if !cells.is_empty() => self.chunks.insert(i, Chunk { number, cells }),
                Err(_) => {}
            }
        }
    }
    /// How many chunks after the first are not empty.
    pub fn further_chunks(&self) -> u32 {
        let first = self.chunks.first().is_some_and(|c| c.number == 0);
        self.chunks.len() as u32 - u32::from(first)
    }
    /// The SAUs of one chunk that are not holes, with their place in it.
    pub(crate) fn in_chunk(&self, number: u32) -> impl Iterator<Item = (u32, Sau)> + '_ {
        let cells: &[Cell] = self.find(number).map_or(&[], |i| &self.chunks[i].cells);
        (0..).zip(cells).filter(|(_, cell)| **cell != Cell::HOLE).map(|(n, cell)| (n, cell.unpack()))
    }

    /// Sets a state as it is. For decoding and repair; everything else goes through the `note_*` functions.
    /// An inconsistent state (I-LAYOUT-1, -2) is refused: `false`, and nothing changes.
    #[must_use]
    pub fn set(&mut self, sau: SauIndex, state: Sau) -> bool {
        if !state.is_consistent() {
            return false;
        }
        self.store(sau, state);
        true
    }

    /// All SAUs of a file of this size are in `tier` alone, and nothing is behind it.
    pub fn fill(&mut self, size: u64, tier: TierId) {
        self.truncate_to(size);
        for n in 0..u32::try_from(size.div_ceil(SAU_BYTES)).unwrap_or(SAUS_MAX).min(SAUS_MAX) {
            self.store(SauIndex::of(u64::from(n) * SAU_BYTES), Sau::in_tiers(TierSet::of(tier)));
        }
    }

    /// The SAUs that are not holes, in order.
    pub fn iter(&self) -> impl Iterator<Item = (SauIndex, Sau)> + '_ {
        self.iter_from(SauIndex::ZERO)
    }

    /// As `iter`, from `first` on, without walking what lies before its chunk.
    pub fn iter_from(&self, first: SauIndex) -> impl Iterator<Item = (SauIndex, Sau)> + '_ {
        let at = self.chunks.partition_point(|c| c.number < first.get() / CHUNK);
        self.chunks[at..]
            .iter()
            .flat_map(|chunk| {
                (chunk.number * CHUNK..).zip(&chunk.cells).filter_map(|(n, cell)| {
                    SauIndex::new(n).filter(|_| *cell != Cell::HOLE).map(|sau| (sau, cell.unpack()))
                })
            })
            .skip_while(move |(sau, _)| *sau < first)
    }

    /// The SAUs without a copy in a persistent tier, in order. Lost ones are not among them.
    pub fn dirty(&self) -> impl Iterator<Item = SauIndex> + '_ {
        self.iter().filter(|(_, s)| s.is_at_risk()).map(|(sau, _)| sau)
    }
    /// Is there any SAU without a persistent copy? Constant time.
    pub fn is_dirty(&self) -> bool {
        self.counts[TierSet::MEMORY.bits() as usize] != 0
    }
    fn is_wholly_at_risk(&self) -> bool {
        self.counts[TierSet::MEMORY.bits() as usize] == self.used()
    }
    /// How many SAUs `tier` holds. Constant time.
    pub fn count_in(&self, tier: TierId) -> u32 {
        self.sum(|valid| valid.contains(tier))
    }
    /// Does `tier` hold the current bytes of every SAU that is not a hole? True of an empty map. Constant time.
    pub fn is_wholly_in(&self, tier: TierId) -> bool {
        self.sum(|valid| !valid.contains(tier)) == 0
    }
    /// The tiers that hold a current SAU. Constant time.
    pub fn tiers_used(&self) -> TierSet {
        TierId::ALL.into_iter().filter(|t| self.count_in(*t) != 0).fold(TierSet::EMPTY, TierSet::with)
    }
    /// Bytes of a file of `size` bytes that are not in holes. Constant time for a map that ends with the file.
    pub fn bytes_within(&self, size: u64) -> u64 {
        let end = self.len() as u64 * SAU_BYTES;
        if end <= size.next_multiple_of(SAU_BYTES) {
            return u64::from(self.used()) * SAU_BYTES - end.saturating_sub(size);
        }
        self.iter().map(|(sau, _)| u64::from(sau.bytes_within(size))).sum()
    }
    /// Bytes of a file of `size` bytes that a reboot would lose.
    pub fn bytes_at_risk(&self, size: u64) -> u64 {
        if !self.is_dirty() {
            return 0;
        }
        if self.is_wholly_at_risk() {
            return self.bytes_within(size);
        }
        self.dirty().map(|sau| u64::from(sau.bytes_within(size))).sum()
    }

    /// Bytes of the SAU were written in `tier`, which holds the rest of them (or the SAU was a hole).
    pub fn note_written(&mut self, sau: SauIndex, tier: TierId) -> Result<(), NoteError> {
        let state = self.get(sau);
        if state.lost {
            return Err(NoteError::Lost);
        }
        if !state.is_hole() && !state.valid.contains(tier) {
            return Err(NoteError::NotThere);
        }
        self.store(sau, Sau::in_tiers(TierSet::of(tier)));
        Ok(())
    }

    /// Every byte of the SAU was replaced in `tier`, whatever it was before.
    pub fn note_replaced(&mut self, sau: SauIndex, tier: TierId) {
        self.store(sau, Sau::in_tiers(TierSet::of(tier)));
    }

    /// Every byte of the SAU was punched out.
    pub fn note_punched(&mut self, sau: SauIndex) {
        self.store(sau, Sau::HOLE);
    }

    /// `tier` now holds the current bytes too. With `seal`, the checksum of what was copied; it must agree with
    /// the SAU's own over the same length, and becomes it otherwise.
    pub fn note_copied(&mut self, sau: SauIndex, tier: TierId, seal: Option<Seal>) -> Result<(), NoteError> {
        let state = self.get(sau);
        if state.lost {
            return Err(NoteError::Lost);
        }
        if state.is_hole() {
            return Err(NoteError::Hole);
        }
        if let (Some(old), Some(new)) = (state.seal, seal)
            && old.len == new.len
            && old.crc != new.crc
        {
            return Err(NoteError::SealMismatch);
        }
        let seal = seal.filter(|s| u64::from(s.len) <= SAU_BYTES).or(state.seal);
        self.store(sau, Sau { valid: state.valid.with(tier), lost: false, seal });
        Ok(())
    }

    /// The copy in `tier` is to be dropped: note it, then punch it. Refused for the last one (I-LAYOUT-4).
    pub fn note_dropped(&mut self, sau: SauIndex, tier: TierId) -> Result<(), NoteError> {
        let state = self.get(sau);
        if !state.valid.contains(tier) {
            return Err(NoteError::NotThere);
        }
        let valid = state.valid.without(tier);
        if valid.is_empty() {
            return Err(NoteError::LastCopy);
        }
        self.store(sau, Sau { valid, ..state });
        Ok(())
    }

    /// A device failed: `tier` no longer holds the SAU, be it the last copy or not. Returns whether the SAU is now lost.
    pub fn note_failed(&mut self, sau: SauIndex, tier: TierId) -> bool {
        let state = self.get(sau);
        if !state.valid.contains(tier) {
            return state.lost;
        }
        let valid = state.valid.without(tier);
        self.store(sau, if valid.is_empty() { Sau::LOST } else { Sau { valid, ..state } });
        valid.is_empty()
    }

    /// The file was cut to `size` bytes: SAUs past the end become holes, and a cut inside a seal ends the seal.
    pub fn truncate_to(&mut self, size: u64) {
        let keep = u32::try_from(size.div_ceil(SAU_BYTES)).unwrap_or(SAUS_MAX).min(SAUS_MAX);
        while let Some(chunk) = self.chunks.last_mut()
            && chunk.number * CHUNK + chunk.cells.len() as u32 > keep
        {
            let left = keep.saturating_sub(chunk.number * CHUNK) as usize;
            note_changed(&mut self.changed, &mut self.before, chunk);
            for cell in chunk.cells.drain(left..) {
                uncount(&mut self.counts, cell);
            }
            self.trim_last();
        }
        if size < self.len() as u64 * SAU_BYTES {
            let last = SauIndex::of(size);
            let state = self.get(last);
            if state.seal.is_some_and(|s| u64::from(s.len) > size - last.start()) {
                self.store(last, Sau { seal: None, ..state });
            }
        }
    }

    /// The memory tier's content is gone (a new generation). Returns how many SAUs became lost.
    pub fn forget_memory(&mut self) -> u32 {
        let before = self.lost();
        let memory = self.count_in(TierId::Memory);
        if memory == 0 {
            return 0;
        }
        let mut counts = [0; 8];
        for chunk in &mut self.chunks {
            if chunk.cells.iter().any(|cell| cell.valid().contains(TierId::Memory)) {
                note_changed(&mut self.changed, &mut self.before, chunk);
            }
            for cell in &mut chunk.cells {
                let state = cell.unpack();
                if state.valid.contains(TierId::Memory) {
                    let valid = state.valid.without(TierId::Memory);
                    *cell = Cell::pack(if valid.is_empty() { Sau::LOST } else { Sau { valid, ..state } });
                }
                count(&mut counts, *cell);
            }
        }
        self.counts = counts;
        self.lost() - before
    }

    /// Walks the whole map and compares: I-LAYOUT-1, -2 and -6. For tests, fsck and simulation.
    pub fn check(&self) -> Result<(), &'static str> {
        let mut counts = [0; 8];
        for (_, state) in self.iter() {
            if !state.is_consistent() {
                return Err("I-LAYOUT-1/2: inconsistent state of a SAU");
            }
            count(&mut counts, Cell::pack(state));
        }
        if counts != self.counts {
            return Err("I-LAYOUT-6: counters differ from a walk");
        }
        let trimmed = self.chunks.iter().all(|c| c.cells.last().is_some_and(|x| *x != Cell::HOLE));
        let ordered = self.chunks.windows(2).all(|w| w[0].number < w[1].number);
        if trimmed && ordered { Ok(()) } else { Err("I-LAYOUT-6: not in canonical form") }
    }

    fn sum(&self, of: impl Fn(TierSet) -> bool) -> u32 {
        (0u8..8)
            .zip(self.counts)
            .filter(|(bits, _)| TierSet::from_bits(*bits).is_some_and(&of))
            .map(|(_, n)| n)
            .sum()
    }

    fn find(&self, number: u32) -> Result<usize, usize> {
        match self.chunks.last() {
            Some(last) if last.number == number => Ok(self.chunks.len() - 1),
            Some(last) if last.number < number => Err(self.chunks.len()),
            _ => self.chunks.binary_search_by_key(&number, |c| c.number),
        }
    }

    fn store(&mut self, sau: SauIndex, state: Sau) {
        let (number, at) = (sau.get() / CHUNK, (sau.get() % CHUNK) as usize);
        let cell = Cell::pack(state);
        let i = match self.find(number) {
            Ok(i) => i,
            Err(_) if cell == Cell::HOLE => return,
            Err(i) => {
                self.chunks.insert(i, Chunk { number, cells: Vec::new() });
                i
            }
        };
        let chunk = &mut self.chunks[i];
        if chunk.cells.get(at).copied().unwrap_or(Cell::HOLE) == cell {
            return;
        }
        note_changed(&mut self.changed, &mut self.before, chunk);
        let cells = &mut chunk.cells;
        if at >= cells.len() {
            cells.resize(at + 1, Cell::HOLE);
        }
        uncount(&mut self.counts, cells[at]);
        cells[at] = cell;
        count(&mut self.counts, cell);
        if cell == Cell::HOLE {
            self.trim(i);
        }
    }

    fn trim_last(&mut self) {
        if let Some(last) = self.chunks.len().checked_sub(1) {
            self.trim(last);
        }
    }

    fn trim(&mut self, i: usize) {
        let cells = &mut self.chunks[i].cells;
        let used = cells.iter().rposition(|c| *c != Cell::HOLE).map_or(0, |p| p + 1);
        cells.truncate(used);
        if used == 0 {
            self.chunks.remove(i);
        }
    }
}

impl PartialEq for SauMap {
    fn eq(&self, other: &SauMap) -> bool {
        self.counts == other.counts && self.iter().eq(other.iter())
    }
}
impl Eq for SauMap {}

/// The chunk is about to change.
fn note_changed(changed: &mut BTreeSet<u32>, before: &mut BTreeMap<u32, Vec<Cell>>, chunk: &Chunk) {
    before.entry(chunk.number).or_insert_with(|| chunk.cells.clone());
    if chunk.number > 0 {
        changed.insert(chunk.number);
    }
}

fn count(counts: &mut [u32; 8], cell: Cell) {
    if cell != Cell::HOLE {
        counts[cell.valid().bits() as usize] += 1;
    }
}

fn uncount(counts: &mut [u32; 8], cell: Cell) {
    if cell != Cell::HOLE {
        counts[cell.valid().bits() as usize] -= 1;
    }
}
