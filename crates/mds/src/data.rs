//! The data state of files, and what their bytes cost their project.

use link::Attrs;
use namespace::{
    DataState, Env, Settled, data, inode, quota,
    txn::{Bytes, Txn},
};
use types::{Errno, FileKind, Ino, ProjectId, Timestamp};

use crate::{
    attributes::telling,
    recorder::Change,
    server::Mds,
    slots::{SlotSet, SlotTxn},
};

/// A file that was closed a moment ago.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed {
    pub ino: Ino,
    /// It was written.
    pub settled: Option<Settled>,
    /// It was read.
    pub atime: Option<Timestamp>,
}

impl Mds {
    /// To be called before the first byte is written after an open. Costs one read when nothing changes.
    pub fn begin_write(&self, ino: Ino) -> Result<DataState, Errno> {
        let env = self.env();
        let inode = self.read(|reader| inode::load(reader, ino))?;
        if data::is_begun(&inode, &env) {
            return Ok(inode.data(env.epoch));
        }
        self.admit(Some(ino))?;
        self.change_when_full(SlotSet::of(ino), |txn, env| begin(txn, env, ino))
    }

    /// As [`Mds::begin_write`], with entries of the same inode (keys and what they get) in the same commit, whose number
    /// or a later one is returned.
    pub fn begin_write_with(&self, ino: Ino, entries: &[(Box<[u8]>, Option<Bytes>)]) -> Result<u64, Errno> {
        self.change_then(
            SlotSet::of(ino),
            |txn, env| {
                txn.use_reserve();
                for (key, value) in entries {
                    match value {
                        Some(value) => txn.put(key, value.clone()),
                        None => txn.delete(key),
                    }
                }
                begin(txn, env, ino)
            },
            |_| self.store.last_lsn().0,
        )
    }

    /// Records what writing came to. With `still_open` the file stays live.
    pub fn settle(&self, ino: Ino, settled: &Settled) -> Result<(), Errno> {
        let grown = self.change_when_full(SlotSet::of(ino), |txn, env| {
            let before = inode::load(txn, ino)?.size;
            settle(txn, env, ino, settled)?;
            Ok(settled.size.saturating_sub(before))
        })?;
        self.reservations.settle(ino, grown, settled.still_open);
        Ok(())
    }

    /// What is left to record of files that are closed, in one commit per slot. A file that is gone needs none.
    pub fn settle_all(&self, files: &mut [Closed]) -> Result<(), Errno> {
        files.sort_by_key(|file| (file.ino.ugsd().slot(), file.ino));
        for group in files.chunk_by(|a, b| a.ino.ugsd().slot() == b.ino.ugsd().slot()) {
            let Some(first) = group.first() else { continue };
            self.change_when_full(SlotSet::of(first.ino), |txn, env| {
                for Closed { ino, settled, atime } in group {
                    if inode::get(txn, *ino)?.is_none() {
                        continue;
                    }
                    if let Some(settled) = settled {
                        settle(txn, env, *ino, settled)?;
                    }
                    if let Some(atime) = atime {
                        data::touch(txn, *ino, *atime)?;
                    }
                }
                Ok(())
            })?;
            let written = group.iter().filter(|file| file.settled.is_some());
            written.for_each(|file| self.reservations.drop_file(file.ino));
        }
        Ok(())
    }

    /// A write takes file capabilities away, and with `set_id` set-id bits.
    pub fn kill_privileges(&self, ino: Ino, set_id: bool) -> Result<(), Errno> {
        self.change_when_full(SlotSet::of(ino), |txn, env| {
            telling(txn, ino, Attrs::NONE, |txn| data::kill_privileges(txn, env, ino, set_id))
        })
        .map(|_| ())
    }

    /// Whether the file may grow to `new_size`: `EDQUOT` if its project has no room. What open files have grown by counts
    /// until they are settled. Files without a project (`attr.project`) need not ask.
    pub fn reserve_size(&self, ino: Ino, new_size: u64) -> Result<(), Errno> {
        self.reserve_growth(ino, new_size).map(|_| ())
    }

    /// The file did not grow after all, and has not been written since it was settled.
    pub fn unreserve(&self, ino: Ino) {
        self.reservations.drop_file(ino);
    }

    /// As [`Mds::reserve_size`]. Returns what was reserved for the file before, if that may have changed.
    pub(crate) fn reserve_growth(&self, ino: Ino, new_size: u64) -> Result<Option<u64>, Errno> {
        let inode = self.read(|reader| inode::load(reader, ino))?;
        let counts = inode.project != ProjectId::NONE && inode.kind == FileKind::Regular;
        if !counts || new_size <= inode.size {
            return Ok(None);
        }
        let quota = || self.read(|reader| quota::get(reader, inode.project));
        self.reservations.reserve(ino, inode.project, new_size - inode.size, quota).map(Some)
    }
}

fn begin(txn: &mut SlotTxn<'_>, env: &Env, ino: Ino) -> namespace::Result<DataState> {
    if txn.is_told() && !data::is_begun(&inode::load(txn, ino)?, env) {
        txn.tell(|| Change::Written { ino });
    }
    telling(txn, ino, Attrs::NONE, |txn| data::begin_write(txn, env, ino))
}

fn settle(txn: &mut SlotTxn<'_>, env: &Env, ino: Ino, settled: &Settled) -> namespace::Result<()> {
    if txn.is_told() && !settled.still_open && inode::load(txn, ino)?.live_epoch != 0 {
        txn.tell(|| Change::Settled { ino });
    }
    data::settle(txn, env, ino, settled).map(|_| ())
}
