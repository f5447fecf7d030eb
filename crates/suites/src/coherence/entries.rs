//! Names in two directories: made, linked, renamed over each other, exchanged, removed, looked at and listed through all mounts,
//! held against [`entries_model`](super::entries_model).
//!
//! A call of Linux with a path is not one step: the kernel looks the name up and then does something to what it found, and another
//! client may come in between. The steps of each call are in [`steps`].

use std::{
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use super::{
    CallOf, Judgement, Performed, Workload,
    entries_model::{Entries, Step},
    entry::{At, DIRS, EntryAnswer, EntryOp, NAMES, Refusal},
    history::{Clock, Header},
    linear::Timed,
};
use crate::{op::RenameKind, random::Random};
use anyhow::{Context, Result};
use rustix::{
    fs::{self, AtFlags, Dir, FileType, Mode, OFlags, RenameFlags},
    io::Errno,
};

/// The one name below a directory that comes and goes.
const BELOW: &str = "below";

pub struct Names {
    dirs: Vec<PathBuf>,
    mode: AtomicU32,
}

pub struct Hand {
    dirs: Vec<OwnedFd>,
}

fn name(at: At) -> String {
    format!("n{}", at.name)
}

impl Workload for Names {
    const KIND: &'static str = "names";
    type Op = EntryOp;
    type Answer = EntryAnswer;
    type Hand = Hand;

    fn prepare(dirs: Vec<PathBuf>, _random: &mut Random) -> Result<Names> {
        for dir in 0..DIRS {
            std::fs::create_dir(dirs[0].join(format!("d{dir}")))?;
        }
        Ok(Names { dirs, mode: AtomicU32::new(0) })
    }

    fn hand(&self, mount: usize) -> Result<Hand> {
        let open = |dir| {
            let path = self.dirs[mount].join(format!("d{dir}"));
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            fs::open(&path, flags, Mode::empty()).context("open a directory of the round")
        };
        Ok(Hand { dirs: (0..DIRS).map(open).collect::<Result<_>>()? })
    }

    fn draw(&self, random: &mut Random) -> EntryOp {
        let at = draw_at(random);
        let mode = (self.mode.fetch_add(1, Ordering::Relaxed) % 0o1000) as u16;
        match random.below(100) {
            0..18 => EntryOp::Create { at, mode },
            18..24 => EntryOp::Mkdir { at, mode },
            24..34 => EntryOp::Unlink { at },
            34..39 => EntryOp::Rmdir { at },
            39..59 => {
                let mut to = draw_at(random);
                if to == at {
                    to.name = (to.name + 1) % NAMES;
                }
                let kinds =
                    [RenameKind::Replace, RenameKind::Replace, RenameKind::NoReplace, RenameKind::Exchange];
                let kind = random.pick(&kinds).copied().unwrap_or(RenameKind::Replace);
                EntryOp::Rename { from: at, to, kind }
            }
            59..67 => EntryOp::Link { from: at, to: draw_at(random) },
            67..80 => EntryOp::Stat { at },
            80..85 => EntryOp::Chmod { at, mode },
            85..89 => EntryOp::Truncate { at, size: random.below(1 << 20) },
            89..93 => EntryOp::List { dir: at.dir },
            93..97 => EntryOp::CreateBelow { at, mode },
            _ => EntryOp::UnlinkBelow { at },
        }
    }

    fn perform(&self, hand: &mut Hand, op: &EntryOp, clock: Clock) -> Performed<EntryAnswer> {
        let done = clock.time(|| perform(hand, op));
        let (called, returned, result) = done;
        let result =
            result.or_else(|errno| refusal(errno).map(EntryAnswer::Refused)).map_err(io::Error::from);
        Performed::of((called, returned, result), |answer| answer)
    }

    fn judge(header: &Header, calls: &[CallOf<Names>]) -> Judgement {
        let mut judgement = Judgement::default();
        judgement.add_unanswered(header, calls);
        let mut all = Vec::new();
        for (number, call) in calls.iter().enumerate() {
            all.extend(steps(header, number as u32, call, seen_of(&call.op, calls)));
        }
        judgement.add("names", &Entries, &all);
        judgement
    }
}

fn draw_at(random: &mut Random) -> At {
    At { dir: random.below(u64::from(DIRS)) as u8, name: random.below(u64::from(NAMES)) as u8 }
}

fn perform(hand: &Hand, op: &EntryOp) -> rustix::io::Result<EntryAnswer> {
    let dir = |at: &At| &hand.dirs[usize::from(at.dir)];
    let bits = |mode: u16| Mode::from_bits_truncate(u32::from(mode));
    let create = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    match op {
        EntryOp::Create { at, mode } => drop(fs::openat(dir(at), name(*at), create, bits(*mode))?),
        EntryOp::Mkdir { at, mode } => fs::mkdirat(dir(at), name(*at), bits(*mode))?,
        EntryOp::Unlink { at } => fs::unlinkat(dir(at), name(*at), AtFlags::empty())?,
        EntryOp::Rmdir { at } => fs::unlinkat(dir(at), name(*at), AtFlags::REMOVEDIR)?,
        EntryOp::Rename { from, to, kind } => {
            let flags = match kind {
                RenameKind::Replace => RenameFlags::empty(),
                RenameKind::NoReplace => RenameFlags::NOREPLACE,
                RenameKind::Exchange => RenameFlags::EXCHANGE,
            };
            fs::renameat_with(dir(from), name(*from), dir(to), name(*to), flags)?;
        }
        EntryOp::Link { from, to } => {
            fs::linkat(dir(from), name(*from), dir(to), name(*to), AtFlags::empty())?;
        }
        EntryOp::Stat { at } => return look(dir(at), &name(*at)),
        EntryOp::Chmod { at, mode } => fs::chmodat(dir(at), name(*at), bits(*mode), AtFlags::empty())?,
        EntryOp::Truncate { at, size } => {
            let file = fs::openat(dir(at), name(*at), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            fs::ftruncate(&file, *size)?;
        }
        EntryOp::List { dir: number } => return list(&hand.dirs[usize::from(*number)]),
        EntryOp::CreateBelow { at, mode } => {
            drop(fs::openat(dir(at), format!("{}/{BELOW}", name(*at)), create, bits(*mode))?);
        }
        EntryOp::UnlinkBelow { at } => {
            fs::unlinkat(dir(at), format!("{}/{BELOW}", name(*at)), AtFlags::empty())?;
        }
    }
    Ok(EntryAnswer::Done)
}

fn look(dir: &OwnedFd, name: &str) -> rustix::io::Result<EntryAnswer> {
    let seen = fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let mode = (seen.st_mode & 0o7777) as u16;
    if FileType::from_raw_mode(seen.st_mode) == FileType::Directory {
        return Ok(EntryAnswer::Directory { mode });
    }
    let (links, size) = (u32::try_from(seen.st_nlink), u64::try_from(seen.st_size));
    Ok(EntryAnswer::File { mode, links: links.unwrap_or(u32::MAX), size: size.unwrap_or(u64::MAX) })
}

fn list(dir: &OwnedFd) -> rustix::io::Result<EntryAnswer> {
    let mut names = Vec::new();
    // An opening of its own: a listing begins at the beginning.
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        // Names that nobody made are told apart by a number that is none of ours.
        match entry.file_name().to_bytes() {
            b"." | b".." => {}
            [b'n', digit] if digit.is_ascii_digit() => names.push(digit - b'0'),
            _ => names.push(u8::MAX),
        }
    }
    names.sort_unstable();
    Ok(EntryAnswer::Names(names))
}

fn refusal(errno: Errno) -> Result<Refusal, Errno> {
    Ok(match errno {
        Errno::NOENT => Refusal::NotThere,
        Errno::EXIST => Refusal::There,
        Errno::ISDIR => Refusal::IsDirectory,
        Errno::NOTDIR => Refusal::NotDirectory,
        Errno::NOTEMPTY => Refusal::NotEmpty,
        Errno::PERM => Refusal::NotPermitted,
        Errno::STALE => Refusal::Moved,
        other => return Err(other),
    })
}

/// Did anybody see the size or the mode that this sets? One that nobody saw may as well not have been set.
fn seen_of(op: &EntryOp, calls: &[CallOf<Names>]) -> bool {
    calls.iter().any(|call| match (op, &call.answer) {
        (EntryOp::Truncate { size: set, .. }, Ok(EntryAnswer::File { size, .. })) => size == set,
        (
            EntryOp::Chmod { mode: set, .. },
            Ok(EntryAnswer::File { mode, .. } | EntryAnswer::Directory { mode }),
        ) => mode == set,
        (EntryOp::Truncate { .. } | EntryOp::Chmod { .. }, _) => false,
        _ => true,
    })
}

/// What a call is made of: each step happens at one moment between its call and its return.
fn steps(header: &Header, number: u32, call: &CallOf<Names>, seen: bool) -> Vec<Timed<Step>> {
    let returned = call.answer.is_ok().then_some(call.returned);
    let timed = |step, returned| Timed { called: call.called, returned, step };
    let mut found: Vec<_> = match &call.answer {
        Ok(answer) => Step::of(number, &call.op, answer),
        Err(_) if !seen => vec![],
        Err(_) => Step::unanswered(number, &call.op),
    }
    .into_iter()
    .map(|step| timed(step, returned))
    .collect();
    if seen && header.twice(call) {
        // A number that no other call has.
        let again = Step::unanswered(number + (1 << 20), &call.op);
        found.extend(again.into_iter().map(|step| timed(Step::Perhaps(Box::new(step)), returned)));
    }
    found
}
