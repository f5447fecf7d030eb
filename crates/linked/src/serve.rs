//! What the data server asks: their file for reading, and to have ours published.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use link::{Change as Difference, Source, Staged, compare};
use types::{Errno, Ino};

use crate::{Linked, looks::At, pending::is_unpublished, records, waiting::refusal};

/// Who waits for all to be applied says what there is to wait for.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// How often, and after what pauses, a file that is not what we remember is looked for.
const STALE_TRIES: usize = 20;
const STALE_PAUSE: Duration = Duration::from_millis(50);

impl ds::Linked for Linked {
    fn stub(&self, ino: Ino) -> Result<Option<ds::Stub>, Errno> {
        let found = match self.ledger.mds.find(ino) {
            // It was removed.
            Err(Errno::ESTALE) => return Ok(None),
            other => other?,
        };
        let size = found.attr.size;
        Ok(self.their_size(ino, found.data)?.map(|theirs| ds::Stub { size, theirs }))
    }

    fn open(&self, ino: Ino) -> Result<Arc<dyn Source>, Errno> {
        let mut opened = self.open_theirs(ino);
        // It is not what we remember: what it is now is found by a look, if no step of ours is in the way.
        for _ in 0..STALE_TRIES {
            if !matches!(opened, Err(Errno::ESTALE)) || self.is_stopping() {
                break;
            }
            self.look_again(ino);
            opened = self.open_theirs(ino);
            if opened.is_err() {
                std::thread::sleep(STALE_PAUSE);
            }
        }
        opened.inspect_err(|errno| {
            if *errno != Errno::ESTALE {
                self.trouble(*errno, &format!("a file cannot be opened (inode {ino})"));
            }
        })
    }

    fn publish(&self, ino: Ino, stop: &dyn Fn() -> bool) -> Result<(), Errno> {
        self.publish_now(ino, None, stop)
    }
}

impl Linked {
    /// Of a file that is linked, what their file has.
    pub fn their_size(&self, ino: Ino, data: mds::DataState) -> Result<Option<u64>, Errno> {
        if !data.linked {
            return Ok(None);
        }
        Ok(self.record_of(ino)?.map(|record| record.seen.size))
    }

    fn open_theirs(&self, ino: Ino) -> Result<Arc<dyn Source>, Errno> {
        self.check_root()?;
        let record = self.record_of(ino)?.ok_or(Errno::ESTALE)?;
        let way = self.way_of(&record.place)?;
        let (source, found) = match self.back.open(&way) {
            Ok(opened) => opened,
            // It is gone, or something else has its name: the next look says what became of it.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EISDIR | Errno::ELOOP) => {
                self.looks.forget(At::Itself(ino));
                return Err(Errno::ESTALE);
            }
            Err(errno) => return Err(errno),
        };
        let staged = self.ledger.lock().log.get(ino).and_then(|work| work.staged);
        let is_ours = match staged {
            // Renamed, and not recorded yet.
            Some(Staged::Aside(staged)) => staged.is_surely(&found.seen),
            Some(Staged::InPlace) => record.seen.is_same_object(&found.seen),
            None => false,
        };
        match compare(&record.seen, Some(&found.seen)) {
            Difference::Nothing | Difference::Attributes => Ok(Arc::from(source)),
            Difference::Unproven => self.make_firm(ino, Arc::from(source)),
            Difference::Data | Difference::Replaced if is_ours => Ok(Arc::from(source)),
            Difference::Data | Difference::Replaced | Difference::OtherKind | Difference::Gone => {
                self.looks.forget(At::Itself(ino));
                Err(Errno::ESTALE)
            }
        }
    }

    /// The last look came too soon after a change of theirs to prove anything. While we have no byte of it, another look can
    /// take its place: whatever was written before it is what will be read.
    fn make_firm(&self, ino: Ino, source: Arc<dyn Source>) -> Result<Arc<dyn Source>, Errno> {
        let clock = self.back.clock();
        let mut found = source.look()?;
        if found.seen.looked(clock).proof == link::Proof::Racy {
            // Bytes that are read before the clock has moved on may be old ones.
            std::thread::sleep(clock.step.min(self.settings.deadline));
            let clock = self.back.clock();
            found = source.look()?;
            found.seen = found.seen.looked(clock);
        } else {
            found.seen = found.seen.looked(clock);
        }
        let has_copies = self.ledger.mds.get(&namespace::key::object(ino))?.is_some();
        if found.seen.proof == link::Proof::Firm && !has_copies {
            let _log = self.ledger.lock();
            if let Some(record) = self.record_of(ino)?
                && compare(&record.seen, Some(&found.seen)) == Difference::Unproven
            {
                let firm = self.record(found.seen, &record.place);
                self.ledger.mds.put_records(&[records::link_entry(ino, Some(&firm))], false)?;
            }
        }
        Ok(source)
    }

    /// The newest versions of these files are due now.
    pub fn publish_soon(&self, inos: &[Ino]) -> Result<(), Errno> {
        let now = self.now();
        self.ledger.alter(false, |pending| {
            for ino in inos {
                pending.publish(now, *ino);
            }
            ((), Vec::new())
        })?;
        self.call();
        Ok(())
    }

    /// Waits until what is to be done to the names of a directory now is done there. Not for files whose bytes nobody asked for
    /// yet: they come with those.
    pub fn settle_names(&self, dir: Ino) -> Result<(), Errno> {
        self.call();
        let waiting: Vec<Ino> = {
            let pending = self.ledger.lock();
            let works = pending.log.works().filter(|(_, work)| changes_names(work, dir));
            works.map(|(ino, _)| ino).collect()
        };
        for ino in waiting {
            self.wait_for(ino, None, &|| false, &|log| {
                log.get(ino).is_none_or(|work| !changes_names(work, dir))
            })?;
        }
        Ok(())
    }

    /// Waits until a file that is there has its names there.
    pub fn settle_names_of(&self, ino: Ino) -> Result<(), Errno> {
        let named = |work: &link::Work| work.deleted || work.plus.is_empty() && work.minus.is_empty();
        self.wait_for(ino, None, &|| false, &|log| log.get(ino).is_none_or(named))
    }

    /// Has the newest version published, and waits for it. Without a time it waits as long as there is progress.
    pub fn publish_now(
        &self,
        ino: Ino,
        until: Option<Instant>,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Errno> {
        let now = self.now();
        let due = self.ledger.alter(false, |pending| {
            pending.publish(now, ino);
            let due = pending.log.get(ino).and_then(|work| Some((work.seq, work.due?)));
            (due, Vec::new())
        })?;
        self.call();
        let Some((seq, version)) = due else { return self.publish_again(ino, until, stop) };
        // Another number: all was applied, and the versions of what came since count from the beginning.
        self.wait_for(ino, until, stop, &|log| {
            let left = |work: &link::Work| work.seq == seq && work.published < version && !work.deleted;
            !log.get(ino).is_some_and(left)
        })
    }

    /// Nothing of it is pending, but units of it are not in near-line: a crash came before that was recorded.
    fn publish_again(&self, ino: Ino, until: Option<Instant>, stop: &dyn Fn() -> bool) -> Result<(), Errno> {
        let held = self.hold(ino)?;
        if self.ds()?.is_published(held.object()) || self.record_of(ino)?.is_none() {
            return Ok(());
        }
        let now = self.now();
        self.ledger.alter(false, |pending| {
            let version = pending.next_version(ino);
            let op = link::Op::Publish { version };
            pending.log.push(now, ino, types::FileKind::Regular, op);
            ((), Vec::new())
        })?;
        self.call();
        self.wait_for(ino, until, stop, &|log| {
            log.get(ino).is_none_or(|work| !is_unpublished(work) && work.due.is_none())
        })
    }

    /// Has all that is pending now applied, and waits for it; not for what is written meanwhile. What was refused is tried again.
    /// Ends with an error when all that is left is refused or waits for what is, or when for the deadline of a call nothing was done and nothing is being done.
    pub fn drain(&self, until: Option<Instant>, stop: &dyn Fn() -> bool) -> Result<(), Errno> {
        let newest = self.make_all_due()?;
        let mut pending = self.ledger.lock();
        let (mut said, mut moved) = (Instant::now(), (Instant::now(), self.counters.applied.get()));
        while pending.log.oldest().is_some_and(|oldest| oldest <= newest) {
            if said.elapsed() >= SAID_EVERY {
                said = Instant::now();
                say_what_waits(&pending.log);
            }
            if let Some((ino, errno)) = pending.refused()
                && !pending.is_anything_flying()
                && is_all_refused(&pending.log, newest)
            {
                let left = pending.log.lag().entries;
                tracing::warn!(%ino, %errno, left, "refused by the linked directory, with what needs it");
                return Err(errno);
            }
            if stop() {
                return Err(Errno::EINTR);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(Errno::ETIMEDOUT);
            }
            // Another directory is in its place, say: nothing will come of waiting.
            if self.is_hopeless() {
                return Err(Errno::EIO);
            }
            let applied = self.counters.applied.get();
            if applied != moved.1 || pending.is_anything_flying() {
                moved = (Instant::now(), applied);
            } else if moved.0.elapsed() > self.settings.deadline {
                return Err(self.current_trouble().map_or(Errno::EIO, |trouble| trouble.errno));
            }
            self.ledger.turned.wait_for(&mut pending, Duration::from_millis(100));
        }
        Ok(())
    }

    /// The newest work that was there.
    fn make_all_due(&self) -> Result<u64, Errno> {
        let now = self.now();
        let newest = self.ledger.alter(false, |pending| {
            let due: Vec<Ino> =
                pending.log.works().filter(|(_, work)| is_unpublished(work)).map(|(ino, _)| ino).collect();
            for ino in due {
                pending.publish(now, ino);
            }
            while let Some((ino, _)) = pending.refused() {
                pending.log.release(ino);
            }
            (pending.log.newest(), Vec::new())
        })?;
        self.call();
        Ok(newest)
    }
}

fn changes_names(work: &link::Work, dir: Ino) -> bool {
    let unmade = !work.there && is_unpublished(work);
    !unmade && work.minus.iter().chain(&work.plus).any(|at| at.dir == dir)
}

/// Does nothing of what was there wait for anything but what the back end refuses?
fn is_all_refused(log: &link::Log, newest: u64) -> bool {
    let mut works = log.works().filter(|(_, work)| work.seq <= newest);
    works.all(|(ino, _)| refusal(log, ino).is_some())
}

fn say_what_waits(log: &link::Log) {
    let first =
        log.works().next().map(|(ino, work)| (ino, work.clone(), log.trouble_of(ino), log.is_in_flight(ino)));
    tracing::info!(pending = log.lag().entries, ?first, "waiting for the linked directory");
}
