//! Directories that are spread over several UGSDs, so that several servers can have their entries.

use std::ops::ControlFlow;

use namespace::{DirEntry, Found, Spread, inode, parts, readdir};
use types::{Errno, Ino, LocalId, UgsdId};

use crate::{server::Mds, slots::SlotSet};

/// Of a directory that is spread or gathered: one commit moves all of them, and its slots wait meanwhile. At 120 bytes each it is 8 MiB of the journal.
pub const SPREAD_ENTRIES_MAX: usize = 1 << 16;

impl Mds {
    /// Over `2^bits` parts, with all its entries, in one commit. `EFBIG`: they are too many; `EEXIST`: it is spread over another number; `EINVAL`: it is
    /// the root, or no such number can be; `EOPNOTSUPP`: a linked directory would be told of what is in no directory that it has.
    pub fn spread(&self, dir: Ino, bits: u32) -> Result<Spread, Errno> {
        if self.recorder.get().is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        self.admit(Some(dir))?;
        if let Some(spread) = self.read(|reader| parts::spread_already(reader, dir, bits))? {
            return Ok(spread);
        }
        let with_root = SlotSet::of(dir).with(UgsdId::ROOT.slot());
        let over = self.change(with_root, |txn, _| parts::reserve(txn, bits))?;
        self.store.wait_synced(self.store.last_lsn()).map_err(|error| self.errno(error.into()))?;
        self.change(SlotSet::of(dir), |txn, env| parts::spread(txn, env, dir, over, SPREAD_ENTRIES_MAX))
    }

    /// All entries are the directory's own again.
    pub fn gather_parts(&self, dir: Ino) -> Result<(), Errno> {
        self.admit(Some(dir))?;
        self.change(SlotSet::of(dir), |txn, env| parts::gather(txn, env, dir, SPREAD_ENTRIES_MAX))
    }

    /// Over what a directory is spread, by its own record; nothing of what is no directory.
    pub fn spread_of(&self, dir: Ino) -> Result<Option<Spread>, Errno> {
        self.read(|reader| Ok(inode::get(reader, dir)?.and_then(|inode| inode.spread())))
    }

    /// As [`Mds::find`], by the inode's own record.
    pub fn find_alone(&self, ino: Ino) -> Result<Found, Errno> {
        self.read(|reader| namespace::find_alone(reader, &self.env(), ino))
    }

    /// "." and ".." after a cookie.
    pub fn dots(
        &self,
        dir: Ino,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let _shared = self.locks.read(dir);
        self.read(|reader| readdir::dots(reader, dir, cookie, visit).map(drop))
    }

    /// The directory in whose place an inode of this number was made, where that was a part: it says the same of new files.
    pub fn part_near(&self, ino: Ino, dir: Ino) -> Result<Option<Ino>, Errno> {
        let top = Ino::new(ino.ugsd(), LocalId::TOP);
        let inode = self.read(|reader| inode::get(reader, top))?;
        Ok(inode.filter(|inode| inode.is_part() && inode.parent == Some(dir)).map(|_| top))
    }

    pub(crate) fn is_part(&self, ino: Ino) -> Result<bool, Errno> {
        self.read(|reader| Ok(inode::get(reader, ino)?.is_some_and(|inode| inode.is_part())))
    }

    /// Of the hash of names: who is told of parts needs it.
    pub fn hash_key(&self) -> [u8; 16] {
        self.hash_key
    }
}
