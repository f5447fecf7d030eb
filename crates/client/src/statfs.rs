//! statfs and the durability of everything.

use std::ops::ControlFlow;

use ds::TierStatus;
use fuse::StatfsOut;
use types::{Ino, NAME_MAX, ProjectId};

use crate::{
    Client,
    turn::{Answer, Turn},
};

const BLOCK: u64 = 4096;
/// Inodes are numbers: there are as many as anyone wants. What `df -i` shows as the total.
const INODES: u64 = 1 << 40;

/// Bytes and inodes, used and at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Usage {
    bytes_total: u64,
    bytes_free: u64,
    inodes_total: u64,
    inodes_free: u64,
}

impl Usage {
    /// A limit below what the file system has becomes the total; what others use below it is not free either.
    fn within(self, limit: Limit) -> Usage {
        let (bytes_total, bytes_free) =
            cut((self.bytes_total, self.bytes_free), limit.bytes.map(|at_most| (at_most, limit.bytes_used)));
        let (inodes_total, inodes_free) = cut(
            (self.inodes_total, self.inodes_free),
            limit.inodes.map(|at_most| (at_most, limit.inodes_used)),
        );
        Usage { bytes_total, bytes_free, inodes_total, inodes_free }
    }
}

/// Of one tier: what it may have, what of it is available, and where.
#[derive(Clone, Copy, Debug)]
struct Room {
    limit: u64,
    available: u64,
    device: u64,
    device_free: u64,
}

impl Room {
    fn of(tier: &TierStatus) -> Room {
        let available = u64::try_from(tier.report.available).unwrap_or(0);
        let device_free = if tier.tier.is_persistent() { tier.device_free } else { available };
        Room { limit: tier.report.limit, available, device: tier.device, device_free }
    }
}

/// Total and free bytes. What is free on a file system counts once, however many tiers are on it.
fn together(tiers: &[Room]) -> (u64, u64) {
    let (mut used, mut free) = (0_u64, 0_u64);
    for (at, tier) in tiers.iter().enumerate() {
        used = used.saturating_add(tier.limit.saturating_sub(tier.available));
        let here = |other: &&Room| other.device == tier.device;
        if tiers[..at].iter().any(|other| here(&other)) {
            continue;
        }
        let wanted = tiers.iter().filter(here).fold(0_u64, |sum, t| sum.saturating_add(t.available));
        free = free.saturating_add(wanted.min(tier.device_free));
    }
    (used.saturating_add(free), free)
}

/// A project's quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Limit {
    bytes: Option<u64>,
    bytes_used: u64,
    inodes: Option<u64>,
    inodes_used: u64,
}

fn cut((total, free): (u64, u64), limit: Option<(u64, u64)>) -> (u64, u64) {
    match limit {
        Some((at_most, used)) if at_most < total => (at_most, at_most.saturating_sub(used).min(free)),
        Some((at_most, used)) => (total, at_most.saturating_sub(used).min(free)),
        None => (total, free),
    }
}

impl Client {
    /// The tiers together, or the quota of the directory's project.
    pub(crate) fn statfs(&self, turn: Turn, ino: Ino) -> Answer<StatfsOut> {
        let tiers: Vec<Room> = self.ds.tiers().iter().map(Room::of).collect();
        let (bytes_total, bytes_free) = together(&tiers);
        let inodes = self.mds.statfs_usage().inodes;
        let whole = Usage {
            bytes_total,
            bytes_free,
            inodes_total: INODES,
            inodes_free: INODES.saturating_sub(inodes),
        };
        let usage = whole.within(self.limit_at(turn, ino)?);
        Ok(StatfsOut {
            blocks: usage.bytes_total / BLOCK,
            blocks_free: usage.bytes_free / BLOCK,
            blocks_available: usage.bytes_free / BLOCK,
            files: usage.inodes_total,
            files_free: usage.inodes_free,
            block_size: BLOCK as u32,
            name_max: NAME_MAX as u32,
        })
    }

    fn limit_at(&self, turn: Turn, ino: Ino) -> Answer<Limit> {
        let project = self.mds.find(ino)?.attr.project;
        if project == ProjectId::NONE {
            return Ok(Limit::default());
        }
        match turn {
            Turn::Transport => turn.wait_if(!self.inodes.settle_closed().is_empty())?,
            Turn::Worker => self.settle_closed(),
        }
        // What open files have grown by counts, too: a close may be on its way here. First, so that it is not missed.
        let growing = self.mds.quota_reserved(project);
        let quota = self.mds.quota_get(project)?;
        Ok(Limit {
            bytes: quota.limits.bytes,
            bytes_used: quota.bytes.saturating_add(growing),
            inodes: quota.limits.inodes,
            inodes_used: quota.inodes,
        })
    }

    /// fsync of a directory: its entries are in the journal, which is made durable.
    pub(crate) fn fsyncdir(&self, turn: Turn, dir: Ino) -> Answer<()> {
        turn.wait()?;
        self.bring_names_through(dir)?;
        Ok(self.mds.sync()?)
    }

    /// Everything that was written and closed or is open, then the journal.
    pub(crate) fn syncfs(&self, turn: Turn) -> Answer<()> {
        turn.wait()?;
        self.ds.flush_all(&mut |_| ControlFlow::Continue(()))?;
        for inode in self.inodes.all() {
            inode.settle_now()?;
        }
        Ok(self.mds.sync()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: two tiers on one disk do not promise its free space twice; limits of their own are added. Method: a table.
    #[test]
    fn free_space_counts_once() {
        let room = |limit, available, device, device_free| Room { limit, available, device, device_free };
        let memory = room(10, 10, 1, 10);
        assert_eq!(together(&[memory, room(100, 90, 2, 90), room(500, 400, 3, 400)]), (610, 500));
        assert_eq!(together(&[memory, room(100, 90, 2, 90), room(95, 90, 2, 90)]), (115, 100));
        assert_eq!(together(&[memory, room(30, 20, 2, 90), room(40, 30, 2, 90)]), (80, 60));
    }

    /// Goal: a quota narrows what a directory sees, and never shows more than there is. Method: limits below and
    /// above the whole, used beyond the limit.
    #[test]
    fn a_quota_narrows_the_view() {
        let whole = Usage { bytes_total: 1000, bytes_free: 400, inodes_total: 100, inodes_free: 90 };
        let limit = |bytes, bytes_used| Limit { bytes: Some(bytes), bytes_used, ..Limit::default() };
        assert_eq!(whole.within(Limit::default()), whole);
        let narrow = whole.within(limit(500, 200));
        assert_eq!((narrow.bytes_total, narrow.bytes_free), (500, 300));
        assert_eq!(whole.within(limit(500, 0)).bytes_free, 400);
        assert_eq!(whole.within(limit(100, 200)).bytes_free, 0);
        assert_eq!(
            (whole.within(limit(5000, 4900)).bytes_total, whole.within(limit(5000, 4900)).bytes_free),
            (1000, 100)
        );
        assert_eq!(narrow.inodes_total, 100);
    }
}
