//! Where residency maps are kept: a record per object in the metadata journal.

use kv::{MetaStore, WriteSet};
use layout::ObjectRecord;
use namespace::txn::KvError;
use std::{ops::ControlFlow, sync::Arc};
use types::{Errno, Ino, TierId};

/// The store of residency maps. One journal carries them and the inode records, so both survive a crash at
/// the same moment.
pub trait MapStore: Send + Sync {
    /// `EIO` (and a log line) when the record is damaged.
    fn load(&self, ino: Ino) -> Result<Option<ObjectRecord>, Errno>;
    /// Survives the death of the process when it returns; the number says when it is durable.
    fn save(&self, ino: Ino, record: &ObjectRecord) -> Result<u64, Errno>;
    /// Keeps or forgets that the user pinned an object in a tier.
    fn save_pin(&self, ino: Ino, tier: Option<TierId>) -> Result<(), Errno>;
    /// All pins.
    fn pins(&self) -> Result<Vec<(Ino, TierId)>, Errno>;
    /// The number up to which records survive a power cut.
    fn synced(&self) -> u64;
    /// Makes everything saved so far durable.
    fn sync(&self) -> Result<(), Errno>;
}

/// Residency maps in the metadata store, under their inode's `O` key.
pub struct KvMaps {
    store: Arc<MetaStore>,
}

impl KvMaps {
    pub fn new(store: Arc<MetaStore>) -> KvMaps {
        KvMaps { store }
    }
}

impl MapStore for KvMaps {
    fn load(&self, ino: Ino) -> Result<Option<ObjectRecord>, Errno> {
        let stored = self.store.get(&key(ino)).map_err(|error| refused(ino, &error))?;
        let Some(bytes) = stored else { return Ok(None) };
        ObjectRecord::decode(&bytes).map(Some).map_err(|error| {
            tracing::error!(%ino, %error, "the object's map cannot be read");
            Errno::EIO
        })
    }

    fn save(&self, ino: Ino, record: &ObjectRecord) -> Result<u64, Errno> {
        let mut writes = WriteSet::new();
        writes.put(&key(ino), record.encode().into());
        self.store.commit(writes).map(|lsn| lsn.0).map_err(|error| refused(ino, &error))
    }

    fn save_pin(&self, ino: Ino, tier: Option<TierId>) -> Result<(), Errno> {
        let mut writes = WriteSet::new();
        match tier {
            Some(tier) => writes.put(&pin_key(ino.get()), vec![tier as u8].into()),
            None => writes.delete(&pin_key(ino.get())),
        }
        self.store.commit(writes).map(|_| ()).map_err(|error| refused(ino, &error))
    }

    fn pins(&self) -> Result<Vec<(Ino, TierId)>, Errno> {
        let mut pins = Vec::new();
        let mut end = pin_key(u64::MAX).to_vec();
        end.push(0);
        let scanned = self.store.scan(&pin_key(0), &end, &mut |key, value| {
            let ino = key.last_chunk::<8>().and_then(|n| Ino::from_raw(u64::from_be_bytes(*n)));
            let tier = TierId::ALL.into_iter().find(|t| value == [*t as u8]);
            pins.extend(ino.zip(tier));
            ControlFlow::Continue(())
        });
        scanned.map(|()| pins).map_err(|error| refused(Ino::ROOT, &error))
    }

    fn synced(&self) -> u64 {
        self.store.synced_lsn().0
    }

    fn sync(&self) -> Result<(), Errno> {
        self.store.sync().map_err(|error| refused(Ino::ROOT, &error))
    }
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
