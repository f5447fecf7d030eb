//! The walk through the sources: makes the directories, hands on everything else, and keeps what can only be done at the
//! end: further names of files, and attributes of directories.

use std::{
    collections::HashMap,
    fs::{DirBuilder, create_dir_all, symlink_metadata},
    io,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

use walkdir::{DirEntry, WalkDir};

use super::{
    facts::{Facts, Kind},
    job::{Job, Task, is_on_the_way},
    pairs::Pair,
    report::add,
    trouble::Trouble,
    worker::Work,
};

/// What is left for the end.
#[derive(Default)]
pub struct Later {
    /// Those above before those below.
    pub directories: Vec<Directory>,
    pub links: Vec<Link>,
}

pub struct Directory {
    pub src: PathBuf,
    pub dst: PathBuf,
    pub facts: Facts,
}

/// A further name of a file that has been handed on under another.
pub struct Link {
    pub src: PathBuf,
    /// The copy of the name that was met first.
    pub first: PathBuf,
    pub dst: PathBuf,
}

pub fn walk(job: &Job, queue: &Work) -> Later {
    let mut walk = Walk { job, queue, later: Later::default(), names: HashMap::new() };
    for pair in &job.pairs {
        if job.is_stopping() {
            break;
        }
        walk.pair(pair);
    }
    job.tally.walked.store(true, Ordering::Relaxed);
    queue.close();
    walk.later
}

struct Walk<'a> {
    job: &'a Job,
    queue: &'a Work,
    later: Later,
    /// Destinations of files with several names, by device and number.
    names: HashMap<(u64, u64), PathBuf>,
}

impl Walk<'_> {
    fn pair(&mut self, pair: &Pair) {
        if self.job.options.parents
            && !self.job.options.dry_run
            && let Some(above) = pair.dst.parent()
            && let Err(error) = create_dir_all(above)
        {
            return self.job.fail(above, &Trouble::Destination(error));
        }
        let mut entries = WalkDir::new(&pair.src).follow_root_links(false).into_iter();
        while let Some(entry) = entries.next() {
            if self.job.is_stopping() {
                return;
            }
            match entry {
                Ok(entry) => {
                    let is_dir = entry.file_type().is_dir();
                    if !self.entry(pair, &entry) && is_dir {
                        entries.skip_current_dir();
                    }
                }
                Err(error) => {
                    let path = error.path().unwrap_or(&pair.src).to_owned();
                    let error =
                        error.into_io_error().unwrap_or_else(|| io::Error::from_raw_os_error(libc::ELOOP));
                    self.job.fail(&path, &Trouble::Source(error));
                }
            }
        }
    }

    /// Says whether to go on below it.
    fn entry(&mut self, pair: &Pair, entry: &DirEntry) -> bool {
        let src = entry.path();
        if entry.depth() > 0 && is_on_the_way(entry.file_name().as_bytes()) {
            self.job.tally.note("names that begin with .onfs-way- or .onfs-stage- were left out");
            return false;
        }
        let facts = match entry.metadata().map_err(io::Error::from) {
            Ok(meta) => Facts::of(&meta),
            Err(error) => {
                self.job.fail(src, &Trouble::Source(error));
                return false;
            }
        };
        let dst = match src.strip_prefix(&pair.src) {
            Ok(below) if below.as_os_str().is_empty() => pair.dst.clone(),
            Ok(below) => pair.dst.join(below),
            Err(_) => return false,
        };
        if facts.kind == Kind::Directory {
            return self.directory(src, dst, facts);
        }
        if facts.links > 1 {
            if let Some(first) = self.names.get(&(facts.dev, facts.ino)) {
                self.later.links.push(Link { src: src.to_owned(), first: first.clone(), dst });
                return true;
            }
            self.names.insert((facts.dev, facts.ino), dst.clone());
        }
        if facts.kind == Kind::Regular {
            add(&self.job.tally.bytes_found, facts.size);
        }
        self.queue.push(Task { src: src.to_owned(), dst, facts, tries: 0 })
    }

    fn directory(&mut self, src: &Path, dst: PathBuf, facts: Facts) -> bool {
        let made = if self.job.options.dry_run { Ok(()) } else { make(&dst) };
        if let Err(error) = made {
            self.job.fail(src, &Trouble::Destination(error));
            return false;
        }
        add(&self.job.tally.directories, 1);
        self.later.directories.push(Directory { src: src.to_owned(), dst, facts });
        true
    }
}

/// For this user alone until it has its attributes.
fn make(dst: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dst) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // A symbolic link to a directory would lead elsewhere.
            if symlink_metadata(dst)?.is_dir() {
                Ok(())
            } else {
                Err(io::Error::from_raw_os_error(libc::ENOTDIR))
            }
        }
        other => other,
    }
}
