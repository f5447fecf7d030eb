//! Many files at once: closing them, and looking at them. Their data servers are asked once for all.
//!
//! Whoever holds the locks of several files took them in the order of their numbers; everybody else holds one.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use lease::coherence::rights::Claim;
use mds::{Closed, Found, Settled};
use parking_lot::MutexGuard;
use proto::{Nothing, closing::CloseMany};
use types::{Attr, FileKind, Ino, Timestamp};

use super::{
    MetadataService,
    files::{File, State},
    keeping::Claimed,
    placed::Placed,
    session::{Opening, Session},
    truths::{Truth, Wanted},
};
use crate::answer::{Done, No, Outcome};

/// Files whose locks are held at once.
const TOGETHER_MAX: usize = 256;

/// A file that is being written, as it was before its data servers were asked.
struct Looked {
    at: usize,
    found: Found,
    placed: Placed,
}

impl MetadataService {
    pub(super) fn close_many(&self, session: &Session, asked: &CloseMany) -> Outcome {
        let atimes = asked.closings.iter().map(|one| one.atime.map(Timestamp::try_from).transpose());
        let mut atimes: Vec<Option<Timestamp>> = atimes.collect::<Result<_, _>>()?;
        let (_claimed, free) = self.claim_read(session, asked);
        for (atime, one) in atimes.iter_mut().zip(&asked.closings) {
            *atime = atime.filter(|_| free.contains(&one.ino));
        }
        let (mut closed, mut written) = (Vec::with_capacity(atimes.len()), Vec::new());
        {
            let mut has = session.has.lock();
            for (one, atime) in asked.closings.iter().zip(atimes) {
                let Some(opening) = has.openings.remove(&one.opening) else { continue };
                closed.push((opening, atime));
                written.extend(opening.write.then_some(one.opening));
            }
        }
        self.all_closed(&closed);
        written.into_iter().for_each(|opening| self.end_opening(session, opening));
        Ok(Done::new(&Nothing {}))
    }

    /// The times of reading of these are about to change. Of a file that somebody else keeps and does not give back soon it stays as it is:
    /// no close waits for him.
    fn claim_read(&self, session: &Session, asked: &CloseMany) -> (Vec<Claimed<'_>>, BTreeSet<u64>) {
        let read = asked.closings.iter().filter(|one| one.atime.is_some()).map(|one| one.ino);
        let read: BTreeSet<u64> = read.collect();
        let (mut claimed, mut free) = (Vec::with_capacity(read.len()), BTreeSet::new());
        for ino in read {
            match Ino::from_raw(ino).map(|ino| self.claim(session, ino, Claim::Change)) {
                Some(Ok(claim)) => {
                    claimed.push(claim);
                    free.insert(ino);
                }
                Some(Err(no)) => {
                    tracing::debug!(ino, errno = %no.errno(), "times of reading are not recorded");
                    break;
                }
                None => {}
            }
        }
        (claimed, free)
    }

    /// These openings are no more.
    fn all_closed(&self, closed: &[(Opening, Option<Timestamp>)]) {
        let mut written = BTreeSet::new();
        for (Opening { ino, write }, _) in closed {
            if self.counted_out(*ino, *write) {
                written.insert(*ino);
            }
        }
        let read = closed.iter().filter(|(_, atime)| atime.is_some());
        let mut read: Vec<Closed> =
            read.map(|(opening, atime)| Closed { ino: opening.ino, settled: None, atime: *atime }).collect();
        if let Err(errno) = self.mds.settle_all(&mut read) {
            tracing::warn!(%errno, "access times were not recorded");
        }
        let written: Vec<Ino> = written.into_iter().collect();
        written.chunks(TOGETHER_MAX).for_each(|some| self.settle_some(some));
        closed.iter().for_each(|(opening, _)| self.mds.release(opening.ino, 1));
    }

    /// Settles those that nobody writes any more, in the order of their numbers. What cannot be settled now is due.
    fn settle_some(&self, inos: &[Ino]) {
        let files: Vec<Arc<File>> = inos.iter().map(|ino| self.files.get_or_make(*ino)).collect();
        let end = Instant::now() + 4 * self.options.patience;
        let mut held: Vec<(&File, MutexGuard<'_, State>)> = Vec::with_capacity(files.len());
        for file in &files {
            match file.state.try_lock_until(end) {
                Some(state) if !state.gone => held.push((&**file, state)),
                // Who has it for long, or took it out of the table, settles it; or it is found again.
                Some(_) | None => self.settle_later(file.ino, &No::later("the file is in use")),
            }
        }
        let ready: Vec<(usize, Placed, u64)> = held
            .iter_mut()
            .enumerate()
            .filter_map(|(at, (file, state))| match self.ready_to_settle(file, state) {
                Ok(ready) => ready.map(|(placed, known)| (at, placed, known)),
                Err(no) => {
                    self.settle_later(file.ino, &no);
                    None
                }
            })
            .collect();
        let wanted: Vec<Wanted<'_>> = ready
            .iter()
            .filter_map(|(at, placed, known)| {
                held.get(*at).map(|(file, _)| Wanted { ino: file.ino, placed, known: *known, at_rest: true })
            })
            .collect();
        let mut known = Vec::new();
        for ((at, _, _), truth) in ready.iter().zip(self.truths(&wanted)) {
            match (truth, held.get(*at)) {
                (Ok(truth), _) => known.push((*at, truth)),
                (Err(no), Some((file, _))) => self.settle_later(file.ino, &no),
                (Err(_), None) => {}
            }
        }
        self.record_all(&mut held, known);
        for (file, state) in &mut held {
            self.files.remove_if_idle(file, state);
        }
    }

    /// Where its data are, and the size in the metadata, if there is something to record.
    fn ready_to_settle(&self, file: &File, state: &mut State) -> Result<Option<(Placed, u64)>, No> {
        self.load_placed(file.ino, state)?;
        if !self.is_to_settle(file, state)? {
            return Ok(None);
        }
        let Some(placed) = state.placed.clone() else {
            // It is said to be written, and has no place: as if alone.
            return self.settle_if_idle(file, state).map(|()| None);
        };
        Ok(Some((placed, self.mds.find(file.ino)?.attr.size)))
    }

    /// What was found out, in one commit for each slot.
    fn record_all(&self, held: &mut [(&File, MutexGuard<'_, State>)], known: Vec<(usize, Truth)>) {
        let mut settled: Vec<Closed> = known
            .iter()
            .filter_map(|(at, truth)| {
                let (file, _) = held.get(*at)?;
                let Truth { size, blocks, mtime, .. } = *truth;
                let settled = Settled { size, blocks: Some(blocks), mtime, still_open: false };
                Some(Closed { ino: file.ino, settled: Some(settled), atime: None })
            })
            .collect();
        let recorded = self.mds.settle_all(&mut settled);
        for (at, truth) in known {
            let Some((file, state)) = held.get_mut(at) else { continue };
            match recorded {
                Ok(()) => self.settled(file.ino, state, truth.times),
                // Of some slots it may be recorded: recording it again changes nothing.
                Err(errno) => self.settle_later(file.ino, &errno.into()),
            }
        }
    }

    fn settle_later(&self, ino: Ino, no: &No) {
        tracing::debug!(%ino, errno = %no.errno(), "a written file is settled later");
        self.due.lock().insert(ino);
    }

    /// As [`MetadataService::complete`] of each, in order.
    pub(super) fn complete_all(&self, found: Vec<Result<Found, No>>) -> Vec<Result<Attr, No>> {
        let looked: Vec<Looked> = found
            .iter()
            .enumerate()
            .filter_map(|(at, found)| {
                let found = *found.as_ref().ok()?;
                self.written_at(&found).map(|placed| Looked { at, found, placed })
            })
            .collect();
        let wanted: Vec<Wanted<'_>> = looked
            .iter()
            .map(|one| Wanted {
                ino: one.found.attr.ino,
                placed: &one.placed,
                known: one.found.attr.size,
                at_rest: false,
            })
            .collect();
        // No lock is held meanwhile, and what came in between is looked at by itself.
        let mut truths = looked.iter().zip(self.truths(&wanted)).peekable();
        let complete = |(at, found): (usize, Result<Found, No>)| {
            let found = found?;
            let truth = truths.next_if(|(one, _)| one.at == at);
            match truth {
                Some((one, Ok(truth))) if self.is_as_before(one) => Ok(truth.shown(&found)),
                Some(_) | None => self.complete(found),
            }
        };
        found.into_iter().enumerate().map(complete).collect()
    }

    /// Where the data are of a file that somebody writes now, with nothing in the way of asking its servers.
    fn written_at(&self, found: &Found) -> Option<Placed> {
        if found.attr.kind != FileKind::Regular || !found.data.live {
            return None;
        }
        self.locked(found.attr.ino, |_, state| {
            let usable = state.writers > 0 && state.begun;
            Ok(state.placed.clone().filter(|placed| usable && placed.cut.is_none()))
        })
        .ok()?
    }

    /// The metadata and the place of its data are what they were: what its servers said meanwhile belongs to them.
    fn is_as_before(&self, looked: &Looked) -> bool {
        let same = self.locked(looked.found.attr.ino, |file, state| {
            let found = self.mds.find(file.ino)?;
            Ok(found == looked.found && state.placed.as_ref() == Some(&looked.placed))
        });
        same.unwrap_or(false)
    }
}
