//! Near-line that is *linked*: files of somebody else's directory, which we read and never change.
//!
//! - A SAU that only near-line has is read from their file. It comes to a tier of ours before a part of it changes (`lift.rs`),
//!   and near-line gets what we wrote as a whole version (`version.rs`).
//! - Their file counts up to `State::linked_len`; behind it the object has zeros, whatever is there.
//! - A file that cannot be reached is an error of the call that wanted it, and nothing more: no SAU is lost by it.
//! - Their file is not opened, read or looked at under an object's lock, but for what needs no waiting.

use crate::{DataServer, DeviceTier, object::Object};
use link::{Seen, Source};
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use types::{Errno, Ino, TierId, TierSet};

/// Files that failed are opened again, and no more often than this.
const REOPEN: Duration = Duration::from_secs(1);

/// The slowest tier.
pub enum Nearline {
    None,
    /// A directory of ours.
    Native(DeviceTier),
    /// Somebody else's.
    Linked(Arc<dyn Linked>),
}

/// What the data server asks of who keeps the linked directory.
pub trait Linked: Send + Sync {
    /// Of an inode that is linked and has no object record; `None`: it is not linked. Asked under locks: from what is stored
    /// here, without a call to the back end.
    fn stub(&self, ino: Ino) -> Result<Option<Stub>, Errno>;

    /// Their file of an inode, as it was last agreed on, for reading. `ESTALE`: it is another one by now; `EIO`, `ETIMEDOUT`:
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

/// Their file of an object, if it is open.
#[derive(Default)]
pub(crate) struct Theirs {
    /// Held over an opening: who comes meanwhile finds the file.
    opening: Mutex<()>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    file: Option<Opened>,
    /// When it was last asked for, and the answer if that was an error.
    asked: Option<(Instant, Errno)>,
    /// How often another file was agreed on: one that was opened before is not taken for it.
    changes: u64,
}

#[derive(Clone)]
pub(crate) struct Opened {
    pub source: Arc<dyn Source>,
    /// As it was when it was opened.
    pub seen: Seen,
}

impl Opened {
    /// Fills `buf` with what the file has, up to `linked_len`, and zeros. One that is shorter reads as zeros, too.
    pub fn read(&self, offset: u64, buf: &mut [u8], linked_len: u64) -> Result<(), Errno> {
        let there = within(offset, buf.len(), linked_len);
        let got = if there > 0 { self.source.read_at(&mut buf[..there], offset)? } else { 0 };
        buf[got..].fill(0);
        Ok(())
    }

    /// Does it have other bytes than when it was opened, as far as a look tells? Then `ESTALE`.
    pub fn check(&self) -> Result<(), Errno> {
        let now = self.source.look()?.seen;
        let of = |seen: &Seen| (seen.size, seen.mtime, seen.ctime);
        if of(&now) == of(&self.seen) { Ok(()) } else { Err(Errno::ESTALE) }
    }
}

impl Theirs {
    fn get(&self) -> Option<Opened> {
        self.held.lock().file.clone()
    }

    /// It failed: the next one opens it anew.
    pub fn forget(&self, failed: &Opened) {
        let mut held = self.held.lock();
        if held.file.as_ref().is_some_and(|file| Arc::ptr_eq(&file.source, &failed.source)) {
            held.file = None;
        }
    }

    /// Another file is theirs from now on; `None`: it is still to be opened.
    pub fn replace(&self, file: Option<Opened>) {
        let mut held = self.held.lock();
        let changes = held.changes + 1;
        *held = Held { file, asked: None, changes };
    }

    /// Reads if that needs no waiting. `false`: it would.
    pub fn try_read(&self, offset: u64, buf: &mut [u8], linked_len: u64) -> bool {
        let there = within(offset, buf.len(), linked_len);
        let got = match self.get() {
            _ if there == 0 => 0,
            Some(file) => match file.source.read_nowait(&mut buf[..there], offset) {
                Ok(Some(got)) => got,
                // What fails is the waiting call's concern.
                Ok(None) | Err(_) => return false,
            },
            None => return false,
        };
        buf[got..].fill(0);
        true
    }
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
        if let Some(file) = object.theirs.get() {
            return Ok(file);
        }
        let linked = self.linked.as_ref().ok_or(Errno::EIO)?;
        let _turn = object.theirs.opening.lock();
        let changes = {
            let held = object.theirs.held.lock();
            if let Some(file) = &held.file {
                return Ok(file.clone());
            }
            match held.asked {
                Some((at, errno)) if at.elapsed() < REOPEN => return Err(errno),
                Some(_) | None => held.changes,
            }
        };
        let opened = linked.open(object.ino).and_then(|source| {
            let seen = source.look()?.seen;
            Ok(Opened { source, seen })
        });
        if let Err(errno) = opened {
            tracing::warn!(ino = %object.ino, %errno, "the linked file of an object cannot be opened now");
        }
        let mut held = object.theirs.held.lock();
        if held.changes == changes {
            held.asked = Some((Instant::now(), opened.as_ref().err().copied().unwrap_or(Errno::EIO)));
            held.file = opened.as_ref().ok().cloned();
        }
        opened
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

/// How many of so many bytes from `offset` lie before the end.
fn within(offset: u64, len: usize, end: u64) -> usize {
    len.min(usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX))
}

/// What a program gets that wanted bytes of a file which cannot be reached.
pub(crate) fn unreachable(errno: Errno) -> Errno {
    if matches!(errno, Errno::EMFILE | Errno::ENOMEM) { errno } else { Errno::EIO }
}
