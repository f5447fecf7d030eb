//! What is pending, and its lock: the log, the moments at which closed files are to be published, and the looks that are
//! under way.
//!
//! The lock comes after the slots' ([`mds`]), and no call to the back end is made while it is held. A change of the log, or of
//! what is remembered of the back end, is in the store before the lock is let go, or is undone ([`Change`], [`Ledger::transact`]).

use std::collections::{BTreeMap, BTreeSet};

use link::{Clash, Log, Op, Settings, Work};
use mds::Mds;
use namespace::{
    Env,
    txn::{KvError, Txn},
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use types::{Errno, FileKind, Ino, Timestamp};

use crate::records::{self, Committed, Entry};

pub(crate) struct Pending {
    pub log: Log,
    /// Files whose newest version is to be published at a time.
    publish_at: BTreeSet<(Timestamp, Ino)>,
    moment_of: BTreeMap<Ino, Timestamp>,
    /// Of files that are written: not later than this.
    latest: BTreeMap<Ino, Timestamp>,
    looks: BTreeMap<u64, Touched>,
    /// What steps that are being made have to do with: a look that begins now may find it as it was before, or after.
    flying: BTreeMap<Ino, Touched>,
    /// Files whose version is there and recorded, and whose object is being told so.
    pub telling: BTreeSet<Ino>,
    looks_made: u64,
}

/// What steps had to do with since a look began.
#[derive(Clone, Default)]
pub(crate) struct Touched {
    pub inos: BTreeSet<Ino>,
    /// Names that they gave, by directory.
    pub names: BTreeSet<(Ino, Vec<u8>)>,
}

impl Touched {
    fn by(entry: &link::Entry) -> Touched {
        let places = entry.step.target().into_iter().chain(entry.step.source());
        Touched {
            inos: [entry.ino].into_iter().chain(entry.step.over()).collect(),
            names: places.map(|at| (at.dir, at.name.clone())).collect(),
        }
    }

    fn add(&mut self, other: &Touched) {
        self.inos.extend(&other.inos);
        self.names.extend(other.names.iter().cloned());
    }
}

impl Pending {
    /// `now`: what was written and had not come to be due when the last process ended is due.
    pub fn load(settings: Settings, works: Vec<(Ino, Work)>, now: Timestamp) -> Result<Pending, Clash> {
        let unpublished = |work: &Work| work.kind == FileKind::Regular && is_unpublished(work);
        let moments: Vec<Ino> =
            works.iter().filter(|(_, work)| unpublished(work)).map(|(ino, _)| *ino).collect();
        let mut pending = Pending {
            log: Log::rebuild(settings, works)?,
            publish_at: BTreeSet::new(),
            moment_of: BTreeMap::new(),
            latest: BTreeMap::new(),
            looks: BTreeMap::new(),
            flying: BTreeMap::new(),
            telling: BTreeSet::new(),
            looks_made: 0,
        };
        moments.into_iter().for_each(|ino| pending.set_moment(ino, now));
        Ok(pending)
    }

    /// Somebody writes it: published some time after the first byte, if it is never closed.
    pub fn note_open(&mut self, ino: Ino, now: Timestamp, settings: &crate::Settings) {
        let latest = *self.latest.entry(ino).or_insert_with(|| now.plus(settings.publish_latest));
        self.set_moment(ino, latest);
    }

    /// Nobody writes it any more.
    pub fn note_closed(&mut self, ino: Ino, now: Timestamp, settings: &crate::Settings) {
        let soon = now.plus(settings.publish_after);
        self.set_moment(ino, self.latest.get(&ino).map_or(soon, |latest| soon.min(*latest)));
    }

    fn set_moment(&mut self, ino: Ino, at: Timestamp) {
        if let Some(before) = self.moment_of.insert(ino, at) {
            self.publish_at.remove(&(before, ino));
        }
        self.publish_at.insert((at, ino));
    }

    pub fn forget_moments(&mut self, ino: Ino) {
        self.latest.remove(&ino);
        if let Some(at) = self.moment_of.remove(&ino) {
            self.publish_at.remove(&(at, ino));
        }
    }

    /// Makes due what has come to its moment.
    pub fn make_due(&mut self, now: Timestamp) {
        while let Some((_, ino)) = self.publish_at.first().copied().filter(|(at, _)| *at <= now) {
            self.publish(now, ino);
        }
    }

    /// Has the newest version of a file published. `false`: they have it.
    pub fn publish(&mut self, now: Timestamp, ino: Ino) -> bool {
        self.forget_moments(ino);
        let Some(work) = self.log.get(ino).filter(|work| is_unpublished(work)) else { return false };
        let version = work.written.max(1);
        self.log.push(now, ino, FileKind::Regular, Op::Publish { version });
        true
    }

    /// The number of the next version of a file.
    pub fn next_version(&self, ino: Ino) -> u64 {
        self.log.get(ino).map_or(0, |work| work.written.max(work.published)) + 1
    }

    /// Is something of ours not applied among the names of a directory?
    pub fn changes_names_of(&self, dir: Ino) -> bool {
        self.log.left_in(dir).next().is_some() || self.log.gains_in(dir)
    }

    /// One that the back end refused, and why.
    pub fn refused(&self) -> Option<(Ino, Errno)> {
        self.log.held().find_map(|(ino, trouble)| match trouble {
            link::Trouble::Refused(errno) => Some((ino, errno)),
            link::Trouble::Later | link::Trouble::Conflict(_) | link::Trouble::Gone => None,
        })
    }

    /// What waits until a directory is settled, and the directories of its names.
    pub fn held_by_theirs(&self) -> Vec<(Ino, BTreeSet<Ino>)> {
        let of_theirs = |trouble| match trouble {
            link::Trouble::Conflict(_) | link::Trouble::Gone => true,
            link::Trouble::Later | link::Trouble::Refused(_) => false,
        };
        let held = self.log.held().filter(|(_, trouble)| of_theirs(*trouble));
        held.map(|(ino, _)| {
            let names = self.log.get(ino).into_iter().flat_map(|work| work.minus.iter().chain(&work.plus));
            (ino, names.map(|at| at.dir).collect())
        })
        .collect()
    }

    /// Is a step being made?
    pub fn is_anything_flying(&self) -> bool {
        !self.flying.is_empty()
    }

    pub fn next_moment(&self) -> Option<Timestamp> {
        let moment = self.publish_at.first().map(|(at, _)| *at);
        [moment, self.log.next_deadline()].into_iter().flatten().min()
    }

    pub fn begin_look(&mut self) -> u64 {
        self.looks_made += 1;
        let mut touched = Touched::default();
        self.flying.values().for_each(|step| touched.add(step));
        self.looks.insert(self.looks_made, touched);
        self.looks_made
    }

    pub fn end_look(&mut self, look: u64) {
        self.looks.remove(&look);
    }

    pub fn touched(&self, look: u64) -> Touched {
        self.looks.get(&look).cloned().unwrap_or_default()
    }

    /// A step is about to be made: what looks find of this is not sure.
    pub fn touch(&mut self, entry: &link::Entry) {
        let step = Touched::by(entry);
        self.looks.values_mut().for_each(|touched| touched.add(&step));
        self.flying.insert(entry.ino, step);
    }

    /// It is made, or was not, and the log knows.
    pub fn landed(&mut self, entry: &link::Entry) {
        self.flying.remove(&entry.ino);
    }
}

/// It has data that the back end has not, and that nobody asked for yet.
pub(crate) fn is_unpublished(work: &Work) -> bool {
    !work.deleted
        && (work.writing || work.written > work.published)
        && work.due.is_none_or(|due| due < work.written)
}

/// What is done in a transaction, with the log.
type Run<'a, V> = &'a mut dyn FnMut(Within<'_, '_>, &mut Pending) -> namespace::Result<V>;
type Within<'a, 'b> = (&'a mut dyn Txn, &'a Env, &'a mut mds::Context<'b>);

pub(crate) struct Ledger {
    pub mds: std::sync::Arc<Mds>,
    pending: Mutex<Pending>,
    /// Something was pushed, applied or has failed.
    pub turned: Condvar,
}

impl Ledger {
    pub fn new(mds: std::sync::Arc<Mds>, pending: Pending) -> Ledger {
        Ledger { mds, pending: Mutex::new(pending), turned: Condvar::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock()
    }

    /// To change the log in a transaction of the metadata, which the caller commits while the change lives.
    pub fn change(&self) -> Change<'_> {
        Change { ledger: self, pending: self.lock(), inos: Vec::new(), committed: false }
    }

    /// A transaction of the metadata that reads and writes records of the back end, with the log locked until it is committed: a
    /// step that is recorded in between would be forgotten with what was read before it.
    pub fn transact<V>(&self, inos: &[Ino], run: Run<'_, V>) -> Result<V, Errno> {
        let (value, _pending) = self.mds.transact(inos, &mut |txn, env, context| {
            let mut pending = self.lock();
            let value = run((txn, env, context), &mut pending)?;
            Ok((value, pending))
        })?;
        Ok(value)
    }

    /// Changes the log, and stores it by itself; `more` goes into the same commit.
    pub fn alter<V>(
        &self,
        durable: bool,
        alter: impl FnOnce(&mut Pending) -> (V, Vec<Entry>),
    ) -> Result<V, Errno> {
        let mut change = self.change();
        let (value, mut entries) = alter(&mut change.pending);
        entries.extend(change.entries());
        if !entries.is_empty() {
            self.mds.put_records(&entries, durable)?;
        }
        change.commit();
        Ok(value)
    }
}

/// A change of the log that is being committed. Dropped without [`Change::commit`] it has not been: what is stored counts.
pub(crate) struct Change<'a> {
    ledger: &'a Ledger,
    pub pending: MutexGuard<'a, Pending>,
    inos: Vec<Ino>,
    committed: bool,
}

impl Change<'_> {
    /// What changed, as entries of a commit.
    pub fn entries(&mut self) -> Vec<Entry> {
        let changed = self.pending.log.changed();
        self.inos.extend(changed.iter().map(|(ino, _)| *ino));
        changed.iter().map(|(ino, work)| records::work_entry(*ino, work.as_ref())).collect()
    }

    /// Puts what changed into the transaction.
    pub fn put(&mut self, txn: &mut dyn Txn) {
        for (ino, work) in self.pending.log.changed() {
            records::put_work(txn, ino, work.as_ref());
            self.inos.push(ino);
        }
    }

    pub fn commit(mut self) {
        self.committed = true;
    }

    fn restore(&mut self) -> Result<(), KvError> {
        // What was changed and not put yet, too.
        let unput: Vec<Ino> = self.pending.log.changed().into_iter().map(|(ino, _)| ino).collect();
        for ino in std::mem::take(&mut self.inos).into_iter().chain(unput) {
            let work = records::work_of(&Committed(&self.ledger.mds), ino)?;
            self.pending.log.restore(ino, work);
        }
        Ok(())
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.committed {
            self.ledger.turned.notify_all();
            return;
        }
        if let Err(error) = self.restore() {
            // The store takes no commits then either: what the log believes can do no harm, and the next start reads it again.
            tracing::error!(%error, "the log of linked near-line could not be read again");
        }
    }
}
