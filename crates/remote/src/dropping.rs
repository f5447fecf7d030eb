//! Threads that have the kernel drop pages of mapped files.
//!
//! They serve no requests of the kernel's: while it drops pages it may wait for requests of its own, reads that fill pages and writes of what was
//! changed through them, which others serve. One of them only looks at what is due, so that what is slow to drop holds nobody up for ever.

use std::{
    ops::Range,
    sync::{Arc, Weak, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use fuse::{Call, Notifier};
use types::Ino;

use crate::{
    Remote,
    droppers::{Again, Dropping},
    mapped::{Giving, Job, Then},
};

/// Between two looks.
const TICK: Duration = Duration::from_millis(100);
/// Between two attempts to write a page back.
const PAUSE: Duration = Duration::from_millis(500);
/// Those that drop. One whose pages cannot be written keeps one busy; with all of them busy files without a lease wait, and those that are asked
/// back are given back in time all the same.
const THREADS: usize = 4;

impl Remote {
    /// Shared mappings are served from now on, unless there are no threads for it.
    pub(crate) fn serve_mappings(&self, notifier: Notifier) -> bool {
        for n in 0..=THREADS {
            let (remote, dropping) = (self.this.clone(), self.dropping.clone());
            let builder = thread::Builder::new().name(format!("remote-pages-{n}"));
            let started = builder.spawn(move || match n {
                0 => look_at_pages(&remote, &dropping),
                _ => drop_pages(&remote, &dropping),
            });
            if let Err(error) = started {
                tracing::error!(%error, "no thread that drops pages of mapped files: they are refused");
                self.dropping.end();
                return false;
            }
        }
        self.dropping.notifier.set(notifier).is_ok()
    }

    /// The kernel fills pages with what it reads now.
    pub(crate) fn reads_pages(&self, ino: Ino) {
        if self.dropping.is_on() {
            let now = Instant::now();
            // With both locks: whoever asks for the lease back sees either no lease or these pages.
            let kept = self.kept.lock();
            self.dropping.mapped.lock().read(now, ino, kept.bytes(now, ino));
        }
    }

    pub(crate) fn write_back_later(&self, call: Call, since: Instant) {
        let due = Instant::now() + PAUSE;
        self.dropping.again.lock().push(Again { call, since, due });
    }

    fn write_back_again(&self, now: Instant) {
        let due: Vec<Again> = self.dropping.again.lock().extract_if(.., |again| again.due <= now).collect();
        for Again { call, since, .. } in due {
            let this = self.this.clone();
            self.data_pool.defer(move || {
                if let Some(this) = this.upgrade() {
                    this.serve_write(call, since);
                }
            });
        }
    }

    /// A write went past the pages; what of them it wrote is dropped before it is answered.
    pub(crate) fn drop_written(&self, ino: Ino, range: Range<u64>, then: Then) {
        self.dropping.mapped.lock().drop_range(ino, range, then);
        self.dropping.some.notify_one();
    }

    /// The lease goes back as soon as no pages are left. Gives it back if there are none.
    pub(crate) fn recalled_pages(&self, ino: Ino, giving: Giving) -> Option<Giving> {
        if !self.dropping.is_on() {
            return Some(giving);
        }
        let left = self.dropping.mapped.lock().recalled(Instant::now(), ino, giving);
        self.dropping.some.notify_one();
        left
    }

    pub(crate) fn give_lease_back(&self, (from, returned): Giving) {
        let session = self.session();
        if self.joined_at(from.node, &session) != Some(from.joined) {
            return;
        }
        if let Err(stop) = self.return_at(&session, from, (vec![returned], Vec::new(), 0)) {
            tracing::debug!(errno = %stop.errno(), "a lease was not given back; it is asked back again");
        }
    }
}

fn look_at_pages(remote: &Weak<Remote>, dropping: &Dropping) {
    while !dropping.ended.load(Ordering::Acquire) {
        thread::sleep(TICK);
        let Some(remote) = remote.upgrade() else { return };
        let now = Instant::now();
        let overdue = {
            let kept = remote.kept.lock();
            dropping.mapped.lock().look(now, |ino| kept.bytes(now, ino))
        };
        dropping.some.notify_all();
        remote.write_back_again(now);
        for giving in overdue {
            tracing::warn!(
                ino = giving.1.ino,
                "what was changed through a mapping is not written yet, and others go on"
            );
            remote.give_lease_back(giving);
        }
    }
}

fn drop_pages(remote: &Weak<Remote>, dropping: &Arc<Dropping>) {
    while let Some(job) = dropping.next() {
        let Some(notifier) = dropping.notifier.get() else { return };
        match job {
            Job::File(ino) => {
                if let Err(error) = notifier.inval_inode(ino.get(), 0, 0) {
                    tracing::debug!(ino = ino.get(), %error, "pages were not dropped");
                }
                let giving = dropping.mapped.lock().dropped(ino);
                let Some(remote) = remote.upgrade() else { return };
                if let Some(giving) = giving {
                    remote.give_lease_back(giving);
                }
            }
            Job::Range(ino, range, then) => {
                let offset = i64::try_from(range.start).unwrap_or(0);
                let len = i64::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
                if let Err(error) = notifier.inval_inode(ino.get(), offset, len) {
                    tracing::debug!(ino = ino.get(), %error, "pages were not dropped");
                }
                then();
            }
        }
    }
}
