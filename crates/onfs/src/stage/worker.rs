//! A copying thread: takes files and pieces until there are none.

use std::{
    fs::{File, read_link, remove_file, rename, symlink_metadata},
    io,
    os::{
        fd::AsFd,
        unix::fs::{OpenOptionsExt, symlink},
    },
    path::Path,
    sync::Arc,
};

use rustix::fs::{CWD, FileType, Mode, getxattr, mknodat};

use super::{
    attributes::{self, handle},
    buffer::Buffer,
    copying::{Copying, copy_small, noted, sums_of, verify},
    decide::{Action, There, regular, special},
    facts::{Facts, Kind},
    job::{Job, Task},
    known::KnownFile,
    large::{Large, Part, Turn},
    queue::{Next, Queue},
    record::{Record, key_of},
    report::add,
    sum::whole,
    trouble::Trouble,
};
use std::os::unix::ffi::OsStrExt;

pub type Work = Queue<Task, Large>;

/// A source that changes each time it is copied is given up after so many.
const TRIES: u32 = 3;
/// Of the attribute by which ONFS says that data is lost.
const STATE: &str = "user.onfs.state";

pub fn work(job: &Job, queue: &Work) {
    let mut buffer = Buffer::new();
    loop {
        if job.is_stopping() {
            queue.stop();
        }
        let Some(next) = queue.next() else { return };
        match next {
            Next::File(task) => {
                file(job, queue, task, &mut buffer);
                queue.settled();
            }
            Next::Part(large, part) => piece(job, queue, &large, part, &mut buffer),
        }
    }
}

fn file(job: &Job, queue: &Work, task: Task, buffer: &mut Buffer) {
    job.tally.begins(&task.src);
    let done = if task.facts.kind == Kind::Regular {
        regular_file(job, queue, task.clone(), buffer)
    } else {
        other(job, &task)
    };
    if let Err(trouble) = done {
        failed(job, queue, task, trouble);
    }
}

/// Once more, if it only changed; else it is listed.
fn failed(job: &Job, queue: &Work, mut task: Task, trouble: Trouble) {
    task.tries += 1;
    if matches!(trouble, Trouble::Changed) && task.tries < TRIES {
        match symlink_metadata(&task.src) {
            Ok(meta) => {
                task.facts = Facts::of(&meta);
                queue.again(task);
            }
            Err(error) => job.fail(&task.src, &Trouble::Source(error)),
        }
    } else {
        job.fail(&task.src, &trouble);
    }
}

fn regular_file(job: &Job, queue: &Work, task: Task, buffer: &mut Buffer) -> Result<(), Trouble> {
    let known = known(job, &task.dst);
    let there = there(&task.dst).map_err(Trouble::Destination)?;
    let mut action = regular(&task.facts, there.as_ref(), known, job.options.checksum);
    if let Action::Compare | Action::CheckRecorded(_) = action
        && !job.options.dry_run
    {
        action = compared(job, &task, &action, buffer)?;
    }
    match action {
        Action::Refuse(why) => Err(Trouble::Refused(why)),
        Action::Skip => skip(job, &task, there.as_ref(), known),
        Action::Copy | Action::Resume | Action::Compare | Action::CheckRecorded(_) => {
            if job.options.dry_run {
                add(&job.tally.files_copied, 1);
                add(&job.tally.bytes_copied, task.facts.size);
                return Ok(());
            }
            let recorded = known.filter(|_| action == Action::Resume);
            copy(job, queue, task, recorded, buffer)
        }
    }
}

/// Reads what is at the destination: is it the source's content?
fn compared(job: &Job, task: &Task, action: &Action, buffer: &mut Buffer) -> Result<Action, Trouble> {
    let theirs = match sums_of(job, &task.dst, task.facts.size, buffer) {
        Ok(sums) => sums,
        Err(Trouble::Stopped) => return Err(Trouble::Stopped),
        // Unreadable there: a copy puts it right.
        Err(_) => return Ok(Action::Copy),
    };
    let same = match action {
        Action::CheckRecorded(sum) => whole(&theirs) == *sum,
        Action::Compare | Action::Skip | Action::Resume | Action::Copy | Action::Refuse(_) => {
            theirs == sums_of(job, &task.src, task.facts.size, buffer)?
        }
    };
    Ok(if same { Action::Skip } else { Action::Copy })
}

fn copy(
    job: &Job,
    queue: &Work,
    task: Task,
    recorded: Option<&KnownFile>,
    buffer: &mut Buffer,
) -> Result<(), Trouble> {
    let (copying, resumed) = Copying::open(job, task, recorded.is_some())?;
    if !copying.pieces.is_large() {
        let done = copy_small(job, &copying, buffer);
        match &done {
            Ok(()) => add(&job.tally.files_copied, 1),
            Err(_) => copying.give_up(),
        }
        return done;
    }
    let pieces = recorded.filter(|_| resumed).map(|known| &known.pieces);
    let pieces: Vec<(u32, u64)> = pieces.into_iter().flatten().map(|(n, sum)| (*n, *sum)).collect();
    if !resumed && let Some(journal) = &job.journal {
        journal.record(&copying.begun()).map_err(Trouble::Journal)?;
    }
    queue.share(Arc::new(Large::new(copying, &pieces)));
    Ok(())
}

fn piece(job: &Job, queue: &Work, large: &Arc<Large>, part: Part, buffer: &mut Buffer) {
    let copying = &large.copying;
    job.tally.begins(&copying.task.src);
    let result = match part {
        Part::Check(n) => checked(job, large, n, buffer),
        Part::Copy(n) => copied(job, copying, n, buffer),
        Part::ReadBack(n) => {
            let wanted = large.sum(n).unwrap_or_default();
            verify(job, copying, n, wanted, buffer).map(|()| wanted)
        }
    };
    let mut turn = large.ended(part, result);
    if let Turn::Settle = turn {
        turn = match copying.settle(job) {
            Ok(()) if job.options.verify => {
                large.read_back();
                Turn::Nothing
            }
            Ok(()) => Turn::Finish,
            Err(trouble) => Turn::Fail(trouble),
        };
    }
    if let Turn::Finish = turn {
        match copying.finish(job, &large.sums()) {
            Ok(()) => {
                add(&job.tally.files_copied, 1);
                large.over();
            }
            Err(trouble) => turn = Turn::Fail(trouble),
        }
    }
    if let Turn::Fail(trouble) = turn {
        // What was copied is good for another run, if the trouble is not in it.
        if !trouble.ends_all() && !matches!(trouble, Trouble::Stopped) {
            copying.give_up();
        }
        failed(job, queue, copying.task.clone(), trouble);
        large.over();
    }
    queue.look_again();
}

fn checked(job: &Job, large: &Large, n: u32, buffer: &mut Buffer) -> Result<u64, Trouble> {
    let found = large.copying.read_back(job, n, buffer);
    if let Ok(sum) = &found
        && large.sum(n) == Some(*sum)
    {
        let range = large.copying.pieces.range(n);
        add(&job.tally.bytes_resumed, range.end - range.start);
    }
    found
}

fn copied(job: &Job, copying: &Copying, n: u32, buffer: &mut Buffer) -> Result<u64, Trouble> {
    let sum = copying.copy(job, n, buffer)?;
    if let Some(journal) = &job.journal {
        let record = Record::Piece { key: copying.key, index: n, sum };
        journal.record(&record).map_err(Trouble::Journal)?;
    }
    Ok(sum)
}

/// It is there. Its owner and mode may have changed since.
fn skip(job: &Job, task: &Task, there: Option<&There>, known: Option<&KnownFile>) -> Result<(), Trouble> {
    add(&job.tally.files_skipped, 1);
    add(&job.tally.bytes_skipped, task.facts.size);
    if job.options.dry_run {
        return Ok(());
    }
    let root = rustix::process::geteuid().is_root();
    let differs = |there: &Facts| {
        let owners = (there.uid, there.gid) != (task.facts.uid, task.facts.gid);
        there.mode != task.facts.mode || (root && owners)
    };
    if there.is_some_and(|there| differs(&there.facts)) {
        let own = handle(&task.src).map_err(Trouble::Source)?;
        let xattrs = attributes::xattrs(own.as_fd()).map_err(Trouble::Source)?;
        let theirs = handle(&task.dst).map_err(Trouble::Destination)?;
        let dropped =
            attributes::apply(theirs.as_fd(), &task.facts, &xattrs).map_err(Trouble::Destination)?;
        noted(job, dropped);
    }
    let safe = known.and_then(|known| known.done.as_ref()).is_some_and(|done| done.durable);
    if job.options.durable && !safe {
        let file = File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(&task.dst);
        file.and_then(|file| file.sync_all()).map_err(Trouble::Destination)?;
    }
    Ok(())
}

/// Symbolic links, pipes, sockets, devices.
fn other(job: &Job, task: &Task) -> Result<(), Trouble> {
    let there = there(&task.dst).map_err(Trouble::Destination)?;
    let target = match task.facts.kind {
        Kind::Symlink => Some(read_link(&task.src).map_err(Trouble::Source)?),
        Kind::Regular
        | Kind::Directory
        | Kind::Fifo
        | Kind::Socket
        | Kind::CharDevice
        | Kind::BlockDevice => None,
    };
    let same = target.as_ref().is_none_or(|target| read_link(&task.dst).is_ok_and(|own| own == *target));
    match special(&task.facts, there.as_ref(), same) {
        Action::Refuse(why) => return Err(Trouble::Refused(why)),
        Action::Skip => {
            add(&job.tally.files_skipped, 1);
            return Ok(());
        }
        Action::Copy | Action::Resume | Action::Compare | Action::CheckRecorded(_) => {}
    }
    if !job.options.dry_run {
        let way = job.way(&task.dst);
        let made = make(job, task, &way, target.as_deref());
        if made.is_err() {
            // Best effort: the next run removes it too.
            let _ = remove_file(&way);
        }
        made?;
    }
    add(&job.tally.others, 1);
    Ok(())
}

fn make(job: &Job, task: &Task, way: &Path, target: Option<&Path>) -> Result<(), Trouble> {
    match remove_file(way) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Trouble::Destination(error)),
        Ok(()) | Err(_) => {}
    }
    let node = |kind| {
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, way, kind, mode, task.facts.rdev).map_err(io::Error::from)
    };
    let made = match task.facts.kind {
        Kind::Symlink => symlink(target.unwrap_or(Path::new("")), way),
        Kind::Fifo => node(FileType::Fifo),
        Kind::Socket => node(FileType::Socket),
        Kind::CharDevice => node(FileType::CharacterDevice),
        Kind::BlockDevice => node(FileType::BlockDevice),
        Kind::Regular | Kind::Directory => return Err(Trouble::Changed),
    };
    made.map_err(Trouble::Destination)?;
    let own = handle(&task.src).map_err(Trouble::Source)?;
    let xattrs = attributes::xattrs(own.as_fd()).map_err(Trouble::Source)?;
    let theirs = handle(way).map_err(Trouble::Destination)?;
    let dropped = attributes::apply(theirs.as_fd(), &task.facts, &xattrs).map_err(Trouble::Destination)?;
    noted(job, dropped);
    rename(way, &task.dst).map_err(Trouble::Destination)
}

fn known<'a>(job: &'a Job, dst: &Path) -> Option<&'a KnownFile> {
    job.journal.as_ref()?.known.get(key_of(dst.as_os_str().as_bytes()))
}

fn there(dst: &Path) -> io::Result<Option<There>> {
    let facts = match symlink_metadata(dst) {
        Ok(meta) => Facts::of(&meta),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut state = [0u8; 64];
    // Only ONFS has it, and others say so in one way or another.
    let lost = facts.kind == Kind::Regular
        && getxattr(dst, STATE, &mut state[..]).is_ok_and(|n| state[..n].starts_with(b"lost"));
    Ok(Some(There { facts, lost }))
}
