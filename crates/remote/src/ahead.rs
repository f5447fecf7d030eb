//! What is asked for ahead of large reads that follow each other, and of records at a constant distance, in blocks. Pure.
//!
//! - I-AHEAD-1: bytes are found under the lease alone under which they were asked for ([`crate::kept`] knows which one stands).
//! - I-AHEAD-2: what this mount changes is not found from before the change begins, and not asked for before it has ended.
//! - I-AHEAD-3: what was asked for and what is there has a bound, for all openings and for each.
//! - I-AHEAD-4: a block that is short, or did not come, says nothing: who wants its bytes asks for them himself.

use std::{collections::BTreeMap, ops::Range};

use types::Ino;

use crate::stride::Stride;

/// The longest block: a question to one data server, and what a program's read is at the most.
pub(crate) const BLOCK_MAX: u64 = 1 << 20;
/// Ahead of one opening.
const WINDOW_MAX: u64 = 4 << 20;
/// Reads of one opening that overtake each other are no further apart.
const BEHIND_MAX: u64 = 4 << 20;
/// The same of records, whose blocks are seldom read whole and stay until then.
const RECORDS_BEHIND_MAX: u64 = 1 << 20;
/// Records that are asked for each by itself.
const RECORDS_MAX: u64 = 16;
/// What lies between records is read along with them if it is no more than so many times as much, and so many bytes: what another request costs.
const GAPS_MAX: u64 = 3;
const GAP_MAX: u64 = 64 << 10;

/// An opening of a file.
pub(crate) type Of = (Ino, u64);
/// Bytes of a block.
pub(crate) type Piece<B> = (B, Range<usize>);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AheadCounts {
    /// Blocks that were asked for, and those of them that nobody read.
    pub asked: u64,
    pub unread: u64,
    /// Reads that were answered with them.
    pub found: u64,
    /// Bytes that are asked for or there at this moment.
    pub bytes: u64,
}

/// What is to be asked for; then [`Ahead::came`] is called with its number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fetch {
    pub number: u64,
    pub from: u64,
    pub len: u64,
}

#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Step<B> {
    /// All of it.
    Found(Vec<Piece<B>>),
    /// It is on its way with this fetch.
    Wait(u64),
    No,
}

enum State<B> {
    /// Under that number.
    Asked(u64),
    There(B),
    Lacking,
}

struct Block<B> {
    to: u64,
    /// Bytes of it that nobody read.
    left: u64,
    state: State<B>,
}

/// How an opening is read.
struct Run<B> {
    lease: u64,
    next: u64,
    /// Bytes that were read one after the other.
    length: u64,
    stride: Stride,
    /// Blocks went before they were read, since this mount changes them or others needed the room: whole ones would be asked for again with each record.
    narrow: bool,
    used: u64,
    /// By where they begin.
    blocks: BTreeMap<u64, Block<B>>,
}

impl<B> Run<B> {
    fn new(lease: u64) -> Run<B> {
        let (stride, blocks) = (Stride::default(), BTreeMap::new());
        Run { lease, next: 0, length: 0, stride, narrow: false, used: 0, blocks }
    }

    fn at(&self, offset: u64) -> Option<(u64, &Block<B>)> {
        let (from, block) = self.blocks.range(..=offset).next_back()?;
        (block.to > offset).then_some((*from, block))
    }

    /// Is all of it asked for or there?
    fn covers(&self, offset: u64, end: u64) -> bool {
        let mut at = offset;
        while at < end {
            match self.at(at) {
                Some((_, block)) if !matches!(block.state, State::Lacking) => at = block.to,
                Some(_) | None => return false,
            }
        }
        offset < end
    }

    fn goes_on(&self, offset: u64) -> bool {
        self.length > 0 && offset == self.next
    }

    /// What is worth having from a record on, that one with it; and whether what lies between records is.
    fn records(&self, (offset, len): (u64, u64)) -> (Vec<Range<u64>>, bool) {
        let (step, seen) = (self.stride.step(), self.stride.seen());
        let gap = step.saturating_sub(len);
        if gap <= GAP_MAX.min(len.saturating_mul(GAPS_MAX)) && !self.narrow {
            let window = step.saturating_mul(seen).min(WINDOW_MAX);
            let whole = offset..offset.saturating_add(len).saturating_add(window);
            return (Vec::from([whole]), true);
        }
        let ahead = seen.min(RECORDS_MAX).min(WINDOW_MAX / len.max(1));
        let all = (0..=ahead).filter_map(|n| {
            let from = offset.checked_add(step.checked_mul(n)?)?;
            Some(from..from.checked_add(len)?)
        });
        (all.collect(), false)
    }
}

pub(crate) struct Ahead<B> {
    limit: u64,
    bytes: u64,
    clock: u64,
    number: u64,
    runs: BTreeMap<Of, Run<B>>,
    /// All that has not come, also what nobody wants any more.
    asked: BTreeMap<u64, (Of, Range<u64>)>,
    /// What this mount is changing.
    changing: BTreeMap<Ino, Vec<Range<u64>>>,
    counts: AheadCounts,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl<B: Clone> Ahead<B> {
    /// `limit`: bytes, of all openings together.
    pub(crate) fn new(limit: u64) -> Ahead<B> {
        Ahead {
            limit,
            bytes: 0,
            clock: 0,
            number: 0,
            runs: BTreeMap::new(),
            asked: BTreeMap::new(),
            changing: BTreeMap::new(),
            counts: AheadCounts::default(),
        }
    }

    pub(crate) fn counts(&self) -> AheadCounts {
        AheadCounts { bytes: self.bytes, ..self.counts }
    }

    /// Does a read follow those before it, or want what was asked for? Also a short one: of an unaligned buffer the kernel asks for the last bytes by themselves.
    pub(crate) fn follows(&self, of: Of, (offset, len): (u64, u64)) -> bool {
        let end = offset.saturating_add(len);
        self.runs.get(&of).is_some_and(|run| {
            run.goes_on(offset) || run.covers(offset, end) || run.stride.is_next((offset, len))
        })
    }

    /// A read that goes another way; it may be one of records at a distance.
    pub(crate) fn note(&mut self, of: Of, range: (u64, u64)) {
        let run = self.runs.entry(of).or_insert_with(|| Run::new(0));
        if !run.stride.goes_on(range, false) {
            run.stride.note(range);
        }
    }

    /// A read begins. Returns what is to be asked for, its own bytes with it, in blocks that end at multiples of `grain`; 0: nothing is.
    pub(crate) fn read(&mut self, of: Of, lease: u64, (offset, len): (u64, u64), grain: u64) -> Vec<Fetch> {
        self.clock += 1;
        let (end, clock) = (offset.saturating_add(len), self.clock);
        let run = self.runs.entry(of).or_insert_with(|| Run::new(lease));
        run.used = clock;
        let same = run.lease == lease;
        let goes_on = same && run.goes_on(offset);
        let is_record = !goes_on && run.stride.goes_on((offset, len), same && run.covers(offset, end));
        if is_record {
            (run.next, run.length) = (end, 0);
            run.lease = lease;
            let (wanted, gaps) = run.records((offset, len));
            let kept_from = offset.saturating_sub(RECORDS_BEHIND_MAX);
            self.drop_blocks(of, &if same { 0..kept_from } else { 0..u64::MAX });
            if grain == 0 {
                return Vec::new();
            }
            return wanted.into_iter().flat_map(|range| self.ask(of, range, grain, gaps)).collect();
        }
        if !(goes_on || same && run.covers(offset, end)) {
            (run.lease, run.next, run.length, run.narrow) = (lease, end, len, false);
            run.stride.note((offset, len));
            self.drop_blocks(of, &(0..u64::MAX));
            return Vec::new();
        }
        run.next = run.next.max(end);
        run.length = run.length.saturating_add(len);
        let window = run.length.min(WINDOW_MAX);
        let until = run.next.saturating_add(window);
        self.drop_blocks(of, &(0..offset.saturating_sub(BEHIND_MAX)));
        if grain == 0 { Vec::new() } else { self.ask(of, offset..until, grain, true) }
    }

    /// `whole`: to the ends of blocks, also behind the range.
    fn ask(&mut self, of: Of, range: Range<u64>, grain: u64, whole: bool) -> Vec<Fetch> {
        let mut fetches = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let Some(run) = self.runs.get(&of) else { break };
            match run.at(at) {
                // Behind the end, or a hole.
                Some((_, Block { state: State::Lacking, .. })) => break,
                Some((_, block)) => {
                    at = block.to;
                    continue;
                }
                None => (),
            }
            let next = run.blocks.range(at..).next().map_or(u64::MAX, |(from, _)| *from);
            let to = (at / grain).saturating_add(1).saturating_mul(grain).min(next);
            let to = if whole { to } else { to.min(range.end) };
            let changing =
                self.changing.get(&of.0).is_some_and(|all| all.iter().any(|one| overlap(one, &(at..to))));
            if changing || to > i64::MAX as u64 || !self.make_room(of, to - at) {
                break;
            }
            self.number += 1;
            self.counts.asked += 1;
            self.bytes += to - at;
            self.asked.insert(self.number, (of, at..to));
            if let Some(run) = self.runs.get_mut(&of) {
                run.blocks.insert(at, Block { to, left: to - at, state: State::Asked(self.number) });
            }
            fetches.push(Fetch { number: self.number, from: at, len: to - at });
            at = to;
        }
        fetches
    }

    /// Takes it from those who did not read for the longest time.
    fn make_room(&mut self, of: Of, len: u64) -> bool {
        while self.bytes.saturating_add(len) > self.limit {
            let has = |run: &Run<B>| run.blocks.values().any(|block| matches!(block.state, State::There(_)));
            let others = self.runs.iter().filter(|(other, run)| **other != of && has(run));
            let Some(oldest) = others.min_by_key(|(_, run)| run.used).map(|(other, _)| *other) else {
                return false;
            };
            self.drop_blocks(oldest, &(0..u64::MAX));
            if let Some(run) = self.runs.get_mut(&oldest) {
                run.narrow = true;
                run.stride.lessen();
            }
        }
        true
    }

    /// All of a read, if it is there. What was read through its opening goes.
    pub(crate) fn find(&mut self, of: Of, lease: u64, (offset, len): (u64, u64)) -> Step<B> {
        let end = offset.saturating_add(len);
        let Some(run) = self.runs.get_mut(&of).filter(|run| run.lease == lease) else { return Step::No };
        if !run.covers(offset, end) {
            return Step::No;
        }
        let (mut pieces, mut whence, mut at) = (Vec::new(), Vec::new(), offset);
        while at < end {
            let Some((from, block)) = run.at(at) else { return Step::No };
            let to = end.min(block.to);
            match &block.state {
                State::Asked(number) => return Step::Wait(*number),
                State::There(bytes) => {
                    pieces.push((bytes.clone(), (at - from) as usize..(to - from) as usize))
                }
                State::Lacking => return Step::No,
            }
            whence.push(from);
            at = to;
        }
        for (from, (_, range)) in whence.into_iter().zip(&pieces) {
            let Some(block) = run.blocks.get_mut(&from) else { continue };
            block.left = block.left.saturating_sub(range.len() as u64);
            if block.left == 0 {
                self.bytes -= block.to - from;
                run.blocks.remove(&from);
            }
        }
        self.counts.found += 1;
        Step::Found(pieces)
    }

    pub(crate) fn is_asked(&self, number: u64) -> bool {
        self.asked.contains_key(&number)
    }

    /// `None`: not all of it, or an error.
    pub(crate) fn came(&mut self, number: u64, bytes: Option<B>) {
        let Some((of, range)) = self.asked.remove(&number) else { return };
        let block = self.runs.get_mut(&of).and_then(|run| run.blocks.get_mut(&range.start));
        match (block.filter(|block| matches!(block.state, State::Asked(of) if of == number)), bytes) {
            (Some(block), Some(bytes)) => block.state = State::There(bytes),
            (block, _) => {
                self.bytes -= range.end - range.start;
                if let Some(block) = block {
                    block.state = State::Lacking;
                }
            }
        }
    }

    /// All blocks of an opening that have bytes there. What is on its way is counted until it comes.
    fn drop_blocks(&mut self, of: Of, range: &Range<u64>) {
        let Some(run) = self.runs.get_mut(&of) else { return };
        let (bytes, unread) = (&mut self.bytes, &mut self.counts.unread);
        run.blocks.retain(|from, block| {
            let goes = overlap(range, &(*from..block.to));
            if goes {
                match block.state {
                    State::There(_) => *bytes -= block.to - from,
                    State::Asked(_) | State::Lacking => (),
                }
                *unread += u64::from(block.left == block.to - from && !matches!(block.state, State::Lacking));
            }
            !goes
        });
    }

    fn drop_of(&mut self, ino: Ino, range: &Range<u64>) {
        let all: Vec<Of> = self.runs.range((ino, 0)..=(ino, u64::MAX)).map(|(of, _)| *of).collect();
        all.into_iter().for_each(|of| self.drop_blocks(of, range));
    }

    /// This mount begins to change these bytes.
    pub(crate) fn begin_change(&mut self, ino: Ino, range: &Range<u64>) {
        self.changing.entry(ino).or_default().push(range.clone());
        for (_, run) in self.runs.range_mut((ino, 0)..=(ino, u64::MAX)) {
            run.narrow |= run.blocks.iter().any(|(from, block)| overlap(range, &(*from..block.to)));
        }
        self.drop_of(ino, range);
    }

    pub(crate) fn end_change(&mut self, ino: Ino, range: &Range<u64>) {
        let Some(all) = self.changing.get_mut(&ino) else { return };
        if let Some(at) = all.iter().position(|one| one == range) {
            all.swap_remove(at);
        }
        if all.is_empty() {
            self.changing.remove(&ino);
        }
    }

    /// It was asked back.
    pub(crate) fn forget(&mut self, ino: Ino) {
        self.drop_of(ino, &(0..u64::MAX));
    }

    /// All of it was.
    pub(crate) fn clear(&mut self) {
        let all: Vec<Of> = self.runs.keys().copied().collect();
        all.into_iter().for_each(|of| self.drop_blocks(of, &(0..u64::MAX)));
    }

    pub(crate) fn close(&mut self, of: Of) {
        self.drop_blocks(of, &(0..u64::MAX));
        self.runs.remove(&of);
    }
}

#[cfg(test)]
mod tests;
