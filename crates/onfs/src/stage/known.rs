//! What the journal of a stage says, put together: the files that were begun and those that are done. Pure.

use std::collections::{BTreeMap, HashMap};

use super::{facts::Stamp, record::Record};

/// Which boot of which machine; what it wrote is trusted by the same one.
pub type Boot = [u8; 16];

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Begun {
    pub stamp: Stamp,
    /// The path that it has while it is not whole.
    pub way: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    pub stamp: Stamp,
    pub sum: u64,
    /// No power cut can have taken it.
    pub trusted: bool,
    /// It was made durable.
    pub durable: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KnownFile {
    pub begun: Option<Begun>,
    pub pieces: BTreeMap<u32, u64>,
    pub done: Option<Done>,
}

/// By [`super::record::key_of`] the destination.
pub struct Known {
    files: HashMap<u128, KnownFile>,
    boot: Boot,
    /// Of the run whose records come.
    writing: Option<Boot>,
}

impl Known {
    pub fn new(boot: Boot) -> Known {
        Known { files: HashMap::new(), boot, writing: None }
    }

    pub fn take(&mut self, record: Record) {
        match record {
            Record::Run { boot } => self.writing = Some(boot),
            Record::Begun { key, stamp, way } => {
                let file = self.files.entry(key).or_default();
                // Pieces of an earlier version are worth nothing.
                *file = KnownFile { begun: Some(Begun { stamp, way }), ..KnownFile::default() };
            }
            Record::Piece { key, index, sum } => {
                // Without its beginning nothing says of which version it is.
                if let Some(file) = self.files.get_mut(&key).filter(|file| file.begun.is_some()) {
                    file.pieces.insert(index, sum);
                }
            }
            Record::Done { key, stamp, sum, durable } => {
                let trusted = durable || self.writing == Some(self.boot);
                let done = Some(Done { stamp, sum, trusted, durable });
                self.files.insert(key, KnownFile { done, ..KnownFile::default() });
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub fn get(&self, key: u128) -> Option<&KnownFile> {
        self.files.get(&key)
    }

    /// What was begun and not finished: the key, and the path on the way.
    pub fn unfinished(&self) -> impl Iterator<Item = (u128, &[u8])> {
        self.files.iter().filter_map(|(key, file)| Some((*key, file.begun.as_ref()?.way.as_slice())))
    }
}

#[cfg(test)]
mod tests {
    //! Goal: only what was written for this version, and what no power cut can have taken, is trusted. Method: records in
    //! the orders that runs leave.
    use types::Timestamp;

    use super::*;

    fn stamp(size: u64) -> Stamp {
        Stamp { ino: 3, size, mtime: Timestamp::EPOCH, ctime: Timestamp::EPOCH }
    }

    #[test]
    fn pieces_belong_to_the_version_that_was_begun() {
        let mut known = Known::new([1; 16]);
        known.take(Record::Piece { key: 7, index: 0, sum: 1 });
        assert_eq!(known.get(7), None);
        known.take(Record::Begun { key: 7, stamp: stamp(1), way: b"/a".to_vec() });
        known.take(Record::Piece { key: 7, index: 0, sum: 1 });
        assert_eq!(known.get(7).unwrap().pieces.len(), 1);
        known.take(Record::Begun { key: 7, stamp: stamp(2), way: b"/a".to_vec() });
        assert!(known.get(7).unwrap().pieces.is_empty());
        assert_eq!(known.unfinished().collect::<Vec<_>>(), [(7, &b"/a"[..])]);
        known.take(Record::Done { key: 7, stamp: stamp(2), sum: 5, durable: false });
        assert_eq!(known.unfinished().count(), 0);
    }

    #[test]
    fn what_another_boot_did_not_make_durable_is_not_trusted() {
        let trusted = |boot: Boot, durable| {
            let mut known = Known::new([1; 16]);
            known.take(Record::Run { boot });
            known.take(Record::Done { key: 7, stamp: stamp(1), sum: 5, durable });
            known.get(7).unwrap().done.as_ref().unwrap().trusted
        };
        assert!(trusted([1; 16], false));
        assert!(!trusted([2; 16], false));
        assert!(trusted([2; 16], true));
        let mut known = Known::new([1; 16]);
        known.take(Record::Done { key: 7, stamp: stamp(1), sum: 5, durable: false });
        assert!(!known.get(7).unwrap().done.as_ref().unwrap().trusted, "nobody knows who wrote it");
    }
}
