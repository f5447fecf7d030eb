//! One sparse file: short writes at both ends of stripe units, cuts and growth, its size through `fstat`, what reads give, and a time of
//! modification that never goes back.
//!
//! A change of size reaches one stripe after the other, so a read or write beside it may come between (S-170). Therefore two kinds
//! of rounds: in some nothing is called while a size is set, and the file is one object of a size and cells; in the others
//! each cell is an object of its own, and when all is over both mounts must see one and the same file.

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, Result};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::{
    CallOf, Judgement, Performed, Workload,
    history::{Call, Clock, Header},
    linear::{Model, Timed},
};
use crate::random::Random;

const STRIPE_UNIT: u64 = 4 << 20;
/// Each holds a number of eight bytes: all of it is there, or nothing.
const CELLS: [u64; 6] =
    [0, 100_000, STRIPE_UNIT - 8, STRIPE_UNIT, 2 * STRIPE_UNIT + 4096, 3 * STRIPE_UNIT - 8];
const CELL: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LengthOp {
    Write {
        cell: usize,
        number: u64,
    },
    Read {
        cell: usize,
    },
    /// `alone`: nothing else is called meanwhile.
    SetSize {
        size: u64,
        alone: bool,
    },
    Look,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LengthAnswer {
    Done,
    /// Behind the end: no byte.
    End,
    Number(u64),
    /// Some bytes of a cell, which no size cuts.
    Part(usize),
    Looked {
        size: u64,
        modified_ns: i128,
    },
}

pub struct Lengths {
    dirs: Vec<PathBuf>,
    next: AtomicU64,
    in_turn: bool,
    /// Held alone to set a size in such a round.
    turn: RwLock<()>,
}

impl Workload for Lengths {
    const KIND: &'static str = "lengths";
    type Op = LengthOp;
    type Answer = LengthAnswer;
    type Hand = File;

    fn prepare(dirs: Vec<PathBuf>, random: &mut Random) -> Result<Lengths> {
        File::create(dirs[0].join("length"))?;
        Ok(Lengths { dirs, next: AtomicU64::new(1), in_turn: random.chance(50), turn: RwLock::new(()) })
    }

    fn hand(&self, mount: usize) -> Result<File> {
        let path = self.dirs[mount].join("length");
        File::options().read(true).write(true).open(path).context("open the file of the round")
    }

    fn draw(&self, random: &mut Random) -> LengthOp {
        let cell = random.below(CELLS.len() as u64) as usize;
        match random.below(100) {
            0..30 => LengthOp::Write { cell, number: self.next.fetch_add(1, Ordering::Relaxed) },
            30..55 => LengthOp::Read { cell },
            55..75 => {
                let end = if random.chance(50) { 0 } else { CELL };
                LengthOp::SetSize { size: CELLS[cell] + end, alone: self.in_turn }
            }
            _ => LengthOp::Look,
        }
    }

    fn perform(&self, file: &mut File, op: &LengthOp, clock: Clock) -> Performed<LengthAnswer> {
        let (_alone, _beside) = match op {
            LengthOp::SetSize { alone: true, .. } => (Some(self.turn.write()), None),
            LengthOp::SetSize { alone: false, .. }
            | LengthOp::Write { .. }
            | LengthOp::Read { .. }
            | LengthOp::Look => (None, Some(self.turn.read())),
        };
        match op {
            LengthOp::Write { cell, number } => {
                let done = clock.time(|| file.write_all_at(&number.to_le_bytes(), CELLS[*cell]));
                Performed::of(done, |()| LengthAnswer::Done)
            }
            LengthOp::Read { cell } => {
                let mut bytes = [0; CELL as usize];
                let done = clock.time(|| file.read_at(&mut bytes, CELLS[*cell]));
                Performed::of(done, |len| match len {
                    0 => LengthAnswer::End,
                    8 => LengthAnswer::Number(u64::from_le_bytes(bytes)),
                    part => LengthAnswer::Part(part),
                })
            }
            LengthOp::SetSize { size, .. } => {
                Performed::of(clock.time(|| file.set_len(*size)), |()| LengthAnswer::Done)
            }
            LengthOp::Look => Performed::of(clock.time(|| file.metadata()), |seen| {
                let modified_ns = i128::from(seen.mtime()) * 1_000_000_000 + i128::from(seen.mtime_nsec());
                LengthAnswer::Looked { size: seen.len(), modified_ns }
            }),
        }
    }

    fn look_back(&self, clock: Clock) -> Result<Vec<CallOf<Lengths>>> {
        let mut calls = Vec::new();
        for mount in 0..self.dirs.len() {
            let mut file = self.hand(mount)?;
            let reads = (0..CELLS.len()).map(|cell| LengthOp::Read { cell });
            for op in std::iter::once(LengthOp::Look).chain(reads) {
                let Performed { called, returned, answer } = self.perform(&mut file, &op, clock);
                // No thread of the round has this number.
                calls.push(Call { thread: u32::MAX, mount, called, returned, op, answer });
            }
        }
        Ok(calls)
    }

    fn judge(header: &Header, calls: &[CallOf<Lengths>]) -> Judgement {
        let mut judgement = Judgement::default();
        judgement.add_unanswered(header, calls);
        let racing = calls.iter().any(|c| matches!(c.op, LengthOp::SetSize { alone: false, .. }));
        if racing || !header.faults.is_empty() || header.client_killed {
            for cell in 0..CELLS.len() {
                let concerned = calls.iter().filter(|c| concerns(&c.op, cell));
                let steps: Vec<_> = concerned.flat_map(|call| steps(header, call)).collect();
                judgement.add(&format!("cell {cell}"), &Cell, &steps);
            }
        } else {
            let steps: Vec<_> = calls.iter().flat_map(|call| steps(header, call)).collect();
            judgement.add("size and cells", &Length, &steps);
        }
        judgement.wrong.extend(not_one_file(calls));
        judgement.wrong.extend(times_that_went_back(calls));
        judgement
    }
}

/// When all is over, every size is the same, and each read fits it.
fn not_one_file(calls: &[CallOf<Lengths>]) -> Vec<String> {
    let last = calls.iter().filter(|c| c.thread == u32::MAX);
    let mut sizes = last.clone().filter_map(|c| match c.answer {
        Ok(LengthAnswer::Looked { size, .. }) => Some(size),
        Ok(_) | Err(_) => None,
    });
    let Some(first) = sizes.next() else { return Vec::new() };
    let other = sizes.find(|size| *size != first);
    let misfits = last.filter_map(|c| match (c.op, c.answer.as_ref()) {
        (LengthOp::Read { cell }, Ok(answer)) => {
            let fits = (*answer == LengthAnswer::End) == (CELLS[cell] >= first);
            (!fits).then(|| format!("at the end cell {cell} reads as {answer:?} in a file of {first} bytes"))
        }
        _ => None,
    });
    other
        .map(|size| format!("at the end one mount shows {first} bytes, another {size}"))
        .into_iter()
        .chain(misfits)
        .collect()
}

/// Does the operation say or change what this cell holds?
fn concerns(op: &LengthOp, cell: usize) -> bool {
    match op {
        LengthOp::Write { cell: at, .. } | LengthOp::Read { cell: at } => *at == cell,
        LengthOp::SetSize { size, .. } => *size <= CELLS[cell],
        LengthOp::Look => false,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Answered(LengthOp, LengthAnswer),
    /// Made a second time, or not.
    Again(LengthOp),
}

impl Step {
    fn looks(&self) -> bool {
        matches!(self, Step::Answered(LengthOp::Read { .. } | LengthOp::Look, _))
    }
}

fn steps(header: &Header, call: &CallOf<Lengths>) -> Vec<Timed<Step>> {
    let looks = matches!(call.op, LengthOp::Read { .. } | LengthOp::Look);
    let returned = call.answer.is_ok().then_some(call.returned);
    let timed = |step| Timed { called: call.called, returned, step };
    let first = match &call.answer {
        Ok(answer) => Some(timed(Step::Answered(call.op, *answer))),
        Err(_) if looks => None,
        Err(_) => Some(timed(Step::Answered(call.op, LengthAnswer::Done))),
    };
    let again = (!looks && header.twice(call)).then(|| timed(Step::Again(call.op)));
    first.into_iter().chain(again).collect()
}

/// The size and what the cells hold; a cell of zeros is not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    size: u64,
    cells: BTreeMap<usize, u64>,
}

struct Length;

impl Model for Length {
    type State = State;
    type Step = Step;
    fn begin(&self) -> State {
        State::default()
    }
    fn next(&self, state: &State, step: &Step) -> Vec<State> {
        let possible = |is: bool| if is { vec![state.clone()] } else { vec![] };
        match step {
            Step::Again(op) => vec![state.clone(), state.after(op)],
            Step::Answered(op @ (LengthOp::Write { .. } | LengthOp::SetSize { .. }), LengthAnswer::Done) => {
                vec![state.after(op)]
            }
            Step::Answered(LengthOp::Read { cell }, answer) => possible(*answer == state.read(*cell)),
            Step::Answered(LengthOp::Look, LengthAnswer::Looked { size, .. }) => {
                possible(*size == state.size)
            }
            Step::Answered(..) => vec![],
        }
    }
    fn looks(&self, step: &Step) -> bool {
        step.looks()
    }
}

impl State {
    fn after(&self, op: &LengthOp) -> State {
        let mut after = self.clone();
        match op {
            LengthOp::Write { cell, number } => {
                after.cells.insert(*cell, *number);
                after.size = after.size.max(CELLS[*cell] + CELL);
            }
            LengthOp::SetSize { size, .. } => {
                after.size = *size;
                after.cells.retain(|cell, _| CELLS[*cell] + CELL <= *size);
            }
            LengthOp::Read { .. } | LengthOp::Look => {}
        }
        after
    }
    fn read(&self, cell: usize) -> LengthAnswer {
        if CELLS[cell] >= self.size {
            return LengthAnswer::End;
        }
        LengthAnswer::Number(self.cells.get(&cell).copied().unwrap_or(0))
    }
}

/// One cell, whatever the size: 0 where nothing was written since it was cut off.
struct Cell;

impl Model for Cell {
    type State = u64;
    type Step = Step;
    fn begin(&self) -> u64 {
        0
    }
    fn next(&self, state: &u64, step: &Step) -> Vec<u64> {
        let after = |op: &LengthOp| match op {
            LengthOp::Write { number, .. } => *number,
            LengthOp::SetSize { .. } => 0,
            LengthOp::Read { .. } | LengthOp::Look => *state,
        };
        match step {
            Step::Again(op) => vec![*state, after(op)],
            Step::Answered(op, LengthAnswer::Done) => vec![after(op)],
            Step::Answered(_, LengthAnswer::Number(number)) if number == state => vec![*state],
            Step::Answered(_, LengthAnswer::End) if *state == 0 => vec![0],
            Step::Answered(..) => vec![],
        }
    }
    fn looks(&self, step: &Step) -> bool {
        step.looks()
    }
}

/// Looks that began after another had ended and saw an earlier time.
fn times_that_went_back(calls: &[CallOf<Lengths>]) -> Vec<String> {
    let looks: Vec<(u64, u64, i128)> = calls
        .iter()
        .filter_map(|c| match c.answer {
            Ok(LengthAnswer::Looked { modified_ns, .. }) => Some((c.called, c.returned, modified_ns)),
            Ok(_) | Err(_) => None,
        })
        .collect();
    let mut wrong = Vec::new();
    for (called, _, modified) in &looks {
        let before = looks.iter().filter(|(_, returned, _)| returned < called);
        if let Some((_, at, latest)) = before.max_by_key(|(_, _, m)| *m).filter(|(_, _, m)| m > modified) {
            wrong.push(format!(
                "the time of modification went back by {} ns, seen at {} us and then at {} us",
                latest - modified,
                at / 1000,
                called / 1000
            ));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(called: u64, op: LengthOp, answer: LengthAnswer) -> CallOf<Lengths> {
        Call { thread: 0, mount: 0, called, returned: called + 5, op, answer: Ok(answer) }
    }
    fn wrong(calls: &[CallOf<Lengths>]) -> usize {
        let header =
            Header { kind: "lengths".into(), seed: 0, round: 0, faults: vec![], client_killed: false };
        Lengths::judge(&header, calls).wrong.len()
    }
    fn looked(size: u64, modified_ns: i128) -> LengthAnswer {
        LengthAnswer::Looked { size, modified_ns }
    }

    #[test]
    fn what_was_cut_off_is_zeros_and_old_sizes_are_wrong() {
        let write = call(0, LengthOp::Write { cell: 1, number: 7 }, LengthAnswer::Done);
        let cut = call(10, LengthOp::SetSize { size: 0, alone: true }, LengthAnswer::Done);
        let grown = call(20, LengthOp::SetSize { size: STRIPE_UNIT, alone: true }, LengthAnswer::Done);
        let read = |number| call(30, LengthOp::Read { cell: 1 }, LengthAnswer::Number(number));
        let history = |number| [write.clone(), cut.clone(), grown.clone(), read(number)];
        assert_eq!(wrong(&history(0)), 0);
        assert_eq!(wrong(&history(7)), 1);
        assert_eq!(wrong(&[write.clone(), call(10, LengthOp::Look, looked(0, 1))]), 1);
        assert_eq!(wrong(&[write, call(10, LengthOp::Look, looked(100_008, 1))]), 0);
    }

    #[test]
    fn beside_cuts_a_cell_keeps_what_was_written_after_them() {
        let write = call(10, LengthOp::Write { cell: 1, number: 7 }, LengthAnswer::Done);
        let cut = |called| call(called, LengthOp::SetSize { size: 8, alone: false }, LengthAnswer::Done);
        let read = |answer| call(30, LengthOp::Read { cell: 1 }, answer);
        assert_eq!(wrong(&[cut(0), write.clone(), read(LengthAnswer::Number(7))]), 0);
        assert_eq!(wrong(&[cut(0), write.clone(), read(LengthAnswer::End)]), 1);
        assert_eq!(wrong(&[cut(20), write.clone(), read(LengthAnswer::Number(7))]), 1);
        assert_eq!(wrong(&[cut(12), write, read(LengthAnswer::Number(0))]), 0);
    }

    #[test]
    fn a_time_that_goes_back_is_wrong() {
        let look = |called, time| call(called, LengthOp::Look, looked(0, time));
        assert_eq!(wrong(&[look(0, 5), look(10, 5), look(20, 6)]), 0);
        assert_eq!(wrong(&[look(0, 5), look(10, 4)]), 1);
        assert_eq!(wrong(&[look(0, 5), look(3, 4)]), 0, "at the same time");
    }
}
