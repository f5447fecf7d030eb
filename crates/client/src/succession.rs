//! One daemon after the other, under one mount: what this one writes down for the next, and takes over from the one before.
//!
//! Invariants:
//! - An open file and a backing file are written down before the kernel is told of them.
//! - What is taken over has the modes that the kernel was told: it does not ask again.
//! - A request that comes again, since the one before did not answer it, ends as it would have: for as long as it is not answered the kernel
//!   keeps the directory (or the inode) locked that it changes, so what it finds there is from before it, or its own work. Where the
//!   two look alike (an exchange, an attribute) the state before it was noted.

use std::{
    collections::BTreeMap,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
};

use fuse::{BackingId, Header};
use handover::{Estate, Scope};
use lease::Mode;
use mds::Found;
use types::{Errno, Ino, TierId};

use crate::{
    Client,
    access::Access,
    backing::Registered,
    handles::Handles,
    inode::{InodeRef, State},
    open_file::OpenFile,
    turn::Answer,
};

/// In the word that says what a backing file is, beside the tier.
const WRITABLE: u64 = 1 << 8;
/// In the word that says how a file was opened, beside the access.
const MODE_AT: u32 = 32;

impl Client {
    fn estate(&self) -> Option<&Arc<Estate>> {
        self.options.estate.as_ref()
    }

    /// While the answer lives, this thread carries out the request. What an earlier daemon did for it that the kernel does not know
    /// of is undone.
    pub(crate) fn carry_out(&self, header: &Header) -> Option<Scope> {
        let scope = self.estate()?.calls.enter(header.unique, &mut |node| {
            if let Some(ino) = Ino::from_raw(node) {
                self.mds.release(ino, 1);
            }
        });
        if Scope::comes_again() {
            let unknown = self.unanswered.lock().remove(&scope.unique());
            if let Some(handle) = unknown {
                self.close_handle(handle);
            }
            tracing::debug!(unique = scope.unique(), opcode = header.opcode, "a request came again");
        }
        Some(scope)
    }

    /// What has a name now that the request of this thread makes, if an earlier daemon made it.
    pub(crate) fn made_before(&self, error: Errno, parent: Ino, name: &[u8]) -> Result<Found, Errno> {
        if error == Errno::EEXIST && Scope::comes_again() {
            return self.mds.lookup(parent, name);
        }
        Err(error)
    }

    /// Of a request whose work, once done, cannot be done again: `error` says so then.
    pub(crate) fn done_before(error: Errno, done: Errno) -> Answer<()> {
        if error == done && Scope::comes_again() { Ok(()) } else { Err(error.into()) }
    }

    /// Before the kernel hears of the handle.
    pub(crate) fn write_down_opening(&self, handle: u64, file: &OpenFile) {
        let Some(estate) = self.estate() else { return };
        estate.note_uses(Handles::<OpenFile>::uses_of(handle));
        let opening = file.access.to_bits() | u64::from(mode_number(file.mode)) << MODE_AT;
        match estate.handles.add([handle, file.inode.ino.get(), opening, Scope::unique_now()]) {
            Some(place) => {
                let _ = file.place.set(place);
            }
            None => estate.set_incomplete(),
        }
    }

    pub(crate) fn strike_opening(&self, file: &OpenFile) {
        if let (Some(estate), Some(place)) = (self.estate(), file.place.get()) {
            estate.handles.remove(*place);
        }
    }

    pub(crate) fn write_down_backing(&self, ino: Ino, tier: TierId, registered: &mut Registered) {
        let Some(estate) = self.estate() else { return };
        let what = tier.index() as u64;
        registered.place = estate.backings.add([ino.get(), u64::from(registered.id.raw()), what, 0]);
        if registered.place.is_none() {
            estate.set_incomplete();
        }
    }

    /// Programs may store to it through a mapping.
    pub(crate) fn write_down_stores(&self, tier: TierId, registered: &Registered) {
        if let (Some(estate), Some(place)) = (self.estate(), registered.place) {
            estate.backings.set(place, 2, tier.index() as u64 | WRITABLE);
        }
    }

    /// Nobody has it open any more: the kernel gets our own open file in place of an earlier daemon's, which would count as a user.
    pub(crate) fn make_own(&self, ino: Ino, registered: &mut Registered) {
        let Some(backing) = self.backing.get().filter(|_| registered.inherited) else { return };
        match backing.open(registered.file.as_fd()) {
            Ok(id) => {
                let before = std::mem::replace(&mut registered.id, id);
                registered.inherited = false;
                if let (Some(estate), Some(place)) = (self.estate(), registered.place) {
                    estate.backings.set(place, 1, u64::from(id.raw()));
                }
                if let Err(error) = backing.close(before) {
                    tracing::debug!(%ino, %error, "a backing file was not let go");
                }
            }
            Err(error) => tracing::warn!(%ino, %error, "a file that nobody has open stays in its tier"),
        }
    }

    pub(crate) fn strike_backing(&self, registered: &Registered) {
        if let (Some(estate), Some(place)) = (self.estate(), registered.place) {
            estate.backings.remove(place);
        }
    }

    /// Before the first request.
    pub(crate) fn take_over(&self) -> Result<(), Errno> {
        let Some(estate) = self.estate().cloned() else { return Ok(()) };
        if estate.is_incomplete() {
            tracing::error!(
                "more was open or known than the guardian has room for: nobody can go on from there"
            );
            return Err(Errno::EOVERFLOW);
        }
        let in_place = self.take_over_backings(&estate)?;
        let mut files = Vec::new();
        let mut cached = Vec::new();
        for (place, [handle, node, opening, unique]) in estate.handles.records() {
            let known = Ino::from_raw(node).zip(mode_of(opening >> MODE_AT));
            let Some((ino, mode)) = known else { return Err(Errno::EIO) };
            let file = self.take_over_file(ino, Access::from_bits(opening), mode)?;
            let _ = file.place.set(place);
            if mode == Mode::Cached {
                cached.push(ino);
            }
            if unique != 0 {
                self.unanswered.lock().insert(unique, handle);
            }
            files.push((handle, Arc::new(file)));
        }
        let (open, backings, left) = (files.len(), in_place.len(), estate.calls.left());
        if !self.files.put_back(files) {
            return Err(Errno::EIO);
        }
        for inode in in_place.into_values() {
            let mut state = inode.lock();
            if state.registered.as_ref().is_some_and(|registered| !registered.active) {
                self.linger(&inode, &mut state);
            }
        }
        // The one before may have wanted pages dropped and not come to it.
        cached.into_iter().for_each(|ino| self.invalidator.ask(ino.get(), 0, i64::MAX as u64));
        tracing::info!(open, backings, left, known = self.mds.known(), "taken over from the daemon before");
        Ok(())
    }

    /// Held until the open files hold them.
    fn take_over_backings(&self, estate: &Estate) -> Result<BTreeMap<Ino, InodeRef>, Errno> {
        let mut in_place = BTreeMap::new();
        for (place, [node, number, what, _]) in estate.backings.records() {
            let id = u32::try_from(number).ok().and_then(BackingId::from_raw);
            let tier = TierId::ALL.into_iter().find(|tier| tier.index() as u64 == what & 0xff);
            let (Some(ino), Some(id), Some(tier)) = (Ino::from_raw(node), id, tier) else {
                return Err(Errno::EIO);
            };
            let (inode, _) = self.inodes.acquire(ino)?;
            let file = self.ds.hold_in_place(&inode.object, tier).ok_or(Errno::EIO)?;
            let bytes = self.ds.size_in(&inode.object, tier);
            self.arbiter.lock().resume_passthrough(ino, tier, bytes);
            let mut state = inode.lock();
            let (active, writable, inherited, place) = (false, false, true, Some(place));
            state.registered = Some(Registered { id, file, tier, active, writable, inherited, place });
            if what & WRITABLE != 0 {
                self.take_over_stores(&inode, &mut state)?;
            }
            drop(state);
            in_place.insert(ino, inode);
        }
        Ok(in_place)
    }

    fn take_over_stores(&self, inode: &InodeRef, state: &mut State) -> Result<(), Errno> {
        inode.begin(state, false)?;
        self.allow_mapped_writes(inode, state)
    }

    fn take_over_file(&self, ino: Ino, access: Access, mode: Mode) -> Result<OpenFile, Errno> {
        let (inode, found) = self.inodes.acquire(ino)?;
        if found.data.stale_live
            && let Err(error) = inode.settle_if_idle()
        {
            tracing::warn!(%ino, %error, "an open file stays unsettled");
        }
        if access.write {
            inode.add_writer();
        }
        self.apply_policy(&inode, found.data.mode);
        self.ds.open(&inode.object, access.kind());
        {
            let mut state = inode.lock();
            if mode.is_passthrough() {
                state.registered.as_mut().ok_or(Errno::EIO)?.active = true;
            }
            let mut arbiter = self.arbiter.lock();
            arbiter.resume(ino, mode, access.write);
            inode.cached_readers.store(arbiter.invalidate_on_write(ino), Ordering::Release);
        }
        self.note_unseen_writes(ino, access, mode);
        let limited = access.write && self.is_limited(found.attr.project);
        Ok(OpenFile::new(inode, access, mode, (limited, self.mds.quota_changes())))
    }
}

/// As it is written down.
fn mode_number(mode: Mode) -> u8 {
    match mode {
        Mode::Passthrough => 0,
        Mode::Cached => 1,
        Mode::Direct => 2,
        Mode::PassthroughDirect => 3,
    }
}

fn mode_of(number: u64) -> Option<Mode> {
    [Mode::Passthrough, Mode::Cached, Mode::Direct, Mode::PassthroughDirect]
        .into_iter()
        .find(|mode| u64::from(mode_number(*mode)) == number)
}

impl Client {
    /// An exchange done is an exchange undone when it is done again: what was at the first name tells.
    pub(crate) fn is_exchanged(&self, parent: Ino, name: &[u8]) -> Result<bool, Errno> {
        if self.estate().is_none() {
            return Ok(false);
        }
        let there = self.mds.lookup(parent, name)?.attr.ino.get();
        let before = Scope::note();
        if before == 0 {
            Scope::set_note(there);
        }
        Ok(before != 0 && before != there)
    }

    /// Was the attribute there before the request of this thread?
    pub(crate) fn had_xattr(&self, ino: Ino, name: &[u8]) -> Answer<bool> {
        const ABSENT: u64 = 1;
        const PRESENT: u64 = 2;
        if self.estate().is_none() {
            return Ok(true);
        }
        if Scope::note() == 0 {
            let there = match self.mds.getxattr(ino, name) {
                Ok(_) => PRESENT,
                Err(Errno::ENODATA) => ABSENT,
                Err(error) => return Err(error.into()),
            };
            Scope::set_note(there);
        }
        Ok(Scope::note() == PRESENT)
    }
}
