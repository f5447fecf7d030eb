//! Passthrough: which backing file the kernel uses for an inode, and when the object may move again.
//!
//! Invariants:
//! - I-CLIENT-2: while any program can reach an object's file by itself, the ds knows (`begin_passthrough`) and
//!   leaves the object where it is. A program can do so longer than it has the file open: a mapping outlives its
//!   descriptor (the loader closes each library that it has mapped). So the state ends some time after the last
//!   close, when the file has no other user than the ds ([`crate::InUse`]); until then it lingers, and an open that
//!   comes meanwhile takes it over. A writer only if it is mapped: the object could not move as long as he has it open.
//! - A file that could have been written through a mapping counts as written when the state begins and when it ends,
//!   so that no copy made meanwhile is taken for current.
//!   What fsync makes durable in between are the bytes that came by write(2), and those stored until then.
//! - All of it happens under the inode's lock.

use std::os::fd::AsFd;

use types::{Errno, Ino};

use crate::{
    Client,
    access::Access,
    backing::Registered,
    inode::{InodeRef, State},
    lingering::Watch,
};

/// Lingering files: each keeps a descriptor.
const LINGERING_MAX: usize = 512;

impl Client {
    /// Has the kernel use the object's own file from now on. `false`: not this one, now.
    pub(crate) fn begin_passthrough(&self, inode: &InodeRef, state: &mut State) -> bool {
        let Some(backing) = self.backing.get() else { return false };
        if let Some(registered) = &mut state.registered {
            registered.active = true;
            return true;
        }
        if self.lingering.len() >= LINGERING_MAX {
            return false;
        }
        // Begun first, so that the object cannot move between the look and the registration.
        if !self.ds.begin_passthrough(&inode.object) {
            return false;
        }
        let registered = match self.ds.passthrough_file(&inode.object) {
            Some((tier, file)) => backing.open(file.as_fd()).map(|id| (id, tier, file)),
            None => Err(Errno::EBUSY),
        };
        match registered {
            Ok((id, tier, file)) => {
                let (active, writable, inherited, place) = (true, false, false, None);
                let mut registered = Registered { id, file, tier, active, writable, inherited, place };
                self.write_down_backing(inode.ino, tier, &mut registered);
                state.registered = Some(registered);
                true
            }
            Err(error) => {
                tracing::debug!(ino = inode.ino.get(), %error, "no passthrough for this file");
                self.ds.end_passthrough(&inode.object);
                false
            }
        }
    }

    /// A writer is about to open the file in passthrough, so that it may map the object's file for writing. Called
    /// before the first of them can write.
    pub(crate) fn allow_mapped_writes(&self, inode: &InodeRef, state: &mut State) -> Result<(), Errno> {
        let Some(registered) = state.registered.as_mut().filter(|r| !r.writable) else { return Ok(()) };
        self.versions.changed(inode.ino);
        self.ds.begin_mapped_writes(&inode.object)?;
        registered.writable = true;
        self.write_down_stores(registered.tier, registered);
        // It has times that no store would change.
        self.forget_attributes(inode.ino);
        Ok(())
    }

    /// A writer is about to open a file whose passthrough may have no user any more. What is seen of stores through a
    /// mapping is settled when he closes it.
    pub(crate) fn end_if_lingering(&self, inode: &InodeRef, state: &mut State) {
        self.end_unless_used(inode, state, false);
    }

    /// The last open file in passthrough is closed.
    pub(crate) fn linger(&self, inode: &InodeRef, state: &mut State) {
        if let Some(registered) = &mut state.registered {
            registered.active = false;
            self.make_own(inode.ino, registered);
            // Once: it may be opened and closed often while it is mapped.
            if !std::mem::replace(&mut state.looked_at, true) {
                self.lingering.add(inode.another());
            }
        }
    }
}

/// Would one more opening wait for a device in [`Client::allow_mapped_writes`] or [`Client::end_if_lingering`]?
pub(crate) fn opening_waits(state: &State, access: Access) -> bool {
    let waits = |r: &Registered| !r.active || access.may_map_writable() && !r.writable;
    access.write && state.registered.as_ref().is_some_and(waits)
}

impl Watch for Client {
    fn end_unused(&self) {
        let ended =
            self.lingering.take().into_iter().filter(|inode| self.end_if_unused(inode, false)).count();
        if ended > 0 {
            self.purger.wake();
        }
    }
}

impl Client {
    /// At the end of the mount: what is mapped still, of a mount that was detached, stays as it is. The object's record says
    /// so, and the next mount takes the copy that is mapped for the one that counts.
    pub(crate) fn end_lingering(&self) {
        for inode in self.lingering.take() {
            self.end_if_unused(&inode, true);
        }
    }

    fn end_if_unused(&self, inode: &InodeRef, last_look: bool) -> bool {
        let mut state = inode.lock();
        let (ended, settle) = self.end_unless_used(inode, &mut state, last_look);
        state.looked_at = !last_look && state.registered.as_ref().is_some_and(|r| !r.active);
        if state.looked_at {
            self.lingering.add(inode.another());
        }
        drop(state);
        inode.settle_soon(settle);
        ended
    }

    /// Whether passthrough of a file that nobody has open has ended, and whether the time of its last write is to be
    /// stored soon.
    fn end_unless_used(&self, inode: &InodeRef, state: &mut State, last_look: bool) -> (bool, bool) {
        let ino = inode.ino;
        let lingering = state.registered.as_ref().filter(|r| !r.active);
        let Some((id, writable, file)) = lingering.map(|r| (r.id, r.writable, r.file.clone())) else {
            return (false, false);
        };
        // When the question fails the answer could be yes.
        let in_use = self.options.in_use.is_none_or(|ask| ask(file.as_fd()).unwrap_or(true));
        if in_use && !last_look {
            return (false, false);
        }
        let stored = inode.see_stores(state).unwrap_or_else(|error| {
            tracing::warn!(ino = ino.get(), %error, "the time of writes through a mapping is not kept");
            false
        });
        let settle = stored && state.is_due();
        if writable {
            self.versions.changed(ino);
        }
        // The latter also if no opening came to write: its preparation may have failed half-way.
        let absorbed = if in_use {
            self.ds.absorb_mapped_writes(&inode.object)
        } else {
            self.ds.end_mapped_writes(&inode.object)
        };
        if let Err(error) = absorbed {
            tracing::error!(ino = ino.get(), %error, "writes through a mapping were not copied to slower tiers");
        }
        if !in_use {
            state.registered.take().iter().for_each(|registered| self.strike_backing(registered));
            self.ds.end_passthrough(&inode.object);
            self.arbiter.lock().end_passthrough(ino);
            // Who forgot it meanwhile found nothing to forget.
            self.forget_pages(ino);
            if let Some(Err(error)) = self.backing.get().map(|backing| backing.close(id)) {
                tracing::debug!(ino = ino.get(), %error, "a backing file was not let go");
            }
        }
        (!in_use, settle)
    }

    /// What is kept about the kernel's pages of an inode goes when the kernel does not know the inode any more.
    pub(crate) fn forget_pages(&self, ino: Ino) {
        if !self.mds.is_held(ino) {
            self.versions.forget(ino);
            self.arbiter.lock().forget(ino);
        }
    }
}
