//! Any back end, with a deadline for each call.
//!
//! Each call is made by a thread of a bounded pool, with arguments of its own; who asks waits for the deadline at the longest, then it is
//! `ETIMEDOUT`: what was asked may have been done, or may be done yet. A thread whose call hangs (a hard mount of NFS whose
//! server is away) stays with it and serves again when it comes back. Looks, changes and reads have threads of their own,
//! so that what hangs with one kind does not stop another. A change that is given up and hangs keeps other changes from its names,
//! with `EBUSY`, until it comes back: done then, it would undo what was done to the name meanwhile.
//!
//! Asked directly, since no back end waits for them: [`BackEnd::abilities`], [`BackEnd::clock`], and reads that do not wait.
//!
//! Crossing threads costs two wake-ups, and bytes are copied once more. On tmpfs, 2 cores: a look takes 4 µs by itself and 15 µs so on an idle
//! machine, 60 µs on one with other work for all cores; 4 MiB that are read take 0.8 and 1.7 ms; a name of a listing costs a sixth more
//! (`cargo test -p backend --test deadlined -- --ignored --nocapture`, which prints them anew).
//!
//! Dropping it waits for nothing; sources and versions that are still there keep its threads.

use std::{ops::ControlFlow, sync::Arc, time::Instant};

use link::{
    Abilities, Attributes, Attrs, BackEnd, Clock, Detail, Found, Making, Over, Reachable, Source, Survey,
    Version, Wanted, Way,
};
use types::{Errno, FileKind};

use crate::{
    call::Call,
    handed::{HandedSource, HandedVersion},
    lanes::{Lanes, Limits},
    listing,
    owned::{OwnedAttributes, OwnedMaking},
    tally::Counters,
};

/// Names of one directory that one thread looks at.
const PART: usize = 64;
type ForNames<B, N, T> = fn(&B, &Way, &[N]) -> Result<Vec<T>, Errno>;

/// See the module's documentation.
pub struct Deadlined<B> {
    inner: Arc<B>,
    lanes: Arc<Lanes>,
}

impl<B: BackEnd + 'static> Deadlined<B> {
    pub fn new(inner: B, limits: Limits) -> Deadlined<B> {
        Deadlined { inner: Arc::new(inner), lanes: Arc::new(Lanes::new(limits)) }
    }

    pub fn counters(&self) -> Counters {
        self.lanes.tally.counters()
    }

    /// What is behind it: calls to it have no deadline.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    fn look_by<T: Send + 'static>(
        &self,
        call: Call,
        way: &Way,
        work: impl FnOnce(&B, &Way) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let (inner, way) = (self.inner.clone(), way.to_vec());
        self.lanes.look(call, move || work(&inner, &way))
    }

    /// Many looks in one directory: each thread takes some, so that neither a change of threads nor the back end's answer is
    /// waited for at each.
    fn looks_in_parts<N: Clone + Send + 'static, T: Send + 'static>(
        &self,
        call: Call,
        dir: &Way,
        names: &[N],
        work: ForNames<B, N, T>,
    ) -> Result<Vec<T>, Errno> {
        let deadline = self.lanes.limits.deadline;
        let tickets: Vec<_> = names
            .chunks(PART)
            .map(|part| {
                let (inner, dir, part) = (self.inner.clone(), dir.to_vec(), part.to_vec());
                self.lanes.looks.begin((), None, move |()| work(&inner, &dir, &part))
            })
            .collect();
        let until = Instant::now() + deadline;
        let mut all = Vec::with_capacity(names.len());
        let mut first = Ok(());
        // All are waited for, or given up one by one: none is left in line.
        for ticket in tickets {
            match self.lanes.told(call, ticket.wait(until, deadline)) {
                Ok(part) => all.extend(part),
                Err(errno) => first = first.and(Err(errno)),
            }
        }
        first.map(|()| all)
    }

    fn change_by<T: Send + 'static>(
        &self,
        call: Call,
        way: &Way,
        work: impl FnOnce(&B, &Way) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let (inner, own) = (self.inner.clone(), way.to_vec());
        self.lanes.change(call, &[way], move || work(&inner, &own))
    }

    fn change_two_by(
        &self,
        call: Call,
        (from, to): (&Way, &Way),
        work: impl FnOnce(&B, &Way, &Way) -> Result<(), Errno> + Send + 'static,
    ) -> Result<(), Errno> {
        let (inner, own) = (self.inner.clone(), (from.to_vec(), to.to_vec()));
        self.lanes.change(call, &[from, to], move || work(&inner, &own.0, &own.1))
    }

    fn handed(
        &self,
        version: impl FnOnce(&B, &Way) -> Result<Box<dyn Version>, Errno> + Send + 'static,
        way: &Way,
    ) -> Result<Box<dyn Version>, Errno> {
        let lanes = self.lanes.clone();
        let handed = self.change_by(Call::Begin, way, move |inner, way| {
            Ok(HandedVersion::new(version(inner, way)?, lanes))
        })?;
        Ok(Box::new(handed))
    }
}

impl<B: BackEnd + 'static> BackEnd for Deadlined<B> {
    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn root(&self) -> Reachable {
        let inner = self.inner.clone();
        self.lanes.look(Call::Root, move || Ok(inner.root())).unwrap_or(Reachable::No)
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    fn space(&self) -> Result<(u64, u64), Errno> {
        self.look_by(Call::Space, &[], |inner, _| inner.space())
    }

    fn look(&self, way: &Way) -> Result<Option<Found>, Errno> {
        self.look_by(Call::Look, way, |inner, way| inner.look(way))
    }

    fn list(&self, way: &Way, visit: &mut dyn FnMut(&[u8], Found) -> ControlFlow<()>) -> Result<(), Errno> {
        listing::list(self.inner.clone(), &self.lanes, way.to_vec(), visit)
    }

    fn look_at(&self, dir: &Way, names: &[Vec<u8>]) -> Result<Vec<Option<Found>>, Errno> {
        self.looks_in_parts(Call::Look, dir, names, |inner, dir, names| inner.look_at(dir, names))
    }

    fn details(&self, dir: &Way, of: &[(Vec<u8>, FileKind)]) -> Result<Vec<Result<Detail, Errno>>, Errno> {
        self.looks_in_parts(Call::Xattrs, dir, of, |inner, dir, of| inner.details(dir, of))
    }

    fn survey(&self, dir: &Way, wanted: &Wanted) -> Result<Survey, Errno> {
        let (inner, dir, wanted) = (self.inner.clone(), dir.to_vec(), *wanted);
        self.lanes.look(Call::List, move || inner.survey(&dir, &wanted))
    }

    fn readlink(&self, way: &Way) -> Result<Vec<u8>, Errno> {
        self.look_by(Call::Readlink, way, |inner, way| inner.readlink(way))
    }

    fn xattrs(&self, way: &Way) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Errno> {
        self.look_by(Call::Xattrs, way, |inner, way| inner.xattrs(way))
    }

    fn open(&self, way: &Way) -> Result<(Box<dyn Source>, Found), Errno> {
        let (inner, own, lanes) = (self.inner.clone(), way.to_vec(), self.lanes.clone());
        let (source, found) = self.lanes.read(Call::Open, move || {
            let (source, found) = inner.open(&own)?;
            Ok((HandedSource::new(source, lanes), found))
        })?;
        Ok((Box::new(source), found))
    }

    fn make(&self, way: &Way, what: &Making<'_>) -> Result<Found, Errno> {
        let what = OwnedMaking::of(what);
        self.change_by(Call::Make, way, move |inner, way| what.use_by(|what| inner.make(way, what)))
    }

    fn begin_version(&self, way: &Way) -> Result<Box<dyn Version>, Errno> {
        self.handed(|inner, way| inner.begin_version(way), way)
    }

    fn begin_in_place(&self, way: &Way) -> Result<Box<dyn Version>, Errno> {
        self.handed(|inner, way| inner.begin_in_place(way), way)
    }

    fn rename(&self, from: &Way, to: &Way, over: Over) -> Result<(), Errno> {
        self.change_two_by(Call::Rename, (from, to), move |inner, from, to| inner.rename(from, to, over))
    }

    fn link(&self, from: &Way, to: &Way) -> Result<(), Errno> {
        self.change_two_by(Call::Link, (from, to), |inner, from, to| inner.link(from, to))
    }

    fn unlink(&self, way: &Way) -> Result<(), Errno> {
        self.change_by(Call::Unlink, way, |inner, way| inner.unlink(way))
    }

    fn rmdir(&self, way: &Way) -> Result<(), Errno> {
        self.change_by(Call::Rmdir, way, |inner, way| inner.rmdir(way))
    }

    fn set_attributes(&self, way: &Way, what: Attrs, to: &Attributes<'_>) -> Result<(), Errno> {
        let to = OwnedAttributes::of(to);
        self.change_by(Call::SetAttributes, way, move |inner, way| {
            inner.set_attributes(way, what, &to.as_ref())
        })
    }

    fn set_xattr(&self, way: &Way, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
        let (name, value) = (name.to_vec(), value.map(<[u8]>::to_vec));
        self.change_by(Call::SetXattr, way, move |inner, way| inner.set_xattr(way, &name, value.as_deref()))
    }

    fn sync(&self, way: &Way) -> Result<(), Errno> {
        let (inner, own) = (self.inner.clone(), way.to_vec());
        // It changes no name: one that hangs keeps nobody away.
        self.lanes.change(Call::Sync, &[], move || inner.sync(&own))
    }
}
