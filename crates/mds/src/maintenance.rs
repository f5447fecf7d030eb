//! References, orphans and their removal; quotas; counts.

use std::{ops::ControlFlow, sync::atomic::Ordering, time::Duration};

use namespace::{
    orphan::{self, Purged},
    policy::{self, DirPolicy},
    quota::{self, Limits, Quota},
};
use types::{Errno, Ino, ProjectId, UgsdId};

use crate::{count, orphans::Replay, recorder::Change, server::Mds, slots::SlotSet};

/// Inodes purged in one commit.
const PURGE_BATCH: usize = 256;
/// Changes of the count after which a sync also saves it.
const COUNT_STEP: u64 = 4096;

/// What `statfs` needs of the metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Inodes, those that wait to be purged included. After a crash it may be off by a few thousand.
    pub inodes: u64,
    /// Known to wait for [`Mds::purge_list`].
    pub orphans_waiting: u64,
}

impl Mds {
    /// From now on who refers to what is written down there, too, and what stands there already holds. Before the first operation.
    pub fn keep_references(&self, estate: &std::sync::Arc<handover::Estate>) {
        self.orphans.keep(estate);
    }

    /// The kernel got `n` more references to `ino`.
    pub fn hold(&self, ino: Ino, n: u64) {
        self.orphans.hold(ino, n);
    }

    /// The kernel forgot `n` references to `ino`.
    pub fn release(&self, ino: Ino, n: u64) {
        self.orphans.release(ino, n);
    }

    /// Some inodes that lost their last name `age` ago or longer and are still referred to, `max` at most, in the order in which they did; and the
    /// number to go on from. The first call begins at 0.
    pub fn nameless(&self, behind: u64, age: Duration, max: usize) -> (Vec<Ino>, u64) {
        self.orphans.nameless(behind, age, max)
    }

    /// How many inodes the kernel refers to.
    pub fn known(&self) -> usize {
        self.orphans.held()
    }

    /// Some of them, `n` at most, others at the next call.
    pub fn some_known(
        &self,
        n: usize,
        visit: &mut dyn FnMut(&[Ino]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.orphans.some_held(n, visit)
    }

    /// Does the kernel know it?
    pub fn is_held(&self, ino: Ino) -> bool {
        self.orphans.is_held(ino)
    }

    /// Up to `max` inodes without name and references, for the purger: it removes their objects, then calls
    /// [`Mds::purge`], or [`Mds::purge_later`] if it could not. Empty: nothing to do now.
    pub fn purge_list(&self, max: usize) -> Result<Vec<Ino>, Errno> {
        let mut list = self.orphans.next(max);
        if list.len() >= max {
            return Ok(list);
        }
        match self.replay(max, &mut list) {
            // What was found is not the worse for it; the rest is asked for again.
            Err(_) if !list.is_empty() => Ok(list),
            result => result.map(|()| list),
        }
    }

    /// Back into the queue.
    pub fn purge_later(&self, ino: Ino) {
        self.orphans.queue(ino);
    }

    /// Removes inodes whose objects are gone. Those that have a name or references (again) are left, and those whose records
    /// are damaged: the next mount tries again. Returns how many were removed.
    pub fn purge(&self, inos: &[Ino]) -> Result<usize, Errno> {
        // What is not ours any more is found by who has it now.
        let mut sorted: Vec<Ino> =
            inos.iter().copied().filter(|ino| self.serves(ino.ugsd().slot())).collect();
        sorted.sort_unstable_by_key(|ino| (ino.ugsd().slot(), *ino));
        sorted.dedup();
        let mut purged = 0;
        for same_slot in sorted.chunk_by(|a, b| a.ugsd().slot() == b.ugsd().slot()) {
            for batch in same_slot.chunks(PURGE_BATCH) {
                purged += match self.purge_batch(batch) {
                    Err(Errno::EIO) => self.purge_singly(batch)?,
                    Err(Errno::EREMOTE) => 0,
                    other => other?,
                };
            }
        }
        self.inodes.fetch_sub(purged as i64, Ordering::Relaxed);
        Ok(purged)
    }

    /// One of them is damaged, which must not keep the others.
    fn purge_singly(&self, batch: &[Ino]) -> Result<usize, Errno> {
        let mut purged = 0;
        for ino in batch {
            match self.purge_batch(std::slice::from_ref(ino)) {
                Err(Errno::EIO) => {
                    tracing::error!(%ino, "a removed inode cannot be purged: its records are damaged");
                }
                other => purged += other?,
            }
        }
        Ok(purged)
    }

    fn purge_batch(&self, batch: &[Ino]) -> Result<usize, Errno> {
        let Some(first) = batch.first() else { return Ok(0) };
        let purged = self.change_when_full(SlotSet::of(*first), |txn, _| {
            let mut purged = 0;
            for ino in batch {
                if !self.orphans.is_held(*ino) && orphan::purge(txn, *ino)? == Purged::Gone {
                    txn.tell(|| Change::Gone { ino: *ino });
                    purged += 1;
                }
            }
            Ok(purged)
        })?;
        for ino in batch {
            self.reservations.drop_file(*ino);
        }
        Ok(purged)
    }

    /// Reads on in the store's orphan records, those of earlier mounts and those that did not fit into the queue.
    fn replay(&self, max: usize, list: &mut Vec<Ino>) -> Result<(), Errno> {
        let mut replay = self.replay.lock();
        if replay.at.is_none() {
            if !self.orphans.take_overflow() {
                return Ok(());
            }
            *replay = Replay::of_all();
        }
        let own_epoch = replay.own_epoch;
        let ugsds = self.next_ugsd()?;
        while let Some((number, after)) = replay.at {
            let Some(ugsd) = UgsdId::new(number).filter(|_| number < ugsds) else {
                replay.at = None;
                break;
            };
            let mut last = after;
            let visited = self.read(|reader| {
                orphan::visit(reader, ugsd, after, &mut |ino, orphan| {
                    if list.len() >= max {
                        return ControlFlow::Break(());
                    }
                    last = Some(ino);
                    // A damaged record may be of any mount; what has a name is not purged.
                    let wanted = own_epoch || orphan.is_none_or(|o| o.epoch != self.epoch());
                    if wanted && self.orphans.is_held(ino) {
                        // Somebody brought it with a slot: it is purged with the last reference.
                        self.orphans.orphaned(ino);
                    } else if wanted && !list.contains(&ino) {
                        list.push(ino);
                    }
                    ControlFlow::Continue(())
                })
            });
            let bad = match visited {
                // Another server's, who reads it.
                Err(Errno::EREMOTE) => None,
                other => other?,
            };
            if let Some(error) = bad {
                // Logged; nobody is told of an inode by it.
                self.errno(error.into());
            }
            if list.len() >= max {
                replay.at = Some((number, last));
                break;
            }
            replay.at = Some((number + 1, None));
        }
        Ok(())
    }

    pub fn statfs_usage(&self) -> Usage {
        Usage {
            inodes: self.inodes.load(Ordering::Relaxed).max(1) as u64,
            orphans_waiting: self.orphans.waiting() as u64,
        }
    }

    pub fn quota_set(&self, project: ProjectId, limits: Limits) -> Result<(), Errno> {
        self.change(SlotSet::root(), |txn, _| quota::set_limits(txn, project, limits))?;
        self.quota_changed();
        Ok(())
    }

    /// Rises whenever an inode's project, or a project's limits, may have changed.
    pub fn quota_changes(&self) -> u64 {
        self.quota_changes.load(Ordering::Acquire)
    }

    fn quota_changed(&self) {
        self.quota_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Bytes that files of the project have grown by and that its quota does not count yet.
    pub fn quota_reserved(&self, project: ProjectId) -> u64 {
        self.reservations.of_project(project)
    }

    pub fn quota_get(&self, project: ProjectId) -> Result<Quota, Errno> {
        let quota = self.read(|reader| quota::get(reader, project))?;
        Ok(quota.unwrap_or_default())
    }

    /// Gives a directory a quota of its own, or changes its limits, and moves the directory itself into the project. What
    /// is below it is for the caller to move, with [`Mds::quota_assign`], until it says [`Mds::quota_assigned`].
    pub fn quota_begin(
        &self,
        dir: Ino,
        change: impl Fn(Limits) -> Limits,
    ) -> Result<(ProjectId, Quota), Errno> {
        let begun = self.change(SlotSet::of(dir), |txn, env| quota::begin(txn, env, dir, &change))?;
        self.quota_changed();
        Ok(begun)
    }

    /// Whether everything below the directory is in its project now.
    pub fn quota_assigned(&self, project: ProjectId, assigned: bool) -> Result<(), Errno> {
        self.change(SlotSet::root(), |txn, _| quota::set_assigned(txn, project, assigned))
    }

    /// The directory has no quota any more.
    pub fn quota_end(&self, dir: Ino, project: ProjectId) -> Result<(), Errno> {
        self.change(SlotSet::root(), |txn, _| quota::end(txn, project, dir))
    }

    /// What a directory itself says about where data below it is kept. With a [`crate::Recorder`] a directory becomes transient, or
    /// ends to be, only while it is empty (`ENOTEMPTY`).
    pub fn policy_set(&self, dir: Ino, policy: &DirPolicy) -> Result<(), Errno> {
        let linked = self.recorder.get().is_some();
        let set = SlotSet::of(dir).with(Ino::ROOT.ugsd().slot());
        self.change(set, |txn, _| policy::set(txn, dir, policy, linked))
    }

    /// All directories with a policy.
    pub fn policy_list(&self) -> Result<Vec<(Ino, DirPolicy)>, Errno> {
        self.read(|reader| policy::list(reader))
    }

    /// All projects that have a limit or were ever charged, in order.
    pub fn quota_list(&self) -> Result<Vec<(ProjectId, Quota)>, Errno> {
        self.read(|reader| quota::list(reader))
    }

    /// Moves one inode to `project`, not what is below it: that is the caller's walk. New entries of a directory get
    /// the directory's project.
    pub fn quota_assign(&self, ino: Ino, project: ProjectId) -> Result<(), Errno> {
        self.change(SlotSet::of(ino), |txn, env| quota::assign(txn, env, ino, project))?;
        self.reservations.drop_file(ino);
        self.quota_changed();
        Ok(())
    }

    pub(crate) fn save_count(&self) -> Result<(), Errno> {
        // Of those who serve one file system only one keeps a count.
        if !self.serves(UgsdId::ROOT.slot()) {
            return Ok(());
        }
        let count = self.inodes.load(Ordering::Relaxed);
        if count.abs_diff(self.inodes_saved.swap(count, Ordering::Relaxed)) == 0 {
            return Ok(());
        }
        self.change_when_full(SlotSet::root(), |txn, _| {
            count::save(txn, count);
            Ok(())
        })
    }

    /// From now on it is kept here.
    pub(crate) fn take_count(&self) -> Result<(), Errno> {
        let count = count::load(&*self.store).map_err(|e| self.errno(e))?;
        self.inodes.store(count, Ordering::Relaxed);
        self.inodes_saved.store(count, Ordering::Relaxed);
        Ok(())
    }

    /// Saves the count if it changed much.
    pub(crate) fn save_count_sometimes(&self) -> Result<(), Errno> {
        let (count, saved) = (self.inodes.load(Ordering::Relaxed), self.inodes_saved.load(Ordering::Relaxed));
        if count.abs_diff(saved) < COUNT_STEP { Ok(()) } else { self.save_count() }
    }
}
