//! The data state of files, and what their bytes cost their project.

use namespace::{DataState, Settled, data, inode, quota};
use types::{Errno, Ino, ProjectId};

use crate::{server::Mds, slots::SlotSet};

impl Mds {
    /// To be called before the first byte is written after an open. Costs one read when nothing changes.
    pub fn begin_write(&self, ino: Ino) -> Result<DataState, Errno> {
        let env = self.env();
        let inode = inode::load(self.reader(), ino).map_err(|e| self.errno(e))?;
        if data::is_begun(&inode, &env) {
            return Ok(inode.data(env.epoch));
        }
        self.change(SlotSet::of(ino), |txn, env| data::begin_write(txn, env, ino))
    }

    /// Records what writing came to. With `still_open` the file stays live.
    pub fn settle(&self, ino: Ino, settled: &Settled) -> Result<(), Errno> {
        let grown = self.change(SlotSet::of(ino), |txn, _| {
            let before = inode::load(txn, ino)?.size;
            data::settle(txn, ino, settled)?;
            Ok(settled.size.saturating_sub(before))
        })?;
        self.reservations.settle(ino, grown, settled.still_open);
        Ok(())
    }

    /// A write took set-id bits and file capabilities away.
    pub fn kill_suid(&self, ino: Ino) -> Result<(), Errno> {
        self.change(SlotSet::of(ino), |txn, env| data::kill_suid(txn, env, ino)).map(|_| ())
    }

    /// Whether the file may grow to `new_size`: `EDQUOT` if its project has no room. What open files have grown by counts
    /// until they are settled. Files without a project (`attr.project`) need not ask.
    pub fn reserve_size(&self, ino: Ino, new_size: u64) -> Result<(), Errno> {
        let inode = inode::load(self.reader(), ino).map_err(|e| self.errno(e))?;
        if inode.project == ProjectId::NONE || new_size <= inode.size {
            return Ok(());
        }
        let quota = quota::get(self.reader(), inode.project).map_err(|e| self.errno(e))?;
        match quota {
            Some(quota) if quota.limits.bytes.is_some() => {
                self.reservations.reserve(ino, inode.project, new_size - inode.size, &quota)
            }
            Some(_) | None => Ok(()),
        }
    }
}
