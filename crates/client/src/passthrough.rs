//! Passthrough: which backing file the kernel uses for an inode, and when the object may move again.
//!
//! Invariants:
//! - I-CLIENT-2: while any program can reach an object's file by itself, the ds knows (`begin_passthrough`) and
//!   leaves the object where it is. A program can do so longer than it has the file open: a mapping outlives its
//!   descriptor (the loader closes each library that it has mapped). So the state ends some time after the last
//!   close, when the file has no other user than the ds ([`crate::InUse`]); until then it lingers, and an open that
//!   comes meanwhile takes it over.
//! - A file that could have been written through a mapping counts as written when the state begins and when it ends,
//!   so that no copy made meanwhile is taken for current.
//!   (What fsync makes durable in between are the bytes that came through write(2), and mapped ones up to the last of
//!   these two moments.)
//! - All of it happens under the inode's lock.

use std::os::fd::AsFd;

use types::Errno;

use crate::{
    Client,
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
            Some((_, file)) => backing.open(file.as_fd()).map(|id| (id, file)),
            None => Err(Errno::EBUSY),
        };
        match registered {
            Ok((id, file)) => {
                state.registered = Some(Registered { id, file, active: true, writable: false });
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
        match &mut state.registered {
            Some(registered) if !registered.writable => registered.writable = true,
            Some(_) | None => return Ok(()),
        }
        self.versions.changed(inode.ino);
        self.ds.begin_mapped_writes(&inode.object)
    }

    /// The last open file in passthrough is closed.
    pub(crate) fn linger(&self, inode: &InodeRef, state: &mut State) {
        if let Some(registered) = &mut state.registered {
            registered.active = false;
            self.lingering.add(inode.another());
        }
    }
}

impl Watch for Client {
    fn end_unused(&self) {
        let mut ended = false;
        for inode in self.lingering.take() {
            let mut state = inode.lock();
            let Some(registered) = &state.registered else { continue };
            if registered.active {
                continue;
            }
            // When the question fails the answer could be yes.
            let in_use =
                self.options.in_use.is_none_or(|in_use| in_use(registered.file.as_fd()).unwrap_or(true));
            if in_use {
                drop(state);
                self.lingering.add(inode);
                continue;
            }
            let (id, writable) = (registered.id, registered.writable);
            state.registered = None;
            if writable {
                self.versions.changed(inode.ino);
                if let Err(error) = self.ds.absorb_mapped_writes(&inode.object, true) {
                    tracing::error!(ino = inode.ino.get(), %error, "writes through a mapping may not be copied");
                }
            }
            self.ds.end_passthrough(&inode.object);
            if let Some(Err(error)) = self.backing.get().map(|backing| backing.close(id)) {
                tracing::debug!(ino = inode.ino.get(), %error, "a backing file was not let go");
            }
            ended = true;
        }
        if ended {
            self.purger.wake();
        }
    }
}
