//! Reads that are answered with bytes that this mount keeps, and what fills them.
//!
//! Bytes are kept while the metadata server's lease of them stands: nobody else writes the file. Large reads go past it: they cost a round trip each, and
//! would pay for a copy.

use std::{
    ops::{Deref, Range},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use proto::leases::{Keep, keeps};
use types::{Errno, Ino};

use crate::{
    Remote,
    held::Source,
    kept::{At, Ticket},
    opening::was_read,
    openings::OpenFile,
    pages::{CHUNK, Fetch, Piece, Step},
    reading::Answers,
};

/// Reads of so many bytes and more are neither looked for nor kept; what follows them is asked for ahead ([`crate::running`]).
pub(crate) const LARGE: usize = 512 << 10;
/// A file whose bytes may not be kept is asked for again so often, while it is read.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// A read that is overtaken so often goes past what is kept.
const TURNS_MAX: usize = 8;

/// How many bytes came, and they.
type Chunks = (usize, Vec<Arc<[u8]>>);

/// A change of bytes by this mount; it ends when this is dropped.
pub(crate) struct Changing<R: Deref<Target = Remote>> {
    remote: R,
    ino: Ino,
    range: Option<Range<u64>>,
    sure: bool,
}

impl<R: Deref<Target = Remote>> Changing<R> {
    pub(crate) fn begin(remote: R, ino: Ino, range: Option<Range<u64>>) -> Changing<R> {
        remote.caching.begin_change(ino, range.as_ref());
        Changing { remote, ino, range, sure: false }
    }

    /// It is not carried out later than now.
    pub(crate) fn ended<T>(&mut self, result: &Result<T, Errno>) {
        self.sure = !matches!(result, Err(Errno::EIO | Errno::ESTALE | Errno::EINTR));
    }
}

impl<R: Deref<Target = Remote>> Drop for Changing<R> {
    fn drop(&mut self) {
        if !self.sure {
            let now = Instant::now();
            self.remote.kept.lock().doubt_bytes(self.ino, now, now + self.remote.options.longest);
        }
        self.remote.caching.end_change(self.ino, self.range.as_ref());
    }
}

impl Remote {
    /// To be held while bytes of the file are changed: these, or any of them and the size.
    pub(crate) fn change_bytes(&self, ino: Ino, range: Option<Range<u64>>) -> Changing<&Remote> {
        Changing::begin(self, ino, range)
    }

    /// What an opening may keep: the answer to what was asked under that ticket.
    pub(crate) fn may_keep_bytes(
        &self,
        (ticket, from): (Ticket, Source),
        ino: Ino,
        (keeping, term_ms): (u32, u32),
    ) {
        if term_ms == 0 {
            return;
        }
        let at = At { ticket, now: Instant::now(), from };
        {
            let mut kept = self.kept.lock();
            kept.heard_term(&at, Duration::from_millis(term_ms.into()));
            if keeping & keeps::BYTES != 0 {
                kept.keep_bytes(&at, ino);
            }
        }
        self.listen_to(from, keeping);
    }

    /// Would bytes that are read through it be kept?
    pub(crate) fn wants_bytes(&self, file: &OpenFile) -> bool {
        file.access.read && self.keeps()
    }

    pub(crate) fn bytes_lease(&self, ino: Ino) -> Option<u64> {
        self.kept.lock().bytes(Instant::now(), ino)
    }

    /// The same, and asks for one if there is none and it was not asked for a while.
    pub(crate) fn lease_for(&self, file: &OpenFile) -> Option<u64> {
        if !self.wants_bytes(file) {
            return None;
        }
        if let Some(lease) = self.bytes_lease(file.ino) {
            return Some(lease);
        }
        {
            let mut last = file.asked_to_keep.lock();
            let since = last.filter(|last| last.elapsed() < ASK_AGAIN);
            if since.is_some() || self.keeps_none.load(Ordering::Relaxed) {
                return None;
            }
            *last = Some(Instant::now());
        }
        let asked = self.asked_to_keep();
        let answer = self.look_and_where(|head| Keep { head: Some(head), ino: file.ino.get() });
        match answer {
            Ok((kept, from)) => {
                self.may_keep_bytes((asked.ticket, from), file.ino, (kept.keeps, kept.term_ms));
            }
            // A server that is older.
            Err(Errno::ENOSYS) => self.keeps_none.store(true, Ordering::Relaxed),
            Err(_) => (),
        }
        self.bytes_lease(file.ino)
    }

    /// A range: from what is kept, or from its data servers.
    pub(crate) fn ask_or_find(&self, file: &OpenFile, offset: u64, len: usize) -> Result<Answers, Errno> {
        if len > 0
            && let Some(found) = self.find_back(file.ino, offset, len)?
        {
            return Ok(found);
        }
        if len == 0 {
            return self.ask_for(file, offset, len);
        }
        if self.is_in_run(file, (offset, len)) {
            return self.ask_in_run(file, (offset, len));
        }
        self.note_read(file, (offset, len));
        let Some(mut lease) = self.lease_for(file) else { return self.ask_for(file, offset, len) };
        let Some(pages) = &self.caching.pages else { return self.ask_for(file, offset, len) };
        let (want, ahead) = file.run.lock().read(offset, len as u64);
        for _ in 0..TURNS_MAX {
            let mut kept = pages.lock();
            match kept.step((file.ino, lease), offset, len as u64, want) {
                Step::Found(pieces) => {
                    drop(kept);
                    self.read_ahead(file, lease, ahead);
                    return Ok(found(file, pieces));
                }
                Step::Pass => break,
                Step::Wait => {
                    let waits = self.options.longest;
                    if self.caching.came.wait_for(&mut kept, waits).timed_out() {
                        break;
                    }
                    drop(kept);
                }
                Step::Fetch(fetch) => {
                    drop(kept);
                    // What was asked for may be there, and what was to be read along with it not.
                    if self.fetch(file, &fetch).is_err() {
                        break;
                    }
                }
            }
            match self.bytes_lease(file.ino) {
                Some(now) => lease = now,
                None => break,
            }
        }
        self.ask_for(file, offset, len)
    }

    /// What can be answered without waiting for anybody; the kernel asks through that handle.
    pub(crate) fn find_now(&self, ino: Ino, handle: u64, offset: u64, len: usize) -> Option<Answers> {
        let file = self.openings.get(handle)?;
        if self.backlog.has(ino) {
            return None;
        }
        let pages = self.caching.pages.as_ref()?;
        if len >= LARGE || len == 0 || file.ino != ino || !file.is_well() {
            return None;
        }
        let lease = self.bytes_lease(ino)?;
        let pieces = pages.lock().peek((ino, lease), offset, len as u64)?;
        let (_, ahead) = file.run.lock().read(offset, len as u64);
        self.note_read(&file, (offset, len));
        self.read_ahead(&file, lease, ahead);
        Some(found(&file, pieces))
    }

    fn fetch(&self, file: &OpenFile, fetch: &Fetch) -> Result<(), Errno> {
        let Some(pages) = &self.caching.pages else { return Ok(()) };
        let read = self.ask_for(file, fetch.from, fetch.len as usize);
        let chunks = read.and_then(|all| self.chunks(fetch, all));
        let done = chunks.map(|(len, chunks)| {
            pages.lock().fill(fetch, len as u64, chunks);
        });
        if done.is_err() {
            pages.lock().failed(fetch);
        }
        self.caching.came.notify_all();
        done
    }

    /// What came, as it is kept. What is in one piece is copied once.
    fn chunks(&self, fetch: &Fetch, all: Answers) -> Result<Chunks, Errno> {
        let kept = |bytes: &[u8]| (bytes.len(), bytes.chunks(CHUNK as usize).map(Arc::from).collect());
        if let Answers::Whole(got) = all {
            let chunks = kept(&got.bytes);
            self.reuse(got);
            return Ok(chunks);
        }
        let mut buf = vec![0; fetch.len as usize];
        let len = self.fill(fetch.from, &mut buf, all)?;
        Ok(kept(&buf[..len]))
    }

    /// Parts of it at once, each by a thread of its own, as far as there are some.
    fn read_ahead(&self, file: &OpenFile, lease: u64, ahead: Option<Range<u64>>) {
        let (Some(range), Some(pages)) = (ahead, &self.caching.pages) else { return };
        loop {
            let Some(fetch) = pages.lock().ahead((file.ino, lease), range.clone()) else { return };
            let (this, number, part) = (self.this.clone(), file.number, fetch.clone());
            let offered = self.data_pool.offer(move || {
                let Some(this) = this.upgrade() else { return };
                let done = match this.openings.get(number) {
                    Some(file) => this.fetch(&file, &part),
                    None => Err(Errno::EBADF),
                };
                if done.is_err() {
                    this.overtaken(&part);
                }
            });
            if !offered {
                self.overtaken(&fetch);
                return;
            }
        }
    }

    fn overtaken(&self, fetch: &Fetch) {
        if let Some(pages) = &self.caching.pages {
            pages.lock().failed(fetch);
            self.caching.came.notify_all();
        }
    }
}

fn found(file: &OpenFile, pieces: Vec<Piece>) -> Answers {
    was_read(file);
    Answers::Kept(pieces)
}
