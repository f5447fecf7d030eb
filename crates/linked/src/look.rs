//! Looks: whether what the back end has is still what we remember, when somebody comes by and the last look is older than the interval.
//!
//! One look at an inode at a time; who comes meanwhile waits for it. A back end in trouble does not keep anyone from what we have.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::ControlFlow,
    time::Duration,
};

use link::{Change as Difference, Detail, Found, LinkRecord, Names, Place, Seen, Taken, compare};
use types::{Errno, FileKind, Ino};

use crate::{
    Linked,
    agree::{After, Level, theirs},
    gather,
    looks::At,
    records::{self, Committed},
    survey::is_as_before,
    walk::By,
};

/// Rounds of one look, when a comparison asks for another.
const ROUNDS: usize = 3;
/// How often, and after what pauses, a directory is looked for that a step of ours is moving.
const MOVING_TRIES: usize = 20;
const MOVING_PAUSE: Duration = Duration::from_millis(50);
/// Objects of one directory whose attributes are asked for together.
const DETAILS: usize = 1024;

impl Linked {
    /// Is it time to look at this inode? Asked before each use; costs no call.
    pub fn is_due(&self, ino: Ino) -> bool {
        self.looks.is_due(At::Itself(ino), self.settings.interval) && !self.is_away()
    }

    /// As [`Linked::is_due`], of the names of a directory.
    pub fn are_names_due(&self, dir: Ino) -> bool {
        self.looks.is_due(At::Names(dir), self.settings.interval)
    }

    /// Before names of a directory are looked up or listed. `EIO`, `ETIMEDOUT`: its names were never seen, and cannot be now.
    pub fn visit_dir(&self, dir: Ino) -> Result<(), Errno> {
        self.visit_dir_by(dir, By::Visitor)
    }

    pub(crate) fn visit_dir_by(&self, dir: Ino, by: By) -> Result<(), Errno> {
        if !self.are_names_due(dir) {
            return Ok(());
        }
        if self.ledger.mds.is_apart(dir).unwrap_or(false) {
            // Whatever they have in it.
            self.looks.note(At::Names(dir));
            return Ok(());
        }
        let Some(_running) = self.looks.begin(At::Names(dir), self.settings.deadline) else { return Ok(()) };
        let Some(record) = self.dir_record(dir)? else {
            // Made here, and not there yet.
            self.looks.note(At::Names(dir));
            return Ok(());
        };
        let listed = record.seen.proof != link::Proof::Void;
        if listed && self.is_away() {
            return Ok(());
        }
        let mut looked = self.look_at_dir(dir);
        // Of what was never listed nothing can be shown: it is waited for.
        for _ in 0..MOVING_TRIES {
            if listed || looked != Err(Errno::EBUSY) || self.is_stopping() {
                break;
            }
            std::thread::sleep(MOVING_PAUSE);
            looked = self.look_at_dir(dir);
        }
        match looked {
            Ok(()) => {
                self.looks.note(At::Names(dir));
                self.looks.note(At::Itself(dir));
                if !listed {
                    self.walks.imported(dir, by);
                }
                Ok(())
            }
            // The next look finds it where it is then.
            Err(Errno::EBUSY) if listed => Ok(()),
            Err(errno) => {
                self.in_trouble(errno, listed, &format!("a directory cannot be looked at (inode {dir})"))
            }
        }
    }

    /// Before the attributes or the data of an inode are used.
    pub fn visit(&self, ino: Ino) -> Result<(), Errno> {
        if !self.is_due(ino) {
            return Ok(());
        }
        let Some(_running) = self.looks.begin(At::Itself(ino), self.settings.deadline) else { return Ok(()) };
        let Some(record) = self.record_of(ino)? else {
            self.looks.note(At::Itself(ino));
            return Ok(());
        };
        let settled = record.seen.kind != FileKind::Directory
            // What keeps others from being looked at is no trouble of this one.
            && self.look_with_others(ino, &record).unwrap_or(false);
        if settled {
            return Ok(());
        }
        match self.look_at_one(ino, &record) {
            Ok(()) => {
                self.looks.note(At::Itself(ino));
                Ok(())
            }
            Err(errno) => self.in_trouble(errno, true, &format!("a file cannot be looked at (inode {ino})")),
        }
    }

    /// The directory of a step that cannot be done, as soon as may be: what it meets there is of theirs.
    pub(crate) fn look_soon(&self, entry: &link::Entry) {
        let places = entry.step.target().into_iter().chain(entry.step.source()).map(|at| at.dir);
        let own = self.record_of(entry.ino).ok().flatten().map(|record| record.place.dir);
        let dirs: BTreeSet<Ino> = places.chain(own).collect();
        self.line_up(dirs);
    }

    /// Of every step that waits for a look.
    pub(crate) fn look_at_waiting(&self) {
        let waiting = self.ledger.lock().held_by_theirs();
        for (ino, mut dirs) in waiting {
            dirs.extend(self.record_of(ino).ok().flatten().map(|record| record.place.dir));
            self.line_up(dirs);
        }
    }

    fn line_up(&self, dirs: BTreeSet<Ino>) {
        for dir in dirs {
            self.looks.forget(At::Names(dir));
            // Its times may be what they were, and it is not what we believe.
            let _ = self.unsettle(dir);
            let _ = self.to_visit.try_send(dir);
        }
    }

    /// Whatever the last looks at an inode and its directory said.
    pub(crate) fn look_again(&self, ino: Ino) {
        self.looks.forget(At::Itself(ino));
        if let Ok(Some(record)) = self.record_of(ino) {
            let dir = record.place.dir;
            self.looks.forget(At::Names(dir));
            let looked = self.unsettle(dir).and_then(|()| self.visit_dir(dir)).and_then(|()| self.visit(ino));
            if let Err(errno) = looked {
                tracing::debug!(%ino, %errno, "a file could not be looked at again");
            }
        }
    }

    /// It has to be listed at the next look, whatever its times say.
    pub(crate) fn unsettle(&self, dir: Ino) -> Result<(), Errno> {
        // Nobody remembers it as settled in between.
        let _log = self.ledger.lock();
        let Some(mut record) = self.record_of(dir)? else { return Ok(()) };
        // Not void: that is a directory of which nobody has seen a name.
        if record.seen.proof != link::Proof::Firm {
            return Ok(());
        }
        record.seen.proof = link::Proof::Racy;
        self.ledger.mds.put_records(&[records::link_entry(dir, Some(&record))], false)
    }

    fn in_trouble(&self, errno: Errno, has_it: bool, what: &str) -> Result<(), Errno> {
        if is_of_the_back_end(errno) {
            self.trouble(errno, what);
        } else {
            tracing::warn!(%errno, "a look at the linked directory failed: {what}");
        }
        // Not before the next interval: what is asked for often must not wait for a deadline each time.
        if has_it { Ok(()) } else { Err(if errno == Errno::ETIMEDOUT { errno } else { Errno::EIO }) }
    }

    fn dir_record(&self, dir: Ino) -> Result<Option<LinkRecord>, Errno> {
        match self.record_of(dir)? {
            None if dir == Ino::ROOT => {
                // Never seen: all of it is new.
                let found = self.back.look(&[])?.ok_or(Errno::ENOENT)?;
                let seen = link::Seen { proof: link::Proof::Void, ..found.seen };
                Ok(Some(self.record(seen, &Place::new(Ino::ROOT, b"root"))))
            }
            other => Ok(other),
        }
    }

    /// `EBUSY`: a step of ours is moving it.
    fn look_at_dir(&self, dir: Ino) -> Result<(), Errno> {
        // Before its record is read: what a step does about it from now on is known.
        let look = self.ledger.lock().begin_look();
        let result = self.look_at_names(dir, look);
        self.ledger.lock().end_look(look);
        match result? {
            Some(parent) => self.look_at_parent(dir, parent),
            None => Ok(()),
        }
    }

    /// The directory that holds it, if that one says what became of it.
    fn look_at_names(&self, dir: Ino, look: u64) -> Result<Option<Ino>, Errno> {
        let Some(record) = self.dir_record(dir)? else { return Ok(None) };
        let way = self.way_of_dir(dir)?;
        let always = !self.back.abilities().directory_times || self.is_waited_for(dir)?;
        let Taken { found, names } = self.survey(&way, &record, always)?;
        let Some(found) = found else { return Ok(Some(record.place.dir)) };
        match compare(&record.seen, Some(&found.seen)) {
            Difference::Nothing | Difference::Attributes if always => {
                self.list_and_agree(dir, &way, (found, look), names)?;
            }
            Difference::Nothing => self.settle_dir(dir, &record, found)?,
            Difference::Attributes => self.refresh_dir(dir, &record, found)?,
            Difference::Unproven | Difference::Data => {
                self.list_and_agree(dir, &way, (found, look), names)?;
            }
            Difference::Replaced | Difference::OtherKind | Difference::Gone if dir == Ino::ROOT => {
                self.list_and_agree(dir, &way, (found, look), names)?;
            }
            Difference::Replaced if found.seen.kind == FileKind::Directory => {
                self.list_and_agree(dir, &way, (found, look), names)?;
            }
            Difference::Replaced | Difference::OtherKind | Difference::Gone => {
                return Ok(Some(record.place.dir));
            }
        }
        Ok(None)
    }

    /// Does something that we want to do there wait until the directory is settled?
    fn is_waited_for(&self, dir: Ino) -> Result<bool, Errno> {
        let held = self.ledger.lock().held_by_theirs();
        for (ino, dirs) in held {
            if dirs.contains(&dir) || self.record_of(ino)?.is_some_and(|record| record.place.dir == dir) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// It is not what it was: its directory says what became of it.
    fn look_at_parent(&self, ino: Ino, parent: Ino) -> Result<(), Errno> {
        // In what an unmounted file system left in its place nothing is.
        self.check_root()?;
        if ino == Ino::ROOT || parent == ino {
            return Err(Errno::EIO);
        }
        self.unsettle(parent)?;
        self.looks.forget(At::Names(parent));
        self.visit_dir(parent)
    }

    /// Theirs is as it was. Ours may have other times, of changes that came to nothing.
    fn settle_dir(&self, dir: Ino, record: &LinkRecord, found: Found) -> Result<(), Errno> {
        let same = self.ledger.mds.find(dir)?.attr.mtime == found.seen.mtime;
        let pending = self.ledger.lock().changes_names_of(dir);
        if same || pending { Ok(()) } else { self.refresh_dir(dir, record, found) }
    }

    fn refresh_dir(&self, dir: Ino, record: &LinkRecord, found: Found) -> Result<(), Errno> {
        self.ledger.transact(&[dir], &mut |(txn, env, _), pending| {
            // A step of ours was made since: the next look sees what is there then.
            if dir != Ino::ROOT && records::link_of(&*txn, dir)?.as_ref() != Some(record) {
                return Ok(());
            }
            let apart = namespace::inode::load(&*txn, dir)?.is_apart();
            let has_pending = apart || pending.changes_names_of(dir);
            let keep = gather::kept(pending.log.get(dir), true, has_pending);
            namespace::refresh(txn, env, dir, &theirs(&found), keep)?;
            records::put_link(txn, dir, &self.record(found.seen, &record.place));
            Ok(())
        })?;
        self.tell(crate::News { inodes: vec![dir], ..crate::News::default() });
        Ok(())
    }

    fn look_at_one(&self, ino: Ino, record: &LinkRecord) -> Result<(), Errno> {
        if record.seen.kind == FileKind::Directory {
            // Its names are looked at when somebody wants them.
            let way = self.way_of_dir(ino)?;
            return match self.back.look(&way)? {
                Some(found) if compare(&record.seen, Some(&found.seen)) == Difference::Attributes => {
                    self.check_root()?;
                    self.refresh_dir(ino, record, found)
                }
                Some(_) | None => Ok(()),
            };
        }
        let way = self.way_of(&record.place)?;
        let look = self.ledger.lock().begin_look();
        let result = self.look_at_file(ino, record, &way, look);
        self.ledger.lock().end_look(look);
        result
    }

    fn look_at_file(&self, ino: Ino, record: &LinkRecord, way: &[Vec<u8>], look: u64) -> Result<(), Errno> {
        let found = match self.back.look(way) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => None,
            other => other?,
        };
        match (compare(&record.seen, found.as_ref().map(|found| &found.seen)), found) {
            (Difference::Nothing, _) => Ok(()),
            (Difference::Attributes | Difference::Unproven | Difference::Data, Some(found)) => {
                self.check_root()?;
                let level = Level {
                    entries: BTreeMap::from([(record.place.name.clone(), found)]),
                    only: Some(ino),
                    ..Level::default()
                };
                let after = self.agree(record.place.dir, &level, look)?;
                self.finish(after)
            }
            (_, _) => self.look_at_parent(ino, record.place.dir),
        }
    }

    /// `names`: it was listed already.
    fn list_and_agree(
        &self,
        dir: Ino,
        way: &[Vec<u8>],
        (found, look): (Found, u64),
        mut names: Option<Names>,
    ) -> Result<(), Errno> {
        let mut found = found;
        for _ in 0..ROUNDS {
            let level = match names.take() {
                Some(names) => self.level_of(dir, way, found, names)?,
                None => {
                    let level = self.list(dir, way, found)?;
                    // What an unmounted file system left in its place is not what is there.
                    self.check_root()?;
                    level
                }
            };
            let after = self.agree(dir, &level, look)?;
            let again = after.again;
            self.finish(after)?;
            if !again {
                return Ok(());
            }
            found = self.back.look(way)?.ok_or(Errno::ENOENT)?;
        }
        Ok(())
    }

    fn list(&self, dir: Ino, way: &[Vec<u8>], found: Found) -> Result<Level, Errno> {
        let mut level = Level { dir: Some(found), way: Some(way.to_vec()), ..Level::default() };
        self.back.list(way, &mut |name, found| {
            level.entries.insert(name.to_vec(), found);
            ControlFlow::Continue(())
        })?;
        level.whole = is_as_before(&found, self.back.look(way)?.as_ref());
        self.fetch_news(dir, way, BTreeMap::new(), &mut level)?;
        self.counters.listed.add(1);
        Ok(level)
    }

    /// What an import needs, of what we do not have; of some it is there.
    pub(crate) fn fetch_news(
        &self,
        dir: Ino,
        way: &[Vec<u8>],
        mut given: BTreeMap<Vec<u8>, Result<Detail, Errno>>,
        level: &mut Level,
    ) -> Result<(), Errno> {
        let known: HashMap<Vec<u8>, Ino> = gather::names_in(&Committed(&self.ledger.mds), dir)
            .map_err(records::errno)?
            .into_iter()
            .map(|(name, ino, _)| (name, ino))
            .collect();
        let xattrs = self.back.abilities().xattrs;
        let (mut unknown, mut at_hand) = (Vec::new(), Vec::new());
        for (name, found) in &level.entries {
            let is_known = match known.get(name) {
                Some(ino) => {
                    self.record_of(*ino)?.is_some_and(|record| record.seen.is_same_object(&found.seen))
                }
                None => false,
            };
            if !is_known && (xattrs || found.seen.kind == FileKind::Symlink) {
                match given.remove(name) {
                    Some(detail) => at_hand.push((name.clone(), found.seen.kind, detail)),
                    None => unknown.push((name.clone(), found.seen.kind)),
                }
            }
        }
        for (name, kind, detail) in at_hand {
            level.take_detail(way, (&name, kind), detail)?;
        }
        for part in unknown.chunks(DETAILS) {
            for ((name, kind), detail) in part.iter().zip(self.back.details(way, part)?) {
                level.take_detail(way, (name, *kind), detail)?;
            }
        }
        Ok(())
    }

    /// What a look asks for after its commit.
    fn finish(&self, after: After) -> Result<(), Errno> {
        let After { drop_copies, put_back, xattrs, lost, news, .. } = after;
        self.tell(news);
        for (ino, lost) in lost {
            self.put_right(ino, &lost)?;
        }
        for (ino, found, agreed) in drop_copies {
            self.take_theirs(ino, found, agreed)?;
        }
        for ino in xattrs {
            self.take_xattrs(ino)?;
        }
        for dir in put_back {
            self.put_back(dir)?;
        }
        // A look changes what can be done only if there is something to do.
        if self.ledger.lock().log.lag().entries > 0 {
            self.call();
        }
        Ok(())
    }

    /// They have nothing of a directory any more: what we have in it is made anew, or goes if it only was there.
    fn put_back(&self, ino: Ino) -> Result<(), Errno> {
        if self.ledger.mds.find(ino)?.attr.kind != FileKind::Directory {
            return Ok(());
        }
        let look = self.ledger.lock().begin_look();
        let after = self.agree(ino, &Level { whole: true, ..Level::default() }, look);
        self.ledger.lock().end_look(look);
        self.finish(after?)
    }

    fn take_xattrs(&self, ino: Ino) -> Result<(), Errno> {
        let Some(record) = self.record_of(ino)?.filter(|_| self.back.abilities().xattrs) else {
            return Ok(());
        };
        let way = self.way_of_inode(ino, &record)?;
        let theirs = match self.back.xattrs(&way) {
            Ok(theirs) => theirs,
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        self.ledger.transact(&[ino], &mut |(txn, ..), pending| {
            if pending.log.get(ino).is_none_or(|work| work.xattrs.is_empty()) {
                namespace::import_xattrs(txn, ino, &theirs)?;
            }
            Ok(())
        })
    }

    /// A link or a special file that was made anew.
    fn take_other(&self, ino: Ino, found: Found) -> Result<(), Errno> {
        let Some(record) = self.record_of(ino)? else { return Ok(()) };
        let target = match found.seen.kind {
            FileKind::Symlink => self.back.readlink(&self.way_of(&record.place)?)?,
            FileKind::Regular
            | FileKind::Directory
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => Vec::new(),
        };
        self.ledger.transact(&[ino], &mut |(txn, env, _), pending| {
            if found.seen.kind == FileKind::Symlink {
                namespace::retarget(txn, env, ino, &target)?;
            }
            let keep = gather::kept(pending.log.get(ino), false, false);
            namespace::refresh(txn, env, ino, &theirs(&found), keep)?;
            records::put_link(txn, ino, &self.record(found.seen, &record.place));
            Ok(())
        })?;
        self.counters.renewed.add(1);
        self.tell(crate::News { inodes: vec![ino], pages: vec![ino], ..crate::News::default() });
        Ok(())
    }

    /// Their bytes are other ones now, and ours were not changed: ours are given up.
    fn take_theirs(&self, ino: Ino, found: Found, agreed: Seen) -> Result<(), Errno> {
        if found.seen.kind != FileKind::Regular {
            return self.take_other(ino, found);
        }
        let held = self.hold(ino)?;
        let mut untold = false;
        let commit = &mut |noted: bool| {
            self.ledger.transact(&[ino], &mut |(txn, env, _), pending| {
                let work = pending.log.get(ino);
                // Changed here since: both have changed, and the next look says so.
                if work.is_some_and(|work| work.due.is_some() || crate::pending::is_unpublished(work)) {
                    return Err(namespace::Error::Errno(Errno::EBUSY));
                }
                // A crash came before it was recorded that near-line has our version. If ours is not what was agreed on either,
                // it was changed, and nobody told of that.
                let inode = namespace::inode::load(&*txn, ino)?;
                untold = !noted
                    && inode.live_epoch == 0
                    && (inode.size, inode.mtime) != (agreed.size, agreed.mtime);
                if untold || (!noted && inode.live_epoch != 0) {
                    return Err(namespace::Error::Errno(Errno::EBUSY));
                }
                namespace::refresh_stub(txn, env, ino, &theirs(&found), gather::kept(work, false, false))?;
                // A step of ours was made since: the next look sees what is there then.
                let Some(record) = records::link_of(&*txn, ino)?.filter(|record| record.seen == agreed)
                else {
                    return Err(namespace::Error::Errno(Errno::EBUSY));
                };
                records::put_link(txn, ino, &self.record(found.seen, &record.place));
                Ok(())
            })?;
            Ok(self.ledger.mds.last_lsn())
        };
        match self.ds()?.become_stub_if(held.object(), found.seen.size, commit) {
            Ok(()) => {
                self.counters.renewed.add(1);
                self.tell(crate::News { inodes: vec![ino], pages: vec![ino], ..crate::News::default() });
                Ok(())
            }
            // Somebody reads it in place, or writes it: the next look comes again.
            Err(Errno::EBUSY) => {
                tracing::debug!(%ino, untold, "theirs is not taken over now: ours is in use");
                self.looks.forget(At::Itself(ino));
                if untold { self.tell_of_change(ino) } else { Ok(()) }
            }
            Err(errno) => Err(errno),
        }
    }

    /// A version more, that nobody told of: the next look finds that both changed.
    fn tell_of_change(&self, ino: Ino) -> Result<(), Errno> {
        let now = self.now();
        self.ledger.alter(false, |pending| {
            let version = pending.next_version(ino);
            pending.log.push(now, ino, FileKind::Regular, link::Op::Written { version });
            pending.note_closed(ino, now, &self.settings);
            ((), Vec::new())
        })
    }
}

/// Errors that say something of the back end, and not of one object in it.
fn is_of_the_back_end(errno: Errno) -> bool {
    use Errno::{EACCES, EAGAIN, EIO, EMFILE, ENODEV, ENOMEM, ENXIO, EPERM, ESTALE, ETIMEDOUT};
    matches!(errno, EACCES | EAGAIN | EIO | EMFILE | ENODEV | ENOMEM | ENXIO | EPERM | ESTALE | ETIMEDOUT)
}
