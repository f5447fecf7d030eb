//! Blocks of a file, each written and read by one call. Every byte of a write is the write's number.
//!
//! A read beside a write may see a part of it (S-170), so what is a register is a byte: some of each block are looked at. But once
//! no write is under way, the part of a block in one stripe unit is of one write, whole.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{
    CallOf, Judgement, Performed, Workload,
    history::{Clock, Header},
    linear::{Model, Timed},
};
use crate::random::Random;

/// What one server has in one piece.
const STRIPE_UNIT: u64 = 4 << 20;
const FILE_SIZE: u64 = 3 * STRIPE_UNIT;
/// Offset and length. None is above what the kernel passes on in one request.
const BLOCKS: [(u64, u64); 10] = [
    (0, 1),
    (1, 7),
    (4093, 6),
    (8192, 4096),
    (100_000, 65_536),
    // Across allocation units of a data server.
    ((1 << 20) - 1000, 2000),
    (2 << 20, 400_000),
    // Across stripe units.
    (STRIPE_UNIT - 4096, 8192),
    (2 * STRIPE_UNIT - 1, 2),
    (2 * STRIPE_UNIT + 12_345, 300_000),
];
/// Blocks that one round uses: few, so that threads meet.
const USED: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockOp {
    Write {
        block: usize,
        number: u8,
        open: bool,
    },
    /// `open`: opened for this call alone.
    Read {
        block: usize,
        open: bool,
    },
}

/// Of a read: how many bytes of which number follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockAnswer {
    Written,
    Runs(Vec<(u64, u8)>),
}

pub struct Blocks {
    dirs: Vec<PathBuf>,
    used: Vec<usize>,
    /// Who writes opens the file for that alone; what is kept open is for reading, and its bytes may be kept.
    apart: bool,
    /// The numbers that were given, for each block; 0 is what was there first.
    given: Vec<AtomicU32>,
}

impl Workload for Blocks {
    const KIND: &'static str = "blocks";
    type Op = BlockOp;
    type Answer = BlockAnswer;
    type Hand = (PathBuf, File);

    fn prepare(dirs: Vec<PathBuf>, random: &mut Random) -> Result<Blocks> {
        let file = File::create(dirs[0].join("blocks"))?;
        file.set_len(FILE_SIZE)?;
        let first = random.below(BLOCKS.len() as u64) as usize;
        let used = (0..USED).map(|i| (first + i * 3) % BLOCKS.len()).collect();
        let apart = random.chance(50);
        Ok(Blocks { dirs, used, apart, given: BLOCKS.iter().map(|_| AtomicU32::new(0)).collect() })
    }

    fn hand(&self, mount: usize) -> Result<(PathBuf, File)> {
        let path = self.dirs[mount].join("blocks");
        let file = if self.apart { File::open(&path) } else { open(&path) };
        let file = file.context("open the blocks")?;
        Ok((path, file))
    }

    fn draw(&self, random: &mut Random) -> BlockOp {
        let block = random.pick(&self.used).copied().unwrap_or(0);
        let open = random.chance(20);
        if random.chance(45) {
            let number = self.given[block].fetch_add(1, Ordering::Relaxed) + 1;
            if let Ok(number) = u8::try_from(number) {
                return BlockOp::Write { block, number, open: open || self.apart };
            }
        }
        BlockOp::Read { block, open }
    }

    fn perform(&self, hand: &mut (PathBuf, File), op: &BlockOp, clock: Clock) -> Performed<BlockAnswer> {
        let (path, kept) = hand;
        match op {
            BlockOp::Write { block, number, open: own } => {
                let (offset, len) = BLOCKS[*block];
                let bytes = vec![*number; len as usize];
                let done = clock.time(|| {
                    if *own { open(path)?.write_at(&bytes, offset) } else { kept.write_at(&bytes, offset) }
                        .and_then(whole(len))
                });
                Performed::of(done, |()| BlockAnswer::Written)
            }
            BlockOp::Read { block, open: own } => {
                let (offset, len) = BLOCKS[*block];
                let mut bytes = vec![0; len as usize];
                let done = clock.time(|| {
                    if *own && self.apart {
                        File::open(path)?.read_at(&mut bytes, offset)
                    } else if *own {
                        open(path)?.read_at(&mut bytes, offset)
                    } else {
                        kept.read_at(&mut bytes, offset)
                    }
                    .and_then(whole(len))
                });
                Performed::of(done, |()| BlockAnswer::Runs(runs(&bytes)))
            }
        }
    }

    fn judge(header: &Header, calls: &[CallOf<Blocks>]) -> Judgement {
        let mut judgement = Judgement::default();
        judgement.add_unanswered(header, calls);
        for (block, (offset, len)) in BLOCKS.iter().enumerate() {
            let mine: Vec<_> = calls.iter().filter(|c| block_of(&c.op) == block).collect();
            for piece in pieces(*offset, *len) {
                judgement.wrong.extend(torn_at_rest(block, &mine, &piece));
                let mut bytes = vec![piece.start, (piece.start + piece.end) / 2, piece.end - 1];
                bytes.dedup();
                for byte in bytes {
                    let steps: Vec<_> = mine.iter().flat_map(|c| steps(header, c, byte)).collect();
                    let what = format!("block {block}, byte {}", offset + byte);
                    judgement.add(&what, &Register, &seen_alone(steps));
                }
            }
        }
        judgement
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    File::options().read(true).write(true).open(path)
}

fn whole(len: u64) -> impl Fn(usize) -> std::io::Result<()> {
    move |done| {
        let short = || std::io::Error::other(format!("{done} of {len} bytes"));
        if done as u64 == len { Ok(()) } else { Err(short()) }
    }
}

fn runs(bytes: &[u8]) -> Vec<(u64, u8)> {
    bytes.chunk_by(|a, b| a == b).map(|run| (run.len() as u64, run[0])).collect()
}

fn block_of(op: &BlockOp) -> usize {
    match op {
        BlockOp::Write { block, .. } | BlockOp::Read { block, .. } => *block,
    }
}

type Range = std::ops::Range<u64>;

/// Cut at the borders of stripe units; relative to the block.
fn pieces(offset: u64, len: u64) -> Vec<Range> {
    let mut cut = vec![0];
    cut.extend((1..=FILE_SIZE / STRIPE_UNIT).map(|n| n * STRIPE_UNIT).filter_map(|border| {
        let at = border.checked_sub(offset)?;
        (0 < at && at < len).then_some(at)
    }));
    cut.push(len);
    cut.windows(2).map(|w| w[0]..w[1]).collect()
}

/// Reads while nobody wrote, of more than one write.
fn torn_at_rest(block: usize, calls: &[&CallOf<Blocks>], piece: &Range) -> Vec<String> {
    let beside = |read: &CallOf<Blocks>| {
        calls.iter().any(|c| {
            let ends = if c.answer.is_ok() { c.returned } else { u64::MAX };
            matches!(c.op, BlockOp::Write { .. }) && c.called <= read.returned && ends >= read.called
        })
    };
    let torn = calls.iter().filter_map(|c| match &c.answer {
        Ok(BlockAnswer::Runs(runs)) => {
            let numbers = within(runs, piece);
            (numbers.len() > 1 && !beside(c)).then_some((c, numbers))
        }
        Ok(BlockAnswer::Written) | Err(_) => None,
    });
    torn.map(|(c, numbers)| {
        format!(
            "block {block} is of the writes {numbers:?} at {} us, seen through mount {}, and nobody writes",
            c.called / 1000,
            c.mount
        )
    })
    .collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    Write(u8),
    /// A write that was made twice, or not.
    Again(u8),
    Read(u8),
}

struct Register;

impl Model for Register {
    type State = u8;
    type Step = Access;
    fn begin(&self) -> u8 {
        0
    }
    fn next(&self, state: &u8, step: &Access) -> Vec<u8> {
        match step {
            Access::Write(number) => vec![*number],
            Access::Again(number) => vec![*state, *number],
            Access::Read(number) if number == state => vec![*state],
            Access::Read(_) => vec![],
        }
    }
    fn looks(&self, step: &Access) -> bool {
        matches!(step, Access::Read(_))
    }
}

/// The call as steps of one byte; none for a read that failed.
fn steps(header: &Header, call: &CallOf<Blocks>, byte: u64) -> Vec<Timed<Access>> {
    let returned = call.answer.is_ok().then_some(call.returned);
    let timed = |step| Timed { called: call.called, returned, step };
    match (&call.op, &call.answer) {
        (BlockOp::Write { number, .. }, _) => {
            let again = header.twice(call).then(|| timed(Access::Again(*number)));
            std::iter::once(timed(Access::Write(*number))).chain(again).collect()
        }
        (BlockOp::Read { .. }, Ok(BlockAnswer::Runs(runs))) => {
            within(runs, &(byte..byte + 1)).into_iter().map(|number| timed(Access::Read(number))).collect()
        }
        (BlockOp::Read { .. }, _) => vec![],
    }
}

/// The numbers of a piece of what was read.
fn within(runs: &[(u64, u8)], piece: &Range) -> Vec<u8> {
    let mut at = 0;
    let mut found = Vec::new();
    for (len, number) in runs {
        if at < piece.end && at + len > piece.start {
            found.push(*number);
        }
        at += len;
    }
    found
}

/// Without the writes that may not have happened and that nobody saw: no order needs them.
fn seen_alone(mut steps: Vec<Timed<Access>>) -> Vec<Timed<Access>> {
    let seen: Vec<u8> =
        steps.iter().filter_map(|s| if let Access::Read(n) = s.step { Some(n) } else { None }).collect();
    steps.retain(|s| match &s.step {
        Access::Write(number) => s.returned.is_some() || seen.contains(number),
        Access::Again(number) => seen.contains(number),
        Access::Read(_) => true,
    });
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::history::Call;

    #[test]
    fn a_block_is_cut_at_the_borders_of_stripe_units() {
        assert_eq!(pieces(0, 1), vec![0..1; 1]);
        assert_eq!(pieces(STRIPE_UNIT - 4096, 8192), [0..4096, 4096..8192]);
        assert_eq!(pieces(STRIPE_UNIT, 5), vec![0..5; 1]);
        assert_eq!(pieces(STRIPE_UNIT - 5, 5), vec![0..5; 1]);
    }

    #[test]
    fn a_block_may_be_torn_beside_a_write_only() {
        let call = |called, returned, op, answer| Call {
            thread: 0,
            mount: 0,
            called,
            returned,
            op,
            answer: Ok(answer),
        };
        let write = |called, returned, block, number| {
            call(called, returned, BlockOp::Write { block, number, open: false }, BlockAnswer::Written)
        };
        let read = |called, block, runs: &[(u64, u8)]| {
            let op = BlockOp::Read { block, open: false };
            call(called, called + 1, op, BlockAnswer::Runs(runs.to_vec()))
        };
        let wrong = |calls: &[CallOf<Blocks>]| {
            let header =
                Header { kind: "blocks".into(), seed: 0, round: 0, faults: vec![], client_killed: false };
            Blocks::judge(&header, calls).wrong.len()
        };
        let (one, two) = (write(0, 4, 3, 1), write(0, 4, 3, 2));
        assert_eq!(wrong(&[one.clone(), read(2, 3, &[(4000, 1), (96, 0)])]), 0);
        // Its last byte is old, and it is torn.
        assert_eq!(wrong(&[one.clone(), read(5, 3, &[(4000, 1), (96, 0)])]), 2);
        assert_eq!(wrong(&[one.clone(), two.clone(), read(5, 3, &[(4096, 2)])]), 0);
        assert_eq!(wrong(&[one, two, read(5, 3, &[(4000, 1), (96, 2)])]), 1);
        // Across stripe units each is by itself.
        let both = [write(0, 4, 7, 1), write(0, 4, 7, 2)];
        assert_eq!(wrong(&[&both[..], &[read(5, 7, &[(4096, 1), (4096, 2)])]].concat()), 0);
        assert_eq!(wrong(&[&both[..], &[read(5, 7, &[(4096, 1), (4096, 0)])]].concat()), 3);
    }
}
