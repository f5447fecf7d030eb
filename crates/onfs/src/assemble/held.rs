//! What the state of a server holds for others: objects that files elsewhere are made of.
//!
//! A server's objects have records of their own (`serve::data::Record`), and no inode beside them says that they are in use. So nothing
//! that is found here may be removed because no name leads to it; which files there are is the metadata servers' to know.

use std::{collections::BTreeMap, ops::ControlFlow};

use kv::{MetaStore, WriteSet};
use namespace::{key, txn::KvError};
use serve::data::Record;
use types::{Errno, Ino};

use crate::running::StartError;

/// Name of the value that says that a server had the store. Its value is a version.
const SERVES: &[u8] = b"serves";
const VERSION: u8 = 1;

/// Says, from a server's first start on, what kind of state it is.
pub(super) fn note_server(store: &MetaStore) -> Result<(), StartError> {
    let failed = |error: KvError| StartError::Failed(format!("the metadata cannot be written: {error}"));
    if store.get(&key::global(SERVES)).map_err(failed)?.is_some() {
        return Ok(());
    }
    let mut writes = WriteSet::new();
    writes.use_reserve();
    writes.put(&key::global(SERVES), vec![VERSION].into());
    store.commit(writes).map(drop).map_err(failed)
}

/// The objects of a server's store.
#[derive(Default)]
pub(super) struct Held {
    /// By number; an error: the record is none.
    pub records: BTreeMap<Ino, Result<Record, Errno>>,
    /// Objects that have a map and no record.
    pub without_record: Vec<Ino>,
}

/// `None`: the state of a mount, whose objects belong to its own inodes. What servers of before the note have is known by their records.
pub(super) fn held(store: &MetaStore) -> Result<Option<Held>, KvError> {
    let mut is_server = store.get(&key::global(SERVES))?.is_some();
    let (mut held, mut mapped) = (Held::default(), Vec::new());
    store.scan(&[0], &[0xff; 9], &mut |key, value| {
        let Some(parsed) = key::Parsed::new(key) else { return ControlFlow::Continue(()) };
        is_server |= matches!(parsed.kind, key::HELD | key::VERDICT | key::STANDING | key::STATE);
        if let Some(ino) = Ino::from_raw(parsed.raw_ino).filter(|_| parsed.rest.is_empty()) {
            if parsed.kind == key::HELD {
                held.records.insert(ino, Record::decode(value).ok_or(Errno::EIO));
            } else if parsed.kind == key::OBJECT {
                mapped.push(ino);
            }
        }
        ControlFlow::Continue(())
    })?;
    mapped.retain(|ino| !held.records.contains_key(ino));
    held.without_record = mapped;
    Ok(is_server.then_some(held))
}

#[cfg(test)]
mod tests {
    //! Goal: the state of a server is known as such, by its note or by what it has; a mount's is not. Method: stores with each.
    use super::*;

    fn store() -> (tempfile::TempDir, MetaStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = MetaStore::open_default(dir.path(), kv::MetaStoreOptions::default()).unwrap();
        (dir, store)
    }

    fn put(store: &MetaStore, key: &[u8], value: Vec<u8>) {
        let mut writes = WriteSet::new();
        writes.put(key, value.into());
        store.commit(writes).unwrap();
    }

    #[test]
    fn a_server_is_known_by_its_note_and_by_what_it_has() {
        let (ino, other) = (Ino::from_raw(7).unwrap(), Ino::from_raw(8).unwrap());
        let (_dir, of_mount) = store();
        put(&of_mount, &key::object(ino), vec![1]);
        assert!(held(&of_mount).unwrap().is_none());
        note_server(&of_mount).unwrap();
        note_server(&of_mount).unwrap();
        assert_eq!(held(&of_mount).unwrap().unwrap().without_record, [ino]);

        let (_dir, of_before) = store();
        let record = Record { generation: 1, size: 5, ..Record::default() };
        put(&of_before, &key::held(ino), record.encode());
        put(&of_before, &key::held(other), vec![9]);
        put(&of_before, &key::object(ino), vec![1]);
        let held = held(&of_before).unwrap().unwrap();
        assert_eq!(held.records, BTreeMap::from([(ino, Ok(record)), (other, Err(Errno::EIO))]));
        assert_eq!(held.without_record, []);
    }
}
