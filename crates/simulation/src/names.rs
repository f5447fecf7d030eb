//! What the namespace is: a plain model of the same operations, in the order in which they were committed.
//!
//! Each commit has to be possible there, and to leave the records that the model says. Each answer has to be true at some moment of
//! its call. What was answered as done is committed; under one life of an owner, and those to which it went on in order, no call is
//! committed twice (S-163).

use std::{collections::BTreeMap, ops::ControlFlow, time::Duration};

use lease::coherence::message::Life;
use namespace::{RenameMode, txn::Reader};
use types::{Errno, Ino, Slot};

use crate::{
    cast::{FILES, NAMES, UGSDS, directory, file},
    message::{CallId, Done, Listing, NameAnswer, NameOp, Told},
    records::Records,
    versions::Versions,
};

#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Model {
    dirs: BTreeMap<Ino, Listing>,
    inodes: BTreeMap<Ino, Told>,
}

pub struct NameTruth {
    model: Model,
    synced: Model,
    /// The lives of slots' owners at the last power cut.
    lives_then: BTreeMap<Slot, u32>,
    entries: BTreeMap<(Ino, Vec<u8>), Versions<Option<Ino>>>,
    attributes: BTreeMap<Ino, Versions<Option<Told>>>,
    listings: BTreeMap<Ino, Versions<Listing>>,
    committed: BTreeMap<CallId, Vec<Life>>,
    /// Lives that went on in order, and which was the first.
    first: BTreeMap<(Slot, Life), Life>,
    pub commits: u64,
    pub taken_away: u64,
}

/// The name of a file that stays.
pub fn name_of(n: u64) -> String {
    format!("file{n}")
}

pub fn listing<R: Reader + ?Sized>(reader: &R, dir: Ino) -> Option<Listing> {
    let mut listing = Listing::new();
    let read = namespace::readdir(reader, dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            listing.insert(entry.name.to_vec(), entry.ino);
        }
        ControlFlow::Continue(())
    });
    read.is_ok_and(|bad| bad.is_none()).then_some(listing)
}

pub fn told<R: Reader + ?Sized>(reader: &R, ino: Ino) -> Option<Told> {
    let inode = namespace::inode::get(reader, ino).ok().flatten()?;
    Some(Told { mode: inode.mode, links: inode.nlink })
}

impl NameTruth {
    pub fn begin() -> NameTruth {
        let mut model = Model::default();
        for ugsd in UGSDS {
            let files = (0..FILES).map(|n| (name_of(n).into_bytes(), file(ugsd, n)));
            model.inodes.extend(files.clone().map(|(_, ino)| (ino, Told { mode: 0o644, links: 1 })));
            model.dirs.insert(directory(ugsd), files.collect());
        }
        let entries = UGSDS.iter().flat_map(|ugsd| {
            NAMES.iter().map(|name| ((directory(*ugsd), name.as_bytes().to_vec()), Versions::begin(None)))
        });
        NameTruth {
            entries: entries.collect(),
            attributes: model.inodes.iter().map(|(ino, told)| (*ino, Versions::begin(Some(*told)))).collect(),
            listings: model.dirs.iter().map(|(dir, all)| (*dir, Versions::begin(all.clone()))).collect(),
            synced: model.clone(),
            lives_then: BTreeMap::new(),
            model,
            committed: BTreeMap::new(),
            first: BTreeMap::new(),
            commits: 0,
            taken_away: 0,
        }
    }

    /// A slot went from one life to another with all that belongs to it.
    pub fn goes_on(&mut self, slot: Slot, from: Life, to: Life) {
        let first = self.first.get(&(slot, from)).copied().unwrap_or(from);
        self.first.insert((slot, to), first);
    }

    /// The database has written a commit.
    pub fn commit(&mut self, now: Duration, done: &Done, data: &Records) -> Result<(), String> {
        self.commits += 1;
        let slot = directory(ugsd(&done.op)).ugsd().slot();
        let life = self.first.get(&(slot, done.life)).copied().unwrap_or(done.life);
        let lives = self.committed.entry(done.call).or_default();
        if lives.contains(&life) {
            return Err(format!("{done:?} is carried out twice under one life"));
        }
        lives.push(life);
        let touched = self.model.apply(&done.op, &done.answer).map_err(|why| format!("{done:?}: {why}"))?;
        for ino in touched {
            let is = self.model.inodes.get(&ino).copied();
            if told(data, ino) != is {
                return Err(format!("{done:?} leaves {:?} of {ino}, not {is:?}", told(data, ino)));
            }
        }
        let dir = directory(ugsd(&done.op));
        if listing(data, dir).as_ref() != self.model.dirs.get(&dir) {
            return Err(format!("{done:?} leaves {:?}, not {:?}", listing(data, dir), self.model.dirs));
        }
        self.follow(now, Versions::push, Versions::push, Versions::push);
        Ok(())
    }

    /// Versions that are not what the model has get one more.
    fn follow(
        &mut self,
        now: Duration,
        entry: fn(&mut Versions<Option<Ino>>, Duration, Option<Ino>),
        attribute: fn(&mut Versions<Option<Told>>, Duration, Option<Told>),
        list: fn(&mut Versions<Listing>, Duration, Listing),
    ) {
        for ((dir, name), versions) in &mut self.entries {
            let is = self.model.dirs.get(dir).and_then(|all| all.get(name)).copied();
            if versions.latest() != Some(&is) {
                entry(versions, now, is);
            }
        }
        for ino in self.model.inodes.keys() {
            self.attributes.entry(*ino).or_insert_with(|| Versions::begin(None));
        }
        for (ino, versions) in &mut self.attributes {
            let is = self.model.inodes.get(ino).copied();
            if versions.latest() != Some(&is) {
                attribute(versions, now, is);
            }
        }
        for (dir, versions) in &mut self.listings {
            let is = self.model.dirs.get(dir).cloned().unwrap_or_default();
            if versions.latest() != Some(&is) {
                list(versions, now, is);
            }
        }
    }

    pub fn sync(&mut self) {
        self.synced = self.model.clone();
    }

    /// `lives`: of the owners that there were then.
    pub fn power_cut(&mut self, now: Duration, lives: BTreeMap<Slot, u32>) {
        self.lives_then = lives;
        self.taken_away += u64::from(self.model != self.synced);
        self.model = self.synced.clone();
        self.follow(now, Versions::revert, Versions::revert, Versions::revert);
    }

    /// Whatever a power cut took away of this slot, nobody has a lease on it any more, if this life began after it. Who was the owner then goes on saying it.
    pub fn grace_ended(&mut self, now: Duration, slot: Slot, life: Life) {
        if self.lives_then.get(&slot).is_some_and(|then| life.0 <= *then) {
            return;
        }
        let of = |ino: &Ino| ino.ugsd().slot() == slot;
        self.entries.iter_mut().filter(|((dir, _), _)| of(dir)).for_each(|(_, v)| v.end_others(now));
        self.attributes.iter_mut().filter(|(ino, _)| of(ino)).for_each(|(_, v)| v.end_others(now));
        self.listings.iter_mut().filter(|(dir, _)| of(dir)).for_each(|(_, v)| v.end_others(now));
    }

    /// Was this answer true at some moment of its call?
    pub fn check(
        &self,
        call: CallId,
        op: &NameOp,
        answer: &NameAnswer,
        (from, to): (Duration, Duration),
    ) -> Result<(), String> {
        let named = |dir: Ino, name: &str, is: &dyn Fn(Option<Ino>) -> bool| {
            let of = self.entries.get(&(dir, name.as_bytes().to_vec()));
            of.is_some_and(|versions| versions.held(from, to, |v| is(*v)))
        };
        let attributes = |ino: Ino, is: &dyn Fn(Option<Told>) -> bool| match self.attributes.get(&ino) {
            Some(versions) => versions.held(from, to, |v| is(*v)),
            None => is(None),
        };
        let true_then = match (op, answer) {
            (NameOp::Lookup { dir, name }, NameAnswer::Found(ino)) => named(*dir, name, &|is| is == *ino),
            (NameOp::GetAttr { ino }, NameAnswer::Attributes(told)) => attributes(*ino, &|is| is == *told),
            (NameOp::List { dir }, NameAnswer::Names(names)) => {
                self.listings.get(dir).is_some_and(|versions| versions.held(from, to, |v| v == names))
            }
            (
                NameOp::Rename { dir, from: a, to: b, mode: RenameMode::Replace | RenameMode::Exchange },
                NameAnswer::Done,
            ) if !self.committed.contains_key(&call) => {
                // Two names of one inode: nothing to do.
                let of = |name: &str| self.entries.get(&(*dir, name.as_bytes().to_vec()));
                let both = |ino: Ino| {
                    [*a, *b].iter().all(|n| of(n).is_some_and(|v| v.held(from, to, |v| *v == Some(ino))))
                };
                self.attributes.keys().any(|ino| both(*ino))
            }
            (NameOp::Create { .. }, NameAnswer::Found(Some(_))) => self.committed.contains_key(&call),
            (_, NameAnswer::Done) if op.changes() => self.committed.contains_key(&call),
            (
                NameOp::Create { dir, name, .. } | NameOp::Link { dir, name, .. },
                NameAnswer::Refused(Errno::EEXIST),
            ) => named(*dir, name, &|is| is.is_some()),
            (NameOp::Link { ino, .. }, NameAnswer::Refused(Errno::ENOENT | Errno::ESTALE)) => {
                attributes(*ino, &|is| is.is_none_or(|told| told.links == 0))
            }
            (NameOp::Chmod { ino, .. }, NameAnswer::Refused(Errno::ESTALE)) => {
                attributes(*ino, &|is| is.is_none())
            }
            (NameOp::Unlink { dir, name }, NameAnswer::Refused(Errno::ENOENT)) => {
                named(*dir, name, &|is| is.is_none())
            }
            (NameOp::Rename { dir, from: a, to: b, mode }, NameAnswer::Refused(errno)) => match (errno, mode)
            {
                (&Errno::ENOENT, RenameMode::Exchange) => {
                    named(*dir, a, &|is| is.is_none()) || named(*dir, b, &|is| is.is_none())
                }
                (&Errno::ENOENT, RenameMode::Replace | RenameMode::NoReplace) => {
                    named(*dir, a, &|is| is.is_none())
                }
                (&Errno::EEXIST, RenameMode::NoReplace) => named(*dir, b, &|is| is.is_some()),
                _ => false,
            },
            _ => false,
        };
        if true_then {
            Ok(())
        } else {
            Err(format!("{call:?} {op:?} was answered {answer:?} ({from:?} to {to:?})"))
        }
    }

    /// What the records must say at the end.
    pub fn compare(&self, data: &Records) -> Result<(), String> {
        for (dir, all) in &self.model.dirs {
            if listing(data, *dir).as_ref() != Some(all) {
                return Err(format!("{dir} has {:?}, not {all:?}", listing(data, *dir)));
            }
        }
        let other = self.model.inodes.iter().find(|(ino, is)| told(data, **ino) != Some(**is));
        other.map_or(Ok(()), |(ino, is)| Err(format!("{ino} is {:?}, not {is:?}", told(data, *ino))))
    }
}

pub fn ugsd(op: &NameOp) -> u32 {
    let ino = match op {
        NameOp::GetAttr { ino } | NameOp::Chmod { ino, .. } => ino,
        NameOp::Lookup { dir, .. }
        | NameOp::List { dir }
        | NameOp::Create { dir, .. }
        | NameOp::Unlink { dir, .. }
        | NameOp::Rename { dir, .. }
        | NameOp::Link { dir, .. } => dir,
    };
    ino.ugsd().get()
}

impl Model {
    /// Which inodes it changes, or why it cannot have happened.
    fn apply(&mut self, op: &NameOp, answer: &NameAnswer) -> Result<Vec<Ino>, String> {
        let dir = directory(ugsd(op));
        let names = self.dirs.entry(dir).or_default();
        let key = |name: &str| name.as_bytes().to_vec();
        let mut touched = Vec::new();
        match op {
            NameOp::Create { name, mode, .. } => {
                let NameAnswer::Found(Some(ino)) = answer else { return Err("it made nothing".into()) };
                let old = names.insert(key(name), *ino);
                let known = self.inodes.insert(*ino, Told { mode: *mode, links: 1 });
                if old.is_some() || known.is_some() {
                    return Err(format!("there was {old:?}, {known:?}"));
                }
                touched.push(*ino);
            }
            NameOp::Unlink { name, .. } => {
                let ino = names.remove(&key(name)).ok_or("there was no such name")?;
                touched.extend(self.lose(ino));
            }
            NameOp::Link { ino, name, .. } => {
                let old = names.insert(key(name), *ino);
                let inode = self.inodes.get_mut(ino).ok_or("there was no such inode")?;
                if old.is_some() || inode.links == 0 {
                    return Err(format!("there was {old:?}, {inode:?}"));
                }
                inode.links += 1;
                touched.push(*ino);
            }
            NameOp::Chmod { ino, mode } => {
                self.inodes.get_mut(ino).ok_or("there was no such inode")?.mode = *mode;
                touched.push(*ino);
            }
            NameOp::Rename { from, to, mode, .. } => {
                let source = names.get(&key(from)).copied().ok_or("there was no such name")?;
                let target = names.get(&key(to)).copied();
                match (mode, target) {
                    (RenameMode::NoReplace, Some(_)) => return Err("there was a target".into()),
                    (RenameMode::Exchange, None) => return Err("there was no target".into()),
                    (RenameMode::Exchange, Some(target)) => drop(names.insert(key(from), target)),
                    (RenameMode::NoReplace | RenameMode::Replace, _) => drop(names.remove(&key(from))),
                }
                names.insert(key(to), source);
                if let (RenameMode::Replace, Some(target)) = (mode, target) {
                    touched.extend(self.lose(target));
                }
            }
            NameOp::Lookup { .. } | NameOp::GetAttr { .. } | NameOp::List { .. } => {
                return Err("it changes nothing".into());
            }
        }
        Ok(touched)
    }

    /// One name less. Without any it stays until it is purged, which nobody does here.
    fn lose(&mut self, ino: Ino) -> Option<Ino> {
        let inode = self.inodes.get_mut(&ino)?;
        inode.links = inode.links.saturating_sub(1);
        Some(ino)
    }
}
