//! Where things are in the back end: places are found by walking the records of the directories up to the root.

use link::{LinkRecord, Place};
use types::{Errno, FileKind, Ino};

use crate::{
    Linked, gather,
    pending::Touched,
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

    /// Is this the way to a directory, and was it while these steps were made? The log is locked.
    pub(crate) fn leads_still(&self, way: &[Vec<u8>], dir: Ino, touched: &Touched) -> Result<bool, Errno> {
        let mut at = dir;
        for name in way.iter().rev() {
            let Some(record) = self.record_of(at)? else { return Ok(false) };
            if record.place.name != *name || touched.inos.contains(&at) {
                return Ok(false);
            }
            at = record.place.dir;
        }
        Ok(at == Ino::ROOT)
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
            Some(FileKind::Directory) => mds.parent(ino).ok(),
            Some(_) | None => self.record_of(ino).ok().flatten().map(|record| record.place.dir),
        }
    }

    /// Another name that they have of an inode which loses the name `lost` there. It is looked for where the inode was last
    /// named here; one that is not found is found by the next listing of its directory.
    pub(crate) fn another_name(&self, ino: Ino, lost: &Place) -> Result<Option<Place>, Errno> {
        let mds = &self.ledger.mds;
        let (Ok(found), Ok(dir)) = (mds.find(ino), mds.parent(ino)) else { return Ok(None) };
        if found.attr.nlink == 0 || found.attr.kind == FileKind::Directory {
            return Ok(None);
        }
        let unmade = self.ledger.lock().log.get(ino).map(|work| work.plus.clone()).unwrap_or_default();
        let names = gather::names_in(&Committed(mds), dir).map_err(records::errno)?;
        let places =
            names.into_iter().filter(|(_, named, _)| *named == ino).map(|(name, ..)| Place { dir, name });
        Ok(places.into_iter().find(|place| place != lost && !unmade.contains(place)))
    }
}
