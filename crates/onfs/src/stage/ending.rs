//! What comes when all files are there: further names of files, attributes of directories, what makes names durable.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{File, hard_link, remove_file, rename, symlink_metadata},
    io,
    os::{
        fd::AsFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{
    attributes::{self, handle},
    copying::noted,
    job::{Job, is_on_the_way},
    report::add,
    trouble::Trouble,
    walk::{Directory, Later, Link},
};

/// Does what is left. Without a failure the journal goes too.
pub fn end(job: &Job, later: &Later) {
    if let Err(trouble) = names_and_directories(job, later) {
        job.fail(Path::new("directories"), &trouble);
    }
    let whole = job.tally.failed() == 0 && !job.is_stopping();
    if whole || nothing_came_of_it(job) {
        without_journal(job, later, whole);
    } else if let Some(journal) = &job.journal
        && let Err(error) = journal.write()
    {
        job.fail(journal.path(), &Trouble::Journal(error));
    }
}

fn names_and_directories(job: &Job, later: &Later) -> Result<(), Trouble> {
    for link in &later.links {
        job.go_on()?;
        if let Err(trouble) = another_name(job, link) {
            job.fail(&link.src, &trouble);
        }
    }
    if job.options.dry_run {
        return Ok(());
    }
    for directory in later.directories.iter().rev() {
        job.go_on()?;
        if let Err(trouble) = attributes_of(job, directory) {
            job.fail(&directory.src, &trouble);
        }
    }
    durable(job, later)
}

fn another_name(job: &Job, link: &Link) -> Result<(), Trouble> {
    let first = match symlink_metadata(&link.first) {
        Ok(first) => first,
        Err(_) if job.options.dry_run => {
            add(&job.tally.links, 1);
            return Ok(());
        }
        Err(_) => return Err(Trouble::Refused("another name of the same file was not copied")),
    };
    match symlink_metadata(&link.dst) {
        Ok(there) if (there.dev(), there.ino()) == (first.dev(), first.ino()) => {
            add(&job.tally.files_skipped, 1);
            return Ok(());
        }
        Ok(there) if there.is_dir() => {
            return Err(Trouble::Refused("the destination is a directory, the source is not"));
        }
        Ok(_) | Err(_) => {}
    }
    if job.options.dry_run {
        add(&job.tally.links, 1);
        return Ok(());
    }
    let way = job.way(&link.dst);
    match remove_file(&way) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Trouble::Destination(error)),
        Ok(()) | Err(_) => {}
    }
    let made = hard_link(&link.first, &way).and_then(|()| rename(&way, &link.dst));
    made.map_err(Trouble::Destination)?;
    add(&job.tally.links, 1);
    Ok(())
}

fn attributes_of(job: &Job, directory: &Directory) -> Result<(), Trouble> {
    let own = handle(&directory.src).map_err(Trouble::Source)?;
    let xattrs = attributes::xattrs(own.as_fd()).map_err(Trouble::Source)?;
    let theirs = handle(&directory.dst).map_err(Trouble::Destination)?;
    let dropped =
        attributes::apply(theirs.as_fd(), &directory.facts, &xattrs).map_err(Trouble::Destination)?;
    noted(job, dropped);
    Ok(())
}

/// Names are durable when their directories are.
fn durable(job: &Job, later: &Later) -> Result<(), Trouble> {
    if !job.options.durable {
        return Ok(());
    }
    let above = job.pairs.iter().filter_map(|pair| pair.dst.parent());
    let places: BTreeSet<&Path> =
        later.directories.iter().map(|directory| directory.dst.as_path()).chain(above).collect();
    for place in places {
        job.go_on()?;
        sync(place).map_err(Trouble::Destination)?;
    }
    Ok(())
}

/// Neither this run nor an earlier one has left anything to go on with.
fn nothing_came_of_it(job: &Job) -> bool {
    let none = |n: &AtomicU64| n.load(Relaxed) == 0;
    job.journal.as_ref().is_some_and(|journal| journal.known.is_empty())
        && none(&job.tally.bytes_copied)
        && none(&job.tally.directories)
}

/// Its end changes the time of the directory that it is in.
fn without_journal(job: &Job, later: &Later, whole: bool) {
    let Some(journal) = &job.journal else { return };
    if whole {
        forget(job);
    }
    let done = journal.remove().map_err(Trouble::Journal).and_then(|()| {
        let Some(place) = journal.path().parent() else { return Ok(()) };
        if let Some(directory) = later.directories.iter().find(|directory| directory.dst == place) {
            attributes_of(job, directory)?;
        }
        if job.options.durable { sync(place).map_err(Trouble::Destination) } else { Ok(()) }
    });
    if let Err(trouble) = done {
        job.fail(journal.path(), &trouble);
    }
}

/// What earlier runs began and this one had no source for any more.
fn forget(job: &Job) {
    let Some(journal) = &job.journal else { return };
    for (_, way) in journal.known.unfinished() {
        let way = Path::new(OsStr::from_bytes(way));
        if way.file_name().is_some_and(|name| is_on_the_way(name.as_bytes())) {
            // Mostly it was finished in this run, and has its name.
            let _ = remove_file(way);
        }
    }
}

fn sync(directory: &Path) -> io::Result<()> {
    match File::open(directory)?.sync_all() {
        // File systems that have no such thing make names durable by themselves, or never.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => Ok(()),
        other => other,
    }
}
