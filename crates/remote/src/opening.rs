//! Opening and closing, and where an open file's bytes are.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Instant, SystemTime},
};

use parking_lot::Mutex;
use proto::{attr::Caller, closing::Closing, metadata};
use types::{Attr, Errno, Ino, ProjectId, Timestamp};

use crate::{
    Remote,
    access::Access,
    closes::ToClose,
    keys::{entry, inode},
    names::{Place, attr_of},
    openings::{OpenFile, Placed},
};

/// Access times are renewed when older than this, as with the kernel's relatime.
const ATIME_AGE_SEC: i64 = 24 * 60 * 60;

impl Remote {
    /// A new file, which comes with a reference. One that is there is opened, unless only a new one is wanted.
    pub fn create(
        &self,
        caller: Caller,
        at: Place<'_>,
        mode: u32,
        access: Access,
    ) -> Result<(Attr, Arc<OpenFile>), Errno> {
        loop {
            let (opening, session) = (self.openings.number(), self.writing_session());
            let made = self.change_of(&[entry(at.dir, at.name), inode(at.dir)], |head| metadata::Create {
                head: Some(head),
                caller: Some(caller),
                dir: at.dir.get(),
                name: at.name.to_vec(),
                mode: mode & types::MODE_MASK,
                opening,
                write: access.write,
            });
            match made {
                // Made by somebody else since the kernel looked.
                Err(Errno::EEXIST) if !access.exclusive => match self.open_named(at, access) {
                    // And taken away again.
                    Err(Errno::ENOENT) => {}
                    other => return other,
                },
                made => return self.made(made?, (opening, session), access),
            }
        }
    }

    fn open_named(&self, at: Place<'_>, access: Access) -> Result<(Attr, Arc<OpenFile>), Errno> {
        let attr = self.lookup(at)?;
        match self.open(attr.ino, access) {
            Ok(file) => Ok((attr, file)),
            Err(error) => {
                self.references.forget(attr.ino.get(), 1);
                Err(error)
            }
        }
    }

    /// A file without a name, with a reference.
    pub fn create_unnamed(
        &self,
        caller: Caller,
        dir: Ino,
        mode: u32,
        access: Access,
    ) -> Result<(Attr, Arc<OpenFile>), Errno> {
        let (opening, session) = (self.openings.number(), self.writing_session());
        let made = self.change(|head| metadata::TmpFile {
            head: Some(head),
            caller: Some(caller),
            dir: dir.get(),
            mode: mode & types::MODE_MASK,
            opening,
        })?;
        self.made(made, (opening, session), access)
    }

    pub fn open(&self, ino: Ino, access: Access) -> Result<Arc<OpenFile>, Errno> {
        let number = self.openings.number();
        if access.write {
            self.begin_change(&[inode(ino)]);
        }
        let keep = access.read && self.keeps();
        let asked = keep.then(|| self.asked_to_keep());
        let write = access.write;
        let make = |head| {
            let (head, ino) = (Some(head), ino.get());
            metadata::Open { head, ino, opening: number, write, keep, again: false }
        };
        let (opened, sure) = self.ask_whom(make, self.want_anew());
        let opened = opened.and_then(|(opened, _, from)| Ok((attr_of(opened.attr)?, opened, from)));
        let (attr, opened, from) = opened.inspect_err(|_| {
            if access.write {
                self.end_change(&[inode(ino)], sure);
            }
        })?;
        if let Some(asked) = asked {
            self.may_keep_bytes((asked.ticket, from), ino, (opened.keeps, opened.term_ms));
        }
        Ok(self.opened(&attr, opened.layout, (number, 0), access))
    }

    /// Gives an opening back, a moment later. What fails is the server's to give up with the session.
    pub fn close(&self, number: u64) {
        if let Some(file) = self.openings.get(number) {
            self.leave_back(&file, self.options.patience);
        }
        let Some(file) = self.openings.remove(number) else { return };
        self.left_back(&file);
        self.caching.close(file.ino, number);
        self.openings.touch(file.ino);
        self.release_locks(file.ino, number);
        let atime = file.read_at.lock().map(Into::into);
        if atime.is_some() {
            self.begin_change(&[inode(file.ino)]);
        }
        let closing = Closing { opening: file.number, ino: file.ino.get(), atime };
        let place = file.place.get().copied();
        self.close_soon(ToClose { closing, write: file.access.write, place });
    }

    /// `EBADF`: no such opening. `EIO`: lost with its session, and the file is no more or cannot be opened now, or a lock of it is lost.
    pub fn file(&self, number: u64) -> Result<Arc<OpenFile>, Errno> {
        let file = self.openings.get(number).ok_or(Errno::EBADF)?;
        if file.unlocked.load(Ordering::Acquire) {
            return Err(Errno::EIO);
        }
        if file.lost.load(Ordering::Acquire) {
            let make = |head| metadata::Open {
                head: Some(head),
                ino: file.ino.get(),
                opening: number,
                write: file.access.write,
                keep: false,
                again: false,
            };
            self.ask(make, self.want_anew()).map_err(|_| Errno::EIO)?;
            file.lost.store(false, Ordering::Release);
        }
        Ok(file)
    }

    /// `session`: as which its writing begins, if the server says so.
    fn made(
        &self,
        made: metadata::Opened,
        (number, session): (u64, u64),
        access: Access,
    ) -> Result<(Attr, Arc<OpenFile>), Errno> {
        let attr = attr_of(made.attr)?;
        self.references.add(attr.ino);
        if access.write {
            // Until it is closed.
            self.begin_change(&[inode(attr.ino)]);
        }
        // A file that is new has a layout only when its writing has begun.
        let begun = if made.layout.is_some() { session } else { 0 };
        if begun != 0 {
            self.openings.made(attr.ino, number);
        }
        let file = self.opened(&attr, made.layout, (number, begun), access);
        Ok((attr, file))
    }

    fn opened(
        &self,
        attr: &Attr,
        layout: Option<proto::Layout>,
        (number, begun): (u64, u64),
        access: Access,
    ) -> Arc<OpenFile> {
        self.openings.insert(OpenFile {
            placed: Mutex::new(layout.and_then(Placed::new).map(Arc::new)),
            begun: AtomicU64::new(begun),
            ..self.found_again(attr, number, access)
        })
    }

    /// One of which it is not known where its bytes are.
    pub(crate) fn found_again(&self, attr: &Attr, number: u64, access: Access) -> OpenFile {
        let wants_time = access.read && !access.no_atime && !self.options.no_atime;
        OpenFile {
            atime_due: wants_time && atime_due(attr, now()),
            reserved: (access.write && attr.project != ProjectId::NONE).then(|| AtomicU64::new(attr.size)),
            ..self.unknown(attr.ino, (number, attr.size), access)
        }
    }

    /// One of which nothing is known but what it is.
    pub(crate) fn unknown(&self, ino: Ino, (number, size): (u64, u64), access: Access) -> OpenFile {
        OpenFile {
            ino,
            number,
            access,
            size,
            atime_due: false,
            read_at: Mutex::default(),
            placed: Mutex::default(),
            begun: AtomicU64::new(0),
            cleared: AtomicBool::new(false),
            reserved: None,
            writes: AtomicU32::new(0),
            answered: self.openings.outstanding.of(ino),
            late_error: Mutex::default(),
            run: Mutex::default(),
            asked_to_keep: Mutex::new(Some(Instant::now())),
            lost: AtomicBool::new(false),
            unlocked: AtomicBool::new(false),
            place: OnceLock::new(),
        }
    }

    /// Where the file's bytes are; without it, how long the file is that has none.
    pub(crate) fn placed(&self, file: &OpenFile) -> Result<Result<Arc<Placed>, u64>, Errno> {
        if let Some(placed) = file.placed.lock().clone() {
            return Ok(Ok(placed));
        }
        let found = self.look(|head| metadata::FindLayout { head: Some(head), ino: file.ino.get() })?;
        match found.layout {
            Some(layout) => self.place(file, layout).map(Ok),
            None => Ok(Err(found.size)),
        }
    }

    /// The same before the first change of bytes through this opening, of which the metadata server has to know.
    pub(crate) fn begin_write(&self, file: &OpenFile) -> Result<Arc<Placed>, Errno> {
        self.openings.touch(file.ino);
        let session = self.writing_session();
        if file.begun.load(Ordering::Acquire) == session
            && let Some(placed) = file.placed.lock().clone()
        {
            return Ok(placed);
        }
        let begun = self.look(|head| metadata::BeginWrite {
            head: Some(head),
            ino: file.ino.get(),
            opening: file.number,
        })?;
        let placed = self.place(file, begun.layout.ok_or(Errno::EIO)?)?;
        file.begun.store(session, Ordering::Release);
        Ok(placed)
    }

    /// The same, if it has begun: nobody is asked.
    pub(crate) fn begun_write(&self, file: &OpenFile) -> Option<Arc<Placed>> {
        self.openings.touch(file.ino);
        let has_begun = file.begun.load(Ordering::Acquire) == self.writing_session();
        has_begun.then(|| file.placed.lock().clone())?
    }

    /// What writing begins in; after a lost session it begins again.
    fn writing_session(&self) -> u64 {
        self.recoveries.load(Ordering::Acquire) + 1
    }

    pub(crate) fn place(&self, file: &OpenFile, layout: proto::Layout) -> Result<Arc<Placed>, Errno> {
        let mut kept = file.placed.lock();
        if let Some(placed) = kept.as_ref().filter(|placed| placed.layout == layout) {
            return Ok(placed.clone());
        }
        let Some(placed) = Placed::new(layout).map(Arc::new) else {
            tracing::error!(ino = file.ino.get(), "a layout that breaks its rules");
            return Err(Errno::EIO);
        };
        *kept = Some(placed.clone());
        Ok(placed)
    }
}

/// Does a read now change the access time, by the rule of relatime?
fn atime_due(attr: &Attr, now: Timestamp) -> bool {
    attr.atime <= attr.mtime || attr.atime <= attr.ctime || now.sec - attr.atime.sec >= ATIME_AGE_SEC
}

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nsec: since.subsec_nanos() }
}

/// A read that is answered leaves its time, wherever the bytes were.
pub(crate) fn was_read(file: &OpenFile) {
    if file.atime_due {
        let mut read_at = file.read_at.lock();
        *read_at = read_at.or_else(|| Some(now()));
    }
}
