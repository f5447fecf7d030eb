//! The transaction that namespace operations run in.
//!
//! Invariants: a transaction sees its own writes over the committed state; nothing of it is visible to others before
//! `commit`. It does not look for conflicts: the caller runs one transaction at a time per UGSD.

use bytes::Bytes;
use namespace::txn::{KvError, Reader, Txn, Visit};

use crate::{lsn::Lsn, overlay, store::MetaStore, write_set::WriteSet};

/// See [`MetaStore::begin`]. Dropped without `commit`, it leaves nothing.
pub struct MetaTxn<'a> {
    store: &'a MetaStore,
    writes: WriteSet,
}

impl MetaStore {
    pub fn begin(&self) -> MetaTxn<'_> {
        MetaTxn { store: self, writes: WriteSet::new() }
    }
}

impl MetaTxn<'_> {
    /// See [`MetaStore::commit`].
    pub fn commit(self) -> Result<Lsn, KvError> {
        self.store.commit(self.writes)
    }

    /// See [`WriteSet::use_reserve`].
    pub fn use_reserve(&mut self) {
        self.writes.use_reserve();
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
