//! Where residency maps are kept: a record per object and GiB in the metadata journal.

use kv::{MetaStore, WriteSet};
use layout::{DecodeError, ObjectRecord};
use namespace::txn::{Bytes, KvError};
use std::{ops::ControlFlow, sync::Arc};
use types::{Errno, Ino, TierId};

/// The store of residency maps. One journal carries them and the inode records, so both survive a crash at
/// the same moment.
pub trait MapStore: Send + Sync {
    /// `EIO` (and a log line) when the record is damaged.
    fn load(&self, ino: Ino) -> Result<Option<ObjectRecord>, Errno>;
    /// Survives the death of the process when it returns; the number says when it is durable. Writes the head and the
    /// chunks that changed since they were stored: the caller notes then that they are.
    fn save(&self, ino: Ino, record: &ObjectRecord) -> Result<u64, Errno>;
    /// As `save`, and in the same commit the metadata learn that the file is being written.
    fn save_first(&self, ino: Ino, record: &ObjectRecord) -> Result<u64, Errno>;
    /// Deletes all of an object's record but its head, which goes with its inode.
    fn drop_chunks(&self, ino: Ino) -> Result<(), Errno>;
    /// Keeps or forgets that the user pinned an object in a tier.
    fn save_pin(&self, ino: Ino, tier: Option<TierId>) -> Result<(), Errno>;
    /// All pins.
    fn pins(&self) -> Result<Vec<(Ino, TierId)>, Errno>;
    /// How far the comparing of checksums is: bytes of [`crate::scrub::Record`].
    fn save_scrub(&self, record: &[u8]) -> Result<(), Errno>;
    fn scrub(&self) -> Result<Option<Vec<u8>>, Errno>;
    /// The number up to which records survive a power cut.
    fn synced(&self) -> u64;
    /// Makes everything saved so far durable.
    fn sync(&self) -> Result<(), Errno>;
}

/// Residency maps in the metadata store, under their inode's `O` keys.
pub struct KvMaps {
    store: Arc<MetaStore>,
    first: Box<FirstRecord>,
}

/// Name of the value that says how far the comparing of checksums is.
const SCRUB: &[u8] = b"scrub";

/// Keys and what they get; nothing: they are deleted.
pub type Entries = Vec<(Box<[u8]>, Option<Bytes>)>;

/// Commits that a file is being written from now on, together with entries of its object. Returns the commit's number or
/// a later one. It is called under the object's lock.
pub type FirstRecord = dyn Fn(Ino, &Entries) -> Result<u64, Errno> + Send + Sync;

impl KvMaps {
    pub fn new(store: Arc<MetaStore>, first: Box<FirstRecord>) -> KvMaps {
        KvMaps { store, first }
    }
}

impl MapStore for KvMaps {
    fn load(&self, ino: Ino) -> Result<Option<ObjectRecord>, Errno> {
        let stored = load_record(&self.store, ino).map_err(|error| refused(ino, &error))?;
        stored.transpose().map_err(|error| {
            tracing::error!(%ino, %error, "the object's map cannot be read");
            Errno::EIO
        })
    }

    fn save(&self, ino: Ino, record: &ObjectRecord) -> Result<u64, Errno> {
        let mut writes = WriteSet::new();
        // One record for each object that there is: without it no byte could be made safe.
        writes.use_reserve();
        for (key, value) in entries(ino, record) {
            match value {
                Some(value) => writes.put(&key, value),
                None => writes.delete(&key),
            }
        }
        self.store.commit(writes).map(|lsn| lsn.0).map_err(|error| refused(ino, &error))
    }

    fn save_first(&self, ino: Ino, record: &ObjectRecord) -> Result<u64, Errno> {
        (self.first)(ino, &entries(ino, record))
    }

    fn drop_chunks(&self, ino: Ino) -> Result<(), Errno> {
        let head = self.store.get(&key(ino)).map_err(|error| refused(ino, &error))?;
        let Some(head) = head else { return Ok(()) };
        // What cannot be read may have any.
        if ObjectRecord::decode(&head).is_ok_and(|record| record.missing() == 0) {
            return Ok(());
        }
        let mut writes = WriteSet::new();
        writes.use_reserve();
        self.store
            .scan(&chunk_key(ino, 0), &chunk_key(ino, u32::MAX), &mut |key, _| {
                writes.delete(key);
                ControlFlow::Continue(())
            })
            .map_err(|error| refused(ino, &error))?;
        self.store.commit(writes).map(|_| ()).map_err(|error| refused(ino, &error))
    }

    fn save_pin(&self, ino: Ino, tier: Option<TierId>) -> Result<(), Errno> {
        let mut writes = WriteSet::new();
        match tier {
            Some(tier) => writes.put(&pin_key(ino.get()), vec![tier as u8].into()),
            None => {
                writes.use_reserve();
                writes.delete(&pin_key(ino.get()));
            }
        }
        self.store.commit(writes).map(|_| ()).map_err(|error| refused(ino, &error))
    }

    fn pins(&self) -> Result<Vec<(Ino, TierId)>, Errno> {
        let mut pins = Vec::new();
        let mut end = pin_key(u64::MAX).to_vec();
        end.push(0);
        let scanned = self.store.scan(&pin_key(0), &end, &mut |key, value| {
            match pin_of(key, value) {
                Some(pin) => pins.push(pin),
                None => tracing::error!(?key, ?value, "the record of a pin cannot be read: it pins nothing"),
            }
            ControlFlow::Continue(())
        });
        scanned.map(|()| pins).map_err(|error| refused(Ino::ROOT, &error))
    }

    fn save_scrub(&self, record: &[u8]) -> Result<(), Errno> {
        let mut writes = WriteSet::new();
        writes.use_reserve();
        writes.put(&namespace::key::global(SCRUB), record.to_vec().into());
        self.store.commit(writes).map(|_| ()).map_err(|error| refused(Ino::ROOT, &error))
    }

    fn scrub(&self) -> Result<Option<Vec<u8>>, Errno> {
        let stored = self.store.get(&namespace::key::global(SCRUB));
        stored.map(|bytes| bytes.map(|bytes| bytes.to_vec())).map_err(|error| refused(Ino::ROOT, &error))
    }

    fn synced(&self) -> u64 {
        self.store.synced_lsn().0
    }

    fn sync(&self) -> Result<(), Errno> {
        self.store.sync().map_err(|error| refused(Ino::ROOT, &error))
    }
}

/// The head, and the chunks that changed.
fn entries(ino: Ino, record: &ObjectRecord) -> Entries {
    let mut entries: Entries = vec![(key(ino).into(), Some(record.encode().into()))];
    for chunk in record.map.changed() {
        entries.push((chunk_key(ino, chunk).into(), record.encode_chunk(chunk).map(Bytes::from)));
    }
    entries
}

/// Reads an object's map: its head and the chunks that it speaks of. The inner error: what is stored is none.
pub fn load_record(
    store: &MetaStore,
    ino: Ino,
) -> Result<Option<Result<ObjectRecord, DecodeError>>, KvError> {
    let Some(head) = store.get(&key(ino))? else { return Ok(None) };
    let mut partial = match ObjectRecord::decode(&head) {
        Ok(partial) => partial,
        Err(error) => return Ok(Some(Err(error))),
    };
    let mut added = Ok(());
    if partial.missing() > 0 {
        store.scan(&chunk_key(ino, 0), &chunk_key(ino, u32::MAX), &mut |key, bytes| {
            let number = key.last_chunk::<4>().map_or(0, |n| u32::from_be_bytes(*n));
            added = partial.add(number, bytes);
            if added.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
    }
    Ok(Some(added.and_then(|()| partial.finish())))
}

fn chunk_key(ino: Ino, chunk: u32) -> [u8; 13] {
    let mut whole = [0; 13];
    whole[..9].copy_from_slice(&key(ino));
    whole[9..].copy_from_slice(&chunk.to_be_bytes());
    whole
}

fn key(ino: Ino) -> [u8; 9] {
    let mut key = [b'O'; 9];
    key[..8].copy_from_slice(&ino.get().to_be_bytes());
    key
}

/// Pins are few and looked for all together: they are under inode number 0, which no inode has.
fn pin_key(ino: u64) -> [u8; 17] {
    let mut key = [0; 17];
    key[8] = b'P';
    key[9..].copy_from_slice(&ino.to_be_bytes());
    key
}

fn pin_of(key: &[u8], value: &[u8]) -> Option<(Ino, TierId)> {
    let ino = key.last_chunk::<8>().and_then(|n| Ino::from_raw(u64::from_be_bytes(*n)));
    ino.zip(TierId::ALL.into_iter().find(|t| value == [*t as u8]))
}

fn refused(ino: Ino, error: &KvError) -> Errno {
    match error {
        KvError::Full => Errno::ENOSPC,
        KvError::ReadOnly(_) => Errno::EROFS,
        KvError::Io(_) | KvError::Corrupt(_) => {
            tracing::error!(%ino, %error, "the object's map was not read or saved");
            Errno::EIO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuzzing::{as_it_is, fuzz};

    /// Goal: the record of a pin is one of a file in a tier, or none. Method: [`fuzzing`] of a key and its value.
    #[test]
    fn fuzz_pin() {
        let good = TierId::ALL.map(|tier| [&pin_key(0x0102_0304_0506)[..], &[tier as u8]].concat());
        fuzz("pin", &good, as_it_is, |bytes| {
            let Some((value, key)) = bytes.split_last() else { return };
            if let Some((ino, tier)) = pin_of(key, &[*value]) {
                assert_eq!(
                    (pin_key(ino.get())[9..].to_vec(), tier as u8),
                    (key[key.len() - 8..].to_vec(), *value)
                );
            }
            let _ = pin_of(bytes, key);
        });
    }
}
