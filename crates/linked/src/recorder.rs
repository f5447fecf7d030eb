//! Changes of ours, as the metadata server tells them: each goes into the log, in the transaction that makes it. What is apart
//! ([`namespace::apart`]) does not; a file that ends to be is new there.

use link::{Attrs, Op, Place};
use mds::{Change as Made, Recorded, Recorder};
use namespace::txn::Txn;
use types::{Errno, FileKind, Ino, Timestamp};

use crate::{
    Linked,
    pending::{Change, Pending, is_unpublished},
    records,
};

impl Recorder for Linked {
    fn record<'a>(
        &'a self,
        now: Timestamp,
        changes: &[Made],
        txn: &mut dyn Txn,
    ) -> Result<Box<dyn Recorded + 'a>, Errno> {
        let mut change = self.ledger.change();
        for made in changes {
            self.refuse_unheld(made, &change.pending, txn)?;
            self.note(now, made, &mut change.pending, txn).map_err(records::errno)?;
        }
        change.put(txn);
        Ok(Box::new(Told(change)))
    }

    fn admit(&self, ino: Option<Ino>) -> Result<(), Errno> {
        self.wait_for_room(ino)
    }
}

struct Told<'a>(Change<'a>);

impl Recorded for Told<'_> {
    fn ended(self: Box<Self>, committed: bool) {
        if committed {
            self.0.commit();
        }
    }
}

impl Linked {
    fn note(
        &self,
        now: Timestamp,
        made: &Made,
        pending: &mut Pending,
        txn: &mut dyn Txn,
    ) -> namespace::Result<()> {
        let at = |dir: &Ino, name: &[u8]| Place::new(*dir, name);
        if is_untold(made, pending, txn)? {
            return Ok(());
        }
        match made {
            Made::Created { ino, kind, dir, name, writing } => {
                self.note_created(now, (*ino, *kind), at(dir, name), *writing, pending);
            }
            // Until it has a name they need not know of it.
            Made::Unnamed { .. } => {}
            Made::Renamed { ino, kind, from, to } if from.0 != to.0 && is_apart(from.0, txn)? => {
                self.note_found(now, (*ino, *kind), at(&to.0, &to.1), (pending, txn))?;
            }
            Made::Crossed { ino, apart: false, dir, name } => {
                self.note_found(now, (*ino, FileKind::Regular), at(dir, name), (pending, txn))?;
            }
            Made::Crossed { ino, apart: true, dir, name } => {
                note_hidden(now, *ino, at(dir, name), (pending, txn))?;
            }
            Made::Renamed { ino, kind, from, to } => {
                let (from, to) = (at(&from.0, &from.1), at(&to.0, &to.1));
                pending.log.push(now, *ino, *kind, Op::Rename { from, to });
            }
            Made::Linked { ino, kind, dir, name, nlink } => {
                self.note_linked(now, (*ino, *kind, *nlink), at(dir, name), (pending, txn))?;
            }
            Made::Unlinked { ino, kind, dir, name, last } => {
                pending.log.push(now, *ino, *kind, Op::Unlink { at: at(dir, name), last: *last });
                if *last {
                    pending.forget_moments(*ino);
                }
            }
            Made::Removed { ino, dir, name } => {
                pending.log.push(now, *ino, FileKind::Directory, Op::Rmdir { at: at(dir, name) });
            }
            Made::Attributes { ino, kind, what } => {
                self.note_attributes(now, (*ino, *kind, *what), pending, txn)?
            }
            Made::Xattr { ino, kind, name } => {
                // What they cannot hold stays here.
                if self.back.abilities().xattrs && is_known(*ino, pending, txn)? {
                    pending.log.push(now, *ino, *kind, Op::SetXattr { name: name.clone() });
                }
            }
            Made::Written { ino } => self.note_written(now, *ino, pending, txn)?,
            Made::Settled { ino } => {
                if pending.log.get(*ino).is_some_and(is_unpublished) {
                    pending.note_closed(*ino, now, &self.settings);
                } else {
                    self.note_settled_time(now, *ino, pending, txn)?;
                }
            }
            // What is still to be removed there is in the log.
            Made::Gone { ino } => {
                if pending.log.get(*ino).is_none() {
                    records::delete_link(txn, *ino);
                }
            }
        }
        Ok(())
    }

    /// A file is to be seen there with its first bytes, if some come soon.
    fn note_created(
        &self,
        now: Timestamp,
        (ino, kind): (Ino, FileKind),
        at: Place,
        writing: bool,
        pending: &mut Pending,
    ) {
        let is_file = kind == FileKind::Regular;
        pending.log.push(now, ino, kind, Op::Create { at, writing: is_file });
        if is_file && !writing {
            pending.note_closed(ino, now, &self.settings);
        } else if is_file {
            pending.note_open(ino, now, &self.settings);
        }
    }

    fn note_linked(
        &self,
        now: Timestamp,
        (ino, kind, nlink): (Ino, FileKind, u32),
        at: Place,
        (pending, txn): (&mut Pending, &mut dyn Txn),
    ) -> namespace::Result<()> {
        // The first name of an unnamed file is what makes it.
        let unmade = nlink == 1 && records::link_of(&*txn, ino)?.is_none();
        if unmade && pending.log.get(ino).is_none() {
            pending.log.push(now, ino, kind, Op::Create { at, writing: true });
            pending.note_open(ino, now, &self.settings);
        } else {
            pending.log.push(now, ino, kind, Op::Link { at });
        }
        Ok(())
    }

    /// Something that they have never heard of.
    fn note_found(
        &self,
        now: Timestamp,
        (ino, kind): (Ino, FileKind),
        at: Place,
        (pending, txn): (&mut Pending, &mut dyn Txn),
    ) -> namespace::Result<()> {
        // It cannot be; and an inode is in the log once.
        if pending.log.get(ino).is_some() || records::link_of(&*txn, ino)?.is_some() {
            return Err(Errno::EXDEV.into());
        }
        let is_file = kind == FileKind::Regular;
        pending.log.push(now, ino, kind, Op::Create { at, writing: is_file });
        if is_file && namespace::inode::load(&*txn, ino)?.live_epoch != 0 {
            pending.note_open(ino, now, &self.settings);
        } else if is_file {
            pending.note_closed(ino, now, &self.settings);
        }
        Ok(())
    }

    /// It was published already: a crash may have left it another time than what was published has.
    fn note_settled_time(
        &self,
        now: Timestamp,
        ino: Ino,
        pending: &mut Pending,
        txn: &mut dyn Txn,
    ) -> namespace::Result<()> {
        let Some(record) = records::link_of(&*txn, ino)? else { return Ok(()) };
        let settled = match namespace::inode::get(&*txn, ino) {
            Ok(Some(inode)) => inode.mtime,
            Ok(None) | Err(_) => return Ok(()),
        };
        if settled != record.seen.mtime && pending.log.get(ino).is_none_or(|work| !work.deleted) {
            pending.log.push(now, ino, FileKind::Regular, Op::SetAttr { what: Attrs::TIMES });
        }
        Ok(())
    }

    fn note_attributes(
        &self,
        now: Timestamp,
        (ino, kind, what): (Ino, FileKind, Attrs),
        pending: &mut Pending,
        txn: &mut dyn Txn,
    ) -> namespace::Result<()> {
        if is_known(ino, pending, txn)? {
            pending.log.push(now, ino, kind, Op::SetAttr { what });
        }
        Ok(())
    }

    /// A version more. One that nobody closes is published all the same, some time after its first byte.
    fn note_written(
        &self,
        now: Timestamp,
        ino: Ino,
        pending: &mut Pending,
        txn: &mut dyn Txn,
    ) -> namespace::Result<()> {
        if !is_known(ino, pending, txn)? {
            return Ok(());
        }
        let version = pending.next_version(ino);
        pending.log.push(now, ino, FileKind::Regular, Op::Written { version });
        pending.note_open(ino, now, &self.settings);
        // What near-line alone has of it may be replaced there before this version is. With a full line it may be lost then.
        let _ = self.to_keep.try_send(ino);
        Ok(())
    }
}

/// A file that was to be made there is not, while nothing of that was begun.
fn note_hidden(
    now: Timestamp,
    ino: Ino,
    at: Place,
    (pending, txn): (&mut Pending, &mut dyn Txn),
) -> namespace::Result<()> {
    if records::link_of(&*txn, ino)?.is_some() || !is_unmade(ino, &at, pending) {
        tracing::info!(%ino, "it cannot be transient any more: the linked directory has it, or is getting it");
        return Err(Errno::EBUSY.into());
    }
    pending.log.push(now, ino, FileKind::Regular, Op::Unlink { at, last: true });
    pending.forget_moments(ino);
    Ok(())
}

/// Is it of something that they are not told of?
fn is_untold(made: &Made, pending: &Pending, txn: &mut dyn Txn) -> namespace::Result<bool> {
    match made {
        Made::Created { dir, .. } | Made::Removed { dir, .. } => is_apart(*dir, txn),
        Made::Renamed { kind: FileKind::Directory, from, .. } => is_apart(from.0, txn),
        Made::Renamed { ino, .. } | Made::Linked { ino, .. } => is_apart(*ino, txn),
        Made::Unlinked { ino, dir, .. } => match namespace::inode::get(&*txn, *ino)? {
            Some(inode) => Ok(inode.is_apart()),
            // It went with its name: what is not known is nowhere to be removed.
            None => Ok(is_apart(*dir, txn)? || !is_known(*ino, pending, txn)?),
        },
        Made::Unnamed { .. }
        | Made::Attributes { .. }
        | Made::Xattr { .. }
        | Made::Written { .. }
        | Made::Settled { .. }
        | Made::Crossed { .. }
        | Made::Gone { .. } => Ok(false),
    }
}

fn is_apart(ino: Ino, txn: &mut dyn Txn) -> namespace::Result<bool> {
    Ok(namespace::inode::get(&*txn, ino)?.is_some_and(|inode| inode.is_apart()))
}

/// It is to be made there under this name, and nothing was begun.
fn is_unmade(ino: Ino, at: &Place, pending: &Pending) -> bool {
    let named = |work: &link::Work| work.plus.len() == 1 && work.plus.contains(at);
    let unbegun = |work: &link::Work| !work.there && !work.deleted && work.begun.is_none();
    !pending.log.is_in_flight(ino) && pending.log.get(ino).is_some_and(|work| unbegun(work) && named(work))
}

/// Have they heard of it, or will they? Not of a file without a name.
fn is_known(ino: Ino, pending: &Pending, txn: &mut dyn Txn) -> namespace::Result<bool> {
    match pending.log.get(ino) {
        Some(work) => Ok(!work.deleted),
        None => Ok(ino == Ino::ROOT || records::link_of(&*txn, ino)?.is_some()),
    }
}
