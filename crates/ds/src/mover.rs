//! Carries out the movements that the core starts.

use crate::{
    DataServer,
    copy::{Choice, Copier, CopyPlan, CopyStop, Dropped},
    driver::{Job, Work},
    fill::BringUp,
    load::dirty_tiers,
    object::Object,
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use tier::{Input, MoveFailure};
use types::{Errno, Ino, TierId, TierSet};

/// How long a mover waits for the object's present copier.
const COPIER_PATIENCE: Duration = Duration::from_millis(200);

struct JobCopier<'a> {
    object: &'a Object,
    stop: &'a AtomicBool,
    server: &'a DataServer,
    from: TierId,
    to: TierId,
}

impl Copier for JobCopier<'_> {
    fn must_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire) || self.object.is_wanted_by_any() || self.server.stopping()
    }
    fn copied(&mut self, bytes: u64) {
        self.server.counters.carried(self.from, self.to, bytes);
    }
}

impl DataServer {
    pub(crate) fn run_mover(&self, jobs: &crossbeam_channel::Receiver<Job>) {
        while self.held.load(Ordering::Acquire) && !self.stopping() {
            self.sleep(Duration::from_millis(100));
        }
        // Until there is one, or there will be none any more.
        while let Ok(job) = jobs.recv() {
            if self.stopping() {
                return;
            }
            let begun = Instant::now();
            let end = match self.run_job(&job) {
                Ok(bytes) => {
                    self.counters.moves_done.add(1);
                    Input::MoveDone { id: job.id, bytes, elapsed: begun.elapsed() }
                }
                Err(reason) => {
                    self.counters.moves_failed.add(1);
                    tracing::debug!(ino = %job.ino, ?reason, work = ?job.work, "a movement did not finish");
                    Input::MoveFailed { id: job.id, reason }
                }
            };
            self.driver.ended(job.id, end);
            // What fails here is said there, and each object's next sync fails.
            let _ = self.bound_waiting();
        }
    }

    fn run_job(&self, job: &Job) -> Result<u64, MoveFailure> {
        let object = self
            .attach_for_move(job.ino)
            .map_err(|errno| if errno == Errno::ENOENT { MoveFailure::Gone } else { MoveFailure::Io })?;
        if let Work::Move { from, to, keep_source, most } = job.work
            && self.ours(TierSet::of(to)).is_empty()
        {
            return self.publish_for_core(&object, job, (from, keep_source, most));
        }
        if let Work::Move { from, to, keep_source: true, most } = job.work
            && self.ours(TierSet::of(from)).is_empty()
        {
            let stop = || job.stop.load(Ordering::Acquire) || self.stopping();
            let brought = self.bring_up(&object, &BringUp { to, most, stop: &stop });
            self.tell_clean(&object);
            return brought.map_err(|stop| self.not_moved(job, stop));
        }
        let Some(_copier) = object.copying.try_lock_for(COPIER_PATIENCE) else {
            return Err(MoveFailure::Busy);
        };
        let result = match job.work {
            Work::Move { from, to, keep_source, most } => {
                if object.in_passthrough() && !keep_source {
                    return Err(MoveFailure::Busy);
                }
                let free = (!keep_source).then_some(from);
                let plan = CopyPlan { choice: Choice::HeldBy(from), to, free, most };
                let mut copier = JobCopier { object: &object, stop: &job.stop, server: self, from, to };
                self.copy_object(&object, plan, &mut copier)
            }
            Work::Drop { .. } if object.in_passthrough() => return Err(MoveFailure::Busy),
            Work::Drop { tier, most } => return self.drop_for_core(&object, tier, most),
        };
        self.tell_clean(&object);
        result.map_err(|stop| self.not_moved(job, stop))
    }

    fn not_moved(&self, job: &Job, stop: CopyStop) -> MoveFailure {
        match stop {
            CopyStop::Cancelled | CopyStop::Undurable => MoveFailure::Cancelled,
            CopyStop::NoSpace => {
                if let Work::Move { to, .. } = job.work {
                    self.refresh_limit(to);
                }
                MoveFailure::NoSpace
            }
            CopyStop::Gone => MoveFailure::Gone,
            CopyStop::Failed(errno) => {
                tracing::error!(ino = %job.ino, %errno, work = ?job.work, "a movement failed");
                MoveFailure::Io
            }
        }
    }

    /// A movement to a linked near-line: what it has not is published, then the source's copies are given up. Returns the
    /// bytes that were not there before.
    fn publish_for_core(
        &self,
        object: &Object,
        job: &Job,
        (from, keep_source, most): (TierId, bool, u64),
    ) -> Result<u64, MoveFailure> {
        if object.in_passthrough() && !keep_source {
            return Err(MoveFailure::Busy);
        }
        let unpublished = self.unpublished(object);
        if let Some(linked) = self.linked.as_ref().filter(|_| unpublished > 0) {
            let stop = || job.stop.load(Ordering::Acquire) || self.stopping();
            linked.publish(job.ino, &stop).map_err(|errno| not_published(job.ino, errno))?;
            self.counters.carried(from, TierId::Nearline, unpublished);
        }
        if !keep_source {
            let Some(_copier) = object.copying.try_lock_for(COPIER_PATIENCE) else {
                return Err(MoveFailure::Busy);
            };
            match self.drop_copies(object, from, most) {
                // All of it was written since: not at once again.
                Ok(Dropped { saus: 0, uncovered: true }) => return Err(MoveFailure::Busy),
                Ok(Dropped { .. }) => {}
                Err(CopyStop::Gone) => return Err(MoveFailure::Gone),
                Err(CopyStop::Cancelled | CopyStop::Undurable) => return Err(MoveFailure::Busy),
                Err(CopyStop::NoSpace | CopyStop::Failed(_)) => return Err(MoveFailure::Io),
            }
        }
        self.tell_clean(object);
        Ok(unpublished)
    }

    fn drop_for_core(&self, object: &Object, tier: TierId, most: u64) -> Result<u64, MoveFailure> {
        match self.drop_copies(object, tier, most) {
            Ok(Dropped { uncovered: false, .. }) => Ok(0),
            Ok(Dropped { uncovered: true, .. }) => Err(MoveFailure::Uncovered),
            Err(CopyStop::Gone) => Err(MoveFailure::Gone),
            Err(CopyStop::Cancelled | CopyStop::Undurable) => Err(MoveFailure::Uncovered),
            Err(CopyStop::NoSpace | CopyStop::Failed(_)) => Err(MoveFailure::Io),
        }
    }

    /// Tells the core which tiers hold nothing that a slower one does not hold too.
    pub(crate) fn tell_clean(&self, object: &Object) {
        let state = object.state.read();
        let dirty = dirty_tiers(&state);
        if self.linked.is_some() {
            // The next write over what is clean now is news.
            object.noticed.store(0, Ordering::Relaxed);
        }
        for tier in self.present().iter() {
            if !dirty.contains(tier) {
                self.driver.tell(Input::Clean { ino: object.ino(), tier });
            }
        }
    }
}

fn not_published(ino: Ino, errno: Errno) -> MoveFailure {
    let known = [
        (Errno::EINTR, MoveFailure::Cancelled),
        (Errno::EBUSY, MoveFailure::Busy),
        (Errno::ENOSPC, MoveFailure::NoSpace),
        (Errno::EDQUOT, MoveFailure::NoSpace),
        (Errno::ENOENT, MoveFailure::Gone),
    ];
    let reason = known.into_iter().find(|(one, _)| *one == errno).map(|(_, reason)| reason);
    reason.unwrap_or_else(|| {
        tracing::warn!(%ino, %errno, "an object was not published: tried again later");
        MoveFailure::Io
    })
}
