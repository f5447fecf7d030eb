//! `flock` through all mounts: each section of the program under an exclusive lock counts up a number in the file, others look at
//! it under a shared one. Where clients do not see each other's locks (S-174) there is nothing to test.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::{
    CallOf, Judgement, Performed, Workload,
    history::{Clock, Header},
};
use crate::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockOp {
    /// The number is read, and one more is written.
    Count,
    /// The number is read twice, under a shared lock.
    Look,
}

/// Within the lock: from when to when, and the number at both times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    pub from: u64,
    pub to: u64,
    pub first: u64,
    pub last: u64,
}

pub struct Locks {
    dirs: Vec<PathBuf>,
}

impl Workload for Locks {
    const KIND: &'static str = "locks";
    type Op = LockOp;
    type Answer = Section;
    type Hand = File;

    fn missing(mounts: &[PathBuf]) -> Result<Option<&'static str>> {
        let (Some(first), Some(last)) = (mounts.first(), mounts.last()) else { return Ok(None) };
        let name = format!("lock-probe-{}", std::process::id());
        std::fs::write(first.join(&name), "")?;
        let (one, other) = (open(&first.join(&name))?, open(&last.join(&name))?);
        flock(&one, FlockOperation::LockExclusive)?;
        let seen = flock(&other, FlockOperation::NonBlockingLockExclusive).is_err();
        std::fs::remove_file(first.join(&name))?;
        Ok((!seen).then_some("clients do not see each other's locks (S-174)"))
    }

    fn prepare(dirs: Vec<PathBuf>, _random: &mut Random) -> Result<Locks> {
        std::fs::write(dirs[0].join("lock"), 0u64.to_le_bytes())?;
        Ok(Locks { dirs })
    }

    fn hand(&self, mount: usize) -> Result<File> {
        open(&self.dirs[mount].join("lock")).context("open the file of the round")
    }

    fn draw(&self, random: &mut Random) -> LockOp {
        if random.chance(60) { LockOp::Count } else { LockOp::Look }
    }

    fn perform(&self, file: &mut File, op: &LockOp, clock: Clock) -> Performed<Section> {
        Performed::of(clock.time(|| section(file, *op, clock)), |section| section)
    }

    fn judge(header: &Header, calls: &[CallOf<Locks>]) -> Judgement {
        let mut judgement = Judgement { objects: 1, ..Judgement::default() };
        judgement.add_unanswered(header, calls);
        let mut sections: Vec<(LockOp, Section)> =
            calls.iter().filter_map(|c| c.answer.as_ref().ok().map(|section| (c.op, *section))).collect();
        sections.sort_by_key(|(_, section)| section.from);
        judgement.wrong.extend(overlaps(&sections));
        judgement.wrong.extend(miscounts(&sections));
        judgement
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

fn section(file: &File, op: LockOp, clock: Clock) -> io::Result<Section> {
    let kind = match op {
        LockOp::Count => FlockOperation::LockExclusive,
        LockOp::Look => FlockOperation::LockShared,
    };
    flock(file, kind)?;
    let from = clock.now();
    let first = number(file)?;
    let last = match op {
        LockOp::Count => {
            file.write_all_at(&(first + 1).to_le_bytes(), 0)?;
            first + 1
        }
        LockOp::Look => number(file)?,
    };
    let to = clock.now();
    flock(file, FlockOperation::Unlock)?;
    Ok(Section { from, to, first, last })
}

fn number(file: &File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Nobody is beside who has it exclusively. In the order of their beginnings.
fn overlaps(sections: &[(LockOp, Section)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (at, (op, one)) in sections.iter().enumerate() {
        let beside = sections[at + 1..].iter().take_while(|(_, other)| other.from < one.to);
        for (other_op, other) in beside.filter(|(other, _)| *op == LockOp::Count || *other == LockOp::Count) {
            wrong.push(format!("two sections at once: {op:?} {one:?} and {other_op:?} {other:?}"));
        }
    }
    wrong
}

/// Each section sees the number that the one before it left.
fn miscounts(sections: &[(LockOp, Section)]) -> Vec<String> {
    let mut number = 0;
    let mut wrong = Vec::new();
    for (op, section) in sections {
        let wanted = match op {
            LockOp::Count => (number, number + 1),
            LockOp::Look => (number, number),
        };
        if (section.first, section.last) != wanted {
            wrong.push(format!("{op:?} {section:?} after the number was {number}"));
        }
        number = section.last;
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_at_once_and_lost_counts_are_told() {
        let section = |from, to, first, last| Section { from, to, first, last };
        let (count, look) = (LockOp::Count, LockOp::Look);
        let wrong = |sections: &[(LockOp, Section)]| overlaps(sections).len() + miscounts(sections).len();
        assert_eq!(wrong(&[(count, section(0, 5, 0, 1)), (count, section(6, 9, 1, 2))]), 0);
        assert_eq!(wrong(&[(look, section(0, 5, 0, 0)), (look, section(3, 9, 0, 0))]), 0);
        assert_eq!(wrong(&[(count, section(0, 5, 0, 1)), (look, section(3, 9, 1, 1))]), 1);
        assert_eq!(wrong(&[(count, section(0, 5, 0, 1)), (count, section(6, 9, 0, 1))]), 1);
    }
}
