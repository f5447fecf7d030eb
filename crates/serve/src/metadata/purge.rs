//! Removes the objects of inodes that have no name and no references, and then the inodes.
//!
//! What a data server that is away has to remove waits in the inode's own record: it is asked again a while later.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use namespace::key;
use proto::{
    BATCH_MAX,
    data::{Object, Remove},
    moving::StandingKind,
};
use types::{Errno, Ino};

use super::{MetadataService, placed::Placed, wishes::DirWish};
use crate::answer::No;

/// When something could not be removed, the next round comes so much later.
const PAUSE: Duration = Duration::from_secs(1);
/// Inodes per round: bounds its memory, and the time for which the other things that are due wait.
const BATCH: usize = 256;

/// The inode of an object.
fn of_file(object: u64) -> u64 {
    proto::layout::file_and_stripe(object).map_or(object, |(ino, _)| ino)
}

impl MetadataService {
    /// One round.
    pub(super) fn bury(&self) {
        if Instant::now() < *self.bury_after.lock() {
            return;
        }
        let list = match self.mds.purge_list(BATCH) {
            Ok(list) => list,
            Err(errno) => return tracing::warn!(%errno, "what is to be purged was not read"),
        };
        if list.is_empty() {
            return;
        }
        let dying = self.begin_dying(&list);
        let (gone, left) = self.remove_objects(&dying);
        if let Err(errno) = self.mds.purge(&gone) {
            tracing::warn!(%errno, "removed inodes were not purged");
            gone.iter().for_each(|ino| self.mds.purge_later(*ino));
        }
        self.dying.lock().clear();
        if !left.is_empty() {
            *self.bury_after.lock() = Instant::now() + PAUSE;
        }
        left.iter().for_each(|ino| self.mds.purge_later(*ino));
    }

    /// Those that nobody refers to, and to which nobody gets a reference from now on.
    fn begin_dying(&self, list: &[Ino]) -> Vec<Ino> {
        let mut dying = self.dying.lock();
        let free: Vec<Ino> = list.iter().copied().filter(|ino| !self.mds.is_held(*ino)).collect();
        dying.extend(&free);
        free
    }

    /// Which of them have no objects any more, and which still have.
    fn remove_objects(&self, dying: &[Ino]) -> (Vec<Ino>, Vec<Ino>) {
        // Or a power cut would bring back a name without its bytes.
        if let Err(errno) = self.mds.sync() {
            tracing::warn!(%errno, "nothing is removed: the metadata are not durable");
            return (Vec::new(), dying.to_vec());
        }
        if self.settled_here().is_err() {
            // Whoever goes on in this server's place may not know that they have no name.
            return (Vec::new(), dying.to_vec());
        }
        let mut failed: Vec<Ino> = Vec::new();
        let mut by_node: BTreeMap<u64, Vec<Object>> = BTreeMap::new();
        for ino in dying {
            match self.stored(*ino) {
                Ok(Some(placed)) => {
                    let mut add = |(node, object)| by_node.entry(node).or_default().push(object);
                    placed.objects(*ino).for_each(&mut add);
                    let others = placed.other_objects(*ino);
                    others.filter(|(node, _)| !self.is_removed(*node)).for_each(&mut add);
                    // Whichever of the two has it.
                    let handing = placed.handing.map(|handing| placed.handed_over(&handing));
                    handing.iter().flat_map(|other| other.objects(*ino)).for_each(&mut add);
                }
                Ok(None) => (),
                Err(no) => {
                    tracing::error!(%ino, errno = %no.errno(), "the data of a removed file were not found");
                    failed.push(*ino);
                }
            }
        }
        let asked: Vec<_> = by_node
            .iter()
            .flat_map(|(node, objects)| objects.chunks(BATCH_MAX / 2).map(|some| (*node, some)))
            .map(|(node, some)| (node, Remove { objects: some.to_vec() }))
            .collect();
        for ((_, remove), answer) in asked.iter().zip(self.nodes.ask_all(&asked)) {
            let removed = answer.unwrap_or_default();
            let mut outcomes = removed.outcomes();
            for object in &remove.objects {
                if outcomes.next().is_none_or(|outcome| outcome.is_err()) {
                    failed.extend(Ino::from_raw(of_file(object.ino)));
                }
            }
        }
        dying.iter().partition(|ino| !failed.contains(ino))
    }

    /// It has nothing, and never comes back.
    pub(super) fn is_removed(&self, node: u64) -> bool {
        self.nodes.standing(node).is_some_and(|standing| standing.kind == StandingKind::Removed)
    }

    fn stored(&self, ino: Ino) -> Result<Option<Placed>, No> {
        let stored = self.store.get(&key::stripes(ino)).map_err(|error| {
            tracing::error!(%ino, %error, "a layout was not read");
            No::from(Errno::EIO)
        })?;
        // A directory has what it says of new files under the same key.
        let of_file = stored.filter(|bytes| DirWish::decode(bytes).is_none());
        of_file.map(|bytes| Placed::decode(&bytes).ok_or_else(|| Errno::EIO.into())).transpose()
    }
}
