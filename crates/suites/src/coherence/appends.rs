//! Records that all mounts append to one file, up to what is one piece (S-172), and its size meanwhile. Afterwards every
//! answered record is there once and whole, nothing else is, and they lie in the order of real time.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Write,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{
    CallOf, Judgement, Performed, Workload,
    history::{Call, Clock, Header},
};
use crate::random::{Random, pattern};

/// From a buffer that begins anywhere in a page.
const PIECE_MAX: u64 = (1 << 20) - 4096;
/// A record is this byte, its number, its length and a pattern, which has no zeros.
const MARK: u8 = 0xa5;
const HEAD: usize = 9;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppendOp {
    Append {
        number: u32,
        len: u32,
    },
    Look,
    /// At the end.
    ReadAll,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppendAnswer {
    Appended,
    Size(u64),
    Found(Vec<Part>),
}

/// What follows what in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    Record {
        number: u32,
        len: u32,
    },
    Zeros(u64),
    /// Neither.
    Else(u64),
}

pub struct Appends {
    dirs: Vec<PathBuf>,
    next: AtomicU32,
}

impl Workload for Appends {
    const KIND: &'static str = "appends";
    type Op = AppendOp;
    type Answer = AppendAnswer;
    type Hand = File;

    fn prepare(dirs: Vec<PathBuf>, _random: &mut Random) -> Result<Appends> {
        File::create(dirs[0].join("log"))?;
        Ok(Appends { dirs, next: AtomicU32::new(1) })
    }

    fn hand(&self, mount: usize) -> Result<File> {
        File::options().append(true).open(self.dirs[mount].join("log")).context("open the log of the round")
    }

    fn draw(&self, random: &mut Random) -> AppendOp {
        if random.chance(25) {
            return AppendOp::Look;
        }
        let most = if random.chance(3) { PIECE_MAX } else { 200_000 };
        let len = (random.log_below(most) as u32).max(HEAD as u32);
        AppendOp::Append { number: self.next.fetch_add(1, Ordering::Relaxed), len }
    }

    fn perform(&self, file: &mut File, op: &AppendOp, clock: Clock) -> Performed<AppendAnswer> {
        match op {
            AppendOp::Append { number, len } => {
                let bytes = record(*number, *len);
                let done = clock.time(|| match file.write(&bytes) {
                    Ok(done) if done < bytes.len() => {
                        Err(std::io::Error::other(format!("{done} of {len} bytes")))
                    }
                    other => other,
                });
                Performed::of(done, |_| AppendAnswer::Appended)
            }
            AppendOp::Look => {
                Performed::of(clock.time(|| file.metadata()), |seen| AppendAnswer::Size(seen.len()))
            }
            AppendOp::ReadAll => {
                let path = self.dirs[0].join("log");
                Performed::of(clock.time(|| std::fs::read(path)), |bytes| AppendAnswer::Found(parts(&bytes)))
            }
        }
    }

    fn look_back(&self, clock: Clock) -> Result<Vec<CallOf<Appends>>> {
        let done = self.perform(&mut self.hand(0)?, &AppendOp::ReadAll, clock);
        let Performed { called, returned, answer } = done;
        Ok(vec![Call { thread: 0, mount: 0, called, returned, op: AppendOp::ReadAll, answer }])
    }

    fn judge(header: &Header, calls: &[CallOf<Appends>]) -> Judgement {
        let mut judgement = Judgement { objects: 1, ..Judgement::default() };
        judgement.add_unanswered(header, calls);
        let all = calls.iter().find_map(|c| match &c.answer {
            Ok(AppendAnswer::Found(parts)) => Some(parts),
            Ok(_) | Err(_) => None,
        });
        let Some(parts) = all else {
            judgement.wrong.push("the file could not be read at the end".to_owned());
            return judgement;
        };
        let file = Layout::new(parts);
        judgement.wrong.extend(records_that_are_wrong(calls, &file));
        if calls.iter().all(|c| c.answer.is_ok()) && header.faults.is_empty() {
            judgement.wrong.extend(file.foreign.iter().map(|(at, part)| format!("{part:?} at {at}")));
        } else {
            // A range that was given out and not written is a hole (S-164); a write that was cut short is there in part.
            let torn = file.foreign.iter().filter(|(_, part)| matches!(part, Part::Else(_)));
            let unanswered = calls.iter().filter(|c| c.answer.is_err() || header.twice(c)).count();
            if torn.clone().count() > unanswered {
                judgement.wrong.extend(torn.map(|(at, part)| format!("{part:?} at {at}")));
            }
        }
        judgement.wrong.extend(against_real_time(calls, &file));
        judgement.wrong.extend(sizes_that_are_wrong(calls, &file));
        judgement
    }
}

fn record(number: u32, len: u32) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    bytes[0] = MARK;
    bytes[1..5].copy_from_slice(&number.to_le_bytes());
    bytes[5..9].copy_from_slice(&len.to_le_bytes());
    pattern(number, 0, &mut bytes[HEAD..]);
    bytes
}

fn parts(mut bytes: &[u8]) -> Vec<Part> {
    let mut found: Vec<Part> = Vec::new();
    while !bytes.is_empty() {
        let zeros = bytes.iter().take_while(|b| **b == 0).count();
        if zeros > 0 {
            found.push(Part::Zeros(zeros as u64));
            bytes = &bytes[zeros..];
        } else if let Some((number, len)) = whole_record(bytes) {
            found.push(Part::Record { number, len });
            bytes = &bytes[len as usize..];
        } else {
            match found.last_mut() {
                Some(Part::Else(count)) => *count += 1,
                Some(Part::Record { .. } | Part::Zeros(_)) | None => found.push(Part::Else(1)),
            }
            bytes = &bytes[1..];
        }
    }
    found
}

fn whole_record(bytes: &[u8]) -> Option<(u32, u32)> {
    let (head, _) = bytes.split_first_chunk::<HEAD>()?;
    let number = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    let len = u32::from_le_bytes([head[5], head[6], head[7], head[8]]);
    if head[0] != MARK || u64::from(len) > PIECE_MAX || (len as usize) < HEAD {
        return None;
    }
    (*bytes.get(..len as usize)? == record(number, len)).then_some((number, len))
}

/// Where the records lie.
struct Layout {
    /// Offset and end, by number.
    places: BTreeMap<u32, (u64, u64)>,
    twice: Vec<u32>,
    foreign: Vec<(u64, Part)>,
}

impl Layout {
    fn new(parts: &[Part]) -> Layout {
        let mut layout = Layout { places: BTreeMap::new(), twice: Vec::new(), foreign: Vec::new() };
        let mut at = 0;
        for part in parts {
            let len = match part {
                Part::Record { number, len } => {
                    if layout.places.insert(*number, (at, at + u64::from(*len))).is_some() {
                        layout.twice.push(*number);
                    }
                    u64::from(*len)
                }
                Part::Zeros(len) | Part::Else(len) => {
                    layout.foreign.push((at, *part));
                    *len
                }
            };
            at += len;
        }
        layout
    }
}

fn records_that_are_wrong(calls: &[CallOf<Appends>], file: &Layout) -> Vec<String> {
    let twice = file.twice.iter().map(|number| format!("record {number} is there twice"));
    let lost = calls.iter().filter_map(|c| match c.op {
        AppendOp::Append { number, len } if c.answer.is_ok() && !file.places.contains_key(&number) => Some(
            format!("record {number} of {len} bytes, appended through mount {}, is lost or torn", c.mount),
        ),
        AppendOp::Append { .. } | AppendOp::Look | AppendOp::ReadAll => None,
    });
    twice.chain(lost).collect()
}

/// A record that was answered before another was called lies before it.
fn against_real_time(calls: &[CallOf<Appends>], file: &Layout) -> Vec<String> {
    let mut placed: Vec<(u64, u32, &CallOf<Appends>)> = calls
        .iter()
        .filter_map(|c| match c.op {
            AppendOp::Append { number, .. } => file.places.get(&number).map(|(at, _)| (*at, number, c)),
            AppendOp::Look | AppendOp::ReadAll => None,
        })
        .collect();
    placed.sort_by_key(|(at, _, _)| *at);
    let mut latest: Option<(u64, u32)> = None;
    let mut wrong = Vec::new();
    for (at, number, call) in placed {
        if let Some((called, earlier)) = latest
            && call.answer.is_ok()
            && call.returned < called
        {
            wrong.push(format!(
                "record {number} at {at} was answered before {earlier} was begun, which lies before it"
            ));
        }
        latest = latest.max(Some((call.called, number)));
    }
    wrong
}

/// A size is at least the end of what was answered before, and at most the end of what was begun.
fn sizes_that_are_wrong(calls: &[CallOf<Appends>], file: &Layout) -> Vec<String> {
    let ends = |before: &dyn Fn(&CallOf<Appends>) -> bool| {
        let chosen = calls.iter().filter(|c| before(c)).filter_map(|c| match c.op {
            AppendOp::Append { number, .. } => file.places.get(&number).map(|(_, end)| *end),
            AppendOp::Look | AppendOp::ReadAll => None,
        });
        chosen.max().unwrap_or(0)
    };
    let all_known = calls.iter().all(|c| c.answer.is_ok());
    let mut wrong = Vec::new();
    for look in calls {
        let Ok(AppendAnswer::Size(size)) = look.answer else { continue };
        let least = ends(&|c| c.answer.is_ok() && c.returned < look.called);
        let most = ends(&|c| c.called < look.returned);
        if size < least || (all_known && size > most) {
            wrong.push(format!(
                "a size of {size} was seen through mount {} at {} us; {least} to {most} are right",
                look.mount,
                look.called / 1000
            ));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header =
        Header { kind: String::new(), seed: 0, round: 0, faults: vec![], client_killed: false };

    fn call(called: u64, op: AppendOp, answer: AppendAnswer) -> CallOf<Appends> {
        Call { thread: 0, mount: 0, called, returned: called + 5, op, answer: Ok(answer) }
    }
    fn append(called: u64, number: u32) -> CallOf<Appends> {
        call(called, AppendOp::Append { number, len: 100 }, AppendAnswer::Appended)
    }
    fn wrong(calls: &[CallOf<Appends>], bytes: &[u8]) -> usize {
        let all = call(1000, AppendOp::ReadAll, AppendAnswer::Found(parts(bytes)));
        let calls: Vec<_> = calls.iter().cloned().chain([all]).collect();
        Appends::judge(&HEADER, &calls).wrong.len()
    }

    #[test]
    fn lost_torn_doubled_and_late_records_are_told() {
        let (one, two) = (record(1, 100), record(2, 100));
        let in_turn = [append(0, 1), append(10, 2)];
        let together = [append(0, 1), append(3, 2)];
        assert_eq!(wrong(&in_turn, &[one.clone(), two.clone()].concat()), 0);
        assert_eq!(wrong(&together, &[two.clone(), one.clone()].concat()), 0);
        assert_eq!(wrong(&in_turn, &[two.clone(), one.clone()].concat()), 1, "the wrong order");
        assert_eq!(wrong(&in_turn, &one), 1, "lost");
        assert_eq!(wrong(&in_turn, &[one.clone(), two.clone(), two.clone()].concat()), 1, "twice");
        assert_eq!(wrong(&in_turn, &[one.clone(), vec![0; 5], two.clone()].concat()), 1, "a hole");
        let mut torn = two;
        torn[50] = 0;
        assert!(wrong(&in_turn, &[one, torn].concat()) > 0, "torn");
    }

    #[test]
    fn a_size_lies_between_what_is_answered_and_what_is_begun() {
        let bytes = [record(1, 100), record(2, 100)].concat();
        let with = |size| {
            let look = call(7, AppendOp::Look, AppendAnswer::Size(size));
            wrong(&[append(0, 1), append(10, 2), look], &bytes)
        };
        assert_eq!([with(99), with(100), with(200), with(201)], [1, 0, 0, 1]);
    }
}
