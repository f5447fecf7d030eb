//! Where the data of a file go: chosen at its first write, by what its directory says, by who writes it, and by what data servers there
//! are. And the attribute that shows and sets it: `user.onfs.layout`.

use std::collections::BTreeSet;

use cluster::{
    NodeId,
    placement::{GROUP_COUNT, GROUP_UNIT, Layout as Chosen, NoPlace, Striping, Wish, Writers, place},
};
use proto::{Layout, Nothing, copies::Member};
use types::{Errno, FileKind, Ino};

use super::{
    MetadataService,
    files::State,
    wishes::{DirWish, Local},
};
use crate::answer::{Done, No, Outcome};

/// Shown of files and directories, set for directories.
pub(super) const ATTRIBUTE: &[u8] = b"user.onfs.layout";

impl MetadataService {
    /// What is said for a new file: by the directory in which it was last named.
    fn said_for(&self, ino: Ino) -> DirWish {
        let said = self.mds.parent(ino).and_then(|dir| match self.said_of(dir) {
            // A part says the same as its directory.
            Err(Errno::EREMOTE) => self.said_of(self.mds.part_near(ino, dir)?.ok_or(Errno::EREMOTE)?),
            said => said,
        });
        said.unwrap_or_else(|errno| {
            // Its directory is another server's, or no more.
            tracing::debug!(%ino, %errno, "nothing is said of where a file's data go");
            DirWish::default()
        })
    }

    fn said_of(&self, dir: Ino) -> Result<DirWish, Errno> {
        let Some(record) = self.mds.striping(dir)? else { return Ok(DirWish::default()) };
        DirWish::decode(&record).ok_or_else(|| {
            tracing::error!(%dir, "what a directory says of layouts cannot be read");
            Errno::EIO
        })
    }

    /// Does it depend on who else has a file open at its first write, where that is by a session on `node`?
    pub(super) fn waits_for_writers(&self, ino: Ino, node: u64) -> bool {
        node != 0 && self.said_for(ino).local == Local::Auto
    }

    /// `node`: of the session that writes, 0 for none.
    pub(super) fn choose(&self, ino: Ino, state: &State, node: u64) -> Result<Layout, No> {
        let said = self.said_for(ino);
        let near = match said.local {
            Local::Auto => state.writers <= 1,
            Local::Yes => true,
            Local::No => false,
        };
        let near = Some(NodeId(node)).filter(|_| near && node != 0);
        let lives = self.nodes.lives();
        let twofold = said.copies == Some(2)
            && proto::layout::object_number(ino.get(), 0).is_some()
            && !lives.is_empty();
        let job = if twofold { self.sessions.with_jobs_of(node) } else { BTreeSet::new() };
        let chosen = self.place(ino, &said, near, (twofold, job)).map_err(|why| {
            if self.nodes.is_early() {
                // Slots may come before all have reported here.
                return No::later("data servers have not reported yet");
            }
            tracing::warn!(%ino, %why, "no data server for a file");
            No::new(Errno::ENOSPC, wire::schema::Retry::Never, proto::Reason::None, why.to_string())
        })?;
        let stripes: Vec<u64> = chosen.stripes.iter().map(|stripe| stripe.primary.0).collect();
        let member = |node: NodeId| Some(Member { node: node.0, life: lives.get(&node.0)?.0 });
        let pairs =
            chosen.stripes.iter().map(|one| Some((member(one.primary)?, one.secondary.and_then(member))));
        let layout = match pairs.collect::<Option<Vec<_>>>().filter(|_| twofold) {
            Some(pairs) => {
                self.replicas.is_new(ino, &pairs);
                Layout::twofold(chosen.unit, &pairs)
            }
            // Or a data server that takes part in no second copies.
            None => {
                Layout { generation: 1, unit: chosen.unit, stripes, moved: Vec::new(), views: Vec::new() }
            }
        };
        layout.check()?;
        Ok(layout)
    }

    fn place(
        &self,
        ino: Ino,
        said: &DirWish,
        near: Option<NodeId>,
        (twofold, job): (bool, BTreeSet<NodeId>),
    ) -> Result<Chosen, NoPlace> {
        let (map, measures) = (self.nodes.map(), self.nodes.measures_for_new());
        let place_of = |fixed, replicated| {
            let writers = near.map_or(Writers::Several, Writers::One);
            let wish = Wish { writers, fixed, replicated, job: job.clone(), seed: ino.get() };
            place(&map, &measures, &wish)
        };
        if twofold {
            let alone = place_of(None, false)?;
            let most = said.stripes.unwrap_or(alone.stripes.len() as u16);
            let unit = said.unit.unwrap_or(alone.unit);
            // Fewer stripes rather than one copy.
            let with_seconds =
                (1..=most).rev().find_map(|count| place_of(Some(Striping { count, unit }), true).ok());
            return with_seconds.map_or_else(|| place_of(Some(Striping { count: 1, unit }), false), Ok);
        }
        let with = |fixed| place_of(fixed, false);
        if said.stripes.is_none() && said.unit.is_none() {
            return with(None);
        }
        let unit = said.unit.unwrap_or(GROUP_UNIT);
        let alone = with(Some(Striping { count: 1, unit }));
        if said.stripes.is_none()
            && let (Ok(chosen), Some(near)) = (&alone, near)
            && chosen.stripes.iter().all(|stripe| stripe.primary == near)
        {
            return alone;
        }
        // As many as there are, if there are less.
        let most = said.stripes.unwrap_or(GROUP_COUNT);
        (2..=most).rev().find_map(|count| with(Some(Striping { count, unit })).ok()).map_or(alone, Ok)
    }

    /// What the attribute says: of a directory what is said for new files, of a file where its data are.
    pub(super) fn layout_text(&self, ino: Ino) -> Result<Vec<u8>, No> {
        match self.mds.find(ino)?.attr.kind {
            FileKind::Directory => Ok(self.said_of(ino)?.to_string().into_bytes()),
            FileKind::Regular => {
                let placed = self.locked(ino, |_, state| Ok(state.placed.clone()))?;
                let Layout { unit, stripes, views, .. } = placed.ok_or(Errno::ENODATA)?.layout;
                let map = self.nodes.map();
                let named = |node: &u64| match map.node(NodeId(*node)) {
                    Some(known) => format!("{node}:{}", word(&known.name)),
                    None => node.to_string(),
                };
                let nodes: Vec<String> = stripes.iter().map(named).collect();
                let seconds: Vec<String> = views
                    .iter()
                    .map(|view| match view.second {
                        Some(second) if second.counts => named(&second.member.node),
                        // It is being made.
                        Some(second) => format!("({})", named(&second.member.node)),
                        None => "none".to_owned(),
                    })
                    .collect();
                let seconds = if seconds.is_empty() {
                    String::new()
                } else {
                    format!(" seconds={}", seconds.join(","))
                };
                Ok(format!("stripes={} unit={unit} nodes={}{seconds}", stripes.len(), nodes.join(","))
                    .into_bytes())
            }
            FileKind::Symlink
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => Err(Errno::ENODATA.into()),
        }
    }

    /// Of directories: words that are not there stay as they are. What is there already stays where it is.
    pub(super) fn set_layout(&self, dir: Ino, text: &[u8]) -> Outcome {
        if self.mds.find(dir)?.attr.kind != FileKind::Directory {
            return Err(Errno::EPERM.into());
        }
        let text = std::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
        // One that cannot be read is replaced.
        let before = self.said_of(dir).unwrap_or_default();
        let wish = before.with(text).ok_or(Errno::EINVAL)?;
        self.say(dir, &wish)
    }

    pub(super) fn remove_layout(&self, dir: Ino) -> Outcome {
        if self.mds.find(dir)?.attr.kind != FileKind::Directory {
            return Err(Errno::EPERM.into());
        }
        self.say(dir, &DirWish::default())
    }

    fn say(&self, dir: Ino, wish: &DirWish) -> Outcome {
        let record = (!wish.is_empty()).then(|| wish.encode());
        self.mds.set_striping(dir, record.as_deref())?;
        Ok(Done::new(&Nothing {}))
    }
}

/// A name as one word of a list.
fn word(name: &str) -> String {
    name.chars().map(|c| if c.is_whitespace() || ",:=".contains(c) { '_' } else { c }).collect()
}
