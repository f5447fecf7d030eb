//! The record of an object that becomes live, in the commit of its first bytes.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use ds::Entries;
use kv::{MetaStore, WriteSet};
use namespace::key;
use parking_lot::Mutex;
use types::{Errno, Ino};

use super::record::{Record, refused};

/// Records that the commit of an object's first bytes stores with them. Made before the data server, which is given
/// [`FirstRecords::hook`], and then given to the service.
pub struct FirstRecords {
    store: Arc<MetaStore>,
    /// One for each live object at most.
    pub(super) pending: Mutex<HashMap<Ino, Record>>,
}

/// For [`ds::KvMaps::new`].
pub fn first_record(store: &Arc<MetaStore>) -> Arc<FirstRecords> {
    Arc::new(FirstRecords { store: store.clone(), pending: Mutex::default() })
}

impl FirstRecords {
    pub fn hook(self: &Arc<Self>) -> Box<ds::FirstRecord> {
        let own = self.clone();
        Box::new(move |ino, entries| own.commit(ino, entries))
    }

    fn commit(&self, ino: Ino, entries: &Entries) -> Result<u64, Errno> {
        // Nobody writes an object that the service did not begin.
        let record = self.pending.lock().get(&ino).copied().ok_or(Errno::EIO)?;
        let mut writes = WriteSet::new();
        for (key, value) in entries {
            match value {
                Some(value) => writes.put(key, value.clone()),
                None => writes.delete(key),
            }
        }
        writes.put(&key::held(ino), Bytes::from(record.encode()));
        self.store.commit(writes).map(|lsn| lsn.0).map_err(|error| refused(ino, &error))
    }
}
