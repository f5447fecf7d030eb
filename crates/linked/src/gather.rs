//! Our side of a directory: what we have there, what they have there as far as we know, and what is pending.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use link::{Attrs, Changed, LinkRecord, Ours, Place, Standing, Work};
use namespace::{Env, txn::Reader};
use types::{Errno, FileKind, Ino};

use crate::{
    pending::{Pending, Touched, is_unpublished},
    records,
};

/// One directory of ours.
pub(crate) struct Side {
    pub ours: Vec<Ours>,
    pub records: BTreeMap<Ino, LinkRecord>,
}

/// Names of ours in a directory, each with what it names.
pub(crate) fn names_in<R: Reader + ?Sized>(
    reader: &R,
    dir: Ino,
) -> namespace::Result<Vec<(Vec<u8>, Ino, FileKind)>> {
    let mut names = Vec::new();
    let damaged = namespace::readdir(reader, dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push((entry.name.to_vec(), entry.ino, entry.kind));
        }
        ControlFlow::Continue(())
    })?;
    match damaged {
        // What cannot be read is perhaps what they have: nothing is concluded from half of a directory.
        Some(error) => Err(error.into()),
        None => Ok(names),
    }
}

/// The names of one inode in a directory. Of one that has a single name it is where they have it, or where a step will give it one.
fn names_of<R: Reader + ?Sized>(
    (reader, env): (&R, &Env),
    pending: &Pending,
    (dir, ino): (Ino, Ino),
) -> namespace::Result<Vec<(Vec<u8>, Ino, FileKind)>> {
    let several = namespace::inode::get(reader, ino)?.is_none_or(|inode| inode.nlink > 1);
    if several {
        let mut names = names_in(reader, dir)?;
        names.retain(|(_, named, _)| *named == ino);
        return Ok(names);
    }
    let theirs = records::link_of(reader, ino)?.map(|record| record.place);
    let wanted = pending.log.get(ino).into_iter().flat_map(|work| work.plus.iter().cloned());
    let places: BTreeSet<Place> = theirs.into_iter().chain(wanted).filter(|at| at.dir == dir).collect();
    let mut names = Vec::new();
    for at in places {
        match namespace::lookup(reader, env, namespace::Place { dir, name: &at.name }) {
            Ok(found) if found.attr.ino == ino => names.push((at.name, ino, found.attr.kind)),
            Ok(_) | Err(namespace::Error::Errno(Errno::ENOENT)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(names)
}

pub(crate) fn gather<R: Reader + ?Sized>(
    (reader, env): (&R, &Env),
    pending: &Pending,
    touched: &Touched,
    (dir, only): (Ino, Option<Ino>),
) -> namespace::Result<Side> {
    let mut side = Side { ours: Vec::new(), records: BTreeMap::new() };
    // Names that they have of what left them on our side, by inode.
    let mut left: BTreeMap<Ino, Vec<Vec<u8>>> = BTreeMap::new();
    let asked = |ino: Ino| only.is_none_or(|only| only == ino);
    for (ino, name) in pending.log.left_in(dir).filter(|(ino, _)| asked(*ino)) {
        left.entry(ino).or_default().push(name.to_vec());
    }
    let names = match only {
        Some(ino) => names_of((reader, env), pending, (dir, ino))?,
        None => names_in(reader, dir)?,
    };
    for (name, ino, kind) in names {
        let record = side.record(reader, ino)?.cloned();
        let work = pending.log.get(ino);
        let at = Place::new(dir, &name);
        let gained = work.is_some_and(|work| work.plus.contains(&at));
        let standing = match record {
            Some(record) if !gained => {
                Standing::Both { ours: name.clone(), theirs: name, agreed: record.seen }
            }
            Some(record) => match left.get_mut(&ino).and_then(Vec::pop) {
                Some(theirs) => Standing::Both { ours: name, theirs, agreed: record.seen },
                None => Standing::RenamedIn { ours: name },
            },
            None => Standing::Created { ours: name },
        };
        side.push(pending, touched, (ino, kind), standing);
    }
    for (ino, names) in left {
        let Some(record) = side.record(reader, ino)?.cloned() else { continue };
        let deleted = pending.log.get(ino).is_none_or(|work| work.deleted);
        for theirs in names {
            let agreed = record.seen;
            let standing = if deleted {
                Standing::Deleted { theirs, agreed }
            } else {
                Standing::RenamedOut { theirs, agreed }
            };
            side.push(pending, touched, (ino, record.seen.kind), standing);
        }
    }
    Ok(side)
}

impl Side {
    fn record<R: Reader + ?Sized>(&mut self, reader: &R, ino: Ino) -> namespace::Result<Option<&LinkRecord>> {
        if !self.records.contains_key(&ino)
            && let Some(record) = records::link_of(reader, ino)?
        {
            self.records.insert(ino, record);
        }
        Ok(self.records.get(&ino))
    }

    fn push(
        &mut self,
        pending: &Pending,
        touched: &Touched,
        (ino, kind): (Ino, FileKind),
        standing: Standing,
    ) {
        let work = pending.log.get(ino);
        // A step that was begun before a crash, or that failed, may have been made.
        let begun = work.is_some_and(|work| work.begun.is_some());
        let busy = begun || pending.log.is_in_flight(ino) || touched.inos.contains(&ino);
        let changed = changed(work);
        self.ours.push(Ours { ino, kind, standing, changed, busy });
    }
}

fn changed(work: Option<&Work>) -> Changed {
    match work {
        None => Changed::Nothing,
        Some(work) if work.due.is_some() || is_unpublished(work) => Changed::Data,
        Some(work) if !work.attrs.is_empty() || !work.xattrs.is_empty() => Changed::Attributes,
        Some(_) => Changed::Nothing,
    }
}

/// The directories that hold something pending, however deep, of those given.
pub(crate) fn with_pending_below(
    pending: &Pending,
    dirs: &BTreeSet<Ino>,
    parent: &dyn Fn(Ino) -> Option<Ino>,
) -> BTreeSet<Ino> {
    let mut found = BTreeSet::new();
    let mut passed = BTreeSet::new();
    if dirs.is_empty() {
        return found;
    }
    for (ino, work) in pending.log.works() {
        // What was only deleted in it need not be deleted any more.
        let begins = work.plus.iter().map(|at| at.dir).chain(if work.plus.is_empty() && !work.deleted {
            parent(ino)
        } else {
            None
        });
        for begin in begins {
            let mut at = begin;
            while passed.insert(at) {
                if dirs.contains(&at) {
                    found.insert(at);
                }
                match parent(at) {
                    Some(next) if next != at => at = next,
                    Some(_) | None => break,
                }
            }
        }
    }
    found
}

/// Those that a refresh leaves alone, since ours are not applied yet.
pub(crate) fn kept(work: Option<&Work>, is_dir: bool, has_pending: bool) -> namespace::Keep {
    use namespace::Keep;
    let attrs = work.map_or(Attrs::NONE, |work| work.attrs);
    let mut keep = Keep::empty();
    keep.set(Keep::MODE, attrs.contains(Attrs::MODE));
    keep.set(Keep::OWNER, attrs.contains(Attrs::OWNER));
    keep.set(Keep::TIMES, attrs.contains(Attrs::TIMES) || (is_dir && has_pending));
    if changed(work) == Changed::Data {
        keep |= Keep::TIMES | Keep::SIZE;
    }
    keep
}
