//! Files of which the kernel may have pages, since a program has them mapped, and when it is to drop them. Pure.
//!
//! - I-MAPPED-1: pages that were all read under one lease that stands are true and stay. Others go within [`STALE_MAX`], and what was changed through
//!   them is written before.
//! - I-MAPPED-2: a file that is asked back is given back when its pages are gone, or after [`RETURN_MAX`]: then they are as those of a file without a lease.
//! - I-MAPPED-3: a write that does not go through the pages is answered when none is left of what it wrote.

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    time::{Duration, Instant},
};

use proto::leases::Returned;
use types::Ino;

use crate::held::Source;

/// For so long pages without a lease stay.
pub(crate) const STALE_MAX: Duration = Duration::from_millis(500);
/// A program's changes that cannot be written for so long hold nobody else up: half of the time after which the server gives a client up.
pub(crate) const RETURN_MAX: Duration = Duration::from_secs(7);

/// To be called without locks.
pub(crate) type Then = Box<dyn FnOnce() + Send>;

/// What a thread is to have the kernel drop.
pub(crate) enum Job {
    /// All pages of a file; then [`Mapped::dropped`].
    File(Ino),
    /// Those of a range, an empty one goes to the end of the file; then the call.
    Range(Ino, Range<u64>, Then),
}

/// A lease on its way back: who granted it, and what he is told.
pub(crate) type Giving = (Source, Returned);

struct Pages {
    /// The lease under which all of them were read; `None`: there was none, or several.
    lease: Option<u64>,
    /// Since when some are without a lease.
    since: Instant,
    /// None were read since the last dropping began.
    none: bool,
    dropping: bool,
    /// In the queue.
    queued: bool,
    giving: Option<(Giving, Instant)>,
}

#[derive(Default)]
pub(crate) struct Mapped {
    /// Without a lease they go soon; so there are as many as leases, and some.
    files: HashMap<Ino, Pages>,
    /// Each file once, and a range for each write that the kernel waits for.
    jobs: VecDeque<Job>,
    drops: u64,
}

impl Mapped {
    /// The kernel reads pages, under that lease. To be told before the bytes are looked at.
    pub(crate) fn read(&mut self, now: Instant, ino: Ino, lease: Option<u64>) {
        let fresh = || Pages { lease, since: now, none: true, dropping: false, queued: false, giving: None };
        let pages = self.files.entry(ino).or_insert_with(fresh);
        if std::mem::take(&mut pages.none) {
            (pages.lease, pages.since) = (lease, now);
        } else if pages.lease != lease {
            pages.lease = None;
        }
    }

    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.files.contains_key(&ino)
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Times that pages of a file were dropped.
    pub(crate) fn drops(&self) -> u64 {
        self.drops
    }

    /// It was asked back. Gives it back if there are no pages.
    pub(crate) fn recalled(&mut self, now: Instant, ino: Ino, giving: Giving) -> Option<Giving> {
        let Some(pages) = self.files.get_mut(&ino) else { return Some(giving) };
        let since = pages.giving.as_ref().map_or(now, |(_, since)| *since);
        pages.giving = Some((giving, since));
        self.queue(ino);
        None
    }

    fn queue(&mut self, ino: Ino) {
        if let Some(pages) = self.files.get_mut(&ino)
            && !std::mem::replace(&mut pages.queued, true)
        {
            self.jobs.push_back(Job::File(ino));
        }
    }

    /// A write of these bytes went past the pages.
    pub(crate) fn drop_range(&mut self, ino: Ino, range: Range<u64>, then: Then) {
        // Somebody waits for it.
        self.jobs.push_front(Job::Range(ino, range, then));
    }

    /// Queues what is due; `lease_of` says which leases stand. Returns what was kept back for too long.
    pub(crate) fn look(&mut self, now: Instant, lease_of: impl Fn(Ino) -> Option<u64>) -> Vec<Giving> {
        let mut due = Vec::new();
        let mut overdue = Vec::new();
        for (ino, pages) in &mut self.files {
            if pages.giving.as_ref().is_some_and(|(_, since)| now >= *since + RETURN_MAX) {
                overdue.extend(pages.giving.take().map(|(giving, _)| giving));
            }
            if pages.none || pages.queued || pages.dropping {
                continue;
            }
            let lost = pages.lease.is_some() && pages.lease != lease_of(*ino);
            if lost || (pages.lease.is_none() && now >= pages.since + STALE_MAX) {
                due.push(*ino);
            }
        }
        due.into_iter().for_each(|ino| self.queue(ino));
        overdue
    }

    /// One thread at a time drops a file.
    pub(crate) fn next(&mut self) -> Option<Job> {
        let free = |job: &Job| match job {
            Job::File(ino) => self.files.get(ino).is_none_or(|pages| !pages.dropping),
            Job::Range(..) => true,
        };
        let at = self.jobs.iter().position(free)?;
        let job = self.jobs.remove(at)?;
        if let Job::File(ino) = &job
            && let Some(pages) = self.files.get_mut(ino)
        {
            pages.queued = false;
            // What is read from now on is not dropped by this.
            pages.none = true;
            pages.dropping = true;
        }
        Some(job)
    }

    /// Returns what can be given back now.
    pub(crate) fn dropped(&mut self, ino: Ino) -> Option<Giving> {
        self.drops += 1;
        let pages = self.files.get_mut(&ino)?;
        pages.dropping = false;
        // Asked back while it was dropped, it is dropped once more.
        let giving = if pages.queued { None } else { pages.giving.take().map(|(giving, _)| giving) };
        if pages.none && !pages.queued {
            self.files.remove(&ino);
        }
        giving
    }
}

#[cfg(test)]
mod tests;
