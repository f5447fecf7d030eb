//! What is at and below some paths, found by climbing from it: for what is known by its inode and not by its name.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
};

use link::Place;
use linked::Waiting;
use types::{FileKind, Ino};

use super::{parts::Parts, tree::Names};
use crate::control::{ControlError, FileRef};

/// Entries of a directory that are looked at for a name.
const ENTRIES_MAX: usize = 100_000;
/// Deeper than any path.
const DEPTH_MAX: usize = 1 << 16;
/// Removed directories one in another that are named.
const DEPTH_SHOWN: usize = 64;

pub(super) struct Below<'a> {
    parts: &'a Parts,
    tops: HashSet<Ino>,
    /// Where removed directories were, which the linked directory has still.
    gone: HashMap<Ino, Place>,
    known: RefCell<HashMap<Ino, bool>>,
    names: RefCell<Names<'a>>,
}

impl<'a> Below<'a> {
    pub fn new(parts: &'a Parts, places: &[FileRef], waiting: &[Waiting]) -> Below<'a> {
        let removed = waiting.iter().filter(|waiting| waiting.kind == FileKind::Directory);
        Below {
            parts,
            tops: places.iter().filter_map(|place| Ino::from_raw(place.ino)).collect(),
            gone: removed.filter_map(|w| Some((w.ino, w.minus.first()?.clone()))).collect(),
            known: RefCell::default(),
            names: RefCell::new(Names::new(&*parts.store, ENTRIES_MAX)),
        }
    }

    /// Is the directory one of the paths, or below one?
    pub fn has_dir(&self, dir: Ino) -> bool {
        let mut known = self.known.borrow_mut();
        let (mut way, mut at) = (Vec::new(), dir);
        let is = loop {
            if let Some(known) = known.get(&at) {
                break *known;
            }
            if self.tops.contains(&at) {
                break true;
            }
            way.push(at);
            let above = self.parts.mds.parent(at).ok().or_else(|| self.gone.get(&at).map(|place| place.dir));
            match above {
                Some(above) if above != at && way.len() < DEPTH_MAX => at = above,
                Some(_) | None => break false,
            }
        };
        known.extend(way.into_iter().map(|dir| (dir, is)));
        is
    }

    /// By the directory in which it was last named.
    pub fn has(&self, ino: Ino) -> bool {
        self.tops.contains(&ino) || self.parts.mds.parent(ino).is_ok_and(|dir| self.has_dir(dir))
    }

    /// By all directories where it is, was or will be. Of several names here one is on record, so it may be below by another.
    pub fn has_waiting(&self, waiting: &Waiting) -> bool {
        let mut places = waiting.minus.iter().chain(&waiting.plus);
        let linked = || self.parts.mds.find(waiting.ino).is_ok_and(|found| found.attr.nlink > 1);
        let is_file = waiting.kind != FileKind::Directory;
        places.any(|at| self.has_dir(at.dir)) || self.has(waiting.ino) || (is_file && linked())
    }

    /// From the mount point down; `None`: it has no name that is found soon.
    pub fn path(&self, ino: Ino) -> Option<String> {
        let path = self.names.borrow_mut().path(ino)?;
        let top = self.parts.session.mountpoint();
        Some(top.join(path.strip_prefix("/").unwrap_or(&path)).display().to_string())
    }

    /// Where it is here, or, of what was removed here, where it was.
    pub fn path_of(&self, waiting: &Waiting) -> String {
        let was = || waiting.minus.first().and_then(|at| self.path_there(at, DEPTH_SHOWN));
        let path = if waiting.deleted { was() } else { self.path(waiting.ino) };
        path.unwrap_or_else(|| format!("inode {}", waiting.ino))
    }
}

impl Below<'_> {
    /// Of a name that only the linked directory has, perhaps in a directory that is removed here.
    fn path_there(&self, at: &Place, depth: usize) -> Option<String> {
        let above = match (self.path(at.dir), depth.checked_sub(1)) {
            (Some(path), _) => path,
            (None, Some(depth)) => self.path_there(self.gone.get(&at.dir)?, depth)?,
            (None, None) => return None,
        };
        Some(format!("{}/{}", above.trim_end_matches('/'), String::from_utf8_lossy(&at.name)))
    }
}

/// The numbers of the places, as they came from a peer.
pub(super) fn checked(places: &[FileRef]) -> Result<Vec<Ino>, ControlError> {
    let ino = |place: &FileRef| {
        Ino::from_raw(place.ino).ok_or_else(|| super::parts::failed(&place.path, types::Errno::EINVAL))
    };
    places.iter().map(ino).collect()
}
