//! Write sets: what a commit is made of.
//!
//! Invariant: each key once, in rising order, so that frames and overlays take them as they are.

use bytes::Bytes;

use crate::key::Key;

/// Writes that take effect together: for each key the last one counts.
///
/// Values are kept as given: a slice of a large buffer keeps that buffer alive until the next checkpoint.
#[derive(Default)]
pub struct WriteSet {
    /// In rising order of distinct keys. Most have fewer than ten, and large ones are filled in order.
    entries: Vec<(Key, Option<Bytes>)>,
    reserve: bool,
}

impl WriteSet {
    pub fn new() -> WriteSet {
        WriteSet::default()
    }

    /// It does not let the store grow, or what holds the rest together depends on it: taken on a full disk, too.
    pub fn use_reserve(&mut self) {
        self.reserve = true;
    }

    pub(crate) fn may_use_reserve(&self) -> bool {
        self.reserve
    }

    pub fn put(&mut self, key: &[u8], value: Bytes) {
        self.set(key, Some(value));
    }

    pub fn delete(&mut self, key: &[u8]) {
        self.set(key, None);
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// `Some(None)`: deleted here.
    pub fn get(&self, key: &[u8]) -> Option<Option<&Bytes>> {
        self.find(key).ok().map(|at| self.entries[at].1.as_ref())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&Bytes>)> {
        self.entries.iter().map(|(key, value)| (&**key, value.as_ref()))
    }

    pub(crate) fn into_entries(self) -> Vec<(Key, Option<Bytes>)> {
        self.entries
    }

    fn set(&mut self, key: &[u8], value: Option<Bytes>) {
        if self.entries.is_empty() {
            self.entries.reserve(8);
        }
        match self.find(key) {
            Ok(at) => self.entries[at].1 = value,
            Err(at) => self.entries.insert(at, (Key::new(key), value)),
        }
    }

    fn find(&self, key: &[u8]) -> Result<usize, usize> {
        match self.entries.last() {
            Some((last, _)) if **last < *key => Err(self.entries.len()),
            Some(_) | None => self.entries.binary_search_by(|(k, _)| (**k).cmp(key)),
        }
    }

    pub(crate) fn range(&self, from: &[u8], to: &[u8]) -> &[(Key, Option<Bytes>)] {
        let position = |key: &[u8]| self.entries.partition_point(|(k, _)| **k < *key);
        self.entries.get(position(from)..position(to)).unwrap_or(&[])
    }
}
