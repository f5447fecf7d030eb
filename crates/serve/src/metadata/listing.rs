//! Files of which both copies of some part were lost: found by their views, whose numbers say so, and shown to who watches the cluster.

use std::{collections::BTreeMap, ops::ControlFlow};

use proto::{
    copies::{KnowView, REVIVED, View},
    watch::{LOST_MAX, LostFile},
};
use types::Ino;

use super::{MetadataService, placed::Placed};

/// Names of one directory that are looked through for that of a file.
const NAMES_MAX: usize = 100_000;
/// Directories above a file.
const DEPTH_MAX: usize = 256;

/// Of how many parts both copies were lost, at whatever time.
pub(super) fn lost_parts(placed: &Placed) -> usize {
    placed.layout.views.iter().filter(|view| view.number >> REVIVED > 0).count()
}

impl MetadataService {
    /// In place of those that were listed before.
    pub(super) fn list_lost(&self, files: &[(Ino, Placed)]) {
        let mut listed = BTreeMap::new();
        for (n, (ino, placed)) in files.iter().filter(|(ino, _)| self.has_name(*ino)).enumerate() {
            let file = if n < LOST_MAX { self.lost_file(*ino, placed) } else { LostFile::default() };
            listed.insert(*ino, file);
        }
        *self.replicas.lost.lock() = listed;
    }

    /// One more, or one of which more was lost.
    pub(super) fn note_lost(&self, ino: Ino) {
        if self.has_name(ino)
            && let Ok(Some(placed)) = self.locked(ino, |_, state| Ok(state.placed.clone()))
        {
            let file = self.lost_file(ino, &placed);
            self.replicas.lost.lock().insert(ino, file);
        }
    }

    /// One that was removed is nobody's loss any more but that of who has it open.
    fn has_name(&self, ino: Ino) -> bool {
        self.mds.find(ino).is_ok_and(|found| found.attr.nlink > 0)
    }

    fn lost_file(&self, ino: Ino, placed: &Placed) -> LostFile {
        let path = self.path_of(ino).unwrap_or_default();
        let (bytes, parts) = (self.lost_of(ino, placed), lost_parts(placed) as u64);
        LostFile { ino: ino.get(), path, bytes, parts }
    }

    /// As its primaries say that are there.
    fn lost_of(&self, ino: Ino, placed: &Placed) -> u64 {
        let lives = self.nodes.lives();
        let is_there = |view: &View| lives.get(&view.primary.node) == Some(&(view.primary.life, true));
        let parts = placed.layout.views.iter().enumerate();
        let parts = parts.filter(|(_, view)| view.number >> REVIVED > 0 && is_there(view));
        let asked: Vec<_> = parts
            .map(|(n, view)| {
                (view.primary.node, KnowView { object: Some(placed.object(ino, n)), asks: false })
            })
            .collect();
        self.nodes.ask_all(&asked).into_iter().flatten().map(|said| said.lost).sum()
    }

    /// One of its names, from the root.
    fn path_of(&self, ino: Ino) -> Option<String> {
        let (mut names, mut at) = (Vec::new(), ino);
        while at != Ino::ROOT {
            let dir = self.mds.parent(at).ok()?;
            names.push(self.name_in(dir, at)?);
            at = dir;
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        names.reverse();
        Some(format!("/{}", names.join("/")))
    }

    fn name_in(&self, dir: Ino, ino: Ino) -> Option<String> {
        let (mut found, mut seen) = (None, 0);
        let looked = self.mds.readdir(dir, 0, &mut |entry| {
            seen += 1;
            if entry.ino == ino && entry.name != b"." && entry.name != b".." {
                found = Some(String::from_utf8_lossy(entry.name).into_owned());
            }
            let ends = found.is_some() || seen > NAMES_MAX;
            if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        looked.ok().and(found)
    }
}
