//! What a kill leaves of a metadata server: its journal, and the files of the copies that it keeps.

use std::collections::BTreeMap;

use cluster::NodeId;

use crate::message::{JournalRecords as Records, Known};

#[derive(Default)]
pub struct Disk {
    pub journal: Records,
    /// Numbers follow it, also when the journal is left out.
    pub last: u64,
    /// As often others have gone on in its place, of what is in the journal.
    pub taken: u64,
    pub files: BTreeMap<NodeId, File>,
}

/// A copy.
#[derive(Clone, Default)]
pub struct File {
    pub copy: u64,
    pub base: u64,
    pub records: Records,
    /// Of what is in no record of it.
    pub known: Known,
}

impl File {
    pub fn last(&self) -> u64 {
        self.records.last_key_value().map_or(self.base, |(number, _)| *number)
    }

    /// The engine has them.
    pub fn trim(&mut self, up_to: u64) {
        let rest = self.records.split_off(&(up_to + 1));
        for record in std::mem::replace(&mut self.records, rest).values() {
            self.known.extend(record.known.clone());
        }
        self.base = self.base.max(up_to);
    }

    pub fn all_known(&self) -> Known {
        let mut known = self.known.clone();
        self.records.values().for_each(|record| known.extend(record.known.clone()));
        known
    }
}
