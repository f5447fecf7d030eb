//! Write sets, and the transaction that namespace operations run in.
//!
//! Invariants: a transaction sees its own writes over the committed state; nothing of it is visible to others before
//! `commit`. It does not look for conflicts: the caller runs one transaction at a time per UGSD.

use bytes::Bytes;
use namespace::txn::{KvError, Reader, Txn, Visit};

use crate::{Lsn, key::Key, overlay, store::MetaStore};

/// Writes that take effect together: for each key the last one counts.
///
/// Values are kept as given: a slice of a large buffer keeps that buffer alive until the next checkpoint.
#[derive(Default)]
pub struct WriteSet {
    /// In rising order of distinct keys. Most have fewer than ten, and large ones are filled in order.
    entries: Vec<(Key, Option<Bytes>)>,
}

impl WriteSet {
    pub fn new() -> WriteSet {
        WriteSet::default()
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

    fn range(&self, from: &[u8], to: &[u8]) -> &[(Key, Option<Bytes>)] {
        let position = |key: &[u8]| self.entries.partition_point(|(k, _)| **k < *key);
        self.entries.get(position(from)..position(to)).unwrap_or(&[])
    }
}

/// See [`MetaStore::begin`]. Dropped without `commit`, it leaves nothing.
pub struct MetaTxn<'a> {
    store: &'a MetaStore,
    writes: WriteSet,
}

impl<'a> MetaTxn<'a> {
    pub(crate) fn new(store: &'a MetaStore) -> MetaTxn<'a> {
        MetaTxn { store, writes: WriteSet::new() }
    }

    /// See [`MetaStore::commit`].
    pub fn commit(self) -> Result<Lsn, KvError> {
        self.store.commit(self.writes)
    }

    /// Without writes there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

impl Reader for MetaTxn<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        match self.writes.get(key) {
            Some(own) => Ok(own.cloned()),
            None => self.store.get(key),
        }
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        let own = self.writes.range(from, to);
        if own.is_empty() {
            return self.store.scan(from, to, visit);
        }
        overlay::merge(own, |below| self.store.scan(from, to, below), visit).map(|_| ())
    }
}

impl Txn for MetaTxn<'_> {
    fn put(&mut self, key: &[u8], value: Bytes) {
        self.writes.put(key, value);
    }

    fn delete(&mut self, key: &[u8]) {
        self.writes.delete(key);
    }
}
