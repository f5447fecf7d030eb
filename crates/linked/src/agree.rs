//! One directory, both sides: what [`link::reconcile`] asks for is done, in one commit as far as it can be.
//!
//! The listing was made without locks. What steps had to do with meanwhile is not judged, and a directory that was not
//! settled whole is remembered as one that has to be listed again.

use std::collections::{BTreeMap, BTreeSet};

use link::{
    Action, Conflict, Found, LinkRecord, Listing, Op, Ours, Place, Proof, Seen, Trouble, Trust, Why, Xattr,
    reconcile,
};
use mds::Context;
use namespace::{Env, RenameMode, Theirs, txn::Txn};
use types::{Errno, FileKind, Ino};

use crate::{
    Linked, News,
    gather::{self, Side, gather, kept},
    looks::At,
    pending::{Change, Touched},
    records::{self, Committed},
};

/// Names that are imported in one commit.
const IMPORTS: usize = 1000;

/// What the back end has in a directory, with what an import needs besides.
#[derive(Default)]
pub(crate) struct Level {
    /// The directory itself, as it was before the listing.
    pub dir: Option<Found>,
    /// By which way it was reached, if it was listed.
    pub way: Option<Vec<Vec<u8>>>,
    pub entries: BTreeMap<Vec<u8>, Found>,
    /// As in [`Listing`].
    pub whole: bool,
    /// Of symbolic links that we do not have.
    pub targets: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Extended attributes of what we do not have.
    pub xattrs: BTreeMap<Vec<u8>, Vec<Xattr>>,
    /// Nobody else of the directory was looked at.
    pub only: Option<Ino>,
}

/// What is left to do after the commit.
#[derive(Default)]
pub(crate) struct After {
    /// With what was agreed on until now.
    pub drop_copies: Vec<(Ino, Found, Seen)>,
    pub put_back: Vec<Ino>,
    /// Attributes that their ctime may tell of.
    pub xattrs: Vec<Ino>,
    pub again: bool,
    /// Names by which we know files that have others there, and that they have no more.
    pub lost: Vec<(Ino, Place)>,
    pub news: News,
    imports: Vec<(Vec<u8>, Seen)>,
    /// Found as they were.
    looked: Vec<Ino>,
    settled: bool,
}

/// One pass over a directory, within a transaction.
struct Pass<'a, 'b> {
    linked: &'a Linked,
    txn: &'a mut dyn Txn,
    env: &'a Env,
    context: &'a mut Context<'b>,
    dir: Ino,
    level: &'a Level,
    side: Side,
    /// Whose names of ours were changed, from and to.
    aside: BTreeMap<(Ino, Vec<u8>), Vec<u8>>,
    after: After,
}

impl Linked {
    /// Settles a directory with what was listed of it since the look `look` began. `EBUSY`: a step of ours was about to give
    /// the way to another, so that it may be that one's names.
    pub(crate) fn agree(&self, dir: Ino, level: &Level, look: u64) -> Result<After, Errno> {
        let mut after = self.agree_once(dir, level, look)?;
        let imports = std::mem::take(&mut after.imports);
        let mut settled = after.settled;
        for batch in imports.chunks(IMPORTS) {
            settled &= self.import(dir, level, batch, &mut after.news)?;
        }
        if settled {
            self.remember_listed(dir, level)?;
        }
        Ok(after)
    }

    /// All actions but the imports. In one commit.
    fn agree_once(&self, dir: Ino, level: &Level, look: u64) -> Result<After, Errno> {
        let slots = match level.only {
            Some(ino) => vec![dir, ino],
            None => self.slots_of(dir)?,
        };
        let mut outcome = None;
        let change = self.ledger.mds.transact(&slots, &mut |txn, env, context| {
            let mut change = self.ledger.change();
            if is_apart(txn, dir)? {
                outcome = Some(After::default());
                return Ok(change);
            }
            let touched = change.pending.touched(look);
            if let Some(way) = &level.way
                && !self.leads_still(way, dir, &touched).map_err(namespace::Error::Errno)?
            {
                return Err(namespace::Error::Errno(Errno::EBUSY));
            }
            let side = gather((txn, env), &change.pending, &touched, (dir, level.only))?;
            let mut pass = Pass {
                linked: self,
                txn,
                env,
                context,
                dir,
                level,
                side,
                aside: BTreeMap::new(),
                after: After::default(),
            };
            pass.run(&mut change, &touched)?;
            let after = pass.after;
            change.put(txn);
            outcome = Some(after);
            Ok(change)
        })?;
        change.commit();
        self.kept.changed(dir);
        let after: After = outcome.ok_or(Errno::EIO)?;
        after.looked.iter().for_each(|ino| self.looks.note(At::Itself(*ino)));
        Ok(after)
    }

    /// One inode of each slot that is likely to be wanted: what lies below the root has slots of its own.
    fn slots_of(&self, dir: Ino) -> Result<Vec<Ino>, Errno> {
        let names = gather::names_in(&Committed(&self.ledger.mds), dir).map_err(records::errno)?;
        let mut slots = BTreeMap::from([(dir.ugsd().slot(), dir)]);
        for (_, ino, _) in names {
            slots.entry(ino.ugsd().slot()).or_insert(ino);
        }
        Ok(slots.into_values().collect())
    }

    /// Some new names. `false`: some could not be taken.
    fn import(
        &self,
        dir: Ino,
        level: &Level,
        batch: &[(Vec<u8>, Seen)],
        news: &mut News,
    ) -> Result<bool, Errno> {
        let (mut taken, mut looked) = (Vec::new(), Vec::new());
        let whole = self.ledger.transact(&[dir], &mut |(txn, env, context), _| {
            taken.clear();
            looked.clear();
            // It became transient since it was listed.
            if is_apart(txn, dir)? {
                return Ok(false);
            }
            let mut whole = true;
            for (name, seen) in batch {
                let Some(found) = level.entries.get(name) else { continue };
                let at = namespace::Place { dir, name };
                if namespace::lookup(&*txn, env, at).is_ok() {
                    whole = false;
                    continue;
                }
                let ino = context.fresh(txn, dir, found.seen.kind)?;
                let target = level.targets.get(name).map_or(&[][..], Vec::as_slice);
                match namespace::import(txn, env, at, &theirs(found), target, ino) {
                    Ok(_) => {}
                    Err(namespace::Error::Errno(error)) => {
                        context.unused();
                        tracing::warn!(%dir, name = %name.escape_ascii(), %error, "an object of the linked directory cannot be shown");
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                if let Some(xattrs) = level.xattrs.get(name).filter(|xattrs| !xattrs.is_empty()) {
                    namespace::import_xattrs(txn, ino, xattrs)?;
                }
                records::put_link(txn, ino, &self.record(unlisted(*seen), &Place::new(dir, name)));
                taken.push((dir, name.clone()));
                looked.push(ino);
            }
            Ok(whole)
        })?;
        self.kept.changed(dir);
        looked.into_iter().for_each(|ino| self.looks.note(At::Itself(ino)));
        // Of a directory that nobody has seen, nobody has been told that it has no such name.
        let is_first = !self.record_of(dir)?.is_some_and(|record| record.seen.proof != Proof::Void);
        if !is_first {
            news.names.append(&mut taken);
        }
        Ok(whole)
    }

    /// The directory has been settled: the next look need not list it unless its times are other ones then.
    fn remember_listed(&self, dir: Ino, level: &Level) -> Result<(), Errno> {
        let Some(found) = level.dir else { return Ok(()) };
        self.ledger.transact(&[dir], &mut |(txn, env, _), pending| {
            let work = pending.log.get(dir);
            let has_pending = pending.changes_names_of(dir);
            namespace::refresh(txn, env, dir, &theirs(&found), kept(work, true, has_pending))?;
            let place = match records::link_of(&*txn, dir)? {
                Some(record) => record.place,
                None => Place::new(Ino::ROOT, b"root"),
            };
            records::put_link(txn, dir, &self.record(found.seen, &place));
            Ok(())
        })
    }
}

/// Nothing is imported into such a directory, or removed from it.
fn is_apart(txn: &mut dyn Txn, dir: Ino) -> namespace::Result<bool> {
    Ok(namespace::inode::get(&*txn, dir)?.is_some_and(|inode| inode.is_apart()))
}

/// A directory whose content nobody asked for yet: as if its names had changed.
fn unlisted(seen: Seen) -> Seen {
    if seen.kind == FileKind::Directory { Seen { proof: Proof::Void, ..seen } } else { seen }
}

pub(crate) fn theirs(found: &Found) -> Theirs {
    let seen = &found.seen;
    Theirs {
        kind: seen.kind,
        mode: seen.mode,
        uid: seen.uid,
        gid: seen.gid,
        rdev: found.rdev,
        size: seen.size,
        blocks: seen.size.div_ceil(512),
        atime: found.atime,
        mtime: seen.mtime,
        ctime: seen.ctime,
        btime: seen.birth,
    }
}

impl Pass<'_, '_> {
    fn run(&mut self, change: &mut Change<'_>, touched: &Touched) -> namespace::Result<()> {
        let mut busy = change.pending.log.under_way(self.dir);
        busy.extend(touched.names.iter().filter(|(dir, _)| *dir == self.dir).map(|(_, name)| name.clone()));
        let listing = Listing {
            entries: self.level.entries.iter().map(|(name, found)| (name.clone(), found.seen)).collect(),
            whole: self.level.whole,
            busy,
        };
        self.note_pending_below(change, &listing)?;
        let settled =
            listing.whole && listing.busy.is_empty() && !self.side.ours.iter().any(|ours| ours.busy);
        self.after.settled = settled;
        let ours = std::mem::take(&mut self.side.ours);
        if settled {
            self.after.looked.extend(ours.iter().map(|ours| ours.ino));
        }
        for action in reconcile(Trust::Known, &ours, &listing) {
            self.act(change, &ours, action)?;
        }
        let of_theirs = |trouble| match trouble {
            Trouble::Conflict(_) | Trouble::Gone => true,
            Trouble::Later | Trouble::Refused(_) => false,
        };
        for ours in &ours {
            if change.pending.log.trouble_of(ours.ino).is_some_and(of_theirs) {
                change.pending.log.release(ours.ino);
            }
        }
        Ok(())
    }

    /// A directory that they have no more, and below which something of ours is not applied, or never will be, is changed.
    fn note_pending_below(&mut self, change: &Change<'_>, listing: &Listing) -> namespace::Result<()> {
        let missing = |ours: &&Ours| {
            let there = |name: &Vec<u8>| {
                listing.entries.get(name).is_some_and(|seen| seen.kind == FileKind::Directory)
            };
            let name = match &ours.standing {
                link::Standing::Both { theirs, .. } | link::Standing::RenamedOut { theirs, .. } => theirs,
                link::Standing::Created { .. }
                | link::Standing::RenamedIn { .. }
                | link::Standing::Deleted { .. } => return false,
            };
            ours.kind == FileKind::Directory && !there(name)
        };
        let dirs: BTreeSet<Ino> = self.side.ours.iter().filter(missing).map(|ours| ours.ino).collect();
        let parent = |ino: Ino| self.linked.parent_of(ino);
        let mut holding = gather::with_pending_below(&change.pending, &dirs, &parent);
        for dir in dirs {
            if !holding.contains(&dir) && namespace::apart::is_below(&*self.txn, dir)? {
                holding.insert(dir);
            }
        }
        for ours in self.side.ours.iter_mut().filter(|ours| holding.contains(&ours.ino)) {
            ours.changed = link::Changed::Data;
        }
        Ok(())
    }

    fn act(&mut self, change: &mut Change<'_>, ours: &[Ours], action: Action) -> namespace::Result<()> {
        match action {
            Action::Verify { ino, .. } => {
                // No checksum of ours is of what was agreed on: what may have changed counts as changed.
                self.remember(ino, |record| record.seen.proof = Proof::Void);
                self.after.again = true;
            }
            Action::Conflict { why, ino, name, aside } => {
                self.conflict(change, ours, (why, ino, name), aside)?
            }
            Action::Remove { ino, ours: name } => self.remove(change, ours, ino, name)?,
            Action::Renamed { ino, from, to, exchange } => {
                let mode = if exchange { RenameMode::Exchange } else { RenameMode::NoReplace };
                self.rename(&from, &to, mode)?;
                let place = Place::new(self.dir, &to);
                self.remember(ino, |record| record.place = place);
            }
            Action::Placed { ino, name } => {
                let place = Place::new(self.dir, &name);
                self.remember(ino, |record| record.place = place);
            }
            Action::Moved { ino, from, to } => {
                let (from, to) = (Place::new(self.dir, &from), Place::new(self.dir, &to));
                change.pending.log.moved(ino, from, to.clone());
                self.remember(ino, |record| record.place = to);
            }
            Action::Refresh { ino, theirs } => self.refresh(change, ino, theirs)?,
            Action::DropCopy { ino, theirs } => {
                let agreed = self.side.records.get(&ino).map(|record| record.seen);
                let found = self.found(&theirs).zip(agreed);
                self.after.drop_copies.extend(found.map(|(found, agreed)| (ino, found, agreed)));
            }
            Action::Relist { ino, theirs } => {
                let listed = self.side.records.get(&ino).map(|record| record.seen);
                self.refresh(change, ino, unlisted(theirs))?;
                // Its names are to be listed again. Those that we have are shown until they can be.
                if let Some(listed) = listed.filter(|seen| seen.proof != Proof::Void) {
                    self.remember(ino, |record| record.seen = listed);
                }
            }
            // The step that makes it finds it made.
            Action::Adopt { ino, name, theirs } => {
                let record = self.linked.record(unlisted(theirs), &Place::new(self.dir, &name));
                records::put_link(self.txn, ino, &record);
            }
            Action::PutBack { ino } => {
                self.displace(change, ours, ino);
                self.after.put_back.push(ino);
            }
            Action::Import { name, theirs } => self.after.imports.push((name, theirs)),
            Action::Link { ino, name, theirs } => {
                let at = namespace::Place { dir: self.dir, name: &name };
                let attr = namespace::link(self.txn, self.env, ino, at)?;
                self.context.linked(&attr);
                self.remember(ino, |record| record.seen = theirs);
                self.after.news.names.push((self.dir, name));
            }
        }
        Ok(())
    }

    fn remember(&mut self, ino: Ino, change: impl FnOnce(&mut LinkRecord)) {
        let Some(record) = self.side.records.get_mut(&ino) else { return };
        change(record);
        records::put_link(self.txn, ino, record);
    }

    fn found(&self, seen: &Seen) -> Option<Found> {
        self.level.entries.values().find(|found| found.seen == *seen).copied()
    }

    fn rename(&mut self, from: &[u8], to: &[u8], mode: RenameMode) -> namespace::Result<()> {
        let dir = self.dir;
        let place = |name| namespace::Place { dir, name };
        namespace::rename(self.txn, self.env, place(from), place(to), mode)?;
        self.after.news.names.extend([(dir, from.to_vec()), (dir, to.to_vec())]);
        Ok(())
    }

    fn refresh(&mut self, change: &mut Change<'_>, ino: Ino, seen: Seen) -> namespace::Result<()> {
        let Some(found) = self.level.entries.values().find(|found| found.seen.fileid == seen.fileid) else {
            return Ok(());
        };
        let is_dir = seen.kind == FileKind::Directory;
        let keep = kept(change.pending.log.get(ino), is_dir, is_dir);
        namespace::refresh(self.txn, self.env, ino, &theirs(&Found { seen, ..*found }), keep)?;
        if change.pending.log.get(ino).is_none_or(|work| work.xattrs.is_empty()) {
            self.after.xattrs.push(ino);
        }
        self.remember(ino, |record| record.seen = seen);
        self.after.news.inodes.push(ino);
        Ok(())
    }

    fn conflict(
        &mut self,
        change: &mut Change<'_>,
        ours: &[Ours],
        (why, ino, name): (Why, Ino, Vec<u8>),
        aside: Option<(Vec<u8>, Vec<u8>)>,
    ) -> namespace::Result<()> {
        if let Some((from, to)) = &aside {
            self.rename(from, to, RenameMode::NoReplace)?;
            self.aside.insert((ino, from.clone()), to.clone());
        }
        match why {
            Why::BothChanged => self.displace(change, ours, ino),
            Why::NameTaken => {
                let known = change.pending.log.get(ino).is_some() || self.side.records.contains_key(&ino);
                if let Some((from, to)) = aside.as_ref().filter(|_| known) {
                    let kind = ours.iter().find(|o| o.ino == ino).map_or(FileKind::Regular, |o| o.kind);
                    let (from, to) = (Place::new(self.dir, from), Place::new(self.dir, to));
                    change.pending.log.push(self.env.now, ino, kind, Op::Rename { from, to });
                }
            }
            Why::DeletedHere => {
                change.pending.log.gone(ino, Place::new(self.dir, &name), None, true);
                records::delete_link(self.txn, ino);
            }
            // Nothing is decided by it: whoever makes the next version finds it.
            Why::BytesLost => {}
        }
        let conflict =
            Conflict { why, ino, when: self.env.now, dir: self.dir, name, kept: aside.map(|(_, to)| to) };
        tracing::warn!(
            dir = %self.dir, name = %conflict.name.escape_ascii(),
            kept = conflict.kept.as_ref().map(|kept| kept.escape_ascii().to_string()), ?why,
            "changed here and in the linked directory"
        );
        self.linked.list_conflict(self.txn, &conflict)
    }

    /// They have nothing of it any more: it is made anew with the names that it has here.
    fn displace(&mut self, change: &mut Change<'_>, ours: &[Ours], ino: Ino) {
        let Some(own) = ours.iter().find(|o| o.ino == ino) else { return };
        let work = change.pending.log.get(ino);
        let mut names = work.map(|work| work.plus.clone()).unwrap_or_default();
        for name in ours.iter().filter(|o| o.ino == ino).filter_map(standing_name) {
            match self.aside.get(&(ino, name.clone())) {
                Some(to) => {
                    names.remove(&Place::new(self.dir, name));
                    names.insert(Place::new(self.dir, to));
                }
                None => _ = names.insert(Place::new(self.dir, name)),
            }
        }
        let version = (own.kind == FileKind::Regular).then(|| work.map_or(1, |work| work.written.max(1)));
        change.pending.log.displaced(self.env.now, (ino, own.kind), names, version);
        self.side.records.remove(&ino);
        records::delete_link(self.txn, ino);
    }

    fn remove(
        &mut self,
        change: &mut Change<'_>,
        ours: &[Ours],
        ino: Ino,
        name: Option<Vec<u8>>,
    ) -> namespace::Result<()> {
        let own = ours.iter().find(|o| o.ino == ino && standing_name(o) == name.as_ref());
        let theirs = own.and_then(|own| match &own.standing {
            link::Standing::Both { theirs, .. }
            | link::Standing::RenamedOut { theirs, .. }
            | link::Standing::Deleted { theirs, .. } => Some(Place::new(self.dir, theirs)),
            link::Standing::Created { .. } | link::Standing::RenamedIn { .. } => None,
        });
        let is_dir = own.is_some_and(|own| own.kind == FileKind::Directory);
        let mut last = name.is_none();
        if let Some(name) = &name {
            last = if is_dir { self.remove_dir(change, ino, name)? } else { self.unlink(self.dir, name)? };
        }
        let known_by = self.side.records.get(&ino).map(|record| &record.place);
        if let Some(theirs) = theirs.as_ref().filter(|theirs| !last && known_by == Some(*theirs)) {
            self.after.lost.push((ino, theirs.clone()));
        }
        if let Some(theirs) = theirs {
            let ours = name.as_ref().map(|name| Place::new(self.dir, name));
            change.pending.log.gone(ino, theirs, ours, last);
        }
        if last {
            self.side.records.remove(&ino);
            records::delete_link(self.txn, ino);
        }
        Ok(())
    }

    /// Whether it was the last name.
    fn unlink(&mut self, dir: Ino, name: &[u8]) -> namespace::Result<bool> {
        // As of an open file: its inode stays until nobody uses it.
        let unlinked = namespace::unlink(self.txn, self.env, namespace::Place { dir, name }, &|_| true)?;
        self.context.unlinked(&unlinked);
        self.after.news.names.push((dir, name.to_vec()));
        Ok(unlinked.nlink_left == 0)
    }

    /// A directory with all below it.
    fn remove_dir(&mut self, change: &mut Change<'_>, ino: Ino, name: &[u8]) -> namespace::Result<bool> {
        for (child, child_ino, kind) in gather::names_in(&*self.txn, ino)? {
            let last = if kind == FileKind::Directory {
                self.remove_below(change, (ino, &child), child_ino)?
            } else {
                self.unlink(ino, &child)?
            };
            if last {
                change.pending.log.forget(child_ino);
                records::delete_link(self.txn, child_ino);
            }
        }
        let dir = self.dir;
        self.rmdir(dir, name)
    }

    fn remove_below(
        &mut self,
        change: &mut Change<'_>,
        (dir, name): (Ino, &[u8]),
        ino: Ino,
    ) -> namespace::Result<bool> {
        let outer = std::mem::replace(&mut self.dir, dir);
        let removed = self.remove_dir(change, ino, name);
        self.dir = outer;
        removed
    }

    fn rmdir(&mut self, dir: Ino, name: &[u8]) -> namespace::Result<bool> {
        let ino = namespace::rmdir(self.txn, self.env, namespace::Place { dir, name })?;
        self.context.removed(ino);
        self.after.news.names.push((dir, name.to_vec()));
        Ok(true)
    }
}

fn standing_name(ours: &Ours) -> Option<&Vec<u8>> {
    match &ours.standing {
        link::Standing::Both { ours, .. }
        | link::Standing::Created { ours }
        | link::Standing::RenamedIn { ours } => Some(ours),
        link::Standing::RenamedOut { .. } | link::Standing::Deleted { .. } => None,
    }
}
