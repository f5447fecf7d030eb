//! Near-line that is *linked*: files of somebody else's directory, which we read and never change.
//!
//! - A SAU that only near-line has is read from their file. It comes to a tier of ours before a part of it changes (`lift.rs`),
//!   and near-line gets what we wrote as a whole version (`version.rs`).
//! - Their file counts up to `State::linked_len`; behind it the object has zeros, whatever is there.
//! - A file that cannot be reached is an error of the call that wanted it, and nothing more: no SAU is lost by it.
//! - Their file is not opened, read or looked at under an object's lock, but for what needs no waiting.

use crate::{
    DataServer,
    object::Object,
    theirs::{Opened, within},
};
use link::Source;
use std::sync::Arc;
use types::{Errno, Ino, TierId, TierSet};

/// What the data server asks of who keeps the linked directory.
pub trait Linked: Send + Sync {
    /// Of an inode that is linked and has no object record; `None`: it is not linked. Asked under locks: from what is stored
    /// here, without a call to the back end.
    fn stub(&self, ino: Ino) -> Result<Option<Stub>, Errno>;

    /// Their file of an inode, as it was last agreed on, for reading; or a version of ours that has the name and of which
    /// [`DataServer::note_published`] was not told yet: what is asked of it is the same in both. `ESTALE`: it is another one by now; `EIO`, `ETIMEDOUT`:
    /// the back end is in trouble.
    fn open(&self, ino: Ino) -> Result<Arc<dyn Source>, Errno>;

    /// Has what the object holds published, by [`DataServer::copy_version`] and [`DataServer::note_published`]; returns when
    /// near-line has all that was written before the call, or why it has not. `EINTR`: `stop` said so; `EBUSY`: later, perhaps. The
    /// caller holds no lock of the object.
    fn publish(&self, ino: Ino, stop: &dyn Fn() -> bool) -> Result<(), Errno>;
}

/// A linked file of which nothing is kept here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stub {
    /// Ours.
    pub size: u64,
    /// Of their file.
    pub theirs: u64,
}

impl DataServer {
    /// Those of the tiers whose files are ours: near-line's are not when it is linked.
    pub(crate) fn ours(&self, tiers: TierSet) -> TierSet {
        if self.linked.is_some() { tiers.without(TierId::Nearline) } else { tiers }
    }

    /// The tiers that can hold files of ours.
    pub(crate) fn own(&self) -> TierSet {
        self.ours(self.present())
    }

    /// Is there a place that outlives the machine?
    pub(crate) fn can_be_safe(&self) -> bool {
        self.has_persistent() || self.linked.is_some()
    }

    /// Their file of the object, open.
    pub(crate) fn theirs(&self, object: &Object) -> Result<Opened, Errno> {
        let linked = self.linked.as_ref().ok_or(Errno::EIO)?;
        object.theirs.open(|| {
            // Of one that was changed here in part: whatever has its name now, its bytes are in this one.
            if let Some(kept) = self.kept.check(object.ino)? {
                return Ok(kept);
            }
            let opened = linked.open(object.ino).and_then(|source| {
                let seen = source.look()?.seen;
                Ok(Opened { source, seen })
            });
            opened.inspect_err(|errno| {
                tracing::warn!(ino = %object.ino, %errno, "the linked file of an object cannot be opened now");
            })
        })
    }

    /// As [`Opened::read`].
    pub(crate) fn read_theirs(
        &self,
        object: &Object,
        offset: u64,
        buf: &mut [u8],
        linked_len: u64,
    ) -> Result<(), Errno> {
        if within(offset, buf.len(), linked_len) == 0 {
            buf.fill(0);
            return Ok(());
        }
        let file = self.theirs(object)?;
        let Err(errno) = file.read(offset, buf, linked_len) else { return Ok(()) };
        tracing::warn!(ino = %object.ino, %errno, "the linked file of an object cannot be read now");
        object.theirs.forget(&file);
        // One that was open for long may only have to be opened again.
        let again = self.theirs(object).map_err(|_| errno)?;
        again.read(offset, buf, linked_len).inspect_err(|_| object.theirs.forget(&again))
    }
}

/// What a program gets that wanted bytes of a file which cannot be reached.
pub(crate) fn unreachable(errno: Errno) -> Errno {
    if matches!(errno, Errno::EMFILE | Errno::ENOMEM) { errno } else { Errno::EIO }
}
