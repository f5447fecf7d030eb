//! The file of a linked near-line that an object's bytes are read from, while it is open.

use link::{Seen, Source};
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use types::Errno;

/// A file that failed is opened again, and no more often than this.
const REOPEN: Duration = Duration::from_secs(1);

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
        // Who takes a name of it gives it another ctime, and leaves the bytes alone.
        let lost_a_name =
            now.nlink < self.seen.nlink && (now.size, now.mtime) == (self.seen.size, self.seen.mtime);
        if of(&now) == of(&self.seen) || lost_a_name { Ok(()) } else { Err(Errno::ESTALE) }
    }

    /// The file with what is known of it now; nothing if its bytes were changed. An error: nobody can tell.
    pub fn as_it_is(&self) -> Result<Option<Opened>, Errno> {
        let now = match self.source.look() {
            Ok(found) => found.seen,
            Err(Errno::ESTALE | Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let same = (now.size, now.mtime) == (self.seen.size, self.seen.mtime);
        Ok(same.then(|| Opened { source: self.source.clone(), seen: now }))
    }

    /// As `check`, for who cannot try again: what leaves the bytes alone, as the end of its name does, does not count.
    pub fn check_bytes(&self) -> Result<(), Errno> {
        let now = self.source.look()?.seen;
        let same = (now.size, now.mtime) == (self.seen.size, self.seen.mtime);
        if same { Ok(()) } else { Err(Errno::ESTALE) }
    }
}

impl Theirs {
    pub fn get(&self) -> Option<Opened> {
        self.held.lock().file.clone()
    }

    /// The file; opened by `open` if it is not, and if that was not tried a moment ago.
    pub fn open(&self, open: impl FnOnce() -> Result<Opened, Errno>) -> Result<Opened, Errno> {
        if let Some(file) = self.get() {
            return Ok(file);
        }
        let _turn = self.opening.lock();
        let changes = {
            let held = self.held.lock();
            if let Some(file) = &held.file {
                return Ok(file.clone());
            }
            match held.asked {
                Some((at, errno)) if at.elapsed() < REOPEN => return Err(errno),
                Some(_) | None => held.changes,
            }
        };
        let opened = open();
        let mut held = self.held.lock();
        if held.changes == changes {
            held.asked = Some((Instant::now(), opened.as_ref().err().copied().unwrap_or(Errno::EIO)));
            held.file = opened.as_ref().ok().cloned();
        }
        opened
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

/// How many of so many bytes from `offset` lie before the end.
pub(crate) fn within(offset: u64, len: usize, end: u64) -> usize {
    len.min(usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX))
}
