//! Where things are in the back end: places are found by walking the records of the directories up to the root.

use std::{collections::BTreeSet, ops::ControlFlow};

use link::{LinkRecord, Place};
use namespace::{dentry::Dentry, key};
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

    /// Another name that they have of an inode which loses the name `lost` there. All of our names are searched only if neither
    /// the directory that it loses nor the one where it was last named has one.
    pub(crate) fn another_name(&self, ino: Ino, lost: &Place) -> Result<Option<Place>, Errno> {
        let mds = &self.ledger.mds;
        let work = self.ledger.lock().log.get(ino).cloned();
        // We gave it up, and they have it still.
        if let Some(place) = work.iter().flat_map(|work| &work.minus).find(|place| *place != lost) {
            return Ok(Some(place.clone()));
        }
        let Ok(found) = mds.find(ino) else { return Ok(None) };
        if found.attr.nlink == 0 || found.attr.kind == FileKind::Directory {
            return Ok(None);
        }
        let near = BTreeSet::from([lost.dir, mds.parent(ino).unwrap_or(lost.dir)]);
        let mut places = Vec::new();
        for dir in near {
            let names = gather::names_in(&Committed(mds), dir).map_err(records::errno)?;
            let named = names.into_iter().filter(|(_, named, _)| *named == ino);
            places.extend(named.map(|(name, ..)| Place { dir, name }));
        }
        // After the names: one that was given since is to be made, or is made.
        let unmade = self.ledger.lock().log.get(ino).map(|work| work.plus.clone()).unwrap_or_default();
        let theirs = |place: &Place| place != lost && !unmade.contains(place);
        match places.iter().find(|place| theirs(place)) {
            Some(place) => Ok(Some(place.clone())),
            None if places.len() < found.attr.nlink as usize => self.name_anywhere(ino, &theirs),
            None => Ok(None),
        }
    }

    /// Among all that we have. Of a file with names in several directories, which is seldom; and no lock is held.
    fn name_anywhere(&self, ino: Ino, theirs: &dyn Fn(&Place) -> bool) -> Result<Option<Place>, Errno> {
        let mut place = None;
        self.ledger.mds.scan(&[0], &[0xff; key::PREFIX_BYTES], &mut |key, value| {
            let parsed = key::Parsed::new(key).filter(|parsed| parsed.kind == key::DENTRY);
            let names = parsed.filter(|_| Dentry::decode(value).is_some_and(|dentry| dentry.ino == ino));
            let named = names.and_then(|parsed| {
                let (_, name) = parsed.dentry()?;
                Some(Place { dir: Ino::from_raw(parsed.raw_ino)?, name: name.to_vec() })
            });
            match named.filter(|place| theirs(place)) {
                Some(found) => {
                    place = Some(found);
                    ControlFlow::Break(())
                }
                None => ControlFlow::Continue(()),
            }
        })?;
        Ok(place)
    }

    /// They have the name no more at which we know the inode: it is known by another one that they have, or not at all.
    pub(crate) fn put_right(&self, ino: Ino, lost: &Place) -> Result<(), Errno> {
        let place = self.another_name(ino, lost)?;
        let _log = self.ledger.lock();
        let Some(record) = self.record_of(ino)?.filter(|record| record.place == *lost) else { return Ok(()) };
        let Some(place) = place else { return Ok(()) };
        // How many links it has there is another number.
        self.ledger.mds.put_records(&[records::link_entry(ino, Some(&LinkRecord { place, ..record }))], false)
    }
}
