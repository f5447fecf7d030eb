//! Where things are in the back end: places are found by walking the records of the directories up to the root.

use link::{LinkRecord, Place};
use types::{Errno, Ino};

use crate::{
    Linked,
    records::{self, Committed},
};

/// Directories one in another. More can only be a circle of damaged records.
const DEPTH_MAX: usize = 4096;

impl Linked {
    pub(crate) fn record_of(&self, ino: Ino) -> Result<Option<LinkRecord>, Errno> {
        records::link_of(&Committed(&self.ledger.mds), ino).map_err(|error| records::errno(error.into()))
    }

    /// The way to a directory, as the back end has it. `ENOENT`: it is not there yet.
    pub(crate) fn way_of_dir(&self, dir: Ino) -> Result<Vec<Vec<u8>>, Errno> {
        let mut way = Vec::new();
        let mut at = dir;
        while at != Ino::ROOT {
            let record = self.record_of(at)?.ok_or(Errno::ENOENT)?;
            if way.len() == DEPTH_MAX {
                tracing::error!(%dir, "the records of its directories lead in a circle");
                return Err(Errno::EIO);
            }
            way.push(record.place.name);
            at = record.place.dir;
        }
        way.reverse();
        Ok(way)
    }

    pub(crate) fn way_of(&self, place: &Place) -> Result<Vec<Vec<u8>>, Errno> {
        let mut way = self.way_of_dir(place.dir)?;
        way.push(place.name.clone());
        Ok(way)
    }

    /// For [`link::Log::ready`].
    pub(crate) fn parent_of(&self, ino: Ino) -> Option<Ino> {
        let mds = &self.ledger.mds;
        let kind = mds.find(ino).ok().map(|found| found.attr.kind);
        match kind {
            Some(types::FileKind::Directory) => mds.parent(ino).ok(),
            Some(_) | None => self.record_of(ino).ok().flatten().map(|record| record.place.dir),
        }
    }
}
