//! What the data servers of files know. Of many files each server is asked at once, in one message; about those that grow meanwhile once more.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use cluster::sizing::{Said, Sizing};
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
    /// Bytes that it has at least, as the metadata say.
    pub known: u64,
    /// Nobody writes it, or a size that it never had does no harm: each data server is asked once.
    pub at_rest: bool,
}

/// One stripe of one of the files, by their places.
#[derive(Clone, Copy)]
struct Part {
    file: usize,
    stripe: usize,
}

/// What was said of a file so far.
struct Asked {
    sizing: Sizing,
    attrs: Vec<ObjectAttr>,
}

impl Truth {
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
}

impl Asked {
    fn new(wanted: &Wanted<'_>) -> Result<Asked, No> {
        let striped = wanted.placed.striped().ok_or(Errno::EIO)?;
        let sizing = Sizing::new(striped, wanted.known);
        let sizing = if wanted.at_rest { sizing.at_rest() } else { sizing };
        Ok(Asked { sizing, attrs: vec![ObjectAttr::default(); striped.count()] })
    }

    fn learn(&mut self, stripe: usize, attr: ObjectAttr) -> Result<(), No> {
        match proto::attr::outcome(attr.errno) {
            // It has just started, for instance.
            Err(Errno::EAGAIN) => {
                return Err(No::later("a data server of the file cannot say yet what it has"));
            }
            said => said?,
        }
        let still = Duration::from_micros(attr.still_us);
        self.sizing.came(Said { stripe, size: attr.size, still });
        *self.attrs.get_mut(stripe).ok_or(Errno::EIO)? = attr;
        Ok(())
    }

    fn truth(self) -> Result<Truth, No> {
        let times: Vec<Option<Time>> = self.attrs.iter().map(|attr| attr.mtime).collect();
        let as_stamps = times.iter().flatten().map(|time| Timestamp::try_from(*time));
        let mtime = as_stamps.collect::<Result<Vec<Timestamp>, _>>()?.into_iter().max();
        let blocks = self.attrs.iter().fold(0, |sum: u64, attr| sum.saturating_add(attr.blocks));
        Ok(Truth { size: self.sizing.size(), blocks, mtime, times })
    }
}

impl MetadataService {
    /// What is true of a file with a layout, at one moment. All its data servers have to answer.
    pub(super) fn truth(&self, file: &File, placed: &Placed, known: u64) -> Result<Truth, No> {
        self.truth_of(Wanted { ino: file.ino, placed, known, at_rest: false })
    }

    pub(super) fn truth_of(&self, wanted: Wanted<'_>) -> Result<Truth, No> {
        self.truths(&[wanted]).pop().unwrap_or(Err(Errno::EIO.into()))
    }

    /// The same of many, in their order: a server that does not answer costs those that are on it.
    pub(super) fn truths(&self, files: &[Wanted<'_>]) -> Vec<Result<Truth, No>> {
        let began = Instant::now();
        let mut all: Vec<Result<Asked, No>> = files.iter().map(Asked::new).collect();
        loop {
            let mut by_node: BTreeMap<u64, Vec<Part>> = BTreeMap::new();
            let since = began.elapsed();
            for ((file, one), wanted) in all.iter_mut().enumerate().zip(files) {
                let Ok(one) = one else { continue };
                for stripe in one.sizing.ask(since) {
                    let Some(node) = wanted.placed.layout.stripes.get(stripe) else { continue };
                    by_node.entry(*node).or_default().push(Part { file, stripe });
                }
            }
            if by_node.is_empty() {
                return all.into_iter().map(|one| one?.truth()).collect();
            }
            self.ask_parts(files, &mut all, &by_node);
        }
    }

    fn ask_parts(
        &self,
        files: &[Wanted<'_>],
        all: &mut [Result<Asked, No>],
        by_node: &BTreeMap<u64, Vec<Part>>,
    ) {
        let parts: Vec<(u64, &[Part])> = by_node
            .iter()
            .flat_map(|(node, parts)| parts.chunks(BATCH_MAX / 2).map(|some| (*node, some)))
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
        for ((_, parts), answer) in parts.iter().zip(self.nodes.ask_all(&asked)) {
            for (at, part) in parts.iter().enumerate() {
                let Some(one) = all.get_mut(part.file) else { continue };
                let attr = answer
                    .as_ref()
                    .map_err(No::clone)
                    .and_then(|attrs| attrs.attrs.get(at).copied().ok_or_else(|| No::from(Errno::EIO)));
                let learned = match one {
                    Ok(one) => attr.and_then(|attr| one.learn(part.stripe, attr)),
                    Err(_) => continue,
                };
                if let (Err(no), Some(of)) = (learned, files.get(part.file)) {
                    *one = Err(self.unless_two(of.ino, of.placed, no));
                }
            }
        }
    }
}
