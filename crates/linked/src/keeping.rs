//! Files of theirs that are changed here in part: what was never read of them is kept, before they are replaced there.
//!
//! Their file is opened soon after the first change and stays open until near-line has a version of ours; so a rename over it or
//! the end of its name takes nothing. What near-line alone has is copied to our tiers besides, as long as they have room, for
//! the case that this process ends before. Nobody waits for either.

use std::{collections::VecDeque, time::Duration};

use crossbeam_channel::Receiver;
use link::{Conflict, Why};
use types::{Errno, FileKind, Ino};

use crate::{Linked, done::Task, pending::is_unpublished};

/// Files whose first change was not seen to yet. More than can be kept open, so that a burst of writers finds room.
pub(crate) const LINE_MAX: usize = 1024;
const LOOK: Duration = Duration::from_millis(200);

impl Linked {
    pub(crate) fn run_keeping(&self, line: &Receiver<Ino>) {
        let mut missing: VecDeque<Ino> = self.changed_before();
        missing.iter().for_each(|ino| _ = self.keep(*ino));
        while !self.is_stopping() {
            let wait = if missing.is_empty() { LOOK } else { Duration::ZERO };
            if let Ok(ino) = line.recv_timeout(wait) {
                if self.is_stopping() {
                    return;
                }
                // Opened first, all of them: that is done in a moment.
                if self.keep(ino) && missing.len() < LINE_MAX && !missing.contains(&ino) {
                    missing.push_back(ino);
                }
                continue;
            }
            let Some(ino) = missing.pop_front() else { continue };
            let is_all = self.fetch_missing(ino, &|| self.is_stopping() || !line.is_empty());
            if !is_all {
                missing.push_back(ino);
            }
        }
    }

    /// What an earlier process had changed and not published.
    fn changed_before(&self) -> VecDeque<Ino> {
        let pending = self.ledger.lock();
        let changed = pending.log.works().filter(|(_, work)| {
            work.kind == FileKind::Regular && work.there && (is_unpublished(work) || work.due.is_some())
        });
        changed.map(|(ino, _)| ino).take(LINE_MAX).collect()
    }

    /// Whether something of it is in their file alone.
    fn keep(&self, ino: Ino) -> bool {
        let kept = || match self.record_of(ino)? {
            Some(_) => self.ds()?.keep_theirs(self.hold(ino)?.object()),
            // Theirs is no more, or was never there.
            None => Ok(false),
        };
        kept().unwrap_or_else(|errno: Errno| {
            tracing::debug!(%ino, %errno, "a file of theirs that was changed here cannot be opened");
            false
        })
    }

    /// `false`: once more.
    fn fetch_missing(&self, ino: Ino, stop: &dyn Fn() -> bool) -> bool {
        let fetched = || self.ds()?.fetch_missing(self.hold(ino)?.object(), stop);
        fetched().unwrap_or_else(|errno: Errno| {
            tracing::debug!(%ino, %errno, "what was never read of a file that was changed here cannot be fetched");
            true
        })
    }

    /// Somebody has to know of it, whatever else is listed of the file.
    pub(crate) fn note_bytes_lost(&self, task: &Task<'_>) -> Result<(), Errno> {
        let ino = task.entry.ino;
        let Some(at) = task.entry.step.target() else { return Ok(()) };
        // By an earlier try, or with the conflict that set it aside.
        let is_listed = |(_, conflict): &(u64, Conflict)| {
            conflict.ino == ino && matches!(conflict.why, Why::BytesLost | Why::BothChanged)
        };
        if self.conflicts()?.iter().any(is_listed) {
            return Ok(());
        }
        let conflict = Conflict {
            why: Why::BytesLost,
            ino,
            when: self.now(),
            dir: at.dir,
            name: at.name.clone(),
            kept: None,
        };
        self.ledger.mds.transact(&[ino], &mut |txn, _, _| self.list_conflict(txn, &conflict))
    }
}
