//! Who has what open, refers to what, and begins to write.

use std::sync::Arc;

use lease::coherence::rights::Claim;
use mds::Closed;
use proto::{
    Layout, Nothing,
    leases::Kept,
    metadata::{
        Append, Appended, BeginWrite, Begun, Close, FindLayout, Forget, Fsync, Held, Hold, Open, Opened,
        Placed, Reserve,
    },
};
use types::{Attr, Errno, FileKind, Ino, Timestamp};

use super::{
    MetadataService,
    files::{File, State},
    session::{Opening, Session},
};
use crate::answer::{Done, No, Outcome};

/// Bytes of the largest file.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Only regular files have data.
fn regular(kind: FileKind) -> Result<(), Errno> {
    match kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Errno::EISDIR),
        FileKind::Symlink
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => Err(Errno::EINVAL),
    }
}

impl MetadataService {
    /// Adds references, unless its objects are being removed.
    pub(super) fn hold(&self, ino: Ino, n: u64) -> Result<(), No> {
        let dying = self.dying.lock();
        if dying.contains(&ino) {
            return Err(Errno::ESTALE.into());
        }
        self.mds.hold(ino, n);
        Ok(())
    }

    /// The session refers to it once more.
    pub(super) fn refer(&self, session: &Session, ino: Ino) -> Result<(), No> {
        let mut has = session.has.lock();
        if has.over {
            return Err(No::session_gone());
        }
        if has.references.len() >= self.options.sessions.references && !has.references.contains_key(&ino) {
            return Err(No::too_much("as many references as a session may have"));
        }
        self.hold(ino, 1)?;
        *has.references.entry(ino).or_default() += 1;
        Ok(())
    }

    pub(super) fn forget(&self, session: &Session, asked: &Forget) -> Outcome {
        for reference in &asked.references {
            let ino = proto::attr::ino(reference.ino)?;
            let mut has = session.has.lock();
            let Some(count) = has.references.get_mut(&ino) else { continue };
            let given = reference.count.min(*count);
            *count -= given;
            if *count == 0 {
                has.references.remove(&ino);
            }
            drop(has);
            self.mds.release(ino, given);
        }
        Ok(Done::new(&Nothing {}))
    }

    /// References that the session had in an earlier life of the server.
    pub(super) fn hold_again(&self, session: &Session, asked: &Hold) -> Outcome {
        let mut gone = Vec::new();
        for reference in &asked.references {
            let ino = proto::attr::ino(reference.ino)?;
            let found = match self.find_again(ino) {
                Ok(found) => found,
                Err(no) if no.errno() == Errno::ESTALE => {
                    gone.push(ino.get());
                    continue;
                }
                Err(no) => return Err(no),
            };
            let mut has = session.has.lock();
            if has.over {
                return Err(No::session_gone());
            }
            if has.references.len() >= self.options.sessions.references {
                return Err(No::too_much("as many references as a session may have"));
            }
            if self.hold(ino, reference.count).is_err() {
                gone.push(ino.get());
                continue;
            }
            let before = has.references.insert(ino, reference.count);
            self.mds.held_again(&found);
            drop(has);
            self.mds.release(ino, before.unwrap_or(0));
        }
        Ok(Done::new(&Held { gone }))
    }

    /// By its number. What has no name counts while somebody has it, and as long as sessions may come back.
    fn find_again(&self, ino: Ino) -> Result<Attr, No> {
        let found = if self.in_grace() { self.mds.find(ino) } else { self.mds.find_by_number(ino) };
        Ok(found?.attr)
    }

    pub(super) fn open(&self, session: &Arc<Session>, asked: &Open) -> Outcome {
        let ino = proto::attr::ino(asked.ino)?;
        let attr = self.find_again(ino)?;
        regular(attr.kind)?;
        if !asked.again {
            self.all_have_said(session, ino)?;
        }
        let (attr, layout) = self.open_found(session, asked.opening, &attr, asked.write)?;
        let through = self.opened_through(session, asked, ino);
        let attr = through.inspect_err(|_| self.close_one(session, asked.opening, None))?.unwrap_or(attr);
        let kept = if asked.keep { self.keep_bytes(session, ino) } else { Kept::default() };
        let Kept { keeps, term_ms } = kept;
        Ok(Done::new(&Opened { attr: Some(attr.into()), layout, keeps, term_ms }))
    }

    /// Adds an opening of a regular file; the same again changes nothing. Returns its true attributes and its layout.
    pub(super) fn open_found(
        &self,
        session: &Session,
        number: u64,
        attr: &Attr,
        write: bool,
    ) -> Result<(Attr, Option<Layout>), No> {
        let ino = attr.ino;
        let opening = Opening { ino, write };
        if write {
            self.claim_opening(session, number, ino)?;
        }
        if let Err(no) = self.hold(ino, 1) {
            self.unclaim(session, number);
            return Err(no);
        }
        self.mds.held_again(attr);
        let opened = self.locked(ino, |file, state| {
            let mut has = session.has.lock();
            let full = has.openings.len() >= self.options.sessions.openings;
            let there = has.openings.get(&number).copied();
            match there {
                _ if has.over => return Err(No::session_gone()),
                Some(there) if there == opening => (),
                Some(_) => return Err(Errno::EINVAL.into()),
                None if full => return Err(No::too_much("as many files as a session may have open")),
                None => {
                    has.openings.insert(number, opening);
                    state.openings += 1;
                    state.writers += u32::from(write);
                    state.untouched = state.untouched.filter(|_| !write);
                    // The opening's own.
                    self.mds.hold(ino, 1);
                }
            }
            drop(has);
            let attr = self.complete_locked(file, state);
            let layout = state.placed.as_ref().map(|placed| placed.layout.clone());
            Ok((attr, layout, there.is_none()))
        });
        self.mds.release(ino, 1);
        match opened {
            Ok((Ok(attr), layout, _)) => Ok((attr, layout)),
            Ok((Err(no), _, ours)) => {
                if ours {
                    self.close_one(session, number, None);
                }
                Err(no)
            }
            Err(no) => {
                self.unclaim(session, number);
                Err(no)
            }
        }
    }

    /// It was not opened. One that is asked for again may be there.
    fn unclaim(&self, session: &Session, number: u64) {
        if !session.has.lock().openings.contains_key(&number) {
            self.end_opening(session, number);
        }
    }

    pub(super) fn close(&self, session: &Session, asked: &Close) -> Outcome {
        let atime = asked.atime.map(Timestamp::try_from).transpose()?;
        let opening = session.has.lock().openings.get(&asked.opening).copied();
        let _claimed = match opening.filter(|_| atime.is_some()) {
            Some(opening) => Some(self.claim(session, opening.ino, Claim::Change)?),
            None => None,
        };
        self.close_one(session, asked.opening, atime);
        Ok(Done::new(&Nothing {}))
    }

    fn close_one(&self, session: &Session, number: u64, atime: Option<Timestamp>) {
        let closed = session.has.lock().openings.remove(&number);
        if let Some(opening) = closed {
            self.closed(opening, atime);
            if opening.write {
                self.end_opening(session, number);
            }
        }
    }

    /// An opening counts no more. Is the file to be settled?
    pub(super) fn counted_out(&self, ino: Ino, write: bool) -> bool {
        // In any case: whoever has the lock for long does not keep them.
        self.files.with(ino, |_, state| {
            state.openings = state.openings.saturating_sub(1);
            state.writers = state.writers.saturating_sub(u32::from(write));
            state.untouched = state.untouched.filter(|_| !write);
            state.begun && state.writers == 0
        })
    }

    /// An opening is no more.
    fn closed(&self, opening: Opening, atime: Option<Timestamp>) {
        let Opening { ino, write } = opening;
        let settle = self.counted_out(ino, write);
        if atime.is_some() {
            let mut read = [Closed { ino, settled: None, atime }];
            if let Err(errno) = self.mds.settle_all(&mut read) {
                tracing::warn!(%ino, %errno, "an access time was not recorded");
            }
        }
        if settle && let Err(no) = self.locked(ino, |file, state| self.settle_if_idle(file, state)) {
            tracing::warn!(%ino, errno = %no.errno(), "a written file is settled later");
            self.due.lock().insert(ino);
        }
        self.mds.release(ino, 1);
    }

    /// Gives back all that a session has.
    pub(super) fn give_up(&self, session: &Session) {
        let (references, openings) = {
            let mut has = session.has.lock();
            has.over = true;
            (std::mem::take(&mut has.references), std::mem::take(&mut has.openings))
        };
        for Opening { ino, write } in openings.into_values() {
            // The clock has other things to do than to wait for data servers.
            if self.counted_out(ino, write) {
                self.due.lock().insert(ino);
            }
            self.mds.release(ino, 1);
        }
        references.into_iter().for_each(|(ino, count)| self.mds.release(ino, count));
    }

    /// The session has this opening, and may write with it.
    fn writes(session: &Session, number: u64, ino: Ino) -> Result<(), No> {
        let opening = session.has.lock().openings.get(&number).copied();
        match opening {
            Some(opening) if opening.ino == ino && opening.write => Ok(()),
            Some(_) | None => Err(Errno::EBADF.into()),
        }
    }

    pub(super) fn begin_write(&self, session: &Session, asked: &BeginWrite) -> Outcome {
        let ino = proto::attr::ino(asked.ino)?;
        self.locked(ino, |file, state| {
            Self::writes(session, asked.opening, ino)?;
            let layout = self.begin(file, state, session.node())?.layout;
            let size = self.mds.find(ino)?.attr.size;
            Ok(Done::new(&Begun { layout: Some(layout), size }))
        })
    }

    /// Begins to write a file that was just made for that: the first write needs not be announced. `None`: it has to be, and then it
    /// is said what is in the way.
    pub(super) fn begin_new(&self, session: &Session, number: u64, ino: Ino) -> Option<Layout> {
        // Whether its data go to the writer's own node depends on who has it open at the first write.
        if self.waits_for_writers(ino, session.node()) {
            return None;
        }
        let begun = self.locked(ino, |file, state| {
            Self::writes(session, number, ino)?;
            // Somebody else may have found it already, and written.
            let fresh = !state.begun && state.writers == 1;
            let placed = self.begin(file, state, session.node())?;
            if fresh {
                state.untouched = Some((session.id, number));
            }
            Ok(placed.layout)
        });
        begun.inspect_err(|no| tracing::debug!(%ino, errno = %no.errno(), "writing begins later")).ok()
    }

    pub(super) fn append(&self, session: &Session, asked: &Append) -> Outcome {
        let ino = proto::attr::ino(asked.ino)?;
        self.locked(ino, |file, state| {
            Self::writes(session, asked.opening, ino)?;
            let placed = self.begin(file, state, session.node())?;
            let known = self.mds.find(ino)?.attr.size;
            let offset = self.truth(file, &placed, known.max(state.append_end))?.size;
            let end = offset.checked_add(asked.length).filter(|end| *end <= SIZE_MAX).ok_or(Errno::EFBIG)?;
            self.mds.reserve_size(ino, end)?;
            state.append_end = end;
            Ok(Done::new(&Appended { offset, layout: Some(placed.layout) }))
        })
    }

    pub(super) fn reserve(&self, asked: &Reserve) -> Outcome {
        self.mds.reserve_size(proto::attr::ino(asked.ino)?, asked.size)?;
        Ok(Done::new(&Nothing {}))
    }

    pub(super) fn fsync(&self, asked: &Fsync) -> Outcome {
        let ino = proto::attr::ino(asked.ino)?;
        let found = self.mds.find(ino)?;
        if found.attr.kind == FileKind::Regular && found.data.live {
            self.locked(ino, |file, state| self.record_now(file, state))?;
        }
        self.mds.sync()?;
        Ok(Done::new(&Nothing {}))
    }

    fn record_now(&self, file: &File, state: &mut State) -> Result<(), No> {
        self.settle_if_idle(file, state)?;
        if state.begun { self.record(file, state, true).map(drop) } else { Ok(()) }
    }

    pub(super) fn find_layout(&self, asked: &FindLayout) -> Outcome {
        let ino = proto::attr::ino(asked.ino)?;
        regular(self.mds.find(ino)?.attr.kind)?;
        let (size, layout) = self.locked(ino, |file, state| {
            self.finish_cut(file, state)?;
            let layout = state.placed.as_ref().map(|placed| placed.layout.clone());
            let size = match (self.complete_locked(file, state), &layout) {
                (Ok(attr), _) => attr.size,
                // Who asks may be there because one of its servers is away: where its bytes are he is told all the same.
                (Err(_), Some(_)) => self.mds.find(ino)?.attr.size,
                (Err(no), None) => return Err(no),
            };
            Ok((size, layout))
        })?;
        Ok(Done::new(&Placed { layout, size }))
    }
}
