//! What the data servers of files know. Of many files each server is asked at once, in one message.

use std::collections::BTreeMap;

use mds::Found;
use proto::{
    BATCH_MAX,
    attr::Time,
    data::{Attrs, ObjectAttr},
};
use types::{Attr, Errno, Ino, Timestamp};

use super::{MetadataService, files::File, placed::Placed};
use crate::answer::No;

/// What the data servers of a file know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Truth {
    pub size: u64,
    pub blocks: u64,
    pub mtime: Option<Timestamp>,
    /// Of each stripe.
    pub times: Vec<Option<Time>>,
}

/// A file of which that is wanted.
pub(super) struct Wanted<'a> {
    pub ino: Ino,
    pub placed: &'a Placed,
    /// The size in the metadata.
    pub known: u64,
}

/// One stripe of one of the files, by their places.
#[derive(Clone, Copy)]
struct Part {
    file: usize,
    stripe: usize,
}

impl Truth {
    /// Before anybody was asked.
    fn new(wanted: &Wanted<'_>) -> Truth {
        let times = vec![None; wanted.placed.layout.stripes.len()];
        Truth { size: wanted.known, blocks: 0, mtime: None, times }
    }

    /// The attributes of a file that is being written.
    pub(super) fn shown(&self, found: &Found) -> Attr {
        let mut attr = found.attr;
        (attr.size, attr.blocks) = (self.size, self.blocks);
        if let Some(mtime) = self.mtime {
            attr.mtime = mtime;
            attr.ctime = attr.ctime.max(mtime);
        }
        attr
    }

    fn learn(&mut self, wanted: &Wanted<'_>, stripe: usize, attr: &ObjectAttr) -> Result<(), No> {
        proto::attr::outcome(attr.errno)?;
        let striped = wanted.placed.striped().ok_or(Errno::EIO)?;
        self.size = self.size.max(striped.file_end(stripe, attr.size));
        self.blocks = self.blocks.saturating_add(attr.blocks);
        self.mtime = self.mtime.max(attr.mtime.map(Timestamp::try_from).transpose()?);
        *self.times.get_mut(stripe).ok_or(Errno::EIO)? = attr.mtime;
        Ok(())
    }
}

impl MetadataService {
    /// What is true of a file with a layout. All its data servers have to answer.
    pub(super) fn truth(&self, file: &File, placed: &Placed, known: u64) -> Result<Truth, No> {
        self.truths(&[Wanted { ino: file.ino, placed, known }]).pop().unwrap_or(Err(Errno::EIO.into()))
    }

    /// The same of many, in their order: a server that does not answer costs those that are on it.
    pub(super) fn truths(&self, files: &[Wanted<'_>]) -> Vec<Result<Truth, No>> {
        let mut by_node: BTreeMap<u64, Vec<Part>> = BTreeMap::new();
        for (file, wanted) in files.iter().enumerate() {
            for (stripe, node) in wanted.placed.layout.stripes.iter().enumerate() {
                by_node.entry(*node).or_default().push(Part { file, stripe });
            }
        }
        let parts: Vec<(u64, &[Part])> = by_node
            .iter()
            .flat_map(|(node, parts)| parts.chunks(BATCH_MAX).map(|some| (*node, some)))
            .collect();
        let asked: Vec<(u64, Attrs)> = parts
            .iter()
            .map(|(node, parts)| {
                let objects = parts
                    .iter()
                    .filter_map(|part| files.get(part.file).map(|of| of.placed.object(of.ino, part.stripe)));
                (*node, Attrs { objects: objects.collect() })
            })
            .collect();
        let mut truths: Vec<Result<Truth, No>> = files.iter().map(|of| Ok(Truth::new(of))).collect();
        for ((_, parts), answer) in parts.iter().zip(self.nodes.ask_all(&asked)) {
            for (at, part) in parts.iter().enumerate() {
                let (Some(truth), Some(of)) = (truths.get_mut(part.file), files.get(part.file)) else {
                    continue;
                };
                let attr = answer
                    .as_ref()
                    .map_err(No::clone)
                    .and_then(|attrs| attrs.attrs.get(at).ok_or_else(|| No::from(Errno::EIO)));
                let learned = match truth {
                    Ok(truth) => attr.and_then(|attr| truth.learn(of, part.stripe, attr)),
                    Err(_) => continue,
                };
                if let Err(no) = learned {
                    *truth = Err(no);
                }
            }
        }
        truths
    }
}
