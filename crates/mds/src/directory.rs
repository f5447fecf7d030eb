//! Operations on names.

use std::{ops::ControlFlow, sync::atomic::Ordering};

use namespace::{
    Caller, DirEntry, Env, Found, NewNode, Place, RenameMode, Renamed, Unlinked, parts, txn::Bytes,
};
use types::{Attr, Errno, FileKind, Ino};

use crate::{
    numbers::Fresh,
    recorder::Change,
    server::Mds,
    slots::{SlotSet, SlotTxn},
};

impl Mds {
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Found, Errno> {
        let _shared = self.locks.read(parent);
        // The inode named may be in another slot: it cannot go while its name is there, and one record is read whole.
        let found =
            self.read(|reader| namespace::lookup(reader, &self.env(), Place { dir: parent, name }))?;
        if found.spread.is_some() { self.find(found.attr.ino) } else { Ok(found) }
    }

    /// What the name names, where that is in another server's slot and [`Mds::lookup`] is `EREMOTE`.
    pub fn lookup_entry(&self, parent: Ino, name: &[u8]) -> Result<(Ino, FileKind), Errno> {
        let _shared = self.locks.read(parent);
        self.read(|reader| namespace::lookup_entry(reader, &self.env(), Place { dir: parent, name }))
    }

    /// After an `EIO` of [`Mds::lookup`]: what the name names, if only the record of that is damaged. It has attributes
    /// that nobody knows, but the name can be taken away.
    pub fn lookup_damaged(&self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, FileKind)>, Errno> {
        let _shared = self.locks.read(parent);
        self.read(|reader| namespace::lookup_damaged(reader, &self.env(), Place { dir: parent, name }))
    }

    /// The inode with this number, named or not; `ESTALE` when it is gone. Of a directory that is spread what is known here: see
    /// [`Mds::find_whole`].
    pub fn find(&self, ino: Ino) -> Result<Found, Errno> {
        match self.find_whole(ino) {
            Err(Errno::EREMOTE) => self.find_alone(ino),
            found => found,
        }
    }

    /// As [`Mds::find`]; `EREMOTE`: parts of the directory are another server's.
    pub fn find_whole(&self, ino: Ino) -> Result<Found, Errno> {
        self.read(|reader| namespace::find(reader, &self.env(), ino))
    }

    /// As [`Mds::find`], for somebody who has only the number and no reference. What has no name and no reference either is
    /// gone for him: it is about to be purged. After his [`Mds::hold`] follows [`Mds::held_again`].
    pub fn find_by_number(&self, ino: Ino) -> Result<Found, Errno> {
        let _shared = self.locks.read(ino);
        if self.is_part(ino)? {
            // No program was ever told of it.
            return Err(Errno::ESTALE);
        }
        match self.find(ino)? {
            found if found.attr.nlink == 0 && !self.orphans.is_held(ino) => Err(Errno::ESTALE),
            found => Ok(found),
        }
    }

    /// Who refers to it may be the first since it was queued for the purge: it comes there again.
    pub fn held_again(&self, found: &Attr) {
        if found.nlink == 0 {
            self.orphans.orphaned(found.ino);
        }
    }

    /// The directory that holds directory `ino`; of anything else the one in which it was last named, which may be gone.
    pub fn parent(&self, ino: Ino) -> Result<Ino, Errno> {
        self.read(|reader| namespace::parent(reader, ino))
    }

    pub fn readlink(&self, ino: Ino) -> Result<Bytes, Errno> {
        let _shared = self.locks.read(ino);
        self.read(|reader| namespace::readlink(reader, ino))
    }

    /// Lists "." and ".." and the names after `cookie` (0: all). `visit` calls nothing of the server: it is under a lock.
    pub fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let _shared = self.locks.read(ino);
        let damaged = self.read(|reader| namespace::readdir(reader, ino, cookie, visit))?;
        if let Some(error) = damaged {
            // Logged. The others can be listed, and a check puts this one right.
            self.errno(error.into());
        }
        Ok(())
    }

    /// Makes anything but a directory.
    pub fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        node: &NewNode<'_>,
    ) -> Result<Found, Errno> {
        self.admit(None)?;
        let at = Place { dir: parent, name };
        self.make(SlotSet::of(parent), |txn, env| {
            let home = parts::home(txn, &env.names, at)?;
            let (ino, fresh) = self.fresh(txn, home)?;
            let found = namespace::create(txn, env, caller, at, node, ino)?;
            tell_created(txn, (ino, node.kind), at, found.data.live);
            Ok((found, [Some(fresh), None]))
        })
    }

    /// `O_TMPFILE`. The caller's first [`Mds::hold`] must follow, or the file stays until the next mount.
    pub fn create_unnamed(&self, caller: &Caller, parent: Ino, mode: u32) -> Result<Found, Errno> {
        let made = self.change_around(
            SlotSet::of(parent),
            |txn, env| {
                let (ino, fresh) = self.fresh(txn, parent)?;
                let found = namespace::create_unnamed(txn, env, caller, parent, mode, ino)?;
                txn.tell(|| Change::Unnamed { ino });
                Ok((found, fresh))
            },
            |(found, _)| self.orphans.expect(found.attr.ino),
            |(found, fresh), committed| {
                match committed {
                    Ok(()) => self.numbers.took(fresh, self.store.last_lsn()),
                    // Its number is somebody else's next.
                    Err(_) => self.orphans.unexpect(found.attr.ino),
                }
                committed.map(|()| found)
            },
        )?;
        self.inodes.fetch_add(1, Ordering::Relaxed);
        Ok(made)
    }

    /// Below the root, the new directory is a UGSD of its own.
    pub fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], mode: u32) -> Result<Attr, Errno> {
        self.admit(None)?;
        let at = Place { dir: parent, name };
        self.make(SlotSet::of(parent), |txn, env| {
            let (ino, fresh) = match self.new_ugsd(txn, parent)? {
                // The first run finds that a new UGSD's slot is not locked, the second has it.
                Some((ino, fresh)) => (ino, fresh.map(Some)),
                None => {
                    let home = parts::home(txn, &env.names, at)?;
                    self.fresh(txn, home).map(|(ino, fresh)| (ino, [Some(fresh), None]))?
                }
            };
            let attr = namespace::mkdir(txn, env, caller, at, mode, ino)?;
            tell_created(txn, (ino, FileKind::Directory), at, false);
            Ok((attr, fresh))
        })
    }

    /// `is_open` is asked under the slot's lock, so that whoever finds the inode by [`Mds::find_to_open`] afterwards finds
    /// it gone if it is. What is gone and still referred to keeps its attributes ([`Mds::gone`]).
    pub fn unlink(&self, parent: Ino, name: &[u8], is_open: &dyn Fn(Ino) -> bool) -> Result<Unlinked, Errno> {
        let at = Place { dir: parent, name };
        self.admit_named(at)?;
        let unlinked = self.change_when_full(SlotSet::of(parent), |txn, env| {
            let unlinked = namespace::unlink(txn, env, at, is_open)?;
            tell_unlinked(txn, at, &unlinked);
            Ok(unlinked)
        })?;
        match unlinked.gone {
            Some(attr) => {
                self.inodes.fetch_sub(1, Ordering::Relaxed);
                self.orphans.gone(attr);
            }
            None => self.lost_name(unlinked),
        }
        Ok(unlinked)
    }

    /// As [`Mds::find`], and no unlinking of it is under way.
    pub fn find_to_open(&self, ino: Ino) -> Result<Found, Errno> {
        let _shared = self.locks.read(ino);
        self.find(ino)
    }

    /// The attributes of what was removed while somebody refers to it.
    pub fn gone(&self, ino: Ino) -> Option<Attr> {
        self.orphans.was(ino)
    }

    /// Returns the directory that was removed.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<Ino, Errno> {
        let at = Place { dir: parent, name };
        self.admit_named(at)?;
        let ino = self.change_when_full(SlotSet::of(parent), |txn, env| {
            let ino = namespace::rmdir(txn, env, at)?;
            txn.tell(|| Change::Removed { ino, dir: parent, name: name.to_vec() });
            Ok(ino)
        })?;
        self.orphans.orphaned(ino);
        Ok(ino)
    }

    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), mode: RenameMode) -> Result<Renamed, Errno> {
        let (from, to) = (Place { dir: from.0, name: from.1 }, Place { dir: to.0, name: to.1 });
        self.admit_named(from)?;
        self.admit_named(to)?;
        let set = SlotSet::of(from.dir).with(to.dir.ugsd().slot());
        // The way from the target to the root is read under lock too, so that two renames cannot make a circle.
        let renamed = self.change(set, |txn, env| {
            let renamed = namespace::rename(txn, env, from, to, mode)?;
            tell_renamed(txn, from, to, &renamed);
            Ok(renamed)
        })?;
        if let Some(replaced) = renamed.replaced {
            self.lost_name(replaced);
        }
        Ok(renamed)
    }

    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr, Errno> {
        self.admit(Some(ino))?;
        let at = Place { dir: parent, name };
        let set = SlotSet::of(parent).with(ino.ugsd().slot());
        let attr = self.change(set, |txn, env| {
            let attr = namespace::link(txn, env, ino, at)?;
            let (kind, nlink) = (attr.kind, attr.nlink);
            txn.tell(|| Change::Linked { ino, kind, dir: parent, name: name.to_vec(), nlink });
            Ok(attr)
        })?;
        if attr.nlink == 1 {
            self.orphans.named(ino);
        }
        Ok(attr)
    }

    fn lost_name(&self, unlinked: Unlinked) {
        if unlinked.nlink_left == 0 {
            self.orphans.orphaned(unlinked.ino);
        }
    }

    /// [`Mds::change`] for what makes an inode, with its number taken before the locks are let go.
    fn make<V>(
        &self,
        set: SlotSet,
        operation: impl Fn(&mut SlotTxn<'_>, &Env) -> namespace::Result<(V, [Option<Fresh>; 2])>,
    ) -> Result<V, Errno> {
        let made = self.change_then(set, operation, |(value, fresh)| {
            let lsn = self.store.last_lsn();
            fresh.into_iter().flatten().for_each(|fresh| self.numbers.took(fresh, lsn));
            value
        })?;
        self.inodes.fetch_add(1, Ordering::Relaxed);
        Ok(made)
    }
}

fn tell_created(txn: &mut SlotTxn<'_>, (ino, kind): (Ino, FileKind), at: Place<'_>, writing: bool) {
    txn.tell(|| Change::Created { ino, kind, dir: at.dir, name: at.name.to_vec(), writing });
}

/// By an unlinking, or a rename over it.
fn tell_unlinked(txn: &mut SlotTxn<'_>, at: Place<'_>, unlinked: &Unlinked) {
    let Unlinked { ino, kind, nlink_left, gone } = *unlinked;
    let (dir, name) = (at.dir, || at.name.to_vec());
    if kind == FileKind::Directory {
        txn.tell(|| Change::Removed { ino, dir, name: name() });
    } else {
        txn.tell(|| Change::Unlinked { ino, kind, dir, name: name(), last: nlink_left == 0 });
    }
    if gone.is_some() {
        txn.tell(|| Change::Gone { ino });
    }
}

fn tell_renamed(txn: &mut SlotTxn<'_>, from: Place<'_>, to: Place<'_>, renamed: &Renamed) {
    let Renamed { source, replaced, exchanged } = renamed;
    if let Some(replaced) = replaced {
        tell_unlinked(txn, to, replaced);
    }
    let place = |at: Place<'_>| (at.dir, at.name.to_vec());
    if let Some(moved) = source {
        let (ino, kind) = (moved.ino, moved.kind);
        txn.tell(|| Change::Renamed { ino, kind, from: place(from), to: place(to) });
    }
    if let Some(moved) = exchanged {
        let (ino, kind) = (moved.ino, moved.kind);
        txn.tell(|| Change::Renamed { ino, kind, from: place(to), to: place(from) });
    }
}
