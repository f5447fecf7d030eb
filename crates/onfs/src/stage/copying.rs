//! One regular file on its way: read from its source, written under a name on the way, given its attributes, read back,
//! and only then called what it is to be called.

use std::{
    fs::{File, OpenOptions, remove_file, rename, symlink_metadata},
    io,
    os::{
        fd::AsFd,
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, MetadataExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
};

use rustix::fs::{Advice, fadvise};

use super::{
    attributes,
    buffer::Buffer,
    decide::unchanged,
    extent,
    facts::{Facts, Kind, Stamp},
    job::{Job, Task},
    pieces::Pieces,
    record::{Record, key_of},
    report::add,
    sum::whole,
    trouble::Trouble,
};

pub struct Copying {
    pub task: Task,
    pub key: u128,
    pub pieces: Pieces,
    /// What the source was when it was opened.
    facts: Facts,
    src: File,
    way: File,
    way_path: PathBuf,
}

impl Copying {
    /// `resume`: with what an earlier run left under the name on the way, if it is there. Says whether it was.
    pub fn open(job: &Job, task: Task, resume: bool) -> Result<(Copying, bool), Trouble> {
        let src = source(&task.src).map_err(Trouble::Source)?;
        let facts = Facts::of(&src.metadata().map_err(Trouble::Source)?);
        if facts.kind != Kind::Regular {
            return Err(Trouble::Changed);
        }
        let way_path = job.way(&task.dst);
        let begun = if resume && facts.stamp() == task.facts.stamp() { left(&way_path) } else { None };
        let resumed = begun.is_some();
        let way = match begun {
            Some(way) => way,
            None => fresh(&way_path).map_err(Trouble::Destination)?,
        };
        way.set_len(facts.size).map_err(Trouble::Destination)?;
        // Advice that is not taken costs only time.
        let _ = fadvise(&src, 0, None, Advice::Sequential);
        let key = key_of(task.dst.as_os_str().as_bytes());
        let pieces = Pieces::of(facts.size);
        Ok((Copying { task, key, pieces, facts, src, way, way_path }, resumed))
    }

    pub fn stamp(&self) -> Stamp {
        self.facts.stamp()
    }

    pub fn begun(&self) -> Record {
        let way = self.way_path.as_os_str().as_bytes().to_vec();
        Record::Begun { key: self.key, stamp: self.stamp(), way }
    }

    pub fn copy(&self, job: &Job, piece: u32, buffer: &mut Buffer) -> Result<u64, Trouble> {
        let range = self.pieces.range(piece);
        extent::read(&self.src, range, buffer.bytes(), read_trouble, &mut |at, part| {
            job.go_on()?;
            self.way.write_all_at(part, at).map_err(Trouble::Destination)?;
            add(&job.tally.bytes_copied, part.len() as u64);
            Ok(())
        })
    }

    /// What the destination has of a piece.
    pub fn read_back(&self, job: &Job, piece: u32, buffer: &mut Buffer) -> Result<u64, Trouble> {
        let range = self.pieces.range(piece);
        extent::read(&self.way, range, buffer.bytes(), Trouble::Destination, &mut |_, _| job.go_on())
    }

    /// All is written: attributes, and durable where that is asked for. What is read back then comes from the file
    /// system, as far as the kernel lets go of what it has in its cache.
    pub fn settle(&self, job: &Job) -> Result<(), Trouble> {
        let now = Facts::of(&self.src.metadata().map_err(Trouble::Source)?);
        if !unchanged(&self.stamp(), &now.stamp()) {
            return Err(Trouble::Changed);
        }
        let xattrs = attributes::xattrs(self.src.as_fd()).map_err(Trouble::Source)?;
        let dropped =
            attributes::apply(self.way.as_fd(), &self.facts, &xattrs).map_err(Trouble::Destination)?;
        noted(job, dropped);
        if job.options.durable {
            self.way.sync_all().map_err(Trouble::Destination)?;
        }
        if job.options.verify {
            let _ = fadvise(&self.way, 0, None, Advice::DontNeed);
        }
        Ok(())
    }

    /// It gets its name.
    pub fn finish(&self, job: &Job, sums: &[u64]) -> Result<(), Trouble> {
        // Where a file system has no locks the same stage may be running twice.
        let own = self.way.metadata().map_err(Trouble::Destination)?;
        let named = symlink_metadata(&self.way_path).map_err(Trouble::Destination)?;
        if (own.dev(), own.ino()) != (named.dev(), named.ino()) {
            return Err(Trouble::Refused("somebody else copies to the same place"));
        }
        rename(&self.way_path, &self.task.dst).map_err(Trouble::Destination)?;
        if let Some(journal) = &job.journal {
            let (key, stamp, durable) = (self.key, self.stamp(), job.options.durable);
            let done = Record::Done { key, stamp, sum: whole(sums), durable };
            journal.note(&done).map_err(Trouble::Journal)?;
        }
        Ok(())
    }

    /// Nothing is kept of it.
    pub fn give_up(&self) {
        // It may be gone already; the next run removes what is left.
        let _ = remove_file(&self.way_path);
    }
}

/// Copies a file of one piece.
pub fn copy_small(job: &Job, copying: &Copying, buffer: &mut Buffer) -> Result<(), Trouble> {
    let pieces = 0..copying.pieces.count();
    let sums: Vec<u64> =
        pieces.clone().map(|n| copying.copy(job, n, buffer)).collect::<Result<_, Trouble>>()?;
    copying.settle(job)?;
    if job.options.verify {
        for piece in pieces {
            verify(job, copying, piece, sums[piece as usize], buffer)?;
        }
    }
    copying.finish(job, &sums)
}

pub fn verify(
    job: &Job,
    copying: &Copying,
    piece: u32,
    wanted: u64,
    buffer: &mut Buffer,
) -> Result<(), Trouble> {
    let range = copying.pieces.range(piece);
    if copying.read_back(job, piece, buffer)? != wanted {
        return Err(Trouble::Differs { at: range.start });
    }
    add(&job.tally.bytes_verified, range.end - range.start);
    Ok(())
}

/// The checksums of a file that is there, piece by piece.
pub fn sums_of(job: &Job, path: &Path, size: u64, buffer: &mut Buffer) -> Result<Vec<u64>, Trouble> {
    let file = source(path).map_err(Trouble::Source)?;
    let pieces = Pieces::of(size);
    (0..pieces.count())
        .map(|n| extent::read(&file, pieces.range(n), buffer.bytes(), read_trouble, &mut |_, _| job.go_on()))
        .collect()
}

pub fn noted(job: &Job, dropped: attributes::Dropped) {
    if dropped.owner {
        job.tally.note("owner or group could not be kept");
    }
    if dropped.xattrs {
        job.tally.note("the destination does not take some extended attributes or ACLs");
    }
}

/// For reading: no symbolic link, and no waiting for the writer of a pipe that has taken its place.
fn source(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn read_trouble(error: io::Error) -> Trouble {
    // It was cut since it was looked at.
    if error.kind() == io::ErrorKind::UnexpectedEof { Trouble::Changed } else { Trouble::Source(error) }
}

/// What an earlier run left, if it is what that would leave.
fn left(path: &Path) -> Option<File> {
    let file = open_way(path, false).ok()?;
    let meta = file.metadata().ok()?;
    let own = meta.is_file() && meta.nlink() == 1;
    own.then_some(file)
}

/// A new file, which nobody else can read yet.
fn fresh(path: &Path) -> io::Result<File> {
    match remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    open_way(path, true)
}

fn open_way(path: &Path, create: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(create).mode(0o600);
    // Reading it back is no access of a user's.
    let quiet = libc::O_NOFOLLOW | libc::O_NOATIME;
    match options.clone().custom_flags(quiet).open(path) {
        // Of a file that has its owner already, or where the flag is not known.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EINVAL)) => {
            options.custom_flags(libc::O_NOFOLLOW).open(path)
        }
        other => other,
    }
}
