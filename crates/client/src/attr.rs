//! Attributes: getattr, setattr, and the access times that reads leave.
//!
//! Invariants: the mds records a new size before the object is cut or grown, and both run as a write does
//! (`begin_write` before, `settle` after), so whatever a crash leaves is asked of the object, and no old bytes come
//! back. A time that is set and the settling of a file that was just closed exclude each other (the inode's lock).

use fuse::{AttrOut, SetattrArgs, TimeOrNow};
use mds::{Found, SetAttr, SetTime};
use types::{Attr, Errno, Ino, SAU_BYTES, Timestamp};

use crate::{
    Client,
    inode::{InodeRef, has_set_id},
    turn::{Answer, Turn},
};

/// Access times are renewed when older than this, as with the kernel's relatime.
const ATIME_AGE_SEC: i64 = 24 * 60 * 60;

impl Client {
    pub(crate) fn getattr(&self, turn: Turn, ino: Ino) -> Answer<AttrOut> {
        self.visit(turn, ino)?;
        match self.mds.find(ino) {
            Ok(found) => self.attr_out(turn, found),
            // Somebody holds it without having it open (O_PATH).
            Err(Errno::ESTALE) => match self.mds.gone(ino) {
                Some(attr) => Ok(AttrOut { timeout: self.options.attr_timeout, attr }),
                None => Err(Errno::ESTALE.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    fn attr_out(&self, turn: Turn, mut found: Found) -> Answer<AttrOut> {
        turn.wait_if(found.data.stale_live)?;
        let timeout = self.complete(turn, &mut found)?;
        Ok(AttrOut { timeout, attr: found.attr })
    }

    pub(crate) fn setattr(&self, turn: Turn, ino: Ino, args: &SetattrArgs) -> Answer<AttrOut> {
        let set = SetAttr {
            mode: args.mode.map(|mode| mode & types::MODE_MASK),
            uid: args.uid,
            gid: args.gid,
            size: None,
            atime: args.atime.map(set_time),
            mtime: args.mtime.map(set_time),
            ctime: args.ctime,
            kill_suidgid: args.kill_suidgid,
        };
        let found = match (args.size, self.inodes.get(ino)) {
            (Some(size), _) => self.resize(turn, ino, size, set)?,
            (None, Some(inode)) => {
                let mut settled_before_or_after = inode.lock_in(turn)?;
                let found = self.mds.setattr(ino, &set)?;
                if args.atime.is_some() {
                    settled_before_or_after.atime_was_set();
                }
                if args.mtime.is_some() {
                    inode.time_was_set(found.attr.mtime);
                }
                found
            }
            (None, None) => {
                self.settle_left(turn, ino)?;
                self.mds.setattr(ino, &set)?
            }
        };
        let inode =
            if has_set_id(found.attr.mode) { self.inodes.get_attached(ino) } else { self.inodes.get(ino) };
        if let Some(inode) = inode {
            inode.note_mode(found.attr.mode);
        }
        // Changed: there is no serving it again.
        self.attr_out(Turn::Worker, found)
    }

    /// Settles a file that a crash left unsettled, before a change that settling would undo: that of its time.
    fn settle_left(&self, turn: Turn, ino: Ino) -> Answer<()> {
        let data = self.mds.find(ino)?.data;
        if data.live {
            turn.wait_if(data.stale_live)?;
            self.inodes.acquire(ino)?.0.settle_if_idle()?;
        }
        Ok(())
    }

    /// Cuts or grows a file, and sets what else is asked, in one visible step of the mds.
    fn resize(&self, turn: Turn, ino: Ino, size: u64, set: SetAttr) -> Answer<Found> {
        let (inode, _) = self.inodes.acquire_if(ino, |found| {
            // What a crash left unsettled needs devices.
            turn.wait_if(found.data.stale_live || found.attr.size.max(size) > SAU_BYTES)
        })?;
        turn.wait_if(self.ds.truncating_waits(&inode.object, size))?;
        inode.wait_for_lock(turn)?;
        inode.begin_write()?;
        let set = SetAttr { size: Some(size), mtime: set.mtime.or(Some(SetTime::Now)), ..set };
        let result = self.resize_open(&inode, size, &set);
        inode.end_write();
        Ok(result?)
    }

    /// Cuts or grows an object whose writing has begun, and records it with `set`. A refusal of the mds (a quota)
    /// comes before anything grows.
    pub(crate) fn resize_open(&self, inode: &InodeRef, size: u64, set: &SetAttr) -> Result<Found, Errno> {
        let mut settled_before_or_after = inode.lock();
        let now = self.ds.live(&inode.object).size;
        // The metadata first: after a crash in between, the object of a file that is being written still has its old size
        // and bytes, and a settled one is cut when it is next loaded.
        let found = self.mds.setattr(inode.ino, set)?;
        if size != now || self.ds.end_is_lost(&inode.object) {
            self.ds.truncate(&inode.object, size)?;
        }
        if set.atime.is_some() {
            settled_before_or_after.atime_was_set();
        }
        inode.time_was_set(found.attr.mtime);
        Ok(found)
    }

    /// Grows a file that is open for writing to at least `size`. In the metadata first: an object that is in memory alone
    /// could not tell after a reboot.
    pub(crate) fn grow_open(&self, inode: &InodeRef, size: u64) -> Result<(), Errno> {
        let _settled_before_or_after = inode.lock();
        if size <= self.ds.live(&inode.object).size {
            return Ok(());
        }
        let set = SetAttr { size: Some(size), mtime: Some(SetTime::Now), ..SetAttr::default() };
        self.mds.setattr(inode.ino, &set)?;
        self.ds.grow(&inode.object, size)
    }
}

/// Does a read now change the access time, by the rule of relatime?
pub(crate) fn atime_due(attr: &Attr, now: Timestamp) -> bool {
    attr.atime <= attr.mtime || attr.atime <= attr.ctime || now.sec - attr.atime.sec >= ATIME_AGE_SEC
}

fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::At(time) => SetTime::At(time),
    }
}

#[cfg(test)]
mod tests {
    use types::{FileKind, ProjectId};

    use super::*;

    fn attr(atime: i64, mtime: i64, ctime: i64) -> Attr {
        let at = |sec| Timestamp { sec, nsec: 0 };
        Attr {
            ino: Ino::ROOT,
            kind: FileKind::Regular,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: at(atime),
            mtime: at(mtime),
            ctime: at(ctime),
            btime: at(0),
            project: ProjectId::NONE,
        }
    }

    /// Goal: relatime. Method: one case per clause of the rule.
    #[test]
    fn atime_follows_relatime() {
        let now = Timestamp { sec: 1_000_000, nsec: 0 };
        assert!(atime_due(&attr(999_000, 999_000, 0), now), "modified since the last access");
        assert!(atime_due(&attr(999_000, 0, 999_500), now), "changed since the last access");
        assert!(atime_due(&attr(1_000_000 - ATIME_AGE_SEC, 0, 0), now), "a day old");
        assert!(!atime_due(&attr(999_000, 998_000, 998_000), now));
    }
}
